//! Rules of the draw: their order, their ends, and the parameters that are refused.

use brasa_graph::sampling::{
    Distribution, Draw, DrawRules, Logprobs, Row, Sampler, SamplingError, SamplingOrder, SamplingParams,
    Stage,
};

use super::draw;

/// A temperature of 0 is the end where it stands, and a stage that the order leaves out does nothing.
#[test]
fn orders_are_followed() {
    use Stage::{MinP, Penalties, Temperature, TopK};
    let logits = [5.0, 4.5, 4.0, -2.0];
    let of = |stages: &[Stage], temperature: f32| {
        let params = SamplingParams {
            temperature,
            top_k: 2,
            min_p: 0.9,
            presence_penalty: 3.0,
            seed: 5,
            order: SamplingOrder::new(stages).unwrap(),
            logprobs: Some(Logprobs { top: 9, of: Distribution::Final }),
            ..SamplingParams::default()
        };
        let draw = draw(&params, &Row::new(&logits, 1, &[0])).unwrap();
        draw.top.into_iter().map(|(id, _)| id).collect::<Vec<_>>()
    };
    assert_eq!(of(&[Penalties, Temperature], 0.0), [1]);
    assert_eq!(of(&[Temperature, Penalties], 0.0), [0]);
    assert_eq!(of(&[], 0.0), [0, 1, 2, 3]);
    assert_eq!(of(&[TopK, Penalties], 1.0), [1, 0]);
    assert_eq!(of(&[Penalties, TopK], 1.0), [1, 2]);
    assert_eq!(of(&[TopK, Penalties, MinP], 1.0), [1]);
    assert_eq!(of(&[MinP, Penalties], 1.0), [0]);
    // Half a logit below the likeliest is likely enough at this temperature, which the penalty does not change.
    assert_eq!(of(&[Temperature, MinP, Penalties], 8.0), [1, 0]);
    assert_eq!(of(&[Temperature, Penalties, MinP, TopK], 8.0), [1, 2]);
}

#[test]
fn temperatures_near_zero_are_greedy_and_do_not_overflow() {
    let logits = [900.0, 1000.0, 999.0];
    for temperature in [0.0, 1e-30, 1e-3] {
        let params = SamplingParams { temperature, ..SamplingParams::default() };
        assert!(
            (0..100).all(|position| draw(&params, &Row::new(&logits, position, &[])).unwrap().token == 1)
        );
    }
}

#[test]
fn ends_wait_for_the_minimum_length() {
    let params = SamplingParams { min_tokens: 2, ..SamplingParams::default() };
    let rules = DrawRules::new(params).unwrap().with_ends(vec![0], 10);
    let mut sampler = Sampler::default();
    let mut token = |position| sampler.draw(&rules, &Row::new(&[5.0, 1.0], position, &[])).unwrap().token;
    let tokens: Vec<u32> = (10..14).map(&mut token).collect();
    assert_eq!(tokens, [1, 1, 0, 0]);
}

#[test]
fn nothing_left_is_an_error() {
    let params = SamplingParams { suppressed: vec![0], ..SamplingParams::default() };
    let of = |logits: &[f32]| draw(&params, &Row::new(logits, 0, &[]));
    assert_eq!(
        of(&[1.0, f32::NAN]).unwrap_err().to_string(),
        "no token can be drawn: of 2 logits 1 are not finite and the rest is forbidden"
    );
    let row = Row { mask: Some(&[]), ..Row::new(&[1.0, 2.0], 0, &[]) };
    assert!(matches!(draw(&params, &row), Err(SamplingError::NoToken { .. })));
    assert!(of(&[]).is_err());
    assert!(of(&[0.0, f32::INFINITY]).is_err());
    // Ids that do not exist are ignored here and refused by `validate_ids`.
    assert_eq!(
        draw(&params, &Row::new(&[1.0, 2.0, 3.0], 0, &[9, 2])).unwrap(),
        Draw { token: 2, ..Draw::default() }
    );
    let bias = SamplingParams { logit_bias: vec![(3, 1.0)], ..SamplingParams::default() };
    assert_eq!(
        bias.validate_ids(3).unwrap_err().to_string(),
        "logit bias of token 3: the vocabulary has 3 tokens"
    );
    assert!(bias.validate_ids(4).is_ok());
}

#[test]
fn parameters_outside_their_range_are_refused() {
    let greedy = SamplingParams::default();
    for (params, expected) in [
        (
            SamplingParams { temperature: -1.0, ..greedy.clone() },
            "temperature -1: expected 0 (greedy) or more",
        ),
        (
            SamplingParams { top_p: -0.1, ..greedy.clone() },
            "top-p -0.1: expected 0 (the likeliest token) to 1 (off)",
        ),
        (SamplingParams { min_p: 1.5, ..greedy.clone() }, "min-p 1.5: expected 0 (off) to 1"),
        (
            SamplingParams { repeat_penalty: f32::NAN, ..greedy.clone() },
            "repeat penalty NaN: expected more than 0; 1 is off",
        ),
        (
            SamplingParams { logit_bias: vec![(0, f32::INFINITY)], ..greedy.clone() },
            "logit bias inf: expected a number, or −inf to forbid",
        ),
    ] {
        assert_eq!(DrawRules::new(params).unwrap_err().to_string(), expected);
    }
}
