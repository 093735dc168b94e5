//! The device contract: what is refused, and with which words; pages; uploads.

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::common::decoder::Decoder;
use brasa_cpu::{CpuBackend, CpuOptions};
use brasa_formats::StorageFormat;
use brasa_graph::device::{
    Backend, DeviceError, KvPool, KvPoolSpec, KvType, Precision, Program, ProgramLimits, UploadProgress,
};
use brasa_graph::op::{Cast, Embed};
use brasa_graph::reference::ReferenceBackend;
use brasa_graph::step::{Outs, PageId, Step};
use brasa_graph::testing::{Sequences, check_inputs_and_outputs, check_pages, check_shared_weights, weight};
use brasa_graph::{Builder, DType, Graph, GroupId, Input};

const LIMITS: ProgramLimits = ProgramLimits { max_rows: 8, max_outs: 4, max_segments: 2 };

fn cpu() -> CpuBackend {
    CpuBackend::new(CpuOptions { threads: Some(2), deterministic: true, ..CpuOptions::default() }).unwrap()
}

fn go_on(_: UploadProgress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn small() -> Arc<Graph> {
    Arc::new(Decoder { windows: vec![None], ..Decoder::small(StorageFormat::Q8_0) }.graph(1))
}

fn pool(device: &dyn Backend, graph: &Graph) -> Box<dyn KvPool> {
    device.kv_pool(KvPoolSpec { groups: graph.cache_groups(), dtype: KvType::F16 }).unwrap()
}

fn program(graph: &Arc<Graph>) -> Box<dyn Program> {
    let device = cpu();
    let weights = device.upload(graph, Precision::Fast, &mut go_on).unwrap();
    device.compile(Arc::clone(graph), weights, LIMITS).unwrap()
}

#[test]
fn bad_steps_are_refused_and_the_program_goes_on() {
    let graph = small();
    let (mut program, mut pool) = (program(&graph), pool(&cpu(), &graph));
    let mut sequences = Sequences::new(&*pool);
    let mut step = |tokens: &[u32]| Step {
        segments: vec![sequences.extend(&mut *pool, 1, tokens, Outs::Last).unwrap()],
    };
    let good = step(&[1, 2]);
    let long = step(&[1; 9]);
    let outside = step(&[150]);
    let mut torn = good.clone();
    torn.segments[0].pages[0][0] = None;
    let mut beyond = good.clone();
    beyond.segments[0].pages[0][0] = Some(PageId::from_index(77));
    let refused = |program: &mut dyn Program, step: &Step, pool: &mut dyn KvPool, message: &str| {
        let error = program.run(step, pool).unwrap_err();
        assert!(error.to_string().contains(message), "{error}");
    };
    refused(&mut *program, &long, &mut *pool, "step has 9 rows, at most 8 fit");
    refused(&mut *program, &outside, &mut *pool, "token 150, expected below 150");
    refused(&mut *program, &torn, &mut *pool, "no page for indices 0..256");
    refused(&mut *program, &beyond, &mut *pool, "page 77 of 1");
    let mut foreign = self::pool(&ReferenceBackend, &graph);
    foreign.reserve(GroupId(0), 1).unwrap();
    refused(&mut *program, &good, &mut *foreign, "its KV pool belongs to another device");
    assert_eq!(program.run(&good, &mut *pool).unwrap().only().rows(), 1);
}

#[test]
fn computed_numbers_outside_their_table_are_errors() {
    let mut b = Builder::new();
    let ids = b.input(Input::TokenIds);
    let numbers = b.weight(Ok(weight("numbers", &[3, 1], &[0.0, 1.0, 7.0])));
    let table = b.weight(Ok(weight("table", &[2, 4], &[1.0; 8])));
    let number = b.embed(ids, numbers);
    let number =
        b.apply(brasa_graph::op::Reduce { function: brasa_graph::op::ReduceFn::Sum, axis: 1 }, &[number])[0];
    let number = b.apply(Cast { dtype: DType::U32 }, &[number])[0];
    let y = b.apply(Embed, &[number, table])[0];
    let graph = Arc::new(b.finish(&[y]).unwrap());
    let (mut program, mut pool) = (program(&graph), pool(&cpu(), &graph));
    let mut sequences = Sequences::new(&*pool);
    let mut run = |token: u32| {
        let segment = sequences.extend(&mut *pool, u64::from(token), &[token], Outs::All).unwrap();
        program
            .run(&Step { segments: vec![segment] }, &mut *pool)
            .map(|output| output.only().floats().to_vec())
    };
    assert_eq!(run(1).unwrap(), [1.0; 4]);
    let error = run(2).unwrap_err();
    assert_eq!(error, DeviceError::BadStep { what: "a computed number is 7, expected below 2".into() });
    assert_eq!(run(0).unwrap(), [1.0; 4]);
}

#[test]
fn foreign_weights_and_graphs_are_refused() {
    let (graph, device) = (small(), cpu());
    let foreign = ReferenceBackend.upload(&graph, Precision::Fast, &mut go_on).unwrap();
    let refusal = |result: Result<Box<dyn Program>, DeviceError>| match result {
        Ok(_) => panic!("compiled"),
        Err(error) => error.to_string(),
    };
    let message = refusal(device.compile(Arc::clone(&graph), foreign, LIMITS));
    assert_eq!(message, "cpu does not support weights that another device uploaded");
    let own = device.upload(&graph, Precision::Fast, &mut go_on).unwrap();
    let other = Arc::new(Decoder::small(StorageFormat::Q8_0).graph(1));
    let message = refusal(device.compile(other, own, LIMITS));
    assert_eq!(message, "cpu does not support embedding, a weight that was not added to this set");
}

#[test]
fn graphs_share_the_upload_of_shared_weights() {
    check_shared_weights(&cpu());
}

#[test]
fn graphs_take_inputs_of_their_own_and_return_several_values() {
    check_inputs_and_outputs(&cpu());
}

#[test]
fn an_upload_tells_its_progress_and_can_be_cancelled() {
    let (graph, device) = (small(), cpu());
    let mut seen = Vec::new();
    let weights = device
        .upload(&graph, Precision::Fast, &mut |progress| {
            seen.push((progress.done_bytes, progress.total_bytes));
            ControlFlow::Continue(())
        })
        .unwrap();
    assert!(seen.is_sorted() && seen.last().is_some_and(|&(done, total)| done == total));
    let stored: u64 = graph.weights().iter().map(|weight| weight.stored_bytes()).sum();
    assert!(weights.size_bytes() * 10 <= stored * 11, "{} of {stored}", weights.size_bytes());
    let mut calls = 0;
    let cancelled = device.upload(&graph, Precision::Fast, &mut |_| {
        calls += 1;
        ControlFlow::Break(())
    });
    assert!(matches!(cancelled, Err(DeviceError::Cancelled)));
    assert_eq!(calls, 1);
}

#[test]
fn texts_go_on_from_pages_that_were_copied_or_moved() {
    check_pages(&cpu());
}

#[test]
fn absurd_demands_are_out_of_memory() {
    let graph = small();
    let device = cpu();
    let mut pool = pool(&device, &graph);
    let refused = pool.reserve(GroupId(0), usize::MAX / 2);
    assert!(matches!(refused, Err(DeviceError::OutOfMemory { .. })));
    assert_eq!(pool.capacity(GroupId(0)), 0);
    let weights = device.upload(&graph, Precision::Fast, &mut go_on).unwrap();
    let limits = ProgramLimits { max_rows: usize::MAX / 4, ..LIMITS };
    let refused = device.compile(graph, weights, limits);
    assert!(matches!(refused, Err(DeviceError::OutOfMemory { .. })));
}

#[test]
fn a_program_says_what_it_is_and_how_long_it_took() {
    let graph = small();
    let (mut program, mut pool) = (program(&graph), pool(&cpu(), &graph));
    assert_eq!(program.limits(), LIMITS);
    assert!(program.arena_bytes() > 0);
    assert!(cpu().info().description.contains("2 threads"));
    let mut sequences = Sequences::new(&*pool);
    let segment = sequences.extend(&mut *pool, 1, &[1, 2, 3], Outs::All).unwrap();
    let times = program.profile(&Step { segments: vec![segment] }, &mut *pool).unwrap();
    let labels: Vec<&str> = times.iter().map(|time| time.label.as_str()).collect();
    assert_eq!(
        labels,
        [
            "embed",
            "norm+linear layers.0.qkv",
            "rope_table",
            "qk_norm+rope+cache_write",
            "attention",
            "linear+residual layers.0.o",
            "gate_up layers.0.gate_up",
            "linear+residual layers.0.down",
            "select_rows",
            "norm+linear embedding",
        ]
    );
    assert!(times.iter().filter(|time| time.label.contains("linear")).all(|time| time.flops > 0));
}
