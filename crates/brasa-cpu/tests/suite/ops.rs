//! Every operation by itself, on random shapes, against the reference interpreter.

use brasa_cpu::{CpuBackend, CpuOptions, Isa};
use brasa_graph::testing::{DERIVATIVE_OPERATIONS, OPERATIONS, check, check_refused};

#[test]
fn every_operation_agrees_with_the_reference() {
    for isa in Isa::available() {
        for threads in [1, 3] {
            let options = CpuOptions { threads: Some(threads), isa: Some(isa), ..CpuOptions::default() };
            let device = CpuBackend::new(options).unwrap();
            for operation in OPERATIONS {
                for seed in 0..4 {
                    check(&device, &operation.case(seed), operation.tolerance);
                }
            }
        }
    }
}

#[test]
fn operations_that_only_derivatives_use_are_refused_by_name() {
    let device = CpuBackend::new(CpuOptions::default()).unwrap();
    for operation in DERIVATIVE_OPERATIONS {
        check_refused(&device, &operation.case(1));
    }
}
