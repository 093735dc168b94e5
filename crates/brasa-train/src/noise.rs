//! Noise against overfitting: dropout and NEFTune.
//!
//! A graph of training reads its noise as inputs, which every step brings. The numbers depend on seed, update and position alone,
//! so a resumed run has the bits of an uninterrupted one.

use brasa_graph::step::{GivenValues, Step};
use brasa_graph::{Change, DType, Dim, Graph, NodeId, Op, ValueKind, rewrite};

use crate::learned::Learned;
use crate::{Random, Result, TrainError};

/// Dropout, and noise in embeddings, during training. Evaluations have neither.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Noise {
    /// Share of the elements of every adapted layer's input that are set to 0 for `A`; the others are multiplied by `1 / (1 −
    /// share)` (Srivastava et al. 2014). From 0 to less than 1.
    pub dropout: f32,
    /// Strength of uniform noise in the embeddings of tokens, within `±strength / √(rows · hidden_size)` for a document of `rows`
    /// rows (Jain et al. 2023, arXiv:2310.05914); 5 is usual, 0 is none.
    pub embedding: f32,
    /// Seed of the random numbers.
    pub seed: u64,
}

impl Noise {
    /// # Errors
    ///
    /// [`TrainError::Setting`] for numbers that make no sense.
    pub(crate) fn check(&self) -> Result<()> {
        if !(0.0..1.0).contains(&self.dropout) {
            let what = format!("dropout {}", self.dropout);
            return Err(TrainError::setting(what, "take a share from 0 to less than 1, 0.05 for example"));
        }
        if !(self.embedding.is_finite() && self.embedding >= 0.0) {
            let what = format!("noise of embeddings {}", self.embedding);
            return Err(TrainError::setting(what, "take a number from 0, 5 for example"));
        }
        Ok(())
    }
}

/// An input of a graph for noise.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Source {
    kind: Kind,
    /// Number of elements of a row.
    width: usize,
    /// True for a row for each learned token, false for a row for each token.
    of_outs: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Dropout,
    Embedding,
}

/// Adds inputs of noise to a graph, after its own inputs; returns them too.
pub(crate) fn add(graph: &Graph, learned: &Learned, noise: &Noise) -> Result<(Graph, Vec<Source>)> {
    let mut sources = Vec::new();
    let embedding = graph.token_embedding().filter(|_| noise.embedding > 0.0);
    if noise.embedding > 0.0 && embedding.is_none() {
        return Err(TrainError::setting(
            "noise of embeddings, but the model embeds no tokens",
            "leave it out",
        ));
    }
    let mut number = 0;
    let noisy = rewrite(graph, |g, node, operands| {
        let id = NodeId(number);
        number += 1;
        if Some(id) == embedding {
            let y = g.apply(node.op.clone(), operands)[0];
            let shape = graph.value(node.outputs[0]).shape.clone();
            let (Some(inner), Some(width)) = (shape.inner(), shape.width()) else { return Change::Keep };
            let drawn = g.given("embedding_noise", DType::F32, shape.outer(), &inner);
            sources.push(Source { kind: Kind::Embedding, width, of_outs: false });
            return Change::Replace(vec![g.add(y, drawn)]);
        }
        let ((Op::Linear(_), &[x, w]) | (Op::ExpertLinear(_), &[x, _, w, ..])) = (&node.op, &node.inputs[..])
        else {
            return Change::Keep;
        };
        let ValueKind::Weight(weight) = graph.value(w).kind else { return Change::Keep };
        if noise.dropout <= 0.0 || !learned.has_dropout_before(&graph.weights()[weight.0 as usize]) {
            return Change::Keep;
        }
        let shape = graph.value(x).shape.clone();
        let Some(inner) = shape.inner() else { return Change::Keep };
        let width = inner.iter().product();
        let name = format!("dropout{}", sources.len());
        let mask = g.given(name, DType::F32, shape.outer(), &inner);
        let of_outs = shape.outer() == Dim::OUTS;
        sources.push(Source { kind: Kind::Dropout, width, of_outs });
        let kept = g.mul(operands[0], mask);
        Change::Replace(g.apply(node.op.clone(), &[&[kept], &operands[1..]].concat()))
    })?;
    Ok((noisy, sources))
}

/// Adds the noise to one step: step `number` of update `update`, counted from 0.
pub(crate) fn bring(step: &mut Step, sources: &[Source], noise: &Noise, update: u64, number: usize) {
    for (source, place) in sources.iter().zip(0_u64..) {
        // Streams of the order of documents and of first values lie elsewhere.
        let stream = (1 << 63) | (update << 32) ^ ((number as u64) << 16) ^ place;
        let mut random = Random::new(noise.seed, stream);
        for segment in &mut step.segments {
            let rows = if source.of_outs { segment.outs() } else { segment.rows };
            let values = match source.kind {
                Kind::Dropout => dropped(&mut random, noise.dropout, rows * source.width),
                Kind::Embedding => {
                    let bound = noise.embedding / ((rows * source.width) as f32).sqrt();
                    let each = |_| bound * (2.0 * random.uniform() - 1.0);
                    (0..rows * source.width).map(each).collect()
                }
            };
            segment.given.push(GivenValues::F32(values.into()));
        }
    }
}

/// `count` numbers: 0 with probability `share`, otherwise `1 / (1 − share)`. Uses 64 random bits for four numbers.
fn dropped(random: &mut Random, share: f32, count: usize) -> Vec<f32> {
    let bound = (share * 65536.0).round() as u64;
    let kept = 65536.0 / (65536 - bound.min(65535)) as f32;
    let mut values = Vec::with_capacity(count + 3);
    while values.len() < count {
        let bits = random.bits();
        values.extend([0, 16, 32, 48].map(|at| if bits >> at & 0xFFFF < bound { 0.0 } else { kept }));
    }
    values.truncate(count);
    values
}
