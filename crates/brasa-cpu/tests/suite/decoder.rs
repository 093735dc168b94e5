//! A decoder from end to end: near the reference, and bit for bit the same however its rows are cut into steps, shared
//! among threads, or accompanied by others.

use std::sync::Arc;

use crate::common::running::{Running, assert_same_bits, device, exact, tokens};
use crate::common::sets::swept_tiles;
use brasa_cpu::Isa;
use brasa_formats::StorageFormat;
use brasa_graph::ValueWidth;
use brasa_graph::device::{KvType, Precision};
use brasa_graph::reference::ReferenceBackend;
use brasa_graph::testing::Decoder;
use brasa_graph::testing::{Tolerance, compare};

fn assert_near_reference(decoder: &Decoder, precision: Precision, kv: KvType, bound: f32) {
    let graph = Arc::new(decoder.graph(7));
    let (tokens, more) = (tokens(260, 1), tokens(10, 2));
    // The reference keeps what the device should keep.
    let of_reference = if precision == Precision::Reference { kv } else { KvType::F32 };
    let mut reference = Running::new(&ReferenceBackend, &graph, precision, of_reference);
    let expected = reference.step(&[(1, &tokens), (2, &more)]);
    for isa in [Isa::Scalar, exact()] {
        let mut running = Running::new(&device(2, isa), &graph, precision, kv);
        let found = running.step(&[(1, &tokens), (2, &more)]);
        let comparison = compare(&found, &expected);
        let label = format!("{} {precision:?} {kv:?} {}", decoder.format, isa.name());
        assert!(comparison.within(Tolerance(bound)), "{label}: {comparison}");
    }
}

#[test]
fn reference_precision_is_the_reference() {
    for format in [StorageFormat::F32, StorageFormat::Q4_K, StorageFormat::Q8_0] {
        let decoder = Decoder { softcap: Some(20.0), ..Decoder::small(format) };
        assert_near_reference(&decoder, Precision::Reference, KvType::F32, 1e-5);
    }
    let mixture = Decoder { experts: Some((5, 2)), ..Decoder::small(StorageFormat::Q6_K) };
    assert_near_reference(&mixture, Precision::Reference, KvType::F32, 1e-5);
}

#[test]
fn halves_in_the_cache_cost_a_thousandth() {
    let decoder = Decoder::small(StorageFormat::F16);
    assert_near_reference(&decoder, Precision::Fast, KvType::F32, 1e-5);
    assert_near_reference(&decoder, Precision::Fast, KvType::F16, 1e-3);
}

#[test]
fn int8_activations_stay_within_their_bound() {
    for format in [StorageFormat::Q4_0, StorageFormat::Q4_K, StorageFormat::Q6_K, StorageFormat::Q8_0] {
        assert_near_reference(&Decoder::small(format), Precision::Fast, KvType::F16, 3e-2);
    }
}

/// Products and attention of many rows in bf16, whatever the weights.
#[test]
fn prompts_in_bf16_stay_within_their_bound() {
    let graph_of = |format| Arc::new(Decoder::small(format).graph(7));
    let tokens = tokens(260, 1);
    for isa in [Some(exact()), swept_tiles()].into_iter().flatten().filter_map(Isa::with_bf16) {
        for format in [StorageFormat::F16, StorageFormat::Q4_K, StorageFormat::Q8_0] {
            let graph = graph_of(format);
            let mut reference = Running::new(&ReferenceBackend, &graph, Precision::Fast, KvType::F32);
            let expected = reference.step(&[(1, &tokens)]);
            let mut running = Running::new(&device(2, isa), &graph, Precision::Fast, KvType::F16);
            let comparison = compare(&running.step(&[(1, &tokens)]), &expected);
            let rounds = format == StorageFormat::F16 || isa.has_tiles();
            let bound = if rounds { 1e-2 } else { 3e-2 };
            assert!(comparison.within(Tolerance(bound)), "{format} {}: {comparison}", isa.name());
            let mut exactly = Running::new(&device(2, exact()), &graph, Precision::Fast, KvType::F16);
            let differs = compare(&exactly.step(&[(1, &tokens)]), &expected) != comparison;
            assert_eq!(differs, rounds, "{format} {}: rounded", isa.name());
        }
    }
}

/// Whole, chunked, row by row at the end, with company, on one to three threads.
fn assert_law(decoder: &Decoder, isa: Isa, precision: Precision, kv: KvType) {
    let graph = Arc::new(decoder.graph(3));
    let (a, b) = (tokens(530, 4), tokens(70, 5));
    let alone = Running::new(&device(1, isa), &graph, precision, kv).chunked(1, &a, &[a.len()]);
    let label = format!("{} {precision:?} {kv:?} {}", decoder.format, isa.name());
    for (threads, rows) in
        [(1, &[255, 1, 37][..]), (2, &[530]), (3, &[17, 300, 2, 64]), (2, &[509, 1, 1, 1, 3])]
    {
        let mut running = Running::new(&device(threads, isa), &graph, precision, kv);
        let found = running.chunked(1, &a, rows);
        assert_same_bits(&found, &alone, &format!("{label}, {threads} threads, steps of {rows:?}"));
    }
    let width = 150;
    for threads in [1, 3] {
        let mut running = Running::new(&device(threads, isa), &graph, precision, kv);
        let mut found = Vec::new();
        for (first, rows, company) in [(0, 300, 50), (300, 5, 4), (305, 1, 1), (306, 1, 15), (307, 223, 0)] {
            let other = &b[..company];
            let parts = [(2, other), (1, &a[first..first + rows])];
            let logits = running.step(&parts[usize::from(company == 0)..]);
            found.extend_from_slice(&logits[company * width..]);
        }
        assert_same_bits(&found, &alone, &format!("{label}, {threads} threads, in company"));
    }
}

#[test]
fn chunked_is_whole_and_batched_is_alone() {
    let decoder = Decoder::small(StorageFormat::Q4_0);
    for kv in [KvType::F32, KvType::F16, KvType::BF16, KvType::Q8] {
        assert_law(&decoder, exact(), Precision::Fast, kv);
    }
    assert_law(&decoder, exact(), Precision::Reference, KvType::F32);
    assert_law(&Decoder::small(StorageFormat::F16), exact(), Precision::Fast, KvType::F16);
}

#[test]
fn the_law_holds_on_every_instruction_set() {
    let decoder = Decoder {
        windows: vec![Some(100), None],
        head_dim: 40,
        heads: 4,
        kv_heads: 1,
        hidden: 64,
        feed_forward: 96,
        ..Decoder::small(StorageFormat::Q8_0)
    };
    for isa in Isa::available() {
        assert_law(&decoder, isa, Precision::Fast, KvType::F16);
    }
}

/// Sinks and windows, values of another width than keys, and latent attention.
fn wide_decoders(format: StorageFormat) -> [Decoder; 3] {
    let small = |decoder: Decoder| Decoder { hidden: 64, feed_forward: 64, ..decoder };
    let sinks = small(Decoder::with_sinks(format, &[Some(100), None]));
    let widths = Decoder { head_dim: 48, value: Some(ValueWidth::Own(20)), ..sinks.clone() };
    [sinks, widths, small(Decoder::latent(format))]
}

#[test]
fn the_law_holds_for_sinks_and_values_of_other_widths() {
    for decoder in wide_decoders(StorageFormat::Q8_0) {
        for kv in [KvType::F32, KvType::F16, KvType::BF16, KvType::Q8] {
            assert_law(&decoder, exact(), Precision::Fast, kv);
        }
        for isa in Isa::available() {
            assert_law(&decoder, isa, Precision::Fast, KvType::F16);
        }
    }
}

#[test]
fn sinks_and_values_of_other_widths_are_near_the_reference() {
    for decoder in wide_decoders(StorageFormat::F32) {
        for (kv, bound) in
            [(KvType::F32, 1e-5), (KvType::F16, 1e-3), (KvType::BF16, 1e-2), (KvType::Q8, 1e-2)]
        {
            assert_near_reference(&decoder, Precision::Reference, kv, bound);
        }
    }
}

#[test]
fn the_law_holds_for_experts() {
    let decoder = Decoder {
        experts: Some((6, 2)),
        hidden: 64,
        feed_forward: 64,
        ..Decoder::small(StorageFormat::Q5_0)
    };
    assert_law(&decoder, exact(), Precision::Fast, KvType::Q8);
}
