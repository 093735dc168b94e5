//! Packed weights and ragged widths for the tests of products.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use brasa_cpu::Team;
use brasa_cpu::linear::{PackedLinear, Packer, WeightClass};
use brasa_formats::{StorageFormat, Tensor};
use brasa_graph::WeightPart;
use brasa_graph::device::Precision;

pub fn team() -> Team {
    Team::new(2).unwrap()
}

pub fn pack(tensor: &Tensor, precision: Precision) -> PackedLinear {
    PackedLinear::new("w", &[WeightPart::whole(tensor.clone())], precision, &Packer::new(&team())).unwrap()
}

pub fn is_quantised(packed: &PackedLinear) -> bool {
    packed.weight_classes().has(WeightClass::Quantised)
}

/// Ragged widths in whole blocks of the format: odd numbers of blocks, broken spans, more than one panel.
pub fn widths(format: StorageFormat) -> Vec<usize> {
    let block = format.block_len();
    match block {
        1 => vec![1, 2, 3, 31, 64, 203, 512],
        _ => [1, 3, 8, 9, 2048 / block + 3].iter().map(|blocks| blocks * block).collect(),
    }
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}
