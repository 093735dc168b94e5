//! Checks of steps that fail while they run, alone and within a chain.

use std::sync::Arc;

use crate::chain::{Chain, Finish, Flow, RowDraw};
use crate::device::{Backend, DeviceError, KvType, Precision};
use crate::op::{Attention, Cast, Embed, KvSource};
use crate::sampling::{DrawRules, Sampler, SamplingParams};
use crate::step::{Outs, Segment, Step};
use crate::{Builder, CacheSpec, DType, Graph, Input};

use super::{Random, Running, assert_same_bits, weight};

const VOCAB: usize = 20;
const HEAD_DIM: usize = 8;
/// A token that no step can compute, because a computed number is outside its table.
const BROKEN: u32 = 7;

/// Checks steps that fail while they run, because a computed number is outside its table. The error must say so, tokens drawn
/// before must be right, and the program and its cache must go on as if the step had not been run.
///
/// # Panics
///
/// If the device behaves in another way.
pub fn check_failed_steps(device: &dyn Backend) {
    let label = device.info().description;
    let graph = Arc::new(counting());
    let mut running = Running::new(device, &graph, Precision::Reference, KvType::F32);
    let most = running.program.max_chain(false);
    assert!(most > 5, "{label}: chains of {most} tokens");
    let is_failure = |error: &DeviceError| match error {
        DeviceError::BadStep { what } => what.ends_with("99, expected below 20"),
        _ => false,
    };

    let texts = [running.segment(1, &[3]), running.segment(2, &[10])];
    let first = running.run(texts.to_vec());
    let (result, histories) = chain(&mut running, &texts, most.min(9));
    assert!(result.as_ref().is_err_and(is_failure), "{label}: {result:?}");
    assert_eq!(histories, [[3, 4, 5, 6, BROKEN], [10, 11, 12, 13, 14]], "{label}: tokens before the failure");

    let broken = running.segment(3, &[5, BROKEN]);
    let alone = running.program.run(&Step { segments: vec![broken] }, &mut *running.pool).map(drop);
    assert!(alone.as_ref().is_err_and(is_failure), "{label}: {alone:?}");

    assert_same_bits(&running.run(texts.to_vec()), &first, &label);
    let (result, histories) = chain(&mut running, &texts, 3);
    assert_eq!(result, Ok(Finish { lengths: vec![3, 3] }), "{label}");
    assert_eq!(histories, [[3, 4, 5, 6], [10, 11, 12, 13]], "{label}");
    let mut next = texts[1].clone();
    next.first_index = 3;
    next.set_tokens(&[13]);
    let found = running.run(vec![next]);
    let fresh =
        Running::new(device, &graph, Precision::Reference, KvType::F32).step(&[(1, &[10, 11, 12, 13])]);
    assert_same_bits(&found, &fresh[3 * VOCAB..], &label);
}

/// A model that counts: the likeliest token after *t* is *t + 1*. A little attention makes logits depend on the cache. The next
/// token is looked up by a computed number, which for [`BROKEN`] is outside the table.
fn counting() -> Graph {
    let mut random = Random::new(4);
    let mut b = Builder::new();
    let (ids, rows) = (b.input(Input::TokenIds), b.input(Input::OutRows));
    let numbers: Vec<f32> =
        (0..VOCAB).map(|id| if id == BROKEN as usize { 99.0 } else { id as f32 }).collect();
    let mut next = vec![0.0; VOCAB * VOCAB];
    for id in 0..VOCAB {
        next[id * VOCAB + (id + 1) % VOCAB] = 100.0;
    }
    let numbers = b.weight(Ok(weight("numbers", &[VOCAB, 1], &numbers)));
    let next = b.weight(Ok(weight("next", &[VOCAB, VOCAB], &next)));
    let table = b.weight(Ok(random.weight("table", &[VOCAB, HEAD_DIM])));
    let out = b.weight(Ok(random.weight("out", &[VOCAB, HEAD_DIM])));
    let x = b.embed(ids, table);
    let x = b.reshape(x, &[1, HEAD_DIM]);
    let cache = b.cache(CacheSpec::new(1, HEAD_DIM, None));
    b.cache_write(x, x, cache);
    let attention = Attention { source: KvSource::Cache(cache), scale: 0.5, window: None, softcap: None };
    let y = b.attention(&[x], attention);
    let y = b.reshape(y, &[HEAD_DIM]);
    let y = b.linear(y, out);
    let number = b.embed(ids, numbers);
    let number = b.sum(number, 1);
    let number = b.apply(Cast { dtype: DType::U32 }, &[number])[0];
    let likeliest = b.apply(Embed, &[number, next])[0];
    let logits = b.add(y, likeliest);
    let logits = b.select_rows(logits, rows);
    b.finish(&[logits]).expect("a graph of fitting shapes")
}

/// Runs a chain of the likeliest tokens; returns its result, and the texts with the tokens that the sink received.
fn chain(
    running: &mut Running,
    texts: &[Segment; 2],
    limit: usize,
) -> (Result<Finish, DeviceError>, Vec<Vec<u32>>) {
    let mut step = Step { segments: texts.to_vec() };
    step.segments.iter_mut().for_each(|segment| segment.outs = Outs::Last);
    let params = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    let rules = DrawRules::new(params).expect("parameters within their range");
    let mut histories: Vec<Vec<u32>> = texts.iter().map(|segment| segment.tokens.clone()).collect();
    let row = |history| RowDraw { rules: &rules, position: 1, history, limit, stops: &[], mask: None };
    let mut rows: Vec<RowDraw<'_>> = histories.iter_mut().map(row).collect();
    let mut sampler = Sampler::default();
    let mut sink = |_, _| Flow::Continue;
    let chain = Chain { rows: &mut rows, sampler: &mut sampler, sink: &mut sink };
    let result = running.program.run_chain(&mut step, &mut *running.pool, chain);
    (result, histories)
}
