use crate::SAMPLE_RATE;

/// Samples of one step: 10 ms.
pub(crate) const STEP: usize = SAMPLE_RATE as usize / 100;
/// The lowest level that counts as sound, in dB of full scale.
const LOWEST_DB: f32 = -90.0;

/// The energy of each step of 10 ms of a sound at 16 kHz: the whole input of [`VoiceActivity`](crate::VoiceActivity) and
/// [`batch_windows`](crate::batch_windows). Takes 24 kB a minute.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Energies {
    /// Sums of squares of the complete steps.
    sums: Vec<f32>,
    /// The sum of squares of an incomplete last step.
    rest: f32,
    samples: usize,
}

impl Energies {
    /// The energies of a whole sound.
    pub fn of(samples: &[f32]) -> Self {
        let mut energies = Self::default();
        energies.push(samples);
        energies
    }

    /// Takes further samples.
    pub fn push(&mut self, samples: &[f32]) {
        for sample in samples {
            self.rest += sample * sample;
            self.samples += 1;
            if self.samples.is_multiple_of(STEP) {
                self.sums.push(std::mem::take(&mut self.rest));
            }
        }
    }

    /// The number of samples.
    pub fn samples(&self) -> usize {
        self.samples
    }

    /// Sums of squares of the whole steps.
    pub(crate) fn sums(&self) -> &[f32] {
        &self.sums
    }

    /// The mean power of the whole steps in dB of full scale; forgets them.
    pub(crate) fn take_levels_db(&mut self) -> Vec<f32> {
        std::mem::take(&mut self.sums).into_iter().map(|sum| level_db(sum, STEP)).collect()
    }

    /// The mean power of each step in dB of full scale, of a last one that is not whole too.
    pub(crate) fn levels_db(&self) -> Vec<f32> {
        let rest = self.samples % STEP;
        let whole = self.sums.iter().map(|&sum| level_db(sum, STEP));
        whole.chain((rest > 0).then(|| level_db(self.rest, rest))).collect()
    }
}

fn level_db(sum: f32, samples: usize) -> f32 {
    (10.0 * (sum / samples as f32).log10()).max(LOWEST_DB)
}
