//! The device contract: what is refused, and with which words; pages; uploads.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use brasa_cuda::{CudaBackend, CudaOptions};
use brasa_formats::StorageFormat;
use brasa_graph::device::{
    Backend, DeviceError, KvPool, KvPoolSpec, KvType, Precision, Program, ProgramLimits, UploadProgress,
};
use brasa_graph::op::{Cast, Embed, Reduce, ReduceFn};
use brasa_graph::reference::ReferenceBackend;
use brasa_graph::step::{Outs, PageId, Step};
use brasa_graph::testing::{
    Decoder, Sequences, check_inputs_and_outputs, check_pages, check_shared_weights, weight,
};
use brasa_graph::{Builder, DType, Graph, GroupId, Input};

use crate::device::{device, emulated_driver};

const LIMITS: ProgramLimits = ProgramLimits { max_rows: 8, max_outs: 4, max_segments: 2 };

fn go_on(_: UploadProgress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn small() -> Arc<Graph> {
    Arc::new(Decoder { windows: vec![None], ..Decoder::small(StorageFormat::Q8_0) }.graph(1))
}

fn pool(device: &dyn Backend, graph: &Graph) -> Box<dyn KvPool> {
    device.kv_pool(KvPoolSpec { groups: graph.cache_groups(), dtype: KvType::F16 }).unwrap()
}

fn program(device: &dyn Backend, graph: &Arc<Graph>) -> Box<dyn Program> {
    let weights = device.upload(graph, Precision::Fast, &mut go_on).unwrap();
    device.compile(Arc::clone(graph), weights, LIMITS).unwrap()
}

#[test]
fn an_absent_driver_or_gpu_is_unavailable_with_a_reason() {
    let refused = |options: CudaOptions| match CudaBackend::new(&options) {
        Ok(backend) => panic!("{:?}", backend.info()),
        Err(DeviceError::Unavailable { device, reason }) => (device, reason),
        Err(error) => panic!("{error}"),
    };
    let nowhere = Some(PathBuf::from("no/such/driver.so"));
    let (device, reason) = refused(CudaOptions { ordinal: 1, driver: nowhere, ..CudaOptions::default() });
    assert_eq!(device, "cuda:1");
    assert!(reason.starts_with("the NVIDIA driver is not installed"), "{reason}");
    if let Some(driver) = emulated_driver() {
        let (_, reason) = refused(CudaOptions { ordinal: 7, driver: Some(driver), ..CudaOptions::default() });
        assert_eq!(reason, "there is no NVIDIA GPU 7; this machine has 1");
    }
}

#[test]
fn bad_steps_are_refused_and_the_program_goes_on() {
    let Some(device) = device() else { return };
    let graph = small();
    let (mut program, mut pool) = (program(device, &graph), pool(device, &graph));
    let mut sequences = Sequences::new(&*pool);
    let mut step = |tokens: &[u32]| Step {
        segments: vec![sequences.extend(&mut *pool, 1, tokens, Outs::Last).unwrap()],
    };
    let good = step(&[1, 2]);
    let long = step(&[1; 9]);
    let outside = step(&[150]);
    let mut beyond = good.clone();
    beyond.segments[0].pages[0][0] = Some(PageId::from_index(77));
    let refused = |program: &mut dyn Program, step: &Step, pool: &mut dyn KvPool, message: &str| {
        let error = program.run(step, pool).unwrap_err();
        assert!(error.to_string().contains(message), "{error}");
    };
    refused(&mut *program, &long, &mut *pool, "step has 9 rows, at most 8 fit");
    refused(&mut *program, &outside, &mut *pool, "token 150, expected below 150");
    refused(&mut *program, &beyond, &mut *pool, "page 77 of 1");
    let mut foreign = self::pool(&ReferenceBackend, &graph);
    foreign.reserve(GroupId(0), 1).unwrap();
    refused(&mut *program, &good, &mut *foreign, "its KV pool belongs to another device");
    assert_eq!(program.run(&good, &mut *pool).unwrap().only().rows(), 1);
    assert_eq!(program.run(&Step::default(), &mut *pool).unwrap().only().rows(), 0);
}

#[test]
fn computed_numbers_outside_their_table_are_errors() {
    let Some(device) = device() else { return };
    let mut b = Builder::new();
    let ids = b.input(Input::TokenIds);
    let numbers = b.weight(Ok(weight("numbers", &[3, 1], &[0.0, 1.0, 7.0])));
    let table = b.weight(Ok(weight("table", &[2, 4], &[1.0; 8])));
    let number = b.embed(ids, numbers);
    let number = b.apply(Reduce { function: ReduceFn::Sum, axis: 1 }, &[number])[0];
    let number = b.apply(Cast { dtype: DType::U32 }, &[number])[0];
    let y = b.apply(Embed, &[number, table])[0];
    let graph = Arc::new(b.finish(&[y]).unwrap());
    let (mut program, mut pool) = (program(device, &graph), pool(device, &graph));
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
    let Some(device) = device() else { return };
    let graph = small();
    let foreign = ReferenceBackend.upload(&graph, Precision::Fast, &mut go_on).unwrap();
    let refusal = |result: Result<Box<dyn Program>, DeviceError>| match result {
        Ok(_) => panic!("compiled"),
        Err(error) => error.to_string(),
    };
    let message = refusal(device.compile(Arc::clone(&graph), foreign, LIMITS));
    assert_eq!(message, "cuda:0 does not support weights that another device uploaded");
    let own = device.upload(&graph, Precision::Fast, &mut go_on).unwrap();
    let other = Arc::new(Decoder::small(StorageFormat::Q8_0).graph(1));
    let message = refusal(device.compile(other, own, LIMITS));
    assert_eq!(message, "cuda:0 does not support embedding, a weight that was not added to this set");
}

#[test]
fn graphs_share_the_upload_of_shared_weights() {
    let Some(device) = device() else { return };
    check_shared_weights(device);
}

#[test]
fn graphs_take_inputs_of_their_own_and_return_several_values() {
    let Some(device) = device() else { return };
    check_inputs_and_outputs(device);
}

#[test]
fn an_upload_tells_its_progress_and_can_be_cancelled() {
    let Some(device) = device() else { return };
    let graph = small();
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
    let cancelled = device.upload(&graph, Precision::Fast, &mut |_| ControlFlow::Break(()));
    assert!(matches!(cancelled, Err(DeviceError::Cancelled)));
}

#[test]
fn texts_go_on_from_pages_that_were_copied_or_moved() {
    let Some(device) = device() else { return };
    check_pages(device);
}

#[test]
fn absurd_demands_are_out_of_memory() {
    let Some(device) = device() else { return };
    let graph = small();
    let mut pool = pool(device, &graph);
    for pages in [usize::MAX / 2, 1 << 30] {
        let refused = pool.reserve(GroupId(0), pages);
        assert!(matches!(refused, Err(DeviceError::OutOfMemory { .. })), "{refused:?}");
        assert_eq!(pool.capacity(GroupId(0)), 0);
    }
    let weights = device.upload(&graph, Precision::Fast, &mut go_on).unwrap();
    for max_rows in [usize::MAX / 4, 1 << 24] {
        let limits = ProgramLimits { max_rows, ..LIMITS };
        let refused = device.compile(Arc::clone(&graph), Arc::clone(&weights), limits);
        assert!(matches!(refused, Err(DeviceError::OutOfMemory { .. })));
    }
}

#[test]
fn a_program_says_what_it_is_and_how_long_it_took() {
    let Some(device) = device() else { return };
    let graph = small();
    let (mut program, mut pool) = (program(device, &graph), pool(device, &graph));
    assert_eq!(program.limits(), LIMITS);
    assert!(program.arena_bytes() > 0);
    let mut sequences = Sequences::new(&*pool);
    let segment = sequences.extend(&mut *pool, 1, &[1, 2, 3], Outs::All).unwrap();
    let times = program.profile(&Step { segments: vec![segment] }, &mut *pool).unwrap();
    let linear: Vec<_> = times.iter().filter(|time| time.label.starts_with("linear")).collect();
    let labels: Vec<&str> = linear.iter().map(|time| time.label.as_str()).collect();
    let expected = ["layers.0.qkv", "layers.0.o", "layers.0.gate_up", "layers.0.down", "embedding"]
        .map(|w| format!("linear {w}"));
    assert_eq!(labels, expected);
    assert!(linear.iter().all(|time| time.flops > 0 && time.bytes > 0 && !time.time.is_zero()));
}
