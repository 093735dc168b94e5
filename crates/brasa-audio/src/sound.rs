use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::{AudioError, AudioReader, Limits, Result, SampleFormat};

/// A sound that has not been read yet. [`Recording::read`](crate::Recording::read) reads it.
#[derive(Debug)]
pub struct Sound(pub(crate) Kind);

/// The place that a sound comes from.
pub(crate) enum Kind {
    /// A sound that can be read from its beginning any number of times.
    Again(Again),
    /// A stream, which can be read once.
    Once(Box<AudioReader>),
}

/// A source that can be read any number of times.
#[derive(Clone)]
pub(crate) enum Again {
    File { path: PathBuf, limits: Limits },
    Pcm { path: PathBuf, format: SampleFormat, rate: u32, limits: Limits },
    Bytes { bytes: SharedBytes, name: String, limits: Limits },
    Samples(Arc<[f32]>),
}

/// A file in memory that several readers share.
#[derive(Clone)]
pub(crate) struct SharedBytes(Arc<dyn AsRef<[u8]> + Send + Sync>);

impl AsRef<[u8]> for SharedBytes {
    fn as_ref(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

impl Sound {
    /// A file of any format that is known. A named pipe is a stream.
    ///
    /// # Errors
    ///
    /// [`AudioError::Open`] for a file that cannot be opened; for a named pipe also the errors of
    /// [`AudioReader::open`].
    pub fn open(path: impl AsRef<Path>, limits: &Limits) -> Result<Self> {
        let path = path.as_ref();
        if is_file(path)? {
            return Ok(Self(Kind::Again(Again::File { path: path.to_owned(), limits: *limits })));
        }
        Ok(Self::from_stream(AudioReader::open(path, limits)?))
    }

    /// A file of raw samples of one channel, little endian, without a header. A named pipe is a stream.
    ///
    /// # Errors
    ///
    /// [`AudioError::Open`] for a file that cannot be opened; [`AudioError::SampleRate`] for a rate outside the limits.
    pub fn open_pcm(
        path: impl AsRef<Path>,
        format: SampleFormat,
        sample_rate: u32,
        limits: &Limits,
    ) -> Result<Self> {
        let path = path.as_ref();
        let again = Again::Pcm { path: path.to_owned(), format, rate: sample_rate, limits: *limits };
        if is_file(path)? { Ok(Self(Kind::Again(again))) } else { Ok(Self::from_stream(again.reader()?)) }
    }

    /// Opens a sound file in memory. `name` appears in errors; its extension helps to find the format.
    pub fn from_bytes(bytes: impl AsRef<[u8]> + Send + Sync + 'static, name: &str, limits: &Limits) -> Self {
        let bytes = SharedBytes(Arc::new(bytes));
        Self(Kind::Again(Again::Bytes { bytes, name: name.to_owned(), limits: *limits }))
    }

    /// Samples of one channel at 16 kHz that are in memory.
    pub fn from_samples(samples: impl Into<Arc<[f32]>>) -> Self {
        Self(Kind::Again(Again::Samples(samples.into())))
    }

    /// A stream, which can be read only once: its samples at 16 kHz are kept, up to two minutes in memory and longer ones in a
    /// temporary file of 3.8 MB a minute.
    pub fn from_stream(reader: AudioReader) -> Self {
        Self(Kind::Once(Box::new(reader)))
    }
}

impl Again {
    /// A reader from the beginning on.
    ///
    /// # Panics
    ///
    /// For samples, which need none.
    pub(crate) fn reader(&self) -> Result<AudioReader> {
        match self {
            Self::File { path, limits } => AudioReader::open(path, limits),
            Self::Pcm { path, format, rate, limits } => {
                let file = std::fs::File::open(path).map_err(AudioError::open(path))?;
                AudioReader::from_pcm(file, *format, *rate, &path.display().to_string(), limits)
            }
            Self::Bytes { bytes, name, limits } => AudioReader::from_bytes(bytes.clone(), name, limits),
            Self::Samples(samples) => unreachable!("{} samples are read as they are", samples.len()),
        }
    }

    /// The name of the sound in errors.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::File { path, .. } | Self::Pcm { path, .. } => path.display().to_string(),
            Self::Bytes { name, .. } => name.clone(),
            Self::Samples(_) => "samples".to_owned(),
        }
    }
}

fn is_file(path: &Path) -> Result<bool> {
    let metadata = std::fs::metadata(path).map_err(AudioError::open(path))?;
    if metadata.is_dir() { Err(AudioError::Folder { path: path.to_owned() }) } else { Ok(metadata.is_file()) }
}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Again(again) => f.write_str(&again.name()),
            Self::Once(reader) => reader.fmt(f),
        }
    }
}
