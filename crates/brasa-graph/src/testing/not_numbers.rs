//! Checks of NaN and infinities: which results they may affect, and how experts are chosen among them.

use std::sync::Arc;

use brasa_formats::{Bytes, Payload, StorageFormat};

use crate::device::{Backend, KvPool, KvType, Precision};
use crate::op::{Gating, GroupScore, Groups, RouterTopK, Unary};
use crate::page::PageLayout;
use crate::reference::ReferenceBackend;
use crate::step::PageId;
use crate::{Builder, Graph, GroupId, Input, Weight, WeightPart};

use super::{Decoder, Random, Running, Tolerance, assert_same_bits, compare, tokens, weight};

/// The token with NaN in its row of the embedding.
const BROKEN: u32 = 7;

/// Checks that routers choose like the reference among logits that are NaN, infinite or equal, and that a mixture of experts
/// behind them gives NaN in the rows of such logits and nowhere else. Experts are stored in `format`.
///
/// # Panics
///
/// If the device chooses other experts than the reference.
pub fn check_routers(device: &dyn Backend, precision: Precision, format: StorageFormat) {
    for (experts, k) in [(5_usize, 2), (40, 4), (3, 3)] {
        let kept_groups = |count| Groups { count, kept: count / 2, score: GroupScore::TopTwo };
        let groups = experts.is_multiple_of(4).then(|| kept_groups(4));
        let normed = Gating { groups, norm_eps: Some(1e-6), scale: 2.5, ..Gating::SIGMOID };
        let grouped = Gating { groups, ..Gating::SOFTMAX_ALL };
        for gating in [Gating::SOFTMAX_ALL, Gating::SOFTMAX_CHOSEN, Gating::SIGMOID, normed, grouped] {
            let label = format!("{k} of {experts} experts, {gating:?}, {format}, {}", device.info().name);
            let logits = odd_logits(experts);
            let [choice, whole] = [false, true]
                .map(|is_whole| mixture(&logits, experts, RouterTopK { k, gating }, is_whole, format));
            let ids: Vec<u32> = (0..(logits.len() / experts) as u32).collect();
            // All rows together, and few.
            for ids in [&ids[..], &ids[..3]] {
                for (row, (found, expected)) in rows_of(device, precision, &choice, ids).enumerate() {
                    let logits = &logits[row * experts..][..experts];
                    for (a, b) in found.iter().zip(&expected) {
                        let same = (a - b).abs() < 1e-5 || (a.is_nan() && b.is_nan());
                        assert!(same, "{label}: {found:?}, expected {expected:?} of {logits:?}");
                    }
                }
                for (row, (found, expected)) in rows_of(device, precision, &whole, ids).enumerate() {
                    let logits = &logits[row * experts..][..experts];
                    if expected.iter().all(|x| x.is_finite()) {
                        let comparison = compare(&found, &expected);
                        assert!(comparison.within(Tolerance::BITS_16), "{label}, {logits:?}: {comparison}");
                    } else {
                        assert!(found.iter().all(|x| x.is_nan()), "{label}: {found:?} of {logits:?}");
                    }
                }
            }
        }
    }
}

/// For each row, the graph's result on a device and on the reference.
fn rows_of(
    device: &dyn Backend,
    precision: Precision,
    graph: &Arc<Graph>,
    ids: &[u32],
) -> impl Iterator<Item = (Vec<f32>, Vec<f32>)> {
    let run = |device: &dyn Backend, precision| {
        let all = Running::new(device, graph, precision, KvType::F32).step(&[(1, ids)]);
        all.chunks(all.len() / ids.len()).map(<[f32]>::to_vec).collect::<Vec<_>>()
    };
    run(device, precision).into_iter().zip(run(&ReferenceBackend, Precision::Reference))
}

/// The logits of each row, with NaN and infinities in some.
fn odd_logits(experts: usize) -> Vec<f32> {
    let (nan, infinity) = (f32::NAN, f32::INFINITY);
    let mut random = Random::new(5);
    let mut logits = Vec::new();
    for row in 0..20 {
        let mut of_row = random.normals(experts, 1.0);
        let last = experts - 1;
        match row {
            1 => of_row.fill(nan),
            2 => of_row[0] = nan,
            3 => of_row[last] = nan,
            4 => of_row[..last].fill(nan),
            5 => of_row.fill(f32::NEG_INFINITY),
            6 => of_row[last] = infinity,
            7 => of_row.fill(infinity),
            8 => of_row.fill(2.0),
            9 => of_row[1..].fill(f32::NEG_INFINITY),
            10 => (of_row[0], of_row[last]) = (-nan, infinity),
            11 => (of_row[0], of_row[last]) = (nan, f32::NEG_INFINITY),
            12 => (of_row[0], of_row[1]) = (-0.0, 0.0),
            _ => {}
        }
        logits.extend(of_row);
    }
    logits
}

/// A mixture of experts over looked-up logits if `is_whole`; otherwise the numbers of the chosen experts and their weights, side
/// by side.
fn mixture(
    logits: &[f32],
    experts: usize,
    router: RouterTopK,
    is_whole: bool,
    format: StorageFormat,
) -> Arc<Graph> {
    const WIDTH: usize = 64;
    let mut random = Random::new(9);
    let mut b = Builder::new();
    let rows = logits.len() / experts;
    let ids = b.input(Input::TokenIds);
    let table = b.weight(Ok(weight("logits", &[rows, experts], logits)));
    let of_row = b.embed(ids, table);
    let (chosen, shares) = b.router_topk(of_row, router);
    if !is_whole {
        // Numbers as floats: the elements of a table that is 0, 1, 2, …
        let numbers: Vec<f32> = (0..experts).map(|i| i as f32).collect();
        let numbers = b.weight(Ok(weight("numbers", &[experts], &numbers)));
        let numbers = b.gather(numbers, chosen);
        let y = b.concat(numbers, shares, 1);
        return Arc::new(b.finish(&[y]).expect("a graph of fitting shapes"));
    }
    let table = b.weight(Ok(random.weight("rows", &[rows, WIDTH])));
    let x = b.embed(ids, table);
    let mut of_experts = |b: &mut Builder, name: &str| {
        let dense = random.weight(name, &[experts, WIDTH, WIDTH]);
        b.weight(Ok(super::stored_as(&dense, format)))
    };
    let (gate, up, down) = (of_experts(&mut b, "gate"), of_experts(&mut b, "up"), of_experts(&mut b, "down"));
    let (gate, up) = (b.expert_linear(x, chosen, gate), b.expert_linear(x, chosen, up));
    let gate = b.unary(gate, Unary::Silu);
    let y = b.mul(gate, up);
    let y = b.expert_linear(y, chosen, down);
    let each = b.reshape(shares, &[router.k, 1]);
    let y = b.mul(y, each);
    let y = b.sum(y, 1);
    Arc::new(b.finish(&[y]).expect("a graph of fitting shapes"))
}

/// The decoder's graph with NaN in one row of its embedding.
///
/// # Panics
///
/// If the graph has no embedding that is stored in whole rows.
pub fn with_broken_token(decoder: &Decoder, seed: u64) -> Graph {
    let mut graph = decoder.graph(seed);
    for weight in graph.weights.iter_mut().filter(|weight| weight.name == "embedding") {
        let part = &weight.parts[0];
        let mut tensor = part.tensor.clone();
        let Payload::Blocks(bytes) = &tensor.payload else { panic!("an embedding in blocks") };
        let mut bytes = bytes.to_vec();
        let row_bytes = bytes.len() / weight.rows();
        bytes[BROKEN as usize * row_bytes..][..row_bytes].fill(0xff);
        tensor.payload = Payload::Blocks(Bytes::from(bytes));
        *weight = Arc::new(
            Weight::new("embedding", &weight.shape, vec![WeightPart::whole(tensor)]).expect("one whole part"),
        );
    }
    graph
}

/// Checks that a text of NaN changes no bit of other texts in the same steps: in steps of many rows, of few, and of one each.
///
/// # Panics
///
/// If a bit of another text changes, or if the text itself has a result that is a number.
pub fn check_company(device: &dyn Backend, decoder: &Decoder, precision: Precision, kv: KvType) {
    let label = format!("{kv:?} on {}", device.info().name);
    let graph = Arc::new(with_broken_token(decoder, 3));
    let others = |text: Vec<u32>| -> Vec<u32> {
        text.into_iter().map(|token| if token == BROKEN { 8 } else { token }).collect()
    };
    let run = |first: u32| {
        let mut running = Running::new(device, &graph, precision, kv);
        let mut results = Vec::new();
        for (step, rows) in [[20, 18, 3], [1, 1, 1], [2, 1, 17], [1, 1, 1]].into_iter().enumerate() {
            let seed = 10 * step as u64;
            let texts = [1, 2, 3].map(|id| others(tokens(rows[id - 1], seed + id as u64)));
            let mut second = texts[1].clone();
            second[0] = first;
            results.push((rows, running.step(&[(1, &texts[0]), (2, &second), (3, &texts[2])])));
        }
        results
    };
    let vocab = decoder.vocab;
    for (step, ((rows, found), (_, expected))) in run(BROKEN).into_iter().zip(run(9)).enumerate() {
        let of_text = |all: &[f32], text: usize| -> Vec<f32> {
            let first: usize = rows[..text].iter().sum();
            let of_text = &all[first * vocab..][..rows[text] * vocab];
            // The broken row is a column of the head too.
            let kept = of_text.iter().enumerate().filter(|(i, _)| i % vocab != BROKEN as usize);
            kept.map(|(_, &x)| x).collect()
        };
        for text in [0, 2] {
            let what = format!("{label}, step {step}, text {text} beside one without numbers");
            assert_same_bits(&of_text(&found, text), &of_text(&expected, text), &what);
        }
        assert!(of_text(&found, 1).iter().all(|x| x.is_nan()), "{label}, step {step}: a NaN got lost");
    }
}

/// Checks that the contents of pages after the end of a text change no bit of the text: every page is first filled with bits that
/// are NaN in every type.
///
/// # Panics
///
/// If a bit changes.
pub fn check_behind_texts(device: &dyn Backend, decoder: &Decoder, precision: Precision, kv: KvType) {
    let label = format!("heads of {}, {kv:?} on {}", decoder.head_dim, device.info().name);
    let graph = Arc::new(decoder.graph(4));
    let run = |is_dirty: bool| {
        let mut running = Running::new(device, &graph, precision, kv);
        if is_dirty {
            fill_with_nan(&mut *running.pool, 8);
        }
        let mut results = Vec::new();
        for rows in [[20, 3], [1, 1], [4, 17], [1, 1]] {
            let texts = rows.map(|rows| tokens(rows, rows as u64));
            results.extend(running.step(&[(1, &texts[0]), (2, &texts[1])]));
        }
        // One row alone.
        results.extend(running.step(&[(1, &[3])]));
        results
    };
    assert_same_bits(&run(true), &run(false), &format!("{label}, behind the texts' ends"));
}

fn fill_with_nan(pool: &mut dyn KvPool, pages: usize) {
    for number in 0..pool.spec().groups.len() {
        let group = GroupId(number as u32);
        let bytes = PageLayout::of(pool.spec(), group).expect("a group of the pool").size_bytes();
        pool.reserve(group, pages).expect("pages");
        let noise = vec![0xff; bytes];
        for page in 0..pages {
            pool.write_page(group, PageId::from_index(page), &noise).expect("a page of the pool");
        }
    }
}
