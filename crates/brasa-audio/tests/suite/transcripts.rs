//! Transcripts in every form, against openai-whisper's writers where it has one.

use brasa_audio::transcript::{Segment, Transcript, TranscriptFormat, Word};
use serde_json::{Value, json};

use crate::common::path;

fn transcript(segments: &Value) -> Transcript {
    let word = |word: &Value| Word {
        text: word["word"].as_str().unwrap().to_owned(),
        start_s: word["start"].as_f64().unwrap(),
        end_s: word["end"].as_f64().unwrap(),
        probability: word["probability"].as_f64().unwrap_or_default(),
    };
    let segment = |segment: &Value| Segment {
        start_s: segment["start"].as_f64().unwrap(),
        end_s: segment["end"].as_f64().unwrap(),
        text: segment["text"].as_str().unwrap().to_owned(),
        words: segment["words"].as_array().map(|words| words.iter().map(word).collect()),
        ..Segment::default()
    };
    Transcript {
        language: "english".to_owned(),
        segments: segments.as_array().unwrap().iter().map(segment).collect(),
        ..Transcript::default()
    }
}

#[test]
fn files_are_those_of_openai_whisper() {
    let golden: Value =
        serde_json::from_slice(&std::fs::read(path("golden/transcripts.json")).unwrap()).unwrap();
    let cases = golden.as_array().unwrap();
    assert_eq!(cases.len(), 3);
    for case in cases {
        let transcript = transcript(&case["segments"]);
        for (name, expected) in case["written"].as_object().unwrap() {
            let found = transcript.to_format(name.parse().unwrap());
            assert_eq!(found, expected.as_str().unwrap(), "{name}");
        }
    }
}

#[test]
fn lyrics_and_tables_are_those_of_whisper_cpp() {
    let segments = json!([
        { "start": 0.0, "end": 1.5, "text": " Say \"yes\"." },
        { "start": 61.239, "end": 6000.0, "text": " No." },
    ]);
    let transcript = transcript(&segments);
    assert_eq!(
        transcript.to_format(TranscriptFormat::Csv),
        "start,end,text\n0,1500,\" Say \"\"yes\"\".\"\n61239,6000000,\" No.\"\n"
    );
    assert_eq!(
        transcript.to_format(TranscriptFormat::Lrc),
        "[by:brasa]\n[00:00.00] Say \"yes\".\n[01:01.23] No.\n"
    );
}

#[test]
fn json_is_that_of_the_api() {
    let segments = json!([
        { "start": 0.0, "end": 1.5, "text": " Hello", "words": [{ "word": " Hello", "start": 0.1, "end": 0.9, "probability": 0.75 }] },
        { "start": 1.5, "end": 2.0, "text": " you.", "words": [] },
    ]);
    let mut transcript = transcript(&segments);
    transcript.duration_s = 2.5;
    assert_eq!(transcript.to_format(TranscriptFormat::Json), "{\"text\":\"Hello you.\"}\n");
    let mut answer: Value =
        serde_json::from_str(&transcript.to_format(TranscriptFormat::VerboseJson)).unwrap();
    assert_eq!(answer["words"], json!([{ "word": "Hello", "start": 0.1, "end": 0.9, "probability": 0.75 }]));
    let fields = [
        "id",
        "seek",
        "start",
        "end",
        "text",
        "tokens",
        "temperature",
        "avg_logprob",
        "compression_ratio",
        "no_speech_prob",
    ];
    assert!(answer["segments"][1].as_object().unwrap().keys().eq(fields));
    let fields = ["task", "language", "duration", "text", "segments", "words"];
    assert!(answer.as_object().unwrap().keys().eq(fields));
    answer["segments"].take();
    answer["words"].take();
    let expected = json!({ "task": "transcribe", "language": "english", "duration": 2.5, "text": "Hello you.", "segments": null, "words": null });
    assert_eq!(answer, expected);
}

#[test]
fn formats_have_names() {
    for (name, format) in TranscriptFormat::ALL {
        assert_eq!(name.parse(), Ok(format));
    }
    let error = "pdf".parse::<TranscriptFormat>().unwrap_err();
    assert_eq!(
        error,
        "\"pdf\" is no format of a transcript, expected one of text, srt, vtt, json, verbose_json, csv, tsv, lrc"
    );
}
