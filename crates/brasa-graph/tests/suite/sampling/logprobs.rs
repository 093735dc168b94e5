//! Reports of a draw: log-probabilities, the most probable tokens, and entropy.

use brasa_graph::sampling::{Distribution, Logprobs, Row, SamplingOrder, SamplingParams};
use brasa_graph::testing::Random;

use super::definition::{adjusted, softmax, survivors};
use super::draw;
use super::inputs::random_params;

/// A sum of many equal shares stands still in f32 if it is made one by one; in a tree it does not.
#[test]
fn flat_distributions_keep_their_share_of_tokens() {
    let logits = vec![0.25; 150_000];
    for (top_p, expected) in [(0.5, 75_000), (0.95, 142_500), (0.001, 150)] {
        let params = SamplingParams {
            temperature: 1.0,
            top_p,
            logprobs: Some(Logprobs { top: usize::MAX, of: Distribution::Final }),
            ..SamplingParams::default()
        };
        let draw = draw(&params, &Row::new(&logits, 3, &[])).unwrap();
        assert!(draw.top.len().abs_diff(expected) <= 1, "{top_p}: {}", draw.top.len());
        assert!((draw.logprob.unwrap() + (expected as f32).ln()).abs() < 1e-4);
    }
}

#[test]
fn forbidden_infinities_leave_the_others_no_probability() {
    let params = SamplingParams {
        suppressed: vec![1, 3],
        logprobs: Some(Logprobs { top: 3, of: Distribution::Raw }),
        ..SamplingParams::default()
    };
    let draw = draw(&params, &Row::new(&[1.0, f32::INFINITY, 2.0, f32::INFINITY], 0, &[])).unwrap();
    assert_eq!((draw.token, draw.logprob), (2, Some(f32::NEG_INFINITY)));
    let half = 0.5_f32.ln();
    assert_eq!(draw.top, [(1, half), (3, half), (2, f32::NEG_INFINITY)]);
}

#[test]
fn final_logprobs_are_those_of_the_survivors() {
    for (number, (_, order)) in (0..).zip(SamplingOrder::NAMED) {
        let mut random = Random::new(77 + number);
        for _ in 0..300 {
            let mut params = random_params(&mut random, order, 60);
            params.logprobs = Some(Logprobs { top: 5, of: Distribution::Final });
            params.temperature = params.temperature.max(0.3);
            let logits = random.normals(60, 3.0);
            let row = Row { logits: &logits, position: 9, history: &[1, 2, 3, 2], mask: None };
            let z = adjusted(&params, &row);
            let Some(ids) = survivors(&params, &z) else { continue };
            let kept: Vec<f64> = ids.iter().map(|&id| z[id]).collect();
            let p = softmax(&kept, f64::from(params.temperature));
            let draw = draw(&params, &row).unwrap();
            let rank = ids.iter().position(|&id| id as u32 == draw.token).unwrap();
            assert!((f64::from(draw.logprob.unwrap()) - p[rank].ln()).abs() < 1e-4);
            assert_eq!(draw.top.len(), ids.len().min(5));
            for (i, &(id, logprob)) in draw.top.iter().enumerate() {
                assert_eq!(id as usize, ids[i]);
                assert!((f64::from(logprob) - p[i].ln()).abs() < 1e-4);
            }
        }
    }
}

#[test]
fn raw_logprobs_are_those_of_the_model() {
    let logits = [1.0, 3.0, 2.0, 3.0];
    let params = SamplingParams {
        logit_bias: vec![(1, -100.0)],
        suppressed: vec![3],
        logprobs: Some(Logprobs { top: 3, of: Distribution::Raw }),
        ..SamplingParams::default()
    };
    let draw = draw(&params, &Row::new(&logits, 0, &[])).unwrap();
    let p = softmax(&logits.map(f64::from), 1.0);
    assert_eq!(draw.token, 2);
    assert!((f64::from(draw.logprob.unwrap()) - p[2].ln()).abs() < 1e-6);
    assert_eq!(draw.top.iter().map(|&(id, _)| id).collect::<Vec<_>>(), [1, 3, 2]);
    assert!((f64::from(draw.top[0].1) - p[1].ln()).abs() < 1e-6);
}

#[test]
fn entropy_is_that_of_the_model() {
    let reported = |logits: &[f32], temperature: f32| {
        let params = SamplingParams {
            entropy: true,
            temperature,
            top_k: 2,
            suppressed: vec![3],
            ..SamplingParams::default()
        };
        draw(&params, &Row::new(logits, 0, &[])).unwrap().entropy.unwrap()
    };
    let logits = [1.0, 3.0, f32::NEG_INFINITY, 3.5, -200.0];
    let p = softmax(&logits.map(f64::from), 1.0);
    let expected: f64 = p.iter().filter(|&&p| p > 0.0).map(|p| -p * p.ln()).sum();
    for temperature in [0.0, 0.7] {
        let found = f64::from(reported(&logits, temperature));
        assert!((found - expected).abs() < 1e-6, "{found}, {expected}");
    }
    assert_eq!(reported(&[5.0, f32::NEG_INFINITY], 0.0).to_bits(), 0.0_f32.to_bits());
    assert!((reported(&[2.0; 1000], 0.0) - 1000.0_f32.ln()).abs() < 1e-4);
    assert!(draw(&SamplingParams::default(), &Row::new(&logits, 0, &[])).unwrap().entropy.is_none());
}
