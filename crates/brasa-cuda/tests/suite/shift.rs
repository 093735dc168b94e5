//! Moved keys on the device.

use brasa_graph::device::KvType;
use brasa_graph::testing::{ShiftCase, check_shift_of_few_bits, check_shift_of_one_layer};

use crate::device::{device, full_or_few, in_full};

#[test]
fn moved_keys_agree_with_the_reference() {
    let Some(device) = device() else { return };
    for &kv in &[KvType::F16, KvType::F32][..full_or_few(device, 2, 1)] {
        ShiftCase::new(&[None, Some(150)], kv).check(device);
    }
}

#[test]
fn one_layer_forgets_what_was_dropped() {
    let Some(device) = device() else { return };
    if !in_full(device, "keys of one layer that move") {
        return;
    }
    for &kv in &[KvType::F32, KvType::F16][..full_or_few(device, 2, 1)] {
        check_shift_of_one_layer(device, kv);
    }
}

#[test]
fn keys_of_few_bits_stay_where_they_are() {
    let Some(device) = device() else { return };
    check_shift_of_few_bits(device);
}
