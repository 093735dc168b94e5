//! A case: a graph and steps to run through it, on a device and on the reference.

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::device::{Backend, DeviceError, KvPoolSpec, KvType, Precision, ProgramLimits};
use crate::reference::ReferenceBackend;
use crate::step::{Outs, Step};
use crate::{Builder, DType, Graph, Input, ValueId, Weight};

use super::{Random, Sequences, Tolerance, compare};

/// Rows of the tables that random activations are looked up in.
const TOKENS: usize = 97;

/// A graph and the steps to run through it.
#[derive(Clone, Debug)]
pub struct Case {
    /// Name of the tested operation or pattern, for people.
    pub name: String,
    /// Seed of the random numbers.
    pub seed: u64,
    /// The graph to run. Each of its outputs is checked by itself.
    pub graph: Graph,
    /// Steps, one after the other: sequence and number of rows of each segment.
    pub steps: Vec<Vec<(u64, usize)>>,
    /// Element type of keys and values.
    pub kv: KvType,
    /// How exactly the device computes.
    pub precision: Precision,
}

/// Makes a weight of a case, in some storage format, from random numbers, a name and a shape.
pub type MakeWeight<'a> = dyn Fn(&mut Random, &str, &[usize]) -> Weight + 'a;

/// Builds the graph of a case.
pub struct CaseBuilder<'a> {
    /// The graph so far.
    pub graph: Builder,
    /// The case's random numbers.
    pub random: Random,
    make_weight: &'a MakeWeight<'a>,
    token_ids: ValueId,
    positions: ValueId,
}

impl Case {
    /// A case with a graph that `build` makes; `build` returns the graph's outputs.
    ///
    /// The steps are a prompt of five rows beside one of two, a single row of the first, and both together.
    ///
    /// # Panics
    ///
    /// If the graph does not fit together.
    pub fn new(
        name: impl Into<String>,
        seed: u64,
        make_weight: &MakeWeight,
        build: impl FnOnce(&mut CaseBuilder) -> Vec<ValueId>,
    ) -> Self {
        let name = name.into();
        let mut graph = Builder::new();
        let (token_ids, positions) = (graph.input(Input::TokenIds), graph.input(Input::Positions));
        let mut builder = CaseBuilder { graph, random: Random::new(seed), make_weight, token_ids, positions };
        let outputs = build(&mut builder);
        let graph = builder.graph.finish(&outputs).unwrap_or_else(|error| panic!("{name}: {error}"));
        Self {
            name,
            seed,
            graph,
            steps: vec![vec![(1, 5), (2, 2)], vec![(1, 1)], vec![(2, 3), (1, 1)]],
            kv: KvType::F32,
            precision: Precision::Reference,
        }
    }
}

impl CaseBuilder<'_> {
    /// Random activations `[R, inner…]`: standard normals that differ from row to row.
    pub fn rows(&mut self, inner: &[usize]) -> ValueId {
        let width = inner.iter().product();
        let values = self.random.normals(TOKENS * width, 1.0);
        let table = self.graph.weight(Ok(super::weight("activations", &[TOKENS, width], &values)));
        let rows = self.graph.embed(self.token_ids, table);
        if inner.len() == 1 { rows } else { self.graph.reshape(rows, inner) }
    }

    /// A weight `[N, K]` of linear layers, stored in the case's format.
    pub fn weight(&mut self, name: &str, shape: &[usize]) -> ValueId {
        let weight = (self.make_weight)(&mut self.random, name, shape);
        self.graph.weight(Ok(weight))
    }

    /// A weight in the case's format that is not yet a value of the graph. Weights of the graph can be made of its
    /// rows.
    pub fn stored(&mut self, name: &str, shape: &[usize]) -> Weight {
        (self.make_weight)(&mut self.random, name, shape)
    }

    /// A vector near one: a norm's weight. Stored as f32.
    pub fn scales(&mut self, name: &str, len: usize) -> ValueId {
        let values: Vec<f32> = (0..len).map(|_| 1.0 + 0.2 * self.random.normal()).collect();
        self.graph.weight(Ok(super::weight(name, &[len], &values)))
    }

    /// A vector near zero: a bias. Stored as f32.
    pub fn bias(&mut self, name: &str, len: usize) -> ValueId {
        let values = self.random.normals(len, 0.3);
        self.graph.weight(Ok(super::weight(name, &[len], &values)))
    }

    /// Frequencies of a rotation of `pairs` pairs.
    pub fn frequencies(&mut self, pairs: usize) -> ValueId {
        let values: Vec<f32> = (0..pairs).map(|i| 10_000_f32.powf(-(i as f32) / pairs as f32)).collect();
        self.graph.weight(Ok(super::weight("frequencies", &[pairs], &values)))
    }

    /// Positions of the rows.
    pub fn positions(&self) -> ValueId {
        self.positions
    }

    /// Token ids of the rows, below 97.
    pub fn token_ids(&self) -> ValueId {
        self.token_ids
    }
}

/// A weight stored as f32: the plainest [`MakeWeight`].
pub fn f32_weight(random: &mut Random, name: &str, shape: &[usize]) -> Weight {
    random.weight(name, shape)
}

/// Runs a case on a device. Returns for each output and each step the output's values.
///
/// # Errors
///
/// Errors of the device.
pub fn run_case(device: &dyn Backend, case: &Case) -> Result<Vec<Vec<Vec<f32>>>, DeviceError> {
    let rows = |step: &Vec<(u64, usize)>| step.iter().map(|&(_, rows)| rows).sum();
    let max_rows: usize = case.steps.iter().map(rows).max().unwrap_or(0);
    let max_segments = case.steps.iter().map(Vec::len).max().unwrap_or(0);
    let limits = ProgramLimits { max_rows, max_outs: max_rows, max_segments };
    case.graph
        .outputs()
        .iter()
        .map(|&output| {
            let graph = Arc::new(Graph { outputs: vec![output], ..case.graph.clone() });
            let weights = device.upload(&graph, case.precision, &mut |_| ControlFlow::Continue(()))?;
            let mut pool = device.kv_pool(KvPoolSpec::of(&graph, case.kv))?;
            let mut program = device.compile(graph, weights, limits.with(case.kv))?;
            let (mut sequences, mut random) = (Sequences::new(&*pool), Random::new(case.seed));
            let mut results = Vec::new();
            for segments in &case.steps {
                let mut step = Step::default();
                for &(id, rows) in segments {
                    let tokens: Vec<u32> = (0..rows).map(|_| random.below(TOKENS) as u32).collect();
                    step.segments.push(sequences.extend(&mut *pool, id, &tokens, Outs::All)?);
                }
                results.push(program.run(&step, &mut *pool)?.only().to_floats());
            }
            Ok(results)
        })
        .collect()
}

/// Runs a case on `device` and on the reference, and compares every output of every step.
///
/// # Panics
///
/// If the device refuses the case or a result is further off than `tolerance`. The message has the seed, the coordinates, both
/// values and the graph.
pub fn check(device: &dyn Backend, case: &Case, tolerance: Tolerance) {
    let Case { name, seed, .. } = case;
    let label = format!("{} on {}, seed {seed}", name, device.info().name);
    let found = run_case(device, case).unwrap_or_else(|error| panic!("{label}: {error}"));
    let expected = run_case(&ReferenceBackend, case).unwrap_or_else(|error| panic!("{label}: {error}"));
    for (&output, (found, expected)) in case.graph.outputs().iter().zip(found.iter().zip(&expected)) {
        for (step, (found, expected)) in found.iter().zip(expected).enumerate() {
            let value = case.graph.value(output);
            assert_eq!(found.len(), expected.len(), "{label}, step {step}: elements of {output} {value}");
            let exact = if value.dtype == DType::U32 { Tolerance::EXACT } else { tolerance };
            let comparison = compare(found, expected);
            if !comparison.within(exact) {
                let width = value.shape.row_elements().unwrap_or(1).max(1);
                let (row, element) = (comparison.worst / width, comparison.worst % width);
                let rows: usize = case.steps[step].iter().map(|&(_, rows)| rows).sum();
                let listing = crate::print::graph(&case.graph);
                panic!(
                    "{label}: {output} {value} of step {step} ({rows} rows), row {row}, element {element}\n\
                     {comparison}, bound {:.0e}\n{listing}",
                    exact.0
                );
            }
        }
    }
}
