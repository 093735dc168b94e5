//! The fields of a transcription.

use brasa::audio::transcript::TranscriptFormat;
use brasa::audio::{VoiceDetector, VoiceSpans};
use brasa::speech::{MOST_TEXTS, Task, language_code};
use brasa::{Grammar, Timestamps, TranscribeOptions, Transcriber};
use serde_json::{Map, Value};

use crate::http::error::{ApiError, Result};
use crate::request::fields::Fields;
use crate::request::sampling;

/// Bias that is added to the logits of hotwords.
const HOTWORD_BIAS: f32 = 3.0;
/// Most hotwords.
const MOST_HOTWORDS: usize = 1000;

/// A transcription request, checked.
pub(super) struct Request {
    pub options: TranscribeOptions,
    pub format: TranscriptFormat,
    /// True if a verbose answer has segments.
    pub segments: bool,
    pub stream: bool,
    /// True if the answer shows tokens with their log-probabilities.
    pub logprobs: bool,
    /// The detector of pauses, which are left out.
    pub voice: VoiceDetector,
}

impl Request {
    /// Reads all fields but `model` and the file.
    pub fn read(fields: &mut Fields, task: Task, transcriber: &Transcriber) -> Result<Self> {
        for name in ["url", "file_url"] {
            fields.refuse(name, "nothing is fetched: send the sound as the part `file`")?;
        }
        for name in ["known_speaker_names", "known_speaker_references"] {
            fields.refuse(name, "speakers are not told apart")?;
        }
        let voice = voice(fields)?;
        let format = format(fields)?;
        let logprobs = logprobs(fields, format)?;
        let stream = fields.switch("stream")?.unwrap_or(false);
        if stream && !matches!(format, TranscriptFormat::Json | TranscriptFormat::Text) {
            let why = "a stream has text alone: leave `response_format` out, or take `json` or `text`";
            return Err(ApiError::unsupported("stream", why));
        }
        let (segments, words) = granularities(fields, format)?;
        let language = match fields.optional::<String>("language")?.as_deref() {
            None | Some("auto") => None,
            Some(name) => Some(language_code(name).map(str::to_owned).ok_or_else(|| {
                ApiError::field(
                    "language",
                    format!("`language` is {name:?}, expected a code or an English name: en, german"),
                )
            })?),
        };
        let defaults = TranscribeOptions::default();
        let temperatures = match fields.number("temperature")? {
            // OpenAI's meaning of 0: rise until the text is good enough.
            None | Some(0.0) => defaults.temperatures.clone(),
            Some(t) if (0.0..=1.0).contains(&t) => vec![t],
            Some(t) => {
                return Err(ApiError::field("temperature", format!("`temperature` is {t}, expected 0 to 1")));
            }
        };
        let grammar = fields.optional::<String>("grammar")?.filter(|text| !text.trim().is_empty());
        let grammar = grammar.map(|text| transcriber.grammar(Grammar::from_text(text))).transpose()?;
        let logit_bias = transcriber.hotwords(&hotwords(fields)?, HOTWORD_BIAS)?;
        let options = TranscribeOptions {
            language,
            task,
            timestamps: if words { Timestamps::Words } else { Timestamps::Segments },
            temperatures,
            beam_size: fields.count("beam_size", 1, MOST_TEXTS)?.unwrap_or(defaults.beam_size),
            best_of: fields.count("best_of", 1, MOST_TEXTS)?.unwrap_or(defaults.best_of),
            initial_prompt: fields.optional("prompt")?,
            seed: sampling::given_seed(fields)?.unwrap_or_default(),
            max_initial_timestamp_s: latest_start(fields)?.or(defaults.max_initial_timestamp_s),
            logit_bias,
            grammar,
            ..defaults
        };
        Ok(Self { options, format, segments, stream, logprobs, voice })
    }
}

/// True if tokens are requested with their log-probabilities.
fn logprobs(fields: &mut Fields, format: TranscriptFormat) -> Result<bool> {
    let name = "include";
    let wanted: Vec<String> = fields.optional(name)?.unwrap_or_default();
    if let Some(other) = wanted.iter().find(|wanted| *wanted != "logprobs") {
        return Err(ApiError::field(name, format!("`{name}` has {other:?}, expected logprobs")));
    }
    if !wanted.is_empty() && format != TranscriptFormat::Json {
        let why =
            "log-probabilities come in `response_format` json alone; `verbose_json` has those of segments";
        return Err(ApiError::unsupported(name, why));
    }
    Ok(!wanted.is_empty())
}

/// The detector of pauses: from `vad`, or from `chunking_strategy` in OpenAI's form, as JSON or in parts with brackets.
fn voice(fields: &mut Fields) -> Result<VoiceDetector> {
    if let Some(name) = fields.optional::<String>("vad")? {
        let message = format!("`vad` is {name:?}, expected model, energy or off");
        return VoiceDetector::named(&name).ok_or_else(|| ApiError::field("vad", message));
    }
    let name = "chunking_strategy";
    let mut strategy = match fields.value(name) {
        None => Map::new(),
        Some(Value::String(text)) if text == "auto" => return Ok(VoiceDetector::Off),
        Some(Value::String(text)) => serde_json::from_str(&text).map_err(|_| {
            ApiError::field(
                name,
                format!("`{name}` is {text:?}, expected auto or an object of type server_vad"),
            )
        })?,
        Some(_) => return Err(ApiError::field(name, format!("`{name}` is no text"))),
    };
    for key in ["type", "threshold", "prefix_padding_ms", "silence_duration_ms"] {
        if let Some(value) = fields.value(&format!("{name}[{key}]")) {
            strategy.insert(key.into(), value);
        }
    }
    if strategy.is_empty() {
        return Ok(VoiceDetector::Off);
    }
    let bad = |key: &str, value: &Value, expected: &str| {
        Err(ApiError::field(name, format!("`{key}` of `{name}` is {value}, expected {expected}")))
    };
    let mut spans = VoiceSpans::default();
    let mut is_server_vad = false;
    for (key, value) in &strategy {
        // Parts of a form are texts.
        let number = value.as_f64().or_else(|| value.as_str()?.trim().parse().ok());
        let milliseconds = number.filter(|ms| (0.0..=10_000.0).contains(ms)).map(|ms| ms as u32);
        match (key.as_str(), number, milliseconds) {
            ("type", ..) if value == "server_vad" => is_server_vad = true,
            ("threshold", Some(threshold), _) if threshold > 0.0 && threshold <= 1.0 => {
                spans.threshold = threshold as f32;
                // Silero's own distance.
                spans.release = (spans.threshold - 0.15).max(0.01);
            }
            ("prefix_padding_ms", _, Some(ms)) => spans.pad_ms = ms,
            ("silence_duration_ms", _, Some(ms)) => spans.shortest_pause_ms = ms,
            ("type", ..) => return bad(key, value, "server_vad"),
            ("threshold", ..) => return bad(key, value, "a number above 0, at most 1"),
            ("prefix_padding_ms" | "silence_duration_ms", ..) => return bad(key, value, "0 to 10000"),
            _ => return bad(key, value, "nothing: there is no such field"),
        }
    }
    if is_server_vad {
        return Ok(VoiceDetector::Network(spans));
    }
    Err(ApiError::field(name, format!("`{name}` has no `type`, expected server_vad")))
}

/// The latest first timestamp of a window, in seconds; `None` if the request sets none.
fn latest_start(fields: &mut Fields) -> Result<Option<f64>> {
    let name = "max_initial_timestamp";
    match fields.number(name)? {
        None => Ok(None),
        Some(latest) if (0.0..=30.0).contains(&latest) => Ok(Some(latest.into())),
        Some(latest) => Err(ApiError::field(name, format!("`{name}` is {latest}, expected 0 to 30"))),
    }
}

/// The format of the answer; JSON if the request names none.
fn format(fields: &mut Fields) -> Result<TranscriptFormat> {
    match fields.optional::<String>("response_format")?.as_deref() {
        None | Some("json") => Ok(TranscriptFormat::Json),
        Some("text") => Ok(TranscriptFormat::Text),
        Some("srt") => Ok(TranscriptFormat::Srt),
        Some("vtt") => Ok(TranscriptFormat::Vtt),
        Some("verbose_json") => Ok(TranscriptFormat::VerboseJson),
        Some("diarized_json") => Err(ApiError::unsupported("response_format", "speakers are not told apart")),
        Some(other) => {
            let message =
                format!("`response_format` is {other:?}, expected json, text, srt, verbose_json or vtt");
            Err(ApiError::field("response_format", message))
        }
    }
}

/// Whether segments and words are requested. A verbose answer has segments unless only words are requested.
fn granularities(fields: &mut Fields, format: TranscriptFormat) -> Result<(bool, bool)> {
    let name = "timestamp_granularities";
    let wanted: Vec<String> = fields.optional(name)?.unwrap_or_default();
    if let Some(other) = wanted.iter().find(|wanted| !["word", "segment"].contains(&wanted.as_str())) {
        return Err(ApiError::field(name, format!("`{name}` has {other:?}, expected word or segment")));
    }
    let words = wanted.iter().any(|wanted| wanted == "word");
    if words && format != TranscriptFormat::VerboseJson {
        return Err(ApiError::unsupported(name, "words have times in `response_format` verbose_json alone"));
    }
    Ok((!words || wanted.iter().any(|wanted| wanted == "segment"), words))
}

/// Words that are likely to be spoken: each in a part of its own, or all in one part, separated by commas.
fn hotwords(fields: &mut Fields) -> Result<Vec<String>> {
    let parts: Vec<String> = match fields.value("hotwords") {
        None => Vec::new(),
        Some(Value::Array(parts)) => {
            parts.iter().filter_map(|part| part.as_str().map(str::to_owned)).collect()
        }
        Some(_) => return Err(ApiError::field("hotwords", "`hotwords` is no list of words")),
    };
    let words = parts.iter().flat_map(|part| part.split(','));
    let words: Vec<String> =
        words.map(|word| word.trim().to_owned()).filter(|word| !word.is_empty()).collect();
    if words.len() > MOST_HOTWORDS {
        return Err(ApiError::field("hotwords", format!("`hotwords` has more than {MOST_HOTWORDS} words")));
    }
    Ok(words)
}
