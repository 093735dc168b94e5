//! Speech to text on the trained Whisper, against openai-whisper (`tools/golden/transcribe.py`) and transformers.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;

use brasa::audio::transcript::{Transcript, TranscriptFormat};
use brasa::audio::{Audio, Limits, Recording, Sound, VoiceDetector};
use brasa::speech::Task;
use brasa::{
    BatchSound, Error, Grammar, KvType, LoadOptions, Precision, Timestamps, TranscribeOptions, Transcriber,
};
use brasa_convert::{Options, Recipe, convert};
use brasa_cpu::{CpuBackend, CpuOptions};
use brasa_formats::Existing;
use brasa_fuzz::sweeps;
use brasa_golden::{Golden, SpeechRunner, folder, load_speech_strictly};
use brasa_graph::testing::{Tolerance, compare};
use serde_json::Value;

/// Reference precision on the CPU.
static EXACT: LazyLock<Transcriber> = LazyLock::new(|| {
    let options = LoadOptions { precision: Precision::Reference, strict: true, ..LoadOptions::default() };
    Transcriber::load(folder("tiny-whisper"), &options).expect("the trained Whisper")
});

static CASES: LazyLock<Vec<Value>> = LazyLock::new(|| {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/transcribe.json");
    serde_json::from_slice(&std::fs::read(path).expect("golden values")).expect("JSON")
});

fn wav(name: &str) -> Vec<f32> {
    let path = folder("tiny-whisper").join(format!("{name}.wav"));
    Audio::open(path, &Limits::default()).expect("a sound").into_samples()
}

/// All wavs behind one another, with pauses of half a second: longer than a window.
fn long() -> Vec<f32> {
    let order = [1, 2, 3, 4, 5, 1, 2, 3, 4, 6];
    order.into_iter().flat_map(|number| [wav(&format!("held-{number}")), vec![0.0; 8000]]).flatten().collect()
}

fn sound(name: &str) -> Vec<f32> {
    if name == "long" { long() } else { wav(name) }
}

fn recording(samples: Vec<f32>) -> Recording {
    EXACT.read(Sound::from_samples(samples), &mut |_| ControlFlow::Continue(())).expect("a sound")
}

fn greedy() -> TranscribeOptions {
    TranscribeOptions { temperatures: vec![0.0], beam_size: 1, ..TranscribeOptions::default() }
}

fn options(recipe: &str) -> TranscribeOptions {
    match recipe {
        "greedy" => greedy(),
        "beams" => TranscribeOptions { beam_size: 5, ..greedy() },
        "words" => TranscribeOptions { timestamps: Timestamps::Words, ..greedy() },
        "untimed" => TranscribeOptions { timestamps: Timestamps::None, ..greedy() },
        "prompted" => TranscribeOptions {
            initial_prompt: Some("Emma, Peter.".into()),
            language: Some("en".into()),
            ..greedy()
        },
        other => panic!("{other}"),
    }
}

/// Sounds that are enough where every other recipe is checked: a short one, a long one, and one of several windows.
const SOUNDS: [&str; 3] = ["held-4", "held-6", "long"];

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

fn check(recipe: &str) {
    let mut checked = 0;
    let everywhere = recipe == "greedy" || sweeps("every recipe on every sound");
    for case in CASES.iter().filter(|case| case["recipe"] == recipe) {
        let name = case["sound"].as_str().expect("a name");
        if !everywhere && !SOUNDS.contains(&name) {
            continue;
        }
        let mut segments = EXACT.transcribe_samples(&sound(name), options(recipe)).expect("options");
        let found: Vec<_> = segments.by_ref().collect::<Result<_, _>>().expect("segments");
        assert_eq!(segments.language(), case["language"].as_str(), "{name}, {recipe}");
        let expected = case["segments"].as_array().expect("segments");
        let texts = |texts: &mut dyn Iterator<Item = &str>| texts.collect::<Vec<_>>().join("|");
        assert_eq!(
            texts(&mut found.iter().map(|segment| segment.text.as_str())),
            texts(&mut expected.iter().map(|segment| segment["text"].as_str().expect("a text"))),
            "{name}, {recipe}"
        );
        for (found, expected) in found.iter().zip(expected) {
            let label = format!("{name}, {recipe}: {found:?}\n{expected}");
            let ids: Vec<u32> = serde_json::from_value(expected["tokens"].clone()).expect("ids");
            assert_eq!(found.tokens, ids, "{label}");
            assert_eq!(u64::from(found.seek), expected["seek"].as_u64().expect("a place"), "{label}");
            for (found, expected, bound) in [
                (found.start_s, &expected["start"], 1e-6),
                (found.end_s, &expected["end"], 1e-6),
                (found.avg_logprob, &expected["avg_logprob"], 1e-3),
                (found.no_speech_prob, &expected["no_speech_prob"], 1e-3),
                (found.compression_ratio, &expected["compression_ratio"], 1e-3),
            ] {
                assert!((found - number(expected)).abs() <= bound, "{label}");
            }
            let Some(words) = expected.get("words").and_then(Value::as_array) else {
                assert_eq!(found.words, None, "{label}");
                continue;
            };
            let found = found.words.as_deref().expect("words");
            assert_eq!(found.len(), words.len(), "{label}");
            for (found, expected) in found.iter().zip(words) {
                assert_eq!(Some(found.text.as_str()), expected[0].as_str(), "{label}");
                assert!((found.start_s - number(&expected[1])).abs() < 1e-6, "{label}");
                assert!((found.end_s - number(&expected[2])).abs() < 1e-6, "{label}");
                assert!((found.probability - number(&expected[3])).abs() < 1e-3, "{label}");
            }
        }
        checked += 1;
    }
    assert_eq!(checked, if everywhere { 7 } else { SOUNDS.len() }, "{recipe}");
}

#[test]
fn greedily_as_openai_whisper() {
    check("greedy");
}

#[test]
fn with_beams_as_openai_whisper() {
    check("beams");
}

#[test]
fn with_words_as_openai_whisper() {
    check("words");
}

#[test]
fn without_timestamps_as_openai_whisper() {
    check("untimed");
}

#[test]
fn behind_a_prompt_as_openai_whisper() {
    check("prompted");
}

/// The fastest arithmetic writes the same words.
#[test]
fn fast_precision_writes_the_same() {
    let fast =
        Transcriber::load(folder("tiny-whisper"), &LoadOptions::default()).expect("the trained Whisper");
    let reference = std::fs::read(folder("tiny-whisper").join("reference.json")).expect("reference values");
    let reference: Value = serde_json::from_slice(&reference).expect("JSON");
    for case in reference["cases"].as_array().expect("cases") {
        let name = case["wav"].as_str().expect("a name").trim_end_matches(".wav");
        let found = fast.transcribe_samples(&wav(name), greedy()).expect("options").finish().expect("a text");
        assert_eq!(
            Some(found.text().as_str()),
            case["with_timestamps"]["text"].as_str().map(str::trim),
            "{name}"
        );
        assert_eq!(found.language, "english");
        let first = fast.detect_language(&wav(name)).expect("languages")[0];
        let expected = number(&case["first_token"]["probability_en"]);
        assert!(
            first.0 == "en" && (first.1 - expected).abs() < 1e-2,
            "{name}: {first:?}, expected {expected}"
        );
    }
}

/// Logits of the CPU within the bounds of its paths, against transformers.
#[test]
fn logits_on_the_cpu() {
    let model = load_speech_strictly(&folder("tiny-whisper"));
    let golden = Golden::read(&folder("tiny-whisper").join("golden.safetensors"));
    let (ids, columns) = (golden.ids("held-2.ids"), golden.ids("columns"));
    let log_mel = brasa::audio::LogMel::new(brasa::audio::MelFilters::slaney(80).expect("filters"));
    let mel = log_mel.window(&wav("held-2")).expect("features");
    let comparison = compare(&mel.values()[..300 * 80], &golden.floats("held-2.mel"));
    assert!(comparison.within(Tolerance(1e-4)), "features: {comparison}");
    for (precision, kv, bound) in
        [(Precision::Reference, KvType::F32, 1e-4), (Precision::Fast, KvType::F16, 1e-2)]
    {
        let options =
            CpuOptions { deterministic: precision == Precision::Reference, ..CpuOptions::default() };
        let device = CpuBackend::new(options).expect("this CPU");
        let mut runner = SpeechRunner::on(&device, &model, precision, kv);
        runner.encode(0, mel.values().to_vec());
        let logits = runner.logits(0, &ids);
        let kept = |row: &Vec<f32>| columns.iter().map(|&column| row[column as usize]).collect::<Vec<_>>();
        let found: Vec<Vec<f32>> = logits.iter().map(kept).collect();
        let comparison = compare(&found.concat(), &golden.floats("held-2.logits"));
        println!("{precision:?}: {comparison}");
        assert!(comparison.within(Tolerance(bound)), "{precision:?}: {comparison}");
    }
}

/// Silence has no text, an empty sound no segment, and hotwords and cancelling do what they say.
#[test]
fn edges() {
    let text = |samples: &[f32], options| -> Transcript {
        EXACT.transcribe_samples(samples, options).expect("options").finish().expect("a text")
    };
    assert_eq!(text(&[], greedy()).segments, []);
    assert!((text(&[0.0; 1600], greedy()).duration_s - 0.1).abs() < 1e-9);

    let mut cancelled = EXACT.transcribe_samples(&wav("held-1"), greedy()).expect("options");
    let mut steps = 0;
    let result = cancelled.next_while(&mut || {
        steps += 1;
        if steps == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(matches!(result, Some(Err(_))) && cancelled.next().is_none());

    let plain = text(&wav("held-4"), greedy());
    let bias = EXACT.hotwords(&["tiger"], 40.0).expect("words");
    assert!(!bias.is_empty());
    let biased = text(&wav("held-4"), TranscribeOptions { logit_bias: bias, ..greedy() });
    assert!(biased.text().contains("tiger") && !plain.text().contains("tiger"), "{}", biased.text());

    let srt = plain.to_format(TranscriptFormat::Srt);
    assert!(srt.starts_with("1\n00:00:00,000 --> 00:00:01,460\n"), "{srt}");
    let bad = TranscribeOptions { language: Some("klingon".into()), ..greedy() };
    assert!(matches!(EXACT.transcribe_samples(&[0.0; 10], bad), Err(Error::Speech(_))));
    let translated = text(&wav("held-3"), TranscribeOptions { task: Task::Translate, ..greedy() });
    assert_eq!(translated.task, brasa::audio::transcript::Task::Translate);
    let error = Transcriber::load(folder("tiny-llama"), &LoadOptions::default()).expect_err("no speech");
    assert!(error.to_string().contains("llama is a model of text and cannot transcribe sound"), "{error}");
}

/// Every part of a transcription that was done has taken time, the others none, and the total is the longest.
#[test]
fn times_of_the_parts() {
    let sound = recording(wav("held-3"));
    for timestamps in [Timestamps::Segments, Timestamps::Words] {
        let options = TranscribeOptions { timestamps, ..greedy() };
        let mut segments = EXACT.transcribe_recording(&sound, options).expect("options");
        let before = segments.times();
        assert!(before.read == sound.read_time() && before.total == before.read && before.encode.is_zero());
        assert!(segments.by_ref().count() > 0);
        let times = segments.times();
        let parts = [times.read, times.mel, times.encode, times.prompt, times.decode];
        assert!(parts.iter().all(|part| !part.is_zero()), "{times:?}");
        assert_eq!(times.align.is_zero(), timestamps == Timestamps::Segments, "{times:?}");
        assert!(parts.iter().sum::<Duration>() + times.align <= times.total, "{times:?}");
        let factor = times.real_time_factor(segments.duration_s()).expect("a sound");
        assert!((factor * segments.duration_s() - times.total.as_secs_f64()).abs() < 1e-9);
    }
    let mut segments = EXACT.transcribe_samples(&wav("held-3"), greedy()).expect("options");
    assert!(segments.by_ref().count() > 0);
    let times = segments.times();
    assert!(times.read.is_zero() && !times.mel.is_zero() && times.mel < times.total, "{times:?}");
    let in_pieces = BatchSound {
        recording: sound,
        options: greedy(),
        in_pieces: true,
        voice: VoiceDetector::named("energy").expect("a detector"),
    };
    let mut batch = EXACT.transcribe_batch(vec![in_pieces.clone(), in_pieces], 2).expect("options");
    assert_eq!(batch.by_ref().count(), 2);
    let times = batch.times();
    let parts = [times.read, times.mel, times.encode, times.prompt, times.decode];
    assert!(parts.iter().all(|part| !part.is_zero()), "{times:?}");
    assert!(parts.iter().sum::<Duration>() <= times.total, "{times:?}");
}

/// Sounds that share steps have the transcripts that they have alone, also those that follow their own text; pieces of a sound do not
/// depend on how many are transcribed at once.
#[test]
fn batches() {
    let options = [
        greedy(),
        TranscribeOptions { beam_size: 3, ..greedy() },
        TranscribeOptions { timestamps: Timestamps::Words, ..greedy() },
        TranscribeOptions { temperatures: vec![0.7], best_of: 2, seed: 5, ..greedy() },
    ];
    let voice = VoiceDetector::named("energy").expect("a detector");
    let sounds: Vec<BatchSound> = [long(), wav("held-5"), wav("held-6"), wav("held-2")]
        .into_iter()
        .zip(options)
        .map(|(samples, options)| BatchSound {
            recording: recording(samples),
            options,
            in_pieces: false,
            voice,
        })
        .collect();
    let together = |sounds: &[BatchSound], at_once| -> Vec<Transcript> {
        let mut batch = EXACT.transcribe_batch(sounds.to_vec(), at_once).expect("options");
        let mut found: Vec<(usize, Transcript)> = batch.by_ref().collect::<Result<_, _>>().expect("texts");
        let (done_s, all_s) = batch.progress();
        assert!((done_s - all_s).abs() < 1e-9 && all_s > 1.0, "{done_s} of {all_s}");
        found.sort_by_key(|(number, _)| *number);
        assert_eq!(found.len(), sounds.len());
        found.into_iter().map(|(_, transcript)| transcript).collect()
    };
    let alone = sounds.iter().map(|sound| {
        EXACT
            .transcribe_recording(&sound.recording, sound.options.clone())
            .expect("options")
            .finish()
            .expect("a text")
    });
    let alone: Vec<Transcript> = alone.collect();
    assert!(alone[0].duration_s > 30.0 && alone.iter().all(|transcript| !transcript.segments.is_empty()));
    assert_eq!(together(&sounds, 3), alone);

    let silent =
        BatchSound { recording: recording(vec![0.0; 48_000]), options: greedy(), in_pieces: true, voice };
    let cut = [BatchSound { in_pieces: true, ..sounds[0].clone() }, silent];
    let (one, several) = (together(&cut, 1), together(&cut, 4));
    assert_eq!(one, several);
    assert_eq!(several[1].segments, []);
    let segments = &several[0].segments;
    assert!(segments.len() > 8 && segments.is_sorted_by(|a, b| a.end_s <= b.start_s + 1e-9), "{segments:?}");
    assert!(several[0].text().contains("The happy sheep waited beside the road."), "{}", several[0].text());

    // The network finds the same sentences; and a sound whose pauses nobody looks for is cut all the same.
    for name in ["model", "off"] {
        let voice = VoiceDetector::named(name).expect("a detector");
        let found = together(&[BatchSound { voice, ..cut[0].clone() }], 4);
        assert!(
            found[0].text().contains("The happy sheep waited beside the road."),
            "{name}: {}",
            found[0].text()
        );
    }

    let mut cancelled = EXACT.transcribe_batch(sounds, 2).expect("options");
    let result = cancelled.next_while(&mut || ControlFlow::Break(()));
    assert!(matches!(result, Some(Err(_))) && cancelled.next().is_none());
}

/// Half a minute of a hum that comes and goes, which is no voice.
fn hum() -> Vec<f32> {
    let sample = |n: u32| 0.2 * (n as f32 * 0.03).sin() * (n as f32 * 0.0002).sin();
    (0..36 * 16_000).map(sample).collect()
}

/// Sounds without speech are not transcribed, in order and live. The speech behind them has the times and words that it has alone.
#[test]
fn pauses_are_left_out() {
    let sound = [hum(), wav("held-4"), hum(), wav("held-3"), vec![0.0; 40_000]].concat();
    let sound = recording(sound);
    let voice = VoiceDetector::named("model").expect("a detector");
    // The model, which is tiny, writes nothing behind a sentence of another kind.
    let options = TranscribeOptions { condition_on_previous_text: false, ..greedy() };
    let transcript =
        EXACT.transcribe_speech(&sound, voice, options.clone()).expect("options").finish().expect("a text");
    assert_eq!(transcript.text(), "Where is the clever lion? Call Emma at four o'clock.");
    // held-4 begins at 36 s and has 1.9 s, held-3 at 73.9 s.
    let starts: Vec<f64> = transcript.segments.iter().map(|segment| segment.start_s).collect();
    assert!((starts[0] - 36.1).abs() < 0.3 && (starts[1] - 73.9).abs() < 0.4, "{starts:?}");
    let nothing = recording(hum());
    let nothing =
        EXACT.transcribe_speech(&nothing, voice, greedy()).expect("options").finish().expect("a text");
    assert_eq!(nothing.segments, []);
    let mut cancelled = EXACT.transcribe_speech(&sound, voice, greedy()).expect("options");
    let result = cancelled.next_while(&mut || ControlFlow::Break(()));
    assert!(matches!(result, Some(Err(_))) && cancelled.next().is_none());

    let samples = [hum(), wav("held-4"), vec![0.0; 24_000], wav("held-3"), vec![0.0; 24_000]].concat();
    let mut live = EXACT.live(options).expect("options").with_voice(voice);
    let (mut looks, mut kept) = (Vec::new(), String::new());
    for (number, piece) in samples.chunks(16_000).enumerate() {
        let update = live.push(piece).expect("a text");
        kept += &update.kept_text();
        if !update.kept.is_empty() || !update.pending.is_empty() {
            looks.push(number);
        }
    }
    // A pause keeps the words before it: nothing is left for the end.
    assert_eq!(live.finish().kept_text(), "");
    assert_eq!(kept.trim(), "Where is the clever lion? Call Emma at four o'clock.");
    assert!(*looks.first().expect("speech") >= 36, "{looks:?}");
}

/// A grammar leaves the text no other words, timestamps go on, and what the model would rather have written shows in its
/// log-probability.
#[test]
fn grammars_hold_texts() {
    let text = |name: &str, grammar: Grammar, options: TranscribeOptions| {
        let options =
            TranscribeOptions { grammar: Some(EXACT.grammar(grammar).expect("a grammar")), ..options };
        EXACT.transcribe_samples(&wav(name), options).expect("options").finish().expect("a text")
    };
    let gbnf = |text: &str| Grammar::Gbnf(text.into());
    // held-4 says "Where is the clever lion?", held-3 "Call Emma at four o'clock.".
    let animal = || gbnf(r#"root ::= "Where is the clever " ("tiger" | "lion" | "bear") "?""#);
    let free = EXACT.transcribe_samples(&wav("held-4"), greedy()).expect("options").finish().expect("a text");
    for options in [
        greedy(),
        TranscribeOptions { beam_size: 5, ..greedy() },
        TranscribeOptions { timestamps: Timestamps::None, ..greedy() },
        TranscribeOptions { temperatures: vec![0.4], best_of: 3, ..greedy() },
    ] {
        let found = text("held-4", animal(), options.clone());
        assert_eq!(found.text(), "Where is the clever lion?", "{options:?}");
        if options == greedy() {
            assert_eq!(found.segments, free.segments, "the model's own text is left alone");
        }
    }
    // The nearest of the texts that are allowed, however unlikely.
    let others = text("held-4", gbnf(r#"root ::= "Where is the clever " ("tiger" | "bear") "?""#), greedy());
    assert!(
        ["Where is the clever tiger?", "Where is the clever bear?"].contains(&&*others.text()),
        "{}",
        others.text()
    );
    assert!(others.segments[0].avg_logprob < free.segments[0].avg_logprob - 0.5, "{:?}", others.segments);
    assert!(others.segments[0].end_s > 0.5, "{:?}", others.segments);
    let commands = || {
        gbnf(
            r#"
            root ::= name " at " hour " o'clock."
            name ::= "Call " ("Emma" | "Peter")
            hour ::= "four" | "six"
        "#,
        )
    };
    assert_eq!(text("held-3", commands(), greedy()).text(), "Call Emma at four o'clock.");
    let words = TranscribeOptions { timestamps: Timestamps::Words, ..greedy() };
    let timed = text("held-3", commands(), words);
    assert_eq!(timed.segments[0].words.as_ref().expect("words").len(), 6);
    // With timestamps there would be a window behind a short text, and a text of its own.
    let untimed = || TranscribeOptions { timestamps: Timestamps::None, ..greedy() };
    let yes_no = text("held-3", Grammar::Regex("(yes|no)".into()), untimed()).text();
    assert!(["yes", "no"].contains(&&*yes_no), "{yes_no}");
    // Symbols that are annotations elsewhere may be written, and nothing counts as silence here.
    let loud = TranscribeOptions { no_speech_threshold: None, ..untimed() };
    assert_eq!(text("held-3", gbnf(r#"root ::= "(" "yes" ")""#), loud).text(), "(yes)");

    let error = EXACT.grammar(gbnf("root ::= missing")).expect_err("no such rule").to_string();
    assert!(error.contains("missing"), "{error}");
    let both = TranscribeOptions {
        grammar: Some(EXACT.grammar(animal()).expect("a grammar")),
        suppress_tokens: Some(vec![1]),
        ..greedy()
    };
    let error = both.check().expect_err("both").to_string();
    assert_eq!(error, "tokens that never occur beside a grammar, which says what may occur");
}

/// A sound that comes in pieces ends in the words of the whole, and words that were kept stay.
#[test]
fn live() {
    let options = TranscribeOptions { condition_on_previous_text: false, ..greedy() };
    let samples = wav("held-6");
    let mut live = EXACT.live(options.clone()).expect("options");
    let (mut kept, mut revised) = (String::new(), 0);
    for piece in samples.chunks(40_000) {
        let update = live.push(piece).expect("a text");
        kept += &update.kept_text();
        assert_eq!(live.kept().iter().map(|word| word.text.as_str()).collect::<String>(), kept);
        revised += usize::from(!update.pending.is_empty());
    }
    assert!(revised > 2, "words are shown before they are sure");
    kept += &live.finish().kept_text();
    let whole =
        EXACT.transcribe_samples(&samples, options).expect("options").finish().expect("a text").text();
    let sentences = |text: &str| text.matches('.').count();
    println!("{kept}\n{whole}");
    assert!(kept.trim().starts_with("Please open the door in the hall."), "{kept}");
    assert!(sentences(&kept).abs_diff(sentences(&whole)) <= 1, "{kept}");
}

/// Texts from every container and type are those that whisper.cpp writes with our files of the same types
/// (`tools/golden/whisper_cpp.py`), which are transformers' but for one.
#[test]
fn every_container_gives_the_texts_of_whisper_cpp() {
    let texts = std::fs::read(folder("tiny-whisper").join("whisper_cpp.json")).expect("golden values");
    let texts: Value = serde_json::from_slice(&texts).expect("JSON");
    // Without timestamps the model is unsure of a sentence, whose words then hang on rounding.
    let timed = || TranscribeOptions { language: Some("en".into()), ..greedy() };
    let usual = [("F16", "gguf"), ("F16", "bin"), ("Q8_0", "gguf")];
    let others: &[_] = if sweeps("whispers of Q8_0 and Q5_0 in whisper.cpp's form") {
        &[("Q8_0", "bin"), ("Q5_0", "bin")]
    } else {
        &[]
    };
    for &(kind, ending) in usual.iter().chain(others) {
        let name = format!("brasa-whisper-{}-{kind}.{ending}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let recipe = Recipe::parse(kind).expect("a type");
        let making = Options { existing: Existing::Replace, ..Options::new(recipe) };
        convert(&folder("tiny-whisper"), &path, &making, &mut |_| ControlFlow::Continue(()))
            .expect("a Whisper");
        let strict = LoadOptions { strict: true, ..LoadOptions::default() };
        let transcriber = Transcriber::load(&path, &strict).expect("our own file");
        // The longest sound takes as long as all others.
        let is_wanted = |wav: &str| ending == "bin" && kind == "F16" || wav != "held-6.wav";
        for (wav, expected) in
            texts[kind].as_object().expect("texts").iter().filter(|(wav, _)| is_wanted(wav))
        {
            let sound = self::wav(wav.trim_end_matches(".wav"));
            let segments = transcriber.transcribe_samples(&sound, timed()).expect("options");
            let text = segments.map(|segment| segment.expect("a segment").text.trim().to_owned());
            assert_eq!(
                &text.collect::<Vec<_>>().join(" "),
                expected.as_str().expect("a text"),
                "{kind}, {ending}, {wav}"
            );
        }
        let _ = std::fs::remove_file(&path);
    }
}

/// A converted Whisper times words by the heads that its folder names, and leaves out what the folder leaves out.
#[test]
fn a_converted_whisper_knows_what_its_folder_says() {
    let directory = std::env::temp_dir().join(format!("brasa-whisper-says-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).expect("a folder");
    for name in ["config.json", "model.safetensors", "tokenizer.json", "preprocessor_config.json"] {
        std::fs::copy(folder("tiny-whisper").join(name), directory.join(name)).expect("a copy");
    }
    let load = |path: &Path| {
        let options = LoadOptions { precision: Precision::Reference, strict: true, ..LoadOptions::default() };
        Transcriber::load(path, &options).expect("a Whisper")
    };
    // "?" never occurs, and " Where" begins no text.
    let ids = |text: &str| EXACT.vocabulary().encode(text).expect("tokens");
    let (mark, first) = (ids("?")[0], ids(" Where")[0]);
    let says = serde_json::json!({
        "alignment_heads": [[0, 1]], "suppress_tokens": [mark], "begin_suppress_tokens": [220, 50257, first],
    });
    std::fs::write(directory.join("generation_config.json"), says.to_string()).expect("a file");
    let output = directory.join("whisper.gguf");
    let making = Options::new(Recipe::F32);
    convert(&directory, &output, &making, &mut |_| ControlFlow::Continue(())).expect("a GGUF file");
    let words = |of: &Transcriber| {
        let options = TranscribeOptions { timestamps: Timestamps::Words, ..greedy() };
        of.transcribe_samples(&wav("held-4"), options).expect("options").finish().expect("a text")
    };
    let (own, made) = (load(&directory), load(&output));
    let (usual, own_words) = (words(&EXACT), words(&own));
    assert_eq!(own_words, words(&made));
    assert!(!own_words.text().contains('?') && usual.text().contains('?'), "{}", own_words.text());
    let times = |text: &Transcript| -> Vec<f64> {
        text.segments
            .iter()
            .flat_map(|segment| segment.words.iter().flatten())
            .map(|word| word.end_s)
            .collect()
    };
    assert_ne!(times(&usual), times(&own_words), "another head looks elsewhere");
    let untimed = |of: &Transcriber| {
        let options = TranscribeOptions { timestamps: Timestamps::None, ..greedy() };
        of.transcribe_samples(&wav("held-4"), options).expect("options").finish().expect("a text").text()
    };
    assert!(
        untimed(&EXACT).starts_with("Where") && !untimed(&made).starts_with("Where"),
        "{}",
        untimed(&made)
    );

    let bad = r#"{"alignment_heads": [[2, 0]]}"#;
    std::fs::write(directory.join("generation_config.json"), bad).expect("a file");
    let error =
        Transcriber::load(&directory, &LoadOptions::default()).expect_err("no such layer").to_string();
    assert!(error.contains("alignment_heads") && error.contains("a layer below 2"), "{error}");
    std::fs::remove_dir_all(&directory).expect("an end");
}

#[test]
fn parts_are_timed_and_leave_nothing_behind() {
    let samples = wav("held-1");
    for _ in 0..2 {
        let speed = EXACT.speed(&samples, 3, 4).expect("times");
        assert_eq!(speed.steps.len(), 4);
        assert!(speed.encode > Duration::ZERO);
    }
    assert!(EXACT.speed(&[f32::NAN; 800], 1, 1).is_err());
    assert!(EXACT.speed(&samples, 1, 1000).is_err());
    assert_eq!(EXACT.speed(&samples, 1, 1).expect("times").steps.len(), 1);
}
