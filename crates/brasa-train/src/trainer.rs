//! Learned values on a device, changed update by update.

use std::ops::ControlFlow;
use std::sync::Arc;

use brasa_graph::Graph;
use brasa_graph::device::{
    Backend, KvPool, KvPoolSpec, KvType, Precision, Program, ProgramLimits, UploadProgress, WeightSet,
};
use brasa_graph::pass::add_low_rank;

use crate::data::Batches;
use crate::graphs::Graphs;
use crate::judge::Judge;
use crate::learned::Learned;
use crate::lora::{Lora, Norms};
use crate::noise::{self, Noise, Source};
use crate::objective::Objective;
use crate::optimizer::{Moment, Optimizer, Rates, Rule, clip, norm};
use crate::parameters::Parameters;
use crate::recompute::Activations;
use crate::{MemoryPlan, Result, TrainError};

/// The device, and the model on it.
pub struct Resources<'a> {
    /// The device.
    pub backend: &'a dyn Backend,
    /// The model's graph, whose output are logits.
    pub model: &'a Graph,
    /// How exactly the device computes.
    pub precision: Precision,
    /// The largest step. As many rows may be learned.
    pub limits: ProgramLimits,
}

/// How values change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrainOptions {
    /// The loss that updates lower.
    pub objective: Objective,
    /// The optimizer.
    pub rule: Rule,
    /// The learning rate of each update.
    pub schedule: Rates,
    /// Steps whose gradients make one update.
    pub accumulation: usize,
    /// The longest gradient; longer ones are shortened. `None` leaves them.
    pub longest_gradient: Option<f64>,
    /// Dropout, and noise in embeddings.
    pub noise: Noise,
    /// Whether a block's results are kept for its gradient or computed again.
    pub activations: Activations,
}

/// An adapter that is learned, or parameters of the model.
pub struct Trainer {
    learned: Learned,
    options: TrainOptions,
    optimizer: Optimizer,
    sources: Vec<Source>,
    weights: Arc<dyn WeightSet>,
    gradients: Box<dyn Program>,
    loss: Box<dyn Program>,
    /// Of a preference.
    judge: Option<Judge>,
    pool: Box<dyn KvPool>,
}

/// One update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Update {
    /// Its number, from 1.
    pub number: u64,
    /// The mean loss of the learned tokens, by their weights, in nats, before the update; of a preference, that of the pairs.
    pub loss: f64,
    /// Of a preference: the share of the pairs whose chosen document was preferred.
    pub preferred: Option<f64>,
    /// The norm of the gradient before it was shortened.
    pub gradient_norm: f64,
    /// The learning rate.
    pub learning_rate: f64,
    /// Rows that were computed.
    pub rows: usize,
    /// Tokens that were learned.
    pub learned: usize,
}

/// The loss of some steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Found {
    /// The mean loss of the learned tokens, by their weights, or of a preference's pairs, in nats.
    pub loss: f64,
    /// Of a preference: the share of the pairs whose chosen document was preferred.
    pub preferred: Option<f64>,
}

/// The loss over a set of documents.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    /// The mean loss of the learned tokens, by their weights, in nats; of a preference, that of the pairs.
    pub loss: f64,
    /// Of a preference: the share of the pairs whose chosen document was preferred.
    pub preferred: Option<f64>,
    /// Number of these tokens.
    pub learned: usize,
}

impl Trainer {
    /// Puts the model with the adapter on the device.
    ///
    /// # Errors
    ///
    /// Errors of the device, and of graphs that have no gradient.
    pub fn new(
        of: &Resources<'_>,
        lora: Lora,
        options: TrainOptions,
        progress: &mut dyn FnMut(UploadProgress) -> ControlFlow<()>,
    ) -> Result<Self> {
        let adapted = add_low_rank(of.model, &lora.low_ranks(of.model)?)?;
        let learned = Learned::adapter(lora, &adapted)?;
        Self::of(of, &adapted, learned, options, progress)
    }

    /// Puts the model with `parameters` in place of its own on the device.
    ///
    /// # Errors
    ///
    /// Errors of [`new`](Self::new), and [`TrainError::Setting`] for dropout, which hides inputs of an adapter.
    pub fn of_parameters(
        of: &Resources<'_>,
        parameters: Parameters,
        options: TrainOptions,
        progress: &mut dyn FnMut(UploadProgress) -> ControlFlow<()>,
    ) -> Result<Self> {
        if options.noise.dropout > 0.0 {
            let hint = "leave it out, or learn an adapter";
            return Err(TrainError::setting("dropout without an adapter", hint));
        }
        let (adapted, weights) = parameters.put_into(of.model)?;
        Self::of(of, &adapted, Learned::Parameters(parameters, weights), options, progress)
    }

    fn of(
        of: &Resources<'_>,
        adapted: &Graph,
        mut learned: Learned,
        options: TrainOptions,
        progress: &mut dyn FnMut(UploadProgress) -> ControlFlow<()>,
    ) -> Result<Self> {
        if options.accumulation == 0 {
            return Err(TrainError::setting("no steps an update", "an update has one step at least"));
        }
        options.noise.check()?;
        if let Objective::Preference(preference) = options.objective {
            preference.check()?;
            if options.noise != Noise::default() {
                let hint = "leave dropout and noise of embeddings out: the two runs of a document must not differ by chance";
                return Err(TrainError::setting("noise beside a preference", hint));
            }
        }
        let graphs = Graphs::new(of.model, adapted, &learned, &options)?;
        let weights = of.backend.upload(&graphs.gradients, of.precision, progress)?;
        weights.add(&graphs.loss, &mut |_| ControlFlow::Continue(()))?;
        let program =
            |graph: &Arc<Graph>| of.backend.compile(Arc::clone(graph), Arc::clone(&weights), of.limits);
        let (gradients, loss) = (program(&graphs.gradients)?, program(&graphs.loss)?);
        if let Learned::Adapter { lora, norms, .. } = &mut learned
            && lora.pairs.iter().any(|pair| pair.magnitudes.is_some())
        {
            *norms = Some((Norms::new(of.backend, of.model, &weights, lora)?, Vec::new()));
        }
        let judge = match options.objective {
            Objective::Likelihood | Objective::LikelihoodByStep => None,
            Objective::Preference(preference) => Judge::new(of, preference, &graphs, &weights)?,
        };
        let pool = of.backend.kv_pool(KvPoolSpec { groups: Vec::new(), dtype: KvType::F32 })?;
        let optimizer = Optimizer::new(options.rule, learned.forms());
        let Graphs { sources, .. } = graphs;
        let mut trainer =
            Self { learned, options, optimizer, sources, weights, gradients, loss, judge, pool };
        trainer.write()?;
        Ok(trainer)
    }

    /// The adapter as it is now.
    ///
    /// # Panics
    ///
    /// If the model's parameters are learned.
    pub fn lora(&self) -> &Lora {
        match &self.learned {
            Learned::Adapter { lora, .. } => lora,
            Learned::Parameters(..) => panic!("parameters are learned, no adapter"),
        }
    }

    /// The parameters as they are now; `None` if an adapter is learned.
    pub fn parameters(&self) -> Option<&Parameters> {
        match &self.learned {
            Learned::Adapter { .. } => None,
            Learned::Parameters(parameters, _) => Some(parameters),
        }
    }

    /// The values that are learned, as they are now: [arrays of the adapter](Lora::arrays), or each [stored tensor](Parameters::changes) of the parameters.
    pub fn arrays(&self) -> Vec<Vec<f32>> {
        self.learned.arrays()
    }

    /// The memory that a run needs beside [that of the device](Self::device_bytes).
    pub fn memory(&self) -> MemoryPlan {
        MemoryPlan::new(self.learned.forms().into_iter(), &self.options.rule)
    }

    /// The optimizer as it is now.
    pub fn optimizer(&self) -> &Optimizer {
        &self.optimizer
    }

    /// The options.
    pub fn options(&self) -> &TrainOptions {
        &self.options
    }

    /// Bytes of weights and of all programs on the device.
    pub fn device_bytes(&self) -> u64 {
        let judge = self.judge.as_ref().map_or(0, Judge::arena_bytes);
        self.weights.size_bytes() + self.gradients.arena_bytes() + self.loss.arena_bytes() + judge
    }

    /// Goes on from another state of the same values and optimizer: [arrays](Self::arrays), updates so far, and what the
    /// optimizer remembers.
    ///
    /// # Errors
    ///
    /// Errors of the device.
    ///
    /// # Panics
    ///
    /// If arrays have other sizes.
    pub fn restore(&mut self, arrays: &[Vec<f32>], updates: u64, states: Vec<Vec<Moment>>) -> Result<()> {
        self.optimizer.restore(updates, states);
        self.take(arrays)
    }

    /// Takes over other values: [arrays](Self::arrays) of the same lengths.
    ///
    /// # Errors
    ///
    /// Errors of the device.
    pub fn take(&mut self, arrays: &[Vec<f32>]) -> Result<()> {
        self.learned.set_arrays(arrays);
        self.write()
    }

    /// Learns the next steps of `batches`, as many as make an update. The losses of all their tokens count alike, whatever step
    /// they are in, unless the objective is [`Objective::LikelihoodByStep`].
    ///
    /// # Errors
    ///
    /// Errors of the device; [`TrainError::NotFinite`]. The values are what they were.
    pub fn update(&mut self, batches: &mut Batches) -> Result<Update> {
        let steps: Vec<Vec<u32>> = (0..self.options.accumulation).map(|_| batches.next_documents()).collect();
        let (found, mut gradients) = self.gradients(batches, &steps)?;
        let Found { loss, preferred } = found;
        let number = self.optimizer.updates() + 1;
        let gradient_norm = norm(&gradients);
        for (what, value) in [("the loss", loss), ("the norm of the gradient", gradient_norm)] {
            if !value.is_finite() {
                return Err(TrainError::NotFinite { update: number, what, value });
            }
        }
        if let Some(longest) = self.options.longest_gradient {
            clip(&mut gradients, gradient_norm, longest);
        }
        let learning_rate = self.options.schedule.rate(number - 1);
        let mut values = self.learned.arrays();
        self.optimizer.update(learning_rate, &mut values, &gradients);
        self.take(&values)?;
        let count = |of: &dyn Fn(&[u32]) -> usize| steps.iter().map(|step| of(step)).sum();
        let (rows, learned) = (count(&|step| batches.rows(step)), count(&|step| batches.learned(step)));
        Ok(Update { number, loss, preferred, gradient_norm, learning_rate, rows, learned })
    }

    /// Computes what documents are worth without the adapter, which a preference compares with; there is nothing to do without one, or where
    /// that is known. `watch` sees how many of all steps are done, and ends it by breaking.
    ///
    /// # Errors
    ///
    /// Errors of the device.
    pub fn compare(
        &mut self,
        batches: &Batches,
        watch: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        match &mut self.judge {
            Some(judge) => judge.compare(batches, &mut *self.pool, watch),
            None => Ok(ControlFlow::Continue(())),
        }
    }

    /// The mean loss of steps of documents and its gradient, of each of the [arrays](Self::arrays). Noise is that of the next update.
    ///
    /// # Errors
    ///
    /// [`TrainError::Setting`] for a preference among documents that are no pairs; errors of the device.
    pub fn gradients(&mut self, batches: &Batches, steps: &[Vec<u32>]) -> Result<(Found, Vec<Vec<f32>>)> {
        self.check_pairs(batches)?;
        let verdict = match &mut self.judge {
            Some(judge) => Some(judge.judge(batches, steps, &mut *self.pool)?),
            None => None,
        };
        // Tokens count alike, or steps do.
        let by_step = self.options.objective == Objective::LikelihoodByStep;
        let all = 1.0 / steps.iter().map(|documents| batches.weight(documents)).sum::<f64>();
        let mut gradients: Vec<Vec<f32>> =
            self.learned.forms().iter().map(|form| vec![0.0; form.count()]).collect();
        let mut loss = 0.0;
        for (number, documents) in steps.iter().enumerate() {
            let factor = |place: usize| match &verdict {
                Some(verdict) => verdict.slopes[number][place] / verdict.pairs as f64,
                None if by_step => 1.0 / (batches.weight(documents) * steps.len() as f64),
                None => all,
            };
            let mut step = batches.step(documents, factor);
            noise::bring(&mut step, &self.sources, &self.options.noise, self.optimizer.updates(), number);
            let outputs = self.gradients.run(&step, &mut *self.pool)?;
            let mut outputs = outputs.iter().map(|output| output.floats());
            loss += outputs.next().map_or(0.0, |loss| f64::from(loss[0]));
            let of_weights: Vec<&[f32]> = outputs.collect();
            self.learned.add_gradients(&of_weights, &mut gradients);
        }
        let found = verdict.map_or(Found { loss, preferred: None }, |verdict| verdict.found());
        Ok((found, gradients))
    }

    fn check_pairs(&self, batches: &Batches) -> Result<()> {
        if self.judge.is_some() == batches.has_pairs() {
            return Ok(());
        }
        let (what, hint) = if batches.has_pairs() {
            ("pairs without a preference", "pairs are learned by a preference")
        } else {
            ("a preference among single documents", "a preference is learned of pairs")
        };
        Err(TrainError::setting(what, hint))
    }

    /// The mean loss over all documents of `batches`.
    ///
    /// # Errors
    ///
    /// [`TrainError::Setting`] for a preference among documents that are no pairs; errors of the device.
    pub fn evaluate(&mut self, batches: &Batches) -> Result<Evaluation> {
        self.check_pairs(batches)?;
        if let Some(judge) = &mut self.judge {
            let steps = batches.epoch();
            let Found { loss, preferred } = judge.judge(batches, steps, &mut *self.pool)?.found();
            let learned = steps.iter().map(|step| batches.learned(step)).sum();
            return Ok(Evaluation { loss, preferred, learned });
        }
        let (mut loss, mut weight, mut learned) = (0.0, 0.0, 0);
        for documents in batches.epoch() {
            let own = batches.weight(documents);
            let step = batches.step(documents, |_| 1.0 / own);
            let outputs = self.loss.run(&step, &mut *self.pool)?;
            loss += own * f64::from(outputs.only().floats()[0]);
            weight += own;
            learned += batches.learned(documents);
        }
        Ok(Evaluation { loss: loss / weight, preferred: None, learned })
    }

    /// Gives the device the values.
    fn write(&mut self) -> Result<()> {
        self.learned.prepare(&mut *self.pool)?;
        self.learned.write(|weight, values| Ok(self.weights.write(weight, values)?))
    }
}
