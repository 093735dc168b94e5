//! Spans of speech, and windows of long sounds.

use std::ops::Range;

use brasa_audio::{
    Audio, Energies, Limits, VoiceActivity, WINDOW_SAMPLES, batch_windows, seek_window, speech_clips,
};
use brasa_fuzz::Rng;

use crate::common::path;

const SECOND: usize = 16_000;

/// Noise of this amplitude.
fn noise(rng: &mut Rng, samples: usize, amplitude: f32) -> Vec<f32> {
    (0..samples).map(|_| ((rng.bits() >> 40) as f32 / 8_388_608.0 - 1.0) * amplitude).collect()
}

/// Background noise with louder bursts, in seconds.
fn bursts(seconds: usize, background: f32, loud: f32, spans: &[Range<f64>]) -> Vec<f32> {
    let rng = &mut Rng::new(3);
    let mut samples = noise(rng, seconds * SECOND, background);
    for span in spans {
        let range = (span.start * SECOND as f64) as usize..(span.end * SECOND as f64) as usize;
        samples[range.clone()].copy_from_slice(&noise(rng, range.len(), loud));
    }
    samples
}

fn seconds(spans: &[Range<usize>]) -> Vec<(f64, f64)> {
    let second = |sample: usize| (sample as f64 / SECOND as f64 * 100.0).round() / 100.0;
    spans.iter().map(|span| (second(span.start), second(span.end))).collect()
}

#[test]
fn bursts_are_found_whatever_the_level() {
    for (background, loud) in [(0.0, 0.5), (0.001, 0.01), (0.02, 0.3)] {
        let samples = bursts(6, background, loud, &[1.0..1.5, 3.0..4.0]);
        let spans = seconds(&VoiceActivity::default().spans(&Energies::of(&samples)));
        // 100 ms of lead, 300 ms of hang-over.
        assert_eq!(spans, [(0.9, 1.8), (2.9, 4.3)], "{background}, {loud}");
    }
}

#[test]
fn short_pauses_are_bridged_and_clicks_are_not_speech() {
    let voice = VoiceActivity::default();
    assert_eq!(
        seconds(&voice.spans(&Energies::of(&bursts(4, 0.001, 0.1, &[1.0..1.4, 1.6..2.0])))),
        [(0.9, 2.3)]
    );
    assert_eq!(seconds(&voice.spans(&Energies::of(&bursts(4, 0.001, 0.1, &[1.0..1.03])))), []);
    let eager = VoiceActivity { shortest: 1, hangover: 0, lead: 0, ..voice };
    assert_eq!(seconds(&eager.spans(&Energies::of(&bursts(4, 0.001, 0.1, &[1.0..1.03])))), [(1.0, 1.03)]);
}

#[test]
fn silence_and_steady_noise_are_not_speech() {
    let voice = VoiceActivity::default();
    for amplitude in [0.0, 1e-6, 0.01, 0.5] {
        assert_eq!(
            voice.spans(&Energies::of(&noise(&mut Rng::new(1), 10 * SECOND, amplitude))),
            [],
            "{amplitude}"
        );
    }
    assert_eq!(voice.spans(&Energies::default()), []);
    // A fan that is switched on is learned within seconds.
    let spans = seconds(&voice.spans(&Energies::of(&bursts(30, 0.001, 0.01, &[2.0..30.0]))));
    assert!(spans.len() == 1 && (1.8..2.0).contains(&spans[0].0) && spans[0].1 < 10.0, "{spans:?}");
}

#[test]
fn speech_is_found_where_it_is() {
    let speech = Audio::open(path("golden/held-1.wav"), &Limits::default()).unwrap().into_samples();
    let mut samples = noise(&mut Rng::new(5), 2 * SECOND, 1e-4);
    samples.extend(&speech);
    samples.extend(noise(&mut Rng::new(6), 2 * SECOND, 1e-4));
    let spans = seconds(&VoiceActivity::default().spans(&Energies::of(&samples)));
    // The sentence begins 0.3 s into its file, which ends in the middle of it at 1.5 s.
    assert!(
        spans.len() == 1 && (1.9..2.4).contains(&spans[0].0) && (3.5..3.9).contains(&spans[0].1),
        "{spans:?}"
    );
}

#[test]
fn windows_hold_all_speech_and_cut_at_silence() {
    let samples = vec![0.1; 100 * SECOND];
    let span = |start: usize, end: usize| start * SECOND..end * SECOND;
    let cases = [
        (vec![], vec![]),
        (
            vec![span(0, 10), span(12, 20), span(25, 31), span(60, 70)],
            vec![span(0, 20), span(25, 31), span(60, 70)],
        ),
        (vec![span(0, 30), span(31, 61)], vec![span(0, 30), span(31, 61)]),
        (vec![span(99, 200)], vec![span(99, 100)]),
    ];
    for (speech, expected) in cases {
        assert_eq!(batch_windows(&Energies::of(&samples), &speech), expected, "{speech:?}");
    }
    // Nobody pauses for 70 s but for a moment at 27 s.
    let mut samples = samples;
    samples[27 * SECOND..27 * SECOND + 3200].fill(0.0);
    let windows = batch_windows(&Energies::of(&samples), &[span(0, 70)]);
    assert!((27 * SECOND..27 * SECOND + 3200).contains(&windows[0].end), "{windows:?}");
    assert_eq!((windows[0].start, windows.last().unwrap().end), (0, 70 * SECOND));
}

#[test]
fn clips_hold_all_speech_that_fits_into_a_window() {
    let span = |start: usize, end: usize| start * SECOND..end * SECOND;
    let cases = [
        (vec![], vec![]),
        (
            vec![span(1, 10), span(12, 20), span(25, 31), span(32, 70), span(71, 75)],
            vec![span(1, 31), span(32, 70), span(71, 75)],
        ),
        (vec![span(0, 40), span(40, 45)], vec![span(0, 45)]),
    ];
    for (speech, expected) in cases {
        assert_eq!(speech_clips(&speech), expected, "{speech:?}");
    }
}

#[test]
fn windows_of_random_speech_are_in_order() {
    let mut rng = Rng::new(11);
    let samples = noise(&mut rng, 400 * SECOND, 0.1);
    for _ in 0..200 {
        let mut speech = Vec::new();
        let mut at = 0;
        while at < samples.len() {
            let start = at + rng.below(20 * SECOND);
            let longest = *rng.choose(&[8, 8, 8, 90]) * SECOND;
            let end = start + 1 + rng.below(longest);
            speech.push(start..end);
            at = end + rng.below(3 * SECOND);
        }
        let windows = batch_windows(&Energies::of(&samples), &speech);
        let mut end = 0;
        for window in &windows {
            assert!(
                window.start >= end && !window.is_empty() && window.len() <= WINDOW_SAMPLES,
                "{window:?} behind {end}"
            );
            end = window.end;
        }
        for span in speech.iter().filter(|span| span.start < samples.len()) {
            let last = span.end.min(samples.len()) - 1;
            for sample in [span.start, usize::midpoint(span.start, last), last] {
                assert!(windows.iter().any(|window| window.contains(&sample)), "sample {sample} of {span:?}");
            }
        }
    }
}

#[test]
fn windows_in_order_reach_the_end() {
    assert_eq!(seek_window(0, 0), None);
    assert_eq!(seek_window(100, 40), Some(40..100));
    assert_eq!(seek_window(SECOND * 70, SECOND * 10), Some(SECOND * 10..SECOND * 40));
    assert_eq!(seek_window(100, usize::MAX), None);
}
