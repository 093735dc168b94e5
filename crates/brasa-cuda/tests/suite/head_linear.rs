//! Linear layers of heads: every storage format, for one row, a few, and many.

use brasa_formats::StorageFormat;
use brasa_graph::device::{KvType, Precision};
use brasa_graph::step::Step;
use brasa_graph::testing::{Company, HeadLayer, Running, Tolerance, check_heads};

use crate::device::{deterministic, device, full_or_few};

#[test]
fn heads_do_not_see_their_company() {
    let Some(device) = deterministic() else { return };
    let rows = full_or_few(device, &[1, 2, 9, 40][..], &[1, 9][..]);
    check_heads(device, Precision::Fast, rows, (Tolerance::F32, Company::ChangesNothing));
}

#[test]
fn heads_on_tensor_cores_agree_with_the_reference() {
    let Some(device) = device() else { return };
    let rows = full_or_few(device, &[1, 8, 9, 17, 97, 300][..], &[1, 3, 17][..]);
    check_heads(device, Precision::Fast, rows, (Tolerance(2e-3), Company::MayRound));
}

/// Blocks of 64 and of 128 rows, and tiles that 1, 2, 4 and 8 warps share.
#[test]
fn heads_of_every_size_agree_with_those_of_one_row() {
    let Some(device) = device() else { return };
    let rows = full_or_few(device, 400, 70);
    let ids: Vec<u32> = (0..rows).map(|row| row * 31 % 97).collect();
    for (heads, outputs, inputs) in [(2, 16, 64), (3, 48, 128), (2, 64, 192), (2, 16, 512)] {
        for format in [StorageFormat::BF16, StorageFormat::Q8_0] {
            let graph = HeadLayer { heads, outputs, inputs, format: Some(format) }.graph(9);
            let mut running = Running::new(device, &graph, Precision::Fast, KvType::F16);
            let together = running.step(&[(1, &ids)]);
            let alone: Vec<f32> =
                ids.iter().enumerate().flat_map(|(i, id)| running.step(&[(2 + i as u64, &[*id])])).collect();
            let comparison = brasa_graph::testing::compare(&together, &alone);
            assert!(comparison.within(Tolerance(2e-3)), "{heads} heads, {outputs} × {inputs}: {comparison}");
        }
    }
}

#[test]
fn a_row_of_heads_is_one_operation_that_says_what_it_costs() {
    let Some(device) = device() else { return };
    let layer = HeadLayer { heads: 4, outputs: 32, inputs: 256, format: Some(StorageFormat::F16) };
    let mut running = Running::new(device, &layer.graph(1), Precision::Fast, KvType::F16);
    let segment = running.segment(1, &[3]);
    let times = running.program.profile(&Step { segments: vec![segment] }, &mut *running.pool).unwrap();
    let own = times.iter().find(|time| time.label == "head_linear heads").expect("the layer");
    let elements = 4 * 32 * 256;
    assert_eq!((own.bytes, own.flops), (2 * elements, 2 * elements));
}
