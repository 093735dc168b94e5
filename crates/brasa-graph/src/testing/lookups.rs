//! Checks of lookups by numbers: numbers that a step brings, parts of such inputs, and rows of rows.

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::device::{Backend, DeviceError, KvPoolSpec, KvType, Precision, ProgramLimits};
use crate::op::{LinearCrossEntropy, Pick};
use crate::step::{GivenValues, Outs, Segment, SequenceId, Step};
use crate::{Builder, DType, Dim, Graph, Input, ValueId};

use super::Random;

const LIMITS: ProgramLimits = ProgramLimits { max_rows: 4, max_outs: 4, max_segments: 2 };
const ROWS: usize = 2;
const WIDTH: usize = 64;

/// Numbers that a step brings for each row.
const NUMBERS: usize = 4;

/// Checks that a step is refused if a number is outside the table in which it is looked up, for every operation that looks up,
/// and that the program goes on.
///
/// # Panics
///
/// If the device behaves in another way.
pub fn check_lookups(device: &dyn Backend) {
    type Build = dyn Fn(&mut Builder, &mut Random, ValueId, ValueId) -> ValueId;
    let brought =
        |input: &str, below: usize| format!("segment 0, row 1: {input} {below}, expected below {below}");
    // Of each row the numbers at 1 and 2 look something up, of a table of five.
    let cases: [(&str, &Build); 4] = [
        ("gather", &|b, random, _, numbers| {
            let table = b.weight(Ok(random.weight("table", &[5])));
            let some = b.slice(numbers, 1..3);
            b.gather(table, some)
        }),
        ("pick", &|b, random, x, numbers| {
            let table = b.weight(Ok(random.weight("table", &[5, WIDTH])));
            let x = b.linear(x, table);
            let some = b.slice(numbers, 1..3);
            b.apply(Pick, &[x, some])[0]
        }),
        ("expert_linear", &|b, random, x, numbers| {
            let experts = b.weight(Ok(random.weight("experts", &[5, 3, WIDTH])));
            let some = b.slice(numbers, 1..3);
            b.expert_linear(x, some, experts)
        }),
        ("linear_cross_entropy", &|b, random, x, _| {
            let targets = b.given("targets", DType::U32, Dim::ROWS, &[]);
            let head = b.weight(Ok(random.weight("head", &[5, WIDTH])));
            b.apply(LinearCrossEntropy { softcap: None }, &[x, head, targets])[0]
        }),
    ];
    for (name, build) in cases {
        let mut random = Random::new(3);
        let mut b = Builder::new();
        let x = b.given("x", DType::F32, Dim::ROWS, &[WIDTH]);
        let numbers = b.given("numbers", DType::U32, Dim::ROWS, &[NUMBERS]);
        let y = build(&mut b, &mut random, x, numbers);
        let graph = b.finish(&[y]).expect("a graph of fitting shapes");
        let by_numbers = graph.givens().len() == 2;
        let step = |number: u32| {
            let mut numbers = vec![7; ROWS * NUMBERS];
            for row in numbers.chunks_mut(NUMBERS) {
                row[1..3].fill(4);
            }
            numbers[NUMBERS + 2] = number;
            let x: Vec<f32> = (0..ROWS * WIDTH).map(|i| i as f32 / 16.0).collect();
            let mut given = vec![GivenValues::F32(x.into()), GivenValues::U32(numbers.into())];
            if !by_numbers {
                given.push(GivenValues::U32([4, number].into()));
            }
            segment(given, Outs::All)
        };
        let results = run(device, &graph, &[step(5), step(u32::MAX), step(4)]);
        let input = if by_numbers { "numbers" } else { "targets" };
        for (result, number) in results.iter().zip([5, u32::MAX]) {
            let what = brought(input, 5).replace(&format!("{input} 5"), &format!("{input} {number}"));
            assert_eq!(result, &Err(DeviceError::BadStep { what }), "{name} on {}", device.info().name);
        }
        assert!(results[2].is_ok(), "{name} on {}: {:?}", device.info().name, results[2]);
    }
    check_rows_of_rows(device);
}

/// Checks that the step's output rows count all rows of the step, not rows that were chosen before.
fn check_rows_of_rows(device: &dyn Backend) {
    let mut b = Builder::new();
    let x = b.given("x", DType::F32, Dim::ROWS, &[WIDTH]);
    let rows = b.input(Input::OutRows);
    let chosen = b.select_rows(x, rows);
    let again = b.select_rows(chosen, rows);
    let graph = b.finish(&[again]).expect("a graph of fitting shapes");
    let step = |outs| segment(vec![GivenValues::F32([1.0; ROWS * WIDTH].into())], outs);
    let results = run(device, &graph, &[step(Outs::Last), step(Outs::All)]);
    let is_bad = |result: &Result<_, DeviceError>| match result {
        Err(DeviceError::BadStep { what }) => what.ends_with("1, expected below 1"),
        _ => false,
    };
    assert!(is_bad(&results[0]), "{}: {:?}", device.info().name, results[0]);
    assert!(results[1].is_ok(), "{}: {:?}", device.info().name, results[1]);
}

fn segment(given: Vec<GivenValues>, outs: Outs) -> Segment {
    let text = Segment::text(SequenceId(1), 0, Vec::new(), outs, Vec::new());
    Segment { rows: ROWS, given, ..text }
}

/// The results of `steps`, one after the other, in one program.
fn run(device: &dyn Backend, graph: &Graph, steps: &[Segment]) -> Vec<Result<Vec<f32>, DeviceError>> {
    let graph = Arc::new(graph.clone());
    let weights = device.upload(&graph, Precision::Reference, &mut |_| ControlFlow::Continue(()));
    let spec = KvPoolSpec::of(&graph, KvType::F32);
    let mut pool = device.kv_pool(spec).expect("a pool");
    let mut program = device.compile(graph, weights.expect("an upload"), LIMITS.into()).expect("a program");
    let mut run = |segment: &Segment| {
        let step = Step { segments: vec![segment.clone()] };
        program.run(&step, &mut *pool).map(|outputs| outputs.only().to_floats())
    };
    steps.iter().map(&mut run).collect()
}
