//! Sampling against its definition by brute force, and draws against the distribution that they come from.

mod by_definition;
mod definition;
mod distribution;
mod equality;
mod inputs;
mod logprobs;
mod rules;

use brasa_graph::sampling::{Draw, DrawRules, Row, Sampler, SamplingError, SamplingParams};

fn draw(params: &SamplingParams, row: &Row) -> Result<Draw, SamplingError> {
    Sampler::default().draw(&DrawRules::new(params.clone()).unwrap(), row)
}
