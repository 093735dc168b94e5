//! Builds graphs in the notation of a paper's figure.

use std::ops::Range;
use std::sync::Arc;

use crate::op::{
    Argmax, Attention, Binary, CacheWrite, Concat, Embed, ExpertLinear, GatedUnit, Gather, HeadLinear,
    Linear, MemoryWrite, PositionScale, Reduce, ReduceFn, Reshape, RmsNorm, Rope, RouterTopK, SelectRows,
    ShortConv, Slice, Softmax, StateScan, Unary,
};
use crate::{
    CacheId, CacheSpec, DType, Dim, Given, GivenId, Graph, GraphError, Input, MemoryId, Node, NodeId, Op,
    Shape, StateId, Value, ValueId, ValueKind, Weight, WeightId,
};

/// Builds a [`Graph`], checking every operation's operands.
///
/// The first mistake is kept and reported by [`finish`](Self::finish). Until then, methods return values that may be passed on
/// but have no meaning. So a model reads like its figure, without a `?` at every step. A checkpoint with tensors that do not fit
/// together is still an error that shows both shapes.
#[derive(Debug, Default)]
pub struct Builder {
    graph: Graph,
    error: Option<GraphError>,
}

impl Builder {
    /// An empty graph.
    pub fn new() -> Self {
        Self::default()
    }

    /// The finished graph, returning `outputs`.
    ///
    /// # Errors
    ///
    /// The first mistake made while building.
    pub fn finish(mut self, outputs: &[ValueId]) -> Result<Graph, GraphError> {
        self.check()?;
        self.graph.outputs = outputs.to_vec();
        Ok(self.graph)
    }

    /// A builder that appends to `graph`.
    pub(crate) fn from(graph: Graph) -> Self {
        Self { graph, error: None }
    }

    /// The first mistake made while building.
    ///
    /// # Errors
    ///
    /// The error that [`finish`](Self::finish) would return.
    pub fn check(&self) -> Result<(), GraphError> {
        self.error.clone().map_or(Ok(()), Err)
    }

    /// The graph so far.
    pub(crate) fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The graph so far, to be changed.
    pub(crate) fn graph_mut(&mut self) -> &mut Graph {
        &mut self.graph
    }

    /// An input that every step supplies.
    ///
    /// # Panics
    ///
    /// For [`Input::Given`], which [`given`](Self::given) declares.
    pub fn input(&mut self, input: Input) -> ValueId {
        assert!(!matches!(input, Input::Given(_)), "{input:?} is declared by `given`");
        let rows = if input == Input::OutRows { Dim::OUTS } else { Dim::ROWS };
        self.value(DType::U32, Shape(vec![rows]), ValueKind::Input(input))
    }

    /// Declares an input of the graph's own, `[rows, inner…]` of `F32` or `U32`, that every step must bring.
    pub fn given(&mut self, name: impl Into<String>, dtype: DType, rows: Dim, inner: &[usize]) -> ValueId {
        let given = Given { name: name.into(), dtype, rows, inner: inner.to_vec() };
        let wrong = match (dtype, rows.symbol) {
            (DType::F16 | DType::BF16, _) => Some(format!("elements of {dtype}, expected f32 or u32")),
            (_, None) => Some(format!("{rows} rows, expected a multiple of a step's")),
            _ => None,
        };
        if let Some(what) = wrong {
            return self.fail(GraphError::Given { name: given.name, what });
        }
        let id = GivenId(self.graph.givens.len() as u32);
        let shape = Shape::rows(rows, inner);
        self.graph.givens.push(given);
        self.value(dtype, shape, ValueKind::Input(Input::Given(id)))
    }

    /// Adds a weight, or keeps the error of making it for [`finish`](Self::finish). Graphs that hold the same [`Arc`] share the
    /// weight.
    pub fn weight(&mut self, weight: Result<impl Into<Arc<Weight>>, GraphError>) -> ValueId {
        match weight {
            Ok(weight) => {
                let weight: Arc<Weight> = weight.into();
                let shape = Shape::new(weight.shape.iter().copied());
                let id = WeightId(self.graph.weights.len() as u32);
                self.graph.weights.push(weight);
                self.value(DType::F32, shape, ValueKind::Weight(id))
            }
            Err(error) => self.fail(error),
        }
    }

    /// Declares a new KV cache.
    pub fn cache(&mut self, spec: CacheSpec) -> CacheId {
        if let Err(what) = spec.check() {
            self.fail(GraphError::Cache { what });
        }
        self.graph.caches.push(spec);
        CacheId(self.graph.caches.len() as u32 - 1)
    }

    /// Declares a new memory of `kv_heads` heads of `head_dim` elements. Graphs that share a pool (an encoder's and a decoder's)
    /// declare the same caches and memories in the same order.
    pub fn memory(&mut self, kv_heads: usize, head_dim: usize) -> MemoryId {
        let id = MemoryId(self.cache(CacheSpec::new(kv_heads, head_dim, None)));
        self.graph.memories.push(id);
        id
    }

    /// Declares a recurrent state of `elements` f32 elements. At most one operation may advance it.
    pub fn state(&mut self, elements: usize) -> StateId {
        self.graph.states.push(elements);
        StateId(self.graph.states.len() as u32 - 1)
    }

    /// The shape of a value, for choosing the next nodes; `None` after a mistake.
    pub fn shape(&self, value: ValueId) -> Option<&Shape> {
        if self.error.is_some() { None } else { Some(&self.graph.value(value).shape) }
    }

    /// Appends a node that applies `op` to `inputs`; returns the values that it makes. A mistake, such as shapes that do not fit, is
    /// kept, and [`finish`](Self::finish) reports the first one.
    pub fn apply(&mut self, op: impl Into<Op>, inputs: &[ValueId]) -> Vec<ValueId> {
        let op = op.into();
        if self.error.is_some() {
            return vec![ValueId(0); 2];
        }
        match self.graph.infer(&op, inputs) {
            Ok(types) => {
                let node = NodeId(self.graph.nodes.len() as u32);
                let outputs: Vec<ValueId> = types
                    .into_iter()
                    .map(|(dtype, shape)| self.value(dtype, shape, ValueKind::Temporary(node)))
                    .collect();
                self.graph.nodes.push(Node { op, inputs: inputs.to_vec(), outputs: outputs.clone() });
                outputs
            }
            Err(error) => vec![self.fail(error); 2],
        }
    }

    fn one(&mut self, op: impl Into<Op>, inputs: &[ValueId]) -> ValueId {
        self.apply(op, inputs).first().copied().unwrap_or(ValueId(0))
    }

    fn fail(&mut self, error: GraphError) -> ValueId {
        self.error.get_or_insert(error);
        ValueId(0)
    }

    fn value(&mut self, dtype: DType, shape: Shape, kind: ValueKind) -> ValueId {
        self.graph.values.push(Value { dtype, shape, kind });
        ValueId(self.graph.values.len() as u32 - 1)
    }
}

/// One method per operation that models use; each is documented at its struct in [`op`](crate::op).
#[allow(missing_docs)]
impl Builder {
    pub fn embed(&mut self, ids: ValueId, table: ValueId) -> ValueId {
        self.one(Embed, &[ids, table])
    }

    pub fn linear(&mut self, x: ValueId, w: ValueId) -> ValueId {
        self.one(Linear, &[x, w])
    }

    pub fn expert_linear(&mut self, x: ValueId, experts: ValueId, w: ValueId) -> ValueId {
        self.one(ExpertLinear, &[x, experts, w])
    }

    pub fn head_linear(&mut self, x: ValueId, w: ValueId) -> ValueId {
        self.one(HeadLinear, &[x, w])
    }

    /// A linear layer of each row's chosen experts, with a bias `[X, N]`.
    pub fn expert_linear_biased(
        &mut self,
        x: ValueId,
        experts: ValueId,
        w: ValueId,
        bias: ValueId,
    ) -> ValueId {
        self.one(ExpertLinear, &[x, experts, w, bias])
    }

    /// Chooses experts by a router with a selection bias `[X]`. Returns `(experts, weights)`, both `[R, k]`.
    pub fn router_topk_biased(
        &mut self,
        logits: ValueId,
        bias: ValueId,
        op: RouterTopK,
    ) -> (ValueId, ValueId) {
        let outputs = self.apply(op, &[logits, bias]);
        (outputs[0], outputs[1])
    }

    /// Chooses k experts for each row by the router's logits, `[R, X]`. Returns `(experts, weights)`, both `[R, k]`.
    pub fn router_topk(&mut self, logits: ValueId, op: RouterTopK) -> (ValueId, ValueId) {
        let outputs = self.apply(op, &[logits]);
        (outputs[0], outputs[1])
    }

    pub fn rms_norm(&mut self, x: ValueId, w: ValueId, eps: f32) -> ValueId {
        self.one(RmsNorm { eps }, &[x, w])
    }

    /// An RMS norm without a learned scale.
    pub fn rms_norm_unscaled(&mut self, x: ValueId, eps: f32) -> ValueId {
        self.one(RmsNorm { eps }, &[x])
    }

    pub fn add(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.one(Binary::Add, &[a, b])
    }

    pub fn mul(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.one(Binary::Mul, &[a, b])
    }

    pub fn unary(&mut self, x: ValueId, function: Unary) -> ValueId {
        self.one(function, &[x])
    }

    /// Applies the unit of a gated feed-forward layer to `gate` and `up`. `act(gate) · up` becomes two operations, an
    /// activation and a product; a clamped unit is one operation.
    pub fn gated_unit(&mut self, gate: ValueId, up: ValueId, unit: GatedUnit) -> ValueId {
        match unit {
            GatedUnit::Silu => self.activated(gate, up, Unary::Silu),
            GatedUnit::GeluTanh => self.activated(gate, up, Unary::GeluTanh),
            GatedUnit::GeluErf => self.activated(gate, up, Unary::GeluErf),
            GatedUnit::Clamped(unit) => self.one(unit, &[gate, up]),
        }
    }

    fn activated(&mut self, gate: ValueId, up: ValueId, activation: Unary) -> ValueId {
        let gate = self.unary(gate, activation);
        self.mul(gate, up)
    }

    /// Scales the rows of `x` by a factor that grows with their `positions`, `[R]`.
    pub fn position_scale(&mut self, x: ValueId, positions: ValueId, op: PositionScale) -> ValueId {
        self.one(op, &[x, positions])
    }

    pub fn scale(&mut self, x: ValueId, factor: f32) -> ValueId {
        self.one(Unary::Scale(factor), &[x])
    }

    pub fn rope(&mut self, x: ValueId, positions: ValueId, frequencies: ValueId, op: Rope) -> ValueId {
        self.one(op, &[x, positions, frequencies])
    }

    pub fn cache_write(&mut self, k: ValueId, v: ValueId, cache: CacheId) {
        self.apply(CacheWrite { cache }, &[k, v]);
    }

    /// Writes keys into a cache whose values are the first elements of its keys.
    pub fn cache_write_keys(&mut self, k: ValueId, cache: CacheId) {
        self.apply(CacheWrite { cache }, &[k]);
    }

    pub fn memory_write(&mut self, k: ValueId, v: ValueId, memory: MemoryId) {
        self.apply(MemoryWrite { memory }, &[k, v]);
    }

    /// Scaled dot-product attention. `inputs` are `[q]` for a cache or a memory, and `[q, k, v]` for the rows of the
    /// step. In a layer with sinks, `sinks` is the last input.
    pub fn attention(&mut self, inputs: &[ValueId], op: Attention) -> ValueId {
        self.one(op, inputs)
    }

    pub fn short_conv(&mut self, x: ValueId, w: ValueId, state: StateId) -> ValueId {
        self.one(ShortConv { state }, &[x, w])
    }

    /// A linear recurrence. `inputs` are `[q, k, v, decay]`, and `[q, k, v, decay, beta]` for the delta rule.
    pub fn state_scan(&mut self, inputs: &[ValueId], op: StateScan) -> ValueId {
        self.one(op, inputs)
    }

    pub fn softmax(&mut self, x: ValueId) -> ValueId {
        self.one(Softmax, &[x])
    }

    pub fn gather(&mut self, table: ValueId, indices: ValueId) -> ValueId {
        self.one(Gather, &[table, indices])
    }

    pub fn concat(&mut self, a: ValueId, b: ValueId, axis: usize) -> ValueId {
        self.one(Concat { axis }, &[a, b])
    }

    /// A view of the elements `range` along the innermost axis.
    pub fn slice(&mut self, x: ValueId, range: Range<usize>) -> ValueId {
        self.one(Slice { start: range.start, end: range.end }, &[x])
    }

    /// A view of each row with the dimensions `inner`.
    pub fn reshape(&mut self, x: ValueId, inner: &[usize]) -> ValueId {
        self.one(Reshape { inner: inner.to_vec() }, &[x])
    }

    pub fn sum(&mut self, x: ValueId, axis: usize) -> ValueId {
        self.one(Reduce { function: ReduceFn::Sum, axis }, &[x])
    }

    pub fn select_rows(&mut self, x: ValueId, rows: ValueId) -> ValueId {
        self.one(SelectRows, &[x, rows])
    }

    pub fn argmax(&mut self, x: ValueId) -> ValueId {
        self.one(Argmax, &[x])
    }
}
