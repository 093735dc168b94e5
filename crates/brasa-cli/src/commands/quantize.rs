//! `brasa quantize`: converts a checkpoint to a (quantised) GGUF file.

use std::ops::ControlFlow;

use brasa_convert::{ConvertError, Event, Options, Recipe, convert};

use brasa::formats::{Existing, FormatError};

use crate::args::QuantizeArguments;
use crate::failure::Failure;
use crate::{interrupt, load, output, values};

/// Runs the conversion.
pub fn quantize(arguments: &QuantizeArguments) -> Result<(), Failure> {
    if arguments.list {
        return output::line(&Recipe::names().replace(", ", "\n"));
    }
    let (Some(input), Some(out), Some(kind)) = (&arguments.input, &arguments.output, &arguments.kind) else {
        return Err(Failure::Usage("quantize IN OUT TYPE".into()));
    };
    let recipe = Recipe::parse(kind).map_err(|error| Failure::Usage(error.to_string()))?;
    let force = output::Force { given: arguments.force, how: "--force" };
    output::refuse_existing(out, force)?;
    let mut options = Options::new(recipe);
    if let Some(threads) = arguments.threads {
        options.threads = threads;
    }
    options.pre_tokenizer = values::given(arguments.pre.as_ref());
    options.adapters = arguments.lora.iter().map(|adapter| (adapter.path.clone(), adapter.scale)).collect();
    if arguments.force {
        options.existing = Existing::Replace;
    }
    interrupt::clean_up_when_killed();
    interrupt::install();
    let bar = load::count_bar("weights");
    let summary = convert(input, out, &options, &mut |event| {
        match event {
            Event::Planned { elements, .. } => bar.set_length(elements),
            Event::Progress { done, .. } => bar.set_position(done),
            Event::Fallback { tensor, row_len, wanted, used } => bar.suspend(|| {
                output::note(&format!(
                    "{tensor}: stored as {used}, rows of {row_len} are no whole number of {wanted} blocks"
                ));
            }),
            Event::Warning(text) => bar.suspend(|| output::note(&format!("warning: {text}"))),
            Event::Merged { tensors, share, error } => bar.suspend(|| {
                output::note(&format!(
                    "{} changed: {:.1} % of the change is in the file, and rounding adds {:.1} % of its size",
                    output::plural(tensors, "tensor"),
                    100.0 * share,
                    100.0 * error
                ));
            }),
            Event::Tensor { name, shape, from, to } if arguments.verbose => {
                bar.suspend(|| output::note(&format!("{name} {shape:?}: {from} → {to}")));
            }
            _ => {}
        }
        if interrupt::check().is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    bar.finish_and_clear();
    let summary = match summary {
        Ok(summary) => summary,
        Err(ConvertError::Cancelled) => return Err(Failure::Interrupted),
        Err(error @ ConvertError::UnknownPreTokenizer { .. }) => {
            return Err(Failure::Failed(format!("{error} (--pre)")));
        }
        Err(error @ ConvertError::Format(FormatError::Exists { .. })) => {
            return Err(Failure::Failed(format!("{error}\nhint: --force replaces it")));
        }
        Err(error) => return Err(Failure::Failed(error.to_string())),
    };
    output::line(&format!(
        "{}: {}, {} ({:.2} bits per weight){}",
        out.display(),
        output::plural(summary.tensors, "tensor"),
        indicatif::HumanBytes(summary.bytes),
        summary.bits_per_weight(),
        if summary.fallbacks > 0 {
            format!(", {} stored otherwise than asked", summary.fallbacks)
        } else {
            String::new()
        }
    ))
}
