//! Draws against the distribution that they come from, and their seeds.

use brasa_graph::sampling::{Row, SamplingParams};
use brasa_graph::testing::Random;

use super::definition::{softmax, survivors};
use super::draw;

/// Pearson's χ² of draws at 40,000 positions, against the 99.99 % quantile of its distribution.
fn chi_square(params: &SamplingParams, logits: &[f32], expected: &[f64]) {
    const DRAWS: u32 = 40_000;
    let mut counts = vec![0_u32; logits.len()];
    for position in 0..DRAWS {
        counts[draw(params, &Row::new(logits, position, &[])).unwrap().token as usize] += 1;
    }
    let mut statistic = 0.0;
    for (&count, p) in counts.iter().zip(expected) {
        let mean = p * f64::from(DRAWS);
        if mean == 0.0 {
            assert_eq!(count, 0);
        } else {
            statistic += (f64::from(count) - mean).powi(2) / mean;
        }
    }
    // Wilson & Hilferty 1931.
    let degrees = expected.iter().filter(|&&p| p > 0.0).count() as f64 - 1.0;
    let bound = degrees * (1.0 - 2.0 / (9.0 * degrees) + 3.72 * (2.0 / (9.0 * degrees)).sqrt()).powi(3);
    assert!(statistic < bound, "χ² {statistic:.1}, expected below {bound:.1} for {degrees} degrees");
}

#[test]
fn draws_follow_the_softmax() {
    let logits: Vec<f32> = (0..40).map(|i| (i as f32 * 0.7).sin() * 2.0).collect();
    let z: Vec<f64> = logits.iter().copied().map(f64::from).collect();
    for (seed, temperature) in [(0, 1.0), (1, 0.5), (u64::MAX, 2.0)] {
        let params = SamplingParams { temperature, seed, ..SamplingParams::default() };
        chi_square(&params, &logits, &softmax(&z, f64::from(temperature)));
    }
    let params = SamplingParams { temperature: 0.8, top_k: 10, seed: 3, ..SamplingParams::default() };
    let ids = survivors(&params, &z).unwrap();
    let mut kept = vec![f64::NEG_INFINITY; z.len()];
    for id in ids {
        kept[id] = z[id];
    }
    chi_square(&params, &logits, &softmax(&kept, f64::from(0.8_f32)));
}

#[test]
fn a_seed_names_the_draws() {
    let mut random = Random::new(4);
    let logits = random.normals(1000, 2.0);
    let draws = |seed| -> Vec<u32> {
        let params = SamplingParams { temperature: 1.0, seed, ..SamplingParams::default() };
        (0..50).map(|position| draw(&params, &Row::new(&logits, position, &[])).unwrap().token).collect()
    };
    assert_eq!(draws(5), draws(5));
    assert_ne!(draws(5), draws(6));
    // Neighbouring seeds and positions share nothing.
    let (a, b) = (draws(5), draws(6));
    assert!(a[1..].iter().zip(&b).filter(|(a, b)| a == b).count() < 10);
}
