//! A decoder from end to end: near the reference, and bit for bit the same however its rows are cut into steps or accompanied
//! by others.

use std::sync::Arc;

use brasa_formats::StorageFormat;
use brasa_graph::ValueWidth;
use brasa_graph::device::{Backend, KvType, Precision};
use brasa_graph::pass::add_low_rank_bank;
use brasa_graph::reference::ReferenceBackend;
use brasa_graph::step::{GivenValues, Step};
use brasa_graph::testing::{
    Decoder, Random, Running, Tolerance, adapter_of_projections, assert_same_bits, check_bank,
    check_bank_is_near, compare, tokens,
};

use crate::device::{deterministic, device, full_or_few};

/// Sinks and windows, values of another width than keys, and latent attention.
fn wide_decoders(format: StorageFormat) -> [Decoder; 3] {
    let sinks = Decoder::with_sinks(format, &[Some(10), None]);
    let widths = Decoder { head_dim: 48, value: Some(ValueWidth::Own(24)), ..sinks.clone() };
    [sinks, widths, Decoder { hidden: 64, feed_forward: 64, ..Decoder::latent(format) }]
}

#[test]
fn sinks_and_values_of_other_widths_agree_with_the_reference() {
    let Some(device) = device() else { return };
    let rows = full_or_few(device, 300, 18);
    for decoder in wide_decoders(StorageFormat::F16) {
        let graph = Arc::new(decoder.graph(7));
        let (text, more) = (tokens(rows, 1), tokens(10, 2));
        for (kv, bound) in
            [(KvType::F32, 1e-5), (KvType::F16, 1e-3), (KvType::BF16, 1e-2), (KvType::Q8, 1e-2)]
        {
            let run = |mut running: Running| {
                let mut found = running.step(&[(1, &text), (2, &more)]);
                found.extend(running.step(&[(1, &more[..1]), (2, &text[..1])]));
                found
            };
            let expected = run(Running::new(&ReferenceBackend, &graph, Precision::Reference, kv));
            for (precision, bound) in
                [(Precision::Reference, bound), (Precision::Fast, Tolerance::BITS_16.0.max(bound))]
            {
                let comparison = compare(&run(Running::new(device, &graph, precision, kv)), &expected);
                let label = format!("{} of {:?} {kv:?} {precision:?}", decoder.head_dim, decoder.value);
                assert!(comparison.within(Tolerance(bound)), "{label}: {comparison}");
            }
        }
    }
}

#[test]
fn chunks_and_company_change_no_bit_of_sinks_and_values_of_other_widths() {
    let Some(device) = deterministic() else { return };
    let rows = full_or_few(device, 600, 20);
    for decoder in wide_decoders(StorageFormat::F16) {
        let graph = Arc::new(decoder.graph(9));
        for kv in [KvType::F32, KvType::F16, KvType::Q8, KvType::BF16] {
            let text = tokens(rows, 3);
            let mut running = Running::new(device, &graph, Precision::Fast, kv);
            let whole = running.step(&[(1, &text)]);
            let label = format!("{} of {:?} {kv:?}", decoder.head_dim, decoder.value);
            assert_same_bits(&running.chunked(2, &text, &[1, 7, 64]), &whole, &format!("{label}, chunks"));
            let beside = tokens(20, 4);
            let with_company = running.step(&[(3, &beside), (4, &text)]);
            assert_same_bits(&with_company[20 * 150..], &whole, &format!("{label}, company"));
        }
    }
}

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

/// Long steps, in which ranks are more inputs of the products beside them, are short ones, in which products add them: with as many outputs and rows as the largest
/// kernel takes, with inputs that are cut in parts, and with an adapter whose products are small beside those of the model.
#[test]
fn long_steps_of_a_bank_are_short_ones() {
    let Some(device) = device() else { return };
    let windows = || vec![None];
    let wide = Decoder {
        hidden: 1024,
        heads: 16,
        kv_heads: 4,
        head_dim: 64,
        feed_forward: 3072,
        windows: windows(),
        ..Decoder::small(StorageFormat::Q4_K)
    };
    let narrow = Decoder {
        hidden: 1024,
        heads: 4,
        feed_forward: 256,
        windows: windows(),
        ..Decoder::small(StorageFormat::F16)
    };
    let (decoder, rows, steps) = full_or_few(device, (wide, 690, &[690, 100][..]), (narrow, 70, &[70]));
    let graph = decoder.graph(9);
    let formats = [StorageFormat::BF16, StorageFormat::F32, StorageFormat::F16];
    let (formats, scales) = full_or_few(device, (&formats[..], 2), (&formats[..1], 1));
    for format in formats {
        let mut random = Random::new(6);
        let bank = [16, 8, 32]
            .map(|rank| adapter_of_projections(&decoder, &graph, (rank, *format), 0.5, &mut random));
        let banked = Arc::new(add_low_rank_bank(&graph, &bank).unwrap());
        for scales in &[[0.0, 1.0, -0.5], [0.0, 0.0, 1e-3]][..scales] {
            let in_steps = |most: usize| -> Vec<f32> {
                let mut running = Running::new(device, &banked, Precision::Fast, KvType::F32);
                let text = tokens(rows, 3);
                let step = |ids: &[u32]| {
                    let mut segment = running.segment(1, ids);
                    segment.given = vec![GivenValues::F32(scales.repeat(ids.len()).into())];
                    running.run(vec![segment])
                };
                text.chunks(most).flat_map(step).collect()
            };
            let short = in_steps(16);
            for &most in steps {
                let comparison = compare(&in_steps(most), &short);
                let label = format!("{format}, {scales:?}, {most} rows");
                assert!(comparison.within(Tolerance::BITS_16), "{label}: {comparison}");
            }
        }
    }
}

/// Low-rank products are added within the products that they stand beside, and gates and residuals go with them.
#[test]
fn a_bank_goes_with_the_products_beside_it() {
    let Some(device) = device() else { return };
    let decoder = Decoder::small(StorageFormat::Q4_K);
    let graph = decoder.graph(9);
    let adapter = |seed| {
        let format = (8, StorageFormat::BF16);
        adapter_of_projections(&decoder, &graph, format, 0.5, &mut Random::new(seed))
    };
    let banked = Arc::new(add_low_rank_bank(&graph, &[adapter(1), adapter(2)]).unwrap());
    let mut running = Running::new(device, &banked, Precision::Fast, KvType::F32);
    let mut segment = running.segment(1, &tokens(3, 1));
    segment.given = vec![GivenValues::F32([1.0, 0.0].repeat(3).into())];
    let times = running.program.profile(&Step { segments: vec![segment] }, &mut *running.pool).unwrap();
    let labels: Vec<String> = times.into_iter().map(|time| time.label).collect();
    let count = |label: String| labels.iter().filter(|found| **found == label).count();
    for layer in 0..2 {
        for name in ["qkv", "o", "gate_up", "down"].map(|name| format!("layers.{layer}.{name}")) {
            assert_eq!(count(format!("linear {name} + {name}.low_rank_a")), 1, "{labels:#?}");
        }
    }
    assert_eq!(["gated", "add", "mul"].map(|label| count(label.into())), [0; 3], "{labels:#?}");
}

/// Gated products are rounded by a bound that counts the adapter beside the weight, even one that is a thousand times as large.
#[test]
fn gated_products_of_a_large_adapter_are_finite() {
    let Some(device) = device() else { return };
    let decoder = Decoder { head_norms: false, ..Decoder::small(StorageFormat::F16) };
    let graph = decoder.graph(9);
    let format = (8, StorageFormat::BF16);
    let mut adapter = adapter_of_projections(&decoder, &graph, format, 3000.0, &mut Random::new(5));
    adapter.retain(|of| graph.weight(of.weight).name.ends_with("gate_up"));
    let banked = Arc::new(add_low_rank_bank(&graph, &[adapter]).unwrap());
    let run = |device: &dyn Backend| {
        let mut running = Running::new(device, &banked, Precision::Fast, KvType::F32);
        [3, 1, 20, 100].map(|rows| {
            let mut segment = running.segment(1, &tokens(rows, rows as u64));
            segment.given = vec![GivenValues::F32(vec![1.0; rows].into())];
            running.run(vec![segment])
        })
    };
    for (found, expected) in run(device).iter().zip(&run(&ReferenceBackend)) {
        let comparison = compare(found, expected);
        assert!(comparison.within(Tolerance::BITS_16), "{} logits: {comparison}", found.len());
    }
}
