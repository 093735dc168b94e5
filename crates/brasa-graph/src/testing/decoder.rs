//! A small decoder with random weights, as a graph of the shapes that models have.

use crate::op::{Attention, Gating, KvSource, Narrow, Rope, RopeLayout, RouterTopK, Unary};
use crate::{Builder, CacheSpec, Graph, Input, ValueId, ValueWidth, Weight, WeightPart};
use brasa_formats::{Bytes, Payload, StorageFormat, Tensor, codec};

use super::Random;

/// Rows of a weight that are encoded, unless a decoder says otherwise.
const FRESH_ROWS: usize = 1024;
/// MLX's usual format of scales and biases.
const MLX_SCALES: StorageFormat = StorageFormat::BF16;

/// The sizes of a small decoder with random weights.
#[derive(Clone, Debug)]
pub struct Decoder {
    /// How matrices are stored.
    pub format: StorageFormat,
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// Width of a row between blocks.
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head's query and key.
    pub head_dim: usize,
    /// Width and place of values; `None` for values as wide as keys and stored beside them. If values are within keys,
    /// RoPE turns only the key's elements behind the value, as in latent attention.
    pub value: Option<ValueWidth>,
    /// True if each query head has a sink.
    pub sinks: bool,
    /// Whether each query and key head is normed.
    pub head_norms: bool,
    /// Width of a row within a feed-forward block.
    pub feed_forward: usize,
    /// The attention window of each layer.
    pub windows: Vec<Option<usize>>,
    /// Number of experts in every layer, and number of experts that a row uses; `None` for one feed-forward block.
    pub experts: Option<(usize, usize)>,
    /// How routers of experts are stored; `None`: as all matrices are.
    pub router: Option<StorageFormat>,
    /// Soft-cap of scores and logits.
    pub softcap: Option<f32>,
    /// Number of rows of a weight that are encoded, since encoding is slow. Larger weights repeat these rows.
    pub fresh_rows: usize,
}

impl Decoder {
    /// A decoder of two layers, one of which has a window.
    pub fn small(format: StorageFormat) -> Self {
        Self {
            format,
            vocab: 150,
            hidden: 256,
            heads: 8,
            kv_heads: 2,
            head_dim: 32,
            value: None,
            sinks: false,
            head_norms: true,
            feed_forward: 512,
            windows: vec![None, Some(300)],
            experts: None,
            router: None,
            softcap: None,
            fresh_rows: FRESH_ROWS,
        }
    }

    /// A small decoder with sinks, like gpt-oss (OpenAI 2025, arXiv:2508.10925). `windows` has the attention window of
    /// each layer.
    pub fn with_sinks(format: StorageFormat, windows: &[Option<usize>]) -> Self {
        Self { sinks: true, head_norms: false, windows: windows.to_vec(), ..Self::small(format) }
    }

    /// A small decoder with latent attention in its absorbed form: one KV head with a key of 576 elements, the first
    /// 512 of which are the value (DeepSeek-AI 2024, arXiv:2405.04434).
    pub fn latent(format: StorageFormat) -> Self {
        let value = Some(ValueWidth::PrefixOfKey(512));
        Self { heads: 6, kv_heads: 1, head_dim: 576, value, head_norms: false, ..Self::small(format) }
    }

    /// The sizes of Qwen3-0.6B (Qwen Team 2025, arXiv:2505.09388).
    pub fn qwen3_0_6b(format: StorageFormat) -> Self {
        Self {
            format,
            vocab: 151_936,
            hidden: 1024,
            heads: 16,
            kv_heads: 8,
            head_dim: 128,
            value: None,
            sinks: false,
            head_norms: true,
            feed_forward: 3072,
            windows: vec![None; 28],
            experts: None,
            router: None,
            softcap: None,
            fresh_rows: FRESH_ROWS,
        }
    }

    /// Number of elements of a head that RoPE turns.
    fn rotary_dim(&self) -> usize {
        match self.value {
            Some(ValueWidth::PrefixOfKey(width)) => self.head_dim - width,
            _ => self.head_dim,
        }
    }

    /// The decoder as a graph. `seed` determines the weights.
    ///
    /// # Panics
    ///
    /// If the graph does not fit together: a bug of this crate.
    pub fn graph(&self, seed: u64) -> Graph {
        self.mixed_graph(seed, self.format)
    }

    /// The decoder as a graph whose value projections are stored as `values`, as in files of mixed formats.
    ///
    /// # Panics
    ///
    /// If the graph does not fit together: a bug of this crate.
    pub fn mixed_graph(&self, seed: u64, values: StorageFormat) -> Graph {
        Building { spec: self, values, b: Builder::new(), random: Random::new(seed) }.graph()
    }
}

struct Building<'a> {
    spec: &'a Decoder,
    /// How value projections are stored.
    values: StorageFormat,
    b: Builder,
    random: Random,
}

impl Building<'_> {
    fn graph(mut self) -> Graph {
        let spec = self.spec;
        let (ids, positions) = (self.b.input(Input::TokenIds), self.b.input(Input::Positions));
        let out_rows = self.b.input(Input::OutRows);
        let embedding = self.weight("embedding", &[spec.vocab, spec.hidden]);
        let rotary_dim = spec.rotary_dim();
        let frequencies: Vec<f32> =
            (0..rotary_dim / 2).map(|i| 10_000_f32.powf(-2.0 * i as f32 / rotary_dim as f32)).collect();
        let frequencies = super::weight("frequencies", &[rotary_dim / 2], &frequencies);
        let frequencies = self.b.weight(Ok(frequencies));
        let mut h = self.b.embed(ids, embedding);
        for (layer, &window) in spec.windows.iter().enumerate() {
            h = self.attention_block(h, positions, frequencies, layer, window);
            h = match spec.experts {
                None => self.feed_forward_block(h, layer),
                Some((experts, used)) => self.expert_block(h, layer, experts, used),
            };
        }
        let h = self.b.select_rows(h, out_rows);
        let h = self.norm(h, "norm", spec.hidden);
        let mut logits = self.b.linear(h, embedding);
        if let Some(cap) = spec.softcap {
            logits = self.b.unary(logits, Unary::Softcap(cap));
        }
        self.b.finish(&[logits]).expect("the decoder fits together")
    }

    fn attention_block(
        &mut self,
        h: ValueId,
        positions: ValueId,
        frequencies: ValueId,
        layer: usize,
        window: Option<usize>,
    ) -> ValueId {
        let &Decoder { hidden, heads, kv_heads, head_dim, softcap, .. } = self.spec;
        let value = self.spec.value.unwrap_or(ValueWidth::Own(head_dim));
        let (q_width, k_width, v_width) = (heads * head_dim, kv_heads * head_dim, kv_heads * value.stored());
        let x = self.norm(h, &format!("layers.{layer}.attention_norm"), hidden);
        let name = format!("layers.{layer}.qkv");
        let qkv = if self.values == self.spec.format {
            self.weight(&name, &[q_width + k_width + v_width, hidden])
        } else {
            let queries_and_keys = self.part(&name, &[q_width + k_width, hidden], self.spec.format);
            let parts = vec![queries_and_keys, self.part(&name, &[v_width, hidden], self.values)];
            self.b.weight(Weight::new(name, &[q_width + k_width + v_width, hidden], parts))
        };
        let qkv = self.b.linear(x, qkv);
        let mut part = |start: usize, heads: usize, width: usize| {
            let part = self.b.slice(qkv, start..start + heads * width);
            self.b.reshape(part, &[heads, width])
        };
        let (q, k) = (part(0, heads, head_dim), part(q_width, kv_heads, head_dim));
        let v = (v_width > 0).then(|| part(q_width + k_width, kv_heads, value.dim()));
        let mut normed = |heads, name: &str| {
            let name = format!("layers.{layer}.{name}");
            if self.spec.head_norms { self.norm(heads, &name, head_dim) } else { heads }
        };
        let (q, k) = (normed(q, "q_norm"), normed(k, "k_norm"));
        let [q, k] = [q, k].map(|x| self.turned(x, positions, frequencies));
        let cache = self.b.cache(CacheSpec { kv_heads, key_dim: head_dim, value, window });
        match v {
            Some(v) => self.b.cache_write(k, v, cache),
            None => self.b.cache_write_keys(k, cache),
        }
        let scale = 1.0 / (head_dim as f32).sqrt();
        let source = KvSource::Cache(cache);
        let mut operands = vec![q];
        if self.spec.sinks {
            let name = format!("layers.{layer}.sinks");
            let part = self.part(&name, &[heads], StorageFormat::BF16);
            operands.push(self.b.weight(Weight::new(name, &[heads], vec![part])));
        }
        let o = self.b.attention(&operands, Attention { source, scale, window, softcap });
        let o_width = heads * value.dim();
        let o = self.b.reshape(o, &[o_width]);
        let w = self.weight(&format!("layers.{layer}.o"), &[hidden, o_width]);
        let o = self.b.linear(o, w);
        self.b.add(h, o)
    }

    /// Applies RoPE to heads: to all elements, or to those behind the value if values are within keys.
    fn turned(&mut self, x: ValueId, positions: ValueId, frequencies: ValueId) -> ValueId {
        let rotary_dim = self.spec.rotary_dim();
        let rope = Rope { layout: RopeLayout::SplitHalf, rotary_dim, magnitude: 1.0 };
        let kept = self.spec.head_dim - rotary_dim;
        if kept == 0 {
            return self.b.rope(x, positions, frequencies, rope);
        }
        let mut narrow = |start: usize, len: usize| {
            self.b.apply(Narrow { axis: 2, start: start.into(), len: len.into() }, &[x])[0]
        };
        let (first, last) = (narrow(0, kept), narrow(kept, rotary_dim));
        let last = self.b.rope(last, positions, frequencies, rope);
        self.b.concat(first, last, 2)
    }

    fn feed_forward_block(&mut self, h: ValueId, layer: usize) -> ValueId {
        let &Decoder { hidden, feed_forward, .. } = self.spec;
        let x = self.norm(h, &format!("layers.{layer}.feed_forward_norm"), hidden);
        let gate_up = self.weight(&format!("layers.{layer}.gate_up"), &[2 * feed_forward, hidden]);
        let gate_up = self.b.linear(x, gate_up);
        let gate = self.b.slice(gate_up, 0..feed_forward);
        let up = self.b.slice(gate_up, feed_forward..2 * feed_forward);
        let gate = self.b.unary(gate, Unary::Silu);
        let y = self.b.mul(gate, up);
        let down = self.weight(&format!("layers.{layer}.down"), &[hidden, feed_forward]);
        let y = self.b.linear(y, down);
        self.b.add(h, y)
    }

    fn expert_block(&mut self, h: ValueId, layer: usize, experts: usize, used: usize) -> ValueId {
        let &Decoder { hidden, feed_forward, .. } = self.spec;
        let x = self.norm(h, &format!("layers.{layer}.feed_forward_norm"), hidden);
        let router = format!("layers.{layer}.router");
        let format = self.spec.router.unwrap_or(self.spec.format);
        let part = self.part(&router, &[experts, hidden], format);
        let router = self.b.weight(Weight::new(router, &[experts, hidden], vec![part]));
        let logits = self.b.linear(x, router);
        let top_k = RouterTopK { k: used, gating: Gating::SOFTMAX_CHOSEN };
        let (chosen, weights) = self.b.router_topk(logits, top_k);
        let gate = self.weight(&format!("layers.{layer}.gate"), &[experts, feed_forward, hidden]);
        let up = self.weight(&format!("layers.{layer}.up"), &[experts, feed_forward, hidden]);
        let down = self.weight(&format!("layers.{layer}.down"), &[experts, hidden, feed_forward]);
        let gate = self.b.expert_linear(x, chosen, gate);
        let up = self.b.expert_linear(x, chosen, up);
        let gate = self.b.unary(gate, Unary::Silu);
        let y = self.b.mul(gate, up);
        let y = self.b.expert_linear(y, chosen, down);
        let weights = self.b.reshape(weights, &[used, 1]);
        let y = self.b.mul(y, weights);
        let y = self.b.sum(y, 1);
        self.b.add(h, y)
    }

    fn norm(&mut self, x: ValueId, name: &str, width: usize) -> ValueId {
        let values: Vec<f32> = (0..width).map(|_| 1.0 + 0.2 * self.random.normal()).collect();
        let w = self.b.weight(Ok(super::weight(name, &[width], &values)));
        self.b.rms_norm(x, w, 1e-6)
    }

    fn weight(&mut self, name: &str, shape: &[usize]) -> ValueId {
        let part = self.part(name, shape, self.spec.format);
        self.b.weight(Weight::new(name, shape, vec![part]))
    }

    fn part(&mut self, name: &str, shape: &[usize], format: StorageFormat) -> WeightPart {
        let k = shape[shape.len() - 1];
        let row_bytes = match format {
            StorageFormat::MlxAffine(mlx) => {
                let scale_bytes = k / mlx.group_size as usize * MLX_SCALES.block_bytes();
                [k * usize::from(mlx.bits) / 8, scale_bytes, scale_bytes]
            }
            _ => [format.row_bytes(k).expect("whole blocks"), 0, 0],
        };
        let rows: usize = shape.iter().rev().skip(1).product();
        let values = self.random.normals(rows.min(self.spec.fresh_rows) * k, 1.0 / (k as f32).sqrt());
        let mut arrays = row_bytes.map(|row_bytes| Vec::with_capacity(row_bytes * rows));
        for x in values.chunks_exact(k) {
            let [mut words, mut scales, mut biases] = row_bytes.map(|row_bytes| vec![0; row_bytes]);
            let encoded = match format {
                StorageFormat::MlxAffine(mlx) => {
                    let (scale_format, words) = (MLX_SCALES, &mut words[..]);
                    let (scales, biases) = (&mut scales[..], &mut biases[..]);
                    codec::mlx::encode_row(
                        mlx,
                        x,
                        &mut codec::mlx::RowMut { words, scales, biases, scale_format },
                    )
                }
                _ => codec::encode_row(format, x, None, &mut words),
            };
            encoded.expect("finite rows of whole blocks");
            for (array, row) in arrays.iter_mut().zip([words, scales, biases]) {
                array.extend(row);
            }
        }
        for (array, row_bytes) in arrays.iter_mut().zip(row_bytes) {
            while array.len() < row_bytes * rows {
                let again = array.len().min(row_bytes * rows - array.len());
                array.extend_from_within(..again);
            }
        }
        let [words, scales, biases] = arrays.map(Bytes::from);
        let payload = match format {
            StorageFormat::MlxAffine(_) => Payload::Mlx { words, scales, biases, scale_format: MLX_SCALES },
            _ => Payload::Blocks(words),
        };
        let shape = shape.to_vec();
        WeightPart::whole(Tensor { name: name.into(), shape, format, payload })
    }
}
