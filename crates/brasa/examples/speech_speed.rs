//! Times the parts of a transcription: features, encoder, decoder.
//!
//! `cargo run --release --example speech_speed -- MODEL [THREADS] [REPETITIONS]`; the best of all repetitions is printed, since whatever else runs on the
//! machine only adds to a time.

use std::time::Duration;

use brasa::{LoadOptions, Transcriber};

/// Tokens of a text, about what half a minute of speech has.
const STEPS: usize = 100;
/// Texts of a beam search.
const BEAMS: usize = 5;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("a model of speech is expected")?;
    let threads = arguments.next().map(|threads| threads.parse()).transpose()?;
    let repetitions = arguments.next().map_or(Ok(3), |repetitions| repetitions.parse())?;
    let transcriber = Transcriber::load(&path, &LoadOptions { threads, ..LoadOptions::default() })?;
    let chirp = |i: u32| (f64::from(i).powi(2) * 1e-4).sin() as f32 * 0.3;
    let samples: Vec<f32> = (0..480_000).map(chirp).collect();
    let (mut mel, mut encode, mut greedy, mut beams) =
        (Duration::MAX, Duration::MAX, Duration::MAX, Duration::MAX);
    for _ in 0..repetitions {
        let speed = transcriber.speed(&samples, 1, STEPS)?;
        mel = mel.min(speed.mel);
        encode = encode.min(speed.encode);
        greedy = greedy.min(speed.steps.iter().sum());
        beams = beams.min(transcriber.speed(&samples, BEAMS, STEPS)?.steps.iter().sum());
    }
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    println!("mel of 30 s         {:8.1} ms, {:.1} % of the encoder", ms(mel), ms(mel) / ms(encode) * 100.0);
    println!("encoder of 30 s     {:8.1} ms", ms(encode));
    println!("a token             {:8.2} ms", ms(greedy) / STEPS as f64);
    println!(
        "a step of {BEAMS} beams   {:8.2} ms, {:.2} times a token",
        ms(beams) / STEPS as f64,
        ms(beams) / ms(greedy)
    );
    Ok(())
}
