//! A decoder with latent attention, sinks and a mixture with a sigmoid router.

use std::sync::Arc;

use brasa_cpu::{CpuBackend, CpuOptions, Isa};
use brasa_formats::StorageFormat;
use brasa_graph::device::Precision;
use brasa_graph::testing::{DraftTreeCase, Latent, check_chains_of, check_latent};

use crate::common::sets::instruction_sets;

fn device(isa: Isa, threads: usize) -> CpuBackend {
    let options =
        CpuOptions { threads: Some(threads), isa: Some(isa), deterministic: true, ..CpuOptions::default() };
    CpuBackend::new(options).unwrap()
}

#[test]
fn a_row_is_computed_as_if_alone() {
    for isa in instruction_sets() {
        check_latent(&device(isa, 1), Precision::Fast);
    }
    check_latent(&device(Isa::detect().unwrap(), 2), Precision::Reference);
}

#[test]
fn drafts_and_chains_are_plain_text() {
    let graph = Latent::small(StorageFormat::F32).graph(12);
    check_chains_of(&device(Isa::detect().unwrap(), 2), graph.clone());
    let case = DraftTreeCase::of(Arc::new(graph), 40, 20, 3);
    for precision in [Precision::Fast, Precision::Reference] {
        case.check(&device(Isa::detect().unwrap(), 2), precision);
    }
}
