//! `brasa generate`: continue a raw text.

use std::path::Path;

use brasa::tokenizer::{AddSpecial, ParseSpecial, Thoughts};
use brasa::{FinishReason, GenerateOptions, Model, ProbeEvent, Probes, TokenStream, Watch};
use serde_json::{Value, json};

use super::prompt::prompt_text;
use super::remote::{self, Question};
use crate::args::GenerateArguments;
use crate::failure::Failure;
use crate::paint::Paint;
use crate::painted::PaintedAnswer;
use crate::prompt_cache::PromptCache;
use crate::{interrupt, load, output, sampling};

/// Continues a raw text.
pub fn generate(arguments: &GenerateArguments) -> Result<(), Failure> {
    let text = match arguments.ids {
        Some(_) => None,
        None => Some(prompt_text(&arguments.prompt)?.ok_or_else(|| {
            Failure::Usage(
                "nothing to continue\nhint: give a prompt (-p, -f, --ids, or standard input)".into(),
            )
        })?),
    };
    if arguments.remote.server.is_some() {
        let prompt = match (&arguments.ids, text) {
            (Some(ids), _) => ids.clone().into(),
            (None, text) => text.unwrap_or_default().into(),
        };
        let model = arguments.load.source.model.as_deref().and_then(Path::to_str);
        let (json, verbose) = (arguments.json, arguments.load.verbose);
        return remote::answer(
            &arguments.remote,
            model,
            Question::Raw(prompt),
            &arguments.sampling,
            json,
            verbose,
        );
    }
    let model = load::model_with_drafts(&arguments.load, &arguments.drafts)?;
    let mut options = sampling::options(&arguments.sampling, &model)?;
    let probes =
        Probes { layers: arguments.probe_layers.clone(), ..Probes::of(arguments.probe.iter().copied()) };
    probes.ask(&mut options);
    let prompt = match (&arguments.ids, text) {
        (Some(ids), _) => ids.clone(),
        (None, text) => encode(&model, &text.unwrap_or_default(), arguments.parse_special)?,
    };
    let cache = PromptCache::open(&model, &arguments.prompt_cache)?;
    let mut stream = match &cache {
        Some(cache) => cache.session().generate_ids(prompt.clone(), &options)?,
        None => model.generate_ids(prompt.clone(), &options)?,
    };
    let shown = if !probes.kinds.is_empty() {
        Shown::Events(probes.watch(&model), probes)
    } else if arguments.json {
        Shown::Object
    } else {
        // A raw text has no thoughts apart.
        Shown::Text(PaintedAnswer::new(Paint::of_output(), Thoughts::new(None, "")))
    };
    let answered = answer(&model, &mut stream, &prompt, shown, arguments.load.verbose, &options);
    // An answer that was broken off leaves its prompt.
    drop(stream);
    let kept = cache.map_or(Ok(()), |cache| cache.keep(&prompt, &options));
    answered.and(kept)
}

/// The token ids of a text, with the model's own special tokens.
pub fn encode(model: &Model, text: &str, parse_special: bool) -> Result<Vec<u32>, Failure> {
    let parse = if parse_special { ParseSpecial::Yes } else { ParseSpecial::No };
    model
        .tokenizer()
        .encode(text, AddSpecial::AsModel, parse)
        .map_err(|error| brasa::Error::from(error).into())
}

/// The form in which an answer is printed.
pub enum Shown {
    /// The text of the answer, printed as it arrives.
    Text(PaintedAnswer),
    /// One JSON object at the end.
    Object,
    /// A JSON object for each event, then one for the answer.
    Events(Watch, Probes),
}

/// Prints the answer of a stream.
///
/// # Errors
///
/// [`Failure::Failed`] with the stream's error, after the text before it; [`Failure::Interrupted`] if Ctrl-C ended the answer.
pub fn answer(
    model: &Model,
    stream: &mut TokenStream,
    prompt: &[u32],
    mut shown: Shown,
    verbose: bool,
    options: &GenerateOptions,
) -> Result<(), Failure> {
    let guard = interrupt::cancels(stream);
    let (mut ids, mut text, mut logprobs) = (Vec::new(), String::new(), Vec::new());
    let mut failure = None;
    for fragment in &mut *stream {
        match fragment {
            Ok(fragment) => {
                match &mut shown {
                    Shown::Text(shown) => shown.write(&fragment.text)?,
                    Shown::Object => {}
                    Shown::Events(watch, _) => events(|sink| watch.see(&fragment, sink))?,
                }
                text.push_str(&fragment.text);
                let Some(token) = fragment.token else { continue };
                ids.push(token.id);
                if let Some(logprob) = token.logprob {
                    let top: Vec<Value> =
                        token.top.iter().map(|(id, logprob)| json!({"id": id, "logprob": logprob})).collect();
                    logprobs.push(json!({"id": token.id, "logprob": logprob, "top": top}));
                }
            }
            Err(error) => failure = Some(brasa::Error::from(error)),
        }
    }
    drop(guard);
    if let Shown::Events(_, probes) = &shown
        && failure.is_none()
        && stream.finish_reason() != Some(FinishReason::Cancelled)
    {
        let _ends = interrupt::ends_at_once();
        let (text, mut looked) = ([prompt, &ids[..]].concat(), Ok(()));
        events(|sink| looked = probes.look(model, &text, &options.request, sink))?;
        looked?;
    }
    if let Shown::Text(shown) = &mut shown {
        shown.finish()?;
        if text.is_empty() {
            output::write("\n")?;
        }
    } else if failure.is_none() {
        let mut object = json!({
            "prompt_ids": prompt,
            "ids": ids,
            "text": text,
            "finish_reason": stream.finish_reason().map(FinishReason::name),
            "metrics": metrics(model, stream),
        });
        if !logprobs.is_empty() {
            object["logprobs"] = logprobs.into();
        }
        output::line(&object.to_string())?;
    }
    if verbose {
        let metrics = stream.metrics();
        output::note(&format!("{}, seed {}", output::cost(metrics), options.sampling.seed));
    }
    // A signal behind the last token cut nothing off.
    let interrupted = interrupt::take() && stream.finish_reason() == Some(FinishReason::Cancelled);
    match failure {
        Some(error) => Err(error.into()),
        None if interrupted => Err(Failure::Interrupted),
        None => Ok(()),
    }
}

/// Prints the events that `tell` passes to its sink, one a line.
fn events(tell: impl FnOnce(&mut dyn FnMut(ProbeEvent))) -> Result<(), Failure> {
    let mut printed = Ok(());
    tell(&mut |event| {
        if printed.is_ok() {
            printed = output::line(&event.to_json().to_string());
        }
    });
    printed
}

fn metrics(model: &Model, stream: &TokenStream) -> Value {
    let metrics = stream.metrics();
    let mut figures = json!({
        "prompt_tokens": metrics.prompt_tokens,
        "generated_tokens": metrics.generated_tokens,
        "load_ms": milliseconds(model.load_time()),
        "ttft_ms": milliseconds(metrics.first_token_time),
        "prefill_tps": metrics.prefill_tokens_per_second(),
        "decode_tps": metrics.decode_tokens_per_second(),
        "peak_memory_bytes": brasa::peak_memory_bytes(),
        "cache_and_arena_bytes": model.engine().with(|executor| executor.memory_bytes()).ok(),
    });
    if let Some(draft) = model.draft_model() {
        figures["draft_model_bytes"] = (draft.weight_bytes + model.engine().stats().draft_model_bytes).into();
    }
    if metrics.drafted_tokens > 0 {
        figures["drafted_tokens"] = metrics.drafted_tokens.into();
        figures["accepted_tokens"] = metrics.accepted_tokens.into();
    }
    figures
}

fn milliseconds(time: std::time::Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
