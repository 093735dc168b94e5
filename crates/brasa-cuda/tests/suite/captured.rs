//! Steps that are queued as graphs have the bits of steps that are queued launch by launch.

use std::sync::Arc;

use brasa_cuda::CudaBackend;
use brasa_formats::StorageFormat;
use brasa_graph::device::{KvType, Precision};
use brasa_graph::testing::{Decoder, Running, assert_same_bits, tokens};

use crate::device::{capturing, device};

#[test]
fn captured_steps_have_the_bits_of_queued_ones() {
    let (Some(captured), Some(queued)) = (capturing(), device()) else { return };
    let decoder = Decoder { windows: vec![None], feed_forward: 64, ..Decoder::small(StorageFormat::F16) };
    let graph = Arc::new(decoder.graph(17));
    let text = tokens(140, 3);
    let run = |device: &CudaBackend| {
        let mut running = Running::new(device, &graph, Precision::Fast, KvType::F16);
        // A prompt of too many rows, graphs of other rows, and the same launches over more keys and in more parts: the attention of a row
        // takes 128 positions at a time.
        let steps: [&[(u64, &[u32])]; 5] = [
            &[(1, &text[..127])],
            &[(1, &text[127..128]), (2, &text[..1]), (3, &text[..1])],
            &[(1, &text[128..129]), (2, &text[1..2]), (3, &text[1..2])],
            &[(2, &text[2..5])],
            &[(1, &text[129..130]), (3, &text[3..4]), (2, &text[5..6])],
        ];
        steps.map(|step| running.step(step))
    };
    for (number, (found, expected)) in run(captured).iter().zip(&run(queued)).enumerate() {
        assert_same_bits(found, expected, &format!("step {number}"));
    }
}
