//! Converts flags to the options of a run.

use std::collections::BTreeMap;

use brasa::train::data::{DataOptions, Learned, Long, Padding, Turns};
use brasa::train::lora::{AdapterDtype, LoraOptions, Own, Pattern, Scaling, Targets};
use brasa::train::optimizer::{Adafactor, Adam, Muon, MuonKind, Rates, Rule, Schedule, Sgd, Shape};
use brasa::train::run::RunOptions;
use brasa::train::{Activations, Extent, Noise, Objective, Preference, TrainOptions};

use super::failure::failure;
use crate::args::{
    DtypeName, FormName, LearnName, LongName, LossName, MethodName, OptimizerName, RecomputeName,
    ScheduleName, TrainArguments, TurnsName,
};
use crate::failure::Failure;

/// Refuses invalid numbers.
pub fn check(arguments: &TrainArguments) -> Result<(), Failure> {
    let refuse = |what: String| Err(Failure::Usage(what));
    if let Some(lr) = arguments.lr.filter(|lr| !(lr.is_finite() && *lr > 0.0)) {
        return refuse(format!("--lr {lr}: must be more than 0"));
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
    if arguments.method == MethodName::Dora && arguments.server.is_some() {
        return refuse(
            "--server: requests cannot choose DoRA's magnitudes, so a server does not load them".into(),
        );
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
    if arguments.adafactor.is_some() && arguments.optimizer != OptimizerName::Adafactor {
        return refuse("--adafactor: only --optimizer adafactor has settings".into());
    }
    if !(arguments.eps.is_finite() && arguments.eps > 0.0) {
        return refuse(format!("--eps {}: must be more than 0", arguments.eps));
    }
    if arguments.method == MethodName::Full {
        check_full(arguments)
    } else if arguments.max_shard_size.is_some() {
        refuse("--max-shard-size: only --method full writes a model".into())
    } else {
        Ok(())
    }
}

/// Refuses options of adapters together with `--method full`.
fn check_full(arguments: &TrainArguments) -> Result<(), Failure> {
    let of_adapters = [
        ("--alpha", arguments.alpha.is_some()),
        ("--rank-of", !arguments.rank_of.is_empty()),
        ("--alpha-of", !arguments.alpha_of.is_empty()),
        ("--dropout", arguments.dropout > 0.0),
        ("--from", arguments.from.is_some()),
        ("--adapter-dtype", arguments.adapter_dtype != DtypeName::F32),
        ("--save-dtype", arguments.save_dtype.is_some()),
        ("--server", arguments.server.is_some()),
        ("--loss dpo", arguments.loss == LossName::Dpo),
    ];
    match of_adapters.iter().find(|(_, is_set)| *is_set) {
        Some((flag, _)) => Err(Failure::Usage(format!(
            "{flag}: only of an adapter; --method full learns the model's own parameters"
        ))),
        None => Ok(()),
    }
}

/// The layers or parameters that `--targets` and `--last-blocks` select.
pub fn targets(arguments: &TrainArguments, names: &str) -> Result<Targets, Failure> {
    Targets::parse(names, arguments.last_blocks).map_err(failure)
}

/// The part of the model that `--method full` learns without `--targets`. With MLX-LM's defaults, only blocks are learned.
pub fn extent(arguments: &TrainArguments) -> Extent {
    match arguments.last_blocks {
        Some(blocks) => Extent::LastBlocks(blocks),
        None if arguments.has_mlx_defaults() => Extent::Blocks,
        None => Extent::Model,
    }
}

/// Which tokens of the examples are learned, and how long they may be.
pub fn data_options(arguments: &TrainArguments) -> DataOptions {
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

/// The options of the adapter.
pub fn lora_options(arguments: &TrainArguments) -> Result<LoraOptions, Failure> {
    Ok(LoraOptions {
        targets: targets(arguments, arguments.targets.as_deref().unwrap_or("all"))?,
        rank: arguments.rank,
        alpha: arguments.alpha.unwrap_or(2.0 * arguments.rank as f32),
        scaling: match arguments.method {
            MethodName::Lora | MethodName::Dora | MethodName::Full => Scaling::Rank,
            MethodName::Rslora => Scaling::RootOfRank,
        },
        own: own(arguments)?,
        dtype: dtype(arguments.adapter_dtype),
        seed: arguments.seed,
    })
}

/// The element type of a name.
pub fn dtype(name: DtypeName) -> AdapterDtype {
    match name {
        DtypeName::F32 => AdapterDtype::F32,
        DtypeName::Bf16 => AdapterDtype::Bf16,
    }
}

/// The ranks and α of particular layers.
fn own(arguments: &TrainArguments) -> Result<Vec<Own>, Failure> {
    let pattern = |name: &str| Pattern::parse(name).map_err(failure);
    let ranks = (arguments.rank_of.iter())
        .map(|(name, rank)| Ok(Own { pattern: pattern(name)?, rank: Some(*rank), alpha: None }));
    let alphas = (arguments.alpha_of.iter())
        .map(|(name, alpha)| Ok(Own { pattern: pattern(name)?, rank: None, alpha: Some(*alpha) }));
    ranks.chain(alphas).collect()
}

/// The options of the trainer.
pub fn train_options(arguments: &TrainArguments, updates: u64) -> TrainOptions {
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
            OptimizerName::Adamw8bit => Rule::AdamW8(adam),
            OptimizerName::Muon => Rule::Muon(muon),
            OptimizerName::Adafactor => Rule::Adafactor(arguments.adafactor.unwrap_or(Adafactor {
                weight_decay,
                // MLX's own default passes over the learning rate.
                relative_step: arguments.has_mlx_defaults(),
                ..Adafactor::default()
            })),
        },
        schedule: match arguments.lr_schedule {
            Some(schedule) => Rates::Mlx(schedule),
            None => Rates::Schedule(Schedule {
                shape: match arguments.schedule {
                    ScheduleName::Constant => Shape::Constant,
                    ScheduleName::Linear => Shape::Linear,
                    ScheduleName::Cosine => Shape::Cosine,
                },
                peak: arguments.peak_rate(),
                warm_up: arguments.warm_up.unwrap_or(updates / 20),
                updates,
                floor: 0.0,
            }),
        },
        accumulation: arguments.accumulate,
        longest_gradient: (arguments.clip > 0.0).then_some(arguments.clip),
        activations: match arguments.recompute {
            None => Activations::Kept,
            Some(RecomputeName::Cheap) => Activations::Products,
            Some(RecomputeName::Blocks) => Activations::Recomputed,
        },
        noise: Noise {
            dropout: arguments.dropout,
            embedding: arguments.neftune,
            seed: if arguments.dropout > 0.0 || arguments.neftune > 0.0 { arguments.seed } else { 0 },
        },
    }
}

/// The options of the run.
pub fn run_options(arguments: &TrainArguments, updates: u64) -> RunOptions {
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
