//! Frames of a signal that comes in pieces.

use super::{BEFORE, Blocks, FRAME_LEN, HOP, LANES, LogMel, Tail, cut};

/// Makes frames from samples as they arrive: the logarithms that [`LogMel::features`] scales, bit for bit.
#[derive(Debug)]
pub(crate) struct Framer {
    log_mel: LogMel,
    /// Samples from `first` on.
    samples: Vec<f32>,
    first: usize,
    /// Frames that have been made.
    frames: usize,
    blocks: Box<Blocks>,
}

impl Framer {
    /// No sample has arrived yet.
    pub fn new(log_mel: LogMel) -> Self {
        Self { log_mel, samples: Vec::new(), first: 0, frames: 0, blocks: Box::new(Blocks::new()) }
    }

    /// Adds samples and appends the frames that they complete, `[frames, bins]`, eight at a time.
    pub fn push(&mut self, samples: &[f32], to: &mut Vec<f32>) {
        self.samples.extend_from_slice(samples);
        // The last sample of the last frame of a block.
        let needed = |frames: usize| (frames + LANES - 1) * HOP + FRAME_LEN - BEFORE;
        while self.first + self.samples.len() >= needed(self.frames) {
            self.make(LANES, to);
        }
        let over = (self.frames * HOP).saturating_sub(BEFORE + self.first);
        self.samples.drain(..over);
        self.first += over;
    }

    /// Appends the frames that are left: one for each whole 10 ms of the signal.
    pub fn finish(&mut self, to: &mut Vec<f32>) {
        let all = (self.first + self.samples.len()) / HOP;
        while self.frames < all {
            self.make(LANES.min(all - self.frames), to);
        }
    }

    fn make(&mut self, frames: usize, to: &mut Vec<f32>) {
        let start = self.frames * HOP;
        cut(&self.samples, self.first, start, Tail::Silent, &mut self.blocks.samples);
        let from = to.len();
        to.resize(from + frames * self.log_mel.bins(), 0.0);
        self.log_mel.block(&mut self.blocks, &mut to[from..]);
        self.frames += frames;
    }
}
