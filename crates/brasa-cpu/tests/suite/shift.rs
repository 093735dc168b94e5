//! Moved keys on the device.

use brasa_cpu::Isa;
use brasa_graph::device::KvType;
use brasa_graph::testing::{ShiftCase, check_shift_of_few_bits, check_shift_of_one_layer};

use crate::common::running::{device, exact};

#[test]
fn moved_keys_agree_with_the_reference() {
    for kv in [KvType::F32, KvType::F16] {
        let case = ShiftCase::new(&[None, Some(150), None], kv);
        for isa in Isa::available() {
            case.check(&device(2, isa));
        }
    }
}

#[test]
fn one_layer_forgets_what_was_dropped() {
    for kv in [KvType::F32, KvType::F16] {
        check_shift_of_one_layer(&device(2, exact()), kv);
    }
}

#[test]
fn keys_of_few_bits_stay_where_they_are() {
    check_shift_of_few_bits(&device(1, exact()));
}
