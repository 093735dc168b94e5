//! A small random model: its next token depends on everything that it sees.

use brasa_formats::Tensor;
use std::cell::Cell;

use brasa_graph::op::{Attention, HeadSharing, KvSource, Rope, RopeLayout, ScanRule, StateScan, Unary};
use brasa_graph::{Builder, CacheSpec, Graph, Input, ValueId, Weight, WeightPart};

pub const VOCAB: usize = 61;
const WIDTH: usize = 16;
const WINDOW: usize = 40;

/// One layer with full attention and one with a sliding window.
pub const LAYERS: &[Option<usize>] = &[None, Some(WINDOW)];

thread_local! {
    /// True if the small model of the current test begins with recurrent layers.
    pub static RECURRENT: Cell<bool> = const { Cell::new(false) };
}

/// A layer for each window, behind recurrent layers if the test wants them.
pub fn graph(windows: &[Option<usize>]) -> Graph {
    build(windows, None)
}

/// Like [`graph`], with an embedding of the token `bad` whose values are no numbers.
pub fn poisoned(windows: &[Option<usize>], bad: u32) -> Graph {
    build(windows, Some(bad))
}

fn build(windows: &[Option<usize>], bad: Option<u32>) -> Graph {
    let mut g = Builder::new();
    let weight = |g: &mut Builder, name: &str, shape: &[usize], scale: f32| {
        g.weight(Weight::new(name, shape, vec![WeightPart::whole(tensor(name, shape, scale))]))
    };
    let (ids, positions, outs) =
        (g.input(Input::TokenIds), g.input(Input::Positions), g.input(Input::OutRows));
    let table = weight(&mut g, "table", &[VOCAB, WIDTH], 4.0);
    let frequencies = weight(&mut g, "frequencies", &[4], 1.0);
    let embeddings = bad.map_or(table, |bad| {
        let mut values = floats("table", VOCAB * WIDTH, 4.0);
        values[bad as usize * WIDTH..][..WIDTH].fill(f32::NAN);
        let part = WeightPart::whole(Tensor::of_floats("embeddings", vec![VOCAB, WIDTH], &values));
        g.weight(Weight::new("embeddings", &[VOCAB, WIDTH], vec![part]))
    });
    let mut h = g.embed(ids, embeddings);
    if RECURRENT.get() {
        h = recurrent_layers(&mut g, h);
    }
    for &window in windows {
        let cache = g.cache(CacheSpec::new(1, 8, window));
        let qkv = weight(&mut g, &format!("qkv {window:?}"), &[32, WIDTH], 1.5);
        let out = weight(&mut g, &format!("out {window:?}"), &[WIDTH, 16], 2.0);
        let qkv = g.linear(h, qkv);
        let heads = |g: &mut Builder, start: usize, heads: usize| {
            let slice = g.slice(qkv, start..start + heads * 8);
            g.reshape(slice, &[heads, 8])
        };
        let (q, k, v) = (heads(&mut g, 0, 2), heads(&mut g, 16, 1), heads(&mut g, 24, 1));
        let rope = Rope { layout: RopeLayout::SplitHalf, rotary_dim: 8, magnitude: 1.0 };
        let (q, k) = (g.rope(q, positions, frequencies, rope), g.rope(k, positions, frequencies, rope));
        g.cache_write(k, v, cache);
        let attention = Attention { source: KvSource::Cache(cache), scale: 0.5, window, softcap: None };
        let o = g.attention(&[q], attention);
        let o = g.reshape(o, &[16]);
        let o = g.linear(o, out);
        h = g.add(h, o);
    }
    let h = g.select_rows(h, outs);
    let h = g.rms_norm_unscaled(h, 1e-6);
    let logits = g.linear(h, table);
    g.finish(&[logits]).unwrap()
}

/// A short convolution and a gated delta rule.
fn recurrent_layers(g: &mut Builder, h: ValueId) -> ValueId {
    let weight = |g: &mut Builder, name: &str, shape: &[usize], scale: f32| {
        g.weight(Weight::new(name, shape, vec![WeightPart::whole(tensor(name, shape, scale))]))
    };
    let taps = weight(g, "taps", &[WIDTH, 3], 0.7);
    let state = g.state(2 * WIDTH);
    let x = g.short_conv(h, taps, state);
    let h = g.add(h, x);
    let projection = weight(g, "recurrence", &[28, WIDTH], 1.0);
    let x = g.rms_norm_unscaled(h, 1e-6);
    let x = g.linear(x, projection);
    let part = |g: &mut Builder, start: usize, heads: usize| {
        let x = g.slice(x, start..start + heads * 4);
        g.reshape(x, &[heads, 4])
    };
    let (q, k, v) = (part(g, 0, 1), part(g, 4, 1), part(g, 8, 2));
    let (q, k) = (g.rms_norm_unscaled(q, 1e-6), g.rms_norm_unscaled(k, 1e-6));
    let k = g.unary(k, Unary::Scale(0.5));
    let gate = |g: &mut Builder, start: usize| {
        let x = g.slice(x, start..start + 2);
        g.unary(x, Unary::Sigmoid)
    };
    let (decay, beta) = (gate(g, 16), gate(g, 18));
    let state = Some(g.state(2 * 4 * 4));
    let scan = StateScan { state, rule: ScanRule::Delta, sharing: HeadSharing::Grouped };
    let y = g.state_scan(&[q, k, v, decay, beta], scan);
    let y = g.reshape(y, &[8]);
    let out = weight(g, "recurrence out", &[WIDTH, 8], 0.7);
    let y = g.linear(y, out);
    g.add(h, y)
}

/// Deterministic noise: a model whose next token depends on everything that it sees.
fn floats(name: &str, count: usize, scale: f32) -> Vec<f32> {
    let mut state = name.bytes().fold(0x9E37_79B9_7F4A_7C15_u64, |state, byte| {
        (state ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    });
    let values = (0..count).map(|_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (((state >> 40) as f32) / (1 << 24) as f32 - 0.5) * scale
    });
    values.collect()
}

fn tensor(name: &str, shape: &[usize], scale: f32) -> Tensor {
    Tensor::of_floats(name, shape.to_vec(), &floats(name, shape.iter().product(), scale))
}
