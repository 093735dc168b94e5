//! Recurrent states: short convolutions and scans.

use crate::common::sets::instruction_sets;
use brasa_cpu::{CpuBackend, CpuOptions, Isa};
use brasa_graph::device::Precision;
use brasa_graph::testing::{RECURRENCES, check, check_states};

fn device(isa: Isa, threads: usize, deterministic: bool) -> CpuBackend {
    let options =
        CpuOptions { threads: Some(threads), isa: Some(isa), deterministic, ..CpuOptions::default() };
    CpuBackend::new(options).unwrap()
}

#[test]
fn recurrences_agree_with_the_reference() {
    for isa in instruction_sets() {
        for threads in [1, 3] {
            for seed in 0..8 {
                check(&device(isa, threads, false), &RECURRENCES.case(seed), RECURRENCES.tolerance);
            }
        }
    }
}

#[test]
fn texts_go_on_from_states() {
    for isa in instruction_sets() {
        check_states(&device(isa, 1, true), Precision::Fast);
        check_states(&device(isa, 1, true), Precision::Reference);
        check_states(&device(isa, 2, false), Precision::Reference);
    }
    check_states(&device(Isa::detect().unwrap(), 5, true), Precision::Fast);
}
