//! Linear layers of heads: every storage format, instruction set and number of threads.

use brasa_cpu::Isa;
use brasa_formats::StorageFormat;
use brasa_graph::device::{KvType, Precision};
use brasa_graph::testing::{Company, HeadLayer, Noise, Running, Tolerance, check_heads};

use crate::common::running::device;
use crate::common::sets::{instruction_sets, rounding_sets};

const ROWS: &[usize] = &[1, 2, 5, 19];

#[test]
fn heads_are_near_the_reference_and_do_not_see_their_company() {
    for isa in instruction_sets().into_iter().map(Isa::without_bf16) {
        // Int8 activations.
        let bounds = (Tolerance(3e-2), Company::ChangesNothing);
        check_heads(&device(3, isa), Precision::Fast, ROWS, bounds);
    }
}

#[test]
fn heads_in_reference_precision_are_those_of_the_reference() {
    for isa in [Isa::Scalar, Isa::detect().unwrap()] {
        let bounds = (Tolerance::F32, Company::ChangesNothing);
        check_heads(&device(2, isa), Precision::Reference, ROWS, bounds);
    }
}

#[test]
fn many_rows_of_heads_in_bf16_are_near_the_reference() {
    for isa in rounding_sets() {
        check_heads(&device(2, isa), Precision::Fast, &[70], (Tolerance(3e-2), Company::MayRound));
    }
}

/// More heads than threads and the other way around, and so many rows that threads prepare them together.
#[test]
fn threads_share_out_the_strips_of_all_heads() {
    let mut noise = Noise::new(3);
    let ids: Vec<u32> = (0..150).map(|_| (noise.bits() % 97) as u32).collect();
    for (heads, outputs) in [(1, 64), (17, 16), (5, 100)] {
        for format in [StorageFormat::F16, StorageFormat::Q4_0] {
            let graph = HeadLayer { heads, outputs, inputs: 96, format: Some(format) }.graph(2);
            let run = |threads| {
                let device = device(threads, Isa::detect().unwrap());
                let mut running = Running::new(&device, &graph, Precision::Fast, KvType::F32);
                [running.step(&[(1, &ids)]), running.step(&[(2, &ids[..3])])].concat()
            };
            let one = run(1);
            assert!([2, 3, 8].map(run).iter().all(|many| *many == one), "{heads} heads in {format}");
        }
    }
}
