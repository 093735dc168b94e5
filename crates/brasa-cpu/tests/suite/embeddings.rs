//! Embeddings in place of token ids on the device.

use brasa_formats::StorageFormat;
use brasa_graph::testing::check_embeddings;

use crate::common::running::{device, exact};

#[test]
fn given_rows_are_looked_up_rows() {
    for format in [StorageFormat::F32, StorageFormat::Q8_0, StorageFormat::Q4_K] {
        for threads in [1, 3] {
            check_embeddings(&device(threads, exact()), format);
        }
    }
}
