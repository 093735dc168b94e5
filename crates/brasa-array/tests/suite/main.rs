//! Tests of arrays and of their derivatives.
#![allow(
    clippy::unwrap_used,
    clippy::float_cmp,
    reason = "a test fails by panicking, and exact results are meant"
)]

mod derivatives;
mod golden;
mod runner;
mod values;

use std::sync::Arc;

use brasa_array::Runner;
use brasa_cpu::{CpuBackend, CpuOptions};

/// A runner on one thread, so that tests do not wait for each other.
fn runner() -> Runner {
    let options = CpuOptions { threads: Some(1), ..CpuOptions::default() };
    Runner::new(Arc::new(CpuBackend::new(options).unwrap())).unwrap()
}

/// Fails unless two lists of numbers are close.
#[track_caller]
fn assert_close(found: &[f32], expected: &[f32], bound: f32) {
    assert_eq!(found.len(), expected.len());
    for (at, (a, b)) in found.iter().zip(expected).enumerate() {
        let close = (a - b).abs() <= bound * b.abs().max(1.0);
        assert!(close, "element {at}: {a}, expected {b}\n{found:?}\n{expected:?}");
    }
}
