//! Embeddings in place of token ids on the device.

use brasa_formats::StorageFormat;
use brasa_graph::testing::check_embeddings;

use crate::device::{device, full_or_few};

#[test]
fn given_rows_are_looked_up_rows() {
    let Some(device) = device() else { return };
    for &format in &[StorageFormat::Q4_K, StorageFormat::F32][..full_or_few(device, 2, 1)] {
        check_embeddings(device, format);
    }
}
