//! Attention of many rows as products of bf16 tiles, against the reference interpreter and beside the same in f32.

use std::sync::Arc;

use crate::common::running::{Running, assert_same_bits, device, tokens};
use crate::common::sets::rounding_tiles;
use brasa_cpu::Isa;
use brasa_graph::device::{KvType, Precision};
use brasa_graph::op::{Attention, KvSource};
use brasa_graph::reference::ReferenceBackend;
use brasa_graph::testing::{Random, Tolerance, compare, weight};
use brasa_graph::{Builder, CacheSpec, Graph, Input, ValueWidth};

const VOCAB: usize = 150;
/// Rows of this token have keys and values that are no numbers.
const POISON: u32 = VOCAB as u32;

#[derive(Clone, Copy, Debug)]
struct Shape {
    head_dim: usize,
    /// Values of another width than keys, or within them.
    value: Option<ValueWidth>,
    sinks: bool,
    kv_heads: usize,
    /// Query heads of a KV head.
    share: usize,
    scale: f32,
    window: Option<usize>,
    softcap: Option<f32>,
}

impl Shape {
    /// Queries, keys and values are looked up; the heads' results are what comes out.
    fn graph(self, seed: u64) -> Arc<Graph> {
        let Self { head_dim, value, sinks, kv_heads, share, scale, window, softcap } = self;
        let value = value.unwrap_or(ValueWidth::Own(head_dim));
        let mut random = Random::new(seed);
        let mut b = Builder::new();
        let ids = b.input(Input::TokenIds);
        let mut rows = |name: &str, heads: usize, head_dim: usize, poison: f32| {
            let width = heads * head_dim;
            let mut values = random.normals(VOCAB * width, 1.0);
            values.resize((VOCAB + 1) * width, poison);
            let table = b.weight(Ok(weight(name, &[VOCAB + 1, width], &values)));
            let rows = b.embed(ids, table);
            b.reshape(rows, &[heads, head_dim])
        };
        let q = rows("q", kv_heads * share, head_dim, 1.0);
        let k = rows("k", kv_heads, head_dim, f32::NAN);
        let v = (!value.is_prefix()).then(|| rows("v", kv_heads, value.dim(), f32::NAN));
        let cache = b.cache(CacheSpec { kv_heads, key_dim: head_dim, value, window });
        match v {
            Some(v) => b.cache_write(k, v, cache),
            None => b.cache_write_keys(k, cache),
        }
        let mut operands = vec![q];
        if sinks {
            let sinks = random.normals(kv_heads * share, 1.0);
            operands.push(b.weight(Ok(weight("sinks", &[kv_heads * share], &sinks))));
        }
        let o = b.attention(&operands, Attention { source: KvSource::Cache(cache), scale, window, softcap });
        let o = b.reshape(o, &[kv_heads * share * value.dim()]);
        Arc::new(b.finish(&[o]).unwrap())
    }
}

/// Rows that each step brings: of several sequences, in part few, in part past the end of a page.
const STEPS: [&[(u64, usize)]; 3] = [&[(1, 203), (2, 31)], &[(2, 1), (1, 90), (3, 47)], &[(2, 260), (1, 1)]];

/// The results of every row, step by step.
fn run(running: &mut Running) -> Vec<f32> {
    let mut results = Vec::new();
    for (step, parts) in STEPS.iter().enumerate() {
        let rows: Vec<(u64, Vec<u32>)> =
            parts.iter().map(|&(id, rows)| (id, tokens(rows, 10 * step as u64 + id))).collect();
        let parts: Vec<(u64, &[u32])> = rows.iter().map(|(id, tokens)| (*id, &tokens[..])).collect();
        results.extend(running.step(&parts));
    }
    results
}

fn check(shape: Shape, kv: KvType, isa: Isa, seed: u64) {
    let graph = shape.graph(seed);
    let expected = run(&mut Running::new(&ReferenceBackend, &graph, Precision::Reference, kv));
    let label = format!("{shape:?} {kv:?} {}", isa.name());
    let on = |threads, isa| run(&mut Running::new(&device(threads, isa), &graph, Precision::Fast, kv));
    let found = on(1, isa);
    let comparison = compare(&found, &expected);
    assert!(comparison.within(Tolerance::BITS_16), "{label}: {comparison}");
    assert_same_bits(&on(3, isa), &found, &format!("{label}, three threads"));
    let exact = compare(&on(1, isa.without_bf16()), &expected);
    assert!(exact.within(Tolerance::F32), "{label} in f32: {exact}");
    assert!(comparison.relative_l2 > 1e-4, "{label}: not rounded, {comparison}");
}

#[test]
fn every_shape_and_kv_type_stays_within_its_bound() {
    let types = [KvType::F32, KvType::F16, KvType::BF16, KvType::Q8];
    for isa in rounding_tiles() {
        for (i, head_dim) in [16, 64, 80, 128, 256].into_iter().enumerate() {
            for (j, kv) in types.into_iter().enumerate() {
                let share = [1, 2, 4, 8][(i + j) % 4];
                let shape = Shape {
                    head_dim,
                    value: None,
                    sinks: false,
                    kv_heads: if share < 4 { 2 } else { 1 },
                    share,
                    scale: 1.5 / (head_dim as f32).sqrt(),
                    window: [None, Some(70), None, Some(300), Some(17)][(i + 2 * j) % 5],
                    softcap: [None, Some(2.0), None][(i + j) % 3],
                };
                check(shape, kv, isa, (i * 4 + j) as u64);
            }
        }
    }
}

#[test]
fn odd_widths_and_scales_that_turn_scores_around() {
    for isa in rounding_tiles() {
        for (seed, (head_dim, scale)) in [(1, 0.5), (17, -0.3), (33, 0.0), (47, 2.0)].into_iter().enumerate()
        {
            let shape = Shape {
                head_dim,
                value: None,
                sinks: false,
                kv_heads: 1,
                share: 3,
                scale,
                window: None,
                softcap: None,
            };
            for kv in [KvType::F16, KvType::Q8] {
                check(shape, kv, isa, 100 + seed as u64);
            }
        }
    }
}

#[test]
fn sinks_and_values_of_other_widths_stay_within_their_bound() {
    let values = [
        (64, None),
        (48, Some(ValueWidth::Own(20))),
        (20, Some(ValueWidth::Own(48))),
        (72, Some(ValueWidth::PrefixOfKey(56))),
        (576, Some(ValueWidth::PrefixOfKey(512))),
    ];
    for isa in rounding_tiles() {
        for (i, (head_dim, value)) in values.into_iter().enumerate() {
            for (j, kv) in [KvType::F32, KvType::F16, KvType::BF16, KvType::Q8].into_iter().enumerate() {
                let shape = Shape {
                    head_dim,
                    value,
                    sinks: i == 0 || (i + j) % 2 == 0,
                    kv_heads: if head_dim == 576 { 1 } else { 2 },
                    share: 4,
                    scale: 1.5 / (head_dim as f32).sqrt(),
                    window: [None, Some(70), Some(300)][(i + 2 * j) % 3],
                    softcap: [None, Some(2.0), None][(i + j) % 3],
                };
                check(shape, kv, isa, (200 + i * 4 + j) as u64);
            }
        }
    }
}

/// A row's result is its own, whichever rows are computed with it, as long as they are many.
#[test]
fn chunks_of_many_rows_are_the_whole() {
    let shape = Shape {
        head_dim: 64,
        value: None,
        sinks: false,
        kv_heads: 2,
        share: 2,
        scale: 0.1,
        window: Some(400),
        softcap: None,
    };
    let (graph, tokens) = (shape.graph(1), tokens(600, 2));
    for isa in rounding_tiles() {
        let of = |rows: &[usize]| {
            let mut running = Running::new(&device(2, isa), &graph, Precision::Fast, KvType::F16);
            running.chunked(1, &tokens, rows)
        };
        let whole = of(&[600]);
        for rows in [&[200][..], &[57, 301, 33, 209]] {
            assert_same_bits(&of(rows), &whole, &format!("{} in steps of {rows:?}", isa.name()));
        }
    }
}

/// Values of a page behind the last row, left by rows that were taken back, are never looked at.
#[test]
fn slots_that_no_row_sees_may_hold_anything() {
    for kv in [KvType::F32, KvType::F16, KvType::BF16] {
        for isa in rounding_tiles() {
            let shape = Shape {
                head_dim: 48,
                value: None,
                sinks: false,
                kv_heads: 1,
                share: 2,
                scale: 0.2,
                window: None,
                softcap: None,
            };
            let mut running = Running::new(&device(1, isa), &shape.graph(5), Precision::Fast, kv);
            let rows = tokens(40 + 28, 6);
            let expected = running.chunked(1, &rows, &[40, 28]);
            let clean = running.step(&[(2, &rows[..40])]);
            running.step(&[(2, &[POISON; 100])]);
            running.sequences.truncate(2, 40);
            let found = [clean, running.step(&[(2, &rows[40..])])].concat();
            assert_same_bits(&found, &expected, &format!("{kv:?} {}", isa.name()));
        }
    }
}
