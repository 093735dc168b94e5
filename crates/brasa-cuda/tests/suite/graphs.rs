//! Random graphs and every fused operation against the reference interpreter.

use brasa_formats::StorageFormat;
use brasa_graph::device::{KvType, Precision};
use brasa_graph::fuse::Pattern;
use brasa_graph::testing::{
    Case, Decoder, Random, Tolerance, check, check_pattern, f32_weight, random_case, rewritten, stored_as,
};
use brasa_graph::{ValueId, ValueKind};

use crate::device::{device, full_or_few};

#[test]
fn random_graphs_agree_with_the_reference() {
    let Some(device) = device() else { return };
    for seed in 0..full_or_few(device, 40, 16) {
        check(device, &random_case(seed, 4 + seed as usize, &f32_weight), Tolerance(5e-5));
    }
}

#[test]
fn rewritten_graphs_agree_with_the_reference() {
    let Some(device) = device() else { return };
    for seed in 0..full_or_few(device, 24, 8) {
        let case = rewritten(&random_case(seed, 4 + seed as usize, &f32_weight), seed);
        check(device, &case, Tolerance(5e-5));
    }
}

#[test]
fn fused_operations_agree_with_their_definitions() {
    let Some(device) = device() else { return };
    for &pattern in Pattern::ALL {
        check_pattern(device, pattern, 0..6, &f32_weight, Tolerance::F32, |_| {});
    }
}

#[test]
fn fused_operations_agree_in_every_kv_type() {
    let Some(device) = device() else { return };
    for kv in [KvType::F16, KvType::BF16, KvType::Q8] {
        let pattern = Pattern::QkNormRopeCacheWrite;
        check_pattern(device, pattern, 10..16, &f32_weight, Tolerance::F16, |case| case.kv = kv);
    }
}

/// Products of a bank beside those of a layer, gated too: one row, a few, as many as one kernel of products takes, and more.
#[test]
fn fused_banks_agree_on_tensor_cores() {
    let Some(device) = device() else { return };
    let few =
        vec![vec![(1, 5), (2, 2)], vec![(1, 1)], vec![(1, 13), (2, 3)], vec![(2, 17)], vec![(1, 30), (2, 7)]];
    // Of many rows ranks are more inputs of the products beside them.
    let (many, seeds) = full_or_few(device, (vec![(1, 150), (2, 120)], 20..28), (vec![(2, 66)], 20..22));
    let products = [Pattern::LowRankRows, Pattern::LinearLowRankRows, Pattern::GateUpLowRankRows];
    for format in [StorageFormat::F16, StorageFormat::BF16, StorageFormat::F32] {
        // A layer in f32 is not multiplied on tensor cores.
        let make = |random: &mut Random, name: &str, shape: &[usize]| {
            let of_layer = if format == StorageFormat::F32 { StorageFormat::BF16 } else { format };
            stored_as(&random.weight(name, shape), if name == "linear" { of_layer } else { format })
        };
        let check = |pattern, seeds, steps: &Vec<Vec<(u64, usize)>>| {
            check_pattern(device, pattern, seeds, &make, Tolerance::BITS_16, |case| {
                case.precision = Precision::Fast;
                case.steps = steps.clone();
            });
        };
        for pattern in products {
            check(pattern, 20..28, &few);
        }
        for pattern in &products[1..] {
            check(*pattern, seeds.clone(), &vec![many.clone()]);
        }
    }
}

/// One row is not rounded for its products: what a bank adds to it is nearly as exact as of floats, whatever numbers tensor cores multiply.
#[test]
fn a_bank_adds_to_one_row_what_floats_would() {
    let Some(device) = device() else { return };
    for format in [StorageFormat::F16, StorageFormat::BF16, StorageFormat::F32] {
        let make =
            |random: &mut Random, name: &str, shape: &[usize]| stored_as(&random.weight(name, shape), format);
        check_pattern(device, Pattern::LowRankRows, 20..24, &make, Tolerance::F32, |case| {
            case.precision = Precision::Fast;
            case.steps = vec![vec![(1, 1)]];
        });
    }
}

/// A program may end behind any operation of a decoder: what it has made then is what the reference has, of a prompt, of single rows and of both together.
#[test]
fn every_value_of_a_decoder_agrees_with_the_reference() {
    let Some(device) = device() else { return };
    let small = Decoder {
        hidden: 64,
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        feed_forward: 96,
        windows: vec![Some(9)],
        ..Decoder::small(StorageFormat::Q8_0)
    };
    let mixture = Decoder { experts: Some((5, 2)), ..small.clone() };
    let larger = full_or_few(device, vec![Decoder::small(StorageFormat::Q4_K)], vec![]);
    for decoder in [small, mixture].into_iter().chain(larger) {
        let graph = decoder.graph(3);
        let made = |id: &ValueId| matches!(graph.value(*id).kind, ValueKind::Temporary(_));
        let values: Vec<ValueId> = (0..graph.values().len() as u32).map(ValueId).filter(made).collect();
        assert!(values.len() > 15, "{} values", values.len());
        let case = Case {
            name: "every value".into(),
            seed: 3,
            graph: graph.clone().returning(&values),
            steps: vec![vec![(1, 21)], vec![(1, 1)], vec![(1, 1), (2, 3)]],
            kv: KvType::F32,
            precision: Precision::Fast,
        };
        check(device, &case, Tolerance::BITS_16);
    }
}

/// A program may return a weight and an input as they are, as the gradient of a sum does.
#[test]
fn weights_and_inputs_are_returned_as_they_are() {
    let Some(device) = device() else { return };
    let case = Case::new("operands as outputs", 1, &f32_weight, |b| {
        let (bias, ids) = (b.bias("bias", 24), b.token_ids());
        let x = b.rows(&[24]);
        vec![bias, ids, b.graph.add(x, bias)]
    });
    check(device, &case, Tolerance::F32);
}
