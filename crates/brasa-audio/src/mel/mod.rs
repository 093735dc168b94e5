//! Whisper's log-mel features (Radford et al. 2022, arXiv:2212.04356, §2.2).
//!
//! Frames of 400 samples (25 ms at 16 kHz) every 160 samples (10 ms), each times Hann's periodic window → power of its DFT →
//! mel filters → `log10(max(x, 1e-10))` → at least the largest value − 8 → `(x + 4) / 4`. Frame `t` is centred on
//! sample `160 t`; the signal is reflected at its beginning.

mod fft;
mod filters;
mod logarithm;

use crate::audio::check_finite;
use crate::{Result, SAMPLE_RATE, WINDOW_SAMPLES};

use fft::{LANES, Lanes, Scratch, Spectrum};
pub use filters::MelFilters;
use logarithm::log10;

/// Samples of a frame, which is as many as its DFT has points.
const FRAME_LEN: usize = 400;
/// Bins of a frame's DFT: 0 to 8 kHz in steps of 40 Hz.
const DFT_BINS: usize = FRAME_LEN / 2 + 1;
/// Samples from one frame to the next.
const HOP: usize = 160;
/// Frames of a window of 30 s.
pub const WINDOW_FRAMES: usize = WINDOW_SAMPLES / HOP;
/// The power at which the logarithm is cut off.
const FLOOR: f32 = 1e-10;

/// Computes log-mel features.
///
/// Sums are f32 in a fixed order: equal samples give equal bits. A window of 30 s costs about 2 ms.
///
/// ```
/// use brasa_audio::{LogMel, MelFilters};
///
/// let log_mel = LogMel::new(MelFilters::slaney(80)?);
/// let features = log_mel.window(&[0.0; 16_000])?;
/// assert_eq!((features.frames(), features.bins()), (3000, 80));
/// # Ok::<(), brasa_audio::AudioError>(())
/// ```
#[derive(Clone, Debug)]
pub struct LogMel {
    filters: MelFilters,
    spectrum: Spectrum,
}

/// Log-mel features of a signal: shape `[frames, bins]`, frame by frame, 100 frames a second.
#[derive(Clone, Debug, PartialEq)]
pub struct Features {
    values: Vec<f32>,
    bins: usize,
}

impl LogMel {
    /// Features through these filters.
    pub fn new(filters: MelFilters) -> Self {
        Self { filters, spectrum: Spectrum::new() }
    }

    /// The 3,000 frames of one window: samples at 16 kHz, cut off at 30 s or continued with silence up to there.
    ///
    /// This is what transformers' feature extractor computes. "The largest value" is that of the window.
    ///
    /// # Errors
    ///
    /// [`AudioError::NotFinite`](crate::AudioError::NotFinite) for a sample that is no number or beyond ±10⁹.
    pub fn window(&self, samples: &[f32]) -> Result<Features> {
        self.compute(&samples[..samples.len().min(WINDOW_SAMPLES)], WINDOW_FRAMES, Tail::Window)
    }

    /// One frame for each whole 10 ms of samples at 16 kHz, of any length.
    ///
    /// This is what `transcribe` of openai-whisper computes once for a whole file, of which [`Features::window`] then cuts
    /// windows: "the largest value" is that of the whole signal. Takes 32 kB a second for 80 bins.
    ///
    /// # Errors
    ///
    /// [`AudioError::NotFinite`](crate::AudioError::NotFinite) for a sample that is no number or beyond ±10⁹.
    pub fn features(&self, samples: &[f32]) -> Result<Features> {
        self.compute(samples, samples.len() / HOP, Tail::Silent)
    }

    /// The number of mel bins.
    pub fn bins(&self) -> usize {
        self.filters.bins()
    }

    fn compute(&self, samples: &[f32], frames: usize, tail: Tail) -> Result<Features> {
        check_finite(samples, 0)?;
        let bins = self.bins();
        let mut values = vec![0.0; frames * bins];
        // Frames behind the last sample are silent.
        let sounding = frames.min((samples.len() + FRAME_LEN / 2).div_ceil(HOP));
        let mut scratch = Scratch::new();
        let mut power = [Lanes::default(); DFT_BINS];
        let mut block = [0.0; (LANES - 1) * HOP + FRAME_LEN];
        for (index, out) in values[..sounding * bins].chunks_mut(LANES * bins).enumerate() {
            cut(samples, index * LANES * HOP, tail, &mut block);
            self.spectrum.power(&block, HOP, &mut scratch, &mut power);
            for (bin, filter) in self.filters.filters.iter().enumerate() {
                let mut sum = Lanes::default();
                for (&power, &weight) in power[filter.first..].iter().zip(&filter.weights) {
                    sum = sum + power * weight;
                }
                for (frame, sum) in out.chunks_exact_mut(bins).zip(sum.0) {
                    frame[bin] = sum;
                }
            }
        }
        for value in &mut values {
            *value = log10(value.max(FLOOR));
        }
        let lowest = values.iter().copied().fold(f32::NEG_INFINITY, f32::max) - 8.0;
        for value in &mut values {
            *value = (value.max(lowest) + 4.0) / 4.0;
        }
        Ok(Features { values, bins })
    }
}

/// The signal behind its last sample.
#[derive(Clone, Copy)]
enum Tail {
    /// Silent for ever.
    Silent,
    /// Silent up to 30 s and reflected there.
    Window,
}

/// Fills `block` with the signal from 200 samples before `start` on; it is reflected before its beginning.
fn cut(samples: &[f32], start: usize, tail: Tail, block: &mut [f32]) {
    const BEFORE: usize = FRAME_LEN / 2;
    let inside = start.checked_sub(BEFORE).and_then(|start| samples.get(start..start + block.len()));
    if let Some(inside) = inside {
        block.copy_from_slice(inside);
        return;
    }
    for (at, value) in block.iter_mut().enumerate() {
        let index = (start + at).abs_diff(BEFORE);
        let index = match tail {
            Tail::Window if index >= WINDOW_SAMPLES => 2 * WINDOW_SAMPLES - 2 - index,
            _ => index,
        };
        *value = samples.get(index).copied().unwrap_or(0.0);
    }
}

impl Features {
    /// The number of frames, 10 ms each.
    pub fn frames(&self) -> usize {
        self.values.len() / self.bins
    }

    /// The number of mel bins.
    pub fn bins(&self) -> usize {
        self.bins
    }

    /// All values, `[frames, bins]`.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// All values, `[bins, frames]`: the layout of Whisper's own code.
    pub fn transposed(&self) -> Vec<f32> {
        (0..self.bins).flat_map(|bin| self.values.iter().skip(bin).step_by(self.bins).copied()).collect()
    }

    /// The 3,000 frames from `start` on; zeros behind the last frame, as in `transcribe` of openai-whisper.
    #[must_use]
    pub fn window(&self, start: usize) -> Self {
        let rest = self.values.get(start.saturating_mul(self.bins)..).unwrap_or_default();
        let mut values = rest[..rest.len().min(WINDOW_FRAMES * self.bins)].to_vec();
        values.resize(WINDOW_FRAMES * self.bins, 0.0);
        Self { values, bins: self.bins }
    }
}
