//! The device contract: what is refused, and with which words; pages; uploads.

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::common::running::{device, exact};
use brasa_cpu::{CpuBackend, CpuOptions};
use brasa_formats::StorageFormat;
use brasa_graph::Graph;
use brasa_graph::device::{
    Backend, DeviceError, KvPoolSpec, KvType, Precision, ProgramLimits, UploadProgress,
};
use brasa_graph::step::{Outs, Step};
use brasa_graph::testing::Decoder;
use brasa_graph::testing::Sequences;

const LIMITS: ProgramLimits = ProgramLimits { max_rows: 8, max_outs: 4, max_segments: 2 };

fn cpu() -> CpuBackend {
    CpuBackend::new(CpuOptions { threads: Some(2), deterministic: true, ..CpuOptions::default() }).unwrap()
}

/// Runs a check with one thread and with several.
fn on_device(_name: &str, check: fn(&dyn Backend)) {
    for threads in [1, 2] {
        check(&device(threads, exact()));
    }
}

brasa_graph::device_contract!(on_device);

fn go_on(_: UploadProgress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn small() -> Arc<Graph> {
    Arc::new(Decoder { windows: vec![None], ..Decoder::small(StorageFormat::Q8_0) }.graph(1))
}

#[test]
fn packed_weights_take_hardly_more_than_their_file() {
    let graph = small();
    let weights = cpu().upload(&graph, Precision::Fast, &mut go_on).unwrap();
    let stored: u64 = graph.weights().iter().map(|weight| weight.stored_bytes()).sum();
    assert!(weights.size_bytes() * 10 <= stored * 11, "{} of {stored}", weights.size_bytes());
}

#[test]
fn absurd_demands_are_out_of_memory() {
    let graph = small();
    let device = cpu();
    let weights = device.upload(&graph, Precision::Fast, &mut go_on).unwrap();
    let limits = ProgramLimits { max_rows: usize::MAX / 4, ..LIMITS };
    let refused = device.compile(graph, weights, limits.into());
    assert!(matches!(refused, Err(DeviceError::OutOfMemory { .. })));
}

#[test]
fn a_program_says_what_it_is_and_how_long_it_took() {
    let graph = small();
    let weights = cpu().upload(&graph, Precision::Fast, &mut go_on).unwrap();
    let mut program = cpu().compile(Arc::clone(&graph), weights, LIMITS.into()).unwrap();
    let mut pool = cpu().kv_pool(KvPoolSpec::of(&graph, KvType::F16)).unwrap();
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
