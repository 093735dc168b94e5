//! Features of a sound of any length, with one window in memory at a time.

use super::{Features, Framer, WINDOW_FRAMES, scale};
use crate::recording::Chunks;
use crate::{Recording, Result};

/// The features of a whole sound, window by window, like [`Features::window`]. They lie in memory, or are computed on request.
pub struct FeatureWindows(Kind);

enum Kind {
    Whole(Features),
    Read(Box<ReadAgain>),
}

/// A sound that is read again.
struct ReadAgain {
    recording: Recording,
    chunks: Chunks,
    framer: Framer,
    /// Logarithms of frames from `first` on.
    values: Vec<f32>,
    first: usize,
    is_over: bool,
}

impl From<Features> for FeatureWindows {
    fn from(features: Features) -> Self {
        Self(Kind::Whole(features))
    }
}

impl FeatureWindows {
    pub(crate) fn of_recording(recording: Recording) -> Result<Self> {
        Ok(Self(Kind::Read(Box::new(ReadAgain::new(recording)?))))
    }

    /// The number of frames of the whole sound, 10 ms each.
    pub fn frames(&self) -> usize {
        match &self.0 {
            Kind::Whole(features) => features.frames(),
            Kind::Read(reading) => reading.recording.frames(),
        }
    }

    /// The number of mel bins.
    pub fn bins(&self) -> usize {
        match &self.0 {
            Kind::Whole(features) => features.bins(),
            Kind::Read(reading) => reading.recording.log_mel().bins(),
        }
    }

    /// The 3,000 frames from `start` on; zeros after the last frame. A `start` before an earlier one reads the sound from its
    /// beginning again.
    ///
    /// # Errors
    ///
    /// [`AudioError::Changed`](crate::AudioError::Changed) if the sound has become shorter; errors of reading.
    pub fn window(&mut self, start: usize) -> Result<Features> {
        match &mut self.0 {
            Kind::Whole(features) => Ok(features.window(start)),
            Kind::Read(reading) => reading.window(start),
        }
    }
}

impl ReadAgain {
    fn new(recording: Recording) -> Result<Self> {
        let chunks = recording.chunks()?;
        let framer = Framer::new(recording.log_mel().clone());
        Ok(Self { recording, chunks, framer, values: Vec::new(), first: 0, is_over: false })
    }

    fn window(&mut self, start: usize) -> Result<Features> {
        if start < self.first {
            *self = Self::new(self.recording.clone())?;
        }
        let (bins, all) = (self.recording.log_mel().bins(), self.recording.frames());
        let end = all.min(start.saturating_add(WINDOW_FRAMES));
        loop {
            let over = self.values.len().min(start.min(all).saturating_sub(self.first) * bins);
            self.values.drain(..over);
            self.first += over / bins;
            if self.first + self.values.len() / bins >= end {
                break;
            }
            if self.is_over {
                return Err(self.recording.changed());
            }
            if let Some(chunk) = self.chunks.next() {
                self.framer.push(&chunk?, &mut self.values);
            } else {
                self.framer.finish(&mut self.values);
                self.is_over = true;
            }
        }
        let held = end.saturating_sub(start).min(WINDOW_FRAMES) * bins;
        let mut values = self.values[..held].to_vec();
        scale(&mut values, self.recording.lowest());
        values.resize(WINDOW_FRAMES * bins, 0.0);
        Ok(Features { values, bins })
    }
}
