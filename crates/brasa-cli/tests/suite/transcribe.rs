//! `brasa transcribe` on the trained Whisper, against the texts of transformers that lie beside it.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

use crate::command::{brasa, fails, model, models, scratch, stderr, stdout};
use crate::whisper_bin;

fn whisper() -> String {
    model("tiny-whisper")
}

fn wav(number: u32) -> String {
    model(&format!("tiny-whisper/held-{number}.wav"))
}

/// The text of each wav as transformers writes it.
fn texts() -> Vec<String> {
    let reference = std::fs::read_to_string(models().join("tiny-whisper/reference.json")).unwrap();
    let reference: Value = serde_json::from_str(&reference).unwrap();
    let cases = reference["cases"].as_array().unwrap().iter();
    cases.map(|case| case["with_timestamps"]["text"].as_str().unwrap().trim().to_owned()).collect()
}

/// The output of a run that must succeed.
fn done(arguments: &[&str]) -> String {
    let output = brasa(&[&["transcribe"], arguments].concat());
    assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
    stdout(&output)
}

/// A run that reads `input`.
fn fed(arguments: &[&str], input: &[u8]) -> Output {
    let mut child = start(arguments);
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

fn start(arguments: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_brasa"));
    command.arg("transcribe").args(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A folder with copies of some wavs.
fn sounds(name: &str, numbers: &[u32]) -> (PathBuf, Vec<String>) {
    let directory = scratch(name);
    let copy = |number: &u32| {
        let path = directory.join(format!("{number}.wav"));
        std::fs::copy(wav(*number), &path).unwrap();
        path.display().to_string()
    };
    let paths = numbers.iter().map(copy).collect();
    (directory, paths)
}

#[test]
fn one_file_goes_to_standard_output() {
    let whisper = whisper();
    for (number, text) in (1..).zip(texts()) {
        let found = done(&[&whisper, &wav(number), "--beam", "1", "--temperature-inc", "0"]);
        assert_eq!(found.trim_end().replace('\n', " "), text, "held-{number}");
    }
    let json: Value = serde_json::from_str(&done(&[&whisper, &wav(3), "--format", "json"])).unwrap();
    assert_eq!(json["text"], texts()[2]);
    let in_short: Value = serde_json::from_str(&done(&[&whisper, &wav(3), "--json"])).unwrap();
    assert_eq!(untimed(in_short), untimed(json));
    assert_eq!(
        done(&["-m", &whisper, &wav(5), "--timestamps"]),
        "[00:00.500 --> 00:02.260]  The hungry fox jumped under the river.\n\
         [00:02.960 --> 00:05.160]  The happy sheep waited beside the road.\n\
         [00:05.860 --> 00:07.460]  My birthday is on the eighth of April.\n"
    );
    let words = done(&[&whisper, "-f", &wav(3), "--words"]);
    assert!(words.lines().count() == 6 && words.starts_with("[00:00.000 --> "), "{words}");
    let verbose: Value =
        serde_json::from_str(&done(&[&whisper, &wav(3), "--words", "--format", "verbose_json"])).unwrap();
    assert_eq!(verbose["words"].as_array().unwrap().len(), 6);
    assert_eq!((&verbose["language"], &verbose["task"]), (&"english".into(), &"transcribe".into()));
    assert!(verbose["timings"]["align_ms"].as_f64().unwrap() > 0.0, "{verbose}");
    let srt = done(&[&whisper, &wav(4), "-osrt", "-bs", "1", "-l", "English"]);
    assert_eq!(srt, "1\n00:00:00,000 --> 00:00:01,460\nWhere is the clever lion?\n\n");
}

/// A transcript in JSON without its times, which it has to have.
fn untimed(mut transcript: Value) -> Value {
    let timings = transcript.as_object_mut().unwrap().shift_remove("timings").unwrap();
    let number = |name: &str| timings[name].as_f64().unwrap();
    let parts = ["read_ms", "mel_ms", "encode_ms", "prompt_ms", "decode_ms"].map(number);
    assert!(parts.iter().all(|part| *part > 0.0), "{timings}");
    assert!(parts.iter().sum::<f64>() <= number("total_ms") && number("real_time_factor") > 0.0, "{timings}");
    transcript
}

#[test]
fn parts_that_took_time_are_told_on_request() {
    let (directory, paths) = sounds("times", &[3, 4]);
    let run = |arguments: &[&str]| {
        let output = brasa(&[&["transcribe"], arguments].concat());
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
        output
    };
    let verbose = ["--beam", "1", "-v"];
    for (flags, words) in [(&["--words"][..], "align "), (&["--batch", "2"], "decode ")] {
        let output = run(&[&[&whisper()[..], &paths[0]], &verbose[..], flags].concat());
        let told = stderr(&output);
        let line = told.lines().find(|line| line.starts_with("read ")).unwrap();
        assert!(line.contains(", encode ") && line.contains(words), "{line}");
        assert!(line.contains(", total ") && line.contains(", real-time factor "), "{line}");
    }
    // Files that share steps have one time together.
    let output =
        run(&[&[&whisper()[..], &paths[0], &paths[1], "--batch", "2", "--json"], &verbose[..]].concat());
    let told = stderr(&output);
    assert_eq!(told.lines().filter(|line| line.starts_with("read ")).count(), 1, "{told}");
    let json = std::fs::read_to_string(directory.join("3.json")).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), serde_json::json!({"text": texts()[2]}));
    let quiet = run(&[&whisper(), &wav(3), "--beam", "1"]);
    assert!(!stderr(&quiet).contains("encode"), "{}", stderr(&quiet));
}

/// Mistakes of newcomers are told in their words.
#[test]
fn mistakes_are_told_plainly() {
    let (directory, whisper, wav) = (scratch("mistakes"), whisper(), wav(3));
    let junk = directory.join("junk.mp3").display().to_string();
    std::fs::write(&junk, "this is a text").unwrap();
    let folder = directory.display().to_string();
    for (arguments, code, words) in [
        (
            &[&whisper[..], &junk][..],
            1,
            "junk.mp3: not recognised as audio: its bytes are in no format of sound",
        ),
        (&[&whisper, &folder], 1, "a folder, expected a file of sound"),
        (&[&whisper, &folder, &wav], 1, "a folder, expected a file of sound"),
        (&["nowhere", &wav], 1, "nowhere: no model of this name here or in the hub's cache"),
        (&[&wav], 2, "held-3.wav: a file of sound, and the first word names the model"),
        (&[], 2, "the model is missing\nhint: `-hf openai/whisper-small` downloads one"),
        (&[&whisper, &wav, "--json", "--format", "srt"], 2, "--json and a --format other than JSON"),
    ] {
        let told = fails(&[&["transcribe"], arguments].concat(), code);
        assert!(told.contains(words), "{arguments:?}: {told}");
        assert!(!told.contains("core (probe)"), "{told}");
    }
}

/// Headers of recorders that could not come back to them: the whole text, and a warning.
#[test]
fn lengths_that_are_placeholders_are_told() {
    let (directory, whisper) = (scratch("placeholders"), whisper());
    let path = directory.join("x.wav");
    let mut file = std::fs::read(wav(3)).unwrap();
    for (more, warning) in [(None, "the header gives the length 0"), (Some(44), "ends 1.375 ms before")] {
        let bytes = more.map_or(0, |more| file.len() as u32 - 44 + more);
        file[40..44].copy_from_slice(&bytes.to_le_bytes());
        std::fs::write(&path, &file).unwrap();
        let named = brasa(&["transcribe", &whisper, path.to_str().unwrap(), "--beam", "1"]);
        let piped = fed(&[&whisper, "-", "--beam", "1"], &file);
        for (output, name) in [(named, "x.wav: "), (piped, "standard input: ")] {
            let told = stderr(&output);
            assert!(told.contains("warning: ") && told.contains(&format!("{name}the")), "{told}");
            assert!(told.contains(warning), "{told}");
            assert_eq!(stdout(&output).trim(), texts()[2]);
        }
    }
}

#[test]
fn flags_reach_the_decoder() {
    let whisper = whisper();
    let greedy = |more: &[&str]| done(&[&[&whisper[..], &wav(4), "--beam", "1"], more].concat());
    assert!(
        greedy(&["--hotwords", "tiger, bear", "--hotword-bias", "40", "--max-tokens", "24"])
            .contains("tiger")
    );
    assert_eq!(
        greedy(&["--no-speech-threshold", "0", "--logprob-threshold", "0"]),
        "",
        "every window is silent"
    );
    let drawn = |seed| greedy(&["--temp", "3", "-s", seed, "--max-tokens", "12"]);
    let five = drawn("5");
    assert_ne!(five, drawn("6"));
    assert_eq!(five, drawn("5"));
    assert_eq!(greedy(&["--max-tokens", "3"]).split_whitespace().count(), 2);
    let translated = greedy(&["--translate", "--format", "verbose_json", "--without-timestamps"]);
    let translated: Value = serde_json::from_str(&translated).unwrap();
    assert_eq!(translated["task"], "translate");
    assert_eq!(translated["segments"].as_array().unwrap().len(), 1);
    let in_json = |more: &[&str]| {
        untimed(serde_json::from_str(&greedy(&[more, &["--format", "verbose_json"]].concat())).unwrap())
    };
    let prompted = |prompt| in_json(&["--prompt", prompt]);
    assert_ne!(prompted("Emma, Peter."), prompted("a quiet road by the sea"));
    // Scripts write `--prompt "$P"`, whether they have one or not.
    let empty = greedy(&["--prompt", "", "--language", "", "--hotwords", "", "--grammar", ""]);
    assert_eq!(empty, greedy(&[]));
    assert_eq!(prompted(" "), in_json(&[]));
}

/// A hum is no voice, and what is no voice is not heard.
#[test]
fn pauses_are_left_out() {
    let (directory, whisper, texts) = (scratch("pauses"), whisper(), texts());
    let hum: Vec<u8> =
        (0..48_000).flat_map(|n| ((6000.0 * (f64::from(n) * 0.03).sin()) as i16).to_le_bytes()).collect();
    let raw = |name: &str, samples: &[u8]| {
        let path = directory.join(name);
        std::fs::write(&path, samples).unwrap();
        path.display().to_string()
    };
    let (silent, spoken) = (raw("hum.raw", &hum), raw("spoken.raw", &[&hum, &samples(4)[..]].concat()));
    let greedy = |more: &[&str]| done(&[&[&whisper[..], "--raw", "s16", "--beam", "1"], more].concat());
    assert_eq!(greedy(&[&silent, "--vad", "model"]), "");
    for flags in [&["--vad", "model"][..], &["--vad=model", "--batch", "2"], &["--stream", "--vad", "model"]]
    {
        assert_eq!(greedy(&[&[&spoken[..]], flags].concat()).trim(), texts[3], "{flags:?}");
    }
    let verbose = greedy(&["--format", "verbose_json", "--vad", "model", &spoken]);
    let verbose: Value = serde_json::from_str(&verbose).unwrap();
    assert!(verbose["segments"][0]["start"].as_f64().unwrap() > 2.8, "{verbose}");
}

#[test]
fn several_files_have_transcripts_beside_them() {
    let (directory, paths) = sounds("beside", &[3, 4]);
    let (whisper, texts) = (whisper(), texts());
    let run = [&whisper[..], &paths[0], &paths[1], "--beam", "1"];
    let summary = done(&run);
    assert!(
        summary.lines().count() == 2 && summary.contains("4.txt: 00:01 of english, 1 segment in "),
        "{summary}"
    );
    assert_eq!(names(&directory), ["3.txt", "3.wav", "4.txt", "4.wav"]);
    let read = |name: &str| std::fs::read_to_string(directory.join(name)).unwrap();
    assert_eq!((read("3.txt"), read("4.txt")), (format!("{}\n", texts[2]), format!("{}\n", texts[3])));

    std::fs::write(directory.join("4.txt"), "precious").unwrap();
    std::fs::remove_file(directory.join("3.txt")).unwrap();
    let message = fails(&[&["transcribe"], &run[..]].concat(), 1);
    assert!(message.contains("4.txt exists\nhint: --force replaces it"), "{message}");
    assert_eq!(names(&directory), ["3.wav", "4.txt", "4.wav"], "nothing was transcribed");
    done(&[&run[..], &["--force"]].concat());
    assert_eq!(read("4.txt"), format!("{}\n", texts[3]));

    let out = directory.join("subtitles");
    done(&[&whisper, &paths[0], "--out", out.to_str().unwrap(), "--format", "vtt", "--beam", "1"]);
    assert_eq!(names(&out), ["3.vtt"]);
    assert!(std::fs::read_to_string(out.join("3.vtt")).unwrap().starts_with("WEBVTT\n\n00:00.000 --> "));
}

#[test]
fn a_grammar_admits_its_words_alone() {
    let whisper = whisper();
    let animal = r#"root ::= "Where is the clever " ("tiger" | "bear") "?""#;
    let found = done(&[&whisper, &wav(4), "--beam", "1", "--grammar", animal]);
    assert!(["Where is the clever tiger?\n", "Where is the clever bear?\n"].contains(&&*found), "{found}");
    let file = scratch("transcribe-grammar").join("animal.gbnf");
    std::fs::write(&file, animal).unwrap();
    let file = file.to_str().unwrap();
    assert_eq!(done(&[&whisper, &wav(4), "--beam", "1", "--grammar-file", file, "--batch", "2"]), found);
    let message = fails(&["transcribe", &whisper, &wav(4), "--grammar", "root ::= (", "--beam", "1"], 1);
    assert!(message.contains("GBNF"), "{message}");
    for more in [["--suppress-tokens", "1"], ["--grammar-file", file]] {
        let (wav, whisper) = (wav(4), &*whisper);
        let all = [&["transcribe", whisper, &wav, "--grammar", animal][..], &more[..]].concat();
        assert!(fails(&all, 2).contains("cannot be used with"), "{more:?}");
    }
    let message = fails(&["transcribe", &whisper, "--stream", "--grammar", animal], 2);
    assert!(message.contains("--stream"), "{message}");
}

/// Pieces of several files at once: the same transcripts, in the same places.
#[test]
fn batches_write_what_files_alone_do() {
    let (directory, mut paths) = sounds("batches", &[3, 4, 5]);
    let whisper = whisper();
    let exact = ["--beam", "2", "--precision", "reference", "--batch", "4"];
    for (number, text) in [(2, "3.txt"), (3, "4.txt")] {
        assert_eq!(
            done(&[&[&whisper[..], &wav(number + 1)], &exact[..]].concat()).trim_end(),
            texts()[number as usize],
            "{text}"
        );
    }
    let broken = directory.join("6.wav");
    std::fs::write(&broken, "no sound").unwrap();
    paths.push(broken.display().to_string());
    let files: Vec<&str> = [whisper.as_str()].into_iter().chain(paths.iter().map(String::as_str)).collect();
    let output = brasa(&[&["transcribe"], &files[..], &exact].concat());
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("error: 1 of 4 files were not transcribed"), "{}", stderr(&output));
    assert_eq!(names(&directory), ["3.txt", "3.wav", "4.txt", "4.wav", "5.txt", "5.wav", "6.wav"]);
    let read = |name: &str| std::fs::read_to_string(directory.join(name)).unwrap();
    assert_eq!((read("3.txt"), read("4.txt")), (format!("{}\n", texts()[2]), format!("{}\n", texts()[3])));
    assert!(read("5.txt").contains("The happy sheep waited beside the road."), "{}", read("5.txt"));
}

/// A file that cannot be read costs its own transcript and no other.
#[test]
fn a_broken_file_is_told_and_passed_over() {
    let (directory, paths) = sounds("broken", &[3, 4]);
    std::fs::write(&paths[0], "no sound").unwrap();
    let output = brasa(&["transcribe", &whisper(), &paths[0], &paths[1], "--beam", "1"]);
    assert_eq!(output.status.code(), Some(1));
    let message = stderr(&output);
    assert!(message.contains("3.wav: not recognised as audio"), "{message}");
    assert!(message.contains("error: 1 of 2 files were not transcribed"), "{message}");
    assert_eq!(names(&directory), ["3.wav", "4.txt", "4.wav"]);
}

#[test]
fn a_file_of_whisper_cpp_transcribes_alike() {
    let directory = scratch("whisper-bin");
    let bin = directory.join("ggml-tiny-whisper.bin");
    whisper_bin::write(&models().join("tiny-whisper"), &bin);
    let of = |model: &str, number| {
        let exact = ["--format", "verbose_json", "--words", "--beam", "2", "--precision", "reference"];
        let found = done(&[&[model, &wav(number)], &exact[..]].concat());
        let mut found = untimed(serde_json::from_str(&found).unwrap());
        let numbers = found["segments"].as_array_mut().unwrap().iter_mut().map(|segment| {
            ["avg_logprob", "no_speech_prob"].map(|key| segment.as_object_mut().unwrap().remove(key).unwrap())
        });
        let numbers: Vec<f64> = numbers.flatten().map(|number| number.as_f64().unwrap()).collect();
        (found, numbers)
    };
    for number in [1, 5] {
        let ((whole, numbers), (expected, expected_numbers)) =
            (of(bin.to_str().unwrap(), number), of(&whisper(), number));
        assert_eq!(whole, expected);
        assert!(!numbers.is_empty() && numbers.len() == expected_numbers.len());
        for (found, expected) in numbers.iter().zip(&expected_numbers) {
            assert!((found - expected).abs() < 1e-4, "{found}, expected {expected}");
        }
    }
    std::fs::remove_file(bin).unwrap();
}

/// Samples of a wav, without its header of 44 bytes.
fn samples(number: u32) -> Vec<u8> {
    std::fs::read(wav(number)).unwrap().split_off(44)
}

#[test]
fn standard_input_is_a_file_too() {
    let (whisper, text) = (whisper(), format!("{}\n", texts()[2]));
    let whole = fed(&[&whisper, "-", "--beam", "1"], &std::fs::read(wav(3)).unwrap());
    assert_eq!(stdout(&whole), text, "{}", stderr(&whole));
    let raw = fed(&[&whisper, "--raw", "S16_LE", "-r", "16000", "--beam", "1"], &samples(3));
    assert_eq!(stdout(&raw), text, "{}", stderr(&raw));
    let empty = fed(&[&whisper, "-"], &[]);
    assert_eq!(empty.status.code(), Some(1));
    assert!(stderr(&empty).contains("standard input"), "{}", stderr(&empty));
}

/// A sound that comes in pieces: with a header as arecord writes it, without one, and as JSON.
#[test]
fn live_sound_is_written_as_it_is_agreed_upon() {
    let whisper = whisper();
    let run = [&whisper[..], "--stream", "--beam", "1", "--no-context", "--step", "2"];
    let raw = fed(&run, &samples(5));
    assert!(raw.status.success(), "{}", stderr(&raw));
    let text = stdout(&raw);
    assert!(text.contains("The happy sheep waited beside the road."), "{text}");
    // arecord does not know the length.
    let mut header = std::fs::read(wav(5)).unwrap();
    header[4..8].copy_from_slice(&0x7fff_ffff_u32.to_le_bytes());
    header[40..44].copy_from_slice(&0x7fff_ffdb_u32.to_le_bytes());
    let with_header = fed(&run, &header);
    assert_eq!(stdout(&with_header), text, "{}", stderr(&with_header));

    let json = stdout(&fed(&[&run[..], &["--format", "json"]].concat(), &samples(5)));
    let lines: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let kept: String = lines.iter().map(|line| line["text"].as_str().unwrap()).collect();
    assert_eq!(kept.trim(), text.trim());
    let words = lines.iter().flat_map(|line| line["words"].as_array().unwrap());
    let starts: Vec<f64> = words.map(|word| word["start"].as_f64().unwrap()).collect();
    assert!(starts.len() > 15 && starts.is_sorted(), "{starts:?}");
    let timed = stdout(&fed(&[&run[..], &["--timestamps"]].concat(), &samples(5)));
    assert!(timed.lines().all(|line| line.starts_with("[00:0")), "{timed}");
}

/// Ctrl-C ends a sound that goes on, and what was heard is written; a file is given up without a trace.
#[cfg(unix)]
#[test]
fn interruptions() {
    let interrupt = |child: &Child| {
        let status = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
        assert!(status.success());
    };
    let mut child = start(&[&whisper(), "--stream", "--beam", "1", "--format", "json"]);
    let mut sound = child.stdin.take().unwrap();
    sound.write_all(&samples(4)).unwrap();
    let mut looks = BufReader::new(child.stdout.take().unwrap()).lines();
    // The first look shows the text as one that may change; after that the program listens on.
    let first: Value = serde_json::from_str(&looks.next().unwrap().unwrap()).unwrap();
    assert!(first["text"] == "" && first["pending"] != "", "{first}");
    interrupt(&child);
    let last: Value = serde_json::from_str(&looks.last().unwrap().unwrap()).unwrap();
    assert!(last["text"] != "" && last["pending"] == "", "{last}");
    assert_eq!(child.wait().unwrap().code(), Some(130));
    drop(sound);

    let directory = scratch("interrupted");
    let long = directory.join("long.wav");
    let mut bytes = std::fs::read(wav(6)).unwrap();
    bytes[4..8].copy_from_slice(&0x7fff_ffff_u32.to_le_bytes());
    bytes[40..44].copy_from_slice(&0x7fff_ffdb_u32.to_le_bytes());
    bytes.extend((0..40).flat_map(|_| samples(6)));
    std::fs::write(&long, bytes).unwrap();
    let mut child = start(&[&whisper(), long.to_str().unwrap(), "--out", directory.to_str().unwrap(), "-v"]);
    let mut told = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    told.read_line(&mut line).unwrap();
    assert!(line.contains("loaded in"), "{line}");
    interrupt(&child);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(names(&directory), ["long.wav"]);
}

#[test]
fn what_makes_no_sense_is_refused_by_name() {
    let (whisper, sound) = (whisper(), wav(3));
    for (flags, expected) in [
        (&["--format", "srt", "--without-timestamps"][..], "--format srt is made of times"),
        (&["--stream", "--format", "vtt"], "--format vtt is for files"),
        (&["--stream", &sound], "--stream transcribes one sound"),
        (&["--rate", "8000"], "give --raw FORM too"),
        (&["-l", "klingon"], "expected a code or an English name"),
        (&["--beam", "33"], "33 is not in 1..=32"),
        (&["--length-penalty", "2"], "length penalty 2"),
        (&["--temperature-inc", "0.001"], "more than 32 tries"),
        (&["--raw", "s16be"], "expected u8, s16, s24, s32, f32 or f64"),
        (&["--batch", "65"], "expected 1 to 64"),
        (&["--vad=loud"], "[possible values: model, energy, off]"),
        (&["--vad-model", "silero.bin"], "the model of voice activity is built in: `--vad model`"),
        (&[&sound], "would both be transcribed to"),
    ] {
        let message = fails(&[&["transcribe", &whisper, &sound], flags].concat(), 2);
        assert!(message.contains(expected), "{flags:?}: {message}");
    }
    assert!(fails(&["transcribe"], 2).contains("the model is missing"));
    let message = fails(&["transcribe", &whisper, "/nowhere.wav"], 1);
    assert!(message.contains("/nowhere.wav: No such file"), "{message}");
    for (model, name) in [("tiny-llama", "llama"), ("random-encoders/bert", "bert")] {
        let message = fails(&["transcribe", &crate::command::model(model), &sound], 1);
        assert!(
            message.contains(&format!("{name} is a model of text and cannot transcribe sound")),
            "{message}"
        );
    }
    for command in ["run", "generate", "embed", "logits"] {
        let message = fails(&[command, "-m", &whisper, "-p", "Ember"], 1);
        assert!(message.contains("whisper is a model of speech"), "{command}: {message}");
        assert!(message.contains("`brasa transcribe`"), "{command}: {message}");
    }
}

/// At a terminal, words that may change stand behind those that are kept, and are gone at the end.
#[cfg(unix)]
#[test]
fn a_terminal_shows_what_may_change() {
    let directory = scratch("live-terminal");
    let sound = directory.join("sound");
    std::fs::write(&sound, samples(5)).unwrap();
    let (whisper, sound) = (whisper(), sound.display().to_string());
    let arguments =
        ["transcribe", &whisper, "--stream", &sound, "--beam", "1", "--no-context", "--step", "2"];
    let mut terminal = crate::terminal::Terminal::of_width(60, &arguments, &[]);
    terminal.expect("\x1b7\x1b[?7l");
    let pending = terminal.expect("\x1b[?7h\x1b8");
    // The end of the line, if much of the sound was read at once.
    assert!(pending.contains("The") || pending.contains("the "), "{pending:?}");
    let (code, shown) = terminal.ended();
    assert_eq!(code, Some(0));
    let expected =
        stdout(&fed(&[&whisper, "--stream", "--beam", "1", "--no-context", "--step", "2"], &samples(5)));
    assert!(shown.lines().all(|line| line.chars().count() <= 60), "{shown}");
    assert_eq!(shown.split_whitespace().collect::<Vec<_>>(), expected.split_whitespace().collect::<Vec<_>>());
}
