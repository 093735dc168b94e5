//! A look inside: the attention of each layer, and the states between layers.

use std::sync::Arc;

use brasa_engine::{Engine, EngineConfig, EngineParts, ReadRequest, ReadValue, pages_bytes};
use brasa_graph::device::{Backend, DeviceError, KvPoolSpec, Program, ProgramSpec, WeightSet};
use brasa_graph::op::RouterTopK;
use brasa_graph::pass::prune;
use brasa_graph::{Graph, ValueId, ValueKind};
use brasa_models::{AttentionValues, RouterValues};

use crate::{CacheScope, Error, Model, RequestOptions};

/// Most bytes of queries, keys, states and router's logits that a look collects.
const MOST_BYTES: u64 = 4 << 30;

/// Parts of a loaded model that a look inside needs.
pub(crate) struct Inside {
    pub device: Arc<LoadedDevice>,
    /// The graph without the adapters that requests choose. With them, values have the same ids.
    pub graph: Arc<Graph>,
    /// The values that each layer's attention reads, the residual stream behind each layer, and the routers of layers with experts.
    pub attentions: Vec<AttentionValues>,
    pub states: Vec<ValueId>,
    pub routers: Vec<Option<RouterValues>>,
    pub program_spec: ProgramSpec,
}

/// A device with the weights of a model on it.
pub(crate) struct LoadedDevice {
    pub backend: Arc<dyn Backend>,
    pub weights: Arc<dyn WeightSet>,
}

impl LoadedDevice {
    /// A program over the weights.
    pub fn program(&self, graph: &Arc<Graph>, spec: ProgramSpec) -> Result<Box<dyn Program>, DeviceError> {
        self.backend.compile(Arc::clone(graph), Arc::clone(&self.weights), spec)
    }
}

impl Inside {
    /// A [`LayerInside`] of layer number `layer` before its run: the sinks of heads and the router's selection bias are
    /// filled in, other values are empty.
    fn layer(&self, layer: usize) -> Result<LayerInside, Error> {
        let AttentionValues { queries, keys, sinks, op } = self.attentions[layer];
        let decoded = |value: Option<ValueId>| match value.map(|value| self.graph.value(value).kind) {
            Some(ValueKind::Weight(weight)) => self.graph.weight(weight).decode("host"),
            _ => Ok(Vec::new()),
        };
        let sinks = decoded(sinks)?;
        let selection_bias = decoded(self.routers[layer].and_then(|router| router.bias))?;
        let shape = |id| self.graph.value(id).shape.inner().unwrap_or_default();
        let (queries, keys) = (shape(queries), shape(keys));
        Ok(LayerInside {
            layer,
            heads: queries[0],
            kv_heads: keys[0],
            head_dim: queries[1],
            window: op.window,
            queries: Vec::new(),
            keys: Vec::new(),
            states: Vec::new(),
            router_logits: Vec::new(),
            router: self.routers[layer].map(|router| router.op),
            selection_bias,
            scale: op.scale,
            softcap: op.softcap,
            sinks,
        })
    }

    /// The values of a layer that a look inside collects, each with the field that it goes to.
    fn values(&self, layer: usize) -> impl Iterator<Item = (Part, ValueId)> {
        let AttentionValues { queries, keys, .. } = self.attentions[layer];
        let router = self.routers[layer].map(|router| (Part::RouterLogits, router.logits));
        [(Part::Queries, queries), (Part::Keys, keys), (Part::States, self.states[layer])]
            .into_iter()
            .chain(router)
    }
}

/// A part of [`LayerInside`].
#[derive(Clone, Copy)]
enum Part {
    Queries,
    Keys,
    States,
    RouterLogits,
}

/// Values of one layer for a text.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerInside {
    /// The layer's number, from 0.
    pub layer: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; each serves `heads / kv_heads` query heads in a row.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Positions that a token sees, itself included; `None` for all before it.
    pub window: Option<usize>,
    /// Queries behind norm and rotation, `[tokens, heads, head_dim]`.
    pub queries: Vec<f32>,
    /// Keys behind norm and rotation, `[tokens, kv_heads, head_dim]`.
    pub keys: Vec<f32>,
    /// The residual stream behind the layer, `[tokens, hidden_size]`.
    pub states: Vec<f32>,
    /// A logit for each expert, `[tokens, experts]`; empty for a layer without experts.
    pub router_logits: Vec<f32>,
    /// The rule by which experts are chosen from `router_logits`; `None` for a layer without experts.
    pub router: Option<RouterTopK>,
    /// The selection bias of the router, `[experts]`, which is added to scores for the choice alone; empty for a router
    /// without one.
    pub selection_bias: Vec<f32>,
    /// Factor of the scores of attention.
    pub scale: f32,
    /// Bound that `tanh` keeps scores within, if any.
    pub softcap: Option<f32>,
    /// Sinks, `[heads]`: for each query head, one more score of the softmax, which belongs to no token and takes a
    /// share of the attention. Empty for attention without sinks.
    pub sinks: Vec<f32>,
}

impl LayerInside {
    /// Tokens of the text.
    pub fn tokens(&self) -> usize {
        self.queries.len() / (self.heads * self.head_dim)
    }

    /// The weights of one head's attention, `[tokens, tokens]`. Row *i* holds the share of each token up to *i* in
    /// token *i*. A row sums to 1; with sinks, to 1 minus the share of the head's sink.
    ///
    /// # Panics
    ///
    /// If there is no such head.
    pub fn weights(&self, head: usize) -> Vec<f32> {
        assert!(head < self.heads, "head {head} of {}", self.heads);
        let (tokens, width) = (self.tokens(), self.head_dim);
        let kv_head = head / (self.heads / self.kv_heads);
        let mut weights = vec![0.0; tokens * tokens];
        for (i, row) in weights.chunks_exact_mut(tokens).enumerate() {
            let q = &self.queries[(i * self.heads + head) * width..][..width];
            let seen = i + 1 - self.window.unwrap_or(i + 1).min(i + 1)..i + 1;
            let score = |j: usize| {
                let k = &self.keys[(j * self.kv_heads + kv_head) * width..][..width];
                let score = f64::from(self.scale) * dot(q, k);
                self.softcap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
            };
            let scores: Vec<f64> = seen.clone().map(score).collect();
            let sink = self.sinks.get(head).map(|&sink| f64::from(sink));
            let largest = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
            let shares: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
            let sum = shares.iter().sum::<f64>() + sink.map_or(0.0, |sink| (sink - largest).exp());
            row[seen].iter_mut().zip(shares).for_each(|(weight, share)| *weight = (share / sum) as f32);
        }
        weights
    }

    /// The entropy of each row of [`weights`](Self::weights) in nats, `[tokens]`: 0 where one token has all the weight.
    ///
    /// # Panics
    ///
    /// If there is no such head.
    pub fn entropy(&self, head: usize) -> Vec<f32> {
        let weights = self.weights(head);
        let entropy = |row: &[f32]| -> f64 {
            row.iter().filter(|&&weight| weight > 0.0).map(|&w| -f64::from(w) * f64::from(w).ln()).sum()
        };
        // Zero has no sign.
        weights.chunks_exact(self.tokens()).map(|row| (entropy(row) + 0.0) as f32).collect()
    }

    /// The length of each token's [state](Self::states), `[tokens]`.
    pub fn residual_norms(&self) -> Vec<f32> {
        self.states_of_tokens().map(|state| dot(state, state).sqrt() as f32).collect()
    }

    /// Cosine between each token's state in this layer and in a `later` layer, `[tokens]`: 1 for the same direction, 0 if one of
    /// the states is zero.
    ///
    /// # Panics
    ///
    /// If the two layers do not come from the same call of [`Model::look_inside`].
    pub fn coherence(&self, later: &Self) -> Vec<f32> {
        assert_eq!(self.states.len(), later.states.len(), "values of states of one look");
        let cosine = |(a, b): (&[f32], &[f32])| {
            let lengths = (dot(a, a) * dot(b, b)).sqrt();
            if lengths > 0.0 { (dot(a, b) / lengths) as f32 } else { 0.0 }
        };
        self.states_of_tokens().zip(later.states_of_tokens()).map(cosine).collect()
    }

    /// For each token, the experts that the router chose and their shares, in the order of the choice. Empty for a
    /// layer without experts.
    pub fn experts(&self) -> Vec<Vec<(u32, f32)>> {
        let Some(router) = self.router else { return Vec::new() };
        let experts = (self.router_logits.len() / self.tokens().max(1)).max(1);
        let bias = (!self.selection_bias.is_empty()).then_some(&self.selection_bias[..]);
        self.router_logits.chunks_exact(experts).map(|logits| router.choose(logits, bias)).collect()
    }

    fn states_of_tokens(&self) -> impl Iterator<Item = &[f32]> {
        self.states.chunks_exact((self.states.len() / self.tokens().max(1)).max(1))
    }

    fn part_mut(&mut self, part: Part) -> &mut Vec<f32> {
        match part {
            Part::Queries => &mut self.queries,
            Part::Keys => &mut self.keys,
            Part::States => &mut self.states,
            Part::RouterLogits => &mut self.router_logits,
        }
    }
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum()
}

impl Model {
    /// Computes `ids` and returns values of the given layers, in the order given; of all layers if none is given.
    ///
    /// The text is computed afresh by a second program over the model's weights, beside running requests. That program returns
    /// more values than the usual one and otherwise computes the same. Deadline and adapters are those of `request`.
    ///
    /// # Errors
    ///
    /// [`Error::Options`] for a layer that is not there and for more than 4 GiB of values, [`Error::Engine`] for an empty text or an id
    /// outside the vocabulary, [`Error::Device`] for want of memory.
    pub fn look_inside(
        &self,
        ids: &[u32],
        layers: &[usize],
        request: &RequestOptions,
    ) -> Result<Vec<LayerInside>, Error> {
        let inside = self.inside();
        let all: Vec<usize> = (0..inside.attentions.len()).collect();
        let layers = if layers.is_empty() { &all } else { layers };
        if let Some(layer) = layers.iter().find(|&&layer| layer >= all.len()) {
            return Err(Error::Options(format!(
                "there is no layer {layer}: the model has {} layers, which are counted from 0 to {}",
                all.len(),
                all.len().saturating_sub(1)
            )));
        }
        let width =
            |id| -> usize { inside.graph.value(id).shape.inner().unwrap_or_default().iter().product() };
        let mut values = Vec::new();
        // The layer's place among those found, the part, and elements of a token.
        let mut places = Vec::new();
        for (at, &layer) in layers.iter().enumerate() {
            for (part, id) in inside.values(layer) {
                values.push(id);
                places.push((at, part, width(id)));
            }
        }
        let bytes = places.iter().map(|&(_, _, width)| width as u64).sum::<u64>() * 4 * ids.len() as u64;
        if bytes > MOST_BYTES {
            return Err(Error::Options(format!(
                "{bytes} bytes of values of {} tokens in {} layers, at most {MOST_BYTES} are collected\nhint: ask for fewer layers",
                ids.len(),
                layers.len()
            )));
        }
        let (graph, adapter_rows) = self.bank().snapshot(request.cache_scope.adapter)?;
        let graph = Arc::new(prune(&Graph::clone(&graph).returning(&values)));
        let spec = KvPoolSpec::of(&graph, inside.program_spec.kv_type);
        let program = inside.device.program(&graph, inside.program_spec)?;
        let pool = inside.device.backend.kv_pool(spec)?;
        let config = EngineConfig {
            context: ids.len().max(1),
            max_sequences: 1,
            cache_bytes: pages_bytes(&*pool, ids.len().max(1)).saturating_mul(2),
            prefix_bytes: 0,
            prefault_bytes: 0,
            ..self.engine().config()
        };
        let parts = EngineParts { adapter_rows, ..EngineParts::new(program, pool) };
        let engine = Engine::start(parts, config)?;
        let mut found = layers.iter().map(|&layer| inside.layer(layer)).collect::<Result<Vec<_>, _>>()?;
        let value = ReadValue::Logits;
        // The rows of its program have the adapters of the request as their default.
        let options = RequestOptions { cache_scope: CacheScope::default(), ..*request };
        for row in engine.read(ReadRequest { tokens: ids.to_vec(), value, first: 0, options })? {
            let row = row?;
            let mut rest = &row[..];
            for &(at, part, width) in &places {
                let (values, behind) = rest.split_at(width);
                found[at].part_mut(part).extend_from_slice(values);
                rest = behind;
            }
        }
        Ok(found)
    }
}
