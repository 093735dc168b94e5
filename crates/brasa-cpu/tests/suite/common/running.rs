//! CPU devices, and programs on them run step by step.

use brasa_cpu::{CpuBackend, CpuOptions, Isa};
pub use brasa_graph::testing::{Running, assert_same_bits, tokens};

/// The strongest instruction set that computes every row as if it were alone.
pub fn exact() -> Isa {
    Isa::detect().unwrap().without_bf16()
}

pub fn device(threads: usize, isa: Isa) -> CpuBackend {
    CpuBackend::new(CpuOptions { threads: Some(threads), isa: Some(isa), ..CpuOptions::default() }).unwrap()
}
