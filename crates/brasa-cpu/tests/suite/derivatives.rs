//! Gradients of whole models: every instruction set against the interpreter in f64.

use std::sync::Arc;

use brasa_cpu::Isa;
use brasa_formats::StorageFormat;
use brasa_graph::derivative::{Wrt, vjp};
use brasa_graph::device::Precision;
use brasa_graph::op::LinearTransposed;
use brasa_graph::reference::Array;
use brasa_graph::step::Step;
use brasa_graph::testing::{
    Case, Random, Tolerance, check as check_case, check_near, evaluate_with, f32_weight, learner, loss_of,
    outputs_on, pooled_encoder, row_network, training_step, varying_weights, with_adapters,
};
use brasa_graph::{DraftTree, Graph, Weight, WeightPart};

use crate::common::running::device;
use crate::common::sets::rounding_sets;
use crate::common::tensors::{Noise, formats, tensor};

/// Checks values and gradients: near the interpreter's, and the same bits for any number of threads.
fn check(
    name: &str,
    graph: &Graph,
    wrt: &Wrt,
    step: &Step,
    isas: &[Isa],
    (precision, bound): (Precision, f64),
) {
    let gradient = vjp(graph, wrt).unwrap();
    assert!(gradient.gradients.iter().all(Option::is_some), "{name}: nothing to check");
    let gradient = Arc::new(gradient.graph);
    let expected: Vec<Array<f64>> = evaluate_with(&gradient, step, &[]);
    for &isa in isas {
        let found = outputs_on(&device(2, isa), &gradient, precision, step);
        assert_eq!(found.len(), expected.len());
        for (number, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let expected = Array::of(vec![expected.floats().len()], expected.floats().to_vec());
            check_near(&format!("{name}, output {number} on {}", isa.name()), found, &expected, bound);
        }
        for threads in [1, 3] {
            let other = outputs_on(&device(threads, isa), &gradient, precision, step);
            let same = other.iter().zip(&found).all(|(other, found)| other.floats() == found.floats());
            assert!(same, "{name}: {threads} threads on {} make other bits than 2", isa.name());
        }
    }
}

const EXACT: (Precision, f64) = (Precision::Reference, 1e-5);

/// More rows than queries, logits or summed elements that are together at a time, beside a single row.
#[test]
fn gradients_of_decoders_equal_the_interpreters() {
    let step = training_step(&[270, 1, 40]);
    for softcap in [None, Some(5.0)] {
        let graph = loss_of(&learner(StorageFormat::F32, 12, None, softcap));
        check("decoder", &graph, &Wrt::new(varying_weights(&graph)), &step, &Isa::available(), EXACT);
    }
}

#[test]
fn gradients_of_experts_equal_the_interpreters() {
    let graph = loss_of(&learner(StorageFormat::F32, 12, Some((4, 2)), None));
    let wrt = Wrt::new(varying_weights(&graph));
    check("experts", &graph, &wrt, &training_step(&[30, 5]), &Isa::available(), EXACT);
}

#[test]
fn gradients_of_adapters_equal_the_interpreters() {
    for format in [StorageFormat::F32, StorageFormat::F16, StorageFormat::Q4_0] {
        let graph = with_adapters(&learner(format, 32, None, None), 32);
        let wrt = Wrt::trainable(&graph);
        assert_eq!(wrt.values.len(), 4);
        check("adapters", &graph, &wrt, &training_step(&[80, 1, 9]), &Isa::available(), EXACT);
    }
}

#[test]
fn gradients_of_encoders_equal_the_interpreters() {
    let graph = pooled_encoder();
    let mut step = training_step(&[70, 1, 9]);
    step.segments.iter_mut().for_each(|segment| segment.given = Vec::new());
    let wrt = Wrt::new(varying_weights(&graph));
    check("encoder", &graph, &wrt, &step, &Isa::available(), EXACT);
}

/// Gradients of gradients: every weight varies, and all gradients count alike.
#[test]
fn second_derivatives_equal_the_interpreters() {
    let graph = row_network();
    let wrt = Wrt::new(varying_weights(&graph));
    assert_eq!(wrt.values.len(), 5);
    let first = vjp(&graph, &wrt).unwrap().graph;
    let mut step = training_step(&[30, 5]);
    step.segments.iter_mut().for_each(|segment| segment.given = Vec::new());
    check("gradient", &first, &wrt, &step, &Isa::available(), EXACT);
}

/// A decoder's second derivatives, through attention.
#[test]
fn second_derivatives_of_decoders_equal_the_interpreters() {
    let step = training_step(&[70, 1, 20]);
    for (experts, softcap) in [(None, None), (None, Some(5.0)), (Some((4, 2)), None)] {
        let graph = loss_of(&learner(StorageFormat::F32, 12, experts, softcap));
        let wrt = Wrt::new(varying_weights(&graph));
        let first = vjp(&graph, &wrt).unwrap().graph;
        check("gradient of a decoder", &first, &wrt, &step, &Isa::available(), EXACT);
    }
}

/// Rows of a tree of drafts see their own branch alone, backwards too.
#[test]
fn gradients_pass_along_the_branches_of_a_tree() {
    let graph = loss_of(&learner(StorageFormat::F32, 12, None, None));
    let mut step = training_step(&[70, 6]);
    let mut random = Random::new(5);
    let parents: Vec<Option<u32>> = (0..70).map(|row| (row > 0).then(|| random.below(row) as u32)).collect();
    step.segments[0].tree = Some(Arc::new(DraftTree::new(&parents).unwrap()));
    let wrt = Wrt::new(varying_weights(&graph));
    check("tree", &graph, &wrt, &step, &Isa::available(), EXACT);
}

/// Weights and activations rounded to bf16, as in products of many rows; or activations rounded to int8 on the way forward.
#[test]
fn rounded_gradients_are_near_the_interpreters() {
    let step = training_step(&[80, 1, 40]);
    for (format, bound) in [(StorageFormat::BF16, 2e-2), (StorageFormat::Q8_0, 6e-2)] {
        let graph = with_adapters(&learner(format, 64, None, None), 64);
        let wrt = Wrt::trainable(&graph);
        check("rounded", &graph, &wrt, &step, &rounding_sets(), (Precision::Fast, bound));
    }
}

/// The other side of a weight of `parts`, times `rows` rows.
fn other_side(name: String, parts: Vec<WeightPart>, rows: usize) -> Case {
    let (n, k) = (parts.iter().map(|part| part.rows.len()).sum(), parts[0].tensor.row_len());
    let mut case = Case::new(name, 5, &f32_weight, |b| {
        let y = b.rows(&[n]);
        let w = b.graph.weight(Weight::new("w", &[n, k], parts));
        b.graph.apply(LinearTransposed, &[y, w])
    });
    (case.steps, case.precision) = (vec![vec![(1, rows)], vec![(2, 1)]], Precision::Fast);
    case
}

/// Every stored format, with columns that three threads share unevenly and sums longer than a piece: in bf16, and in f32 where a set
/// has none.
#[test]
fn the_other_side_of_weights_is_multiplied_in_every_format() {
    let mut noise = Noise::new(17);
    let exact = Isa::detect().unwrap().without_bf16();
    let sets = rounding_sets().into_iter().map(|isa| (isa, Tolerance::BITS_16));
    for (isa, tolerance) in sets.chain([(exact, Tolerance::F32)]) {
        let device = device(3, isa);
        for format in formats() {
            for (n, columns, rows) in [(1100, 300, 70), (48, 1, 9), (37, 64, 33)] {
                let k = usize::next_multiple_of(columns, format.block_len().max(32));
                let part = WeightPart::whole(tensor(format, n, k, &mut noise));
                let name = format!("{format} {n} × {k}, {rows} rows, {}", isa.name());
                check_case(&device, &other_side(name, vec![part], rows), tolerance);
            }
        }
        // Parts that begin where tiles do not, and a part that begins where strips do not.
        for first in [48, 41] {
            let formats = [StorageFormat::Q4_0, StorageFormat::BF16, StorageFormat::Q8_0];
            let counts = [0..first, 5..37, 1..40];
            let parts = formats.into_iter().zip(counts).map(|(format, rows)| {
                let tensor = tensor(format, rows.end + 3, 96, &mut noise);
                WeightPart::of_rows(tensor, rows)
            });
            let name = format!("parts, the first of {first} rows, {}", isa.name());
            check_case(&device, &other_side(name, parts.collect(), 40), tolerance);
        }
    }
}
