//! A training run: updates, evaluations, checkpoints.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::checkpoint::{Best, State};
use crate::data::{Batches, Place};
use crate::lora::{AdapterDtype, Lora};
use crate::metrics::{Metric, Metrics};
use crate::noise::Noise;
use crate::optimizer::{Rates, Schedule, Shape};
use crate::{Evaluation, Objective, Parameter, Result, TrainError, Trainer, Update};

/// Name of the checkpoint's file in the folder of a run.
pub const CHECKPOINT: &str = "checkpoint.brasa";
/// Name of the metrics' file in the folder of a run.
pub const METRICS: &str = "metrics.jsonl";

/// Options of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunOptions {
    /// The folder of checkpoint and metrics; created if it does not exist.
    pub folder: PathBuf,
    /// Number of all updates.
    pub updates: u64,
    /// Updates between two evaluations; there is also one before the first update and one after the last. 0 for only the one
    /// after the last.
    pub evaluate_every: u64,
    /// Updates between two checkpoints; one more is written at the end. 0 for only that one.
    pub save_every: u64,
    /// Ends the run after this many evaluations in a row without a new best.
    pub patience: Option<u64>,
    /// True to resume from the checkpoint in the folder.
    pub resume: bool,
    /// Further settings that affect the run's results, by name, such as the model and the file of examples.
    pub settings: BTreeMap<String, String>,
}

/// An event of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Event<'a> {
    /// The run resumes from a checkpoint after this many updates.
    Resumed(u64),
    /// For a preference: documents are computed with the model without the adapter. The numbers are finished steps and all steps.
    Comparing(usize, usize),
    /// An update, and its time in seconds.
    Update(Update, f64),
    /// An evaluation after this many updates; true if it is the best so far.
    Evaluated(u64, Evaluation, bool),
    /// The adapter of the best evaluation so far, and its number of updates. Full fine-tuning has none.
    Best(u64, &'a Lora),
    /// A checkpoint was written.
    Saved(&'a Path),
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The reason why the run ended.
    pub end: End,
    /// Number of updates in all.
    pub updates: u64,
    /// The best evaluation, if there was any.
    pub best: Option<Best>,
    /// The [arrays](Trainer::arrays) at the best evaluation, or else at the end.
    pub values: Vec<Vec<f32>>,
}

/// The reason why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// All updates were made.
    Finished,
    /// Evaluations have stopped improving.
    NoBetter,
    /// `watch` stopped the run. The checkpoint holds the whole state.
    Stopped,
}

/// Runs `trainer` over `train`. `watch` receives each event, and may stop the run by returning `Break`; a checkpoint is written
/// then too.
///
/// A run that resumes from a checkpoint has the bits of an uninterrupted one, if the device's results are reproducible.
///
/// # Errors
///
/// Errors of updates, evaluations and files; the last checkpoint stays. [`TrainError::Checkpoint`] if the run is to resume and
/// there is no checkpoint or one of other settings, and if there is a checkpoint and the run is not to resume.
pub fn run(
    trainer: &mut Trainer,
    train: &mut Batches,
    valid: Option<&Batches>,
    options: &RunOptions,
    watch: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
) -> Result<Outcome> {
    // Evaluations may have an order each, so the run goes through epochs of its own.
    let mut valid = valid.cloned();
    let folder = &options.folder;
    std::fs::create_dir_all(folder).map_err(|error| TrainError::io(folder, error))?;
    let path = folder.join(CHECKPOINT);
    let mut run = Run {
        settings: settings(trainer, train, valid.as_ref(), options),
        best: None,
        best_values: Vec::new(),
        evaluated: None,
        worse: 0,
        path,
    };
    let mut stop = ControlFlow::Continue(());
    if options.resume {
        let state = State::read(&run.path)?;
        state.check(&run.path, &run.settings)?;
        trainer.restore(&state.values, state.updates, state.moments)?;
        train.go_to(state.place);
        run.best = state.best;
        run.best_values = state.best_values;
        (run.evaluated, run.worse) = (state.evaluated, state.worse);
        stop = watch(Event::Resumed(state.updates));
    } else if run.path.exists() {
        return Err(TrainError::Checkpoint {
            path: run.path.display().to_string(),
            what: "the folder has a run already".into(),
            hint: "go on with it (resume), or name another folder".into(),
        });
    }
    let mut is_stopped = false;
    for batches in [Some(&*train), valid.as_ref()].into_iter().flatten() {
        if !is_stopped {
            is_stopped =
                trainer.compare(batches, &mut |done, all| watch(Event::Comparing(done, all)))?.is_break();
        }
    }
    let mut metrics = Metrics::open(&folder.join(METRICS), trainer.optimizer().updates())?;
    let mut end = End::Finished;
    loop {
        if is_stopped {
            end = End::Stopped;
            break;
        }
        let updates = trainer.optimizer().updates();
        let is_last = updates >= options.updates;
        if let Some(valid) = &mut valid
            && (is_last || due(options.evaluate_every, updates))
            && run.evaluated != Some(updates)
        {
            let began = Instant::now();
            if valid.evaluations_differ() {
                let epoch = updates.div_ceil(options.evaluate_every.max(1));
                valid.go_to(Place { epoch, step: 0 });
            }
            let found = trainer.evaluate(valid)?;
            let is_best = run.best.is_none_or(|best| found.loss < best.loss);
            if is_best {
                run.best = Some(Best { update: updates, loss: found.loss });
                trainer.fetch()?;
                run.best_values = trainer.arrays();
            }
            run.worse = if is_best { 0 } else { run.worse + 1 };
            run.evaluated = Some(updates);
            metrics.add(&Metric {
                update: updates,
                valid_loss: Some(found.loss),
                preferred: found.preferred,
                tokens: Some(found.learned),
                seconds: Some(began.elapsed().as_secs_f64()),
                ..Metric::default()
            })?;
            merge(&mut stop, watch(Event::Evaluated(updates, found, is_best)));
            if is_best && trainer.parameters().is_none() {
                merge(&mut stop, watch(Event::Best(updates, trainer.lora())));
            }
            if options.patience.is_some_and(|patience| run.worse >= patience.max(1)) {
                end = End::NoBetter;
                break;
            }
        }
        if is_last {
            break;
        }
        if stop.is_break() {
            end = End::Stopped;
            break;
        }
        if updates > 0 && due(options.save_every, updates) {
            run.save(trainer, train)?;
            merge(&mut stop, watch(Event::Saved(&run.path)));
        }
        let began = Instant::now();
        let update = trainer.update(train)?;
        let seconds = began.elapsed().as_secs_f64();
        metrics.add(&Metric {
            update: update.number,
            loss: Some(update.loss),
            preferred: update.preferred,
            learning_rate: Some(update.learning_rate),
            gradient_norm: Some(update.gradient_norm),
            rows: Some(update.rows),
            tokens: Some(update.learned),
            seconds: Some(seconds),
            ..Metric::default()
        })?;
        merge(&mut stop, watch(Event::Update(update, seconds)));
    }
    run.save(trainer, train)?;
    let _ = watch(Event::Saved(&run.path));
    let values = if run.best_values.is_empty() { trainer.arrays() } else { run.best_values };
    Ok(Outcome { end, updates: trainer.optimizer().updates(), best: run.best, values })
}

/// The state of a run between two updates, besides the states of the trainer and the batches.
struct Run {
    settings: BTreeMap<String, String>,
    best: Option<Best>,
    best_values: Vec<Vec<f32>>,
    evaluated: Option<u64>,
    worse: u64,
    path: PathBuf,
}

impl Run {
    fn save(&self, trainer: &mut Trainer, train: &Batches) -> Result<()> {
        trainer.fetch()?;
        let state = State {
            updates: trainer.optimizer().updates(),
            place: train.place(),
            settings: self.settings.clone(),
            best: self.best,
            evaluated: self.evaluated,
            worse: self.worse,
            values: Vec::new(),
            moments: Vec::new(),
            best_values: self.best_values.clone(),
        };
        state.write_with(&self.path, &trainer.arrays(), trainer.optimizer().states())
    }
}

fn due(every: u64, updates: u64) -> bool {
    every > 0 && updates.is_multiple_of(every)
}

fn merge(stop: &mut ControlFlow<()>, other: ControlFlow<()>) {
    if other.is_break() {
        *stop = other;
    }
}

/// All settings that affect the bits of a run, by name.
fn settings(
    trainer: &Trainer,
    train: &Batches,
    valid: Option<&Batches>,
    options: &RunOptions,
) -> BTreeMap<String, String> {
    let of = trainer.options();
    let schedule = match of.schedule {
        Rates::Schedule(Schedule { shape, peak, warm_up, updates, floor }) => {
            let end = if shape == Shape::Constant {
                String::new()
            } else {
                format!(", floor {floor} after {updates}")
            };
            format!("{shape:?}, peak {peak}, warm-up {warm_up}{end}")
        }
        Rates::Mlx(schedule) => format!("{schedule:?}"),
    };
    let pair = |pair: &crate::lora::Pair| {
        let kind = if pair.magnitudes.is_some() { " with magnitudes" } else { "" };
        format!("{} {}x{}{kind}", pair.layer.name, pair.rank, pair.scale)
    };
    let mut settings = options.settings.clone();
    settings.extend([
        ("optimizer".to_owned(), format!("{:?}", of.rule)),
        ("schedule".into(), schedule),
        ("steps an update".into(), of.accumulation.to_string()),
        ("longest gradient".into(), format!("{:?}", of.longest_gradient)),
        match trainer.parameters() {
            None => ("adapter".into(), trainer.lora().pairs.iter().map(pair).collect::<Vec<_>>().join(", ")),
            Some(parameters) => {
                let told: Vec<String> = parameters.all.iter().map(Parameter::told).collect();
                ("parameters".into(), told.join(", "))
            }
        },
        ("examples".into(), train.fingerprint()),
    ]);
    if of.objective != Objective::default() {
        settings.insert("objective".into(), format!("{:?}", of.objective));
    }
    if of.noise != Noise::default() {
        settings.insert("noise".into(), format!("{:?}", of.noise));
    }
    if trainer.parameters().is_none() && trainer.lora().dtype != AdapterDtype::default() {
        settings.insert("type of the adapter's matrices".into(), format!("{:?}", trainer.lora().dtype));
    }
    settings.extend(valid.map(|valid| ("examples of evaluations".to_owned(), valid.fingerprint())));
    settings
}
