//! Every operation by itself, on random shapes, against the reference interpreter.

use brasa_cpu::{CpuBackend, CpuOptions, Isa};
use brasa_graph::testing::{
    ALIBI, DERIVATIVE_OPERATIONS, OPERATIONS, SECOND_DERIVATIVE_OPERATIONS, WIDE_ATTENTION,
    WIDE_ATTENTION_DERIVATIVES, WIDE_ATTENTION_SECOND_DERIVATIVES, check,
};

#[test]
fn every_operation_agrees_with_the_reference() {
    for isa in Isa::available() {
        for threads in [1, 3] {
            let options = CpuOptions { threads: Some(threads), isa: Some(isa), ..CpuOptions::default() };
            let device = CpuBackend::new(options).unwrap();
            let of_derivatives = DERIVATIVE_OPERATIONS.iter().chain(SECOND_DERIVATIVE_OPERATIONS);
            let wide = [WIDE_ATTENTION, WIDE_ATTENTION_DERIVATIVES, WIDE_ATTENTION_SECOND_DERIVATIVES];
            let wide = wide.into_iter().flatten();
            for operation in OPERATIONS.iter().chain(of_derivatives).chain(wide).chain([&ALIBI]) {
                for seed in 0..4 {
                    check(&device, &operation.case(seed), operation.tolerance);
                }
            }
        }
    }
}
