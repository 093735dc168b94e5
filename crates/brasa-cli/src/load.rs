//! A model from the command line's flags, with a progress bar where somebody watches.

use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::time::Duration;

use brasa::{KvType, LoadOptions, LoadProgress, Model, Precision};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::args::{LoadArguments, PrecisionName};
use crate::failure::Failure;
use crate::{bundled, interrupt};

/// Loads the model that `arguments` name, or the bundled one.
///
/// # Errors
///
/// [`Failure::Failed`] with the library's message; [`Failure::Interrupted`].
pub fn model(arguments: &LoadArguments) -> Result<Model, Failure> {
    let options = options(arguments)?;
    interrupt::install();
    let bar = bytes_bar("loading");
    let progress = |at: LoadProgress| {
        bar.set_length(at.total_bytes);
        bar.set_position(at.done_bytes);
        if interrupt::check().is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    let model = match &arguments.model {
        Some(path) => Model::load_with_progress(path, &options, progress),
        None => Model::from_gguf_bytes(bundled::MODEL, &options, progress),
    };
    bar.finish_and_clear();
    interrupt::check()?;
    let model = model?;
    for warning in model.warnings() {
        eprintln!("warning: {warning}");
    }
    if arguments.verbose {
        eprintln!(
            "{}: {} parameters, context {}, loaded in {:.2} s on {}",
            arguments.name(),
            model.info().parameters,
            model.context(),
            model.load_time().as_secs_f64(),
            model.device().description
        );
    }
    Ok(model)
}

/// The library's options from the command line's flags.
pub fn options(arguments: &LoadArguments) -> Result<LoadOptions, Failure> {
    let chat_template = match &arguments.chat_template_file {
        Some(path) => Some(std::fs::read_to_string(path).map_err(|error| Failure::file(path, &error))?),
        None => None,
    };
    let precision = match arguments.precision {
        PrecisionName::Fast => Precision::Fast,
        PrecisionName::Reference => Precision::Reference,
    };
    if arguments.cache_type_k != arguments.cache_type_v {
        return Err(Failure::Usage("-ctk and -ctv must name the same type".into()));
    }
    Ok(LoadOptions {
        device: arguments.device.clone(),
        context: arguments.context,
        threads: arguments.threads,
        precision,
        kv_type: arguments.cache_type_k.map(KvType::from),
        chunk: arguments.chunk,
        strict: arguments.strict,
        pre_tokenizer: arguments.pre.clone(),
        chat_template,
        ..LoadOptions::default()
    })
}

/// A progress bar over bytes on standard error; invisible where that is no terminal.
pub fn bytes_bar(what: &'static str) -> ProgressBar {
    bar(what, "{msg} {bar:40} {bytes}/{total_bytes} {eta}")
}

/// A progress bar over things to count.
pub fn count_bar(what: &'static str) -> ProgressBar {
    bar(what, "{msg} {bar:40} {percent} %, {eta} left")
}

fn bar(what: &'static str, template: &str) -> ProgressBar {
    let bar = ProgressBar::new(0);
    if std::io::stderr().is_terminal() {
        bar.enable_steady_tick(Duration::from_millis(100));
    } else {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_message(what);
    bar
}
