//! The frequencies of rotary position embedding, and every published way to stretch them.
//!
//! Computed in f32 with the formulas of transformers (`modeling_rope_utils`), whose values are the oracle. llama.cpp
//! multiplies powers up from pair to pair and so differs in the last bits; if it differs in more than that, the
//! place says so.

use std::f32::consts::PI;
use std::sync::Arc;

use brasa_graph::op::RopeLayout;

/// Rotary position embedding. Su et al. 2021, arXiv:2104.09864.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    /// The pairs that a head's elements form: a fact of family *and* container, since GGUF permutes Llama's rows.
    pub layout: RopeLayout,
    /// Leading elements of a head that are rotated.
    pub rotary_dim: usize,
    /// Base of the frequencies: pair *i* has `theta^(−2i / rotary_dim)`.
    pub theta: f32,
    /// Divides each pair's frequency: LongRoPE's factors, or those that a GGUF file keeps in `rope_freqs`.
    pub divisors: Option<Arc<[f32]>>,
    /// The way in which frequencies are stretched for long contexts.
    pub scaling: RopeScaling,
    /// Multiplies cosine and sine; 1 for most models.
    pub magnitude: f32,
}

/// The way in which frequencies are stretched for long contexts.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum RopeScaling {
    /// Frequencies are kept.
    None,
    /// Every frequency is divided by `factor`. Chen et al. 2023, arXiv:2306.15595.
    Linear {
        /// The factor by which the context is longer.
        factor: f32,
    },
    /// Divides the frequencies of long wavelengths by `factor`, keeps those of short wavelengths, and interpolates between (Llama
    /// 3.1).
    Llama3 {
        /// The factor by which the context is longer.
        factor: f32,
        /// Wavelengths beyond `original / low_freq_factor` are stretched.
        low_freq_factor: f32,
        /// Wavelengths below `original / high_freq_factor` are kept.
        high_freq_factor: f32,
        /// Context length before stretching.
        original: f32,
    },
    /// Slow pairs are divided by `factor`, fast ones kept, along a linear ramp over the pairs (YaRN). Peng et al. 2023,
    /// arXiv:2309.00071.
    Yarn {
        /// The factor by which the context is longer.
        factor: f32,
        /// Rotations over the original context above which a pair is kept.
        beta_fast: f32,
        /// Rotations over the original context below which a pair is stretched.
        beta_slow: f32,
        /// Context length before stretching.
        original: f32,
        /// True if the ramp's ends are rounded outwards to whole pairs.
        truncate: bool,
    },
    /// Rotates the first `rotated` pairs, with exponents over the whole head; the rest stay as they are (Gemma 4).
    Proportional {
        /// Number of pairs that are rotated.
        rotated: usize,
        /// The factor by which the context is longer.
        factor: f32,
    },
}

impl RopeSpec {
    /// The angle per position of each pair, `[rotary_dim / 2]`.
    pub fn frequencies(&self) -> Vec<f32> {
        let dim = self.rotary_dim as f32;
        let base: Vec<f32> = (0..self.rotary_dim / 2)
            .map(|pair| {
                let power = self.theta.powf((2 * pair) as f32 / dim);
                let divisor = self.divisors.as_ref().map_or(1.0, |divisors| divisors[pair]);
                1.0 / (divisor * power)
            })
            .collect();
        match self.scaling {
            RopeScaling::None => base,
            RopeScaling::Linear { factor } => base.iter().map(|f| f / factor).collect(),
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original } => base
                .iter()
                .map(|&f| {
                    let wavelength = 2.0 * PI / f;
                    if wavelength < original / high_freq_factor {
                        f
                    } else if wavelength > original / low_freq_factor {
                        f / factor
                    } else {
                        let smooth =
                            (original / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor);
                        (1.0 - smooth) * f / factor + smooth * f
                    }
                })
                .collect(),
            RopeScaling::Yarn { factor, beta_fast, beta_slow, original, truncate } => {
                let ramp = self.yarn_ramp(beta_fast, beta_slow, original, truncate);
                base.iter().zip(ramp).map(|(&f, slow)| f / factor * slow + f * (1.0 - slow)).collect()
            }
            RopeScaling::Proportional { rotated, factor } => base
                .iter()
                .enumerate()
                .map(|(pair, f)| if pair < rotated { f / factor } else { 0.0 })
                .collect(),
        }
    }

    /// The divisor of each pair's frequency under [`RopeScaling::Llama3`], computed like `rope_freqs` in llama.cpp's
    /// converter. The steps are not those of [`frequencies`](Self::frequencies), so the last bits may differ.
    pub(crate) fn llama3_divisors(&self) -> Vec<f32> {
        let RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original } = self.scaling else {
            return Vec::new();
        };
        let divisor = |pair: usize| {
            let frequency = 1.0 / self.theta.powf((2 * pair) as f32 / self.rotary_dim as f32);
            let wavelength = 2.0 * PI / frequency;
            if wavelength < original / high_freq_factor {
                1.0
            } else if wavelength > original / low_freq_factor {
                factor
            } else {
                let smooth = (original / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor);
                1.0 / ((1.0 - smooth) / factor + smooth)
            }
        };
        (0..self.rotary_dim / 2).map(divisor).collect()
    }

    /// The share of the stretched frequency in each pair: 0 for fast pairs, 1 for slow ones.
    fn yarn_ramp(&self, beta_fast: f32, beta_slow: f32, original: f32, truncate: bool) -> Vec<f32> {
        let dim = self.rotary_dim as f64;
        let pair_of = |rotations: f32| {
            dim * (f64::from(original) / (f64::from(rotations) * std::f64::consts::TAU)).ln()
                / (2.0 * f64::from(self.theta).ln())
        };
        let (mut low, mut high) = (pair_of(beta_fast), pair_of(beta_slow));
        if truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        let (low, mut high) = (low.max(0.0) as f32, high.min(dim - 1.0) as f32);
        if high - low == 0.0 {
            high += 0.001;
        }
        (0..self.rotary_dim / 2).map(|pair| ((pair as f32 - low) / (high - low)).clamp(0.0, 1.0)).collect()
    }
}

/// YaRN's attention factor: `0.1 · mscale · ln(factor) + 1`.
pub(crate) fn yarn_magnitude(factor: f32, mscale: f32) -> f32 {
    if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 }
}

/// LongRoPE's attention factor: `√(1 + ln(factor) / ln(original))`. Ding et al. 2024, arXiv:2402.13753.
pub(crate) fn longrope_magnitude(factor: f32, original: f32) -> f32 {
    if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / original.ln()).sqrt() }
}
