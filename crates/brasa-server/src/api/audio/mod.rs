//! `/v1/audio/transcriptions` and `/v1/audio/translations`: speech to text, in OpenAI's form.

mod form;
mod request;
mod work;

use std::borrow::Cow;
use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use brasa::TranscriptionTimes;
use brasa::audio::transcript::{Segment, Transcript, TranscriptFormat};
use brasa::speech::{SpeechVocabulary, Task};
use brasa::tokenizer::{AddSpecial, ParseSpecial};
use serde_json::{Value, json};

use crate::answer::generate::blocking;
use crate::answer::logprobs::finite;
use crate::api::finish_fields;
use crate::http::error::Result;
use crate::http::log::Record;
use crate::http::pool::{self, Lane};
use crate::http::{reply, sse};
use crate::state::App;
use form::Form;
use request::Request;
use work::{Event, Work};

/// States per second of sound that the encoder makes.
const ENCODED_PER_SECOND: f64 = 50.0;

/// Transcribes a sound in the language that is spoken.
pub(crate) async fn transcribe(
    State(app): State<App>,
    Extension(record): Extension<Record>,
    form: Form,
) -> Result<Response> {
    answer(app, record, form, Task::Transcribe).await
}

/// Translates a sound to English, from any language.
pub(crate) async fn translate(
    State(app): State<App>,
    Extension(record): Extension<Record>,
    form: Form,
) -> Result<Response> {
    answer(app, record, form, Task::Translate).await
}

async fn answer(app: App, record: Record, form: Form, task: Task) -> Result<Response> {
    let Form { sound, mut fields } = form;
    let loaded = app.registry.acquire_speech(fields.optional::<String>("model")?.as_deref()).await?;
    let speech = Arc::clone(&loaded);
    // Hotwords are cut into tokens, and a grammar is compiled.
    let read = move || Ok((Request::read(&mut fields, task, &speech.transcriber)?, fields));
    let (request, mut fields) = pool::blocking(Lane::Grammars, read).await?;
    let sound = sound.ok_or_else(|| fields.missing("file"))?;
    finish_fields(&app, &mut fields)?;
    record.set("model", loaded.id());
    let place = loaded.place().await?;
    let mut work = Work::start(&app, &record, &loaded, place, sound, &request);
    // Sounds that cannot be read are refused before a stream begins.
    let warnings = work.opened().await?;
    let shown = request.logprobs.then(|| loaded.transcriber.vocabulary().clone());
    if request.stream {
        record.set("stream", true);
        let (events, response) = sse::stream(sse::Pings::Comment, app.options.ping_every);
        let prompt = request.options.initial_prompt.clone().unwrap_or_default();
        let vocabulary = loaded.transcriber.vocabulary().clone();
        let prompt_tokens = blocking(move || {
            Ok(vocabulary.tokenizer().encode(&prompt, AddSpecial::No, ParseSpecial::No)?.len())
        });
        let prompt_tokens = prompt_tokens.await?;
        let answer = Streamed { warnings, shown, text_tokens: prompt_tokens };
        sse::spawn(events, move |events| stream(events, work, answer));
        return Ok(response);
    }
    let (transcript, times) = loop {
        match work.next().await? {
            Event::Opened(_) | Event::Segment(_) => {}
            Event::End(transcript, times) => break (transcript, times),
        }
    };
    Ok(whole(&request, &transcript, times, shown.as_ref(), warnings))
}

/// The whole transcript in the requested form. With a vocabulary in `shown`, it has log-probabilities of tokens.
fn whole(
    request: &Request,
    transcript: &Transcript,
    times: TranscriptionTimes,
    shown: Option<&SpeechVocabulary>,
    warnings: Vec<String>,
) -> Response {
    let plain = |content_type| {
        reply::with_type(axum::http::StatusCode::OK, content_type, transcript.to_format(request.format))
    };
    let mut object = match request.format {
        TranscriptFormat::Srt => return plain("application/x-subrip; charset=utf-8"),
        TranscriptFormat::Vtt => return plain("text/vtt; charset=utf-8"),
        TranscriptFormat::Text => {
            let text = format!("{}\n", transcript.text());
            return reply::with_type(axum::http::StatusCode::OK, "text/plain; charset=utf-8", text);
        }
        TranscriptFormat::VerboseJson => {
            let mut object = transcript.to_verbose_json();
            object["timings"] = times.to_json(transcript.duration_s);
            object
        }
        _ => json!({"text": transcript.text()}),
    };
    if let Some(fields) = object.as_object_mut()
        && !request.segments
    {
        fields.shift_remove("segments");
    }
    if let Some(vocabulary) = shown {
        object["logprobs"] = logprobs(&transcript.segments, vocabulary);
    }
    object["usage"] = json!({"type": "duration", "seconds": transcript.duration_s});
    if !warnings.is_empty() {
        object["warnings"] = warnings.into();
    }
    reply::ok(&object)
}

/// Token counts of a streamed transcription: tokens that the encoder makes of the sound, tokens of the prompt, and tokens written.
fn usage_in_tokens(transcript: &Transcript, written: usize, text_tokens: usize) -> Value {
    let audio_tokens = (transcript.duration_s * ENCODED_PER_SECOND).ceil() as usize;
    let read = audio_tokens + text_tokens;
    json!({
        "type": "tokens",
        "input_tokens": read,
        "input_token_details": {"audio_tokens": audio_tokens, "text_tokens": text_tokens},
        "output_tokens": written,
        "total_tokens": read + written,
    })
}

/// The tokens of text with their log-probabilities, in OpenAI's form. Timestamps are left out.
fn logprobs(segments: &[Segment], vocabulary: &SpeechVocabulary) -> Value {
    let end = vocabulary.tokens().eot;
    let tokens = segments.iter().flat_map(|segment| segment.tokens.iter().zip(&segment.logprobs));
    let shown = tokens.filter(|(token, _)| **token < end).map(|(&token, &logprob)| {
        let bytes = vocabulary.tokenizer().piece_bytes(token).map(Cow::into_owned).unwrap_or_default();
        json!({"token": String::from_utf8_lossy(&bytes), "logprob": finite(logprob), "bytes": bytes})
    });
    shown.collect()
}

/// Data that a stream reports besides its text.
struct Streamed {
    /// Warnings about the sound.
    warnings: Vec<String>,
    /// The vocabulary by which tokens are shown with their log-probabilities; `None` if they are not requested.
    shown: Option<SpeechVocabulary>,
    /// Number of tokens of the prompt.
    text_tokens: usize,
}

/// Writes segments as they are transcribed.
async fn stream(events: Arc<sse::Events>, mut work: Work, answer: Streamed) -> Result<(), sse::Gone> {
    let Streamed { warnings, shown, text_tokens } = answer;
    let mut is_first = true;
    loop {
        match sse::unless_gone(&events, work.next()).await? {
            Ok(Event::Opened(_)) => {}
            Ok(Event::Segment(segment)) => {
                let text = if is_first { segment.text.trim_start() } else { &segment.text };
                is_first &= text.is_empty();
                let mut delta = json!({"type": "transcript.text.delta", "delta": text});
                if let Some(vocabulary) = &shown {
                    delta["logprobs"] = logprobs(std::slice::from_ref(&segment), vocabulary);
                }
                events.send(&delta).await?;
            }
            Ok(Event::End(transcript, _)) => {
                let mut done = json!({"type": "transcript.text.done", "text": transcript.text()});
                if let Some(vocabulary) = &shown {
                    done["logprobs"] = logprobs(&transcript.segments, vocabulary);
                }
                done["usage"] = usage_in_tokens(&transcript, work.tokens(), text_tokens);
                if !warnings.is_empty() {
                    done["warnings"] = warnings.into();
                }
                events.send(&done).await?;
                return events.done().await;
            }
            Err(error) => return events.send(&error.body()).await,
        }
    }
}
