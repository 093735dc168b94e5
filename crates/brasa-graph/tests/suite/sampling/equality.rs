//! Draws equal those of the definitions.

use brasa_graph::sampling::{
    Distribution, Logprobs, Row, SamplingError, SamplingOrder, SamplingParams, exp_nonpositive, ln_positive,
    tree_sum,
};
use brasa_graph::testing::Random;

use super::by_definition;
use super::definition::{adjusted, brute_force};
use super::draw;
use super::inputs::{more_rules, odd_logits, random_order, random_params};

#[test]
fn every_preset_draws_as_defined() {
    for (number, (name, order)) in (0..).zip(SamplingOrder::NAMED) {
        let mut random = Random::new(number);
        let (mut checked, mut few) = (0, 0);
        for trial in 0..1500 {
            let vocab = [3, 50, 700][trial % 3];
            let params = random_params(&mut random, order, vocab);
            let spread = [0.5, 3.0, 12.0][random.below(3)];
            // Coarse logits now and then, for ties.
            let coarse = random.below(4) == 0;
            let logit = |z: f32| if coarse { z.round() } else { z };
            let logits: Vec<f32> = (0..vocab).map(|_| logit(random.normal() * spread)).collect();
            let history: Vec<u32> = (0..random.below(30)).map(|_| random.below(vocab) as u32).collect();
            let mask: Vec<u32> = (0..vocab.div_ceil(32)).map(|_| random.bits() as u32 | 1 << 1).collect();
            let mask = (random.below(4) == 0).then_some(&mask[..]);
            let row = Row { logits: &logits, position: random.below(5000) as u32, history: &history, mask };
            let Ok(draw) = draw(&params, &row) else {
                assert!(adjusted(&params, &row).iter().all(|z| z.is_infinite()));
                continue;
            };
            if let Some((token, ids)) = brute_force(&params, &row) {
                assert_eq!(draw.token, token, "{params:?}, trial {trial}");
                checked += 1;
                few += usize::from(ids.len() > 1 && ids.len() < vocab);
            }
        }
        assert!(checked > 1200 && few > 300, "{name}: {checked} checked, {few} with some tokens filtered");
    }
}

#[test]
fn every_bit_is_as_defined() {
    let named = SamplingOrder::NAMED.map(|(_, order)| Some(order));
    for (number, order) in (0..).zip(named.into_iter().chain([None, None, None])) {
        let mut random = Random::new(100 + number);
        let (mut drawn, mut none, mut cut) = (0, 0, 0);
        for trial in 0..1200 {
            let vocab = [1, 3, 50, 256, 700][trial % 5];
            let order = order.unwrap_or_else(|| random_order(&mut random));
            let mut params = random_params(&mut random, order, vocab);
            let pick = |random: &mut Random, of: &[f32]| of[random.below(of.len())];
            params.top_p = pick(&mut random, &[1.0, 0.999_999_94, 0.95, 0.5, 0.01, 1e-45]);
            params.min_p = pick(&mut random, &[0.0, 0.0, 0.05, 1.0, 1e-45]);
            params.temperature = pick(&mut random, &[0.0, 0.7, 1.0, 1.0, 3.0, 1e-3, 1e-45, 3e38]);
            if trial % 4 > 0 {
                more_rules(&mut random, &mut params, vocab);
            }
            params.logprobs = Some(Logprobs { top: 1000, of: Distribution::Final });
            let logits = odd_logits(&mut random, vocab);
            let mask: Vec<u32> = (0..vocab.div_ceil(32)).map(|_| random.bits() as u32).collect();
            let mask = (random.below(4) == 0).then_some(&mask[..]);
            let ids = [vocab, vocab.min(3)][random.below(2)];
            let history: Vec<u32> = (0..random.below(30)).map(|_| random.below(ids) as u32).collect();
            let row = Row { logits: &logits, position: random.below(5000) as u32, history: &history, mask };
            let label = format!("{params:?}, trial {trial}");
            let Some(expected) = by_definition::draw(&params, &row) else {
                assert!(matches!(draw(&params, &row), Err(SamplingError::NoToken { .. })), "{label}");
                none += 1;
                continue;
            };
            let found = draw(&params, &row).unwrap_or_else(|error| panic!("{label}: {error}"));
            let listed: Vec<usize> = found.top.iter().map(|&(id, _)| id as usize).collect();
            assert_eq!((found.token, listed), (expected.token, expected.survivors.clone()), "{label}");
            assert_eq!(found.logprob.unwrap().to_bits(), expected.logprob.to_bits(), "{label}");
            drawn += 1;
            cut += usize::from(expected.survivors.len() > 1 && expected.survivors.len() < vocab);
        }
        assert!(drawn > 500 && none > 50 && cut > 80, "{order:?}: {drawn} drawn, {none} not, {cut} filtered");
    }
}

#[test]
fn the_parts_of_the_definition_are_public() {
    let mut random = Random::new(8);
    for len in [1, 256, 257, 70_000] {
        let values: Vec<f32> = (0..len).map(|_| random.uniform()).collect();
        assert_eq!(tree_sum(&values).to_bits(), by_definition::tree_sum(&values).to_bits());
        let x = values.iter().map(|x| -100.0 * x);
        assert!(x.into_iter().all(|x| exp_nonpositive(x).to_bits() == by_definition::exp(x).to_bits()));
        let x = values.iter().flat_map(|x| [1e-6 + x, 1.0 + 1000.0 * x]);
        assert!(x.into_iter().all(|x| ln_positive(x).to_bits() == by_definition::ln(x).to_bits()));
    }
}

/// The likeliest token of many logits, where nothing changes them: the lowest id of the largest.
#[test]
fn greedy_tokens_are_the_lowest_ids_of_the_largest_logits() {
    let mut random = Random::new(77);
    let mut none = 0;
    for trial in 0..300 {
        let vocab = [1, 1023, 1024, 1025, 5000][trial % 5];
        let logits = odd_logits(&mut random, vocab);
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let expected = logits.iter().position(|&z| z >= max && z.is_finite());
        let found = draw(&SamplingParams::default(), &Row::new(&logits, 9, &[]));
        match (found, expected) {
            (Ok(draw), Some(id)) => assert_eq!(draw.token, id as u32, "trial {trial}"),
            (Err(SamplingError::NoToken { .. }), None) => none += 1,
            (found, expected) => panic!("trial {trial}: {found:?}, not {expected:?}"),
        }
    }
    assert!((1..200).contains(&none), "{none} without a token");
}
