//! Steps, weights, pools and graphs that a device refuses, and uploads that are cancelled.

use std::ops::ControlFlow;
use std::sync::Arc;

use brasa_formats::StorageFormat;

use crate::chain::{Chain, Finish, Flow};
use crate::device::{
    Backend, DeviceError, KvPool, KvPoolSpec, KvType, Precision, Program, ProgramLimits, UploadProgress,
};
use crate::sampling::Sampler;
use crate::step::{Outs, PAGE_POSITIONS, PageId, Step};

use super::foreign::{ForeignPool, ForeignWeights};
use super::{Decoder, Sequences};

const LIMITS: ProgramLimits = ProgramLimits { max_rows: 8, max_outs: 4, max_segments: 2 };

/// Checks the refusals of a device: bad steps, after which the program goes on; a foreign pool, foreign weights, and weights
/// that were not added; and an upload that tells its progress and is cancelled.
///
/// # Panics
///
/// If the device behaves in another way.
pub fn check_refusals(device: &dyn Backend) {
    let decoder = Decoder { windows: vec![None], ..Decoder::small(StorageFormat::Q8_0) };
    let graph = Arc::new(decoder.graph(1));
    let mut seen = Vec::new();
    let mut progress = |progress: UploadProgress| {
        seen.push((progress.done_bytes, progress.total_bytes));
        ControlFlow::Continue(())
    };
    let weights = device.upload(&graph, Precision::Fast, &mut progress).expect("an upload");
    assert!(seen.is_sorted() && seen.last().is_some_and(|&(done, total)| done == total), "{seen:?}");
    let mut calls = 0;
    let cancelled = device.upload(&graph, Precision::Fast, &mut |_| {
        calls += 1;
        ControlFlow::Break(())
    });
    assert!(matches!(cancelled, Err(DeviceError::Cancelled)));
    assert_eq!(calls, 1, "calls of an upload that was cancelled");

    let compile = |graph: &Arc<_>, weights| match device.compile(Arc::clone(graph), weights, LIMITS.into()) {
        Ok(_) => panic!("compiled"),
        Err(error) => error.to_string(),
    };
    let foreign = Arc::new(ForeignWeights(Arc::clone(&weights)));
    let message = compile(&graph, foreign);
    assert!(message.ends_with("does not support weights that another device uploaded"), "{message}");
    let other = Arc::new(decoder.graph(1));
    let message = compile(&other, Arc::clone(&weights));
    let expected = "does not support embedding, a weight that was not added to this set";
    assert!(message.ends_with(expected), "{message}");

    let mut program = device.compile(Arc::clone(&graph), weights, LIMITS.into()).expect("a program");
    let pool = |kv_type| device.kv_pool(KvPoolSpec::of(&graph, kv_type)).expect("a pool");
    check_steps(&mut *program, pool(KvType::F16));
    let mut other = pool(KvType::F32);
    let segment = Sequences::new(&*other).extend(&mut *other, 1, &[1], Outs::Last).expect("a page");
    let refused = program.run(&Step { segments: vec![segment] }, &mut *other).map(drop);
    let message = refused.expect_err("refused").to_string();
    assert!(message.contains("its KV pool is of type F32, and the program is for F16"), "{message}");
}

fn check_steps(program: &mut dyn Program, mut pool: Box<dyn KvPool>) {
    assert_eq!(program.limits(), LIMITS);
    let mut sequences = Sequences::new(&*pool);
    let mut step = |tokens: &[u32]| Step {
        segments: vec![sequences.extend(&mut *pool, 1, tokens, Outs::Last).expect("pages")],
    };
    let good = step(&[1, 2]);
    let (long, outside) = (step(&[1; 9]), step(&[150]));
    let (mut torn, mut beyond) = (good.clone(), good.clone());
    let mut twice = good.clone();
    twice.segments[0].first_index = PAGE_POSITIONS - 1;
    twice.segments[0].pages[0] = vec![good.segments[0].pages[0][0]; 2];
    torn.segments[0].pages[0][0] = None;
    beyond.segments[0].pages[0][0] = Some(PageId::from_index(77));
    let refused = |program: &mut dyn Program, step: &Step, pool: &mut dyn KvPool, message: &str| {
        let error = program.run(step, pool).map(drop).expect_err("refused");
        assert!(error.to_string().contains(message), "{error}");
    };
    refused(program, &long, &mut *pool, "step has 9 rows, at most 8 fit");
    refused(program, &outside, &mut *pool, "token 150, expected below 150");
    refused(program, &torn, &mut *pool, "no page for indices 0..256");
    refused(program, &beyond, &mut *pool, "page 77 of 1");
    refused(program, &twice, &mut *pool, "page 0 for indices 0.. and for indices 256..");
    let mut foreign = ForeignPool(pool);
    refused(program, &good, &mut foreign, "its KV pool belongs to another device");
    let mut pool = foreign.0;
    assert_eq!(program.run(&good, &mut *pool).expect("a good step").only().rows(), 1);
    assert_eq!(program.run(&Step::default(), &mut *pool).expect("an empty step").only().rows(), 0);
    let mut sink = |_, _| Flow::Continue;
    let chain = Chain { rows: &mut [], sampler: &mut Sampler::default(), sink: &mut sink };
    let ended = program.run_chain(&mut Step::default(), &mut *pool, chain);
    assert_eq!(ended, Ok(Finish { lengths: Vec::new() }), "a chain of no texts");
}
