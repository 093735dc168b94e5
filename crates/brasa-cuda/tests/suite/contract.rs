//! The device contract: what is refused, and with which words; pages; uploads.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use brasa_cuda::{CudaBackend, CudaOptions};
use brasa_formats::StorageFormat;
use brasa_graph::device::{
    Backend, DeviceError, KvPool, KvPoolSpec, KvType, Precision, Program, ProgramLimits, UploadProgress,
};
use brasa_graph::step::{Outs, Step};
use brasa_graph::testing::{Decoder, Sequences};
use brasa_graph::{Graph, GroupId};

use crate::device::{another, device, emulated_driver, in_full};

const LIMITS: ProgramLimits = ProgramLimits { max_rows: 8, max_outs: 4, max_segments: 2 };

fn go_on(_: UploadProgress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn small() -> Arc<Graph> {
    Arc::new(Decoder { windows: vec![None], ..Decoder::small(StorageFormat::Q8_0) }.graph(1))
}

fn pool(device: &dyn Backend, graph: &Graph) -> Box<dyn KvPool> {
    device.kv_pool(KvPoolSpec::of(graph, KvType::F16)).unwrap()
}

fn program(device: &dyn Backend, graph: &Arc<Graph>) -> Box<dyn Program> {
    let weights = device.upload(graph, Precision::Fast, &mut go_on).unwrap();
    device.compile(Arc::clone(graph), weights, LIMITS.into()).unwrap()
}

/// Runs a check on the device, if there is one; slow checks on an emulated one only in sweeps.
fn on_device(name: &str, check: fn(&dyn Backend)) {
    let Some(device) = device() else { return };
    let is_slow = ["check_chains", "check_pages"].contains(&name);
    if !is_slow || in_full(device, name) {
        check(device);
    }
}

brasa_graph::device_contract!(on_device);

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

/// Memory of weights is not free while they exist, and is free again afterwards.
#[test]
fn free_memory_is_what_nobody_holds() {
    let limit = 64 << 20;
    let Some(backend) = another(&CudaOptions { memory_limit: Some(limit), ..CudaOptions::default() }) else {
        return;
    };
    // As the facade sees it.
    let device: &dyn Backend = &backend;
    let free = || device.free_bytes().unwrap();
    let before = free();
    assert!(before > 0 && before <= limit, "{before}");
    let graph = Decoder { vocab: 10_000, ..Decoder::small(StorageFormat::F32) }.graph(1);
    let weights = device.upload(&graph, Precision::Fast, &mut go_on).unwrap();
    let held = device.memory_use().unwrap().held_bytes;
    assert!(held >= 10_000 * 4 && free() <= limit - held, "{} free, {held} held", free());
    drop(weights);
    assert!(free() >= before - (1 << 20), "{} free, {before} before", free());
}

/// A backend with a limit of memory refuses weights that do not fit and holds nothing of them; a program that fits computes what it computes without a limit.
#[test]
fn a_limit_is_a_gpu_without_more_memory() {
    let limit = 8 << 20;
    let options = CudaOptions { memory_limit: Some(limit), ..CudaOptions::default() };
    let (Some(device), Some(limited)) = (device(), another(&options)) else { return };
    assert_eq!(limited.info().memory_bytes, Some(limit));
    assert!(limited.free_bytes().unwrap() <= limit);

    let before = limited.held_bytes();
    let graph = Decoder { vocab: 100_000, ..Decoder::small(StorageFormat::F32) }.graph(1);
    let refused = limited.upload(&graph, Precision::Fast, &mut go_on).err();
    assert!(matches!(refused, Some(DeviceError::OutOfMemory { .. })), "{refused:?}");
    assert_eq!(limited.held_bytes(), before);
    assert!(device.upload(&graph, Precision::Fast, &mut go_on).is_ok());

    let graph = small();
    let [few, all] = [&limited, device].map(|device| {
        let (mut program, mut pool) = (program(device, &graph), pool(device, &graph));
        let segment = Sequences::new(&*pool).extend(&mut *pool, 1, &[1, 2, 3], Outs::Last).unwrap();
        program.run(&Step { segments: vec![segment] }, &mut *pool).unwrap().get(0).floats().to_vec()
    });
    assert_eq!(few, all);
    assert!(limited.held_bytes() <= limit);
}

#[test]
fn weights_on_the_device_take_hardly_more_than_their_file() {
    let Some(device) = device() else { return };
    let graph = small();
    let weights = device.upload(&graph, Precision::Fast, &mut go_on).unwrap();
    let stored: u64 = graph.weights().iter().map(|weight| weight.stored_bytes()).sum();
    assert!(weights.size_bytes() * 10 <= stored * 11, "{} of {stored}", weights.size_bytes());
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
        let refused = device.compile(Arc::clone(&graph), Arc::clone(&weights), limits.into());
        assert!(matches!(refused, Err(DeviceError::OutOfMemory { .. })));
    }
}

#[test]
fn a_program_says_what_it_is_and_how_long_it_took() {
    let Some(device) = device() else { return };
    let graph = small();
    let (mut program, mut pool) = (program(device, &graph), pool(device, &graph));
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

#[test]
fn a_program_tells_the_forms_of_values_and_the_kernels() {
    let Some(device) = device() else { return };
    let decoder = Decoder {
        hidden: 128,
        feed_forward: 256,
        windows: vec![None],
        ..Decoder::small(StorageFormat::Q4_0)
    };
    let program = program(device, &Arc::new(decoder.graph(1)));
    let told = program.describe();
    for expected in
        ["in panels of 2 pieces", "in sums of parts", "gemm_q4_0", "attention_f16", "makes %", "reads %"]
    {
        assert!(told.contains(expected), "{expected}: {told}");
    }
}
