//! Which part of a transcription a call of the recogniser counts for.

use std::time::Duration;

use brasa_audio::Features;
use brasa_graph::step::Outs;
use brasa_speech::{
    CrossScores, Recogniser, Result, Rows, Shape, TextId, Timed, TranscriptionTimes, WindowId,
};

use crate::stub::Synthetic;

/// Takes a while for every call.
#[derive(Default)]
struct Slow(Synthetic);

/// Waits until the clock has moved.
fn tick() {
    let now = std::time::Instant::now();
    while now.elapsed().is_zero() {}
}

impl Recogniser for Slow {
    fn shape(&self) -> Shape {
        self.0.shape()
    }

    fn encode(&mut self, windows: &[&Features]) -> Result<Vec<WindowId>> {
        tick();
        self.0.encode(windows)
    }

    fn forget(&mut self, window: WindowId) {
        self.0.forget(window);
    }

    fn begin(&mut self, window: WindowId) -> Result<TextId> {
        self.0.begin(window)
    }

    fn fork(&mut self, text: TextId) -> Result<TextId> {
        self.0.fork(text)
    }

    fn end(&mut self, text: TextId) {
        self.0.end(text);
    }

    fn run(&mut self, rows: &[Rows]) -> Result<&[f32]> {
        tick();
        self.0.run(rows)
    }

    fn cross_scores(&mut self, _: WindowId, tokens: &[u32]) -> Result<CrossScores> {
        tick();
        Ok(CrossScores { values: Vec::new(), heads: 0, tokens: tokens.len() })
    }
}

/// Encoder, prompts of one token and of several, further tokens, forks and alignment each grow their own part alone.
#[test]
fn a_call_counts_for_its_part() {
    let (mut slow, mut times) = (Slow::default(), TranscriptionTimes::default());
    let mut timed = Timed::new(&mut slow, &mut times);
    let window = timed.encode(&[]).map(|_| WindowId(0)).unwrap();
    let row = |text, tokens: &[u32]| Rows { text, tokens: tokens.to_vec(), outs: Outs::Last };
    let [short, long] = [timed.begin(window).unwrap(), timed.begin(window).unwrap()];
    timed.run(&[row(short, &[1])]).unwrap();
    drop(timed);
    let TranscriptionTimes { encode, prompt, .. } = times;
    assert!(!encode.is_zero() && !prompt.is_zero());
    assert_eq!(times, TranscriptionTimes { encode, prompt, ..TranscriptionTimes::default() });

    // The text has begun, and so has its copy.
    let mut timed = Timed::new(&mut slow, &mut times);
    let copy = timed.fork(short).unwrap();
    timed.run(&[row(short, &[2]), row(copy, &[3])]).unwrap();
    timed.cross_scores(window, &[1]).unwrap();
    for text in [short, long, copy] {
        timed.end(text);
    }
    drop(timed);
    let TranscriptionTimes { decode, align, .. } = times;
    assert!(!decode.is_zero() && !align.is_zero());
    assert_eq!(times, TranscriptionTimes { encode, prompt, decode, align, ..TranscriptionTimes::default() });

    // A step with a prompt in it is a prompt's, whatever else it has.
    let mut timed = Timed::new(&mut slow, &mut times);
    let [old, new] = [timed.begin(window).unwrap(), timed.begin(window).unwrap()];
    timed.run(&[row(old, &[1, 2])]).unwrap();
    timed.run(&[row(old, &[3]), row(new, &[1])]).unwrap();
    drop(timed);
    assert!(times.prompt > prompt && times.decode == decode);
}

#[test]
fn json_has_milliseconds_and_the_real_time_factor() {
    let ms = Duration::from_millis;
    let times = TranscriptionTimes {
        mel: ms(20),
        encode: Duration::from_micros(1500),
        total: ms(500),
        ..TranscriptionTimes::default()
    };
    let object = times.to_json(2.0);
    let names: Vec<&str> = object.as_object().unwrap().keys().map(String::as_str).collect();
    let parts = ["read_ms", "mel_ms", "encode_ms", "prompt_ms", "decode_ms", "align_ms", "total_ms"];
    assert!(parts.iter().all(|part| names.contains(part)) && names.len() == 8, "{names:?}");
    let number = |name: &str| object[name].as_f64().unwrap();
    assert_eq!((number("mel_ms"), number("encode_ms"), number("align_ms")), (20.0, 1.5, 0.0));
    assert_eq!((number("total_ms"), number("real_time_factor")), (500.0, 0.25));
    assert!(times.to_json(0.0)["real_time_factor"].is_null());
}
