//! Every operation by itself, on random shapes, against the reference interpreter.

use brasa_graph::testing::{
    ALIBI, DERIVATIVE_OPERATIONS, OPERATIONS, WIDE_ATTENTION, WIDE_ATTENTION_DERIVATIVES, check,
};

use crate::device::{device, full_or_few};

#[test]
fn every_operation_agrees_with_the_reference() {
    let Some(device) = device() else { return };
    let wide = WIDE_ATTENTION.iter().chain(WIDE_ATTENTION_DERIVATIVES);
    let operations = OPERATIONS.iter().chain([&ALIBI]).chain(DERIVATIVE_OPERATIONS).chain(wide);
    for operation in operations {
        for seed in 0..full_or_few(device, 8, 3) {
            check(device, &operation.case(seed), operation.tolerance);
        }
    }
}
