//! Compiler of single nodes.

use brasa_graph::device::DeviceError;
use brasa_graph::op::{
    Attention, Binary, CacheWrite, ExpertLinear, GatedUnit, KvSource, LayerNorm, MemoryWrite, RmsNorm, Rope,
    Unfold,
};
use brasa_graph::{CacheId, CacheSpec, Dim, GroupId, MemoryId, NodeId, Op, Shape, ValueId};

use super::{Compiler, takes_norm, unsupported};
use crate::attention::{self, Keys, Over, Rounding, Scoring, Sight};
use crate::linear::{ExpertInput, PackedLinear, WeightClass, WeightClasses};
use crate::ops::CompiledOp;
use crate::ops::arrange::{BroadcastOp, CastOp, ConcatOp, Dims, MAX_RANK, TransposeOp};
use crate::ops::elementwise::{BinaryOp, Columns, GatedUnitOp, Spread, UnaryOp, WhereOp};
use crate::ops::experts::{ExpertLinearOp, RouterOp};
use crate::ops::finish::Follow;
use crate::ops::head_linear::HeadLinearOp;
use crate::ops::heads::{CacheWriteOp, Target};
use crate::ops::linear::{Layer, LinearOp};
use crate::ops::lookup::{EmbedOp, GatherOp, SelectRowsOp};
use crate::ops::norm::{Norm, NormKind, NormOp};
use crate::ops::position_scale::PositionScaleOp;
use crate::ops::prepare::{Activations, Meets};
use crate::ops::reduce::{ArgmaxOp, CrossEntropyOp, ReduceOp, SoftmaxOp};
use crate::ops::rope::{RopeOp, RopeTable};
use crate::ops::sequence::{IndexAddOp, MeanPoolOp, UnfoldOp};
use crate::slot::{Out, Slot, Source, WeightView};

/// Most elements of a row of which each has its own partner in a list: real models have some thousands.
const MOST_LISTED: usize = 1 << 24;

impl Compiler<'_> {
    /// Appends the operation of a node. A view, or a norm that its reader computes, appends nothing.
    pub(super) fn lower_node(&mut self, id: NodeId) -> Result<(), DeviceError> {
        let node = self.node(id);
        let name = node.op.name();
        let (inputs, outputs) = (&node.inputs, &node.outputs);
        // Each arm finds its operands' places, makes room for its results, and is then appended as one operation.
        let op = match (&node.op, &inputs[..], &outputs[..]) {
            (Op::Slice(_) | Op::Reshape(_), ..) => return Ok(()),
            (Op::Unary(_), ..) if self.followed.contains(&id) => return Ok(()),
            (Op::RmsNorm(_), _, &[y]) if self.folds(y) => {
                self.folded.insert(y, id);
                return Ok(());
            }
            (Op::RmsNorm(_) | Op::LayerNorm(_), &[x, ..], &[y]) => {
                let norm = self.norm(id)?;
                CompiledOp::Norm(NormOp { norm, x: self.source(x)?, out: self.by_rows(y)? })
            }
            (Op::Linear(_), &[x, w], &[y]) => return self.lower_linear(x, w, y),
            (Op::ExpertLinear(ExpertLinear), &[x, experts, w, ref bias @ ..], &[y]) => {
                let weight = self.weight(w).ok_or_else(|| self.odd(w))?;
                let own = self.shape(x).rank() == 3;
                let input = if own { ExpertInput::Own } else { ExpertInput::Shared };
                let activations = self.expert_activations(x, &[weight])?;
                let chosen = self.width(experts)?;
                let experts = self.slot(experts)?;
                let bias = bias.first().map(|&bias| self.source(bias)).transpose()?;
                let out = self.make(y)?;
                let op = ExpertLinearOp { activations, experts, weight, bias, chosen, input, out };
                let label = self.label(name, weight);
                self.push(CompiledOp::ExpertLinear(op), label);
                return Ok(());
            }
            (Op::HeadLinear(_), &[x, w], &[y]) => {
                let weight = self.weight(w).ok_or_else(|| self.odd(w))?;
                let plain = self.expert_activations(x, &[weight])?;
                let activations = Activations { meets: Meets::OfPlace, ..plain };
                let op = HeadLinearOp { activations, weight, out: self.make(y)? };
                let label = self.label(name, weight);
                self.push(CompiledOp::HeadLinear(op), label);
                return Ok(());
            }
            (Op::RouterTopK(router), &[logits, ref bias @ ..], &[experts, weights]) => {
                let logits = self.source(logits)?;
                let bias = bias.first().map(|&bias| self.as_row(bias)).transpose()?;
                let (experts, weights) = (self.by_rows(experts)?, self.by_rows(weights)?);
                CompiledOp::Router(RouterOp { router: *router, logits, bias, experts, weights })
            }
            (&Op::ClampedUnit(unit), &[gate, up], &[y]) => {
                let [gate, up] = self.sources([gate, up])?;
                let unit = GatedUnit::Clamped(unit);
                CompiledOp::GatedUnit(GatedUnitOp { unit, gate, up, out: self.by_elements(y)? })
            }
            (&Op::PositionScale(scale), &[x, positions], &[y]) => {
                let (x, positions) = (self.source(x)?, self.slot(positions)?);
                CompiledOp::PositionScale(PositionScaleOp { scale, x, positions, out: self.by_elements(y)? })
            }
            (Op::Embed(_), &[ids, table], &[y]) => {
                let ids = self.slot(ids)?;
                if let Some(table) = self.weight(table) {
                    let given = self.graph.token_embedding() == Some(id);
                    CompiledOp::Embed(EmbedOp { ids, table, given, out: self.by_rows(y)? })
                } else {
                    let x = self.source(table)?;
                    CompiledOp::SelectRows(SelectRowsOp { x, rows: ids, out: self.by_rows(y)? })
                }
            }
            (Op::Gather(_), &[table, indices], &[y]) => {
                let (table, indices) = (self.source(table)?, self.slot(indices)?);
                CompiledOp::Gather(GatherOp { table, indices, out: self.by_rows(y)? })
            }
            (Op::SelectRows(_), &[x, rows], &[y]) => {
                let (x, rows) = (self.source(x)?, self.slot(rows)?);
                CompiledOp::SelectRows(SelectRowsOp { x, rows, out: self.by_rows(y)? })
            }
            (Op::Matmul(op), &[a, b], &[c]) => self.matmul([op.transpose_a, op.transpose_b], [a, b], c)?,
            (&Op::Unary(function), &[x], &[y]) => {
                CompiledOp::Unary(UnaryOp { function, x: self.source(x)?, out: self.by_elements(y)? })
            }
            (&Op::Binary(function), &[a, b], &[y]) => CompiledOp::Binary(self.binary(function, a, b, y)?),
            (Op::Where(_), &[condition, a, b], &[y]) => {
                let [condition, a, b] = self.sources([condition, a, b])?;
                CompiledOp::Where(WhereOp { condition, a, b, out: self.by_elements(y)? })
            }
            (&Op::Rope(rope), &[x, positions, frequencies], &[y]) => {
                let table = self.rope_table(&rope, positions, frequencies)?;
                let head_dim = self.width(x)?;
                CompiledOp::Rope(RopeOp { rope, head_dim, x: self.source(x)?, table, out: self.by_rows(y)? })
            }
            (&Op::CacheWrite(CacheWrite { cache }), keys_and_values, []) => {
                self.cache_write(self.target(cache), keys_and_values)?
            }
            (&Op::MemoryWrite(MemoryWrite { memory }), keys_and_values, []) => {
                self.cache_write(self.memory_target(memory), keys_and_values)?
            }
            (Op::Attention(attention), operands, &[y]) => self.attention(*attention, operands, y)?,
            (Op::Softmax(_), &[x], &[y]) => {
                let width = self.width(x)?;
                CompiledOp::Softmax(SoftmaxOp { width, x: self.source(x)?, out: self.by_rows(y)? })
            }
            (Op::Reduce(reduce), &[x], &[y]) => {
                let dims = self.dims(x)?;
                let (function, axis) = (reduce.function, reduce.axis);
                let x = self.source(x)?;
                CompiledOp::Reduce(ReduceOp { function, axis, dims, x, out: self.by_rows(y)? })
            }
            (Op::Argmax(_), &[x], &[y]) => {
                CompiledOp::Argmax(ArgmaxOp { x: self.source(x)?, out: self.by_rows(y)? })
            }
            (Op::CrossEntropy(_), &[x, targets], &[y]) => {
                let (x, targets) = (self.source(x)?, self.slot(targets)?);
                CompiledOp::CrossEntropy(CrossEntropyOp { x, targets, out: self.by_rows(y)? })
            }
            (Op::Concat(concat), &[a, b], &[y]) => {
                let [a_dims, b_dims] = [self.dims(a)?, self.dims(b)?];
                let [a, b] = self.sources([a, b])?;
                let (axis, out) = (concat.axis, self.by_rows(y)?);
                CompiledOp::Concat(ConcatOp { axis, a, a_dims, b, b_dims, out })
            }
            (Op::Transpose(transpose), &[x], &[y]) => {
                let (dims, out_dims) = (self.dims(x)?, self.dims(y)?);
                let mut axes = [0; MAX_RANK];
                axes[..transpose.axes.len()].copy_from_slice(&transpose.axes);
                let x = self.source(x)?;
                CompiledOp::Transpose(TransposeOp { axes, dims, x, out_dims, out: self.by_rows(y)? })
            }
            (Op::Broadcast(_), &[x], &[y]) => {
                let (dims, out_dims) = (self.dims(x)?, self.dims(y)?);
                let x = self.source(x)?;
                CompiledOp::Broadcast(BroadcastOp { dims, x, out_dims, out: self.by_rows(y)? })
            }
            (Op::Cast(cast), &[x], &[y]) => {
                let from = self.graph.value(x).dtype;
                CompiledOp::Cast(CastOp { from, to: cast.dtype, x: self.source(x)?, out: self.by_rows(y)? })
            }
            (Op::IndexAdd(_), &[base, indices, x], &[y]) => {
                let [base, x] = self.sources([base, x])?;
                let indices = self.slot(indices)?;
                CompiledOp::IndexAdd(IndexAddOp { base, indices, x, out: Out::by_one_thread(self.make(y)?) })
            }
            (Op::Unfold(unfold), &[x], &[y]) => {
                let Unfold { taps, stride, padding } = *unfold;
                let (factor, x) = (self.rows_per_row(x)?, self.source(x)?);
                CompiledOp::Unfold(UnfoldOp { taps, stride, padding, factor, x, out: self.by_rows(y)? })
            }
            (Op::MeanPool(_), &[x], &[y]) => {
                let factor = self.rows_per_row(x)?;
                CompiledOp::MeanPool(MeanPoolOp { factor, x: self.source(x)?, out: self.by_rows(y)? })
            }
            (Op::ShortConv(conv), &[x, w], &[y]) => return self.short_conv(conv.state, x, w, y),
            (Op::StateScan(scan), operands, &[y]) => {
                CompiledOp::StateScan(self.state_scan(scan, operands, y)?)
            }
            _ => {
                let (op, label) = self.derivative(node)?;
                self.push(op, label);
                return Ok(());
            }
        };
        self.push(op, name);
        Ok(())
    }

    pub(super) fn sources<const N: usize>(
        &mut self,
        values: [ValueId; N],
    ) -> Result<[Source; N], DeviceError> {
        let mut sources = Vec::with_capacity(N);
        for value in values {
            sources.push(self.source(value)?);
        }
        Ok(std::array::from_fn(|i| sources[i]))
    }

    /// Makes room for a result whose rows are computed whole.
    pub(super) fn by_rows(&mut self, value: ValueId) -> Result<Out, DeviceError> {
        self.make(value).map(Out::by_rows)
    }

    /// Makes room for a result whose elements do not depend on each other.
    pub(super) fn by_elements(&mut self, value: ValueId) -> Result<Out, DeviceError> {
        self.make(value).map(Out::by_elements)
    }

    pub(super) fn dims(&self, value: ValueId) -> Result<Dims, DeviceError> {
        Dims::of(self.shape(value)).ok_or_else(|| self.odd(value))
    }

    /// True if the only reader of norm result `y` computes the norm itself.
    fn folds(&self, y: ValueId) -> bool {
        let [reader] = self.readers.items(self.schedule, y)[..] else { return false };
        self.shape(y).rank() == 2
            && !self.graph.outputs().contains(&y)
            && takes_norm(self.graph, &self.schedule.items()[reader], y)
    }

    /// The norm that a node computes.
    pub(super) fn norm(&mut self, id: NodeId) -> Result<Norm, DeviceError> {
        let node = self.node(id);
        let (kind, eps) = match node.op {
            Op::RmsNorm(RmsNorm { eps }) => (NormKind::Rms, eps),
            Op::LayerNorm(LayerNorm { eps }) => (NormKind::Layer, eps),
            _ => return Err(unsupported(format!("{} as a norm", node.op.name()))),
        };
        let width = self.width(node.inputs[0])?;
        let mut weights = [None; 2];
        for (weight, &value) in weights.iter_mut().zip(&node.inputs[1..]) {
            *weight = Some(self.vector(value)?);
        }
        Ok(Norm { kind, eps, width, weights })
    }

    /// The operand of linear layers, and how it is prepared; with its norm if the layers compute the norm.
    pub(super) fn activations(&mut self, x: ValueId, weights: &[usize]) -> Result<Activations, DeviceError> {
        let (x, norm) = match self.folded.get(&x).copied() {
            Some(id) => (self.node(id).inputs[0], Some(self.norm(id)?)),
            None => (x, None),
        };
        let (k, elements) = (self.width(x)?, self.row_elements(x)?);
        let x = if elements == k { self.source(x)? } else { self.dense(x)? };
        Ok(Activations {
            x,
            k,
            per_row: elements / k.max(1),
            norm,
            classes: WeightClasses::of_all(
                weights.iter().map(|&weight| self.weights.linear(weight).weight_classes()),
            ),
            meets: Meets::All,
            residuals: self.wants_residuals(weights),
        })
    }

    /// The operand of experts, and how it is prepared.
    pub(super) fn expert_activations(
        &mut self,
        x: ValueId,
        weights: &[usize],
    ) -> Result<Activations, DeviceError> {
        let (k, elements) = (self.width(x)?, self.row_elements(x)?);
        let x = if elements == k { self.source(x)? } else { self.dense(x)? };
        Ok(Activations {
            x,
            k,
            per_row: elements / k.max(1),
            norm: None,
            classes: self.expert_classes(weights),
            meets: Meets::Chosen,
            residuals: self.wants_residuals(weights),
        })
    }

    /// True if the activations of some of these weights come with residuals.
    pub(super) fn wants_residuals(&self, weights: &[usize]) -> bool {
        weights.iter().any(|weight| self.with_residuals.contains(weight))
    }

    /// The classes of all experts of these weights.
    pub(super) fn expert_classes(&self, weights: &[usize]) -> WeightClasses {
        let experts = weights.iter().flat_map(|&weight| self.weights.experts(weight).experts());
        WeightClasses::of_all(experts.map(PackedLinear::weight_classes))
    }

    fn lower_linear(&mut self, x: ValueId, w: ValueId, y: ValueId) -> Result<(), DeviceError> {
        let Some(weight) = self.weight(w) else {
            // A matrix that was computed.
            if self.shape(x).rank() != 2 {
                return Err(self.odd(x));
            }
            let op = self.matmul([false, true], [x, w], y)?;
            self.push(op, "linear");
            return Ok(());
        };
        let rows = self.shape(x).outer();
        let activations = self.activations(x, &[weight])?;
        let layer = Layer { weight, follow: Follow::default(), out: self.make(y)? };
        let label = self.label("linear", weight);
        self.push(CompiledOp::Linear(LinearOp { activations, layers: vec![layer], rows }), label);
        Ok(())
    }

    /// The table of cosines and sines of a rotation. The first call appends the operation that computes it.
    pub(super) fn rope_table(
        &mut self,
        rope: &Rope,
        positions: ValueId,
        frequencies: ValueId,
    ) -> Result<Slot, DeviceError> {
        let (outer, width) = (self.shape(positions).outer(), Dim::from(rope.rotary_dim));
        if let Some(buffer) = self.rotation(rope, positions, frequencies) {
            return Ok(Slot { buffer, offset: 0, stride: width, width, outer });
        }
        let key = [positions, frequencies];
        let (positions, frequencies) = (self.slot(positions)?, self.vector(frequencies)?);
        let out = self.temporary(outer, rope.rotary_dim);
        let magnitude = rope.magnitude;
        let table = RopeTable { positions, frequencies, magnitude, out: Out::by_rows(out) };
        self.push(CompiledOp::RopeTable(table), "rope_table");
        self.keep_rotation(rope, key, out.buffer);
        Ok(self.need_slot(out))
    }

    /// The place of a memory, and its geometry.
    fn memory_target(&self, memory: MemoryId) -> Target {
        let (group, place) = self.graph.memory_place(memory);
        target_of(group, place, self.graph.memory(memory))
    }

    /// The place of a cache, and its geometry.
    pub(super) fn target(&self, cache: CacheId) -> Target {
        let (group, place) = self.graph.cache_place(cache);
        target_of(group, place, self.graph.cache(cache))
    }

    /// Appends the write of keys, and of values if the cache stores them beside keys.
    fn cache_write(
        &mut self,
        target: Target,
        keys_and_values: &[ValueId],
    ) -> Result<CompiledOp, DeviceError> {
        let k = self.source(keys_and_values[0])?;
        let v = keys_and_values.get(1).map(|&v| self.source(v)).transpose()?;
        Ok(CompiledOp::CacheWrite(CacheWriteOp { k, v, target }))
    }

    fn attention(
        &mut self,
        attention: Attention,
        operands: &[ValueId],
        y: ValueId,
    ) -> Result<CompiledOp, DeviceError> {
        let Attention { source, scale, window, softcap } = attention;
        let scoring = Scoring { scale, softcap };
        let count = if matches!(source, KvSource::Step(_)) { 3 } else { 1 };
        let (operands, sinks) = operands.split_at(count.min(operands.len()));
        let q = operands[0];
        let (key_dim, elements) = (self.width(q)?, self.row_elements(q)?);
        let (heads, value_dim) = (elements / key_dim, self.width(y)?);
        let q = self.slot(q)?;
        let (keys, kv_heads, over) = match (source, operands) {
            (KvSource::Cache(cache), _) => {
                let Target { group, place, kv_heads, .. } = self.target(cache);
                (Keys::Cache { group, place }, kv_heads, Over::Text)
            }
            (KvSource::Memory(memory), _) => {
                let Target { group, place, kv_heads, .. } = self.memory_target(memory);
                (Keys::Cache { group, place }, kv_heads, Over::Memory)
            }
            (KvSource::Step(mask), &[_, k, v]) => {
                let kv_heads = self.row_elements(k)? / key_dim;
                let over = Over::Rows(mask);
                (Keys::Rows { k: self.slot(k)?, v: self.slot(v)? }, kv_heads, over)
            }
            (KvSource::Step(_), _) => return Err(unsupported("attention to the step without keys")),
        };
        let rounding = self.rounding(over);
        let sight = Sight { over, window };
        let sinks = sinks.first().map(|&sinks| self.vector(sinks)).transpose()?;
        let out = self.make(y)?;
        Ok(CompiledOp::Attention(attention::Attention {
            q,
            out,
            keys,
            heads,
            kv_heads,
            key_dim,
            value_dim,
            sinks,
            sight,
            scoring,
            rounding,
        }))
    }

    /// The rounding of attention's operands. Texts whose rows attend to each other are whole in a step, so rounding gives them the
    /// same result in every step. Chunks of a prompt, which attends to a cache, would not equal the prompt, and are not rounded.
    /// Nor is anything if all weights are F32.
    pub(super) fn rounding(&self, over: Over) -> Rounding {
        let rounds = |weight: usize| {
            let classes = self.weights.linear(weight).weight_classes();
            classes.has(WeightClass::Float16) || classes.has(WeightClass::Quantised)
        };
        let mut weights = self.graph.nodes().iter().filter_map(|node| match (&node.op, &node.inputs[..]) {
            (Op::Linear(_), &[_, w]) => self.weight(w),
            _ => None,
        });
        let is_whole = matches!(over, Over::Rows(_));
        if is_whole && weights.any(rounds) { Rounding::Everywhere } else { Rounding::OnTiles }
    }

    fn binary(
        &mut self,
        function: Binary,
        a: ValueId,
        b: ValueId,
        y: ValueId,
    ) -> Result<BinaryOp, DeviceError> {
        let (a_shape, b_shape) = (self.shape(a).clone(), self.shape(b).clone());
        let a_source = self.source(a)?;
        let same_rank = a_shape.rank() == b_shape.rank();
        let rows = same_rank && a_shape.outer() == b_shape.outer();
        // What of `b` meets one row of `a`: its row, or all of it.
        let inner = |shape: &Shape| shape.0[1.min(shape.rank())..].to_vec();
        let met = if same_rank { inner(&b_shape) } else { b_shape.0.clone() };
        let b_source = if same_rank { self.source(b)? } else { self.as_row(b)? };
        let columns = if met == inner(&a_shape) {
            Columns::Same
        } else if met.iter().all(|&dim| dim == Dim::from(1)) {
            Columns::One
        } else {
            let constant = |dims: &[Dim]| dims.iter().map(|dim| dim.constant()).collect::<Option<Vec<_>>>();
            let (Some(large), Some(small)) = (constant(&inner(&a_shape)), constant(&met)) else {
                return Err(self.odd(b));
            };
            if large.iter().fold(1, |all: usize, &dim| all.saturating_mul(dim)) > MOST_LISTED {
                return Err(self.odd(b));
            }
            Columns::Listed(spread(&large, &small))
        };
        let out = self.by_elements(y)?;
        Ok(BinaryOp { function, a: a_source, b: b_source, spread: Spread { rows, columns }, out })
    }

    /// A value of constant shape, without gaps in memory, as one row.
    pub(super) fn as_row(&mut self, value: ValueId) -> Result<Source, DeviceError> {
        let mut dims = self.shape(value).0.iter().map(|dim| dim.constant());
        let elements = dims.try_fold(1, |all: usize, dim| all.checked_mul(dim?));
        let elements = elements.ok_or_else(|| self.odd(value))?;
        let whole: Dim = elements.into();
        Ok(match self.source(value)? {
            Source::Weight(view) if view.stride == view.width => {
                Source::Weight(WeightView { stride: elements, width: elements, ..view })
            }
            Source::Arena(slot) if slot.stride == slot.width => {
                Source::Arena(Slot { stride: whole, width: whole, outer: 1.into(), ..slot })
            }
            _ => return Err(self.odd(value)),
        })
    }
}

/// For each element of shape `large`, the index of the element of `small` that it is combined with.
fn spread(large: &[usize], small: &[usize]) -> Box<[u32]> {
    let missing = large.len() - small.len();
    (0..large.iter().product::<usize>())
        .map(|mut place| {
            let (mut found, mut step) = (0, 1);
            for (axis, &len) in large.iter().enumerate().rev() {
                let index = place % len;
                place /= len;
                if let Some(&own) = axis.checked_sub(missing).and_then(|axis| small.get(axis)) {
                    found += if own == 1 { 0 } else { index * step };
                    step *= own;
                }
            }
            found as u32
        })
        .collect()
}

/// Cache number `place` of `group`, and its geometry.
fn target_of(group: GroupId, place: usize, spec: CacheSpec) -> Target {
    let CacheSpec { kv_heads, key_dim, value, .. } = spec;
    Target { group: group.0 as usize, place, kv_heads, key_dim, value_dim: value.stored() }
}
