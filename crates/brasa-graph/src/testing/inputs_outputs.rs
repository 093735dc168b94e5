//! Checks of declared inputs, several outputs, and rows with outputs that are named one by one.

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::device::{Backend, DeviceError, KvPoolSpec, Precision, Program, ProgramLimits};
use crate::step::{GivenValues, Outs, Segment, SequenceId, Step};
use crate::{Builder, DType, Dim, Graph, Input};

use super::{Random, f32_weight};

const WIDTH: usize = 6;
const LIMITS: ProgramLimits = ProgramLimits { max_rows: 12, max_outs: 12, max_segments: 3 };

/// Checks a graph that declares inputs of floats and integers and returns four values, over steps of several segments.
///
/// # Panics
///
/// If a result differs from the reference.
pub fn check_inputs_and_outputs(device: &dyn Backend) {
    let graph = Arc::new(graph());
    let weights = device.upload(&graph, Precision::Reference, &mut |_| ControlFlow::Continue(()));
    let limits = LIMITS;
    let mut program =
        device.compile(Arc::clone(&graph), weights.expect("an upload"), limits.into()).expect("a program");
    let mut random = Random::new(5);
    for segments in
        [&[(4, Outs::All)][..], &[(3, Outs::Rows([2, 0].into())), (1, Outs::Last), (5, Outs::None)]]
    {
        let segments: Vec<Segment> =
            segments.iter().map(|(rows, outs)| segment(&mut random, *rows, outs.clone())).collect();
        check_step(device, &mut *program, &Step { segments });
    }
    check_refusals(device, &mut *program, &segment(&mut random, 2, Outs::Last));
}

/// A graph with an input of two rows for each row of the step, and an input of one number for each row. It returns `sums = Σ
/// frames`, `classes = argmax(x)`, a part of `x`'s columns, and the chosen rows of `x + table[number]`.
fn graph() -> Graph {
    let mut g = Builder::new();
    let rows = g.input(Input::OutRows);
    let frames = g.given("frames", DType::F32, Dim { factor: 2, ..Dim::ROWS }, &[WIDTH]);
    let x = g.given("x", DType::F32, Dim::ROWS, &[WIDTH]);
    let numbers = g.given("numbers", DType::U32, Dim::ROWS, &[]);
    let table = g.weight(Ok(f32_weight(&mut Random::new(2), "table", &[7, WIDTH])));
    let sums = g.sum(frames, 1);
    let classes = g.argmax(x);
    let part = g.slice(x, 2..5);
    let looked_up = g.embed(numbers, table);
    let y = g.add(x, looked_up);
    let chosen = g.select_rows(y, rows);
    g.finish(&[sums, classes, part, chosen]).expect("a graph of fitting shapes")
}

/// A segment without token ids.
fn segment(random: &mut Random, rows: usize, outs: Outs) -> Segment {
    let mut segment = Segment::text(SequenceId(1), 0, Vec::new(), outs, Vec::new());
    segment.rows = rows;
    segment.given = vec![
        GivenValues::F32(random.normals(2 * rows * WIDTH, 1.0).into()),
        GivenValues::F32(random.normals(rows * WIDTH, 1.0).into()),
        GivenValues::U32((0..rows).map(|_| random.below(7) as u32).collect()),
    ];
    segment
}

fn check_step(device: &dyn Backend, program: &mut dyn Program, step: &Step) {
    let table = f32_weight(&mut Random::new(2), "table", &[7, WIDTH]);
    let table = crate::reference::decode_weight(&table).expect("an f32 table").floats().to_vec();
    let (mut sums, mut classes, mut parts, mut chosen) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for segment in &step.segments {
        let [GivenValues::F32(frames), GivenValues::F32(x), GivenValues::U32(numbers)] = &segment.given[..]
        else {
            unreachable!("made by `segment`")
        };
        sums.extend(frames.chunks(WIDTH).map(|row| row.iter().sum::<f32>()));
        for row in x.chunks(WIDTH) {
            let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            classes.push(row.iter().position(|&x| x >= largest).expect("a largest element") as u32);
            parts.extend_from_slice(&row[2..5]);
        }
        for row in segment.out_rows() {
            let number = numbers[row] as usize;
            chosen.extend((0..WIDTH).map(|i| x[row * WIDTH + i] + table[number * WIDTH + i]));
        }
    }
    let mut pool = pool(device);
    let outputs = program.run(step, &mut *pool).expect("a step");
    let (rows, outs) = (step.rows(), step.outs());
    let shapes: Vec<&[usize]> = outputs.iter().map(|output| output.shape()).collect();
    assert_eq!(shapes, [&[2 * rows][..], &[rows], &[rows, 3], &[outs, WIDTH]]);
    assert_eq!(outputs.get(1).numbers(), classes);
    for (output, expected) in [(0, sums), (2, parts), (3, chosen)] {
        let found = outputs.get(output).floats();
        assert_eq!(found.len(), expected.len(), "output {output}");
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() <= 1e-5, "output {output}: {found}, expected {expected}");
        }
    }
}

fn check_refusals(device: &dyn Backend, program: &mut dyn Program, good: &Segment) {
    let mut pool = pool(device);
    let mut refused = |change: &dyn Fn(&mut Segment)| {
        let mut segment = good.clone();
        change(&mut segment);
        match program.run(&Step { segments: vec![segment] }, &mut *pool) {
            Err(DeviceError::BadStep { what }) => what,
            other => panic!("{other:?}, expected a refusal"),
        }
    };
    let short = refused(&|segment| segment.given[1] = GivenValues::F32([0.0; WIDTH].into()));
    assert_eq!(short, "segment 0 brings 6 elements f32 of x, expected 12 f32");
    let other = refused(&|segment| segment.given[2] = GivenValues::F32([0.0; 2].into()));
    assert_eq!(other, "segment 0 brings 2 elements f32 of numbers, expected 2 u32");
    let large = refused(&|segment| segment.given[2] = GivenValues::U32([1, 7].into()));
    assert_eq!(large, "segment 0, row 1: numbers 7, expected below 7");
    let missing = refused(&|segment| segment.given.truncate(2));
    assert_eq!(missing, "segment 0 brings 2 inputs, expected 3");
    let not_finite = refused(&|segment| segment.given[1] = GivenValues::F32([f32::NAN; 2 * WIDTH].into()));
    assert_eq!(not_finite, "segment 0: element 0 of x is NaN");
    let absent = refused(&|segment| segment.outs = Outs::Rows([2].into()));
    assert_eq!(absent, "segment 0 asks for the logits of row 2 of 2");
    let tokens = refused(&|segment| segment.tokens = vec![1]);
    assert_eq!(tokens, "segment 0 has 1 tokens for 2 rows");
}

fn pool(device: &dyn Backend) -> Box<dyn crate::device::KvPool> {
    device.kv_pool(KvPoolSpec::empty()).expect("a pool without caches")
}
