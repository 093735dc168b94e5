//! `brasa train`: learns a low-rank adapter from examples.

mod curves;
mod show;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use brasa::formats::{AdapterForm, Existing};
use brasa::train::data::{Batches, DataOptions, Dataset, Document, Files, Learned, Long, Turns};
use brasa::train::lora::{Lora, LoraOptions, Own, Pattern, Scaling, Targets};
use brasa::train::optimizer::{Adam, Rule, Schedule, Sgd, Shape};
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
    let read = |path: &Path| -> Result<Vec<Document>, Failure> {
        let data = Dataset::read(path, &tuner.examples(), &data_options(arguments)).map_err(failure)?;
        output::note(&format!("{}: {}", path.display(), data.report));
        interrupt::check()?;
        Ok(data.documents)
    };
    let train: Arc<[Document]> = read(&files.train)?.into();
    show::sample(&tuner, "the first example", &train[0])?;
    if arguments.loss == LossName::Dpo {
        show::sample(&tuner, "its rejected answer", &train[1])?;
    }
    let batches = |documents: Arc<[Document]>, seed| {
        let batches = if arguments.loss == LossName::Dpo { Batches::of_pairs } else { Batches::new };
        batches(documents, arguments.batch_tokens, most_documents(arguments), seed)
    };
    let mut train = batches(train, Some(arguments.seed));
    let others = |path: &Option<std::path::PathBuf>| -> Result<Option<Batches>, Failure> {
        Ok(path.as_deref().map(read).transpose()?.map(|documents| batches(documents.into(), None)))
    };
    let (valid, test) = (others(&files.valid)?, others(&files.test)?);

    let updates = match arguments.steps {
        Some(steps) => steps as u64,
        None => (train.steps_per_epoch() * arguments.epochs).div_ceil(arguments.accumulate) as u64,
    };
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
        output::plural(arguments.batch_tokens * arguments.accumulate, "token"),
    ));
    let limits = (arguments.batch_tokens, most_documents(arguments).min(arguments.batch_tokens));
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
    if !(0.0..1.0).contains(&arguments.momentum) {
        return refuse(format!("--momentum {}: must be from 0 to less than 1", arguments.momentum));
    }
    if arguments.momentum != 0.0 && arguments.optimizer != OptimizerName::Sgd {
        return refuse("--momentum: only --optimizer sgd has one".into());
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
            LearnName::Answers => Learned::Answers,
            LearnName::Last => Learned::LastAnswer,
            LearnName::All => Learned::Everything,
        },
        turns: match arguments.turns {
            TurnsName::Together => Turns::Together,
            TurnsName::Apart => Turns::Apart,
        },
        thinking: None,
        max_rows: arguments.batch_tokens,
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
    let adam = Adam { weight_decay: arguments.weight_decay, ..Adam::default() };
    let sgd = Sgd { momentum: arguments.momentum, nesterov: false, weight_decay: arguments.weight_decay };
    TrainOptions {
        objective: match arguments.loss {
            LossName::Tokens => Objective::Likelihood,
            LossName::Dpo => {
                let beta = arguments.beta.unwrap_or(Preference::default().beta);
                Objective::Preference(Preference { beta })
            }
        },
        rule: match arguments.optimizer {
            OptimizerName::Adamw => Rule::AdamW(adam),
            OptimizerName::Adam => Rule::Adam(adam),
            OptimizerName::Sgd => Rule::Sgd(sgd),
        },
        schedule: Schedule {
            shape: match arguments.schedule {
                ScheduleName::Constant => Shape::Constant,
                ScheduleName::Linear => Shape::Linear,
                ScheduleName::Cosine => Shape::Cosine,
            },
            peak: arguments.lr,
            warm_up: arguments.warm_up.unwrap_or(updates / 20),
            updates,
            floor: 0.0,
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
        evaluate_every: arguments.evaluate_every.map_or(updates.div_ceil(10), |every| every as u64),
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
