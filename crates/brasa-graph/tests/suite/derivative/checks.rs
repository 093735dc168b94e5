//! Steps and graphs of the tests.

use brasa_graph::step::{Outs, Segment, SequenceId, Step};
use brasa_graph::testing::Random;
use brasa_graph::{DType, Dim, Graph, Symbol, ValueId};

/// Texts of these numbers of rows, with random tokens below 97, logits of all rows wanted.
pub fn step(rows: &[usize], seed: u64) -> Step {
    let mut random = Random::new(seed);
    let segments = rows.iter().enumerate().map(|(id, &rows)| {
        let tokens = (0..rows).map(|_| random.below(97) as u32).collect();
        Segment::text(SequenceId(id as u64), 0, tokens, Outs::All, Vec::new())
    });
    Step { segments: segments.collect() }
}

/// The graph, returning only outputs that can have a cotangent: floats whose rows are outermost, or of constant shape.
pub fn of_rows(graph: Graph) -> Graph {
    let fits = |id: &ValueId| {
        let value = graph.value(*id);
        let rows =
            |dim: &Dim| matches!(dim.symbol, None | Some(Symbol::Rows | Symbol::Segments | Symbol::Outs));
        value.dtype != DType::U32 && value.shape.inner().is_some() && value.shape.0.first().is_some_and(rows)
    };
    let outputs: Vec<ValueId> = graph.outputs().iter().copied().filter(fits).collect();
    graph.returning(&outputs)
}
