//! Embeddings in place of token ids on the device.

use brasa_formats::StorageFormat;
use brasa_graph::testing::{check_embeddings, check_other_lookups};

use crate::common::running::{device, exact};

#[test]
fn given_rows_are_looked_up_rows() {
    for format in [StorageFormat::F32, StorageFormat::Q8_0, StorageFormat::Q4_K] {
        for threads in [1, 3] {
            check_embeddings(&device(threads, exact()), format);
        }
    }
}

#[test]
fn other_lookups_and_factors_are_as_the_graph_says() {
    check_other_lookups(&device(2, exact()));
}
