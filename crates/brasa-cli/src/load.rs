//! Loads a model by the command line's flags, with a progress bar at a terminal.

use std::borrow::Cow;
use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

use brasa::{Embedder, KvType, LoadOptions, LoadProgress, Model, Precision, Reranker, RunFacts, Speculation};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::args::{DraftArguments, LoadArguments, PrecisionName, SetupArguments, SourceArguments};
use crate::failure::Failure;
use crate::{bundled, input, interrupt, output, values};

/// Beginning of the line on standard error that lists the times of loading.
pub const PARTS: &str = "loading: ";

/// Loads the model that `arguments` name, or the bundled one.
///
/// # Errors
///
/// [`Failure::Failed`] with the library's message; [`Failure::Interrupted`].
pub fn model(arguments: &LoadArguments) -> Result<Model, Failure> {
    model_with(arguments, &options(&arguments.setup)?)
}

/// Like [`model`], with the flags for guessing tokens ahead.
///
/// # Errors
///
/// The errors of [`model`] and of [`speculation`].
pub fn model_with_drafts(arguments: &LoadArguments, drafts: &DraftArguments) -> Result<Model, Failure> {
    let options = LoadOptions {
        speculation: speculation(drafts)?,
        draft_model: drafts.model_draft.clone(),
        ..options(&arguments.setup)?
    };
    model_with(arguments, &options)
}

/// Like [`model`], with `options` in place of the command line's.
///
/// # Errors
///
/// The errors of [`model`].
pub fn model_with(arguments: &LoadArguments, options: &LoadOptions) -> Result<Model, Failure> {
    let model = open(&arguments.source, options)?;
    if let (Some(wanted), Some(own)) = (arguments.setup.context, model.info().context_length)
        && wanted > own
    {
        output::note(&format!("warning: -c {wanted}: the model was made for at most {own} tokens"));
    }
    if arguments.verbose {
        output::note(&format!(
            "{}: {} parameters, context {}, loaded in {:.2} s on {}",
            arguments.source.name(),
            model.info().parameters,
            model.context(),
            model.load_time().as_secs_f64(),
            model.device().description
        ));
        if let Some(draft) = model.draft_model() {
            output::note(&format!(
                "draft model: {} parameters, {} MiB of weights, at most {} MiB of keys and values",
                draft.info.parameters,
                draft.weight_bytes >> 20,
                draft.cache_bytes >> 20
            ));
        }
        let times = model.load_times();
        let parts = [
            ("open", times.open),
            ("tokenizer", times.tokenizer),
            ("graph", times.graph),
            ("weights", times.weights),
            ("compile", times.compile),
            ("load", times.total),
        ]
        .map(|(name, time)| format!("{name} {:.1} ms", time.as_secs_f64() * 1e3));
        output::note(&format!("{PARTS}{}", parts.join(", ")));
    }
    Ok(model)
}

/// Loads the model that `source` names, or the bundled one, and prints its warnings.
///
/// # Errors
///
/// The errors of [`model`].
pub fn open(source: &SourceArguments, options: &LoadOptions) -> Result<Model, Failure> {
    let model = with_bar(|progress| match &source.model {
        Some(path) => Model::load_with_progress(path, options, progress),
        None => Model::from_gguf_bytes(bundled::MODEL, options, progress),
    })?;
    tell(source, model.warnings());
    Ok(model)
}

/// Loads the language model or cross-encoder that `arguments` name, or the bundled model, to judge documents.
///
/// # Errors
///
/// The errors of [`model`].
pub fn reranker(arguments: &LoadArguments) -> Result<Reranker, Failure> {
    embedder(arguments).map(Reranker::from)
}

/// Loads the language model or text encoder that `arguments` name, or the bundled model, to make vectors of texts.
///
/// # Errors
///
/// The errors of [`model`].
pub fn embedder(arguments: &LoadArguments) -> Result<Embedder, Failure> {
    let (source, options) = (&arguments.source, options(&arguments.setup)?);
    let started = Instant::now();
    let model = with_bar(|progress| match &source.model {
        Some(path) => Embedder::load_with_progress(path, &options, progress),
        None => Embedder::from_gguf_bytes(bundled::MODEL, &options, progress),
    })?;
    tell(source, model.warnings());
    if arguments.verbose {
        output::note(&format!(
            "{}: {} parameters, context {}, loaded in {:.2} s on {}",
            source.name(),
            model.info().parameters,
            model.context(),
            started.elapsed().as_secs_f64(),
            model.device().description
        ));
    }
    Ok(model)
}

/// Loads with a progress bar, until the user interrupts it.
///
/// # Errors
///
/// The errors of `load`; [`Failure::Interrupted`].
pub fn with_bar<T>(
    load: impl FnOnce(&mut dyn FnMut(LoadProgress) -> ControlFlow<()>) -> Result<T, brasa::Error>,
) -> Result<T, Failure> {
    interrupt::install();
    let bar = bytes_bar("loading");
    let loaded = load(&mut |at: LoadProgress| {
        bar.set_length(at.total_bytes);
        bar.set_position(at.done_bytes);
        if interrupt::check().is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    bar.finish_and_clear();
    interrupt::check()?;
    Ok(loaded?)
}

/// Prints the warnings about a loaded checkpoint.
fn tell(source: &SourceArguments, warnings: &[String]) {
    for warning in warnings {
        output::note(&format!("warning: {warning}"));
    }
    if let Some(file) = source.model.as_deref().and_then(gguf_beside_safetensors) {
        output::note(&format!(
            "note: the folder's safetensors are used, not the GGUF file beside them: {}",
            file.display()
        ));
    }
}

/// The model, the device and this build, for reports of measurements.
pub fn facts(source: &SourceArguments, model: &Model) -> RunFacts {
    RunFacts { build_commit: option_env!("BRASA_COMMIT"), ..RunFacts::of(source.name(), model) }
}

/// A GGUF file in a folder whose safetensors were loaded; `None` if there is none.
fn gguf_beside_safetensors(folder: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(folder).ok()?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.sort();
    let named = |start: &str, extension: &str| {
        let fits = |path: &&PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.starts_with(start) && path.extension().is_some_and(|found| found == extension)
        };
        files.iter().find(fits).cloned()
    };
    named("model", "safetensors").and_then(|_| named("", "gguf"))
}

/// The library's options from the command line's flags.
pub fn options(arguments: &SetupArguments) -> Result<LoadOptions, Failure> {
    if arguments.cache_type_k != arguments.cache_type_v || arguments.cache_type_k.len() > 1 {
        return Err(Failure::Usage("-ctk and -ctv must name the same type".into()));
    }
    let kv_type = arguments.cache_type_k.first().copied().map(KvType::from);
    Ok(LoadOptions { kv_type, ..options_without_kv_type(arguments)? })
}

/// All options except the type of cached keys and values, of which `brasa bench` takes several.
pub fn options_without_kv_type(arguments: &SetupArguments) -> Result<LoadOptions, Failure> {
    let chat_template = match &arguments.chat_template_file {
        Some(path) => Some(input::text(path)?),
        None => arguments.chat_template.clone(),
    };
    let precision = match arguments.precision {
        PrecisionName::Fast => Precision::Fast,
        PrecisionName::Reference => Precision::Reference,
    };
    Ok(LoadOptions {
        device: values::given(arguments.device.as_ref()),
        gpu_memory: arguments.gpu_memory.map(Into::into),
        context: arguments.context,
        threads: arguments.threads,
        precision,
        deterministic: arguments.deterministic,
        chunk: arguments.chunk,
        adapters: arguments.lora.clone(),
        strict: arguments.strict,
        pre_tokenizer: values::given(arguments.pre.as_ref()),
        chat_template,
        ..LoadOptions::default()
    })
}

/// The speculation options from the command line's flags.
///
/// # Errors
///
/// [`Failure::Usage`] if the fewest drafts exceed the most.
pub fn speculation(arguments: &DraftArguments) -> Result<Speculation, Failure> {
    let DraftArguments { lookup, model_draft: _, draft_max: most, draft_min: least } = *arguments;
    if least > most {
        return Err(Failure::Usage(format!("--draft-min {least}: more than --draft-max {most}")));
    }
    Ok(Speculation { lookup, most, least, ..Speculation::LOOKUP })
}

/// A progress bar over bytes on standard error; invisible if that is no terminal.
pub fn bytes_bar(what: &'static str) -> ProgressBar {
    bar(what, "{msg} {bar:40} {bytes}/{total_bytes} {eta}")
}

/// A progress bar that counts items.
pub fn count_bar(what: &'static str) -> ProgressBar {
    bar(what, "{msg} {bar:40} {percent} %, {eta} left")
}

/// A progress bar over the time of a sound; [`set_clock`] moves it.
pub fn time_bar(what: String) -> ProgressBar {
    bar(what, "{msg} {bar:30} {prefix} {eta} left")
}

/// Sets the position of a bar made by [`time_bar`], and the time shown with it.
pub fn set_clock(bar: &ProgressBar, done_s: f64, all_s: f64) {
    bar.set_prefix(format!("{}/{}", clock(done_s), clock(all_s)));
    bar.set_length((all_s * 100.0) as u64);
    bar.set_position((done_s * 100.0) as u64);
}

/// Formats seconds as hours (if there are any), minutes and seconds: 01:20, 1:02:03.
pub fn clock(seconds: f64) -> String {
    let all = seconds as u64;
    let hours = if all >= 3600 { format!("{}:", all / 3600) } else { String::new() };
    format!("{hours}{:02}:{:02}", all / 60 % 60, all % 60)
}

fn bar(what: impl Into<Cow<'static, str>>, template: &str) -> ProgressBar {
    // Nothing is drawn before the length is set: no ticker, which would show "0 B/0 B" while the file is opened.
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr()).with_message(what);
    if !std::io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
