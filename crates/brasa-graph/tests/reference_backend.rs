//! The reference device as an engine sees it: steps, segments, pages, refusals.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::ops::ControlFlow;
use std::sync::Arc;

use brasa_graph::device::{
    Backend, DeviceError, KvPool, KvPoolSpec, KvType, Precision, Program, ProgramLimits,
};
use brasa_graph::op::{Attention, KvSource, Rope, RopeLayout, Unary};
use brasa_graph::reference::ReferenceBackend;
use brasa_graph::step::{Outs, Step};
use brasa_graph::testing::{Random, Sequences, weight};
use brasa_graph::{Builder, CacheSpec, Graph, Input, ValueId};

const VOCAB: usize = 31;
const WIDTH: usize = 24;

/// Two layers, one with a window: 3 heads over 1 KV head of 8.
fn small_model() -> Graph {
    let mut g = Builder::new();
    let mut random = Random::new(7);
    let mut w = |g: &mut Builder, name: &str, shape: &[usize]| {
        let weight = random.weight(name, shape);
        g.weight(Ok(weight))
    };
    let (ids, positions, rows) =
        (g.input(Input::TokenIds), g.input(Input::Positions), g.input(Input::OutRows));
    let table = w(&mut g, "embed", &[VOCAB, WIDTH]);
    let frequencies = g.weight(Ok(weight("rope", &[4], &[1.0, 0.1, 0.01, 0.001])));
    let mut h = g.embed(ids, table);
    for window in [None, Some(5)] {
        let cache = g.cache(CacheSpec { kv_heads: 1, head_dim: 8, window });
        let heads = |g: &mut Builder, x: ValueId, range: std::ops::Range<usize>| {
            let heads = range.len() / 8;
            let part = g.slice(x, range);
            g.reshape(part, &[heads, 8])
        };
        let x = g.rms_norm_unscaled(h, 1e-6);
        let qkv_w = w(&mut g, "qkv", &[40, WIDTH]);
        let qkv = g.linear(x, qkv_w);
        let (q, k, v) = (heads(&mut g, qkv, 0..24), heads(&mut g, qkv, 24..32), heads(&mut g, qkv, 32..40));
        let rope = Rope { layout: RopeLayout::SplitHalf, rotary_dim: 8, magnitude: 1.0 };
        let (q, k) = (g.rope(q, positions, frequencies, rope), g.rope(k, positions, frequencies, rope));
        g.cache_write(k, v, cache);
        let attention = Attention { source: KvSource::Cache(cache), scale: 0.35, window, softcap: None };
        let y = g.attention(&[q], attention);
        let y = g.reshape(y, &[WIDTH]);
        let y = g.unary(y, Unary::Silu);
        h = g.add(h, y);
    }
    let h = g.select_rows(h, rows);
    let logits = g.linear(h, table);
    g.finish(&[logits]).unwrap()
}

struct Device {
    program: Box<dyn Program>,
    pool: Box<dyn KvPool>,
    sequences: Sequences,
}

impl Device {
    fn new(dtype: KvType) -> Self {
        let (graph, backend) = (Arc::new(small_model()), ReferenceBackend);
        let weights =
            backend.upload(&graph, Precision::Reference, &mut |_| ControlFlow::Continue(())).unwrap();
        let pool = backend.kv_pool(KvPoolSpec { groups: graph.cache_groups(), dtype }).unwrap();
        let limits = ProgramLimits { max_rows: 600, max_outs: 600, max_segments: 2 };
        let program = backend.compile(graph, weights, limits).unwrap();
        Self { program, sequences: Sequences::new(&*pool), pool }
    }

    fn run(&mut self, segments: &[(u64, &[u32])]) -> Vec<f32> {
        let segments = segments
            .iter()
            .map(|&(id, tokens)| self.sequences.extend(&mut *self.pool, id, tokens, Outs::All).unwrap());
        let step = Step { segments: segments.collect() };
        self.program.run(&step, &mut *self.pool).unwrap().values.to_vec()
    }
}

fn tokens(len: usize, seed: u64) -> Vec<u32> {
    let mut random = Random::new(seed);
    (0..len).map(|_| random.below(VOCAB) as u32).collect()
}

#[test]
fn chunked_equals_whole_bitwise() {
    for dtype in [KvType::F32, KvType::F16, KvType::BF16, KvType::Q8] {
        let prompt = tokens(530, 1);
        let whole = Device::new(dtype).run(&[(1, &prompt)]);
        let mut device = Device::new(dtype);
        let mut chunked = Vec::new();
        for chunk in [&prompt[..1], &prompt[1..257], &prompt[257..300], &prompt[300..]] {
            chunked.extend(device.run(&[(1, chunk)]));
        }
        assert_eq!(whole, chunked, "{dtype:?}");
    }
}

#[test]
fn two_sequences_in_one_step_equal_each_alone_bitwise() {
    let (a, b) = (tokens(40, 2), tokens(9, 3));
    let mut both = Device::new(KvType::F16);
    let mut together = [both.run(&[(1, &a[..30]), (2, &b[..3])]), both.run(&[(2, &b[3..]), (1, &a[30..])])];
    let mut alone = Device::new(KvType::F16);
    let (a0, b0) = (alone.run(&[(1, &a[..30])]), alone.run(&[(2, &b[..3])]));
    let (b1, a1) = (alone.run(&[(2, &b[3..])]), alone.run(&[(1, &a[30..])]));
    assert_eq!(together[0], [a0, b0].concat());
    assert_eq!(together[1].split_off(0), [b1, a1].concat());
}

#[test]
fn copied_page_continues_like_its_source() {
    let prompt = tokens(20, 4);
    let mut device = Device::new(KvType::F16);
    device.run(&[(1, &prompt)]);
    device.run(&[(2, &[0])]);
    for (group, _) in device.pool.spec().groups.clone().iter().enumerate() {
        let group = brasa_graph::GroupId(group as u32);
        let page = brasa_graph::step::PageId::from_index;
        device.pool.copy_page(group, page(0), page(1));
    }
    let more = device.sequences.extend(&mut *device.pool, 1, &[5, 6], Outs::All).unwrap();
    let mut copy = more.clone();
    for table in &mut copy.pages {
        table[0] = Some(brasa_graph::step::PageId::from_index(1));
    }
    let step = Step { segments: vec![more, copy] };
    let output = device.program.run(&step, &mut *device.pool).unwrap();
    assert_eq!(output.rows(), 4);
    assert_eq!((output.row(0), output.row(1)), (output.row(2), output.row(3)));
}

#[test]
fn outs_select_rows() {
    let prompt = tokens(6, 5);
    let mut device = Device::new(KvType::F32);
    let all = device.run(&[(1, &prompt)]);
    let mut step = Step::default();
    for (id, outs) in [(2, Outs::Last), (3, Outs::None)] {
        step.segments.push(device.sequences.extend(&mut *device.pool, id, &prompt, outs).unwrap());
    }
    let output = device.program.run(&step, &mut *device.pool).unwrap();
    assert_eq!((output.width, output.values), (VOCAB, &all[5 * VOCAB..]));
}

#[test]
fn bad_steps_are_refused() {
    let mut device = Device::new(KvType::F32);
    let good = device.sequences.extend(&mut *device.pool, 1, &tokens(3, 6), Outs::Last).unwrap();
    let mut refuse = |segments: Vec<_>| match device.program.run(&Step { segments }, &mut *device.pool) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("a bad step ran"),
    };
    let with = |change: &dyn Fn(&mut brasa_graph::step::Segment)| {
        let mut segment = good.clone();
        change(&mut segment);
        vec![segment]
    };
    for (segments, expected) in [
        (with(&|s| s.tokens[1] = 31), "segment 0, row 1: token 31, expected below 31"),
        (with(&|s| s.tokens.clear()), "segment 0 has no rows"),
        (with(&|s| s.positions = Some(vec![0])), "segment 0 has 1 positions for 3 rows"),
        (
            with(&|s| s.pages.truncate(1)),
            "segment 0 has 1 block tables, expected one for each of 2 cache groups",
        ),
        (with(&|s| s.pages[1][0] = None), "segment 0, cache group 1: no page for indices 0..256"),
        (with(&|s| s.first_index = 255), "segment 0, cache group 0: no page for indices 256..512"),
        (with(&|s| s.tokens = vec![0; 601]), "step has 601 rows, at most 600 fit"),
        (vec![good.clone(); 3], "step has 3 sequences, at most 2 fit"),
        (vec![good.clone(); 2], "segments 0 and 1 write the same slots of page 0, cache group 0"),
    ] {
        let message = refuse(segments);
        assert!(message.ends_with(expected), "{message:?}, expected {expected:?}");
    }
    assert_eq!(device.program.run(&Step::default(), &mut *device.pool).unwrap().rows(), 0);
}

#[test]
fn uploads_report_progress_and_can_be_cancelled() {
    let graph = small_model();
    let mut seen = Vec::new();
    ReferenceBackend
        .upload(&graph, Precision::Fast, &mut |progress| {
            seen.push((progress.done_bytes, progress.total_bytes));
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(seen.len(), graph.weights().len());
    assert!(seen.is_sorted());
    assert_eq!(seen.last().map(|&(done, total)| done == total), Some(true));
    let cancelled = ReferenceBackend.upload(&graph, Precision::Fast, &mut |_| ControlFlow::Break(()));
    assert!(matches!(cancelled, Err(DeviceError::Cancelled)));
}

#[test]
fn profile_names_operations_and_weights() {
    let mut device = Device::new(KvType::F32);
    let segment = device.sequences.extend(&mut *device.pool, 1, &[1, 2], Outs::Last).unwrap();
    let times = device.program.profile(&Step { segments: vec![segment] }, &mut *device.pool).unwrap();
    assert_eq!(times.len(), small_model().nodes().len());
    assert!(times.iter().any(|time| time.label == "linear qkv" && time.flops == 2 * 2 * 40 * 24));
}
