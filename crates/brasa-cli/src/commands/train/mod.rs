//! `brasa train`: learns a low-rank adapter from examples.

mod curves;
mod show;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use brasa::formats::{AdapterForm, Existing};
use brasa::train::data::{
    Batches, DataOptions, Dataset, Document, Files, Learned, Long, MlxBatches, MlxPurpose, Padding, Turns,
};
use brasa::train::lora::{Lora, LoraOptions, Own, Pattern, Scaling, Targets};
use brasa::train::optimizer::{Adam, Muon, MuonKind, Rates, Rule, Schedule, Sgd, Shape};
use brasa::train::run::{End, Outcome, RunOptions, run};
use brasa::train::{Activations, Noise, Objective, Preference, TrainError, TrainOptions, Trainer};
use brasa::{FineTuner, LoadOptions, Precision};

use crate::args::{
    FormName, LearnName, LongName, LossName, MethodName, OptimizerName, PrecisionName, ScheduleName,
    TrainArguments, TurnsName,
};
use crate::failure::Failure;
use crate::{bundled, input, interrupt, load, output};

use show::Show;

/// Most examples in one batch.
const MOST_DOCUMENTS: usize = 256;

fn most_documents(arguments: &TrainArguments) -> usize {
    // An example of a preference is two documents.
    let each = if arguments.loss == LossName::Dpo { 2 } else { 1 };
    arguments.batch_examples.map_or(MOST_DOCUMENTS, |most| most.saturating_mul(each)).min(MOST_DOCUMENTS)
}

/// Learns an adapter and writes it.
pub fn train(arguments: &TrainArguments) -> Result<(), Failure> {
    let Some(data) = &arguments.data else {
        if arguments.config.is_some() {
            return Err(Failure::Usage(
                "no examples: name them by --data, or by `data` in the configuration".into(),
            ));
        }
        return show::compare(&arguments.plot, arguments.svg.as_deref());
    };
    check(arguments)?;
    let form = match arguments.form {
        FormName::Peft => AdapterForm::Peft,
        FormName::Mlx => AdapterForm::Mlx,
        FormName::Gguf => AdapterForm::Gguf,
    };
    refuse_existing(arguments)?;
    interrupt::install();
    let tuner = open(arguments)?;
    for warning in tuner.warnings() {
        output::note(&format!("warning: {warning}"));
    }
    let files = Files::find(data).map_err(failure)?;
    let read = |path: &Path| -> Result<Dataset, Failure> {
        let data = Dataset::read(path, &tuner.examples(), &data_options(arguments)).map_err(failure)?;
        output::note(&format!("{}: {}", path.display(), data.report));
        interrupt::check()?;
        Ok(data)
    };
    let train = read(&files.train)?;
    show::sample(&tuner, "the first example", &train.documents[0])?;
    if arguments.loss == LossName::Dpo {
        show::sample(&tuner, "its rejected answer", &train.documents[1])?;
    }
    let others = |path: &Option<PathBuf>| path.as_deref().map(read).transpose();
    let (valid, test) = (others(&files.valid)?, others(&files.test)?);
    let [Some(mut train), valid, test] = batches(arguments, train, valid, test)? else {
        unreachable!("examples to learn from")
    };
    let updates = updates(arguments, &train)?;
    let mut lora = Lora::new(tuner.layers(), &lora_options(arguments)?).map_err(failure)?;
    if arguments.method == MethodName::Dora {
        lora = tuner.with_magnitudes(lora)?;
    }
    output::note(&format!(
        "{} of {} layers, {} parameters, {} of up to {}",
        lora.pairs.len(),
        tuner.layers().len(),
        lora.parameters(),
        output::plural(updates as usize, "update"),
        output::plural(train.most_rows() * arguments.accumulate, "token"),
    ));
    let all = [Some(&train), valid.as_ref(), test.as_ref()].into_iter().flatten();
    let most_rows = all.map(Batches::most_rows).max().unwrap_or(1);
    let limits = (most_rows, most_documents(arguments).min(most_rows));
    let mut trainer =
        load::with_bar(|progress| tuner.trainer(lora, train_options(arguments, updates), limits, progress))?;
    let options = run_options(arguments, updates);
    let mut show = Show::new(&options, trainer.device_bytes());
    let outcome = run(&mut trainer, &mut train, valid.as_ref(), &options, &mut |event| {
        show.event(&event);
        if interrupt::check().is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    show.finish();
    let outcome = outcome.map_err(failure)?;
    finish(arguments, &tuner, &mut trainer, &outcome, form, test.as_ref())
}

/// The batches of the examples, of those that are evaluated while training, and of those at the end.
fn batches(
    arguments: &TrainArguments,
    train: Dataset,
    valid: Option<Dataset>,
    test: Option<Dataset>,
) -> Result<[Option<Batches>; 3], Failure> {
    let (val_batches, test_batches) = (arguments.val_batches, arguments.test_batches);
    if arguments.loss == LossName::Mlx {
        let steps = arguments.steps.map(|steps| steps * arguments.accumulate);
        let batch_size = arguments.batch_examples.unwrap_or(4);
        let epochs = arguments.epochs * (train.documents.len() / batch_size);
        let every = arguments.evaluate_every.map(|every| every * arguments.accumulate);
        let own = MlxBatches {
            batch_size,
            seed: u32::try_from(arguments.seed)
                .map_err(|_| Failure::Usage(format!("--seed {}: NumPy's have 32 bits", arguments.seed)))?,
            iterations: arguments.iters.or(steps).unwrap_or(epochs) as u64,
            steps_per_eval: arguments.steps_per_eval.or(every).unwrap_or(200) as u64,
            train_documents: train.documents.len(),
            valid_documents: valid.as_ref().map_or(0, |valid| valid.documents.len()),
            purpose: MlxPurpose::Train,
        };
        let of = |data: Option<Dataset>, purpose| {
            let batches = data.map(|data| {
                Batches::as_mlx(data.documents, &data.fields, MlxBatches { purpose, ..own }).map_err(failure)
            });
            batches.transpose()
        };
        return Ok([
            of(Some(train), MlxPurpose::Train)?,
            of(valid, MlxPurpose::Valid(val_batches))?,
            of(test, MlxPurpose::Test(test_batches))?,
        ]);
    }
    let of = |documents: Vec<Document>, seed| {
        let batches = if arguments.loss == LossName::Dpo { Batches::of_pairs } else { Batches::new };
        batches(documents, arguments.batch_tokens, most_documents(arguments), seed)
    };
    let evaluated = |data: Option<Dataset>, most: Option<usize>| {
        data.map(|data| {
            let mut batches = of(data.documents, None);
            batches.keep_first(most.unwrap_or(usize::MAX));
            batches
        })
    };
    let (valid, test) = (evaluated(valid, val_batches), evaluated(test, test_batches));
    Ok([Some(of(train.documents, Some(arguments.seed))), valid, test])
}

/// All updates.
fn updates(arguments: &TrainArguments, train: &Batches) -> Result<u64, Failure> {
    let batches = match (arguments.steps, arguments.iters) {
        (Some(steps), _) => return Ok(steps as u64),
        // What follows the last whole update changes nothing.
        (None, Some(iters)) if iters >= arguments.accumulate => {
            return Ok((iters / arguments.accumulate) as u64);
        }
        (None, Some(iters)) => {
            let what =
                format!("--iters {iters}: an update has {} batches (--accumulate)", arguments.accumulate);
            return Err(Failure::Usage(what));
        }
        (None, None) => train.steps_per_epoch() * arguments.epochs,
    };
    Ok(batches.div_ceil(arguments.accumulate) as u64)
}

/// Writes the adapter, and tells what became of it.
fn finish(
    arguments: &TrainArguments,
    tuner: &FineTuner,
    trainer: &mut Trainer,
    outcome: &Outcome,
    form: AdapterForm,
    test: Option<&Batches>,
) -> Result<(), Failure> {
    trainer.take(&outcome.values).map_err(failure)?;
    let path = match form {
        AdapterForm::Gguf => arguments.out.join("adapter.gguf"),
        _ => arguments.out.clone(),
    };
    tuner.write(trainer.lora(), form, &path, Existing::Replace)?;
    show::curves(&arguments.out)?;
    let taken = match outcome.best {
        Some(best) => {
            format!("after update {}, where valid.jsonl had its least loss, {:.4}", best.update, best.loss)
        }
        None => format!("after update {}", outcome.updates),
    };
    output::line(&format!("{}: the adapter {taken}", path.display()))?;
    if outcome.end == End::NoBetter {
        output::note(&format!("ended at update {}: evaluations became no better", outcome.updates));
    }
    if outcome.end == End::Stopped {
        output::note(&format!("stopped after update {}; --resume goes on", outcome.updates));
        return Err(Failure::Interrupted);
    }
    if let Some(test) = test {
        let found = trainer.evaluate(test).map_err(failure)?;
        let told = match found.preferred {
            Some(share) => format!("{:.1} % of the pairs preferred as wanted", 100.0 * share),
            None => format!("perplexity {:.3} of {} tokens", found.loss.exp(), found.learned),
        };
        output::line(&format!("test.jsonl: loss {:.4}, {told}", found.loss))?;
    }
    Ok(())
}

/// Refuses numbers that make no sense.
fn check(arguments: &TrainArguments) -> Result<(), Failure> {
    let refuse = |what: String| Err(Failure::Usage(what));
    if !(arguments.lr.is_finite() && arguments.lr > 0.0) {
        return refuse(format!("--lr {}: must be more than 0", arguments.lr));
    }
    for (flag, value) in [("--clip", arguments.clip), ("--weight-decay", arguments.weight_decay)] {
        if !(value.is_finite() && value >= 0.0) {
            return refuse(format!("{flag} {value}: must be at least 0"));
        }
    }
    if arguments.loss == LossName::Dpo {
        let noisy = [("--dropout", arguments.dropout > 0.0), ("--neftune", arguments.neftune > 0.0)];
        if let Some((flag, _)) = noisy.iter().find(|(_, is_set)| *is_set) {
            return refuse(format!(
                "{flag}: not beside --loss dpo, whose two runs must not differ by chance"
            ));
        }
        if let Some(beta) = arguments.beta.filter(|beta| !(beta.is_finite() && *beta > 0.0)) {
            return refuse(format!("--beta {beta}: must be more than 0"));
        }
    } else if arguments.beta.is_some() {
        return refuse("--beta: only --loss dpo has one".into());
    }
    if !(0.0..1.0).contains(&arguments.dropout) {
        return refuse(format!("--dropout {}: must be from 0 to less than 1", arguments.dropout));
    }
    if !(arguments.neftune.is_finite() && arguments.neftune >= 0.0) {
        return refuse(format!("--neftune {}: must be at least 0", arguments.neftune));
    }
    if arguments.method == MethodName::Dora && arguments.form == FormName::Gguf {
        return refuse(
            "--form gguf: GGUF has no place for DoRA's magnitudes, which peft and mlx have".into(),
        );
    }
    if let Some(momentum) = arguments.momentum.filter(|momentum| !(0.0..1.0).contains(momentum)) {
        return refuse(format!("--momentum {momentum}: must be from 0 to less than 1"));
    }
    let has_momentum = matches!(arguments.optimizer, OptimizerName::Sgd | OptimizerName::Muon);
    let momentum =
        [("--momentum", arguments.momentum.is_some()), ("--nesterov", arguments.nesterov.is_some())];
    if let Some((flag, _)) = momentum.iter().find(|(_, is_set)| *is_set && !has_momentum) {
        return refuse(format!("{flag}: only --optimizer sgd and muon have one"));
    }
    if !(arguments.eps.is_finite() && arguments.eps > 0.0) {
        return refuse(format!("--eps {}: must be more than 0", arguments.eps));
    }
    Ok(())
}

/// An adapter that is there already is only replaced by a run that goes on.
fn refuse_existing(arguments: &TrainArguments) -> Result<(), Failure> {
    let names = ["adapter_config.json", "adapter.gguf"];
    let old = names.map(|name| arguments.out.join(name)).into_iter().find(|path| path.exists());
    match old.filter(|_| !arguments.resume) {
        Some(path) => {
            let hint = "name another folder (--out), or go on with its run (--resume)";
            Err(Failure::Failed(format!("{} exists\nhint: {hint}", path.display())))
        }
        None => Ok(()),
    }
}

fn open(arguments: &TrainArguments) -> Result<FineTuner, Failure> {
    let chat_template = arguments.chat_template_file.as_deref().map(input::text).transpose()?;
    let options = LoadOptions {
        device: Some(arguments.device.clone()),
        threads: arguments.threads,
        precision: match arguments.precision {
            PrecisionName::Fast => Precision::Fast,
            PrecisionName::Reference => Precision::Reference,
        },
        chat_template,
        ..LoadOptions::default()
    };
    Ok(match &arguments.source.model {
        Some(path) => FineTuner::open(path, &options)?,
        None => FineTuner::from_gguf_bytes(bundled::MODEL, &options)?,
    })
}

fn data_options(arguments: &TrainArguments) -> DataOptions {
    DataOptions {
        learned: match arguments.learn {
            _ if arguments.mask_prompt => Learned::FromLastAnswer,
            LearnName::Answers => Learned::Answers,
            LearnName::Last => Learned::LastAnswer,
            LearnName::FromLast => Learned::FromLastAnswer,
            LearnName::All => Learned::Everything,
        },
        turns: match arguments.turns {
            TurnsName::Together => Turns::Together,
            TurnsName::Apart => Turns::Apart,
        },
        thinking: None,
        max_rows: match arguments.max_seq_length {
            Some(tokens) => tokens.saturating_sub(1).clamp(1, arguments.batch_tokens),
            None => arguments.batch_tokens,
        },
        padding: if arguments.loss == LossName::Mlx { Padding::FirstLearned } else { Padding::None },
        long: match arguments.long {
            LongName::Refuse => Long::Refuse,
            LongName::Cut => Long::Cut,
            LongName::Skip => Long::Skip,
        },
        preferences: arguments.loss == LossName::Dpo,
    }
}

fn lora_options(arguments: &TrainArguments) -> Result<LoraOptions, Failure> {
    Ok(LoraOptions {
        targets: Targets::parse(&arguments.targets, arguments.last_blocks).map_err(failure)?,
        rank: arguments.rank,
        alpha: arguments.alpha.unwrap_or(2.0 * arguments.rank as f32),
        scaling: match arguments.method {
            MethodName::Lora | MethodName::Dora => Scaling::Rank,
            MethodName::Rslora => Scaling::RootOfRank,
        },
        own: own(arguments)?,
        seed: arguments.seed,
    })
}

/// Ranks and α of some layers.
fn own(arguments: &TrainArguments) -> Result<Vec<Own>, Failure> {
    let pattern = |name: &str| Pattern::parse(name).map_err(failure);
    let ranks = (arguments.rank_of.iter())
        .map(|(name, rank)| Ok(Own { pattern: pattern(name)?, rank: Some(*rank), alpha: None }));
    let alphas = (arguments.alpha_of.iter())
        .map(|(name, alpha)| Ok(Own { pattern: pattern(name)?, rank: None, alpha: Some(*alpha) }));
    ranks.chain(alphas).collect()
}

fn train_options(arguments: &TrainArguments, updates: u64) -> TrainOptions {
    let weight_decay = arguments.weight_decay;
    let ((beta1, beta2), eps, bias_correction) = (arguments.betas, arguments.eps, arguments.bias_correction);
    let adam = Adam { beta1, beta2, eps, weight_decay, bias_correction };
    let momentum = arguments.momentum.unwrap_or(0.0);
    let sgd = Sgd { momentum, nesterov: arguments.nesterov.unwrap_or(false), weight_decay };
    let kind = if arguments.has_mlx_defaults() { MuonKind::Mlx } else { MuonKind::Torch };
    let muon = Muon::default();
    let muon = Muon {
        momentum: arguments.momentum.unwrap_or(muon.momentum),
        nesterov: arguments.nesterov.unwrap_or(muon.nesterov),
        weight_decay,
        kind,
    };
    TrainOptions {
        objective: match arguments.loss {
            LossName::Tokens => Objective::Likelihood,
            LossName::Mlx => Objective::LikelihoodByStep,
            LossName::Dpo => {
                let beta = arguments.beta.unwrap_or(Preference::default().beta);
                Objective::Preference(Preference { beta })
            }
        },
        rule: match arguments.optimizer {
            OptimizerName::Adamw => Rule::AdamW(adam),
            OptimizerName::Adam => Rule::Adam(adam),
            OptimizerName::Sgd => Rule::Sgd(sgd),
            OptimizerName::Muon => Rule::Muon(muon),
        },
        schedule: match arguments.lr_schedule {
            Some(schedule) => Rates::Mlx(schedule),
            None => Rates::Schedule(Schedule {
                shape: match arguments.schedule {
                    ScheduleName::Constant => Shape::Constant,
                    ScheduleName::Linear => Shape::Linear,
                    ScheduleName::Cosine => Shape::Cosine,
                },
                peak: arguments.lr,
                warm_up: arguments.warm_up.unwrap_or(updates / 20),
                updates,
                floor: 0.0,
            }),
        },
        accumulation: arguments.accumulate,
        longest_gradient: (arguments.clip > 0.0).then_some(arguments.clip),
        activations: if arguments.recompute { Activations::Recomputed } else { Activations::Kept },
        noise: Noise {
            dropout: arguments.dropout,
            embedding: arguments.neftune,
            seed: if arguments.dropout > 0.0 || arguments.neftune > 0.0 { arguments.seed } else { 0 },
        },
    }
}

fn run_options(arguments: &TrainArguments, updates: u64) -> RunOptions {
    RunOptions {
        folder: arguments.out.clone(),
        updates,
        evaluate_every: match (arguments.evaluate_every, arguments.steps_per_eval) {
            (Some(every), _) => every as u64,
            (None, Some(batches)) => (batches / arguments.accumulate).max(1) as u64,
            (None, None) => updates.div_ceil(10),
        },
        save_every: arguments.save_every as u64,
        patience: arguments.patience.map(|patience| patience as u64),
        resume: arguments.resume,
        settings: BTreeMap::from([("model".to_owned(), arguments.source.name())]),
    }
}

/// A failure with the flags of the remedy.
#[expect(clippy::needless_pass_by_value, reason = "an error is turned into another")]
fn failure(error: TrainError) -> Failure {
    let text = error.to_string();
    let flags = match &error {
        TrainError::Data { what, .. } if what.contains("a step has at most") => {
            Some("--batch-tokens, --long")
        }
        TrainError::Data { what, .. }
            if what.contains("template shows") || what.contains("template does not") =>
        {
            Some("--turns apart, --chat-template-file")
        }
        TrainError::Data { what, .. } if what.starts_with("no assistant turn") => Some("--learn all"),
        TrainError::Data { what, .. } if what == "`chosen` and `rejected`" => Some("--loss dpo"),
        TrainError::NotFinite { .. } => Some("--lr, --warm-up, --resume"),
        TrainError::Checkpoint { .. } => Some("--resume, --out"),
        _ => None,
    };
    Failure::Failed(flags.map_or(text.clone(), |flags| format!("{text} ({flags})")))
}
