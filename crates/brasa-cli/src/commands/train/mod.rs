//! `brasa train`: trains a low-rank adapter, or the model itself, from examples.

mod adapter;
mod again;
mod curves;
mod failure;
mod options;
mod serving;
mod show;
mod written;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use brasa::train::Trainer;
use brasa::train::data::{Batches, Dataset, Document, Files, MlxBatches, MlxPurpose};
use brasa::train::lora::Lora;
use brasa::train::run::{End, Event, run};
use brasa::{FineTuner, LoadOptions, Precision};

use crate::args::{FormName, LossName, MethodName, PrecisionName, TrainArguments};
use crate::failure::Failure;
use crate::{bundled, input, interrupt, load, output};

use failure::failure;
use options::{check, data_options, extent, lora_options, run_options, targets, train_options};
use show::Show;

/// Most examples in one batch.
const MOST_DOCUMENTS: usize = 256;

fn most_documents(arguments: &TrainArguments) -> usize {
    // An example of a preference is two documents.
    let each = if arguments.loss == LossName::Dpo { 2 } else { 1 };
    arguments.batch_examples.map_or(MOST_DOCUMENTS, |most| most.saturating_mul(each)).min(MOST_DOCUMENTS)
}

/// Trains an adapter or a model and writes it.
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
    written::refuse_existing(arguments)?;
    serving::check(arguments)?;
    interrupt::install();
    let tuner = open(arguments)?;
    for warning in tuner.warnings() {
        output::note(&format!("warning: {warning}"));
    }
    if arguments.max_shard_size.is_some() && tuner.is_gguf() {
        let what = "--max-shard-size: a GGUF file is written whole, only a folder of safetensors in shards";
        return Err(Failure::Usage(what.into()));
    }
    let files = Files::find(data).map_err(failure)?;
    if arguments.serve_best && files.valid.is_none() {
        return Err(Failure::Usage(
            "--serve-best: there is no valid.jsonl to tell which adapter is the best".into(),
        ));
    }
    let read = |path: &Path| -> Result<Dataset, Failure> {
        let (examples, options) = (tuner.examples(), data_options(arguments));
        let (data, is_cached) = match &arguments.token_cache {
            Some(folder) => tuner.token_cache(folder)?.read(path, &examples, &options).map_err(failure)?,
            None => (Dataset::read(path, &examples, &options).map_err(failure)?, false),
        };
        let cached = if is_cached { " (token ids of an earlier run)" } else { "" };
        output::note(&format!("{}: {}{cached}", path.display(), data.report));
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
    let all = [Some(&train), valid.as_ref(), test.as_ref()].into_iter().flatten();
    let most_rows = all.map(Batches::most_rows).max().unwrap_or(1);
    let limits = (most_rows, most_documents(arguments).min(most_rows));
    let mut trainer = trainer(arguments, &tuner, &train, updates, limits)?;
    let options = run_options(arguments, updates);
    let mut show = Show::new(&options, trainer.device_bytes(), arguments.report_updates());
    let mut best = serving::Best::new(arguments);
    let outcome = run(&mut trainer, &mut train, valid.as_ref(), &options, &mut |event| {
        show.event(&event);
        if let Some(best) = &mut best {
            if let Event::Best(1.., lora) = event
                && let Some(warning) = best.load(&tuner, lora)
            {
                show.note(&warning);
            }
            for line in best.answers() {
                show.note(&line);
            }
        }
        if interrupt::check().is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    if let Some(best) = best {
        let is_followed = outcome.as_ref().is_ok_and(|outcome| outcome.end != End::Stopped);
        for line in best.finish(is_followed) {
            show.note(&line);
        }
    }
    show.finish();
    let outcome = outcome.map_err(failure)?;
    written::finish(arguments, &tuner, &mut trainer, &outcome, test.as_ref())
}

/// Puts the model with an adapter, or with learned parameters, on the device; reports the number of learned values.
fn trainer(
    arguments: &TrainArguments,
    tuner: &FineTuner,
    train: &Batches,
    updates: u64,
    limits: (usize, usize),
) -> Result<Trainer, Failure> {
    let options = train_options(arguments, updates);
    let course = format!(
        "{} of up to {}",
        output::plural(updates as usize, "update"),
        output::plural(train.most_rows() * arguments.accumulate, "token"),
    );
    if arguments.method == MethodName::Full {
        let parameters = match &arguments.targets {
            Some(names) => tuner.parameters_of(&targets(arguments, names)?)?,
            None => tuner.parameters(extent(arguments))?,
        };
        output::note(&format!("the model's own {} parameters, {course}", parameters.count()));
        let memory = parameters.memory(&options.rule);
        let [values, gradients, moments, total] =
            [memory.values_bytes, memory.gradients_bytes, memory.moments_bytes, memory.total_bytes()]
                .map(indicatif::HumanBytes);
        output::note(&format!(
            "memory: {total} ({values} of values, {gradients} of gradients, {moments} of the optimizer) beside the device"
        ));
        let trainer =
            load::with_bar(|progress| tuner.trainer_of_parameters(parameters, options, limits, progress))?;
        let device = indicatif::HumanBytes(trainer.device_bytes());
        output::note(&format!("memory of the device: {device}, of weights and steps"));
        return Ok(trainer);
    }
    let mut lora = Lora::new(tuner.layers(), &lora_options(arguments)?).map_err(failure)?;
    if arguments.form == FormName::Peft && lora.pairs.iter().any(|pair| pair.layer.experts.is_some()) {
        let what = "--form peft: PEFT has no form for a stack of experts; mlx and gguf have one";
        return Err(Failure::Usage(what.into()));
    }
    if arguments.method == MethodName::Dora {
        lora = tuner.with_magnitudes(lora)?;
    }
    if let Some(path) = &arguments.from {
        lora = tuner.begin_from(lora, path)?;
        output::note(&format!("the values of {} are begun with", path.display()));
    }
    output::note(&format!(
        "{} of {} layers, {} parameters, {course}",
        lora.pairs.len(),
        tuner.layers().len(),
        lora.parameters(),
    ));
    load::with_bar(|progress| tuner.trainer(lora, options, limits, progress))
}

/// The batches for training, for evaluations during training, and for the evaluation at the end.
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

/// The number of all updates.
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

fn open(arguments: &TrainArguments) -> Result<FineTuner, Failure> {
    let chat_template = arguments.chat_template_file.as_deref().map(input::text).transpose()?;
    let options = LoadOptions {
        device: Some(arguments.device.clone()),
        gpu_memory: arguments.gpu_memory.map(Into::into),
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
