//! Resampling against signals that are known at both rates.

use std::f64::consts::TAU;

use brasa_audio::{AudioError, resample};

use crate::common::{distance, sweep};

fn tone(hz: f64, rate: u32, count: usize) -> Vec<f32> {
    (0..count).map(|n| (0.5 * (TAU * hz * n as f64 / f64::from(rate)).sin()) as f32).collect()
}

fn level(samples: &[f32]) -> f64 {
    (samples.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>() / samples.len() as f64).sqrt()
}

#[test]
fn a_sweep_stays_in_its_place() {
    // Rates that have a grid in common with 16 kHz, and two that hardly have.
    for rate in [8000, 11_025, 16_000, 22_050, 32_000, 44_100, 48_000, 96_000, 192_000, 44_099, 768_000] {
        let found = resample(&sweep(rate), rate).unwrap();
        assert_eq!(found.len(), 16_000, "{rate} Hz");
        let distance = distance(&found, &sweep(16_000));
        assert!(distance < 1e-3, "{rate} Hz: {distance}");
    }
}

#[test]
fn what_16_khz_cannot_hold_is_gone() {
    for (rate, hz) in [(44_100, 9_000.0), (48_000, 12_000.0), (48_000, 20_000.0), (96_000, 40_000.0)] {
        let found = resample(&tone(hz, rate, rate as usize), rate).unwrap();
        // Away from the edges, where the tone is cut on and off.
        let left = level(&found[400..15_600]);
        assert!(left < 1e-4, "{hz} Hz at {rate} Hz leaves {left}");
    }
    for rate in [44_100, 48_000] {
        let kept =
            level(&resample(&tone(7000.0, rate, rate as usize), rate).unwrap()[400..15_600]) * 2.0_f64.sqrt();
        assert!((kept - 0.5).abs() < 0.01, "7 kHz at {rate} Hz: amplitude {kept}");
    }
}

#[test]
fn lengths_are_right_to_the_sample() {
    for rate in [1000, 8000, 22_050, 44_100, 48_000, 96_001] {
        for count in [0, 1, 2, 441, 1023, 1024, 1025, 50_000] {
            let expected = ((count as u64 * 16_000 + u64::from(rate) / 2) / u64::from(rate)) as usize;
            assert_eq!(
                resample(&vec![0.1; count], rate).unwrap().len(),
                expected,
                "{count} samples at {rate} Hz"
            );
        }
    }
}

#[test]
fn implausible_rates_are_refused() {
    for rate in [0, 999, 768_001, 1_000_000_000] {
        assert!(
            matches!(resample(&[0.0], rate), Err(AudioError::SampleRate { rate_hz, .. }) if rate_hz == rate)
        );
    }
    let error = resample(&[0.0, 0.0, f32::NAN], 8000).unwrap_err().to_string();
    assert_eq!(error, "sample 2 is NaN, expected a number within ±1000000000");
}
