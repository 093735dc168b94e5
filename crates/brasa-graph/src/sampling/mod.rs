//! How a token is drawn from logits: one definition for every device.
//!
//! For each row, in this order:
//!
//! 1. **Penalties** and **DRY**, as far as they are the first stages of the order ([`SamplingOrder`]).
//! 2. **Bias**, added; suppressed ids and, before the minimum length, end ids become −∞.
//! 3. **Mask** of a grammar: logits of ids that it forbids become −∞.
//! 4. **Filters**, temperature, and penalties that are not among the first stages, in their order. A stage with a neutral parameter is
//!    skipped.
//! 5. **Draw**: the largest score `x + g` among the survivors, ties to the lowest id, where `g` is Gumbel noise that
//!    depends on nothing but seed, position and token id ([`gumbel`]). That is a draw from `softmax(z/T)`
//!    (Gumbel 1954; Maddison, Tarlow & Minka 2014, arXiv:1411.0030). A temperature of 0 keeps the lowest id of the largest logit alone,
//!    and no stage behind it runs.
//!
//! Because the noise is a pure function, one seed gives one text on every device and in every batch, up to rounding, and
//! speculation accepts a draft exactly if it equals the drawn token.
//!
//! # Numbers
//!
//! All arithmetic is in f32. Every operation is rounded by itself, so there is no fused multiply-add and nothing wider
//! than f32. Logits, shares and sums are the same bits on every device that follows this.
//!
//! - The **exponent** of a token is `x = (z − m)·t`, where `m` is the largest logit that is a number and `t` is `1/T`, at least
//!   `f32::MIN_POSITIVE` and at most `f32::MAX`. A token with `z = m` has `x = 0`. Stages that come before the temperature
//!   use `T = 1`, and so does the draw if the order has no temperature.
//! - The **share** of a token is `exp(x)` as [`exp_nonpositive`] computes it. Shares are 1 for the likeliest token and 0 for
//!   tokens of −∞ and for NaN.
//! - **Sums** of shares are tree sums by token id ([`tree_sum`]): each share lies at its own id's place, and tokens that do
//!   not count lie there as 0. Rounding is monotone, so a sum never falls when one more token counts.
//! - A **log-probability** is `x − ln(S)`, with `S` the sum of all shares that count. The logarithm is the device's own.
//!
//! # Penalties
//!
//! Penalties change the logits of tokens in the history's window, each distinct token once: `z > 0 ? z/r : z·r` for the
//! repeat penalty *r* (Keskar et al. 2019, arXiv:1909.05858), then `z − (count·frequency + presence)`.
//!
//! [`Dry`] subtracts a penalty from tokens that would continue a repetition.
//!
//! Penalties after other stages begin a new row. First, logits of tokens that the filters removed become −∞. If the temperature
//! came before the penalties, logits are multiplied by `t`, and `T = 1` from then on. A temperature for which `m·t` is not finite
//! keeps the likeliest token alone, unchanged. The penalties change the remaining logits, which then determine `m` and the order
//! of tokens.
//!
//! # Filters
//!
//! Tokens are in order of their logits, the largest first, and of their ids where logits are equal; −0 equals 0. Tokens of −∞ and
//! NaN are not in the order and never survive. Every filter keeps the first *n* of the tokens that earlier filters kept:
//!
//! - **top-k** keeps *k*; 0 keeps all.
//! - **top-p** keeps the smallest *n ≥ 1* for which the sum of the first *n* tokens' shares is at least `p·S` (Holtzman et al.
//!   2019, arXiv:1904.09751). `S` is the sum over the tokens that the filters before it kept, or over all tokens above −∞ with
//!   [`Stage::TopPOfAll`]. If no *n* reaches `p·S`, which only that stage allows, all of them stay. `p = 1` keeps all,
//!   shares of 0 included. As sums never fall, a device may find *n* by bisection, of ranks or of logits.
//! - **min-p** keeps tokens with `z ≥ m + T·ln(min_p)`: those at least `min_p` times as likely as the likeliest (Nguyen et
//!   al. 2024, arXiv:2407.01082). The host computes the bound. 0 keeps all, 1 keeps those that equal the largest.
//!
//! # Stages that need sums over all tokens that are left
//!
//! Each of these stages keeps a range of the tokens in their order, and then begins a new row as penalties do. The
//! stages do nothing if an earlier temperature kept the likeliest token alone because `m·t` is not finite. In the
//! formulas, *n* is the number of tokens that are left, `S` the sum of their shares, `W` the tree sum of `x·share` (0
//! for a share of 0), and `w = W/S` the mean exponent.
//!
//! - **top-n-sigma** removes tokens with `z < m − N·σ` (Tang et al. 2024, arXiv:2411.07641). `N = 0` keeps all.
//!   `σ = √(V/n)` is the standard deviation of the logits that are left: `V` is the tree sum of `(d − D/n)²`, `D` the
//!   tree sum of `d`, and `d = z − m`. The temperature has no effect on the stage.
//! - **typical-p** takes tokens in order of the distance `|x − w|`, until the sum of their shares is more than `p·S`,
//!   or until all are taken (Meister et al. 2022, arXiv:2202.00666). `|x − w|` is also the distance of a token's
//!   surprise from the mean surprise. At equal distances, tokens with `x ≥ w` come first; on either side of `w`, the
//!   token nearest to `w` in the order of tokens comes first. `p = 1` keeps all.
//! - **XTC** acts at a position if the position's random number is below the probability. The random number is 24 bits
//!   of Philox(seed, counter `[0, position, 1, 0]`), divided by 2²⁴. XTC then removes all tokens with shares of at
//!   least `threshold·S`, except the last of them ("exclude top choices", P. E. Weidmann 2024, text-generation-webui,
//!   pull request 6335). With a threshold above 0.5, XTC never acts.
//! - A **dynamic temperature** is `T = a + (b − a)·hᵉ`, with `a = max(T₀ − range, 0)`, `b = T₀ + range`, the exponent
//!   `e`, and the relative entropy `h = (ln(S) − w)/ln(n)`, from 0 to 1. `T = 1` if a single token is left. Logarithms
//!   are those of [`ln_positive`], and `hᵉ = exp(e·ln(h))`. `T₀ = 0` takes the likeliest token.
//!
//! If the largest logit is not finite after the mask, there is no token ([`SamplingError::NoToken`]): everything is forbidden or
//! NaN, or a logit is +∞. Log-probabilities of the model's own logits may meet a forbidden +∞: tokens of +∞ then have equal
//! shares and all others a log-probability of −∞.
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
mod closing;
mod dry;
mod exp;
mod largest;
mod mask;
mod order;
mod params;
mod philox;
mod rules;
mod sampler;
mod tree;

pub use dry::{Dry, DryBreakers};
pub use exp::{exp_nonpositive, ln_positive};
pub use mask::TokenMask;
pub use order::{NO_MIROSTAT, Phase, SamplingOrder, Stage};
pub use params::{Distribution, Logprobs, SamplingError, SamplingParams};
pub use philox::{gumbel, philox4x32};
pub use rules::DrawRules;
pub use sampler::{Draw, Row, Sampler};
pub use tree::tree_sum;
