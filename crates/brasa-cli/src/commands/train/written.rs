//! Writes the result of a run: the adapter or the model.

use brasa::FineTuner;
use brasa::formats::{Existing, Shards};
use brasa::train::Trainer;
use brasa::train::data::Batches;
use brasa::train::run::{End, Outcome};

use super::failure::failure;
use super::{adapter, again, serving, show};
use crate::args::TrainArguments;
use crate::failure::Failure;
use crate::output;

/// Refuses to replace an existing adapter or model, unless the run resumes.
pub fn refuse_existing(arguments: &TrainArguments) -> Result<(), Failure> {
    let names = ["adapter_config.json", "adapter.gguf", "model", "model.gguf"];
    let old = names.map(|name| arguments.out.join(name)).into_iter().find(|path| path.exists());
    match old.filter(|_| !arguments.resume) {
        Some(path) => {
            let hint = if path.ends_with("adapter_config.json") || path.ends_with("adapter.gguf") {
                let adapter = if path.ends_with("adapter.gguf") { &path } else { &arguments.out };
                format!(
                    "name another folder (--out), begin there with what was learned here (--from {}), or go on with this run if it was \
                     stopped (--resume)",
                    adapter.display()
                )
            } else {
                "name another folder (--out), or go on with this run if it was stopped (--resume)".into()
            };
            Err(Failure::Failed(format!("{} exists\nhint: {hint}", path.display())))
        }
        None => Ok(()),
    }
}

/// Writes the adapter or the model, and reports its path.
pub fn finish(
    arguments: &TrainArguments,
    tuner: &FineTuner,
    trainer: &mut Trainer,
    outcome: &Outcome,
    test: Option<&Batches>,
) -> Result<(), Failure> {
    trainer.take(&outcome.values).map_err(failure)?;
    let (path, what) = match trainer.parameters() {
        Some(parameters) => {
            let path = arguments.out.join(if tuner.is_gguf() { "model.gguf" } else { "model" });
            let shards =
                arguments.max_shard_size.map_or(Shards::Kept, |most_bytes| Shards::Limited { most_bytes });
            tuner.write_model(parameters, &path, shards, Existing::Replace)?;
            (path, "the model")
        }
        None => (adapter::write(arguments, tuner, trainer.lora(), &arguments.out)?, "the adapter"),
    };
    show::curves(&arguments.out)?;
    let taken = match outcome.best {
        Some(best) => {
            format!("after update {}, where valid.jsonl had its least loss, {:.4}", best.update, best.loss)
        }
        None => format!("after update {}", outcome.updates),
    };
    output::line(&format!("{}: {what} {taken}", path.display()))?;
    if outcome.end == End::NoBetter {
        output::note(&format!("ended at update {}: evaluations became no better", outcome.updates));
    }
    if outcome.end == End::Stopped {
        output::note(&format!(
            "stopped after update {}; --resume goes on: {}",
            outcome.updates,
            again::resumed()
        ));
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
    serving::load(arguments, &path)?;
    let next = match trainer.parameters() {
        Some(_) => again::with_model(arguments, &path),
        None => again::with_adapter(arguments, &path),
    };
    output::note(&format!("a run that begins with {what}: {next}"));
    Ok(())
}
