//! Programs that compare documents with and without the adapter, for a preference.

use std::ops::ControlFlow;
use std::sync::Arc;

use brasa_graph::Graph;
use brasa_graph::device::{KvPool, Program, WeightSet};

use crate::Result;
use crate::data::Batches;
use crate::graphs::Graphs;
use crate::objective::Preference;
use crate::trainer::{Found, Resources};

/// The programs of a preference.
pub(crate) struct Judge {
    preference: Preference,
    with: Box<dyn Program>,
    without: Box<dyn Program>,
}

/// The loss of a preference over the pairs of some steps, and its derivatives.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Verdict {
    /// The sum of the pairs' losses.
    pub loss: f64,
    /// The number of pairs.
    pub pairs: usize,
    /// The number of pairs in which the adapter raises the log-probability of the chosen document more than that of the rejected
    /// one.
    pub right: usize,
    /// For each document of each step, the derivative of the summed loss with respect to the document's cross-entropy.
    pub slopes: Vec<Vec<f64>>,
}

impl Verdict {
    /// Returns the mean loss of the pairs and the share of right ones.
    pub fn found(&self) -> Found {
        let pairs = self.pairs as f64;
        Found { loss: self.loss / pairs, preferred: Some(self.right as f64 / pairs) }
    }
}

impl Judge {
    /// Compiles the programs over weights that are on the device.
    pub fn new(
        of: &Resources<'_>,
        preference: Preference,
        graphs: &Graphs,
        weights: &Arc<dyn WeightSet>,
    ) -> Result<Option<Self>> {
        let Some([with, without]) = &graphs.losses else { return Ok(None) };
        let program = |graph: &Arc<Graph>| -> Result<Box<dyn Program>> {
            weights.add(graph, &mut |_| ControlFlow::Continue(()))?;
            Ok(of.backend.compile(Arc::clone(graph), Arc::clone(weights), of.limits.into())?)
        };
        Ok(Some(Self { preference, with: program(with)?, without: program(without)? }))
    }

    /// The memory of both programs on the device, in bytes.
    pub fn arena_bytes(&self) -> u64 {
        self.with.arena_bytes() + self.without.arena_bytes()
    }

    /// Computes the losses of all documents without the adapter, and stores them in `batches`. Does nothing if they are stored
    /// already. `watch` receives the number of finished steps and of all steps.
    ///
    /// Documents run in the order of their file, so that a resumed run has the bits of an uninterrupted one.
    pub fn compare(
        &mut self,
        batches: &Batches,
        pool: &mut dyn KvPool,
        watch: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        if batches.baselines().is_some() {
            return Ok(ControlFlow::Continue(()));
        }
        let mut baselines = vec![0.0; batches.documents().len()];
        let steps = batches.in_order();
        for (done, step) in steps.iter().enumerate() {
            if watch(done, steps.len()).is_break() {
                return Ok(ControlFlow::Break(()));
            }
            for (&document, loss) in step.iter().zip(losses(&mut *self.without, batches, step, pool)?) {
                baselines[document as usize] = loss;
            }
        }
        batches.keep_baselines(baselines);
        Ok(ControlFlow::Continue(()))
    }

    /// Computes the loss of the pairs of `steps` with the current adapter.
    pub fn judge(&mut self, batches: &Batches, steps: &[Vec<u32>], pool: &mut dyn KvPool) -> Result<Verdict> {
        let _ = self.compare(batches, pool, &mut |_, _| ControlFlow::Continue(()))?;
        let baselines = batches.baselines().unwrap_or_default();
        let mut verdict = Verdict::default();
        for step in steps {
            let with = losses(&mut *self.with, batches, step, pool)?;
            let pairs = step.as_chunks::<2>().0.iter().zip(with.as_chunks::<2>().0);
            let mut slopes = Vec::with_capacity(step.len());
            for (&[chosen, rejected], &with) in pairs {
                let without = [baselines[chosen as usize], baselines[rejected as usize]];
                let judged = self.preference.judge(with, without);
                verdict.loss += judged.loss;
                verdict.pairs += 1;
                verdict.right += usize::from(judged.is_right);
                slopes.extend([judged.slope, -judged.slope]);
            }
            verdict.slopes.push(slopes);
        }
        Ok(verdict)
    }
}

/// Returns for each document of a step the weighted sum of the cross-entropies of its learned tokens.
fn losses(
    program: &mut dyn Program,
    batches: &Batches,
    step: &[u32],
    pool: &mut dyn KvPool,
) -> Result<Vec<f64>> {
    let outputs = program.run(&batches.step(step, |_| 1.0), pool)?;
    let mut losses = outputs.only().floats();
    let each = step.iter().map(|&document| {
        let (own, rest) = losses.split_at(batches.learned(&[document]));
        losses = rest;
        own.iter().map(|&loss| f64::from(loss)).sum()
    });
    Ok(each.collect())
}
