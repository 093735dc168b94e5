//! Random graphs with NaN and infinities, and steps that no engine would make. A device must answer as the reference does or
//! refuse with the same words, and no text may affect another.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use crate::device::{Backend, DeviceError, KvPool, KvPoolSpec, KvType, Precision, Program, ProgramLimits};
use crate::op::{Broadcast, Place, Unfold};
use crate::reference::ReferenceBackend;
use crate::step::{Outs, PAGE_POSITIONS, PageId, Segment, Step};
use crate::{Builder, DType, Dim, DraftTree, Graph, Shape, Symbol, ValueId, ValueKind, Weight};

use super::{Random, Sequences, random_case};

/// Rows of the tables of random activations.
const TOKENS: usize = 97;
const LIMITS: ProgramLimits = ProgramLimits { max_rows: 24, max_outs: 24, max_segments: 3 };
/// Number of sequences of a case; a segment may name a sequence without rows.
const TEXTS: usize = 3;
const STEPS: usize = 6;
/// Unusual numbers that some elements of weights hold.
const ODD: [f32; 6] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, 1e-40, 3e38];
/// Results beyond this magnitude are not compared, since roundings of their sums differ too much.
const WILD: f32 = 1e4;

/// Runs random graphs on a device and on the reference, one for each seed, through steps of which many are wrong in some way. Some tokens and weights hold NaN and
/// infinities.
///
/// # Panics
///
/// If the device answers a step that the reference refuses, refuses with other words, or returns other results for texts without
/// NaN and infinities. The message names the seed.
pub fn check_absurd(device: &dyn Backend, seeds: Range<u64>) {
    for seed in seeds {
        check_seed(device, seed);
    }
}

/// A program on a device, or the error of compiling it.
struct Side {
    program: Box<dyn Program>,
    pool: Box<dyn KvPool>,
    sequences: Sequences,
}

impl Side {
    fn new(device: &dyn Backend, graph: &Arc<Graph>, kv: KvType) -> Result<Self, DeviceError> {
        let weights = device.upload(graph, Precision::Reference, &mut |_| ControlFlow::Continue(()))?;
        let pool = device.kv_pool(KvPoolSpec::of(graph, kv))?;
        let program = device.compile(Arc::clone(graph), weights, LIMITS.with(kv))?;
        let sequences = Sequences::new(&*pool);
        Ok(Self { program, pool, sequences })
    }

    /// The outputs of a step.
    fn run(&mut self, step: &Step) -> Result<Vec<Vec<f32>>, DeviceError> {
        let outputs = self.program.run(step, &mut *self.pool)?;
        Ok(outputs.iter().map(|output| output.to_floats()).collect())
    }
}

fn check_seed(device: &dyn Backend, seed: u64) {
    let mut random = Random::new(seed ^ 0xab5);
    let is_odd = random.below(4) == 0;
    let make = |random: &mut Random, name: &str, shape: &[usize]| {
        if is_odd { odd_weight(random, name, shape) } else { random.weight(name, shape) }
    };
    let graph = with_odd_tokens(random_case(seed, 3 + random.below(14), &make).graph, &mut random);
    let kv = [KvType::F32, KvType::F16, KvType::BF16, KvType::Q8][random.below(4)];
    let label = format!("seed {seed}, {kv:?}, {}", device.info().name);
    // The reference, which tells every value, says which texts are none of numbers.
    let made = |id: &ValueId| matches!(graph.value(*id).kind, ValueKind::Temporary(_));
    let values: Vec<ValueId> = (0..graph.values().len() as u32).map(ValueId).filter(made).collect();
    let all = Arc::new(graph.clone().returning(&values));
    let graph = Arc::new(graph);
    let mut oracle = Side::new(&ReferenceBackend, &all, kv).expect("the reference runs everything");
    let mut side = match Side::new(device, &graph, kv) {
        Ok(side) => side,
        Err(DeviceError::Unsupported { .. }) => return,
        Err(error) => panic!("{label}: {error}"),
    };
    let mut wild = [false; TEXTS];
    // Positions of each text that were written, one behind the other.
    let mut written = [0; TEXTS];
    for number in 0..STEPS {
        for (text, &rows) in written.iter().enumerate() {
            oracle.sequences.truncate(text as u64, rows);
            side.sequences.truncate(text as u64, rows);
        }
        let (step, twin) = random_step(&mut random, &mut oracle, &mut side);
        let label = format!("{label}, step {number}");
        let (expected, found) = (oracle.run(&step), side.run(&twin));
        let (expected, found) = match (expected, found) {
            (Ok(expected), Ok(found)) => (expected, found),
            (Err(expected), Err(found)) => {
                assert!(is_same(&found, &expected), "{label}: {found}, expected {expected}");
                continue;
            }
            (expected, found) => {
                let (expected, found) = (expected.err(), found.err());
                panic!("{label}: refused for {found:?}, expected {expected:?}\n{step:?}");
            }
        };
        for segment in &step.segments {
            let text = segment.sequence.0 as usize;
            // A text that begins behind its end, or goes on with the pages of another, sees what was never written.
            wild[text] |=
                segment.first_index > written[text] || segment.pages != side.sequences.pages(text as u64);
            written[text] = written[text].max(segment.first_index + segment.rows);
        }
        let is_wild = |x: &f32| !x.is_finite() || x.abs() > WILD;
        let texts = |value: ValueId| texts_of(&graph, value, &step);
        for (&value, elements) in values.iter().zip(&expected) {
            for (text, row) in texts(value).iter().zip(rows_of(&graph, value, &step, elements)) {
                match text {
                    Some(text) => wild[*text] |= row.iter().any(is_wild),
                    None if row.iter().any(is_wild) => wild.fill(true),
                    None => {}
                }
            }
        }
        for (&output, found) in graph.outputs().iter().zip(&found) {
            let place = values.iter().position(|&value| value == output);
            let Some(expected) = place.map(|place| &expected[place]) else { continue };
            assert_eq!(found.len(), expected.len(), "{label}: elements of {output}");
            let scale = expected.iter().filter(|x| x.is_finite()).fold(1.0_f32, |most, x| most.max(x.abs()));
            let pairs = rows_of(&graph, output, &step, found).zip(rows_of(&graph, output, &step, expected));
            for (row, (text, (found, expected))) in texts(output).iter().zip(pairs).enumerate() {
                if text.is_none_or(|text| wild[text]) {
                    continue;
                }
                for (a, b) in found.iter().zip(expected) {
                    // A rounded key may lead to another row of a table, but never to what is no number.
                    let is_near =
                        if kv == KvType::F32 { (a - b).abs() <= 1e-3 * scale } else { a.is_finite() };
                    assert!(
                        is_near,
                        "{label}: row {row} of {output} is {a}, expected {b}\n{step:?}\n{}",
                        crate::print::graph(&graph)
                    );
                }
            }
        }
    }
}

/// True if both errors are the same refusal. Only the words for a computed number outside its table may differ.
fn is_same(found: &DeviceError, expected: &DeviceError) -> bool {
    let computed = |error: &DeviceError| match error {
        DeviceError::BadStep { what } => {
            what.split_once("number ").map(|(_, rest)| rest.trim_start_matches("is ").to_owned())
        }
        _ => None,
    };
    found == expected || (computed(found).is_some() && computed(found) == computed(expected))
}

/// The graph with NaN or an infinity in its tables of activations, in the rows of the first few tokens.
fn with_odd_tokens(mut graph: Graph, random: &mut Random) -> Graph {
    const ODD_TOKENS: usize = 4;
    for weight in graph.weights.iter_mut().filter(|weight| weight.name == "activations") {
        let mut values = weight.decode("host").expect("floats");
        for row in values.chunks_mut(weight.row_len()).take(ODD_TOKENS) {
            row[random.below(row.len())] = ODD[random.below(ODD.len())];
        }
        *weight = Arc::new(super::weight(&weight.name, &weight.shape, &values));
    }
    graph
}

/// A weight of normals, some of them replaced by NaN, infinities and other unusual numbers.
fn odd_weight(random: &mut Random, name: &str, shape: &[usize]) -> Weight {
    let elements: usize = shape.iter().product();
    let fan_in = shape.last().copied().unwrap_or(1).max(1);
    let mut values = random.normals(elements, 1.0 / (fan_in as f32).sqrt());
    // Most weights are sound.
    for _ in 0..random.below(3) * random.below(2) {
        values[random.below(elements)] = ODD[random.below(ODD.len())];
    }
    super::weight(name, shape, &values)
}

/// The text of each row of a value; `None` for rows of a value that is not by rows.
fn texts_of(graph: &Graph, value: ValueId, step: &Step) -> Vec<Option<usize>> {
    let outer = graph.value(value).shape.outer();
    let count = |segment: &Segment| match outer.symbol {
        Some(Symbol::Rows) => segment.rows,
        Some(Symbol::Outs) => segment.outs(),
        Some(Symbol::Segments) => 1,
        None => 0,
    };
    if outer.symbol.is_none() {
        return vec![None];
    }
    let of = |segment: &Segment| {
        std::iter::repeat_n(Some(segment.sequence.0 as usize), count(segment) * outer.factor)
    };
    step.segments.iter().flat_map(of).collect()
}

/// The elements of a value by row; all of them for a value that is not by rows.
fn rows_of<'a>(
    graph: &Graph,
    value: ValueId,
    step: &Step,
    elements: &'a [f32],
) -> impl Iterator<Item = &'a [f32]> {
    let rows = texts_of(graph, value, step).len().max(1);
    elements.chunks((elements.len() / rows).max(1))
}

/// A random step for both sides, with sequences of each side's own pages. The step may be wrong in some way.
fn random_step(random: &mut Random, oracle: &mut Side, side: &mut Side) -> (Step, Step) {
    let mut steps = [Step::default(), Step::default()];
    let mut left: Vec<u64> = (0..TEXTS as u64).collect();
    for _ in 0..=random.below(TEXTS) {
        let id = left.swap_remove(random.below(left.len()));
        let rows = [1, 1, 2, 5, 7][random.below(5)];
        let tokens: Vec<u32> = (0..rows).map(|_| random.below(TOKENS) as u32).collect();
        let outs = match random.below(4) {
            0 => Outs::None,
            1 => Outs::Last,
            2 => Outs::Rows((0..random.below(3)).map(|_| random.below(rows) as u32).collect()),
            _ => Outs::All,
        };
        for (step, side) in steps.iter_mut().zip([&mut *oracle, &mut *side]) {
            let segment = side.sequences.extend(&mut *side.pool, id, &tokens, outs.clone());
            step.segments.push(segment.expect("pages"));
        }
    }
    let [mut step, mut twin] = steps;
    if random.below(2) == 0 {
        let mut again = random.clone();
        spoil(random, &mut step);
        spoil(&mut again, &mut twin);
    }
    (step, twin)
}

/// Makes a step wrong or unusual.
fn spoil(random: &mut Random, step: &mut Step) {
    let count = step.segments.len();
    let number = random.below(count);
    let other = random.below(count);
    let odd = [0, 1, 7, PAGE_POSITIONS, PAGE_POSITIONS - 1, u32::MAX as usize, usize::MAX][random.below(7)];
    let group = random.below(4);
    let kind = random.below(16);
    let pages = step.segments[other].pages.clone();
    let segment = &mut step.segments[number];
    match kind {
        0 => segment.tokens[0] = odd as u32,
        1 => _ = segment.tokens.pop(),
        2 => segment.tokens.push(1),
        3 => segment.rows = odd,
        4 => segment.first_index = odd,
        5 => segment.first_index = segment.first_index.wrapping_add(odd),
        6 => segment.positions = Some(vec![random.below(1 << 12) as u32; segment.rows]),
        7 => segment.positions = Some(vec![odd as u32; random.below(9)]),
        8 => segment.outs = Outs::Rows([0, odd as u32].into()),
        9 => segment.outs = Outs::Rows(vec![0; random.below(40)].into()),
        10 => segment.pages = pages,
        11 => {
            if let Some(table) = segment.pages.get_mut(group) {
                let page = table.first().copied().flatten();
                match random.below(4) {
                    0 => table.clear(),
                    1 => table.insert(0, page),
                    2 => table[0] = None,
                    _ => table[0] = Some(PageId::from_index(odd.min(1 << 20))),
                }
            }
        }
        12 => segment.pages.truncate(group),
        13 => segment.memory_rows = odd,
        14 => {
            let parents: Vec<Option<u32>> =
                (0..segment.rows).map(|row| (row > 0).then(|| random.below(row) as u32)).collect();
            segment.tree = DraftTree::new(&parents).ok().map(Arc::new);
        }
        _ => {
            let again = step.segments[number].clone();
            step.segments.push(again);
        }
    }
}

/// Checks that values of absurd sizes are refused before memory is allocated for them, by the graph or by the device.
///
/// # Panics
///
/// If the device compiles such a graph.
pub fn check_absurd_shapes(device: &dyn Backend) {
    const HUGE: usize = usize::MAX / 3;
    type Build = dyn Fn(&mut Builder, ValueId) -> ValueId;
    let cases: [(&str, &Build); 9] = [
        ("wide rows", &|b, x| {
            let one = b.slice(x, 0..1);
            b.apply(spread(Dim::ROWS, HUGE), &[one])[0]
        }),
        ("rows of 2^40 elements", &|b, x| {
            let one = b.slice(x, 0..1);
            b.apply(spread(Dim::ROWS, 1 << 40), &[one])[0]
        }),
        ("many times the rows", &|b, x| {
            let one = b.sum(x, 0);
            b.apply(spread(Dim { factor: HUGE, ..Dim::ROWS }, 8), &[one])[0]
        }),
        ("a wide sum", &|b, x| {
            let one = b.slice(x, 0..1);
            let wide = b.apply(spread(Dim::ROWS, HUGE), &[one])[0];
            let other = b.reshape(wide, &[HUGE, 1]);
            let other = b.apply(Broadcast { shape: Shape::rows(Dim::ROWS, &[HUGE, 5]) }, &[other])[0];
            b.sum(other, 1)
        }),
        ("a wide pair", &|b, x| {
            let one = b.slice(x, 0..1);
            let wide = b.apply(spread(Dim::ROWS, HUGE), &[one])[0];
            let both = b.concat(wide, wide, 1);
            let more = b.concat(both, both, 1);
            b.concat(more, more, 1)
        }),
        ("many taps", &|b, x| b.apply(Unfold { taps: HUGE, stride: 1, padding: 0 }, &[x])[0]),
        ("a wide place", &|b, x| {
            let best = b.argmax(x);
            let one = b.sum(x, 1);
            b.apply(Place { width: HUGE }, &[one, best])[0]
        }),
        ("each element with its own", &|b, x| {
            let one = b.slice(x, 0..1);
            let cube = b.reshape(one, &[1, 1, 1]);
            let shape = |dims: &[usize]| Broadcast { shape: Shape::rows(Dim::ROWS, dims) };
            let large = b.apply(shape(&[1 << 14, 1 << 14, 1 << 14]), &[cube])[0];
            let small = b.apply(shape(&[1 << 14, 1, 1 << 14]), &[cube])[0];
            b.add(large, small)
        }),
        ("a large input", &|b, x| {
            let given = b.given("large", DType::F32, Dim { factor: HUGE, ..Dim::ROWS }, &[HUGE, 4]);
            let given = b.sum(given, 2);
            let one = b.sum(given, 0);
            let x = b.sum(x, 0);
            let x = b.sum(x, 0);
            b.add(one, x)
        }),
    ];
    for (name, build) in cases {
        let mut b = Builder::new();
        let x = b.given("x", DType::F32, Dim::ROWS, &[8]);
        let y = build(&mut b, x);
        let Ok(graph) = b.finish(&[y]) else { continue };
        if let Ok(side) = Side::new(device, &Arc::new(graph), KvType::F32) {
            panic!("{name} compiled to {} bytes on {}", side.program.arena_bytes(), device.info().name);
        }
    }
}

/// A broadcast of `[1, 1]` or `[R, 1]` to `[rows, width]`.
fn spread(rows: Dim, width: usize) -> Broadcast {
    Broadcast { shape: Shape(vec![rows, width.into()]) }
}
