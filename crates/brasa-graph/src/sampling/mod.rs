//! How a token is drawn from logits: one definition for every device.
//!
//! For each row, in this order:
//!
//! 1. **Penalties**, on the tokens of the history's window, each distinct token once: `z > 0 ? z/r : z·r` for the
//!    repeat penalty *r* (Keskar et al. 2019, arXiv:1909.05858), then `z − count·frequency − presence`.
//! 2. **Bias**, added; suppressed ids and, before the minimum length, end ids become −∞.
//! 3. **Mask** of a grammar: what it forbids becomes −∞.
//! 4. **Filters** and temperature, in the order of the preset ([`SamplingOrder`]).
//! 5. **Draw**: the largest `(z − max z)/T + g` among the survivors, ties to the lowest id, where `g` is Gumbel noise
//!    that depends on nothing but seed, position and token id ([`gumbel`]). That is a draw from `softmax(z/T)`
//!    (Gumbel 1954; Maddison, Tarlow & Minka 2014, arXiv:1411.0030). At temperature 0 it is the argmax.
//!
//! Because the noise is a pure function, one seed gives one text on every device and in every batch, up to rounding,
//! and speculation may compare a draft with the draw: accepted exactly when equal.
//!
//! Every filter keeps the likeliest tokens, in order of logit, then of id; so the survivors always are the first *n*:
//!
//! - **top-k** keeps *k*;
//! - **top-p** keeps the fewest whose probabilities reach *p*: the token that crosses *p* stays (Holtzman et al. 2019,
//!   arXiv:1904.09751);
//! - **min-p** keeps those at least `min_p` times as likely as the likeliest (Nguyen et al. 2024, arXiv:2407.01082).
//!
//! ```
//! use brasa_graph::sampling::{DrawRules, Row, Sampler, SamplingParams};
//!
//! let rules = DrawRules::new(SamplingParams { temperature: 0.8, top_k: 2, seed: 7, ..Default::default() })?;
//! let draw = Sampler::default().draw(&rules, &Row::new(&[0.1, 2.0, -1.0, 1.5], 12, &[]))?;
//! assert!(draw.token == 1 || draw.token == 3);
//! # Ok::<(), brasa_graph::sampling::SamplingError>(())
//! ```

mod candidates;
mod exp;
mod mask;
mod params;
mod philox;
mod rules;
mod sampler;

pub use mask::TokenMask;
pub use params::{Distribution, Logprobs, SamplingError, SamplingOrder, SamplingParams, Stage};
pub use philox::{gumbel, philox4x32};
pub use rules::DrawRules;
pub use sampler::{Draw, Row, Sampler};
