use crate::{AudioError, Result};

use super::{DFT_BINS, FRAME_LEN, SAMPLE_RATE};

/// The largest number of filters that is accepted. Whisper's models have 80 or 128.
const MOST_BINS: usize = 1024;

/// A bank of mel filters: each is a weighted sum of the 201 powers of a frame.
///
/// Shape: `[bins, 201]`. Weights outside a filter's band are not stored.
#[derive(Clone, Debug, PartialEq)]
pub struct MelFilters {
    pub(super) filters: Vec<Filter>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Filter {
    /// The first bin of the DFT that counts.
    pub(super) first: usize,
    pub(super) weights: Vec<f32>,
}

impl MelFilters {
    /// Triangular filters from 0 to 8 kHz, equally spaced on the mel scale and each of area 1, as Whisper's are.
    ///
    /// The scale is linear below 1 kHz and logarithmic above (Slaney 1998, "Auditory Toolbox", Interval Research technical
    /// report 1998-010), not the formula of HTK.
    ///
    /// # Errors
    ///
    /// [`AudioError::Filters`] for no bins or more than 1,024.
    pub fn slaney(bins: usize) -> Result<Self> {
        check_bins(bins)?;
        let highest = mel_of_hz(f64::from(SAMPLE_RATE) / 2.0);
        let edges: Vec<f64> =
            (0..bins + 2).map(|i| hz_of_mel(highest * i as f64 / (bins + 1) as f64)).collect();
        let filters = edges.windows(3).map(|edges| {
            let [low, centre, high] = [edges[0], edges[1], edges[2]];
            (0..DFT_BINS).map(move |k| {
                let hz = k as f64 * f64::from(SAMPLE_RATE) / FRAME_LEN as f64;
                let height = ((hz - low) / (centre - low)).min((high - hz) / (high - centre)).max(0.0);
                (height * 2.0 / (high - low)) as f32
            })
        });
        Ok(Self { filters: filters.map(|row| Filter::new(row.collect())).collect() })
    }

    /// The filters that a model's file carries: a matrix `[bins, 201]`, row by row.
    ///
    /// # Errors
    ///
    /// [`AudioError::Filters`] for another number of weights, no bins, more than 1,024, or a weight that is not finite.
    pub fn from_matrix(bins: usize, weights: &[f32]) -> Result<Self> {
        check_bins(bins)?;
        if weights.len() != bins * DFT_BINS {
            let problem =
                format!("{} weights, expected {} ({bins} × {DFT_BINS})", weights.len(), bins * DFT_BINS);
            return Err(AudioError::Filters { problem });
        }
        if let Some(at) = weights.iter().position(|weight| !weight.is_finite()) {
            let problem = format!("filter {}, bin {}: weight {}", at / DFT_BINS, at % DFT_BINS, weights[at]);
            return Err(AudioError::Filters { problem });
        }
        Ok(Self { filters: weights.chunks_exact(DFT_BINS).map(|row| Filter::new(row.to_vec())).collect() })
    }

    /// The number of filters.
    pub fn bins(&self) -> usize {
        self.filters.len()
    }

    /// The whole matrix `[bins, 201]`, row by row.
    pub fn to_matrix(&self) -> Vec<f32> {
        let mut matrix = vec![0.0; self.bins() * DFT_BINS];
        for (row, filter) in matrix.chunks_exact_mut(DFT_BINS).zip(&self.filters) {
            row[filter.first..][..filter.weights.len()].copy_from_slice(&filter.weights);
        }
        matrix
    }
}

impl Filter {
    fn new(mut row: Vec<f32>) -> Self {
        let first = row.iter().position(|&weight| weight != 0.0).unwrap_or(0);
        let end = row.iter().rposition(|&weight| weight != 0.0).map_or(first, |last| last + 1);
        row.truncate(end);
        Self { first, weights: row.split_off(first) }
    }
}

fn check_bins(bins: usize) -> Result<()> {
    if (1..=MOST_BINS).contains(&bins) {
        return Ok(());
    }
    Err(AudioError::Filters {
        problem: format!("{bins} mel bins, expected 1 to {MOST_BINS} (Whisper has 80 or 128)"),
    })
}

/// The frequency in Hz at which the mel scale changes from linear to logarithmic.
const KNEE_HZ: f64 = 1000.0;
const HZ_PER_MEL: f64 = 200.0 / 3.0;
const KNEE_MEL: f64 = KNEE_HZ / HZ_PER_MEL;

/// The growth of the logarithm of the frequency per mel above the knee.
fn log_step() -> f64 {
    6.4_f64.ln() / 27.0
}

fn mel_of_hz(hz: f64) -> f64 {
    if hz < KNEE_HZ { hz / HZ_PER_MEL } else { KNEE_MEL + (hz / KNEE_HZ).ln() / log_step() }
}

fn hz_of_mel(mel: f64) -> f64 {
    if mel < KNEE_MEL { mel * HZ_PER_MEL } else { KNEE_HZ * (log_step() * (mel - KNEE_MEL)).exp() }
}
