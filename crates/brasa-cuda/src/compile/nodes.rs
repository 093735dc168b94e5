//! Each operation of a graph as one of the device.

use brasa_graph::device::{Capabilities, DeviceError, KvType};
use brasa_graph::fuse::Norm;
use brasa_graph::op::{Attention, KvSource, ReduceFn, Unfold};
use brasa_graph::{CacheId, DType, GroupId, NodeId, Op, ValueId};

use super::Compiler;
use crate::ops::{
    ArgmaxOp, AttentionOp, BinaryOp, CacheWriteOp, CastOp, ChooseOp, ClampedUnitOp, CopyOp, CrossEntropyOp,
    EachElement, EmbedOp, ExpertLinearOp, Flash, Floats, GatherOp, IndexAddOp, MATMUL_TILES, MOST_PAGE_SUMS,
    MOST_PARTS, Matmul, MatmulOp, MeanPoolOp, NormOp, Pages, Parts, PositionScaleOp, ReduceOp, RopeOp,
    RouterTopKOp, SelectRowsOp, SoftmaxOp, Source, StepTiles, TransposeOp, UnaryOp, UnfoldOp, WIDEST_PAGED,
    WIDEST_PAGED_KEY, WIDEST_PAGED_VALUE, cast_target, flash_kernel, parts_kernel, router_kernel,
    step_tiles_bytes,
};
use crate::params::{self, Ptr};

/// Most experts that the router counts.
pub(super) const MOST_EXPERTS: usize = 1024;
/// Most elements of a product whose sums are cut in parts; larger products have enough tiles.
const MOST_SPLIT: usize = 1 << 19;
/// The widest head whose query and sums fit the shared memory that every block has.
const WIDEST_HEAD: usize = 4096;
/// Limits of the kernels: all types of keys and values, and the widest head and most experts that fit.
pub(crate) const CAPABILITIES: Capabilities =
    Capabilities { kv_types: KvType::ALL, widest_head: Some(WIDEST_HEAD), most_experts: Some(MOST_EXPERTS) };

impl Compiler<'_> {
    /// Appends the operation of a node; none for a view.
    pub(super) fn lower_node(&mut self, id: NodeId) -> Result<(), DeviceError> {
        let graph = self.graph;
        let node = graph.node(id);
        let name = node.op.name();
        if let Some(chain) = self.chains.remove(&id) {
            return self.lower_chain(chain, node.outputs[0]);
        }
        if let Some(parts) = self.joins.remove(&id) {
            return self.join(parts, node.outputs[0]);
        }
        match (&node.op, &node.inputs[..], &node.outputs[..]) {
            (Op::Slice(_) | Op::Reshape(_), ..) => {}
            (Op::Embed(_), &[ids, table], &[y]) => self.embed(id, ids, table, y)?,
            (Op::Gather(_), &[table, indices], &[y]) => {
                let (table, indices) = (self.dense(table)?, self.numbers(indices)?);
                let (kernel, out) = (self.kernel("gather")?, self.make(y));
                self.push(GatherOp { kernel, table, indices, out }, name);
            }
            (Op::SelectRows(_), &[x, rows], &[y]) => self.select_rows(x, rows, y, name)?,
            (Op::Linear(_), &[x, w], &[y]) if self.is_tail(x, y) => {
                self.thin_product([x, w, y], false, 1.0)?;
            }
            (Op::LinearTransposed(_), &[y, w], &[x]) if self.is_tail(y, x) => {
                self.thin_product([y, w, x], true, 1.0)?;
            }
            (Op::Linear(_), &[x, w], &[y]) => self.linear_alone(x, w, y)?,
            (Op::LinearTransposed(_), &[y, w], &[x]) => self.linear_transposed(y, w, x)?,
            (Op::Matmul(op), &[a, b], &[c]) => {
                self.matmul([a, b], [op.transpose_a, op.transpose_b], c, (name, false))?;
            }
            (Op::ExpertLinear(_), &[x, experts, w, ref bias @ ..], &[y]) => {
                self.expert_linear(x, experts, w, bias.first().copied(), y)?;
            }
            (Op::HeadLinear(_), &[x, w], &[y]) => self.head_linear(x, w, y)?,
            (&Op::RouterTopK(router), &[logits, ref bias @ ..], &[experts, weights]) => {
                let count = self.shape(logits).width().ok_or_else(|| self.odd(logits))?;
                CAPABILITIES.check_experts(count).map_err(|what| self.gpu.unsupported(what))?;
                let kernel = self.kernel(router_kernel(&router, !bias.is_empty()))?;
                let logits = self.slot(logits)?;
                let bias = bias.first().map(|&bias| self.dense(bias)).transpose()?;
                let (experts, weights) = (self.make(experts), self.make(weights));
                self.push(RouterTopKOp { kernel, logits, router, bias, experts, weights }, name);
            }
            (&Op::ClampedUnit(unit), &[gate, up], &[y]) => {
                let (kernels, gate, up) = (self.each_element(name)?, self.slot(gate)?, self.slot(up)?);
                let out = self.make(y);
                self.push(ClampedUnitOp { kernels, unit, gate, up, out }, name);
            }
            (&Op::PositionScale(scale), &[x, positions], &[y]) => {
                let (kernel, x, positions) = (self.kernel(name)?, self.slot(x)?, self.dense(positions)?);
                let out = self.make(y);
                self.push(PositionScaleOp { kernel, scale, x, positions, out }, name);
            }
            (Op::RmsNorm(op), inputs, &[y]) if self.defers_norm(y) => {
                let norm = Norm { w: inputs.get(1).copied(), eps: op.eps };
                self.normed.insert(y, (inputs[0], norm));
            }
            (Op::RmsNorm(op), inputs, &[y]) if self.is_paneled(y) => {
                self.norm_to_panels(inputs[0], Norm { w: inputs.get(1).copied(), eps: op.eps }, y)?;
            }
            (Op::RmsNorm(op), inputs, &[y]) => self.norm("rms_norm", op.eps, inputs, y)?,
            (Op::LayerNorm(op), inputs, &[y]) => self.norm("layer_norm", op.eps, inputs, y)?,
            (&Op::Unary(function), &[x], &[y]) => {
                let (kernels, x) = (self.each_element("unary")?, self.slot(x)?);
                let out = self.make(y);
                self.push(UnaryOp { kernels, function, x, out }, name);
            }
            (&Op::Binary(function), &[a, b], &[y]) => {
                let (kernels, a, b) = (self.each_element("binary")?, self.slot(a)?, self.slot(b)?);
                let out = self.make(y);
                self.push(BinaryOp { kernels, function, a, b, out }, name);
            }
            (Op::Where(_), &[condition, a, b], &[y]) => {
                let of_integers = graph.value(condition).dtype == DType::U32;
                let (kernel, condition) = (self.kernel("choose")?, self.slot(condition)?);
                let (a, b, out) = (self.slot(a)?, self.slot(b)?, self.make(y));
                self.push(ChooseOp { kernel, condition, of_integers, a, b, out }, name);
            }
            (&Op::Rope(rope), &[x, positions, frequencies], &[y]) => {
                let (kernel, x) = (self.kernel("rope")?, self.slot(x)?);
                let (positions, frequencies) = (self.dense(positions)?, self.dense(frequencies)?);
                let out = self.make_in_place(y);
                self.push(RopeOp { kernel, rope, x, positions, frequencies, out }, name);
            }
            (Op::CacheWrite(op), written, []) => {
                self.cache_write(graph.cache_place(op.cache), written, name)?;
            }
            (Op::MemoryWrite(op), written, []) => {
                self.cache_write(graph.memory_place(op.memory), written, name)?;
            }
            (&Op::Attention(attention), inputs, &[y]) => self.attention(attention, inputs, y, name)?,
            (Op::Softmax(_), &[x], &[y]) => {
                let (kernel, x) = (self.kernel("softmax")?, self.slot(x)?);
                let out = self.make(y);
                self.push(SoftmaxOp { kernel, x, out }, name);
            }
            (Op::Reduce(op), &[x], &[y]) => self.reduce(op.function, op.axis, x, y, name)?,
            (Op::Argmax(_), &[x], &[y]) => {
                let (kernel, x) = (self.kernel("argmax")?, self.slot(x)?);
                let out = self.make(y);
                self.push(ArgmaxOp { kernel, x, out }, name);
            }
            (Op::CrossEntropy(_), &[x, targets], &[y]) => {
                let (kernel, targets) = (self.kernel("cross_entropy")?, self.numbers(targets)?);
                let (x, out) = (self.slot(x)?, self.make(y));
                self.push(CrossEntropyOp { kernel, x, targets, out }, name);
            }
            (Op::Concat(op), &[a, b], &[y]) => self.concat(op.axis, [a, b], y, name)?,
            (Op::Transpose(op), &[x], &[y]) => {
                let (kernels, x) = (self.each_element("copy")?, self.slot(x)?);
                let out = self.make(y);
                self.push(TransposeOp { kernels, axes: op.axes.clone(), x, out }, name);
            }
            (Op::Broadcast(_), &[x], &[y]) => {
                let (kernels, x) = (self.each_element("copy")?, self.slot(x)?);
                let out = self.make(y);
                self.push(CopyOp { kernels, x, behind: None, is_part: false, out }, name);
            }
            (Op::Cast(op), &[x], &[y]) => {
                let from_integers = graph.value(x).dtype == DType::U32;
                let (kernel, to, x) = (self.kernel("cast")?, cast_target(op.dtype), self.slot(x)?);
                let out = self.make(y);
                self.push(CastOp { kernel, from_integers, to, x, out }, name);
            }
            (Op::IndexAdd(_), &[base, indices, x], &[y]) => {
                let (kernel, indices) = (self.kernel("index_add")?, self.numbers_of_rows(indices, base)?);
                let (base, x) = (self.dense(base)?, self.dense(x)?);
                let out = self.make(y);
                self.push(IndexAddOp { kernel, base, indices, x, out }, name);
            }
            (Op::Unfold(op), &[x], &[y]) => {
                let Unfold { taps, stride, padding } = *op;
                let factor = self.rows_per_row(x)?;
                let (kernel, x) = (self.kernel("unfold")?, self.dense(x)?);
                let out = self.make(y);
                self.push(UnfoldOp { kernel, taps, stride, padding, factor, x, out }, name);
            }
            (Op::MeanPool(_), &[x], &[y]) => {
                let factor = self.rows_per_row(x)?;
                let (kernel, x) = (self.kernel("mean_pool")?, self.dense(x)?);
                let out = self.make(y);
                self.push(MeanPoolOp { kernel, factor, x, out }, name);
            }
            (Op::ShortConv(op), &[x, w], &[y]) => self.short_conv(op.state, x, w, y)?,
            (Op::StateScan(op), operands, &[y]) => self.state_scan(op, operands, y)?,
            _ => self.lower_derivative(id)?,
        }
        Ok(())
    }

    /// The kernels of a function of each element.
    pub(super) fn each_element(&self, name: &str) -> Result<EachElement, DeviceError> {
        Ok(EachElement { any: self.kernel(name)?, flat: self.kernel(&format!("{name}_flat"))? })
    }

    fn embed(&mut self, id: NodeId, ids: ValueId, table: ValueId, y: ValueId) -> Result<(), DeviceError> {
        let Some(number) = self.weight(table) else {
            return self.select_rows(table, ids, y, "embed");
        };
        let stored = self.weights.stored(number).ok_or_else(|| self.odd(table))?.weight;
        let (kernel, ids) = (self.kernel("embed")?, self.numbers(ids)?);
        let given = self.graph.token_embedding() == Some(id);
        let out = self.make(y);
        let label = self.label("embed", number);
        self.push(EmbedOp { kernel, ids, table: stored, given, out }, label);
        Ok(())
    }

    fn select_rows(&mut self, x: ValueId, rows: ValueId, y: ValueId, name: &str) -> Result<(), DeviceError> {
        let (kernel, rows) = (self.kernel("select_rows")?, self.numbers_of_rows(rows, x)?);
        let (x, out) = (self.slot(x)?, self.make(y));
        self.push(SelectRowsOp { kernel, x, rows, out }, name);
        Ok(())
    }

    pub(super) fn matmul(
        &mut self,
        [a, b]: [ValueId; 2],
        [transpose_a, transpose_b]: [bool; 2],
        c: ValueId,
        (name, of_gradient): (&str, bool),
    ) -> Result<(), DeviceError> {
        let elements: usize = self.shape(c).resolve(&self.sizes).iter().product();
        let (a, b) = (self.dense(a)?, self.dense(b)?);
        let matmul = self.product(elements, of_gradient)?;
        let out = self.make(c);
        self.push(MatmulOp { matmul, a, b, transpose_a, transpose_b, out }, name);
        Ok(())
    }

    /// The kernels of products of matrices with results of so many elements, and room for sums of parts. Where sums may have another order, products
    /// may be made `on_tensor_cores`.
    pub(super) fn product(&mut self, elements: usize, on_tensor_cores: bool) -> Result<Matmul, DeviceError> {
        let on_tensor_cores = on_tensor_cores && !self.exact;
        let name = if on_tensor_cores { "matmul_tensor" } else { "matmul" };
        let [a, b, c] = MATMUL_TILES.map(|(rows, columns)| self.kernel(&format!("{name}_{rows}_{columns}")));
        let kernels = [a?, b?, c?];
        let parts = if self.exact || elements > MOST_SPLIT {
            None
        } else {
            let floats = elements.saturating_mul(MOST_PARTS);
            Some((self.kernel("matmul_sums")?, self.buffer(floats), floats))
        };
        Ok(Matmul { kernels, on_tensor_cores, parts })
    }

    /// The weight as a matrix of f32 for products of at most that many elements, if it is one. Products with weights that are learned
    /// are made on tensor cores, and so are those of gradients.
    pub(super) fn floats(
        &mut self,
        number: usize,
        elements: usize,
        of_gradient: bool,
    ) -> Result<Option<Floats>, DeviceError> {
        let Some(stored) = self.weights.stored(number) else { return Ok(None) };
        let Some(data) = stored.floats() else { return Ok(None) };
        let size = (stored.weight.rows, stored.weight.row_len);
        let on_tensor_cores = of_gradient || self.graph.weights()[number].trainable;
        let matmul = self.product(elements, on_tensor_cores)?;
        Ok(Some(Floats { matmul, data: Ptr::new(data), size, factor: 1.0 }))
    }

    fn expert_linear(
        &mut self,
        x: ValueId,
        experts: ValueId,
        w: ValueId,
        bias: Option<ValueId>,
        y: ValueId,
    ) -> Result<(), DeviceError> {
        let number = self.weight(w).ok_or_else(|| self.odd(w))?;
        let stored = self.weights.stored(number).ok_or_else(|| self.odd(w))?.weight;
        let kernels = self.kernels_of_formats("expert_linear", number)?;
        let count = self.shape(w).outer().constant().filter(|&count| count > 0).ok_or_else(|| self.odd(w))?;
        let own_rows = self.shape(x).rank() == 3;
        let (x, experts) = (self.slot(x)?, self.numbers(experts)?);
        let bias = bias.map(|bias| self.dense(bias)).transpose()?;
        let out = self.make(y);
        let label = self.label("expert_linear", number);
        let op = ExpertLinearOp { kernels, x, experts, w: stored, number, count, own_rows, bias, out };
        self.push(op, label);
        Ok(())
    }

    fn norm(&mut self, kernel: &str, eps: f32, inputs: &[ValueId], y: ValueId) -> Result<(), DeviceError> {
        let name = kernel.to_owned();
        let (kernel, x) = (self.kernel(kernel)?, self.slot(inputs[0])?);
        let weight = inputs.get(1).map(|&w| self.dense(w)).transpose()?;
        let bias = inputs.get(2).map(|&b| self.dense(b)).transpose()?;
        let out = self.make(y);
        self.push(NormOp { kernel, eps, x, weight, bias, out }, name);
        Ok(())
    }

    fn cache_write(
        &mut self,
        (GroupId(group), place): (GroupId, usize),
        keys_and_values: &[ValueId],
        name: &str,
    ) -> Result<(), DeviceError> {
        let kernel = self.kernel_of_cache("cache_write")?;
        let k = self.slot(keys_and_values[0])?;
        let v = keys_and_values.get(1).map(|&v| self.slot(v)).transpose()?;
        self.push(CacheWriteOp { kernel, k, v, group: group as usize, place }, name);
        Ok(())
    }

    fn attention(
        &mut self,
        attention: Attention,
        inputs: &[ValueId],
        y: ValueId,
        name: &str,
    ) -> Result<(), DeviceError> {
        let graph = self.graph;
        let key_dim = self.shape(inputs[0]).width().ok_or_else(|| self.odd(inputs[0]))?;
        let value_dim = self.shape(y).width().ok_or_else(|| self.odd(y))?;
        let widest = key_dim.max(value_dim);
        CAPABILITIES.check_head(widest).map_err(|what| self.gpu.unsupported(what))?;
        // Tensor cores read keys and values of one width, side by side.
        let head_dim = match attention.source {
            KvSource::Cache(cache) => graph.cache(cache).head_dim(),
            KvSource::Memory(memory) => graph.memory(memory).head_dim(),
            KvSource::Step(_) => (key_dim == value_dim).then_some(key_dim),
        };
        let count = if matches!(attention.source, KvSource::Step(_)) { 3 } else { 1 };
        let (inputs, sinks) = inputs.split_at(count.min(inputs.len()));
        let sinks = sinks.first().map(|&sinks| self.dense(sinks)).transpose()?;
        let paged = |cache: CacheId| graph.cache(cache).kv_heads;
        let (source, kv_heads) = match attention.source {
            KvSource::Cache(cache) => {
                let (GroupId(group), place) = graph.cache_place(cache);
                (Source::Cache { group: group as usize, place }, paged(cache))
            }
            KvSource::Memory(memory) => {
                let (GroupId(group), place) = graph.memory_place(memory);
                (Source::Memory { group: group as usize, place }, graph.memory(memory).kv_heads)
            }
            KvSource::Step(mask) => {
                let kv_heads = self.shape(inputs[1]).0[1].constant().ok_or_else(|| self.odd(inputs[1]))?;
                let (k, v) = (self.slot(inputs[1])?, self.slot(inputs[2])?);
                (Source::Step { k, v, mask }, kv_heads)
            }
        };
        let kernel = match source {
            Source::Step { .. } => self.kernel("attention_step")?,
            _ => self.kernel_of_cache("attention")?,
        };
        let tiles = match source {
            Source::Step { .. } => {
                self.step_tiles("attention_tiles", [Some(key_dim), Some(value_dim)], [3, 1])?
            }
            _ => None,
        };
        let flash = match (&source, head_dim.and_then(|width| flash_kernel(width, self.kv_type))) {
            (Source::Cache { .. }, Some((name, shared_bytes)))
                if !self.exact && self.gpu.has_tensor_kernels() =>
            {
                Some(Flash { kernel: self.flash(&name, shared_bytes)?, shared_bytes })
            }
            _ => None,
        };
        let pages = match source {
            Source::Step { .. } => None,
            _ if key_dim > WIDEST_PAGED_KEY || value_dim > WIDEST_PAGED_VALUE => None,
            _ => {
                let is_wide = widest > WIDEST_PAGED;
                // Room for 64 pages of each row; longer texts take a few rows at a time.
                let elements: usize = self.shape(y).resolve(&self.sizes).iter().product();
                let floats = MOST_PAGE_SUMS.min(elements.saturating_mul(2 * 64));
                let name = if is_wide { "attend_wide_pages" } else { "attend_pages" };
                let (kernel, merge) = (self.kernel_of_cache(name)?, self.kernel("attend_merge")?);
                let sharing =
                    self.shape(inputs[0]).0[1].constant().map_or(usize::MAX, |heads| heads / kv_heads);
                let parts = match head_dim.and_then(|width| parts_kernel(width, sharing)) {
                    Some((name, shared_bytes))
                        if self.kv_type == KvType::F16 && !self.exact && self.gpu.has_tensor_kernels() =>
                    {
                        Some(Parts { kernel: self.flash(&name, shared_bytes)?, shared_bytes })
                    }
                    _ => None,
                };
                Some(Pages { kernel, is_wide, parts, merge, partial: (self.buffer(floats), floats) })
            }
        };
        let has_parts = pages.as_ref().is_some_and(|pages| pages.parts.is_some());
        let ahead = if has_parts { self.attention_ahead(y)? } else { None };
        let on_tensor_cores = match source {
            Source::Step { .. } if sinks.is_none() => {
                self.attention_rows([inputs[0], inputs[1], inputs[2]], y, &attention, kv_heads)?
            }
            _ => None,
        };
        let (q, out) = (self.slot(inputs[0])?, self.make(y));
        let op = AttentionOp {
            kernel,
            tiles,
            on_tensor_cores,
            pages,
            flash,
            attention,
            source,
            kv_heads,
            q,
            sinks,
            ahead,
            out,
        };
        self.push(op, name);
        Ok(())
    }

    /// The kernel called `name` for heads of `width`, with room for tiles of operands and of scores; `None` if there is too little.
    pub(super) fn step_tiles(
        &self,
        name: &str,
        [keys, values]: [Option<usize>; 2],
        [operands, scores]: [usize; 2],
    ) -> Result<Option<StepTiles>, DeviceError> {
        let Some(width) = keys.filter(|_| keys == values) else { return Ok(None) };
        let Some(shared_bytes) = step_tiles_bytes(width, operands, scores) else { return Ok(None) };
        let kernel = self.kernel_with_shared(name, shared_bytes)?;
        Ok(kernel.map(|kernel| StepTiles { kernel, shared_bytes }))
    }

    fn reduce(
        &mut self,
        function: ReduceFn,
        axis: usize,
        x: ValueId,
        y: ValueId,
        name: &str,
    ) -> Result<(), DeviceError> {
        let function = match function {
            ReduceFn::Sum => params::REDUCE_SUM,
            ReduceFn::Mean => params::REDUCE_MEAN,
            ReduceFn::Max => params::REDUCE_MAX,
            ReduceFn::LogSumExp => params::REDUCE_LOGSUMEXP,
        };
        let axis = self.shape(x).rank() - 1 - axis;
        let (kernel, x) = (self.kernel("reduce")?, self.dense(x)?);
        let out = self.make(y);
        self.push(ReduceOp { kernel, function, axis, x, out }, name);
        Ok(())
    }

    fn concat(
        &mut self,
        axis: usize,
        [a, b]: [ValueId; 2],
        y: ValueId,
        name: &str,
    ) -> Result<(), DeviceError> {
        let axis = self.shape(a).rank() - 1 - axis;
        let (kernels, first, out) = (self.each_element("copy")?, self.slot(a)?, self.make(y));
        let is_part = true;
        let copy = CopyOp { kernels: kernels.clone(), x: first, behind: None, is_part, out: out.clone() };
        self.push(copy, name);
        // Both are needed until the second copy has run, and so is what the first has made.
        let (first, x) = (self.slot(a)?, self.slot(b)?);
        self.slot(y)?;
        self.push(CopyOp { kernels, x, behind: Some((axis, first)), is_part, out }, name);
        Ok(())
    }
}
