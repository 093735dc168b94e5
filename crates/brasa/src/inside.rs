//! A look inside: what each layer's attention looks at, and what the layers pass on.

use std::sync::Arc;

use brasa_engine::{Engine, EngineConfig, ReadRequest, Reading, pages_bytes};
use brasa_graph::device::{Backend, DeviceError, KvPoolSpec, KvType, Program, ProgramLimits, WeightSet};
use brasa_graph::pass::prune;
use brasa_graph::{Graph, ValueId};
use brasa_models::AttentionValues;

use crate::{Error, GenerateOptions, Model};

/// Most bytes of queries, keys and states that a look collects.
const MOST_BYTES: u64 = 4 << 30;

/// What a look needs of a loaded model.
pub(crate) struct Inside {
    pub device: Arc<LoadedDevice>,
    pub graph: Arc<Graph>,
    /// What each layer's attention reads, and the residual stream behind each layer.
    pub attentions: Vec<AttentionValues>,
    pub states: Vec<ValueId>,
    pub limits: ProgramLimits,
    pub dtype: KvType,
}

/// A device with the weights of a model on it.
pub(crate) struct LoadedDevice {
    pub backend: Arc<dyn Backend>,
    pub weights: Arc<dyn WeightSet>,
}

impl LoadedDevice {
    /// A program over the weights.
    pub fn program(
        &self,
        graph: &Arc<Graph>,
        limits: ProgramLimits,
    ) -> Result<Box<dyn Program>, DeviceError> {
        self.backend.compile(Arc::clone(graph), Arc::clone(&self.weights), limits)
    }
}

impl Inside {
    /// A layer of which nothing is known yet.
    fn layer(&self, layer: usize) -> LayerInside {
        let AttentionValues { queries, keys, op } = self.attentions[layer];
        let shape = |id| self.graph.value(id).shape.inner().unwrap_or_default();
        let (queries, keys) = (shape(queries), shape(keys));
        LayerInside {
            layer,
            heads: queries[0],
            kv_heads: keys[0],
            head_dim: queries[1],
            window: op.window,
            queries: Vec::new(),
            keys: Vec::new(),
            states: Vec::new(),
            scale: op.scale,
            softcap: op.softcap,
        }
    }
}

/// What one layer did with a text.
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
    scale: f32,
    softcap: Option<f32>,
}

impl LayerInside {
    /// Tokens of the text.
    pub fn tokens(&self) -> usize {
        self.queries.len() / (self.heads * self.head_dim)
    }

    /// The weights of one head's attention, `[tokens, tokens]`: row i says how much of each token up to i goes into token i, and sums to 1.
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
            let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let shares: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
            let sum: f64 = shares.iter().sum();
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
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum()
}

impl Model {
    /// What the given layers do with `ids`, in the order given; all layers if none is given.
    ///
    /// The text is computed afresh by a program of its own over the model's weights, beside whatever runs. That program returns more values
    /// than the usual one; they are otherwise the same.
    ///
    /// # Errors
    ///
    /// [`Error::Options`] for a layer that is not there and for more than 4 GiB of values, [`Error::Engine`] for an empty text or an id
    /// outside the vocabulary, [`Error::Device`] for want of memory.
    pub fn look_inside(&self, ids: &[u32], layers: &[usize]) -> Result<Vec<LayerInside>, Error> {
        let inside = self.inside();
        let all: Vec<usize> = (0..inside.attentions.len()).collect();
        let layers = if layers.is_empty() { &all } else { layers };
        if let Some(layer) = layers.iter().find(|&&layer| layer >= all.len()) {
            return Err(Error::Options(format!("layer {layer}, the model has {} from 0 on", all.len())));
        }
        let values = layers.iter().flat_map(|&layer| {
            let attention = &inside.attentions[layer];
            [attention.queries, attention.keys, inside.states[layer]]
        });
        let values: Vec<_> = values.collect();
        let width =
            |id| -> usize { inside.graph.value(id).shape.inner().unwrap_or_default().iter().product() };
        let widths: Vec<usize> = values.iter().map(|&id| width(id)).collect();
        let bytes = widths.iter().sum::<usize>() as u64 * 4 * ids.len() as u64;
        if bytes > MOST_BYTES {
            return Err(Error::Options(format!(
                "{bytes} bytes of values of {} tokens in {} layers, at most {MOST_BYTES} are collected\nhint: ask for fewer layers",
                ids.len(),
                layers.len()
            )));
        }
        let graph = Arc::new(prune(&Graph::clone(&inside.graph).returning(&values)));
        let spec = KvPoolSpec { groups: graph.cache_groups(), dtype: inside.dtype };
        let program = inside.device.program(&graph, inside.limits)?;
        let pool = inside.device.backend.kv_pool(spec)?;
        let config = EngineConfig {
            context: ids.len().max(1),
            max_sequences: 1,
            cache_bytes: pages_bytes(&*pool, ids.len().max(1)).saturating_mul(2),
            prefix_bytes: 0,
            ..self.engine().config()
        };
        let engine = Engine::start(program, pool, config)?;
        let mut found: Vec<LayerInside> = layers.iter().map(|&layer| inside.layer(layer)).collect();
        let what = Reading::Logits;
        let request =
            ReadRequest { tokens: ids.to_vec(), what, first: 0, options: GenerateOptions::default() };
        for row in engine.read(request)? {
            let row = row?;
            let mut rest = &row[..];
            for (found, widths) in found.iter_mut().zip(widths.chunks_exact(3)) {
                for (part, &width) in
                    [&mut found.queries, &mut found.keys, &mut found.states].into_iter().zip(widths)
                {
                    let (values, behind) = rest.split_at(width);
                    part.extend_from_slice(values);
                    rest = behind;
                }
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::LayerInside;

    /// Two query heads on one key head, a window of two positions, and a soft-cap: by hand.
    #[test]
    fn scores_are_scaled_capped_and_windowed() {
        let layer = LayerInside {
            layer: 0,
            heads: 2,
            kv_heads: 1,
            head_dim: 1,
            window: Some(2),
            queries: vec![0.0, 1.0, 0.0, 2.0, 0.0, 3.0],
            keys: vec![1.0, 2.0, 4.0],
            states: Vec::new(),
            scale: 0.5,
            softcap: Some(2.0),
        };
        assert_eq!(layer.weights(0), [1.0, 0.0, 0.0, 0.5, 0.5, 0.0, 0.0, 0.5, 0.5]);
        let capped = |score: f64| (2.0 * (score / 2.0).tanh()).exp();
        let (a, b) = (capped(3.0), capped(6.0));
        let (c, d) = (capped(1.0), capped(2.0));
        let expected = [1.0, 0.0, 0.0, c / (c + d), d / (c + d), 0.0, 0.0, a / (a + b), b / (a + b)];
        for (found, expected) in layer.weights(1).iter().zip(expected) {
            assert!((f64::from(*found) - expected).abs() < 1e-6, "{found} {expected}");
        }
        let entropy = layer.entropy(0);
        assert!(entropy[0].abs() < 1e-6 && (entropy[1] - std::f32::consts::LN_2).abs() < 1e-6);
    }
}
