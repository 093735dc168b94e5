//! Low-rank adaption of linear layers (Hu et al. 2021, arXiv:2106.09685), beside the stored weights.
//!
//! A layer `y = x·Wᵀ` becomes `y = x·Wᵀ + scale · (x·Aᵀ)·Bᵀ`. `W` stays as it is stored and shared.
//!
//! Stacked projections (Q|K|V, gate|up) stay one product. The adapters of a stack become one pair of products too: the rows of
//! all `A` are stacked, and `B` has a block for each adapter, zero elsewhere.
//!
//! A stack of experts is adapted by products of the same experts: `y[j] = x·W[e_j]ᵀ + scale · (x·A[e_j]ᵀ)·B[e_j]ᵀ`.
//!
//! With a gain the layer becomes `y = gain ∘ (x·Wᵀ + scale · (x·Aᵀ)·Bᵀ)`: DoRA's (Liu et al. 2024, arXiv:2402.09353) magnitudes over the
//! rows' norms, [`row_norms`](super::row_norms).
//!
//! A *bank* is a set of adapters, of which every row of a step uses its own mixture. The rows bring a scale for each adapter as
//! an input of the graph, `y = x·Wᵀ + (s ∘ x·Aᵀ)·Bᵀ`. So texts of several adapters share a step, and a weight keeps one pair of
//! products. A rank whose scale is 0 counts for nothing, even if its product is infinite; a device may skip it
//! ([`LowRankRows`](crate::fuse::LowRankRows)). Each adapter's ranks begin at a multiple of four in a bank. A CPU sums every
//! fourth product separately, so a row's bits then do not depend on the adapters that it does not use.
//!
//! The sum is placed so that fused nodes stay fused: after the layer's bias, or on the residual if the layer is only added to one
//! (`(residual + Δ) + x·Wᵀ`). There is one exception. The activation of a gated feed-forward layer needs the sum, so with an
//! adapted gate|up it runs after the product instead of within it.

use std::collections::BTreeMap;
use std::ops::Range;

use brasa_formats::{Bytes, Payload, StorageFormat, Tensor, codec};

use crate::fuse::Finder;
use crate::op::{Binary, Broadcast, Where};
use crate::reference::decode_weight;
use crate::{
    Builder, Change, DType, Dim, Graph, GraphError, Input, Node, NodeId, Op, ValueId, ValueKind, Weight,
    WeightId, WeightPart, rewrite,
};

/// Ranks of a bank's adapters are rounded up to a multiple of this number.
const BANK_RANKS: usize = 4;

/// Low-rank adaption of some rows of a weight: `W[rows] + scale · B·A`, not merged.
#[derive(Clone, Debug)]
pub struct LowRank {
    /// The adapted weight, `[N, K]`, or `[X, N, K]` of X experts. Only linear layers may read it.
    pub weight: WeightId,
    /// The adapted rows: all, or those of one projection of a stacked weight. For a stack of experts, all `N`.
    pub rows: Range<usize>,
    /// `A`, `[r, K]`, or `[X, r, K]`.
    pub a: Weight,
    /// `B`, `[rows, r]`, or `[X, N, r]`.
    pub b: Weight,
    /// Factor of the product; usually `α / r`.
    pub scale: f32,
    /// Factors of the adapted rows' sums, f32 `[rows]`; `None` for 1. With factors, no other adapter may change the same rows.
    pub gain: Option<Weight>,
}

/// Adds `adapters` beside the linear layers of a graph. Adapters of the same rows add up.
///
/// A single adapter of all rows shares its bytes with the new graph. If a weight has several adapters, or one for some of its
/// rows, a `B` of all rows and all ranks is made: in F16 or BF16 if every `B` is stored so, otherwise in F32.
///
/// # Errors
///
/// [`GraphError::Adapter`] if the graph has no such weight or rows, if the shapes of `A` and `B` do not fit, if the scale is
/// not finite, if anything but a linear layer reads the weight (a tied embedding), or if nothing reads it.
pub fn add_low_rank(graph: &Graph, adapters: &[LowRank]) -> Result<Graph, GraphError> {
    let all: Vec<(usize, &LowRank)> = adapters.iter().map(|adapter| (0, adapter)).collect();
    add(graph, &all, None)
}

/// Adds a bank of adapters beside the linear layers of a graph: each element of `bank` is one adapter.
///
/// The new graph declares one input more than `graph`, `adapter_scales`, f32 `[Rows, adapters]`: every row brings a factor of
/// each adapter's own scale, 0 for an adapter that does not touch the row. A row of zeros computes what `graph` computes.
///
/// # Errors
///
/// The errors of [`add_low_rank`]; [`GraphError::Adapter`] for an empty bank, and for NaN and infinities in an adapter: other
/// texts' rows multiply such elements by zeros, and would become NaN.
pub fn add_low_rank_bank(graph: &Graph, bank: &[Vec<LowRank>]) -> Result<Graph, GraphError> {
    if bank.is_empty() {
        return Err(GraphError::Adapter { weight: "the bank".into(), what: "no adapters".into() });
    }
    let all =
        bank.iter().enumerate().flat_map(|(number, adapter)| adapter.iter().map(move |of| (number, of)));
    add(graph, &all.collect::<Vec<_>>(), Some(Mixture::new(bank.len())))
}

/// Adds adapters, each with its number in the bank.
fn add(
    graph: &Graph,
    adapters: &[(usize, &LowRank)],
    mut mixture: Option<Mixture>,
) -> Result<Graph, GraphError> {
    let mut by_weight: BTreeMap<WeightId, Vec<(usize, &LowRank)>> = BTreeMap::new();
    for &(number, adapter) in adapters {
        adapter.check(graph)?;
        if mixture.is_some() && adapter.gain.is_some() {
            let what = "rows of a bank's adapters have no gains of their own (DoRA)";
            let weight = graph.weight(adapter.weight).name.clone();
            return Err(GraphError::Adapter { weight, what: what.into() });
        }
        if mixture.is_some() {
            adapter.check_numbers(graph)?;
        }
        by_weight.entry(adapter.weight).or_default().push((number, adapter));
    }
    let mut stacks = BTreeMap::new();
    for (weight, mut adapters) in by_weight {
        let step = if mixture.is_some() { BANK_RANKS } else { 1 };
        if mixture.is_some() {
            // Ranks of the same rows lie together, so that the zeros of `B` do, which devices skip.
            adapters.sort_by_key(|(_, of)| of.rows.start);
        }
        stacks.insert(weight, Stack::new(graph.weight(weight), &adapters, step)?);
    }
    let finder = Finder::new(graph);
    // By the node that takes it in: the values to which something is added, and what.
    let mut pending: BTreeMap<NodeId, Vec<(ValueId, ValueId)>> = BTreeMap::new();
    let mut number = 0;
    rewrite(graph, |builder, node, operands| {
        let id = NodeId(number);
        number += 1;
        if let Some(weight) = adapted_weight(graph, node)
            && let Some(stack) = stacks.get_mut(&weight)
        {
            let delta = stack.apply(builder, operands, mixture.as_mut());
            if let Some(gain) = stack.gain(builder) {
                let y = builder.apply(node.op.clone(), operands)[0];
                let sum = builder.add(y, delta);
                return Change::Replace(vec![builder.mul(sum, gain)]);
            }
            let (value, taker) = taker(&finder, id, node);
            pending.entry(taker).or_default().push((value, delta));
        }
        match pending.remove(&id) {
            Some(deltas) => Change::Replace(vec![take_in(builder, node, operands, &deltas)]),
            None => Change::Keep,
        }
    })
}

/// The input with which rows choose adapters, and the values computed from it.
struct Mixture {
    adapters: usize,
    /// The scales of all rows, and of output rows, if they have been made.
    scales: [Option<ValueId>; 2],
    /// Factors of the rows of each `A`, `[Rows or Outs, ranks]`, made so far.
    factors: Vec<Factors>,
}

/// Factors of the rows of one stacked `A`.
struct Factors {
    /// True for the factors of output rows.
    of_outs: bool,
    /// The adapter of each row, and the bits of its scale.
    ranks: Vec<(usize, u32)>,
    value: ValueId,
}

impl Mixture {
    fn new(adapters: usize) -> Self {
        Self { adapters, scales: [None; 2], factors: Vec::new() }
    }

    /// The factors of each row of `narrow`, whose elements belong to the adapters and scales of `ranks`.
    fn factors(&mut self, builder: &mut Builder, narrow: ValueId, ranks: &[(usize, f32)]) -> ValueId {
        let shape = &builder.graph().value(narrow).shape;
        let (of_outs, is_of_experts) = (shape.outer() == Dim::OUTS, shape.rank() > 2);
        let pattern: Vec<(usize, u32)> =
            ranks.iter().map(|&(number, scale)| (number, scale.to_bits())).collect();
        let is_it = |known: &&Factors| known.of_outs == of_outs && known.ranks == pattern;
        let factors = if let Some(known) = self.factors.iter().find(is_it) {
            known.value
        } else {
            let scales = self.scales(builder, of_outs);
            let mut spread = vec![0.0; ranks.len() * self.adapters];
            for (row, &(number, scale)) in ranks.iter().enumerate() {
                spread[row * self.adapters + number] = scale;
            }
            let name = format!("adapter_scales.spread{}", self.factors.len());
            let spread = floats(&name, &[ranks.len(), self.adapters], &spread);
            let spread = builder.weight(Ok(spread));
            let value = builder.linear(scales, spread);
            self.factors.push(Factors { of_outs, ranks: pattern, value });
            value
        };
        if is_of_experts { builder.reshape(factors, &[1, ranks.len()]) } else { factors }
    }

    fn scales(&mut self, builder: &mut Builder, of_outs: bool) -> ValueId {
        let all = *self.scales[0]
            .get_or_insert_with(|| builder.given("adapter_scales", DType::F32, Dim::ROWS, &[self.adapters]));
        if !of_outs {
            return all;
        }
        *self.scales[1].get_or_insert_with(|| {
            let graph = builder.graph();
            let is_it = |id: &ValueId| graph.value(*id).kind == ValueKind::Input(Input::OutRows);
            let known = (0..graph.values().len() as u32).map(ValueId).find(is_it);
            let rows = known.unwrap_or_else(|| builder.input(Input::OutRows));
            builder.select_rows(all, rows)
        })
    }
}

/// The weight that a linear layer, or a linear layer of experts, reads; `None` for other nodes.
fn adapted_weight(graph: &Graph, node: &Node) -> Option<WeightId> {
    let ((Op::Linear(_), &[_, w]) | (Op::ExpertLinear(_), &[_, _, w, ..])) = (&node.op, &node.inputs[..])
    else {
        return None;
    };
    match graph.value(w).kind {
        ValueKind::Weight(weight) => Some(weight),
        _ => None,
    }
}

/// The result of a linear layer with its bias, and the node that the adaption is added to: the addition to a residual, or else
/// the node that makes the result.
fn taker(finder: &Finder, linear: NodeId, node: &Node) -> (ValueId, NodeId) {
    let (mut value, mut maker) = (node.outputs[0], linear);
    let added_in = |value: ValueId| {
        let user = finder.sole_user(value)?;
        let node = finder.node(user);
        (node.op == Op::Binary(Binary::Add)).then_some((user, node))
    };
    if let Some((user, add)) = added_in(value)
        && add.inputs[0] == value
        && finder.is_weight(add.inputs[1])
    {
        (value, maker) = (add.outputs[0], user);
    }
    match added_in(value) {
        Some((user, add))
            if add.inputs[0] != add.inputs[1] && finder.same_shape(add.inputs[0], add.inputs[1]) =>
        {
            (value, user)
        }
        _ => (value, maker),
    }
}

/// The result of `node` with each delta added: to the other operand of an addition, or to the node's own result.
fn take_in(
    builder: &mut Builder,
    node: &Node,
    operands: &[ValueId],
    deltas: &[(ValueId, ValueId)],
) -> ValueId {
    let mut operands = operands.to_vec();
    let mut own = None;
    for &(value, delta) in deltas {
        match node.inputs.iter().position(|&input| input == value) {
            Some(place) => {
                let residual = &mut operands[1 - place];
                *residual = builder.add(*residual, delta);
            }
            None => own = Some(delta),
        }
    }
    let result = builder.apply(node.op.clone(), &operands)[0];
    own.map_or(result, |delta| builder.add(result, delta))
}

impl LowRank {
    /// The rank: rows of `A`, for experts of each expert's `A`.
    fn rank(&self) -> usize {
        self.a.shape[self.a.shape.len() - 2]
    }

    /// Fails if an element of `A`, `B` or the gain is NaN or infinite.
    fn check_numbers(&self, graph: &Graph) -> Result<(), GraphError> {
        const ROWS: usize = 64;
        let mut values = Vec::new();
        for (name, matrix) in [("A", &self.a), ("B", &self.b)] {
            let (rows, width) = (matrix.rows(), matrix.row_len());
            for first in (0..rows).step_by(ROWS) {
                let some = first..rows.min(first + ROWS);
                values.resize(some.len() * width, 0.0);
                let decoded = matrix.decode_rows(some, &mut values).map_err(|error| error.to_string());
                let wrong = decoded.map(|()| values.iter().position(|x| !x.is_finite()));
                let what = match wrong {
                    Ok(None) => continue,
                    Ok(Some(at)) => format!("{name} holds {} in row {}", values[at], first + at / width),
                    Err(error) => error,
                };
                let weight = graph.weight(self.weight).name.clone();
                return Err(GraphError::Adapter { weight, what });
            }
        }
        Ok(())
    }

    fn check(&self, graph: &Graph) -> Result<(), GraphError> {
        let Some(weight) = graph.weights().get(self.weight.0 as usize) else {
            let what = format!("the graph has {} weights", graph.weights().len());
            return Err(GraphError::Adapter { weight: format!("weight {}", self.weight.0), what });
        };
        let refuse = |what: String| Err(GraphError::Adapter { weight: weight.name.clone(), what });
        let (experts, outputs, inputs) = match weight.shape[..] {
            [outputs, inputs] => (&[][..], outputs, inputs),
            [_, outputs, inputs] => (&weight.shape[..1], outputs, inputs),
            _ => return refuse(format!("shape {:?}, expected a matrix", weight.shape)),
        };
        let Range { start, end } = self.rows;
        if start >= end || end > outputs {
            return refuse(format!("rows {start}..{end}, the weight has {outputs}"));
        }
        if !experts.is_empty() && self.rows != (0..outputs) {
            return refuse(format!("rows {start}..{end}, expected all {outputs} of every expert"));
        }
        let [a, b] = [&self.a.shape, &self.b.shape];
        let rank = a.get(experts.len()).copied().unwrap_or(0);
        if rank == 0 || *a != [experts, &[rank, inputs]].concat() {
            let lead = experts.first().map(|x| format!("{x}, ")).unwrap_or_default();
            return refuse(format!("A has shape {a:?}, expected [{lead}r, {inputs}]"));
        }
        let expected = [experts, &[end - start, rank]].concat();
        if *b != expected {
            return refuse(format!("B has shape {b:?}, expected {expected:?}"));
        }
        if let Some(gain) = &self.gain {
            if !experts.is_empty() {
                return refuse("gains of experts are not supported (DoRA)".into());
            }
            if gain.shape != [end - start] {
                return refuse(format!("gains of shape {:?}, expected [{}]", gain.shape, end - start));
            }
        }
        if !self.scale.is_finite() {
            return refuse(format!("scale {}, expected a finite number", self.scale));
        }
        let is_it = |&id: &ValueId| graph.value(id).kind == ValueKind::Weight(self.weight);
        let readers = || graph.nodes().iter().filter(|node| node.inputs.iter().any(is_it));
        if let Some(other) =
            readers().find(|node| adapted_weight(graph, node) != Some(self.weight) || is_it(&node.inputs[0]))
        {
            return refuse(format!("{} reads it, only linear layers can be adapted", other.op.name()));
        }
        if readers().next().is_none() {
            return refuse("no linear layer reads it".into());
        }
        Ok(())
    }
}

/// All adapters of one weight, as one pair of products.
struct Stack {
    a: Weight,
    b: Weight,
    /// Factors of all rows; `None` if no adapter has any.
    gain: Option<Weight>,
    gain_value: Option<ValueId>,
    /// The adapter of each row of `a`, and that row's factor.
    ranks: Vec<(usize, f32)>,
    /// The two low-rank weights, and the scales if they differ, once a layer has used them.
    values: Option<(ValueId, ValueId, Option<ValueId>)>,
}

impl Stack {
    fn new(weight: &Weight, numbered: &[(usize, &LowRank)], step: usize) -> Result<Self, GraphError> {
        let named = |part: &str| format!("{}.low_rank_{part}", weight.name);
        let (experts, rows) = weight.shape.split_at(weight.shape.len() - 2);
        let ranks: Vec<(usize, f32)> = numbered
            .iter()
            .flat_map(|&(number, of)| {
                std::iter::repeat_n((number, of.scale), of.rank().next_multiple_of(step))
            })
            .collect();
        let adapters: Vec<&LowRank> = numbered.iter().map(|&(_, of)| of).collect();
        let adapters = &adapters[..];
        let trainable = adapters.iter().any(|of| of.a.trainable || of.b.trainable);
        let a_shape = [experts, &[ranks.len(), weight.row_len()]].concat();
        let a = match (adapters, experts) {
            ([one], _) if one.rank() == ranks.len() => Weight { name: named("a"), ..one.a.clone() },
            (_, [])
                if step > 1
                    && let Some(format) = floats_of(adapters, |of| &of.a) =>
            {
                stacked_rows(&named("a"), &a_shape, adapters, (step, format))?
            }
            (_, []) => {
                let with_rest = |of: &&LowRank| {
                    let rest = of.rank().next_multiple_of(step) - of.rank();
                    let zeros = (rest > 0).then(|| zero_rows(rest, weight.row_len()));
                    of.a.parts.iter().cloned().chain(zeros).collect::<Vec<_>>()
                };
                let parts = adapters.iter().flat_map(with_rest).collect();
                Weight::new(named("a"), &a_shape, parts)?
            }
            _ => stacked_rows(&named("a"), &a_shape, adapters, (step, StorageFormat::F32))?,
        };
        let b = match adapters {
            [whole]
                if whole.rows == (0..rows[0])
                    && whole.rank() == ranks.len()
                    && (step == 1 || is_one_of_floats(&whole.b)) =>
            {
                Weight { name: named("b"), ..whole.b.clone() }
            }
            _ => block_diagonal(&named("b"), weight, (ranks.len(), step), adapters)?,
        };
        let gain = gains(&named("gain"), weight, adapters)?;
        let (a, b) = (Weight { trainable, ..a }, Weight { trainable, ..b });
        Ok(Self { a, b, gain, gain_value: None, ranks, values: None })
    }

    fn gain(&mut self, builder: &mut Builder) -> Option<ValueId> {
        let gain = self.gain.as_ref()?;
        Some(*self.gain_value.get_or_insert_with(|| builder.weight(Ok(gain.clone()))))
    }

    /// Builds `scale · (x·Aᵀ)·Bᵀ` for the linear layer with `operands`. With a mixture, each row uses its own scales.
    fn apply(
        &mut self,
        builder: &mut Builder,
        operands: &[ValueId],
        mixture: Option<&mut Mixture>,
    ) -> ValueId {
        let Self { a, b, ranks, values, .. } = self;
        let same = ranks.iter().all(|(_, scale)| scale.to_bits() == ranks[0].1.to_bits());
        let (a, b, factors) = *values.get_or_insert_with(|| {
            let own = || floats(&format!("{}.scales", a.name), &[ranks.len()], &scales_of(ranks));
            let factors = (!same && mixture.is_none()).then(|| builder.weight(Ok(own())));
            (builder.weight(Ok(a.clone())), builder.weight(Ok(b.clone())), factors)
        });
        let product = |builder: &mut Builder, x, w| match operands {
            &[_, chosen, _, ..] => builder.expert_linear(x, chosen, w),
            _ => builder.linear(x, w),
        };
        let mut narrow = product(builder, operands[0], a);
        if let Some(mixture) = mixture {
            let factors = mixture.factors(builder, narrow, ranks);
            narrow = chosen(builder, narrow, factors);
        } else if let Some(factors) = factors {
            narrow = builder.mul(narrow, factors);
        } else if ranks[0].1.to_bits() != 1.0_f32.to_bits() {
            narrow = builder.scale(narrow, ranks[0].1);
        }
        product(builder, narrow, b)
    }
}

/// Builds `narrow ∘ factors`, and 0 where a factor is 0, even if `narrow` is infinite or NaN there. So an overflow in one adapter
/// affects only texts that use it.
fn chosen(builder: &mut Builder, narrow: ValueId, factors: ValueId) -> ValueId {
    let scaled = builder.mul(narrow, factors);
    let shape = |value| builder.graph().value(value).shape.clone();
    let (shape, own) = (shape(narrow), shape(factors));
    let factors = if own == shape { factors } else { builder.apply(Broadcast { shape }, &[factors])[0] };
    builder.apply(Where, &[factors, scaled, factors])[0]
}

/// The gains of all rows of a weight, 1 where no adapter has one; `None` if no adapter has any.
fn gains(name: &str, weight: &Weight, adapters: &[&LowRank]) -> Result<Option<Weight>, GraphError> {
    let refuse = |what: String| GraphError::Adapter { weight: weight.name.clone(), what };
    let mut all = vec![1.0; weight.rows()];
    let mut trainable = false;
    let with_gain: Vec<(usize, &LowRank)> =
        adapters.iter().copied().enumerate().filter(|(_, of)| of.gain.is_some()).collect();
    for &(number, of) in &with_gain {
        let Range { start, end } = of.rows;
        let overlaps =
            |(other, it): (usize, &&LowRank)| other != number && it.rows.start < end && start < it.rows.end;
        if adapters.iter().enumerate().any(overlaps) {
            return Err(refuse(format!("rows {start}..{end} have gains (DoRA) and a second adapter")));
        }
        if let Some(gain) = &of.gain {
            let own = decode_weight(gain).map_err(|error| refuse(error.to_string()))?;
            all[start..end].copy_from_slice(own.floats());
            trainable |= gain.trainable;
        }
    }
    let whole = || Weight { trainable, ..floats(name, &[all.len()], &all) };
    Ok((!with_gain.is_empty()).then(whole))
}

/// True for a weight of one part that is stored as floats. A bank converts other weights to such a weight, so that a row's bits
/// do not depend on the number of adapters.
fn is_one_of_floats(weight: &Weight) -> bool {
    use StorageFormat::{BF16, F16, F32};
    matches!(&weight.parts[..], [one] if matches!(one.format(), F32 | F16 | BF16))
}

fn scales_of(ranks: &[(usize, f32)]) -> Vec<f32> {
    ranks.iter().map(|&(_, scale)| scale).collect()
}

/// A part of zeros, `[rows, row_len]`.
fn zero_rows(rows: usize, row_len: usize) -> WeightPart {
    WeightPart::whole(Tensor::of_floats("zeros", vec![rows, row_len], &vec![0.0; rows * row_len]))
}

/// The format of floats that all these matrices of the adapters share; `None` if one is no float or formats differ.
fn floats_of(adapters: &[&LowRank], matrix: impl Fn(&LowRank) -> &Weight) -> Option<StorageFormat> {
    use StorageFormat::{BF16, F16, F32};
    let mut formats = adapters.iter().flat_map(|of| &matrix(of).parts).map(WeightPart::format);
    let first = formats.next().filter(|first| matches!(first, F32 | F16 | BF16))?;
    formats.all(|other| other == first).then_some(first)
}

/// Stacks the rows of every adapter's `A`, each followed by zeros up to a multiple of `step`: `[rank, K]`, or `[X, rank, K]` for
/// experts. The result is one part, which a device multiplies at once instead of part by part.
fn stacked_rows(
    name: &str,
    shape: &[usize],
    adapters: &[&LowRank],
    (step, format): (usize, StorageFormat),
) -> Result<Weight, GraphError> {
    let refuse = |what: String| GraphError::Adapter { weight: name.into(), what };
    let decoded = adapters.iter().map(|of| decode_weight(&of.a)).collect::<Result<Vec<_>, _>>();
    let decoded = decoded.map_err(|error| refuse(error.to_string()))?;
    let (experts, row_len) = (shape[..shape.len() - 2].iter().product(), shape[shape.len() - 1]);
    let row_bytes = format.row_bytes(row_len).expect("floats have no blocks");
    let mut bytes = Vec::new();
    for expert in 0..experts {
        for (of, a) in adapters.iter().zip(&decoded) {
            for row in a.rows().skip(expert * of.rank()).take(of.rank()) {
                let start = bytes.len();
                bytes.resize(start + row_bytes, 0);
                let encoded = codec::encode_row(format, row, None, &mut bytes[start..]);
                encoded.map_err(|error| refuse(error.to_string()))?;
            }
            let rest = of.rank().next_multiple_of(step) - of.rank();
            bytes.resize(bytes.len() + rest * row_bytes, 0);
        }
    }
    stored(name, shape, format, bytes)
}

/// Places the `B` of each adapter at its rows and at the columns of its `A`, which begin at multiples of `step`; all else is
/// zero: `[N, rank]`, or `[X, N, rank]` for experts.
fn block_diagonal(
    name: &str,
    weight: &Weight,
    (rank, step): (usize, usize),
    adapters: &[&LowRank],
) -> Result<Weight, GraphError> {
    let refuse = |what: String| GraphError::Adapter { weight: name.into(), what };
    let rows = weight.rows();
    let mut dense = Vec::new();
    let elements = rows.checked_mul(rank).filter(|&elements| dense.try_reserve_exact(elements).is_ok());
    let elements = elements.ok_or_else(|| refuse(format!("no memory for {rows} rows of {rank}")))?;
    dense.resize(elements, 0.0);
    let mut column = 0;
    for adapter in adapters {
        let b = decode_weight(&adapter.b).map_err(|error| refuse(error.to_string()))?;
        // Adapters of experts have all rows.
        for (row, b) in (adapter.rows.start..).zip(b.rows()) {
            dense[row * rank + column..][..b.len()].copy_from_slice(b);
        }
        column += adapter.rank().next_multiple_of(step);
    }
    let format = floats_of(adapters, |of| &of.b).unwrap_or(StorageFormat::F32);
    let row_bytes = format.row_bytes(rank).expect("floats have no blocks");
    let mut bytes = vec![0; rows * row_bytes];
    for (row, bytes) in dense.chunks_exact(rank).zip(bytes.chunks_exact_mut(row_bytes)) {
        codec::encode_row(format, row, None, bytes).map_err(|error| refuse(error.to_string()))?;
    }
    let shape = [&weight.shape[..weight.shape.len() - 1], &[rank]].concat();
    stored(name, &shape, format, bytes)
}

fn floats(name: &str, shape: &[usize], values: &[f32]) -> Weight {
    let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    stored(name, shape, StorageFormat::F32, bytes).expect("one whole part")
}

fn stored(name: &str, shape: &[usize], format: StorageFormat, bytes: Vec<u8>) -> Result<Weight, GraphError> {
    let payload = Payload::Blocks(Bytes::from(bytes));
    let tensor = Tensor { name: name.into(), shape: shape.to_vec(), format, payload };
    Weight::new(name, shape, vec![WeightPart::whole(tensor)])
}
