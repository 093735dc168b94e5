//! The norms of adapted rows, which change with the adapter.
//!
//! `‖W_n + s·B_n·A‖² = ‖W_n‖² + 2s·B_n·(A·W_nᵀ) + s²·B_n·(A·Aᵀ)·B_nᵀ`: `‖W_n‖` is computed once, and `A·Wᵀ` is computed by the
//! device that has `W`, with the number of rows of `A`. The product `B·A` is never computed.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use brasa_graph::device::{Backend, KvPool, Program, ProgramLimits, WeightSet};
use brasa_graph::pass::row_norms;
use brasa_graph::step::{GivenValues, Outs, Segment, SequenceId, Step};
use brasa_graph::{Builder, DType, Dim, Graph, WeightId};

use super::{AdapterDtype, Lora, Pair};
use crate::Result;

/// A program for the norms of the rows of `W + scale·B·A`.
pub(crate) struct Norms {
    /// The program that returns `A·Wᵀ` of each adapted weight, `[ranks, rows of W]`.
    program: Box<dyn Program>,
    /// Each adapted weight, with the numbers of the pairs that adapt it.
    stacks: Vec<(WeightId, Vec<usize>)>,
    /// The largest sum of ranks of the pairs of one weight.
    ranks: usize,
    /// `‖W_n‖²` for each row of each pair.
    squares: Vec<Vec<f64>>,
}

impl Norms {
    /// Compiles the products `A·Wᵀ`. The `weights` must be on the device already.
    pub fn new(
        backend: &dyn Backend,
        model: &Graph,
        weights: &Arc<dyn WeightSet>,
        lora: &Lora,
    ) -> Result<Self> {
        let mut stacks: BTreeMap<WeightId, Vec<usize>> = BTreeMap::new();
        for (number, pair) in lora.pairs.iter().enumerate() {
            stacks.entry(pair.layer.weight).or_default().push(number);
        }
        let stacks: Vec<(WeightId, Vec<usize>)> = stacks.into_iter().collect();
        let mut g = Builder::new();
        let mut products = Vec::new();
        for (id, _) in &stacks {
            let weight = Arc::clone(&model.weights()[id.0 as usize]);
            let a = g.given(format!("{}.a", weight.name), DType::F32, Dim::ROWS, &[weight.row_len()]);
            let w = g.weight(Ok(weight));
            products.push(g.linear(a, w));
        }
        let graph = Arc::new(g.finish(&products)?);
        weights.add(&graph, &mut |_| ControlFlow::Continue(()))?;
        let ranks_of = |pairs: &Vec<usize>| pairs.iter().map(|&pair| lora.pairs[pair].rank).sum();
        let ranks = stacks.iter().map(|(_, pairs)| ranks_of(pairs)).max().unwrap_or(1);
        let limits = ProgramLimits { max_rows: ranks, max_outs: 1, max_segments: 1 };
        let program = backend.compile(graph, Arc::clone(weights), limits.into())?;
        let squares = |pair: &Pair| {
            let norms = row_norms(model.weight(pair.layer.weight), pair.layer.rows.clone(), None)?;
            Ok(norms.into_iter().map(|norm| f64::from(norm).powi(2)).collect())
        };
        let squares = lora.pairs.iter().map(squares).collect::<Result<_>>()?;
        Ok(Self { program, stacks, ranks, squares })
    }

    /// Computes the norms for each pair, `[rows]`.
    pub fn compute(&mut self, lora: &Lora, pool: &mut dyn KvPool) -> Result<Vec<Vec<f32>>> {
        let given = self.stacks.iter().map(|(_, pairs)| {
            let width = lora.pairs[pairs[0]].layer.inputs;
            let each = pairs.iter().flat_map(|&pair| lora.dtype.seen(&lora.pairs[pair].a).into_owned());
            let mut rows: Vec<f32> = each.collect();
            rows.resize(self.ranks * width, 0.0);
            GivenValues::F32(rows.into())
        });
        let given = given.collect();
        let mut segment = Segment::text(SequenceId(0), 0, Vec::new(), Outs::None, Vec::new());
        segment.rows = self.ranks;
        segment.given = given;
        let outputs = self.program.run(&Step { segments: vec![segment] }, pool)?;
        let mut norms = vec![Vec::new(); lora.pairs.len()];
        for ((_, pairs), products) in self.stacks.iter().zip(outputs.iter()) {
            let products = products.floats();
            let all_rows = products.len() / self.ranks;
            let mut first_rank = 0;
            for &number in pairs {
                let pair = &lora.pairs[number];
                let own = &products[first_rank * all_rows..][..pair.rank * all_rows];
                norms[number] = of_pair(pair, lora.dtype, own, all_rows, &self.squares[number]);
                first_rank += pair.rank;
            }
        }
        Ok(norms)
    }
}

/// Computes the norms of one pair's rows from `products` `A·Wᵀ`, `[rank, all_rows]`.
fn of_pair(pair: &Pair, dtype: AdapterDtype, products: &[f32], all_rows: usize, squares: &[f64]) -> Vec<f32> {
    let (rank, scale) = (pair.rank, f64::from(pair.scale));
    let [a, b] = [&pair.a, &pair.b].map(|matrix| dtype.seen(matrix));
    let rows: Vec<&[f32]> = a.chunks_exact(pair.layer.inputs).collect();
    let dot =
        |a: &[f32], b: &[f32]| -> f64 { a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum() };
    let gram: Vec<f64> = rows.iter().flat_map(|a| rows.iter().map(move |b| dot(a, b))).collect();
    let norm = |(row, (b, square)): (usize, (&[f32], &f64))| {
        let (mut along, mut own) = (0.0, 0.0);
        for (r, &x) in b.iter().enumerate() {
            let x = f64::from(x);
            along += x * f64::from(products[r * all_rows + pair.layer.rows.start + row]);
            own += x * b.iter().zip(&gram[r * rank..]).map(|(&y, g)| f64::from(y) * g).sum::<f64>();
        }
        (square + 2.0 * scale * along + scale * scale * own).max(0.0).sqrt() as f32
    };
    b.chunks_exact(rank).zip(squares).enumerate().map(norm).collect()
}
