//! Many threads: as many barriers as few threads need, work shared out evenly, and the same bits in the end, also where
//! there are far more threads than processors.

use std::ops::Range;
use std::sync::Arc;

use crate::common::running::{Running, assert_same_bits, device, exact, tokens};
use crate::common::tensors::{Noise, tensor};
use brasa_cpu::Team;
use brasa_cpu::linear::{PackedLinear, Packer};
use brasa_formats::StorageFormat;
use brasa_graph::WeightPart;
use brasa_graph::device::{KvType, Precision};
use brasa_graph::testing::Decoder;

const MANY: usize = 64;

/// Barriers of a prompt of `context` tokens and of the decode step behind it.
fn barriers(decoder: &Decoder, threads: usize, context: usize) -> [u32; 2] {
    let device = device(threads, exact());
    let graph = Arc::new(decoder.graph(1));
    let mut running = Running::new(&device, &graph, Precision::Fast, KvType::F16);
    [&tokens(context, 2)[..], &[5]].map(|tokens| {
        let before = device.barriers();
        running.step(&[(1, tokens)]);
        device.barriers().wrapping_sub(before)
    })
}

/// Barriers that a layer adds to a prompt and to a decode step.
fn barriers_of_a_layer(decoder: &Decoder, threads: usize, context: usize) -> [u32; 2] {
    let layers = |count| Decoder { windows: vec![None; count], ..decoder.clone() };
    let [two, three] = [2, 3].map(|count| barriers(&layers(count), threads, context));
    [three[0] - two[0], three[1] - two[1]]
}

/// An operation ends with a barrier: q|k|v, heads and cache, attention, output, gate and up, down. Many rows are prepared
/// together before four of them; keys beyond one page are shared out by pages, whose results are merged. Experts are chosen,
/// sorted and multiplied in eight parts instead of two.
#[test]
fn a_layer_has_as_many_barriers_on_64_threads_as_on_2() {
    let dense = Decoder::small(StorageFormat::Q4_0);
    let experts = Decoder { experts: Some((4, 2)), ..dense.clone() };
    for threads in [2, MANY] {
        assert_eq!(barriers_of_a_layer(&dense, threads, 100), [10, 6], "{threads} threads");
        assert_eq!(barriers_of_a_layer(&dense, threads, 300), [10, 7], "{threads} threads, two pages");
        assert_eq!(barriers_of_a_layer(&experts, threads, 100), [16, 12], "{threads} threads, experts");
    }
}

/// Each thread's strips are within one of each other's; stacked weights of different formats differ by a strip of the widest.
#[test]
fn strips_are_shared_out_evenly() {
    let team = Team::new(1).unwrap();
    let packer = Packer::new(&team);
    let pack = |formats: &[StorageFormat], n: usize| {
        let mut noise = Noise::new(1);
        let parts: Vec<_> =
            formats.iter().map(|&format| WeightPart::whole(tensor(format, n, 256, &mut noise))).collect();
        PackedLinear::new("w", &parts, Precision::Fast, &packer).unwrap()
    };
    let shares = |linear: &PackedLinear, threads: usize| -> Vec<_> {
        let shares: Vec<_> = (0..threads).map(|thread| linear.share(threads, thread)).collect();
        assert_eq!((shares[0].start, shares[threads - 1].end), (0, linear.strips()));
        assert!(shares.windows(2).all(|pair| pair[0].end == pair[1].start), "{shares:?}");
        shares
    };
    for threads in [2, 3, 16, MANY] {
        for n in [1, 16, 100, 1024, 1040, 3072] {
            let shares = shares(&pack(&[StorageFormat::Q4_0], n), threads);
            let [least, most] = [shares.iter().map(Range::len).min(), shares.iter().map(Range::len).max()];
            assert!(most.unwrap() - least.unwrap() <= 1, "{n} outputs, {threads} threads: {shares:?}");
        }
        // q|k in 4 bits, v in 8: no thread has more than its part of the bytes and the strips at its two ends.
        let mixed = pack(&[StorageFormat::Q4_0, StorageFormat::Q8_0], 1536);
        let bytes = |strips: &Range<usize>| -> usize {
            strips.clone().map(|strip| if strip < 96 { 16 * 144 } else { 16 * 272 }).sum()
        };
        assert_eq!(bytes(&(0..192)), mixed.size_bytes());
        for share in shares(&mixed, threads) {
            let fair = mixed.size_bytes() / threads;
            assert!(bytes(&share).abs_diff(fair) <= 16 * 272, "{share:?} of {threads} threads");
        }
    }
}

/// Many threads a processor: a waiting thread gives way, so that a step ends however they are scheduled.
#[test]
fn a_step_on_64_threads_has_the_bits_of_one_thread() {
    for decoder in [
        Decoder::small(StorageFormat::Q4_K),
        Decoder { experts: Some((6, 2)), ..Decoder::small(StorageFormat::F16) },
    ] {
        let graph = Arc::new(decoder.graph(3));
        let tokens = tokens(310, 4);
        let [alone, together] = [1, MANY].map(|threads| {
            let device = device(threads, exact());
            let mut running = Running::new(&device, &graph, Precision::Fast, KvType::F16);
            running.chunked(1, &tokens, &[300, 1, 1, 5])
        });
        assert_same_bits(&together, &alone, &format!("{} on {MANY} threads", decoder.format));
    }
}
