//! A small decoder with latent attention, sinks and a mixture of experts with a sigmoid router.

use brasa_formats::{Bytes, Payload, StorageFormat, Tensor, codec};

use crate::op::{
    Attention, GatedUnit, Gating, GroupScore, Groups, KvSource, Narrow, Rope, RopeLayout, RouterTopK,
};
use crate::{Builder, CacheSpec, Graph, Input, ValueId, Weight, WeightPart};

use super::Random;

const VOCAB: usize = 150;
const HIDDEN: usize = 64;
/// Elements of a latent: the value of every head, and the part of the key that no RoPE turns.
const LATENT: usize = 512;
/// Elements of a key behind the latent, which RoPE turns.
const ROTARY: usize = 64;
/// Elements of a head's query before it is taken to the latents, and of a head's value after it is taken from them.
const HEAD: usize = 32;
const FEED_FORWARD: usize = 64;
const EXPERTS: usize = 8;
const CHOSEN: usize = 3;
const EXPERT_WIDTH: usize = 32;

/// A small decoder with random weights, in which latent attention (DeepSeek-AI 2024, arXiv:2405.04434) meets learned
/// sinks and the router of DeepSeek-V3 (DeepSeek-AI 2024, arXiv:2412.19437).
///
/// Each layer has absorbed latent attention: one key head of 576 elements, the first 512 of which are the value. RoPE
/// turns the last 64. The first layer has a dense feed-forward block. The others have experts with a sigmoid router, a
/// selection bias, groups and a shared expert.
#[derive(Clone, Debug)]
pub struct Latent {
    /// Storage format of the matrices, of blocks of 32 or fewer. Routers, norms and sinks are f32.
    pub format: StorageFormat,
    /// Query heads.
    pub heads: usize,
    /// The layers, in order.
    pub layers: Vec<LatentLayer>,
}

/// The attention of a layer of [`Latent`].
#[derive(Clone, Copy, Debug)]
pub struct LatentLayer {
    /// Number of positions that a row sees; `None` for all.
    pub window: Option<usize>,
    /// True if RoPE turns the last elements of queries and keys.
    pub is_turned: bool,
}

impl Latent {
    /// A decoder of three layers: a full one, one with a window of 24 positions, and a full one without RoPE.
    pub fn small(format: StorageFormat) -> Self {
        let layers = [(None, true), (Some(24), true), (None, false)];
        let layers = layers.map(|(window, is_turned)| LatentLayer { window, is_turned }).to_vec();
        Self { format, heads: 3, layers }
    }

    /// The decoder as a graph from token ids below 150 to logits of the rows with outputs. `seed` determines the
    /// weights.
    ///
    /// # Panics
    ///
    /// If the graph does not fit together: a bug of this crate.
    pub fn graph(&self, seed: u64) -> Graph {
        let mut b = Building { spec: self, b: Builder::new(), random: Random::new(seed) };
        let (ids, positions) = (b.b.input(Input::TokenIds), b.b.input(Input::Positions));
        let out_rows = b.b.input(Input::OutRows);
        let embedding = b.weight("embedding", &[VOCAB, HIDDEN]);
        let frequencies: Vec<f32> =
            (0..ROTARY / 2).map(|i| 1000_f32.powf(-2.0 * i as f32 / ROTARY as f32)).collect();
        let frequencies = b.floats("frequencies", &[ROTARY / 2], &frequencies);
        let mut h = b.b.embed(ids, embedding);
        for (number, &layer) in self.layers.iter().enumerate() {
            h = b.attention(h, number, layer, (positions, frequencies));
            let x = b.norm(h, &format!("{number}.feed_forward_norm"), HIDDEN);
            let y = b.feed_forward(x, &format!("{number}.dense"), FEED_FORWARD);
            h = b.b.add(h, y);
            if number > 0 {
                let y = b.experts(x, number);
                h = b.b.add(h, y);
            }
        }
        let h = b.b.select_rows(h, out_rows);
        let h = b.norm(h, "norm", HIDDEN);
        let logits = b.linear(h, "head", VOCAB);
        b.b.finish(&[logits]).expect("the decoder fits together")
    }
}

struct Building<'a> {
    spec: &'a Latent,
    b: Builder,
    random: Random,
}

impl Building<'_> {
    fn attention(
        &mut self,
        h: ValueId,
        layer: usize,
        LatentLayer { window, is_turned }: LatentLayer,
        rotation: (ValueId, ValueId),
    ) -> ValueId {
        let heads = self.spec.heads;
        let x = self.norm(h, &format!("{layer}.attention_norm"), HIDDEN);
        let q = self.linear(x, &format!("{layer}.q"), heads * (HEAD + ROTARY));
        let q = self.b.reshape(q, &[heads, HEAD + ROTARY]);
        let (q, q_turned) = (self.elements(q, 0, HEAD), self.elements(q, HEAD, ROTARY));
        let absorbed = self.weight(&format!("{layer}.k_absorbed"), &[heads, LATENT, HEAD]);
        let q = self.b.head_linear(q, absorbed);
        let kv = self.linear(x, &format!("{layer}.kv"), LATENT + ROTARY);
        let latent = self.b.slice(kv, 0..LATENT);
        let latent = self.norm(latent, &format!("{layer}.kv_norm"), LATENT);
        let latent = self.b.reshape(latent, &[1, LATENT]);
        let k_turned = self.b.slice(kv, LATENT..LATENT + ROTARY);
        let k_turned = self.b.reshape(k_turned, &[1, ROTARY]);
        let [q, k] = [(q, q_turned), (latent, k_turned)].map(|(first, last)| {
            let rope = Rope { layout: RopeLayout::Interleaved, rotary_dim: ROTARY, magnitude: 1.0 };
            let last = if is_turned { self.b.rope(last, rotation.0, rotation.1, rope) } else { last };
            self.b.concat(first, last, 2)
        });
        let cache = self.b.cache(CacheSpec::latent(LATENT + ROTARY, LATENT, window));
        self.b.cache_write_keys(k, cache);
        let sinks = self.random.normals(heads, 1.0);
        let sinks = self.floats(&format!("{layer}.sinks"), &[heads], &sinks);
        let (source, scale) = (KvSource::Cache(cache), ((HEAD + ROTARY) as f32).sqrt().recip());
        let o = self.b.attention(&[q, sinks], Attention { source, scale, window, softcap: None });
        let absorbed = self.weight(&format!("{layer}.v_absorbed"), &[heads, HEAD, LATENT]);
        let o = self.b.head_linear(o, absorbed);
        let o = self.b.reshape(o, &[heads * HEAD]);
        let o = self.linear(o, &format!("{layer}.o"), HIDDEN);
        self.b.add(h, o)
    }

    /// The chosen experts' part of a feed-forward block.
    fn experts(&mut self, x: ValueId, layer: usize) -> ValueId {
        let router = self.random.normals(EXPERTS * HIDDEN, (HIDDEN as f32).sqrt().recip());
        let router = self.floats(&format!("{layer}.router"), &[EXPERTS, HIDDEN], &router);
        let bias = self.random.normals(EXPERTS, 0.2);
        let bias = self.floats(&format!("{layer}.selection_bias"), &[EXPERTS], &bias);
        let groups = Some(Groups { count: 4, kept: 2, score: GroupScore::TopTwo });
        let gating = Gating { groups, norm_eps: Some(1e-20), scale: 2.5, ..Gating::SIGMOID };
        let logits = self.b.linear(x, router);
        let (chosen, weights) = self.b.router_topk_biased(logits, bias, RouterTopK { k: CHOSEN, gating });
        let gate = self.weight(&format!("{layer}.gate"), &[EXPERTS, EXPERT_WIDTH, HIDDEN]);
        let up = self.weight(&format!("{layer}.up"), &[EXPERTS, EXPERT_WIDTH, HIDDEN]);
        let down = self.weight(&format!("{layer}.down"), &[EXPERTS, HIDDEN, EXPERT_WIDTH]);
        let gate = self.b.expert_linear(x, chosen, gate);
        let up = self.b.expert_linear(x, chosen, up);
        let y = self.b.gated_unit(gate, up, GatedUnit::Silu);
        let y = self.b.expert_linear(y, chosen, down);
        let weights = self.b.reshape(weights, &[CHOSEN, 1]);
        let y = self.b.mul(y, weights);
        self.b.sum(y, 1)
    }

    /// A dense feed-forward block, or a shared expert.
    fn feed_forward(&mut self, x: ValueId, name: &str, width: usize) -> ValueId {
        let (gate, up) =
            (self.linear(x, &format!("{name}.gate"), width), self.linear(x, &format!("{name}.up"), width));
        let y = self.b.gated_unit(gate, up, GatedUnit::Silu);
        self.linear(y, &format!("{name}.down"), HIDDEN)
    }

    /// Elements `start..start + len` of each head.
    fn elements(&mut self, x: ValueId, start: usize, len: usize) -> ValueId {
        self.b.apply(Narrow { axis: 2, start: start.into(), len: len.into() }, &[x])[0]
    }

    fn norm(&mut self, x: ValueId, name: &str, width: usize) -> ValueId {
        let values: Vec<f32> = (0..width).map(|_| 1.0 + 0.2 * self.random.normal()).collect();
        let w = self.floats(name, &[width], &values);
        self.b.rms_norm(x, w, 1e-6)
    }

    fn linear(&mut self, x: ValueId, name: &str, outputs: usize) -> ValueId {
        let inputs = self.b.shape(x).and_then(crate::Shape::width).expect("rows");
        let w = self.weight(name, &[outputs, inputs]);
        self.b.linear(x, w)
    }

    fn floats(&mut self, name: &str, shape: &[usize], values: &[f32]) -> ValueId {
        self.b.weight(Ok(super::weight(name, shape, values)))
    }

    /// A matrix of normals in the storage format of the decoder.
    fn weight(&mut self, name: &str, shape: &[usize]) -> ValueId {
        let (format, inputs) = (self.spec.format, shape[shape.len() - 1]);
        let rows: usize = shape[..shape.len() - 1].iter().product();
        let row_bytes = format.row_bytes(inputs).expect("whole blocks");
        let values = self.random.normals(rows * inputs, (inputs as f32).sqrt().recip());
        let mut bytes = vec![0; rows * row_bytes];
        for (values, bytes) in values.chunks_exact(inputs).zip(bytes.chunks_exact_mut(row_bytes)) {
            codec::encode_row(format, values, None, bytes).expect("finite rows of whole blocks");
        }
        let payload = Payload::Blocks(Bytes::from(bytes));
        let tensor = Tensor { name: name.into(), shape: shape.to_vec(), format, payload };
        self.b.weight(Weight::new(name, shape, vec![WeightPart::whole(tensor)]))
    }
}
