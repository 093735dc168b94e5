//! A decoder with latent attention, sinks and a mixture with a sigmoid router.

use std::sync::Arc;

use brasa_formats::StorageFormat;
use brasa_graph::device::Precision;
use brasa_graph::testing::{DraftTreeCase, Latent, check_chains_of, check_latent};

use crate::device::{deterministic, device, in_full};

#[test]
fn a_row_is_computed_as_if_alone() {
    let Some(device) = deterministic() else { return };
    check_latent(device, Precision::Fast);
    if in_full(device, "latent attention in reference precision") {
        check_latent(device, Precision::Reference);
    }
}

#[test]
fn drafts_and_chains_are_plain_text() {
    let Some(device) = device() else { return };
    let graph = Latent::small(StorageFormat::F32).graph(12);
    DraftTreeCase::of(Arc::new(graph.clone()), 20, 12, 3).check(device, Precision::Reference);
    if in_full(device, "chains of latent attention") {
        check_chains_of(device, graph);
    }
}
