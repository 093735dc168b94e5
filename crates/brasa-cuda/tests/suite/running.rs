//! A decoder from end to end: near the reference, and bit for bit the same however its rows are cut into steps or accompanied
//! by others.

use std::sync::Arc;

use brasa_formats::StorageFormat;
use brasa_graph::device::{KvType, Precision};
use brasa_graph::reference::ReferenceBackend;
use brasa_graph::testing::{
    Decoder, Running, Tolerance, assert_same_bits, check_bank, check_bank_is_near, compare, tokens,
};

use crate::device::{deterministic, device, full_or_few};

fn decoders() -> Vec<Decoder> {
    vec![
        Decoder { softcap: Some(20.0), ..Decoder::small(StorageFormat::Q4_K) },
        Decoder { experts: Some((5, 2)), ..Decoder::small(StorageFormat::Q6_K) },
        Decoder::small(StorageFormat::F16),
    ]
}

#[test]
fn a_decoder_agrees_with_the_reference_in_every_kv_type() {
    let Some(device) = device() else { return };
    let (rows, count) = full_or_few(device, (400, 3), (16, 1));
    for decoder in &decoders()[..count] {
        let graph = Arc::new(decoder.graph(7));
        let (tokens, more) = (tokens(rows, 1), tokens(10, 2));
        for (kv, bound) in
            [(KvType::F32, 1e-5), (KvType::F16, 1e-3), (KvType::BF16, 1e-2), (KvType::Q8, 1e-2)]
        {
            let run = |mut running: Running| running.step(&[(1, &tokens), (2, &more)]);
            let expected = run(Running::new(&ReferenceBackend, &graph, Precision::Reference, kv));
            let found = run(Running::new(device, &graph, Precision::Reference, kv));
            let comparison = compare(&found, &expected);
            assert!(comparison.within(Tolerance(bound)), "{} {kv:?}: {comparison}", decoder.format);
        }
    }
}

#[test]
fn prompts_on_tensor_cores_agree_with_the_reference() {
    let Some(device) = device() else { return };
    let mut decoders = decoders();
    let formats = [StorageFormat::BF16, StorageFormat::Q8_0, StorageFormat::Q4_0, StorageFormat::Q4_K];
    decoders.extend(formats.map(Decoder::small));
    decoders.truncate(full_or_few(device, 7, 1));
    for decoder in &decoders {
        let graph = Arc::new(decoder.graph(11));
        for rows in full_or_few(device, &[17, 64, 65, 200, 500][..], &[19][..]) {
            let text = tokens(*rows, 5);
            let beside = tokens(9, 6);
            let types = [KvType::F16, KvType::Q8, KvType::F32, KvType::BF16];
            for kv in types.into_iter().take(full_or_few(device, 4, 2)) {
                // A code that is rounded to its neighbour is enough to choose another expert.
                if kv == KvType::Q8 && decoder.experts.is_some() {
                    continue;
                }
                let run = |mut running: Running| {
                    let mut found = running.step(&[(1, &beside), (2, &text)]);
                    found.extend(running.step(&[(2, &text[..17]), (1, &text[..3])]));
                    found
                };
                let expected = run(Running::new(&ReferenceBackend, &graph, Precision::Reference, kv));
                let found = run(Running::new(device, &graph, Precision::Fast, kv));
                let comparison = compare(&found, &expected);
                println!("{} {rows} rows {kv:?}: {comparison}", decoder.format);
                assert!(
                    comparison.within(Tolerance::BITS_16),
                    "{} {rows} {kv:?}: {comparison}",
                    decoder.format
                );
            }
        }
    }
}

#[test]
fn chunks_and_company_change_no_bit() {
    let Some(device) = deterministic() else { return };
    let (rows, count) = full_or_few(device, (600, 3), (20, 1));
    for decoder in &decoders()[..count] {
        let graph = Arc::new(decoder.graph(9));
        for kv in [KvType::F32, KvType::F16, KvType::Q8].into_iter().take(full_or_few(device, 3, 1)) {
            let text = tokens(rows, 3);
            let mut running = Running::new(device, &graph, Precision::Fast, kv);
            let whole = running.step(&[(1, &text)]);
            let label = format!("{} {kv:?}", decoder.format);
            assert_same_bits(&running.chunked(2, &text, &[1, 7, 64]), &whole, &format!("{label}, chunks"));
            let beside = tokens(20, 4);
            let with_company = running.step(&[(3, &beside), (4, &text)]);
            assert_same_bits(&with_company[20 * 150..], &whole, &format!("{label}, company"));
        }
    }
}

/// Rows of one step with other adapters, places in the bank, and an adapter whose products are infinite.
#[test]
fn rows_of_a_bank_are_those_of_their_own_adapters_alone() {
    let Some(device) = device() else { return };
    check_bank(device, Precision::Reference, &Decoder::small(StorageFormat::Q4_K));
}

/// Few rows read their own ranks alone, many rows all of them.
#[test]
fn steps_of_a_bank_agree_with_the_reference() {
    let Some(device) = device() else { return };
    let formats = [StorageFormat::BF16, StorageFormat::F32, StorageFormat::F16];
    let decoders = [
        Decoder::small(StorageFormat::Q4_K),
        Decoder { head_norms: false, ..Decoder::small(StorageFormat::F16) },
    ];
    for decoder in &decoders[..full_or_few(device, 2, 1)] {
        for format in formats {
            check_bank_is_near(device, decoder, format, Tolerance::BITS_16);
        }
    }
}
