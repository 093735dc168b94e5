use std::fs::File;
use std::io::{Cursor, Read};
use std::path::Path;
use std::time::Duration;

use crate::audio::check_finite;
use crate::resample::Resampler;
use crate::source::{self, Input, Pcm, SampleFormat, Source};
use crate::{AudioError, Result, SAMPLE_RATE};

/// Limits on the sound that is accepted. They hold while reading, whatever a header claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest sound; 24 hours by default.
    pub duration: Duration,
    /// The largest number of channels; 64 by default.
    pub channels: usize,
    /// The highest sample rate in Hz; 768,000 by default.
    pub sample_rate: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { duration: Duration::from_hours(24), channels: 64, sample_rate: 768_000 }
    }
}

/// Sound that is read, decoded and resampled on demand: an iterator of chunks of 16 kHz mono samples.
///
/// Holds 2 or 3 MB, however long the sound is. A chunk has one sample or more: as many as a packet of the file has, or
/// as the stream has ready. After an error it is at its end. Dropping it closes the file.
///
/// ```no_run
/// use std::path::Path;
///
/// use brasa_audio::{AudioReader, Limits};
///
/// let mut reader = AudioReader::open(Path::new("talk.mp3"), &Limits::default())?;
/// while let Some(chunk) = reader.next() {
///     println!("{:?} of {:?}: {} samples", reader.duration_read(), reader.claimed_duration(), chunk?.len());
/// }
/// # Ok::<(), brasa_audio::AudioError>(())
/// ```
pub struct AudioReader {
    source: Box<dyn Source>,
    resampler: Option<Resampler>,
    limits: Limits,
    name: String,
    mono: Vec<f32>,
    /// Samples read so far, at the source's rate.
    taken: u64,
    ended: bool,
}

impl AudioReader {
    /// Opens a file; the format is found by its content, its extension only helps.
    ///
    /// # Errors
    ///
    /// Any [`AudioError`] of an unknown format, an unsupported codec or a limit.
    pub fn open(path: &Path, limits: &Limits) -> Result<Self> {
        let file = File::open(path).map_err(AudioError::open(path))?;
        let metadata = file.metadata().map_err(AudioError::open(path))?;
        if metadata.is_dir() {
            return Err(AudioError::Folder { path: path.to_owned() });
        }
        // A named pipe cannot be sought in.
        let input = if metadata.is_file() {
            Input::Whole { bytes: Box::new(file), len: metadata.len() }
        } else {
            Input::Stream(Box::new(file))
        };
        Self::of_input(input, &path.display().to_string(), limits)
    }

    /// Reads a sound file in memory. `name` appears in errors; its extension helps to find the format.
    ///
    /// # Errors
    ///
    /// Any [`AudioError`] of an unknown format, an unsupported codec or a limit.
    pub fn from_bytes(bytes: impl AsRef<[u8]> + Send + 'static, name: &str, limits: &Limits) -> Result<Self> {
        let len = bytes.as_ref().len() as u64;
        Self::of_input(Input::Whole { bytes: Box::new(Cursor::new(bytes)), len }, name, limits)
    }

    /// Reads a sound file from a pipe or a connection. An M4A file with its index at the end cannot be read this way.
    ///
    /// # Errors
    ///
    /// Any [`AudioError`] of an unknown format, an unsupported codec or a limit.
    pub fn from_stream(stream: impl Read + Send + 'static, name: &str, limits: &Limits) -> Result<Self> {
        Self::of_input(Input::Stream(Box::new(stream)), name, limits)
    }

    /// Reads raw samples of one channel, little endian, without a header.
    ///
    /// Each chunk comes as soon as the stream gives bytes, so this serves live sound.
    ///
    /// # Errors
    ///
    /// [`AudioError::SampleRate`] for a rate outside the limits.
    pub fn from_pcm(
        stream: impl Read + Send + 'static,
        format: SampleFormat,
        sample_rate: u32,
        name: &str,
        limits: &Limits,
    ) -> Result<Self> {
        let source = Pcm::raw(stream, format, sample_rate, name, limits)?;
        Ok(Self::new(Box::new(source), name, limits))
    }

    fn of_input(input: Input, name: &str, limits: &Limits) -> Result<Self> {
        Ok(Self::new(source::open(input, name, limits)?, name, limits))
    }

    fn new(source: Box<dyn Source>, name: &str, limits: &Limits) -> Self {
        let resampler = (source.rate() != SAMPLE_RATE).then(|| Resampler::new(source.rate()));
        Self {
            source,
            resampler,
            limits: *limits,
            name: name.to_owned(),
            mono: Vec::new(),
            taken: 0,
            ended: false,
        }
    }

    /// The name of the sound in errors.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The sound read so far.
    pub fn duration_read(&self) -> Duration {
        source::duration(self.taken, self.sample_rate())
    }

    /// The duration that the header claims, for a progress bar. Headers may be wrong.
    pub fn claimed_duration(&self) -> Option<Duration> {
        self.source.claimed().map(|samples| source::duration(samples, self.sample_rate()))
    }

    /// Doubts about the sound so far, each with the sound's name: an unfinished header, a few samples missing at the end, bytes
    /// after the sound. Complete when the reader is at its end.
    pub fn warnings(&self) -> &[String] {
        self.source.warnings()
    }

    /// The sample rate of the file, in Hz. Chunks are at 16 kHz.
    pub fn sample_rate(&self) -> u32 {
        self.source.rate()
    }

    fn read(&mut self) -> Result<Option<Vec<f32>>> {
        let mut chunk = Vec::new();
        while chunk.is_empty() && !self.ended {
            self.mono.clear();
            self.ended = !self.source.next(&mut self.mono)?;
            check_finite(&self.mono, self.taken).map_err(|error| AudioError::Damaged {
                name: self.name.clone(),
                at: self.duration_read(),
                reason: error.to_string(),
            })?;
            self.taken += self.mono.len() as u64;
            if self.duration_read() > self.limits.duration {
                return Err(AudioError::TooLong { name: self.name.clone(), limit: self.limits.duration });
            }
            if self.ended && self.taken == 0 {
                return Err(AudioError::Empty { name: self.name.clone() });
            }
            match &mut self.resampler {
                None => std::mem::swap(&mut chunk, &mut self.mono),
                Some(resampler) => {
                    resampler.push(&self.mono, &mut chunk);
                    if self.ended {
                        resampler.finish(&mut chunk);
                    }
                }
            }
        }
        Ok(if chunk.is_empty() { None } else { Some(chunk) })
    }
}

impl Iterator for AudioReader {
    type Item = Result<Vec<f32>>;

    fn next(&mut self) -> Option<Self::Item> {
        let result = self.read();
        self.ended |= result.is_err();
        result.transpose()
    }
}

impl std::fmt::Debug for AudioReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AudioReader")
            .field("name", &self.name)
            .field("sample_rate", &self.sample_rate())
            .field("position", &self.duration_read())
            .finish_non_exhaustive()
    }
}
