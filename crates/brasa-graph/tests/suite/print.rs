//! Listings as people see them.

use brasa_graph::fuse::Pattern;
use brasa_graph::op::{Attention, Gating, KvSource, Rope, RopeLayout, RouterTopK, Unary};
use brasa_graph::testing::{Random, weight};
use brasa_graph::{Builder, CacheSpec, Graph, Input, Schedule, ValueId, print};

/// One layer with everything that a decoder has: stacked QKV with head norms, a window, gate and up, experts, soft-cap.
fn layer() -> Graph {
    let mut g = Builder::new();
    let mut random = Random::new(1);
    let mut w = |g: &mut Builder, name: &str, shape: &[usize]| {
        let values = random.normals(shape.iter().product(), 0.1);
        g.weight(Ok(weight(name, shape, &values)))
    };
    let (ids, positions, rows) =
        (g.input(Input::TokenIds), g.input(Input::Positions), g.input(Input::OutRows));
    let table = w(&mut g, "embed", &[50, 32]);
    let h = g.embed(ids, table);
    let cache = g.cache(CacheSpec::new(1, 16, Some(8)));
    let norm = w(&mut g, "layers.0.attn_norm", &[32]);
    let x = g.rms_norm(h, norm, 1e-6);
    let qkv = w(&mut g, "layers.0.qkv", &[64, 32]);
    let qkv = g.linear(x, qkv);
    let part = |g: &mut Builder, range: std::ops::Range<usize>| {
        let heads = range.len() / 16;
        let part = g.slice(qkv, range);
        g.reshape(part, &[heads, 16])
    };
    let (q, k, v) = (part(&mut g, 0..32), part(&mut g, 32..48), part(&mut g, 48..64));
    let (q_norm, k_norm) = (w(&mut g, "layers.0.q_norm", &[16]), w(&mut g, "layers.0.k_norm", &[16]));
    let (q, k) = (g.rms_norm(q, q_norm, 1e-6), g.rms_norm(k, k_norm, 1e-6));
    let frequencies = w(&mut g, "rope", &[8]);
    let rope = Rope { layout: RopeLayout::SplitHalf, rotary_dim: 16, magnitude: 1.0 };
    let (q, k) = (g.rope(q, positions, frequencies, rope), g.rope(k, positions, frequencies, rope));
    g.cache_write(k, v, cache);
    let source = KvSource::Cache(cache);
    let y = g.attention(&[q], Attention { source, scale: 0.25, window: Some(8), softcap: Some(50.0) });
    let y = g.reshape(y, &[32]);
    let o = w(&mut g, "layers.0.o", &[32, 32]);
    let y = g.linear(y, o);
    let h = g.add(h, y);
    let norm = w(&mut g, "layers.0.ffn_norm", &[32]);
    let x = g.rms_norm(h, norm, 1e-6);
    let dense = gated(&mut g, x, &mut w);
    let experts = experts(&mut g, x, &mut w);
    let y = g.add(dense, experts);
    let h = g.add(h, y);
    let h = g.select_rows(h, rows);
    let x = g.rms_norm_unscaled(h, 1e-6);
    let logits = g.linear(x, table);
    let logits = g.unary(logits, Unary::Softcap(30.0));
    let best = g.argmax(logits);
    g.finish(&[best]).unwrap()
}

type MakeWeight<'a> = dyn FnMut(&mut Builder, &str, &[usize]) -> ValueId + 'a;

fn gated(g: &mut Builder, x: ValueId, w: &mut MakeWeight) -> ValueId {
    let gate_up = w(g, "layers.0.gate_up", &[96, 32]);
    let gate_up = g.linear(x, gate_up);
    let (gate, up) = (g.slice(gate_up, 0..48), g.slice(gate_up, 48..96));
    let gate = g.unary(gate, Unary::GeluTanh);
    let y = g.mul(gate, up);
    let down = w(g, "layers.0.down", &[32, 48]);
    g.linear(y, down)
}

fn experts(g: &mut Builder, x: ValueId, w: &mut MakeWeight) -> ValueId {
    let router = w(g, "layers.0.router", &[4, 32]);
    let logits = g.linear(x, router);
    let (experts, weights) = g.router_topk(logits, RouterTopK { k: 2, gating: Gating::SOFTMAX_CHOSEN });
    let gate = w(g, "layers.0.experts.gate", &[4, 16, 32]);
    let up = w(g, "layers.0.experts.up", &[4, 16, 32]);
    let down = w(g, "layers.0.experts.down", &[4, 32, 16]);
    let (gate, up) = (g.expert_linear(x, experts, gate), g.expert_linear(x, experts, up));
    let gate = g.unary(gate, Unary::Silu);
    let y = g.mul(gate, up);
    let y = g.expert_linear(y, experts, down);
    let weights = g.reshape(weights, &[2, 1]);
    let y = g.mul(y, weights);
    g.sum(y, 1)
}

#[test]
fn graph_listing() {
    insta::assert_snapshot!(print::graph(&layer()));
}

#[test]
fn schedule_listing() {
    let graph = layer();
    insta::assert_snapshot!(print::schedule(&graph, &Schedule::new(&graph, Pattern::ALL)));
}
