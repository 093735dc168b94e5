//! What tests of devices, models and engines share: random numbers, weights, steps and sequences.
//!
//! Nothing here is used outside tests, but it is public so that every crate tests against the same things.

mod random;
mod sequences;

pub use random::Random;
pub use sequences::Sequences;

use brasa_formats::{Bytes, Payload, StorageFormat, Tensor};

use crate::{Weight, WeightPart};

/// An f32 tensor of `shape`.
///
/// # Panics
///
/// Where `values` are not as many as the shape holds.
pub fn tensor(name: &str, shape: &[usize], values: &[f32]) -> Tensor {
    assert_eq!(shape.iter().product::<usize>(), values.len(), "{name} {shape:?}");
    let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    Tensor {
        name: name.into(),
        shape: shape.to_vec(),
        format: StorageFormat::F32,
        payload: Payload::Blocks(Bytes::from(bytes)),
    }
}

/// A weight stored as f32.
///
/// # Panics
///
/// Where `values` are not as many as the shape holds.
pub fn weight(name: &str, shape: &[usize], values: &[f32]) -> Weight {
    Weight::new(name, shape, vec![WeightPart::whole(tensor(name, shape, values))]).expect("one whole part")
}
