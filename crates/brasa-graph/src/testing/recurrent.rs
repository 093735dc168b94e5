//! A small decoder with recurrent layers, and checks of a device's states.

use std::sync::Arc;

use crate::device::{Backend, DeviceError, KvType, Precision};
use crate::op::{Attention, HeadSharing, KvSource, Rope, RopeLayout, ScanRule, StateScan, Unary};
use crate::step::{PageId, Segment, Step};
use crate::{Builder, CacheSpec, DraftTree, Graph, Input, StatePages, ValueId};

use super::{Random, Running, Tolerance, assert_same_bits, check_texts, tokens, weight};

const VOCAB: usize = 150;
const HIDDEN: usize = 48;
const TAPS: usize = 4;

/// A small decoder with random f32 weights and recurrent layers.
///
/// Its layers are a short convolution, a gated delta rule (key heads shared by [`HeadSharing::Tiled`]), a recurrence
/// that adds ([`HeadSharing::Grouped`]) and, if chosen, attention.
#[derive(Clone, Copy, Debug)]
pub struct Recurrent {
    /// True for an attention layer behind the recurrent layers.
    pub attention: bool,
    /// Elements of a key of the recurrences.
    pub key_dim: usize,
    /// Elements of a value of the recurrences.
    pub value_dim: usize,
}

impl Recurrent {
    /// A decoder with attention and recurrences of uneven sizes.
    pub fn small() -> Self {
        Self { attention: true, key_dim: 12, value_dim: 20 }
    }

    /// The decoder as a graph from token ids below 150 to logits of the rows with outputs. `seed` determines the
    /// weights.
    ///
    /// # Panics
    ///
    /// If the graph does not fit together: a bug of this crate.
    pub fn graph(&self, seed: u64) -> Graph {
        let mut b = Building { b: Builder::new(), random: Random::new(seed) };
        let (ids, out_rows) = (b.b.input(Input::TokenIds), b.b.input(Input::OutRows));
        let embedding = b.weight("embedding", &[VOCAB, HIDDEN], 1.0);
        let mut h = b.b.embed(ids, embedding);
        h = b.convolution(h);
        h = b.recurrence(h, self, "delta", ScanRule::Delta, HeadSharing::Tiled);
        h = b.recurrence(h, self, "add", ScanRule::Add, HeadSharing::Grouped);
        if self.attention {
            h = b.attention(h);
        }
        let h = b.b.select_rows(h, out_rows);
        let h = b.b.rms_norm_unscaled(h, 1e-6);
        let logits = b.linear(h, "head", VOCAB);
        b.b.finish(&[logits]).expect("a recurrent decoder")
    }
}

struct Building {
    b: Builder,
    random: Random,
}

impl Building {
    fn weight(&mut self, name: &str, shape: &[usize], scale: f32) -> ValueId {
        let values = self.random.normals(shape.iter().product(), scale);
        self.b.weight(Ok(weight(name, shape, &values)))
    }

    fn linear(&mut self, x: ValueId, name: &str, outputs: usize) -> ValueId {
        let inputs = self.b.shape(x).and_then(super::super::value::Shape::width).expect("rows");
        let w = self.weight(name, &[outputs, inputs], (inputs as f32).sqrt().recip());
        self.b.linear(x, w)
    }

    fn convolution(&mut self, h: ValueId) -> ValueId {
        let x = self.b.rms_norm_unscaled(h, 1e-6);
        let x = self.linear(x, "conv.in", HIDDEN);
        let taps = self.weight("conv.taps", &[HIDDEN, TAPS], 0.5);
        let state = self.b.state((TAPS - 1) * HIDDEN);
        let y = self.b.short_conv(x, taps, state);
        let y = self.b.unary(y, Unary::Silu);
        let y = self.linear(y, "conv.out", HIDDEN);
        self.b.add(h, y)
    }

    fn recurrence(
        &mut self,
        h: ValueId,
        spec: &Recurrent,
        name: &str,
        rule: ScanRule,
        sharing: HeadSharing,
    ) -> ValueId {
        let (key_heads, heads) = (2, 4);
        let &Recurrent { key_dim, value_dim, .. } = spec;
        let x = self.b.rms_norm_unscaled(h, 1e-6);
        let mut keys = |part: &str| {
            let x = self.linear(x, &format!("{name}.{part}"), key_heads * key_dim);
            let x = self.b.reshape(x, &[key_heads, key_dim]);
            let x = self.b.rms_norm_unscaled(x, 1e-6);
            self.b.unary(x, Unary::Scale((key_dim as f32).sqrt().recip()))
        };
        let (q, k) = (keys("q"), keys("k"));
        let v = self.linear(x, &format!("{name}.v"), heads * value_dim);
        let v = self.b.reshape(v, &[heads, value_dim]);
        let mut gate = |part: &str| {
            let x = self.linear(x, &format!("{name}.{part}"), heads);
            self.b.unary(x, Unary::Sigmoid)
        };
        let mut inputs = vec![q, k, v, gate("decay")];
        if rule == ScanRule::Delta {
            inputs.push(gate("beta"));
        }
        let state = Some(self.b.state(heads * key_dim * value_dim));
        let y = self.b.state_scan(&inputs, StateScan { state, rule, sharing });
        let y = self.b.reshape(y, &[heads * value_dim]);
        let y = self.linear(y, &format!("{name}.out"), HIDDEN);
        self.b.add(h, y)
    }

    fn attention(&mut self, h: ValueId) -> ValueId {
        let positions = self.b.input(Input::Positions);
        let frequencies = self.b.weight(Ok(weight("frequencies", &[4], &[1.0, 0.3, 0.1, 0.03])));
        let rope = Rope { layout: RopeLayout::SplitHalf, rotary_dim: 8, magnitude: 1.0 };
        let x = self.b.rms_norm_unscaled(h, 1e-6);
        let mut part = |name: &str, heads: usize| {
            let x = self.linear(x, name, heads * 16);
            self.b.reshape(x, &[heads, 16])
        };
        let (q, k, v) = (part("q", 4), part("k", 2), part("v", 2));
        let q = self.b.rope(q, positions, frequencies, rope);
        let k = self.b.rope(k, positions, frequencies, rope);
        let cache = self.b.cache(CacheSpec::new(2, 16, None));
        self.b.cache_write(k, v, cache);
        let source = KvSource::Cache(cache);
        let y = self.b.attention(&[q], Attention { source, scale: 0.25, window: None, softcap: None });
        let y = self.b.reshape(y, &[64]);
        let y = self.linear(y, "attention.out", HIDDEN);
        self.b.add(h, y)
    }
}

/// Checks the recurrent states of a device.
///
/// - Results are near those of the reference.
/// - A text has equal bits alone, beside other texts, in chunks, behind drafts that were not kept, after a return to an
///   earlier state, after a step that runs twice, and in another pool.
/// - Branches of draft trees equal plain texts.
/// - Bad state pages are refused.
///
/// # Panics
///
/// If a check fails.
pub fn check_states(device: &dyn Backend, precision: Precision) {
    for (key_dim, value_dim) in [(12, 20), (128, 128), (1, 1), (64, 48)] {
        let spec = Recurrent { attention: true, key_dim, value_dim };
        check_texts(device, &Arc::new(spec.graph(3)), precision, Tolerance(1e-4));
    }
    check_returns(device, precision);
    check_branches(device, precision);
    check_bad_pages(device);
}

/// Texts that go on from an earlier state, steps that run twice, and states that move to another pool.
fn check_returns(device: &dyn Backend, precision: Precision) {
    let graph = Arc::new(Recurrent { attention: false, ..Recurrent::small() }.graph(4));
    let text = tokens(40, 18);
    let mut running = Running::new(device, &graph, precision, KvType::F32);
    let whole = running.step(&[(1, &text)]);
    let mut first = running.segment(2, &text[..20]);
    let kept = running.state_page();
    first.states.to.insert(0, (6, kept));
    let step = |segment: &Segment| vec![segment.clone()];
    let once = running.run(step(&first));
    assert_same_bits(&running.run(step(&first)), &once, "a step that ran twice");
    assert_same_bits(&once, &whole[..20 * VOCAB], "the first rows");
    // From the row in the middle whose states were kept, several times.
    let target = running.state_page();
    let mut back = Segment { first_index: 7, ..first.clone() };
    back.set_tokens(&text[7..]);
    back.states = StatePages { from: Some(kept), to: vec![(32, target)], spares: Vec::new() };
    for _ in 0..2 {
        assert_same_bits(&running.run(step(&back)), &whole[7 * VOCAB..], "from an earlier state");
    }
    // Without pages to write to, nothing is kept.
    back.states.to.clear();
    assert_same_bits(&running.run(step(&back)), &whole[7 * VOCAB..], "nothing kept");
    let mut bytes = vec![7; running.pool.spec().states.page_bytes()];
    running.pool.read_state_page(kept, &mut bytes).expect("a page");
    let mut other = Running::new(device, &graph, precision, KvType::F32);
    other.pool.reserve_state_pages(2).expect("pages");
    other.pool.write_state_page(PageId::from_index(1), &bytes).expect("a page");
    let mut again = vec![1; bytes.len()];
    other.pool.read_state_page(PageId::from_index(1), &mut again).expect("a page");
    assert!(again == bytes, "bytes of a state page");
    back.states = StatePages {
        from: Some(PageId::from_index(1)),
        to: vec![(0, PageId::from_index(0))],
        spares: Vec::new(),
    };
    assert_same_bits(&other.run(step(&back)), &whole[7 * VOCAB..], "in another pool");
    let wrong = other.pool.read_state_page(PageId::from_index(2), &mut again);
    assert_eq!(wrong, Err(DeviceError::UnknownStatePage { page: 2, pages: 2 }));
    let expected = bytes.len();
    let wrong = other.pool.write_state_page(PageId::from_index(0), &bytes[4..]);
    assert_eq!(wrong, Err(DeviceError::StatePageBytes { found: expected - 4, expected }));
}

/// Draft trees: each row equals its branch as plain text, and a text goes on from a row of a branch.
fn check_branches(device: &dyn Backend, precision: Precision) {
    let graph = Arc::new(Recurrent { attention: false, ..Recurrent::small() }.graph(5));
    let (text, drafts) = (tokens(11, 19), tokens(24, 20));
    for seed in 0..4 {
        let mut random = Random::new(seed);
        let parents: Vec<Option<u32>> =
            (0..drafts.len()).map(|row| random.below(row + 1).checked_sub(1).map(|row| row as u32)).collect();
        let mut running = Running::new(device, &graph, precision, KvType::F32);
        running.step(&[(1, &text)]);
        let mut segment = running.segment(1, &drafts);
        segment.tree = Some(Arc::new(DraftTree::new(&parents).expect("a tree")));
        segment.states.to = (0..drafts.len() as u32).map(|row| (row, running.state_page())).collect();
        let found = running.run(vec![segment.clone()]);
        for row in 0..drafts.len() {
            let rows = std::iter::successors(Some(row), |&row| parents[row].map(|row| row as usize));
            let mut branch: Vec<u32> = rows.map(|row| drafts[row]).collect();
            branch.reverse();
            let plain = running.step(&[(100 + row as u64, &[&text[..], &branch, &[5, 6]].concat())]);
            let end = (text.len() + branch.len()) * VOCAB;
            assert_same_bits(&found[row * VOCAB..][..VOCAB], &plain[end - VOCAB..end], "a row of a tree");
            let mut on = Segment { first_index: text.len() + branch.len(), tree: None, ..segment.clone() };
            on.set_tokens(&[5, 6]);
            on.states = StatePages { from: segment.states.page_after(row), ..StatePages::default() };
            assert_same_bits(&running.run(vec![on]), &plain[end..], "behind a row of a tree");
        }
    }
}

/// State pages that do not exist, are used twice, or do not fit the rows.
fn check_bad_pages(device: &dyn Backend) {
    let graph = Arc::new(Recurrent::small().graph(6));
    let mut running = Running::new(device, &graph, Precision::Fast, KvType::F16);
    running.step(&[(1, &[1, 2, 3])]);
    let (good, other) = (running.segment(1, &[4, 5]), running.segment(2, &[6]));
    let (from, to) = (good.states.from, good.states.to[0].1);
    let page = |index| PageId::from_index(index);
    let refused = |running: &mut Running, states: &StatePages, message: &str| {
        let segments = vec![Segment { states: states.clone(), ..good.clone() }, other.clone()];
        let error =
            running.program.run(&Step { segments }, &mut *running.pool).map(drop).expect_err("refused");
        assert!(error.to_string().contains(message), "{error}, expected {message}");
    };
    let bad = |from, to: &[(u32, PageId)]| StatePages { from, to: to.to_vec(), spares: Vec::new() };
    refused(&mut running, &bad(None, &[(1, to)]), "has no state page to go on from at index 3");
    refused(&mut running, &bad(Some(page(9)), &[]), "has state page 9 of 3");
    refused(&mut running, &bad(from, &[(1, page(7))]), "has state page 7 of 3");
    refused(&mut running, &bad(from, &[(2, to)]), "keeps the states after row 2 of 2, out of order");
    refused(
        &mut running,
        &bad(from, &[(1, to), (0, page(2))]),
        "keeps the states after row 0 of 2, out of order",
    );
    refused(&mut running, &bad(from, &[(1, page(0))]), "uses state page 0 twice");
    refused(&mut running, &bad(from, &[(1, page(2))]), "segments 0 and 1 use state page 2, which one writes");
    let begin = Segment { states: bad(from, &[]), ..other.clone() };
    let error = running.program.run(&Step { segments: vec![begin] }, &mut *running.pool).map(drop);
    let error = error.expect_err("refused").to_string();
    assert!(error.contains("goes on from a state page at index 0"), "{error}");
    let tree = Some(Arc::new(DraftTree::new(&[None, None]).expect("a tree")));
    let branches = Segment { tree, ..good.clone() };
    running.run(vec![branches]);
    let tree = Some(Arc::new(DraftTree::new(&[None, Some(0), Some(0)]).expect("a tree")));
    let mut branches = Segment { tree, ..good.clone() };
    branches.set_tokens(&[4, 5, 6]);
    branches.states.to = vec![(2, to)];
    let error = running.program.run(&Step { segments: vec![branches] }, &mut *running.pool).map(drop);
    let error = error.expect_err("refused").to_string();
    assert!(error.contains("has row 2 of a draft tree after a row whose states it does not keep"), "{error}");
}
