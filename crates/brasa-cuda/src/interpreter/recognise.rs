//! Recognises a decoder in a graph.
//!
//! A graph is taken if every node of it plays a part in: an embedding; layers of norm, stacked Q|K|V, norms and rotation of heads,
//! cache write, attention, o and residual, norm, gate and up with their activation (or a router and its experts), down and residual; a norm
//! and a head. Nothing else is approximated or left out: for any other graph there is no plan.

use brasa_graph::fuse::{
    Fusion, GateUpActivation, LinearResidual, Norm, NormLinear, Pattern, Projection, QkNormRopeCacheWrite,
    RouterExperts,
};
use brasa_graph::op::{Attention, Binary, GatedUnit, Gating, KvSource, RopeLayout, Unary};
use brasa_graph::{
    CacheKind, Graph, GroupId, Input, Item, Node, NodeId, Op, Schedule, Symbol, ValueId, ValueKind,
};

use super::plan::{
    BUFFERS, Buffer, End, Gate, Part, Plan, PlannedAttention, PlannedLinear, PlannedMixture, PlannedNorm,
    PlannedOp, Rows,
};
use super::program::MAX_CHOSEN;

/// The widest projections and the largest group of queries that a multiprocessor's memory holds.
const WIDEST_INPUT: usize = 235 * 64;
const LARGEST_QUERY_GROUP: usize = 8;
/// Most experts whose logits lie together in a multiprocessor's memory.
const MOST_EXPERTS: usize = 1024;
/// Head widths that attention is compiled for.
const HEAD_DIMS: [usize; 2] = [64, 128];
/// Elements of a head that turn are a multiple of this: a lane has four, and those that they are paired with.
const ROTARY_STEP: usize = 8;

const PATTERNS: &[Pattern] = &[
    Pattern::RouterExperts,
    Pattern::GateUpActivation,
    Pattern::QkNormRopeCacheWrite,
    Pattern::LinearResidual,
    Pattern::NormLinear,
];

impl Plan {
    /// The plan of `graph`, or the first thing of it that the interpreter has no instruction for.
    pub(super) fn of(graph: &Graph) -> Result<Self, String> {
        let schedule = Schedule::new(graph, PATTERNS);
        let mut walk = Walk::new(graph);
        for item in schedule.items() {
            let taken = match item {
                Item::Single(node) => walk.single(graph.node(*node)),
                Item::Fused(fused) => walk.fused(&fused.fusion),
            };
            taken.ok_or_else(|| {
                let names: Vec<&str> =
                    item.nodes().iter().map(|&NodeId(n)| graph.nodes()[n as usize].op.name()).collect();
                format!("{} here", names.join(" and "))
            })?;
        }
        walk.finish()
    }
}

/// Facts about values, collected while a graph is walked.
struct Walk<'g> {
    graph: &'g Graph,
    ops: Vec<PlannedOp>,
    /// The newest value of each buffer.
    buffers: [Option<ValueId>; BUFFERS],
    widths: [usize; BUFFERS],
    /// A value that is another one's row: rows with logits, picked out of a step of one row.
    picked: Vec<(ValueId, ValueId)>,
    /// The newest norm of the residual stream that no layer took in.
    normed: Option<(ValueId, PlannedNorm)>,
    /// Queries that were turned, and the attention that they wait for.
    turned: Option<(ValueId, PlannedAttention)>,
    /// A mixture's result that was not added to the residual stream yet.
    mixture: Option<(ValueId, PlannedMixture)>,
    logits: Option<ValueId>,
    rope: Option<(usize, usize)>,
}

/// The interpreter's gate for `unit`; `None` if the interpreter does not have the unit.
fn gate_of(unit: GatedUnit) -> Option<Gate> {
    match unit {
        GatedUnit::Silu => Some(Gate::Silu),
        GatedUnit::GeluTanh => Some(Gate::GeluTanh),
        GatedUnit::GeluErf | GatedUnit::Clamped(_) => None,
    }
}

/// A value that should be a weight and is not.
struct NoWeight;

impl<'g> Walk<'g> {
    fn new(graph: &'g Graph) -> Self {
        Self {
            graph,
            ops: Vec::new(),
            buffers: [None; BUFFERS],
            widths: [0; BUFFERS],
            picked: Vec::new(),
            normed: None,
            turned: None,
            mixture: None,
            logits: None,
            rope: None,
        }
    }

    /// A node of its own; `None` for one that has no place here.
    fn single(&mut self, node: &Node) -> Option<()> {
        match (&node.op, &node.inputs[..], &node.outputs[..]) {
            (Op::Slice(_) | Op::Reshape(_), ..) => Some(()),
            (Op::Embed(_), &[ids, table], &[y]) => {
                (self.ops.is_empty() && self.is_input(ids, Input::TokenIds)).then_some(())?;
                self.ops.push(PlannedOp::Embed { table: self.weight(table)?, scale: None });
                self.write(Buffer::Hidden, y)
            }
            (&Op::Unary(Unary::Scale(factor)), &[x], &[y]) => {
                self.reads(Buffer::Hidden, x)?;
                match &mut self.ops[..] {
                    [PlannedOp::Embed { scale: scale @ None, .. }] => *scale = Some(factor),
                    _ => return None,
                }
                self.write(Buffer::Hidden, y)
            }
            (&Op::Unary(Unary::Softcap(cap)), &[x], &[y]) => match self.ops.last_mut()? {
                PlannedOp::Linear(PlannedLinear { end: End::Logits { softcap: softcap @ None }, .. })
                    if self.logits == Some(x) && cap > 0.0 =>
                {
                    *softcap = Some(cap);
                    self.logits = Some(y);
                    Some(())
                }
                _ => None,
            },
            (Op::SelectRows(_), &[x, rows], &[y]) => {
                self.is_input(rows, Input::OutRows).then(|| self.picked.push((y, x)))
            }
            (Op::RmsNorm(norm), inputs, &[y]) => {
                self.reads(Buffer::Hidden, inputs[0])?;
                let weight = self.optional(inputs.get(1).copied()).ok()?;
                self.normed = Some((y, PlannedNorm { weight, eps: norm.eps }));
                Some(())
            }
            (&Op::Attention(attention), &[q], &[y]) => self.attention(&attention, q, y),
            (Op::Linear(_), &[x, w], &[y]) => self.router(x, w, y),
            (Op::Binary(Binary::Add), &[a, b], &[y]) => self.add_mixture([a, b], y),
            _ => None,
        }
    }

    fn fused(&mut self, fusion: &Fusion) -> Option<()> {
        match fusion {
            Fusion::NormLinear(fused) => self.norm_linear(fused),
            Fusion::QkNormRopeCacheWrite(fused) => self.turn(fused),
            Fusion::LinearResidual(fused) => self.linear_residual(fused),
            Fusion::GateUpActivation(fused) => self.gate_up(fused),
            Fusion::RouterExperts(fused) => self.experts(fused),
            Fusion::GateUpLowRankRows(_)
            | Fusion::LinearLowRankRows(_)
            | Fusion::LowRankRows(_)
            | Fusion::LinearActivation(_) => None,
        }
    }

    /// Projections, or the head.
    fn norm_linear(&mut self, NormLinear { x, norm, layers }: &NormLinear) -> Option<()> {
        self.reads(Buffer::Hidden, *x)?;
        let [(layer, y)] = &layers[..] else { return None };
        let is_head = self.graph.value(*y).shape.outer().symbol == Some(Symbol::Outs)
            && self.graph.value(*y).shape.rank() == 2
            && self.is_result(*y);
        let end = if is_head { End::Logits { softcap: None } } else { End::Projected };
        let linear = PlannedLinear {
            weight: Rows::Whole(self.whole(layer)?),
            x: Buffer::Hidden,
            norm: Some(self.norm(*norm)?),
            bias: self.optional(layer.bias).ok()?,
            end,
        };
        if is_head {
            (self.logits.is_none() && linear.bias.is_none()).then_some(())?;
            self.logits = Some(*y);
        } else {
            self.write(Buffer::Projected, *y)?;
        }
        self.push_linear(linear, layer)
    }

    /// The value, or what a soft-cap makes of it, is what the graph returns.
    fn is_result(&self, value: ValueId) -> bool {
        let capped = self.graph.nodes().iter().find_map(|node| match node.op {
            Op::Unary(Unary::Softcap(_)) if node.inputs[0] == value => Some(node.outputs[0]),
            _ => None,
        });
        self.graph.outputs() == [capped.unwrap_or(value)]
    }

    fn turn(&mut self, fused: &QkNormRopeCacheWrite) -> Option<()> {
        let graph = self.graph;
        let views = [fused.q, fused.k, fused.v].map(|value| graph.view(value));
        for view in &views {
            self.reads(Buffer::Projected, view.root)?;
        }
        let [q, k, v] = views.map(|view| view.elements);
        let (cache, (GroupId(group), place)) = (graph.cache(fused.cache), graph.cache_place(fused.cache));
        let heads = q.len() / cache.key_dim.max(1);
        let eps = match (fused.q_norm, fused.k_norm) {
            (Some(a), Some(b)) if a.eps.to_bits() != b.eps.to_bits() => return None,
            (Some(norm), _) | (None, Some(norm)) => norm.eps,
            (None, None) => 0.0,
        };
        // A norm of heads has a weight: none of them means no norm.
        let head_norm = |norm: Option<Norm>| match norm {
            Some(Norm { w: None, .. }) => Err(NoWeight),
            norm => self.optional(norm.and_then(|norm| norm.w)),
        };
        let (q_norm, k_norm) = (head_norm(fused.q_norm).ok()?, head_norm(fused.k_norm).ok()?);
        let fits = v.start == k.end
            && k.start >= q.start
            && k.len() == v.len()
            && k.len() == cache.kv_heads * cache.key_dim
            && q.len() == heads * cache.key_dim
            && HEAD_DIMS.contains(&cache.key_dim)
            && fused.rope.rotary_dim.is_multiple_of(ROTARY_STEP)
            && heads.is_multiple_of(cache.kv_heads)
            && heads / cache.kv_heads <= LARGEST_QUERY_GROUP
            && fused.v_norm.is_none()
            && self.is_input(fused.positions, Input::Positions)
            && graph.cache_groups()[group as usize].kind == CacheKind::Text;
        fits.then_some(())?;
        let rope = (self.weight(fused.frequencies)?, fused.rope.rotary_dim);
        (*self.rope.get_or_insert(rope) == rope && self.turned.is_none()).then_some(())?;
        let attention = PlannedAttention {
            queries: q.start,
            keys: k.start,
            heads,
            cache,
            group: group as usize,
            place,
            q_norm,
            k_norm,
            eps,
            interleaved: fused.rope.layout == RopeLayout::Interleaved,
            rotary_dim: fused.rope.rotary_dim,
            magnitude: fused.rope.magnitude,
            // Known at the attention.
            scale: 0.0,
            softcap: None,
            window: None,
        };
        self.turned = Some((fused.y, attention));
        Some(())
    }

    fn attention(&mut self, op: &Attention, q: ValueId, y: ValueId) -> Option<()> {
        let (turned, mut attention) = self.turned.take()?;
        let KvSource::Cache(cache) = op.source else { return None };
        let (GroupId(group), place) = self.graph.cache_place(cache);
        ((group as usize, place) == (attention.group, attention.place) && q == turned).then_some(())?;
        op.window.is_none_or(|window| u32::try_from(window).is_ok()).then_some(())?;
        (attention.scale, attention.softcap, attention.window) = (op.scale, op.softcap, op.window);
        self.ops.push(PlannedOp::Attention(attention));
        self.write(Buffer::Attended, y)
    }

    fn linear_residual(&mut self, LinearResidual { x, layer, residual, y }: &LinearResidual) -> Option<()> {
        self.reads(Buffer::Hidden, *residual)?;
        let from = [Buffer::Attended, Buffer::Gated].into_iter();
        let x = from.into_iter().find(|&buffer| self.reads(buffer, *x).is_some())?;
        let linear = PlannedLinear {
            weight: Rows::Whole(self.whole(layer)?),
            x,
            norm: None,
            bias: self.optional(layer.bias).ok()?,
            end: End::Residual,
        };
        self.write(Buffer::Hidden, *y)?;
        self.push_linear(linear, layer)
    }

    fn gate_up(&mut self, fused: &GateUpActivation) -> Option<()> {
        let (normed, norm) = self.normed.take()?;
        let gate = gate_of(fused.unit)?;
        (self.origin(fused.x) == normed && fused.gate.bias.is_none() && fused.up.bias.is_none())
            .then_some(())?;
        let part = |of: &Projection| Some(Part { weight: self.weight(of.w)?, rows: of.rows.clone() });
        let linear = PlannedLinear {
            weight: Rows::Paired(part(&fused.gate)?, part(&fused.up)?),
            x: Buffer::Hidden,
            norm: Some(norm),
            bias: None,
            end: End::Gated(gate),
        };
        self.write(Buffer::Gated, fused.y)?;
        self.push_linear(linear, &fused.gate)
    }

    /// The logits of a router, of what its experts read.
    fn router(&mut self, x: ValueId, w: ValueId, y: ValueId) -> Option<()> {
        let (normed, norm) = self.normed?;
        (self.origin(x) == normed).then_some(())?;
        let inputs = self.graph.value(w).shape.width()?;
        (inputs <= WIDEST_INPUT && inputs.is_multiple_of(4)).then_some(())?;
        self.ops.push(PlannedOp::Linear(PlannedLinear {
            weight: Rows::Whole(self.weight(w)?),
            x: Buffer::Hidden,
            norm: Some(norm),
            bias: None,
            end: End::Routed,
        }));
        self.write(Buffer::Routed, y)
    }

    /// Experts, whose sum waits to be added.
    fn experts(&mut self, fused: &RouterExperts) -> Option<()> {
        let (normed, norm) = self.normed.take()?;
        self.reads(Buffer::Routed, fused.logits)?;
        let activation = gate_of(fused.unit)?;
        let shape = |value: ValueId| -> Option<[usize; 3]> {
            let dims = &self.graph.value(value).shape.0;
            let dims: Option<Vec<usize>> = dims.iter().map(|dim| dim.constant()).collect();
            dims?.try_into().ok()
        };
        let ([experts, width, inputs], up) = (shape(fused.gate)?, shape(fused.up)?);
        let chosen = fused.router.k;
        // A tile of the last layer has the inputs of all chosen experts side by side.
        let gated = chosen * width;
        let fits = self.origin(fused.x) == normed
            && up == [experts, width, inputs]
            && shape(fused.down)? == [experts, inputs, width]
            && inputs == self.widths[Buffer::Hidden as usize]
            && (1..=MAX_CHOSEN as usize).contains(&chosen)
            && (chosen..=MOST_EXPERTS).contains(&experts)
            && self.graph.value(fused.logits).shape.row_elements() == Some(experts)
            && width.is_multiple_of(64)
            && gated <= WIDEST_INPUT
            // Other shares have not been compared on a GPU.
            && fused.router.gating == Gating::SOFTMAX_CHOSEN
            && (fused.selection_bias, fused.biases) == (None, [None; 3])
            && (fused.expert_scales, fused.scale) == (None, None)
            && self.mixture.is_none();
        fits.then_some(())?;
        let mixture = PlannedMixture {
            norm,
            gate: self.weight(fused.gate)?,
            up: self.weight(fused.up)?,
            down: self.weight(fused.down)?,
            activation,
            experts,
            chosen,
        };
        self.mixture = Some((fused.y, mixture));
        let widest = &mut self.widths[Buffer::Gated as usize];
        *widest = (*widest).max(gated);
        Some(())
    }

    /// The addition of a mixture's result to the residual stream.
    fn add_mixture(&mut self, operands: [ValueId; 2], y: ValueId) -> Option<()> {
        let (sum, mixture) = self.mixture.take()?;
        let [a, b] = operands;
        let residual = if b == sum { a } else { b };
        (operands.contains(&sum) && a != b).then_some(())?;
        self.reads(Buffer::Hidden, residual)?;
        self.ops.push(PlannedOp::Mixture(mixture));
        self.write(Buffer::Hidden, y)
    }

    fn push_linear(&mut self, linear: PlannedLinear, layer: &Projection) -> Option<()> {
        let inputs = self.graph.value(layer.w).shape.width()?;
        (inputs <= WIDEST_INPUT && inputs.is_multiple_of(4)).then_some(())?;
        self.ops.push(PlannedOp::Linear(linear));
        Some(())
    }

    fn finish(self) -> Result<Plan, String> {
        let Some(logits) = self.logits.filter(|&logits| self.graph.outputs() == [logits]) else {
            return Err("results other than logits".into());
        };
        let Some((frequencies, rotary_dim)) = self.rope.filter(|_| self.turned.is_none()) else {
            return Err("no attention".into());
        };
        if self.mixture.is_some() {
            return Err("experts whose sum is not added".into());
        }
        let attentions = || {
            self.ops.iter().filter_map(|op| match op {
                PlannedOp::Attention(attention) => Some(attention),
                _ => None,
            })
        };
        Ok(Plan {
            frequencies,
            rotary_dim: rotary_dim as u32,
            widths: self.widths,
            heads: attentions().map(|attention| attention.heads).max().unwrap_or(0),
            head_dim: attentions().map(|attention| attention.cache.key_dim).max().unwrap_or(0),
            groups: self.graph.cache_groups().len(),
            vocab_size: self.graph.value(logits).shape.width().unwrap_or(0),
            ops: self.ops,
        })
    }

    /// `value` becomes the newest of a buffer.
    fn write(&mut self, buffer: Buffer, value: ValueId) -> Option<()> {
        let width = self.graph.value(value).shape.row_elements()?;
        self.buffers[buffer as usize] = Some(value);
        self.widths[buffer as usize] = self.widths[buffer as usize].max(width);
        Some(())
    }

    /// The whole of `value` is what a buffer holds now.
    fn reads(&self, buffer: Buffer, value: ValueId) -> Option<()> {
        let held = self.buffers[buffer as usize]?;
        let elements = |value| self.graph.value(value).shape.row_elements();
        (self.origin(value) == held && elements(value) == elements(held)).then_some(())
    }

    /// The value whose memory `value` shares, whatever rows were picked.
    fn origin(&self, value: ValueId) -> ValueId {
        let root = self.graph.view(value).root;
        let picked = self.picked.iter().find(|&&(y, _)| y == root);
        picked.map_or(root, |&(_, x)| self.origin(x))
    }

    fn norm(&self, norm: Norm) -> Option<PlannedNorm> {
        Some(PlannedNorm { weight: self.optional(norm.w).ok()?, eps: norm.eps })
    }

    /// The weight, if there is one; an error where the value is none.
    fn optional(&self, weight: Option<ValueId>) -> Result<Option<usize>, NoWeight> {
        weight.map(|weight| self.weight(weight).ok_or(NoWeight)).transpose()
    }

    /// The weight of a layer that uses all of its rows.
    fn whole(&self, layer: &Projection) -> Option<usize> {
        let rows = self.graph.value(layer.w).shape.outer().constant()?;
        (layer.rows == (0..rows)).then(|| self.weight(layer.w)).flatten()
    }

    fn weight(&self, value: ValueId) -> Option<usize> {
        match self.graph.value(value).kind {
            ValueKind::Weight(weight) => Some(weight.0 as usize),
            _ => None,
        }
    }

    fn is_input(&self, value: ValueId, input: Input) -> bool {
        self.graph.value(value).kind == ValueKind::Input(input)
    }
}

#[cfg(test)]
mod tests {
    use brasa_formats::StorageFormat;
    use brasa_graph::testing::Decoder;

    use super::*;

    fn decoder() -> Decoder {
        Decoder { head_dim: 64, ..Decoder::small(StorageFormat::F16) }
    }

    /// Operations by one letter each.
    fn letters(plan: &Plan) -> String {
        let letter = |op: &PlannedOp| match op {
            PlannedOp::Embed { .. } => 'e',
            PlannedOp::Attention(_) => 'a',
            PlannedOp::Linear(linear) => match linear.end {
                End::Projected => 'q',
                End::Residual if linear.x == Buffer::Attended => 'o',
                End::Residual => 'd',
                End::Gated(_) => 'g',
                End::Logits { .. } => 'h',
                End::Routed => 'r',
            },
            PlannedOp::Mixture(_) => 'm',
        };
        plan.ops.iter().map(letter).collect()
    }

    #[test]
    fn a_decoder_is_recognised() {
        let graph = Decoder { softcap: Some(20.0), ..decoder() }.graph(1);
        let plan = Plan::of(&graph).expect("a plan");
        assert_eq!(letters(&plan), "eqaogdqaogdh");
        assert_eq!((plan.widths, plan.vocab_size), ([256, 768, 512, 512, 0], 150));
        assert_eq!((plan.heads, plan.head_dim, plan.groups, plan.rotary_dim), (8, 64, 2, 64));
        let name = |weight: usize| graph.weights()[weight].name.as_str();
        let PlannedOp::Linear(gate_up) = &plan.ops[4] else { panic!("{:?}", plan.ops[4]) };
        let Rows::Paired(gate, up) = &gate_up.weight else { panic!("{gate_up:?}") };
        assert_eq!((name(gate.weight), &gate.rows, &up.rows), ("layers.0.gate_up", &(0..512), &(512..1024)));
        assert_eq!(
            gate_up.norm.map(|norm| name(norm.weight.unwrap_or(0))),
            Some("layers.0.feed_forward_norm")
        );
        let PlannedOp::Attention(attention) = &plan.ops[7] else { panic!("{:?}", plan.ops[7]) };
        assert_eq!((attention.queries, attention.keys, attention.group, attention.place), (0, 512, 1, 0));
        assert_eq!((attention.window, attention.softcap, attention.scale), (Some(300), Some(20.0), 0.125));
        assert_eq!(attention.q_norm.map(name), Some("layers.1.q_norm"));
        let PlannedOp::Linear(head) = &plan.ops[11] else { panic!("{:?}", plan.ops[11]) };
        assert_eq!(head.end, End::Logits { softcap: Some(20.0) });
        assert_eq!(head.norm.map(|norm| name(norm.weight.unwrap_or(0))), Some("norm"));
    }

    #[test]
    fn a_mixture_is_recognised() {
        let graph = Decoder { experts: Some((6, 3)), ..decoder() }.graph(1);
        let plan = Plan::of(&graph).expect("a plan");
        assert_eq!(letters(&plan), "eqaormqaormh");
        assert_eq!(plan.widths, [256, 768, 512, 3 * 512, 6]);
        let name = |weight: usize| graph.weights()[weight].name.as_str();
        let PlannedOp::Mixture(mixture) = &plan.ops[5] else { panic!("{:?}", plan.ops[5]) };
        let weights = [mixture.gate, mixture.up, mixture.down].map(name);
        assert_eq!(weights, ["layers.0.gate", "layers.0.up", "layers.0.down"]);
        assert_eq!((mixture.experts, mixture.chosen, mixture.activation), (6, 3, Gate::Silu));
        assert_eq!(mixture.norm.weight.map(name), Some("layers.0.feed_forward_norm"));
    }

    #[test]
    fn what_has_no_instruction_is_refused_by_name() {
        let refusal = |decoder: Decoder| Plan::of(&decoder.graph(1)).expect_err("no plan");
        assert_eq!(
            refusal(Decoder { head_dim: 32, ..decoder() }),
            "rms_norm and rms_norm and rope and rope and cache_write here"
        );
        assert_eq!(
            refusal(Decoder { heads: 18, ..decoder() }),
            "rms_norm and rms_norm and rope and rope and cache_write here"
        );
        let experts = "router_topk and expert_linear and expert_linear and silu and mul and expert_linear and reshape and mul and sum here";
        for decoder in [
            Decoder { experts: Some((40, 17)), ..decoder() },
            Decoder { experts: Some((6, 3)), feed_forward: 5120, ..decoder() },
            Decoder { experts: Some((6, 3)), feed_forward: 480, ..decoder() },
        ] {
            assert_eq!(refusal(decoder), experts);
        }
        assert_eq!(refusal(Decoder { feed_forward: 15_104, ..decoder() }), "linear and add here");
    }
}
