//! An encoder and a decoder over one pool, so small that the results follow from a short formula.

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::device::{Backend, DeviceError, KvPoolSpec, KvType, Precision, ProgramLimits};
use crate::op::{Attention, KvSource};
use crate::reference::decode_weight;
use crate::step::{Outs, Segment, Step};
use crate::{Builder, CacheSpec, Graph, Input, ValueId};

use super::{Random, Sequences, f32_weight};

const VOCAB: usize = 50;
const HEADS: usize = 6;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 20;
const SCALE: f32 = 0.3;
/// Most rows of a step.
const MAX_ROWS: usize = 320;

/// An encoder and a decoder whose keys, values and queries are looked up by token. The encoder writes a memory. The decoder adds
/// its rows' attention to the memory and to their own text.
#[derive(Clone, Debug)]
pub struct EncoderDecoder {
    /// The encoder's graph. It writes memories and returns the keys.
    pub encoder: Arc<Graph>,
    /// The decoder's graph. It reads memories.
    pub decoder: Arc<Graph>,
    /// The tables of keys, values and queries, `[VOCAB, heads · HEAD_DIM]` each.
    tables: [Vec<f32>; 3],
}

impl EncoderDecoder {
    /// Graphs with random tables. `seed` determines the tables.
    ///
    /// # Panics
    ///
    /// If the graphs do not fit together: a bug of this crate.
    pub fn new(seed: u64) -> Self {
        let build = |encodes: bool| {
            let (mut b, mut random) = (Builder::new(), Random::new(seed));
            let ids = b.input(Input::TokenIds);
            let mut looked_up = |b: &mut Builder, name: &str, heads: usize| -> ValueId {
                let table = f32_weight(&mut random, name, &[VOCAB, heads * HEAD_DIM]);
                let table = b.weight(Ok(table));
                let x = b.embed(ids, table);
                b.reshape(x, &[heads, HEAD_DIM])
            };
            let (k, v) = (looked_up(&mut b, "k", KV_HEADS), looked_up(&mut b, "v", KV_HEADS));
            let q = looked_up(&mut b, "q", HEADS);
            let cache = b.cache(CacheSpec::new(KV_HEADS, HEAD_DIM, None));
            let memory = b.memory(KV_HEADS, HEAD_DIM);
            let y = if encodes {
                b.memory_write(k, v, memory);
                k
            } else {
                b.cache_write(k, v, cache);
                let attention = |source| Attention { source, scale: SCALE, window: None, softcap: None };
                let of_memory = b.attention(&[q], attention(KvSource::Memory(memory)));
                let of_text = b.attention(&[q], attention(KvSource::Cache(cache)));
                b.add(of_memory, of_text)
            };
            b.finish(&[y]).expect("a small graph")
        };
        let (encoder, decoder) = (build(true), build(false));
        let table =
            |place: usize| decode_weight(&decoder.weights()[place]).expect("an f32 table").floats().to_vec();
        Self {
            tables: [table(0), table(1), table(2)],
            encoder: Arc::new(encoder),
            decoder: Arc::new(decoder),
        }
    }

    /// Runs the encoder with memories of `lengths` rows, one for each sequence. Returns the decoder's results for three rows of
    /// each sequence and then one.
    ///
    /// # Errors
    ///
    /// Errors of the device.
    pub fn run(&self, device: &dyn Backend, kv: KvType, lengths: &[usize]) -> Result<Vec<f32>, DeviceError> {
        let limits = ProgramLimits { max_rows: MAX_ROWS, max_outs: MAX_ROWS, max_segments: lengths.len() };
        let compile = |graph: &Arc<Graph>| {
            let weights = device.upload(graph, Precision::Reference, &mut |_| ControlFlow::Continue(()))?;
            device.compile(Arc::clone(graph), weights, limits.with(kv))
        };
        let (mut encoder, mut decoder) = (compile(&self.encoder)?, compile(&self.decoder)?);
        let mut pool = device.kv_pool(KvPoolSpec::of(&self.decoder, kv))?;
        let mut sequences = Sequences::new(&*pool);
        let mut first = Step::default();
        for (number, &rows) in lengths.iter().enumerate() {
            let id = number as u64;
            sequences.remember(id, rows);
            let text = sequences.extend(&mut *pool, id, &text(id, 0..3), Outs::All)?;
            // Written in parts, as an encoder of long inputs may.
            for begin in (0..rows).step_by(MAX_ROWS - 20) {
                let frames = frames(id, begin..rows.min(begin + MAX_ROWS - 20));
                let segment = Segment::text(text.sequence, begin, frames, Outs::None, text.pages.clone());
                encoder.run(&Step { segments: vec![segment] }, &mut *pool)?;
            }
            first.segments.push(text);
        }
        let mut found = decoder.run(&first, &mut *pool)?.only().floats().to_vec();
        let mut second = Step::default();
        for id in 0..lengths.len() as u64 {
            second.segments.push(sequences.extend(&mut *pool, id, &text(id, 3..4), Outs::All)?);
        }
        found.extend(decoder.run(&second, &mut *pool)?.only().floats());
        Ok(found)
    }

    /// The results of [`run`](Self::run), computed from the formula alone.
    pub fn expected(&self, lengths: &[usize]) -> Vec<f32> {
        let rows = |places: std::ops::Range<usize>| {
            let of = move |(id, &length): (usize, &usize)| (id as u64, length, places.clone());
            lengths.iter().enumerate().flat_map(move |sequence| {
                let (id, length, places) = of(sequence);
                places.map(move |place| (id, length, place))
            })
        };
        let mut all = Vec::new();
        for (id, length, place) in rows(0..3).chain(rows(3..4)) {
            let text = text(id, 0..place + 1);
            let query = text[place];
            let of_memory = self.attend(query, &frames(id, 0..length));
            let of_text = self.attend(query, &text);
            all.extend(of_memory.iter().zip(of_text).map(|(a, b)| (a + b) as f32));
        }
        all
    }

    /// The values of the tokens `seen`, weighted by the softmax of the products of their keys with the query.
    fn attend(&self, query: u32, seen: &[u32]) -> Vec<f64> {
        let [keys, values, queries] = &self.tables;
        let head = |table: &[f32], token: u32, heads: usize, head: usize| -> Vec<f64> {
            let start = (token as usize * heads + head) * HEAD_DIM;
            table[start..start + HEAD_DIM].iter().map(|&x| f64::from(x)).collect()
        };
        let mut y = Vec::new();
        for h in 0..HEADS {
            let (q, g) = (head(queries, query, HEADS, h), h / (HEADS / KV_HEADS));
            let weight = |&token: &u32| -> f64 {
                let k = head(keys, token, KV_HEADS, g);
                (f64::from(SCALE) * q.iter().zip(k).map(|(q, k)| q * k).sum::<f64>()).exp()
            };
            let weights: Vec<f64> = seen.iter().map(weight).collect();
            let total: f64 = weights.iter().sum();
            let mut sum = vec![0.0; HEAD_DIM];
            for (&token, weight) in seen.iter().zip(weights) {
                for (sum, v) in sum.iter_mut().zip(head(values, token, KV_HEADS, g)) {
                    *sum += weight / total * v;
                }
            }
            y.extend(sum);
        }
        y
    }
}

fn text(id: u64, places: std::ops::Range<usize>) -> Vec<u32> {
    numbers(id * 2, places)
}

fn frames(id: u64, places: std::ops::Range<usize>) -> Vec<u32> {
    numbers(id * 2 + 1, places)
}

fn numbers(seed: u64, places: std::ops::Range<usize>) -> Vec<u32> {
    let mut random = Random::new(seed);
    let all: Vec<u32> = (0..places.end).map(|_| random.below(VOCAB) as u32).collect();
    all[places].to_vec()
}
