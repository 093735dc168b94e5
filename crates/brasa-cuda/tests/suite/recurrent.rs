//! Recurrent states: short convolutions and scans.

use brasa_graph::device::Precision;
use brasa_graph::testing::{RECURRENCES, check, check_states};

use crate::device::{deterministic, device, full_or_few};

#[test]
fn recurrences_agree_with_the_reference() {
    let Some(device) = device() else { return };
    for seed in 0..full_or_few(device, 8, 3) {
        check(device, &RECURRENCES.case(seed), RECURRENCES.tolerance);
    }
}

#[test]
fn texts_go_on_from_states() {
    let Some(device) = device() else { return };
    check_states(device, Precision::Reference);
    let Some(device) = deterministic() else { return };
    check_states(device, Precision::Fast);
}
