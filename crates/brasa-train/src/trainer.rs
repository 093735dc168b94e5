//! Learned values on a device, changed update by update.

use std::ops::ControlFlow;
use std::sync::Arc;

use brasa_graph::Graph;
use brasa_graph::device::{
    Backend, KvPool, KvPoolSpec, Precision, Program, ProgramLimits, UploadProgress, WeightSet,
};
use brasa_graph::learn::LearnedState;
use brasa_graph::pass::add_low_rank;
use brasa_graph::step::Step;

use crate::data::Batches;
use crate::graphs::Graphs;
use crate::judge::Judge;
use crate::learned::Learned;
use crate::lora::{Lora, Norms};
use crate::noise::{self, Noise, Source};
use crate::objective::Objective;
use crate::optimizer::{Adam, Moment, Optimizer, Rates, Rule, Schedule, Shape, clip, norm, shortening};
use crate::parameters::Parameters;
use crate::recompute::Activations;
use crate::{MemoryPlan, Result, TrainError};

/// A device, with the model's graph and weights.
pub struct Resources<'a> {
    /// The device.
    pub backend: &'a dyn Backend,
    /// The model's graph, with logits as its output.
    pub model: &'a Graph,
    /// The precision of the device's arithmetic.
    pub precision: Precision,
    /// The largest step. All of its rows may have learned tokens.
    pub limits: ProgramLimits,
}

/// Options of training.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainOptions {
    /// The loss that updates lower, and how it is averaged.
    pub objective: Objective,
    /// The optimizer.
    pub rule: Rule,
    /// The learning rate of each update.
    pub schedule: Rates,
    /// Number of steps in one update; their gradients are summed.
    pub accumulation: usize,
    /// Largest norm of a gradient; longer gradients are scaled down. `None` for no limit.
    pub longest_gradient: Option<f64>,
    /// Dropout, and noise in embeddings.
    pub noise: Noise,
    /// Which results of a model's blocks are kept for the gradient, and which are computed again.
    pub activations: Activations,
}

/// AdamW at a learning rate of 2e-4 on the likelihood of learned tokens; one step for each update, and gradients clipped to a
/// norm of 1.
impl Default for TrainOptions {
    fn default() -> Self {
        let schedule = Schedule { shape: Shape::Constant, peak: 2e-4, warm_up: 0, updates: 0, floor: 0.0 };
        Self {
            objective: Objective::default(),
            rule: Rule::AdamW(Adam::default()),
            schedule: schedule.into(),
            accumulation: 1,
            longest_gradient: Some(1.0),
            noise: Noise::default(),
            activations: Activations::default(),
        }
    }
}

/// Trains an adapter, or parameters of the model, on a device.
pub struct Trainer {
    learned: Learned,
    options: TrainOptions,
    optimizer: Optimizer,
    sources: Vec<Source>,
    weights: Arc<dyn WeightSet>,
    gradients: Box<dyn Program>,
    loss: Box<dyn Program>,
    /// Computes the loss of preferences; `None` for other objectives.
    judge: Option<Judge>,
    pool: Box<dyn KvPool>,
    place: Place,
}

/// The place where updates are computed: the host or the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// On the host: gradients are copied from the device, and values to it.
    Host,
    /// On the device. `is_ahead` is true if the device has made updates that the host's values and optimizer do not have yet.
    Device { is_ahead: bool },
}

/// The result of one update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Update {
    /// Number of the update, counted from 1.
    pub number: u64,
    /// The mean loss of the learned tokens, by their weights, in nats, before the update. For preferences, the mean loss of the
    /// pairs.
    pub loss: f64,
    /// For preferences: the share of pairs in which the chosen document was preferred.
    pub preferred: Option<f64>,
    /// The norm of the gradient before clipping.
    pub gradient_norm: f64,
    /// The learning rate of the update.
    pub learning_rate: f64,
    /// Number of rows that were computed.
    pub rows: usize,
    /// Number of tokens that were learned.
    pub learned: usize,
}

/// The loss of some steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Found {
    /// The mean loss of the learned tokens, by their weights, or of a preference's pairs, in nats.
    pub loss: f64,
    /// For preferences: the share of pairs in which the chosen document was preferred.
    pub preferred: Option<f64>,
}

/// The loss over a set of documents.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    /// The mean loss of the learned tokens, by their weights, in nats. For preferences, the mean loss of the pairs.
    pub loss: f64,
    /// For preferences: the share of pairs in which the chosen document was preferred.
    pub preferred: Option<f64>,
    /// Number of learned tokens of the documents.
    pub learned: usize,
}

type RunStep<'a> = dyn FnMut(&mut dyn Program, &Learned, &Step, &mut dyn KvPool, usize) -> Result<f64> + 'a;

impl Trainer {
    /// Puts the model with the adapter `lora` on the device.
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

    /// Puts the model with `parameters`, in place of its own, on the device.
    ///
    /// # Errors
    ///
    /// Errors of [`new`](Self::new), and [`TrainError::Setting`] for dropout, which applies to the inputs of an adapter only.
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
        let program = |graph: &Arc<Graph>| {
            of.backend.compile(Arc::clone(graph), Arc::clone(&weights), of.limits.into())
        };
        let (mut gradients, loss) = (program(&graphs.gradients)?, program(&graphs.loss)?);
        if let Learned::Adapter { lora, norms, .. } = &mut learned
            && lora.pairs.iter().any(|pair| pair.magnitudes.is_some())
        {
            *norms = Some((Norms::new(of.backend, of.model, &weights, lora)?, Vec::new()));
        }
        let judge = match options.objective {
            Objective::Likelihood | Objective::LikelihoodByStep | Objective::Own(_) => None,
            Objective::Preference(preference) => Judge::new(of, preference, &graphs, &weights)?,
        };
        let pool = of.backend.kv_pool(KvPoolSpec::empty())?;
        let optimizer = Optimizer::new(options.rule, learned.forms());
        let mut place = Place::Host;
        if optimizer.step_of_device(0.0, 1.0).is_some()
            && let (Some(learner), Some(blocks)) = (gradients.learner(), learned.blocks())
            && learner.prepare(&blocks)?
        {
            place = Place::Device { is_ahead: false };
        }
        let Graphs { sources, .. } = graphs;
        let mut trainer =
            Self { learned, options, optimizer, sources, weights, gradients, loss, judge, pool, place };
        trainer.write()?;
        Ok(trainer)
    }

    /// Copies values and optimizer state from the device, if updates are made there. Required after updates before
    /// [`lora`](Self::lora), [`arrays`](Self::arrays), [`parameters`](Self::parameters) and the states of the
    /// [optimizer](Self::optimizer) are read.
    ///
    /// # Errors
    ///
    /// Errors of the device.
    pub fn fetch(&mut self) -> Result<()> {
        if self.place != (Place::Device { is_ahead: true }) {
            return Ok(());
        }
        let Some(learner) = self.gradients.learner() else { return Ok(()) };
        let (mut arrays, mut states) = (Vec::new(), Vec::new());
        for LearnedState { values, means, squares } in learner.read()? {
            arrays.push(values);
            states.push(vec![Moment::Floats(means), Moment::Floats(squares)]);
        }
        self.learned.set_arrays(&arrays);
        self.optimizer.restore(self.optimizer.updates(), states);
        self.place = Place::Device { is_ahead: false };
        Ok(())
    }

    fn check_fetched(&self) {
        assert!(self.place != (Place::Device { is_ahead: true }), "Trainer::fetch comes first");
    }

    /// The adapter with its present values.
    ///
    /// # Panics
    ///
    /// If the model's parameters are learned, or after updates without [`fetch`](Self::fetch).
    pub fn lora(&self) -> &Lora {
        self.check_fetched();
        match &self.learned {
            Learned::Adapter { lora, .. } => lora,
            Learned::Parameters(..) => panic!("parameters are learned, no adapter"),
        }
    }

    /// The parameters with their present values; `None` if an adapter is learned.
    pub fn parameters(&self) -> Option<&Parameters> {
        match &self.learned {
            Learned::Adapter { .. } => None,
            Learned::Parameters(parameters, _) => Some(parameters),
        }
    }

    /// The present learned values: [arrays of the adapter](Lora::arrays), or each [stored tensor](Parameters::changes) of the
    /// parameters.
    ///
    /// # Panics
    ///
    /// After updates without [`fetch`](Self::fetch).
    pub fn arrays(&self) -> Vec<Vec<f32>> {
        self.check_fetched();
        self.learned.arrays()
    }

    /// The host memory that a run needs, besides [that of the device](Self::device_bytes).
    pub fn memory(&self) -> MemoryPlan {
        MemoryPlan::new(self.learned.forms().into_iter(), &self.options.rule)
    }

    /// The optimizer: its updates so far, and its states as of the last [`fetch`](Self::fetch).
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

    /// Restores a state of the learned values and the optimizer: [arrays](Self::arrays), the number of updates so far, and the
    /// optimizer's moments.
    ///
    /// # Errors
    ///
    /// Errors of the device.
    ///
    /// # Panics
    ///
    /// If arrays have other lengths.
    pub fn restore(&mut self, arrays: &[Vec<f32>], updates: u64, states: Vec<Vec<Moment>>) -> Result<()> {
        self.place = match self.place {
            Place::Host => Place::Host,
            Place::Device { .. } => Place::Device { is_ahead: false },
        };
        self.optimizer.restore(updates, states);
        if let (Place::Device { .. }, Some(learner)) = (self.place, self.gradients.learner()) {
            let floats = |moments: &Vec<Moment>| -> [Vec<f32>; 2] {
                [0, 1].map(|which| moments[which].as_floats().unwrap_or_default().to_vec())
            };
            let states: Vec<[Vec<f32>; 2]> = self.optimizer.states().iter().map(floats).collect();
            let of_blocks: Vec<[&[f32]; 2]> = states.iter().map(|[a, b]| [&a[..], &b[..]]).collect();
            learner.write_means(&of_blocks)?;
        }
        self.take(arrays)
    }

    /// Sets the learned values: [arrays](Self::arrays) of the same lengths.
    ///
    /// # Errors
    ///
    /// Errors of the device.
    pub fn take(&mut self, arrays: &[Vec<f32>]) -> Result<()> {
        // What the optimizer remembers stays that of its own updates.
        self.fetch()?;
        self.learned.set_arrays(arrays);
        self.write()
    }

    /// Runs one update over the next steps of `batches`. The losses of all learned tokens have equal weight across these steps,
    /// unless the objective is [`Objective::LikelihoodByStep`].
    ///
    /// # Errors
    ///
    /// Errors of the device; [`TrainError::NotFinite`]. The values are unchanged then.
    ///
    /// # Panics
    ///
    /// If a device that made updates before leaves them to the host now.
    pub fn update(&mut self, batches: &mut Batches) -> Result<Update> {
        let steps: Vec<Vec<u32>> = (0..self.options.accumulation).map(|_| batches.next_documents()).collect();
        let number = self.optimizer.updates() + 1;
        let learning_rate = self.options.schedule.rate(number - 1);
        let check = |loss: f64, norm: f64| {
            for (what, value) in [("the loss", loss), ("the norm of the gradient", norm)] {
                if !value.is_finite() {
                    return Err(TrainError::NotFinite { update: number, what, value });
                }
            }
            Ok(())
        };
        let (found, gradient_norm) = match self.place {
            Place::Host => {
                let (found, mut gradients) = self.gradients(batches, &steps)?;
                let gradient_norm = norm(&gradients);
                check(found.loss, gradient_norm)?;
                if let Some(longest) = self.options.longest_gradient {
                    clip(&mut gradients, gradient_norm, longest);
                }
                let mut values = self.learned.arrays();
                self.optimizer.update(learning_rate, &mut values, &gradients);
                self.take(&values)?;
                (found, gradient_norm)
            }
            Place::Device { .. } => {
                let found = self.each_step(batches, &steps, &mut |program, _, step, pool, number| {
                    let learner = program.learner().expect("it learned before");
                    Ok(f64::from(learner.run_and_sum(step, pool, number == 0)?))
                })?;
                let learner = self.gradients.learner().expect("it learned before");
                let gradient_norm = learner.norm()?;
                check(found.loss, gradient_norm)?;
                let factor =
                    self.options.longest_gradient.and_then(|longest| shortening(gradient_norm, longest));
                let step = self.optimizer.step_of_device(learning_rate, factor.unwrap_or(1.0));
                learner.update(&step.expect("a rule of devices"))?;
                self.optimizer.count();
                self.place = Place::Device { is_ahead: true };
                (found, gradient_norm)
            }
        };
        let Found { loss, preferred } = found;
        let count = |of: &dyn Fn(&[u32]) -> usize| steps.iter().map(|step| of(step)).sum();
        let (rows, learned) = (count(&|step| batches.rows(step)), count(&|step| batches.learned(step)));
        Ok(Update { number, loss, preferred, gradient_norm, learning_rate, rows, learned })
    }

    /// Computes the documents' losses without the adapter, which a preference compares with. Does nothing for other objectives,
    /// or if the losses are known. `watch` receives the numbers of finished steps and of all steps, and may cancel by returning
    /// `Break`.
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

    /// The mean loss of steps of documents, and its gradient with respect to each of the [arrays](Self::arrays). Uses the noise
    /// of the next update.
    ///
    /// # Errors
    ///
    /// [`TrainError::Setting`] for a preference with documents that are not pairs; errors of the device.
    pub fn gradients(&mut self, batches: &Batches, steps: &[Vec<u32>]) -> Result<(Found, Vec<Vec<f32>>)> {
        let mut gradients: Vec<Vec<f32>> =
            self.learned.forms().iter().map(|form| vec![0.0; form.count()]).collect();
        let found = self.each_step(batches, steps, &mut |program, learned, step, pool, _| {
            let outputs = program.run(step, pool)?;
            let mut outputs = outputs.iter().map(|output| output.floats());
            let loss = outputs.next().map_or(0.0, |loss| f64::from(loss[0]));
            let of_weights: Vec<&[f32]> = outputs.collect();
            learned.add_gradients(&of_weights, &mut gradients);
            Ok(loss)
        })?;
        Ok((found, gradients))
    }

    /// Calls `run` for each of `steps` with the program of gradients. `run` gets the step's number and returns the step's loss.
    fn each_step(&mut self, batches: &Batches, steps: &[Vec<u32>], run: &mut RunStep<'_>) -> Result<Found> {
        self.check_pairs(batches)?;
        let verdict = match &mut self.judge {
            Some(judge) => Some(judge.judge(batches, steps, &mut *self.pool)?),
            None => None,
        };
        // Tokens count alike, or steps do.
        let by_step = self.options.objective == Objective::LikelihoodByStep;
        let all = 1.0 / steps.iter().map(|documents| batches.weight(documents)).sum::<f64>();
        let mut loss = 0.0;
        for (number, documents) in steps.iter().enumerate() {
            let factor = |place: usize| match &verdict {
                Some(verdict) => verdict.slopes[number][place] / verdict.pairs as f64,
                None if by_step => 1.0 / (batches.weight(documents) * steps.len() as f64),
                None => all,
            };
            let mut step = step_of(&self.options.objective, batches, documents, factor);
            noise::bring(&mut step, &self.sources, &self.options.noise, self.optimizer.updates(), number);
            loss += run(&mut *self.gradients, &self.learned, &step, &mut *self.pool, number)?;
        }
        Ok(verdict.map_or(Found { loss, preferred: None }, |verdict| verdict.found()))
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
    /// [`TrainError::Setting`] for a preference with documents that are not pairs; errors of the device.
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
            let step = step_of(&self.options.objective, batches, documents, |_| 1.0 / own);
            let outputs = self.loss.run(&step, &mut *self.pool)?;
            loss += own * f64::from(outputs.only().floats()[0]);
            weight += own;
            learned += batches.learned(documents);
        }
        Ok(Evaluation { loss: loss / weight, preferred: None, learned })
    }

    /// Copies the learned values to the device.
    fn write(&mut self) -> Result<()> {
        self.learned.prepare(&mut *self.pool)?;
        self.learned.write(|weight, values| Ok(self.weights.write(weight, values)?))
    }
}

/// The step of `documents`, with the inputs that a custom loss needs.
fn step_of(
    objective: &Objective,
    batches: &Batches,
    documents: &[u32],
    factor: impl Fn(usize) -> f64,
) -> Step {
    let mut step = batches.step(documents, factor);
    if let Objective::Own(loss) = objective {
        loss.bring(&mut step, batches, documents);
    }
    step
}
