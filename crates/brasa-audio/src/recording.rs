use std::fmt;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::mel::{Framer, lowest_of};
use crate::sound::{Again, Kind};
use crate::source::duration;
use crate::spool::Spool;
use crate::{
    AudioError, AudioReader, Energies, FeatureWindows, LogMel, Result, SAMPLE_RATE, Sound, VoiceDetector,
    VoiceNetwork,
};

/// Samples of one chunk of a sound that is in memory.
const CHUNK: usize = 1 << 14;

/// A sound that was read once, and is read a second time when its features or samples are needed.
///
/// Whisper's features depend on the loudest value of the whole sound, so a sound has to be read to its end before its first
/// window. The first reading keeps that value and the [`Energies`], and drops the samples: an hour takes 1.4 MB. Only the samples
/// of a stream are kept, in a temporary file.
///
/// Cheap to clone.
///
/// ```
/// use std::ops::ControlFlow;
///
/// use brasa_audio::{LogMel, MelFilters, Recording, Sound};
///
/// let log_mel = LogMel::new(MelFilters::slaney(80)?);
/// let sound = Sound::from_samples(vec![0.25; 600_000]);
/// let recording = Recording::read(sound, &log_mel, &mut |_| ControlFlow::Continue(()))?;
/// assert_eq!((recording.samples(), recording.frames()), (600_000, 3750));
/// let mut features = recording.features()?;
/// assert_eq!(features.window(3000)?.frames(), 3000);
/// # Ok::<(), brasa_audio::AudioError>(())
/// ```
#[derive(Clone)]
pub struct Recording(Arc<Parts>);

struct Parts {
    place: Place,
    log_mel: LogMel,
    energies: Energies,
    /// Features of the whole sound are at least this large, before they are scaled.
    lowest: f32,
    warnings: Vec<String>,
    read_time: Duration,
}

/// The place of the second reading.
enum Place {
    Again(Again),
    Spool(Spool),
}

/// The stage of reading a sound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heard {
    /// The sound read so far.
    pub done: Duration,
    /// The duration that the sound's header claims, if it has one. Headers may be wrong.
    pub claimed: Option<Duration>,
}

impl Recording {
    /// Reads a sound to its end. `going` receives the progress, and may cancel.
    ///
    /// # Errors
    ///
    /// Any [`AudioError`] of reading; [`AudioError::Cancelled`] if `going` breaks.
    pub fn read(
        sound: Sound,
        log_mel: &LogMel,
        going: &mut dyn FnMut(Heard) -> ControlFlow<()>,
    ) -> Result<Self> {
        let started = Instant::now();
        let (place, mut chunks) = match sound.0 {
            Kind::Again(again) => {
                let chunks = Chunks::new(&again)?;
                (Place::Again(again), chunks)
            }
            Kind::Once(reader) => {
                (Place::Spool(Spool::new(reader.name().to_owned())), Chunks::Reader(reader))
            }
        };
        let mut framer = Framer::new(log_mel.clone());
        let mut energies = Energies::default();
        let (mut values, mut largest) = (Vec::new(), f32::NEG_INFINITY);
        let mut look = |values: &mut Vec<f32>| {
            largest = values.iter().copied().fold(largest, f32::max);
            values.clear();
        };
        while let Some(chunk) = chunks.next() {
            let chunk = chunk?;
            if going(chunks.heard()).is_break() {
                return Err(AudioError::Cancelled { name: place.name() });
            }
            energies.push(&chunk);
            framer.push(&chunk, &mut values);
            look(&mut values);
            if let Place::Spool(spool) = &place {
                spool.write(&chunk)?;
            }
        }
        framer.finish(&mut values);
        look(&mut values);
        let warnings = chunks.warnings().to_vec();
        Ok(Self(Arc::new(Parts {
            place,
            log_mel: log_mel.clone(),
            energies,
            lowest: lowest_of(largest),
            warnings,
            read_time: started.elapsed(),
        })))
    }

    /// The number of samples at 16 kHz.
    pub fn samples(&self) -> usize {
        self.0.energies.samples()
    }

    /// The number of frames of 10 ms that are whole.
    pub fn frames(&self) -> usize {
        self.samples() / crate::mel::HOP
    }

    /// The length of the sound.
    pub fn duration(&self) -> Duration {
        duration(self.samples() as u64, SAMPLE_RATE)
    }

    /// The energy of each 10 ms.
    pub fn energies(&self) -> &Energies {
        &self.0.energies
    }

    /// Doubts about the sound, each with its name: see [`AudioReader::warnings`].
    pub fn warnings(&self) -> &[String] {
        &self.0.warnings
    }

    /// Time that [`read`](Self::read) took, including waits for the writer of the sound.
    pub fn read_time(&self) -> Duration {
        self.0.read_time
    }

    /// Ranges of samples that hold speech, in order. A network reads the sound again; `going` receives the progress, and may
    /// cancel.
    ///
    /// # Errors
    ///
    /// Errors of reading; [`AudioError::Cancelled`] if `going` breaks.
    pub fn speech(
        &self,
        detector: VoiceDetector,
        going: &mut dyn FnMut(Heard) -> ControlFlow<()>,
    ) -> Result<Vec<Range<usize>>> {
        let rules = match detector {
            VoiceDetector::Off => {
                return Ok(Vec::from_iter((self.samples() > 0).then_some(0..self.samples())));
            }
            VoiceDetector::Energy(rules) => return Ok(rules.spans(self.energies())),
            VoiceDetector::Network(rules) => rules,
        };
        let (mut network, mut probabilities) = (VoiceNetwork::new(), Vec::new());
        let mut chunks = self.chunks()?;
        while let Some(chunk) = chunks.next() {
            if going(chunks.heard()).is_break() {
                return Err(AudioError::Cancelled { name: self.0.place.name() });
            }
            network.push(&chunk?, &mut probabilities);
        }
        network.finish(&mut probabilities);
        Ok(rules.spans(&probabilities, self.samples()))
    }

    /// The features of the whole sound, computed window by window: the values of [`LogMel::features`], bit for bit.
    ///
    /// # Errors
    ///
    /// Errors of opening the sound again.
    pub fn features(&self) -> Result<FeatureWindows> {
        FeatureWindows::of_recording(self.clone())
    }

    /// All samples of the sound, in pieces.
    pub fn excerpts(&self) -> Excerpts {
        Excerpts { recording: self.clone(), chunks: None, held: Vec::new(), first: 0 }
    }

    pub(crate) fn log_mel(&self) -> &LogMel {
        &self.0.log_mel
    }

    pub(crate) fn lowest(&self) -> f32 {
        self.0.lowest
    }

    pub(crate) fn chunks(&self) -> Result<Chunks> {
        match &self.0.place {
            Place::Again(again) => Chunks::new(again),
            Place::Spool(spool) => Ok(Chunks::Spool { spool: spool.clone(), at: 0 }),
        }
    }

    /// The error of a sound that was shorter when it was read again.
    pub(crate) fn changed(&self) -> AudioError {
        AudioError::Changed { name: self.0.place.name() }
    }
}

impl Place {
    fn name(&self) -> String {
        match self {
            Self::Again(again) => again.name(),
            Self::Spool(spool) => spool.name().to_owned(),
        }
    }
}

impl fmt::Debug for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recording")
            .field("name", &self.0.place.name())
            .field("duration", &self.duration())
            .finish_non_exhaustive()
    }
}

/// Samples at 16 kHz, chunk by chunk, from any place.
pub(crate) enum Chunks {
    Reader(Box<AudioReader>),
    Samples { samples: Arc<[f32]>, at: usize },
    Spool { spool: Spool, at: u64 },
}

impl Chunks {
    fn new(again: &Again) -> Result<Self> {
        Ok(match again {
            Again::Samples(samples) => Self::Samples { samples: Arc::clone(samples), at: 0 },
            other => Self::Reader(Box::new(other.reader()?)),
        })
    }

    fn warnings(&self) -> &[String] {
        match self {
            Self::Reader(reader) => reader.warnings(),
            Self::Samples { .. } | Self::Spool { .. } => &[],
        }
    }

    fn heard(&self) -> Heard {
        match self {
            Self::Reader(reader) => {
                Heard { done: reader.duration_read(), claimed: reader.claimed_duration() }
            }
            Self::Samples { samples, at } => Heard {
                done: duration(*at as u64, SAMPLE_RATE),
                claimed: Some(duration(samples.len() as u64, SAMPLE_RATE)),
            },
            Self::Spool { at, .. } => Heard { done: duration(*at, SAMPLE_RATE), claimed: None },
        }
    }
}

impl Iterator for Chunks {
    type Item = Result<Vec<f32>>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::Reader(reader) => reader.next(),
            Self::Samples { samples, at } => {
                let chunk = &samples[*at..samples.len().min(*at + CHUNK)];
                let checked = crate::audio::check_finite(chunk, *at as u64);
                *at += chunk.len();
                (!chunk.is_empty()).then(|| checked.map(|()| chunk.to_vec()))
            }
            Self::Spool { spool, at } => match spool.read(*at) {
                Ok(chunk) => {
                    *at += chunk.len() as u64;
                    (!chunk.is_empty()).then_some(Ok(chunk))
                }
                Err(error) => Some(Err(error)),
            },
        }
    }
}

/// Overlapping pieces of a recording, in order. Holds one piece at a time.
pub struct Excerpts {
    recording: Recording,
    chunks: Option<Chunks>,
    /// Samples from `first` on.
    held: Vec<f32>,
    first: usize,
}

impl Excerpts {
    /// The samples of `range`, which ends within the recording. A piece in front of the last one has the sound read from its beginning
    /// again.
    ///
    /// # Errors
    ///
    /// [`AudioError::Changed`] if the sound has become shorter; errors of reading.
    pub fn samples(&mut self, range: Range<usize>) -> Result<&[f32]> {
        if range.start < self.first {
            self.chunks = None;
        }
        let chunks = match &mut self.chunks {
            Some(chunks) => chunks,
            chunks => {
                self.held.clear();
                self.first = 0;
                chunks.insert(self.recording.chunks()?)
            }
        };
        while self.first + self.held.len() < range.end {
            let over = (range.start - self.first).min(self.held.len());
            self.held.drain(..over);
            self.first += over;
            let chunk = chunks.next().ok_or_else(|| self.recording.changed())??;
            self.held.extend_from_slice(&chunk);
        }
        Ok(&self.held[range.start - self.first..range.end - self.first])
    }
}
