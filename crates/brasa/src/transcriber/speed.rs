//! How long the parts of a transcription take.

use std::time::{Duration, Instant};

use brasa_graph::step::Outs;
use brasa_speech::{Recogniser, Rows};

use super::Transcriber;
use crate::Error;

/// Times of the parts of a transcription of one window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpeechSpeed {
    /// Time of computing mel features from samples.
    pub mel: Duration,
    /// Time of the encoder.
    pub encode: Duration,
    /// Time of each step of the decoder. A step computes one token for every text.
    pub steps: Vec<Duration>,
}

impl Transcriber {
    /// Times the parts of a transcription of the first 30 s of `samples`, filled up with silence: `steps` steps of the decoder over
    /// `texts` texts, which get the same token again and again.
    ///
    /// # Errors
    ///
    /// [`Error::Speech`] for samples that are no numbers, for more texts than a step takes, and for more steps than a text has
    /// tokens; errors of the device.
    pub fn speed(&self, samples: &[f32], texts: usize, steps: usize) -> Result<SpeechSpeed, Error> {
        let start = Instant::now();
        let features = self.0.log_mel.window(samples)?;
        let mel = start.elapsed();
        self.with_programs(|programs| {
            let start = Instant::now();
            let windows = programs.encode(&[&features])?;
            let encode = start.elapsed();
            let &[window] = &windows[..] else { unreachable!("one window for one") };
            let mut begun = Vec::new();
            let run = (|| {
                for _ in 0..texts {
                    begun.push(programs.begin(window)?);
                }
                (0..steps)
                    .map(|_| {
                        let row = |&text: &_| Rows { text, tokens: vec![0], outs: Outs::Last };
                        let rows: Vec<Rows> = begun.iter().map(row).collect();
                        let start = Instant::now();
                        programs.run(&rows)?;
                        Ok(start.elapsed())
                    })
                    .collect::<Result<Vec<_>, Error>>()
            })();
            for text in begun {
                programs.end(text);
            }
            programs.forget(window);
            Ok(SpeechSpeed { mel, encode, steps: run? })
        })
    }
}
