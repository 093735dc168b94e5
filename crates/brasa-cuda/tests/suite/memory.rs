//! Memories on the device, against the formula.

use brasa_graph::device::KvType;
use brasa_graph::testing::{EncoderDecoder, Tolerance, compare};

use crate::device::device;

#[test]
fn every_row_sees_all_of_its_memory() {
    let Some(device) = device() else { return };
    for (seed, lengths) in [(1, &[1, 300, 513][..]), (2, &[1500]), (3, &[257, 2, 15])] {
        let model = EncoderDecoder::new(seed);
        let expected = model.expected(lengths);
        let types = [
            (KvType::F32, Tolerance::F32),
            (KvType::F16, Tolerance::F16),
            (KvType::BF16, Tolerance::BITS_16),
            (KvType::Q8, Tolerance::BITS_16),
        ];
        for (kv, tolerance) in types {
            let found = model.run(device, kv, lengths).unwrap();
            let comparison = compare(&found, &expected);
            assert!(comparison.within(tolerance), "{lengths:?}, {kv:?}: {comparison}");
        }
    }
}
