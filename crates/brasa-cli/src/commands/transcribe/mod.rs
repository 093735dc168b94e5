//! `brasa transcribe`: speech to text, from files or live.

mod batch;
mod destination;
mod live;
mod report;
mod screen;
mod sound;
mod text;

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

use brasa::audio::Recording;
use brasa::audio::transcript::{Transcript, TranscriptFormat};
use brasa::speech::Task;
use brasa::{
    Grammar, LoadOptions, Precision, Timestamps, TranscribeOptions, Transcriber, TranscriptionTimes,
};
use indicatif::ProgressBar;

use crate::args::{PrecisionName, TranscribeArguments};
use crate::failure::Failure;
use crate::{input, interrupt, load, output, values};
use destination::Destination;
use report::{told, write};

/// The remedy if there is no model.
const GET_A_MODEL: &str =
    "`-hf openai/whisper-small` downloads one; otherwise the first word is its file or folder";
/// Most temperatures that are tried one after the other.
const MOST_TRIES: usize = 32;

/// Transcribes files one after the other, or a live sound.
pub fn transcribe(arguments: &TranscribeArguments) -> Result<(), Failure> {
    let arguments = &in_json(arguments)?;
    let options = options(arguments)?;
    let Some(model) = &arguments.source.model else {
        return Err(Failure::Usage(format!(
            "brasa transcribe MODEL FILE: the model is missing\nhint: {GET_A_MODEL}"
        )));
    };
    check_model(model)?;
    check_forms(arguments)?;
    let destinations = if arguments.stream { Vec::new() } else { destination::of(arguments)? };
    let transcriber = open(model, arguments)?;
    let options = with_words(options, &transcriber, arguments)?;
    if arguments.stream {
        return live::transcribe(&transcriber, options, arguments);
    }
    if arguments.search.batch > 1 {
        return batch::transcribe(&transcriber, &destinations, &options, arguments);
    }
    let mut failures = 0;
    let count = destinations.len();
    for destination in &destinations {
        match transcribe_one(&transcriber, destination, options.clone(), arguments) {
            Err(Failure::Failed(message)) if count > 1 => {
                output::note(&format!("error: {message}"));
                failures += 1;
            }
            other => other?,
        }
    }
    told(failures, count)
}

/// The arguments with `--json` replaced by the JSON format that it means.
fn in_json(arguments: &TranscribeArguments) -> Result<TranscribeArguments, Failure> {
    let mut arguments = arguments.clone();
    match arguments.format {
        _ if !arguments.json => {}
        TranscriptFormat::Text => arguments.format = TranscriptFormat::Json,
        TranscriptFormat::Json | TranscriptFormat::VerboseJson => {}
        _ => return Err(Failure::Usage("--json and a --format other than JSON: give one of the two".into())),
    }
    Ok(arguments)
}

/// Refuses a missing model, and a sound file given as the model.
fn check_model(model: &Path) -> Result<(), Failure> {
    if !model.exists() {
        let name = model.display();
        return Err(Failure::Failed(format!(
            "{name}: there is no such file or folder of a model\nhint: {GET_A_MODEL}"
        )));
    }
    let is_sound = model.is_file() && std::fs::File::open(model).is_ok_and(sound::begins_as_sound);
    if is_sound {
        let name = model.display();
        return Err(Failure::Usage(format!(
            "{name}: a file of sound, and the first word names the model: brasa transcribe MODEL FILE\nhint: {GET_A_MODEL}"
        )));
    }
    Ok(())
}

/// Refuses formats that contradict other flags.
fn check_forms(arguments: &TranscribeArguments) -> Result<(), Failure> {
    let has_times = !matches!(arguments.format, TranscriptFormat::Text | TranscriptFormat::Json);
    let name = TranscriptFormat::ALL.into_iter().find(|(_, format)| *format == arguments.format);
    let name = name.map_or("", |(name, _)| name);
    if arguments.stream && (has_times || arguments.out.is_some()) {
        let what = if has_times { format!("--format {name}") } else { "--out".into() };
        return Err(Failure::Usage(format!(
            "--stream writes text or json to standard output, as it is spoken: {what} is for files"
        )));
    }
    if arguments.search.without_timestamps && has_times && arguments.format != TranscriptFormat::VerboseJson {
        return Err(Failure::Usage(format!(
            "--format {name} is made of times: --without-timestamps finds none"
        )));
    }
    if arguments.rate.is_some() && arguments.raw.is_none() && !arguments.stream {
        return Err(Failure::Usage(
            "--rate is the rate of samples without a header: give --raw FORM too".into(),
        ));
    }
    Ok(())
}

/// The library's options from the command line's flags.
fn options(arguments: &TranscribeArguments) -> Result<TranscribeOptions, Failure> {
    let search = &arguments.search;
    let mut temperatures = vec![search.temperature];
    if search.temperature_inc > 0.0 {
        let rest = (1..).map(|step| search.temperature + step as f32 * search.temperature_inc);
        temperatures.extend(rest.take_while(|t| *t <= 1.0 + 1e-6).take(MOST_TRIES));
        if temperatures.len() > MOST_TRIES {
            return Err(Failure::Usage(format!(
                "--temperature-inc {}: more than {MOST_TRIES} tries",
                search.temperature_inc
            )));
        }
    }
    let timestamps = match (arguments.words, search.without_timestamps) {
        (true, _) => Timestamps::Words,
        (false, true) => Timestamps::None,
        (false, false) => Timestamps::Segments,
    };
    let options = TranscribeOptions {
        language: arguments.language.flatten().map(str::to_owned),
        task: if arguments.translate { Task::Translate } else { Task::Transcribe },
        timestamps,
        temperatures,
        beam_size: search.beam.into(),
        patience: search.patience,
        length_penalty: search.length_penalty,
        best_of: search.best_of.into(),
        compression_ratio_threshold: Some(decimal(search.compression_ratio_threshold)),
        logprob_threshold: Some(decimal(search.logprob_threshold)),
        no_speech_threshold: Some(decimal(search.no_speech_threshold)),
        condition_on_previous_text: !search.no_context,
        initial_prompt: search.prompt.clone(),
        carry_initial_prompt: search.carry_prompt,
        suppress_tokens: search.suppress_tokens.clone(),
        max_initial_timestamp_s: Some(decimal(search.max_initial_timestamp)),
        max_tokens: search.max_tokens,
        seed: search.seed,
        ..TranscribeOptions::default()
    };
    options.check().map_err(|error| Failure::Usage(error.to_string()))?;
    Ok(options)
}

/// The number with the decimal digits that the user typed: 0.6, not 0.60000002.
fn decimal(value: f32) -> f64 {
    value.to_string().parse().unwrap_or_else(|_| value.into())
}

/// The options with a bias for hotwords, and with the grammar.
fn with_words(
    options: TranscribeOptions,
    transcriber: &Transcriber,
    arguments: &TranscribeArguments,
) -> Result<TranscribeOptions, Failure> {
    let search = &arguments.search;
    let logit_bias = transcriber.hotwords(&search.hotwords, search.hotword_bias)?;
    let grammar = match &search.grammar_file {
        Some(path) => Some(input::text(path)?),
        None => values::given(search.grammar.as_ref()),
    };
    let grammar = grammar.map(|text| transcriber.grammar(Grammar::from_text(text))).transpose()?;
    Ok(TranscribeOptions { logit_bias, grammar, ..options })
}

/// Loads the model with a progress bar.
fn open(model: &Path, arguments: &TranscribeArguments) -> Result<Transcriber, Failure> {
    let options = LoadOptions {
        device: values::given(arguments.device.as_ref()),
        threads: arguments.threads,
        strict: arguments.strict,
        precision: match arguments.precision {
            PrecisionName::Fast => Precision::Fast,
            PrecisionName::Reference => Precision::Reference,
        },
        ..LoadOptions::default()
    };
    let transcriber = load::with_bar(|progress| Transcriber::load_with_progress(model, &options, progress))?;
    for warning in transcriber.warnings() {
        output::note(&format!("warning: {warning}"));
    }
    if arguments.verbose {
        output::note(&format!(
            "{}: {} parameters, loaded in {:.2} s on {}",
            arguments.source.name(),
            transcriber.info().parameters,
            transcriber.load_time().as_secs_f64(),
            transcriber.device().description
        ));
    }
    Ok(transcriber)
}

/// Transcribes one file and writes its transcript.
fn transcribe_one(
    transcriber: &Transcriber,
    destination: &Destination,
    options: TranscribeOptions,
    arguments: &TranscribeArguments,
) -> Result<(), Failure> {
    let bar = load::time_bar(destination.input_name());
    let started = Instant::now();
    let recording = sound::read(transcriber, &destination.input, arguments, &bar);
    let found = recording
        .and_then(|recording| segments(transcriber, &recording, options, destination, arguments, &bar));
    bar.finish_and_clear();
    let (transcript, times) = found?;
    // Lines of text have been printed as they were found.
    write(destination, &transcript, Some(&times), arguments, started.elapsed(), false)
}

/// The segments of a sound. Text for standard output is printed as segments are found.
fn segments(
    transcriber: &Transcriber,
    recording: &Recording,
    options: TranscribeOptions,
    destination: &Destination,
    arguments: &TranscribeArguments,
    bar: &ProgressBar,
) -> Result<(Transcript, TranscriptionTimes), Failure> {
    let prints = destination.output.is_none() && arguments.format == TranscriptFormat::Text;
    let voice = arguments.search.vad.unwrap_or_default();
    let mut segments = transcriber.transcribe_speech(recording, voice, options)?;
    let mut found = Vec::new();
    load::set_clock(bar, 0.0, segments.duration_s());
    let mut going = || {
        bar.tick();
        if interrupt::check().is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    while let Some(segment) = segments.next_while(&mut going) {
        interrupt::check()?;
        let segment = segment?;
        if prints {
            bar.suspend(|| output::write(&text::lines(&segment, arguments)))?;
        }
        found.push(segment);
        let (done_s, all_s) = segments.progress();
        load::set_clock(bar, done_s.min(all_s), all_s);
    }
    interrupt::check()?;
    Ok((segments.transcript(found), segments.times()))
}
