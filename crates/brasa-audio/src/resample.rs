//! Any sample rate to 16 kHz, by rubato's windowed sinc.

use rubato::audioadapter_buffers::direct::InterleavedSlice;
use rubato::{
    Async, FixedAsync, Indexing, Resampler as _, SincInterpolationParameters, SincInterpolationType,
    WindowFunction,
};

use crate::SAMPLE_RATE;

/// Input samples of one call to rubato.
const CHUNK: usize = 1024;
/// Length of the filter in samples at 16 kHz, or at a lower rate: 7 kHz pass whole, 9 kHz not at all.
const TAPS: usize = 160;
/// Most filters that are kept, each for one place between two input samples.
const MOST_PHASES: usize = 640;
/// Most coefficients of all filters: 2 MiB.
const MOST_COEFFICIENTS: usize = 1 << 19;

/// Resamples a stream of one channel; the output starts and ends with the input, to the sample.
pub(crate) struct Resampler {
    inner: Async<f32>,
    rate: u32,
    pending: Vec<f32>,
    output: Vec<f32>,
    /// Output samples that are the filter's delay, and are dropped.
    delay: usize,
    taken: u64,
    made: u64,
}

impl Resampler {
    /// A resampler from `rate` Hz, which the caller has checked to be plausible.
    pub(crate) fn new(rate: u32) -> Self {
        let common = gcd(rate, SAMPLE_RATE);
        // Both rates meet every `from` input and `to` output samples.
        let (from, to) = ((rate / common) as usize, (SAMPLE_RATE / common) as usize);
        let taps = (TAPS * rate.max(SAMPLE_RATE) as usize / SAMPLE_RATE as usize).next_multiple_of(8);
        // Output samples fall on `to` places between two input samples. If that is too many, a cubic goes through fewer.
        let most = MOST_PHASES.min(MOST_COEFFICIENTS / taps);
        let phases = (1..=to.min(most)).rfind(|&phases| to.is_multiple_of(phases)).unwrap_or(1);
        let interpolation =
            if phases == to { SincInterpolationType::Nearest } else { SincInterpolationType::Cubic };
        let parameters = SincInterpolationParameters::new(taps, WindowFunction::BlackmanHarris2)
            .oversampling_factor(phases)
            .interpolation(interpolation);
        let ratio = f64::from(SAMPLE_RATE) / f64::from(rate);
        let inner = Async::new_sinc(ratio, 1.0, &parameters, CHUNK, 1, FixedAsync::Input)
            .unwrap_or_else(|error| panic!("a resampler from {rate} Hz: {error}"));
        // Output sample k is the sound at input sample `(k + 1) · from / to − taps / 2 + 1 / phases`. With so much silence in
        // front, some k is the sound's very beginning.
        let reach = |silence: usize| to * (silence + taps / 2) - to / phases;
        let silence =
            (0..from).find(|&silence| reach(silence).is_multiple_of(from)).expect("no factor in common");
        Self {
            output: vec![0.0; inner.output_frames_max()],
            inner,
            rate,
            pending: vec![0.0; silence],
            delay: reach(silence) / from - 1,
            taken: 0,
            made: 0,
        }
    }

    /// Takes samples at the input's rate and appends those that are ready.
    pub(crate) fn push(&mut self, samples: &[f32], to: &mut Vec<f32>) {
        self.taken += samples.len() as u64;
        self.pending.extend_from_slice(samples);
        let whole = self.pending.len() / CHUNK * CHUNK;
        for start in (0..whole).step_by(CHUNK) {
            self.process(start, to, u64::MAX);
        }
        self.pending.drain(..whole);
    }

    /// Appends the rest.
    pub(crate) fn finish(&mut self, to: &mut Vec<f32>) {
        let (rate, out) = (u128::from(self.rate), u128::from(SAMPLE_RATE));
        let wanted = ((u128::from(self.taken) * out + rate / 2) / rate) as u64;
        while self.made < wanted {
            self.pending.resize(CHUNK, 0.0);
            self.process(0, to, wanted);
            self.pending.clear();
        }
    }

    fn process(&mut self, start: usize, to: &mut Vec<f32>, wanted: u64) {
        let input = InterleavedSlice::new(&self.pending, 1, self.pending.len()).expect("one channel");
        let frames = self.output.len();
        let mut output = InterleavedSlice::new_mut(&mut self.output, 1, frames).expect("one channel");
        let (_, made) = self
            .inner
            .process_into_buffer(&input, &mut output, Some(&Indexing::new().input_offset(start)))
            .unwrap_or_else(|error| panic!("resampling {CHUNK} samples from {} Hz: {error}", self.rate));
        let delay = self.delay.min(made);
        self.delay -= delay;
        let sound = &self.output[delay..made];
        let sound = &sound[..sound.len().min(usize::try_from(wanted - self.made).unwrap_or(usize::MAX))];
        to.extend_from_slice(sound);
        self.made += sound.len() as u64;
    }
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}
