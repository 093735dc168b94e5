//! Random parameters, orders and logits.

use brasa_graph::sampling::{DryBreakers, SamplingOrder, SamplingParams, Stage};
use brasa_graph::testing::Random;

pub fn random_params(random: &mut Random, order: SamplingOrder, vocab: usize) -> SamplingParams {
    let mut maybe = |value: f32, off: f32| if random.below(2) == 0 { value } else { off };
    let (top_p, min_p) = (maybe(0.85, 1.0), maybe(0.05, 0.0));
    let (repeat, frequency, presence) = (maybe(1.3, 1.0), maybe(0.4, 0.0), maybe(0.7, 0.0));
    SamplingParams {
        temperature: [0.0, 0.3, 1.0, 1.7][random.below(4)],
        top_k: [0, 1, 7, 40, vocab + 5][random.below(5)],
        top_p,
        min_p,
        repeat_penalty: repeat,
        frequency_penalty: frequency,
        presence_penalty: presence,
        repeat_last_n: [None, Some(0), Some(10)][random.below(3)],
        logit_bias: (0..random.below(4))
            .map(|_| (random.below(vocab) as u32, random.normal() * 3.0))
            .collect(),
        suppressed: (0..random.below(3)).map(|_| random.below(vocab) as u32).collect(),
        seed: random.bits(),
        order,
        ..SamplingParams::default()
    }
}

/// Sets the rules besides penalties, top-k, top-p, min-p and temperature.
pub fn more_rules(random: &mut Random, params: &mut SamplingParams, vocab: usize) {
    let mut pick = |of: &[f32]| of[random.below(of.len())];
    params.typical_p = pick(&[1.0, 1.0, 0.9, 0.5, 0.01, 0.0]);
    params.top_n_sigma = pick(&[0.0, 0.0, 0.3, 1.0, 2.5]);
    params.xtc_probability = pick(&[0.0, 0.5, 1.0]);
    params.xtc_threshold = pick(&[0.0, 0.01, 0.1, 0.5, 0.6]);
    params.dynatemp_range = pick(&[0.0, 0.0, 0.5, 4.0]);
    params.dynatemp_exponent = pick(&[0.0, 1.0, 1.0, 2.5]);
    params.dry.multiplier = pick(&[0.0, 0.0, 0.8, 3.0]);
    params.dry.base = pick(&[0.9, 1.0, 1.75]);
    params.dry.allowed_length = random.below(4);
    params.dry.last_n = [None, Some(0), Some(12)][random.below(3)];
    let breakers: Vec<Vec<u32>> = (0..random.below(3))
        .map(|_| (0..=random.below(2)).map(|_| random.below(vocab) as u32).collect())
        .collect();
    params.dry.breakers = DryBreakers::new(breakers.iter().map(Vec::as_slice));
}

/// Logits with ties, and now and then NaN and infinities of both signs.
pub fn odd_logits(random: &mut Random, vocab: usize) -> Vec<f32> {
    let spread = [0.01, 0.5, 3.0, 12.0, 1e30][random.below(5)];
    let (coarse, odd) = (random.below(4) == 0, random.below(3) == 0);
    let mut logit = || {
        let z = random.normal() * spread;
        match random.below(if odd { 8 } else { 1 }) {
            1 => f32::NAN,
            2 | 3 => f32::NEG_INFINITY,
            4 => -0.0,
            5 if random.below(200) == 0 => f32::INFINITY,
            _ if coarse => z.round(),
            _ => z,
        }
    };
    (0..vocab).map(|_| logit()).collect()
}

/// Some of the stages in any order.
pub fn random_order(random: &mut Random) -> SamplingOrder {
    let mut stages: Vec<Stage> = Stage::ALL.into_iter().filter(|_| random.below(4) > 0).collect();
    if stages.contains(&Stage::TopP) {
        stages.retain(|&stage| stage != Stage::TopPOfAll);
    }
    for i in (1..stages.len()).rev() {
        stages.swap(i, random.below(i + 1));
    }
    SamplingOrder::new(&stages).unwrap()
}
