//! Whisper's log-mel features (Radford et al. 2022, arXiv:2212.04356, §2.2).
//!
//! Frames of 400 samples (25 ms at 16 kHz) every 160 samples (10 ms), each times Hann's periodic window → power of its DFT →
//! mel filters → `log10(max(x, 1e-10))` → at least the largest value − 8 → `(x + 4) / 4`. Frame `t` is centred on
//! sample `160 t`; the signal is reflected at its beginning.

mod fft;
mod filters;
mod framer;
mod logarithm;
mod windows;

use crate::audio::check_finite;
use crate::{Result, SAMPLE_RATE, WINDOW_SAMPLES};

use fft::{LANES, Lanes, Scratch, Spectrum};
pub use filters::MelFilters;
pub(crate) use framer::Framer;
use logarithm::log10;
pub use windows::FeatureWindows;

/// Samples of a frame, which is as many as its DFT has points.
const FRAME_LEN: usize = 400;
/// Bins of a frame's DFT: 0 to 8 kHz in steps of 40 Hz.
const DFT_BINS: usize = FRAME_LEN / 2 + 1;
/// Samples from one frame to the next.
pub(crate) const HOP: usize = 160;
/// Frames for which a thread of its own pays.
const FRAMES_PER_THREAD: usize = 1000;
/// Frames of a window of 30 s.
pub const WINDOW_FRAMES: usize = WINDOW_SAMPLES / HOP;
/// The power at which the logarithm is cut off.
const FLOOR: f32 = 1e-10;

/// Computes log-mel features.
///
/// Sums are f32 in a fixed order: equal samples give equal bits, with any number of [threads](Self::with_threads). A window of 30 s
/// costs one of them about 2 ms.
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
    threads: usize,
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
        Self { filters, spectrum: Spectrum::new(), threads: 1 }
    }

    /// Lets [`window`](Self::window) and [`features`](Self::features) compute on up to `threads` threads; 0 counts as 1.
    #[must_use]
    pub fn with_threads(self, threads: usize) -> Self {
        Self { threads: threads.max(1), ..self }
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
    /// windows: "the largest value" is that of the whole signal. Takes 32 kB a second for 80 bins;
    /// [`Recording::features`](crate::Recording::features) has the same values in a megabyte.
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
        // Threads have whole blocks.
        let threads = self.threads.min(sounding / FRAMES_PER_THREAD).max(1);
        let share = sounding.div_ceil(threads).next_multiple_of(LANES);
        let compute = |first: usize, values: &mut [f32]| {
            let mut blocks = Blocks::new();
            for (index, out) in values.chunks_mut(LANES * bins).enumerate() {
                cut(samples, 0, (first + index * LANES) * HOP, tail, &mut blocks.samples);
                self.block(&mut blocks, out);
            }
        };
        std::thread::scope(|scope| {
            let mut shares = values[..sounding * bins].chunks_mut((share * bins).max(1)).enumerate();
            let own = shares.next();
            for (number, values) in shares {
                scope.spawn(move || compute(number * share, values));
            }
            if let Some((_, values)) = own {
                compute(0, values);
            }
        });
        values[sounding * bins..].fill(log10(FLOOR));
        let lowest = lowest_of(values.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        scale(&mut values, lowest);
        Ok(Features { values, bins })
    }

    /// Logarithms of the mel bins of up to eight frames, `[frames, bins]`, of which `blocks` has the samples.
    fn block(&self, blocks: &mut Blocks, out: &mut [f32]) {
        let bins = self.bins();
        self.spectrum.power(&blocks.samples, HOP, &mut blocks.scratch, &mut blocks.power);
        for (bin, filter) in self.filters.filters.iter().enumerate() {
            let mut sum = Lanes::default();
            for (&power, &weight) in blocks.power[filter.first..].iter().zip(&filter.weights) {
                sum = sum + power * weight;
            }
            let logarithms = sum.map(|sum| log10(sum.max(FLOOR)));
            for (frame, logarithm) in out.chunks_exact_mut(bins).zip(logarithms.0) {
                frame[bin] = logarithm;
            }
        }
    }
}

/// Scratch memory for the computation of eight frames.
#[derive(Clone, Debug)]
struct Blocks {
    samples: [f32; (LANES - 1) * HOP + FRAME_LEN],
    scratch: Scratch,
    power: [Lanes; DFT_BINS],
}

impl Blocks {
    fn new() -> Self {
        Self {
            samples: [0.0; (LANES - 1) * HOP + FRAME_LEN],
            scratch: Scratch::new(),
            power: [Lanes::default(); DFT_BINS],
        }
    }
}

/// The value below which logarithms are cut off, by the largest one of the signal.
pub(crate) fn lowest_of(largest: f32) -> f32 {
    largest - 8.0
}

/// Makes features of logarithms.
fn scale(values: &mut [f32], lowest: f32) {
    for value in values {
        *value = (value.max(lowest) + 4.0) / 4.0;
    }
}

/// The padding of the signal after its last sample.
#[derive(Clone, Copy)]
enum Tail {
    /// Silent for ever.
    Silent,
    /// Silent up to 30 s and reflected there.
    Window,
}

/// Samples of a frame in front of its middle.
const BEFORE: usize = FRAME_LEN / 2;

/// Fills `block` with the signal from 200 samples before `start` on; it is reflected before its beginning. `samples` are those from
/// `first` on.
fn cut(samples: &[f32], first: usize, start: usize, tail: Tail, block: &mut [f32]) {
    let inside = start.checked_sub(BEFORE + first).and_then(|start| samples.get(start..start + block.len()));
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
        *value = index.checked_sub(first).and_then(|index| samples.get(index)).copied().unwrap_or(0.0);
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

    /// The 3,000 frames from `start` on; zeros after the last frame, as in `transcribe` of openai-whisper.
    #[must_use]
    pub fn window(&self, start: usize) -> Self {
        let rest = self.values.get(start.saturating_mul(self.bins)..).unwrap_or_default();
        let mut values = rest[..rest.len().min(WINDOW_FRAMES * self.bins)].to_vec();
        values.resize(WINDOW_FRAMES * self.bins, 0.0);
        Self { values, bins: self.bins }
    }

    /// Puts zeros in place of the frames from `frames` on.
    pub fn silence_from(&mut self, frames: usize) {
        let kept = self.values.len().min(frames.saturating_mul(self.bins));
        self.values[kept..].fill(0.0);
    }
}
