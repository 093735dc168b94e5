//! Gradients of whole models against the interpreter in f64.

use std::ops::ControlFlow;
use std::sync::Arc;

use brasa_formats::StorageFormat;
use brasa_graph::derivative::{Wrt, vjp};
use brasa_graph::device::{Backend, KvPoolSpec, KvType, Precision, ProgramLimits};
use brasa_graph::op::{Attention, KvSource, LinearTransposed, Mask, Matmul};
use brasa_graph::pass::{LowRank, add_low_rank, attend_to_rows};
use brasa_graph::reference::Array;
use brasa_graph::step::{Outs, Segment, SequenceId, Step};
use brasa_graph::testing::{
    Case, CaseBuilder, Decoder, Noise, Random, Tolerance, check as check_case, check_near, evaluate_with,
    f32_weight, formats, learner, loss_of, outputs_on, pooled_encoder, random_tensor, row_network,
    training_step, varying_weights, weight, with_adapters,
};
use brasa_graph::{DraftTree, Graph, ValueId, Weight, WeightId, WeightPart};

use crate::device::{device, full_or_few, separate};

/// Checks that values and gradients are near the interpreter's.
fn check(name: &str, graph: &Graph, wrt: &Wrt, step: &Step, (precision, bound): (Precision, f64)) {
    let Some(device) = device() else { return };
    let gradient = vjp(graph, wrt).unwrap();
    assert!(gradient.gradients.iter().all(Option::is_some), "{name}: nothing to check");
    let gradient = Arc::new(gradient.graph);
    let expected: Vec<Array<f64>> = evaluate_with(&gradient, step, &[]);
    let found = outputs_on(device, &gradient, precision, step);
    assert_eq!(found.len(), expected.len());
    for (number, (found, expected)) in found.iter().zip(&expected).enumerate() {
        let expected = Array::of(vec![expected.floats().len()], expected.floats().to_vec());
        check_near(&format!("{name}, output {number}"), found, &expected, bound);
    }
}

const EXACT: (Precision, f64) = (Precision::Reference, 1e-5);

/// Texts of so many rows on a GPU, or on an emulated one, which is slow.
fn step(rows: &[usize], few: &[usize]) -> Step {
    training_step(device().map_or(few, |device| full_or_few(device, rows, few)))
}

/// On a GPU more rows than queries or logits that are together at a time, beside a single row.
#[test]
fn gradients_of_decoders_equal_the_interpreters() {
    let step = step(&[270, 1, 40], &[9, 1, 4]);
    for softcap in [None, Some(5.0)] {
        let graph = loss_of(&learner(StorageFormat::F32, 12, None, softcap));
        check("decoder", &graph, &Wrt::new(varying_weights(&graph)), &step, EXACT);
    }
}

/// Two windows over the same queries, keys and values: each gradient is that of its own window.
#[test]
fn gradients_of_two_windows_equal_the_interpreters() {
    let case = Case::new("two windows", 4, &f32_weight, |b| {
        let x = b.rows(&[64]);
        let operands = ["q", "k", "v"].map(|name| {
            let w = b.weight(name, &[64, 64]);
            let y = b.graph.linear(x, w);
            b.graph.reshape(y, &[2, 32])
        });
        let [all, near] = [None, Some(3)].map(|window| {
            let source = KvSource::Step(Mask::Causal);
            b.graph.attention(&operands, Attention { source, scale: 0.2, window, softcap: None })
        });
        let near = b.graph.scale(near, 2.0);
        let y = b.graph.add(all, near);
        let y = b.graph.reshape(y, &[64]);
        let y = b.graph.mul(y, x);
        let each = b.graph.sum(y, 1);
        vec![b.graph.sum(each, 0)]
    });
    let wrt = Wrt::new(varying_weights(&case.graph));
    let mut step = step(&[70, 20], &[9, 4]);
    step.segments.iter_mut().for_each(|segment| segment.given = Vec::new());
    for exactly in [EXACT, (Precision::Fast, 2e-2)] {
        check("two windows", &case.graph, &wrt, &step, exactly);
    }
}

#[test]
fn gradients_of_experts_equal_the_interpreters() {
    let graph = loss_of(&learner(StorageFormat::F32, 12, Some((4, 2)), None));
    let wrt = Wrt::new(varying_weights(&graph));
    check("experts", &graph, &wrt, &step(&[30, 5], &[6, 2]), EXACT);
}

/// Gradients of gradients are made of operations that there are, but for attention's, which is refused by name.
#[test]
fn second_derivatives_equal_the_interpreters() {
    let graph = row_network();
    let wrt = Wrt::new(varying_weights(&graph));
    let first = vjp(&graph, &wrt).unwrap().graph;
    let mut step = step(&[30, 5], &[6, 2]);
    step.segments.iter_mut().for_each(|segment| segment.given = Vec::new());
    check("gradient", &first, &wrt, &step, EXACT);

    let Some(device) = device() else { return };
    let graph = loss_of(&learner(StorageFormat::F32, 12, None, None));
    let wrt = Wrt::new(varying_weights(&graph));
    let first = vjp(&graph, &wrt).unwrap().graph;
    let second = Arc::new(vjp(&first, &wrt).unwrap().graph);
    let weights = device.upload(&second, Precision::Reference, &mut |_| ControlFlow::Continue(())).unwrap();
    let limits = ProgramLimits { max_rows: 8, max_outs: 8, max_segments: 2 };
    let error = device.compile(second, weights, limits.into()).err().unwrap().to_string();
    assert!(error.contains("attention_gradient_tangent"), "{error}");
}

#[test]
fn gradients_of_adapters_equal_the_interpreters() {
    for format in [StorageFormat::F32, StorageFormat::F16, StorageFormat::Q4_0] {
        let graph = with_adapters(&learner(format, 32, None, None), 32);
        let wrt = Wrt::trainable(&graph);
        assert_eq!(wrt.values.len(), 4);
        check("adapters", &graph, &wrt, &step(&[80, 1, 9], &[7, 1, 2]), EXACT);
    }
}

/// Rows rounded to halves, and sums on tensor cores.
#[test]
fn rounded_gradients_are_near_the_interpreters() {
    let formats = [StorageFormat::BF16, StorageFormat::Q8_0, StorageFormat::Q4_K];
    let count = device().map_or(1, |device| full_or_few(device, 3, 1));
    for format in &formats[..count] {
        let graph = with_adapters(&learner(*format, 256, None, None), 256);
        let wrt = Wrt::trainable(&graph);
        let step = step(&[300, 1, 40], &[5, 1]);
        check("rounded", &graph, &wrt, &step, (Precision::Fast, 2e-2));
    }
}

/// Adapters of linear layers, on rows that are rounded once for all that reads them: pieces of rows that end within them, more columns than a block takes, a
/// single row, and low-rank products that are a thousand times larger than the rows that they stand beside, or as much smaller.
#[test]
fn low_rank_products_read_rounded_rows() {
    for (width, rank, factor) in [(96, 20, 1.0), (80, 3, 1000.0), (80, 3, 1e-3)] {
        let graph = learner(StorageFormat::BF16, width, None, None);
        let mut random = Random::new(3);
        let layers = graph.weights().iter().enumerate();
        let layers = layers.filter(|(_, weight)| weight.name.contains("layers.") && weight.shape.len() == 2);
        let adapters = layers.map(|(number, of)| {
            let (name, outputs, inputs) = (&of.name, of.shape[0], of.shape[1]);
            let mut learned = |name: String, shape: [usize; 2], scale: f32| {
                let values = random.normals(shape[0] * shape[1], scale / (shape[1] as f32).sqrt());
                Weight { trainable: true, ..weight(&name, &shape, &values) }
            };
            let a = learned(format!("{name}.a"), [rank, inputs], factor);
            let b = learned(format!("{name}.b"), [outputs, rank], factor.recip());
            LowRank { weight: WeightId(number as u32), rows: 0..outputs, a, b, scale: 0.5, gain: None }
        });
        let adapters: Vec<_> = adapters.collect();
        let graph = loss_of(&add_low_rank(&graph, &adapters).unwrap());
        for step in [step(&[300, 1, 40], &[66, 1]), training_step(&[1])] {
            let name = format!("rank {rank}, a factor of {factor}");
            check(&name, &graph, &Wrt::trainable(&graph), &step, (Precision::Fast, 2e-2));
        }
    }
}

/// A head and its loss take 1,024 rows at a time: a last row beyond them, with a soft-cap and without.
#[test]
fn losses_of_more_rows_than_are_together_have_their_gradients() {
    for (format, precision, bound) in
        [(StorageFormat::F32, Precision::Reference, 1e-5), (StorageFormat::BF16, Precision::Fast, 1e-2)]
    {
        for softcap in [None, Some(5.0)] {
            let spec = Decoder { windows: Vec::new(), hidden: 64, softcap, ..Decoder::small(format) };
            let graph = loss_of(&spec.graph(3));
            let norm = varying_weights(&graph).into_iter().filter(|&id| graph.value(id).shape.rank() == 1);
            let step = training_step(&[1000, 25]);
            check("head", &graph, &Wrt::new(norm), &step, (precision, bound));
        }
    }
}

/// Attention alone is rounded: everything else is stored in f32. Windows that end within a tile, soft-caps, every width that has kernels.
#[test]
fn attention_on_tensor_cores_is_near_the_interpreters() {
    let cases = [(64, None, None), (32, Some(9), None), (96, None, Some(3.0)), (128, Some(70), Some(5.0))];
    let count = device().map_or(1, |device| full_or_few(device, 4, 2));
    for &(head_dim, window, softcap) in &cases[..count] {
        let spec = Decoder { head_dim, softcap, windows: vec![window], ..Decoder::small(StorageFormat::F32) };
        let graph = loss_of(&attend_to_rows(&spec.graph(3)).unwrap());
        let step = step(&[300, 1, 150], &[70, 1]);
        let (name, wrt) = (format!("heads of {head_dim}"), Wrt::new(varying_weights(&graph)));
        check(&name, &graph, &wrt, &step, (Precision::Fast, 1e-2));
    }
}

/// The kernels on tensor cores round their operands, which sums in f32 do not: the test above would not notice if these took their place.
#[test]
fn attention_on_tensor_cores_rounds_its_operands() {
    let Some(device) = device() else { return };
    let spec = Decoder { windows: vec![None], ..Decoder::small(StorageFormat::F32) };
    let graph = loss_of(&attend_to_rows(&spec.graph(3)).unwrap());
    let gradient = Arc::new(vjp(&graph, &Wrt::new(varying_weights(&graph))).unwrap().graph);
    let step = step(&[300, 40], &[20]);
    let [exact, rounded] = [Precision::Reference, Precision::Fast]
        .map(|precision| outputs_on(device, &gradient, precision, &step));
    // Gradients of queries, keys and values, and of everything in front of them.
    let off = exact[1..].iter().zip(&rounded[1..]).map(|(exact, rounded)| {
        let pairs = || exact.floats().iter().zip(rounded.floats());
        let error: f64 = pairs().map(|(a, b)| (a - b).powi(2)).sum();
        (error / pairs().map(|(a, _)| a * a).sum::<f64>()).sqrt()
    });
    let off = off.fold(0.0, f64::max);
    assert!((2e-5..1e-2).contains(&off), "{off:.1e}");
}

/// Programs share kernels: one for narrow heads, which need less shared memory, leaves another's as much as it was compiled with.
#[test]
fn programs_of_other_heads_do_not_meet() {
    let Some(device) = device() else { return };
    let step = step(&[70], &[5]);
    let compiled = |head_dim: usize| {
        let spec = Decoder { head_dim, windows: vec![None], ..Decoder::small(StorageFormat::F32) };
        let graph = loss_of(&attend_to_rows(&spec.graph(3)).unwrap());
        let gradient = Arc::new(vjp(&graph, &Wrt::new(varying_weights(&graph))).unwrap().graph);
        let weights =
            device.upload(&gradient, Precision::Reference, &mut |_| ControlFlow::Continue(())).unwrap();
        let limits = ProgramLimits { max_rows: 70, max_outs: 70, max_segments: 1 };
        let spec = KvPoolSpec::of(&gradient, KvType::F32);
        (device.compile(gradient, weights, limits.into()).unwrap(), device.kv_pool(spec).unwrap())
    };
    let (mut wide, mut pool) = compiled(64);
    let _narrow = compiled(16);
    wide.run(&step, &mut *pool).unwrap();
}

#[test]
fn gradients_of_encoders_equal_the_interpreters() {
    let graph = pooled_encoder();
    let mut step = training_step(&[70, 1, 9]);
    step.segments.iter_mut().for_each(|segment| segment.given = Vec::new());
    let wrt = Wrt::new(varying_weights(&graph));
    check("encoder", &graph, &wrt, &step, EXACT);
}

/// Rows of a tree of drafts see their own branch alone, backwards too.
#[test]
fn gradients_pass_along_the_branches_of_a_tree() {
    let graph = loss_of(&learner(StorageFormat::F32, 12, None, None));
    let mut step = step(&[70, 6], &[12, 2]);
    let mut random = Random::new(5);
    let rows = step.segments[0].rows;
    let parents: Vec<Option<u32>> =
        (0..rows).map(|row| (row > 0).then(|| random.below(row) as u32)).collect();
    step.segments[0].tree = Some(Arc::new(DraftTree::new(&parents).unwrap()));
    let wrt = Wrt::new(varying_weights(&graph));
    check("tree", &graph, &wrt, &step, EXACT);
}

/// Every stored format, and parts that begin where tiles do not.
#[test]
fn the_other_side_of_weights_is_multiplied_in_every_format() {
    let Some(device) = device() else { return };
    let mut noise = Noise::new(17);
    let other_side = |name: String, parts: Vec<WeightPart>, rows: usize| {
        let (n, k) = (parts.iter().map(|part| part.rows.len()).sum(), parts[0].tensor.row_len());
        let mut case = Case::new(name, 5, &f32_weight, |b| {
            let y = b.rows(&[n]);
            let w = b.graph.weight(Weight::new("w", &[n, k], parts));
            b.graph.apply(LinearTransposed, &[y, w])
        });
        (case.steps, case.precision) = (vec![vec![(1, rows)], vec![(2, 1)]], Precision::Fast);
        case
    };
    let shapes = full_or_few(device, &[(1100, 300, 70), (48, 1, 9), (37, 64, 33)][..], &[(37, 64, 3)][..]);
    for format in formats() {
        for &(n, columns, rows) in shapes {
            let k = usize::next_multiple_of(columns, format.block_len().max(32));
            let part = WeightPart::whole(random_tensor(format, n, k, &mut noise));
            let name = format!("{format} {n} × {k}, {rows} rows");
            check_case(device, &other_side(name, vec![part], rows), Tolerance::BITS_16);
        }
    }
    let counts = [0..41, 5..37, 1..40];
    let parts = [StorageFormat::Q4_0, StorageFormat::BF16, StorageFormat::Q8_0].into_iter().zip(counts);
    let parts = parts.map(|(format, rows)| {
        let tensor = random_tensor(format, rows.end + 3, 96, &mut noise);
        WeightPart::of_rows(tensor, rows)
    });
    check_case(device, &other_side("parts".into(), parts.collect(), 5), Tolerance::BITS_16);
}

/// Products of matrices on tensor cores are as exact as in f32, whichever of their operands go along the sum in memory; narrow, wide and square results,
/// sums in one piece and in parts.
#[test]
fn products_on_tensor_cores_are_as_exact_as_floats() {
    let Some(device) = device() else { return };
    let rows = full_or_few(device, 700, 37);
    let sizes = [(40, 9), (7, 70), (70, 67), (130, 16), (70, 1), (16, 132), (1, 5), (129, 70)];
    for &(m, n) in &sizes[..full_or_few(device, 8, 3)] {
        let check_product = |name: &str, build: &dyn Fn(&mut CaseBuilder) -> Vec<ValueId>| {
            let mut case = Case::new(format!("{name} of {m} × {n}"), 3, &f32_weight, build);
            (case.steps, case.precision) = (vec![vec![(1, rows)], vec![(2, 3)]], Precision::Fast);
            check_case(device, &case, Tolerance::F32);
        };
        check_product("across both", &|b| {
            let operands = [b.rows(&[m]), b.rows(&[n])];
            b.graph.apply(Matmul { transpose_a: true, transpose_b: false }, &operands)
        });
        for transpose_b in [false, true] {
            check_product("along a row", &|b| {
                let operands = [b.rows(&[m]), b.weight("b", &if transpose_b { [n, m] } else { [m, n] })];
                b.graph.apply(Matmul { transpose_a: false, transpose_b }, &operands)
            });
        }
    }
}

/// A weight is turned around once, and again when it has other elements; where launches are separate it is turned at each step.
#[test]
fn turned_weights_are_kept_until_they_change() {
    let (Some(device), Some(separate)) = (device(), separate()) else { return };
    let mut noise = Noise::new(23);
    let tensor = random_tensor(StorageFormat::BF16, 150, 96, &mut noise);
    let weight = Weight::new("w", &[150, 96], vec![WeightPart::whole(tensor)]).unwrap();
    let case = Case::new("turned", 3, &f32_weight, |b| {
        let y = b.rows(&[150]);
        let w = b.graph.weight(Ok(weight.clone()));
        b.graph.apply(LinearTransposed, &[y, w])
    });
    let graph = Arc::new(case.graph);
    let weight = &graph.weights()[1];
    let segment = Segment::text(SequenceId(0), 0, (0..9).collect(), Outs::All, Vec::new());
    let step = Step { segments: vec![segment] };
    let limits = ProgramLimits { max_rows: 9, max_outs: 9, max_segments: 1 };
    let run = |device: &dyn Backend| {
        let weights = device.upload(&graph, Precision::Fast, &mut |_| ControlFlow::Continue(())).unwrap();
        let mut program = device.compile(Arc::clone(&graph), Arc::clone(&weights), limits.into()).unwrap();
        let mut pool = device.kv_pool(KvPoolSpec::empty()).unwrap();
        let mut outputs = || program.run(&step, &mut *pool).unwrap().get(0).floats().to_vec();
        let (first, again) = (outputs(), outputs());
        let doubled: Vec<f32> = weights.read(weight).unwrap().iter().map(|x| 2.0 * x).collect();
        weights.write(weight, &doubled).unwrap();
        let changed = outputs();
        (program.arena_bytes(), first, again, changed)
    };
    let (kept, turned) = (run(device), run(separate));
    assert!(kept.0 >= turned.0, "{} and {} bytes", kept.0, turned.0);
    assert_eq!(kept.1, turned.1);
    assert_eq!(kept.1, kept.2, "the next step");
    assert_eq!(kept.3, turned.3, "behind a change");
    assert_eq!(kept.3, kept.1.iter().map(|x| 2.0 * x).collect::<Vec<f32>>(), "twice as large");
}

/// Both operands are copied in front of their product, which must find both.
#[test]
fn copies_of_operands_last_until_they_are_read() {
    let Some(device) = device() else { return };
    let mut case = Case::new("slices", 3, &f32_weight, |b| {
        let x = b.rows(&[24]);
        let x = b.graph.add(x, x);
        let [first, second] = [0..8, 8..24].map(|columns| b.graph.slice(x, columns));
        b.graph.apply(Matmul { transpose_a: true, transpose_b: false }, &[first, second])
    });
    case.steps = vec![vec![(1, 2)]];
    check_case(device, &case, Tolerance::F32);
}
