use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The reason why sound could not be read or used.
///
/// `name` is the path of the file, or the name that the caller gave.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AudioError {
    /// A file could not be opened.
    #[error("{}: {source}", .path.display())]
    Open {
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A folder, where a file of sound was expected.
    #[error("{}: a folder, expected a file of sound\nhint: name the files in it", .path.display())]
    Folder {
        /// The path.
        path: PathBuf,
    },
    /// Reading failed.
    #[error("{name}: reading failed at {}: {source}", seconds(*.at))]
    Read {
        /// The file or stream.
        name: String,
        /// The sound read so far.
        at: Duration,
        /// The system's error.
        source: io::Error,
    },
    /// The format of the bytes is not recognised.
    #[error(
        "{name}: not recognised as audio: {reason}\nhint: WAV, MP3, FLAC, OGG (Vorbis, Opus), WebM, M4A and AAC are read; others after `ffmpeg -i FILE out.wav`"
    )]
    Format {
        /// The file or stream.
        name: String,
        /// The mistake, in the decoder's words.
        reason: String,
    },
    /// The container is recognised, but the coding of the sound in it is not supported.
    #[error("{name}: {what} is not supported\nhint: `ffmpeg -i FILE out.wav` makes a file that is read")]
    Unsupported {
        /// The file or stream.
        name: String,
        /// The codec or feature.
        what: String,
    },
    /// The sound is too damaged to play: more than players skip.
    #[error("{name}: damaged at {}: {reason}", seconds(*.at))]
    Damaged {
        /// The file or stream.
        name: String,
        /// The sound read so far.
        at: Duration,
        /// The mistake, in the decoder's words.
        reason: String,
    },
    /// The file ends earlier than its header announces.
    #[error("{name}: cut off at {}, the header claims {}\nhint: the file may still be downloading; `ffmpeg -i FILE out.wav` keeps what is there", apart(*.at, *.claimed), apart(*.claimed, *.at))]
    CutOff {
        /// The file or stream.
        name: String,
        /// The sound that is there.
        at: Duration,
        /// The duration in the header.
        claimed: Duration,
    },
    /// The sound has no samples.
    #[error("{name}: no sound in it")]
    Empty {
        /// The file or stream.
        name: String,
    },
    /// The sound is longer than the caller allows.
    #[error("{name}: longer than {}, which is the limit", seconds(*.limit))]
    TooLong {
        /// The file or stream.
        name: String,
        /// The limit.
        limit: Duration,
    },
    /// The sample rate is not plausible.
    #[error("{name}: sample rate of {rate_hz} Hz, expected {} to {limit_hz} Hz", crate::MIN_SAMPLE_RATE)]
    SampleRate {
        /// The file or stream.
        name: String,
        /// The rate found.
        rate_hz: u32,
        /// The highest rate that the caller allows.
        limit_hz: u32,
    },
    /// The file has no channels, or too many.
    #[error("{name}: {channels} channels, expected 1 to {limit}")]
    Channels {
        /// The file or stream.
        name: String,
        /// The number found.
        channels: usize,
        /// The largest number that the caller allows.
        limit: usize,
    },
    /// A sample is not a finite number, or is far beyond ±1.
    #[error("sample {index} is {value}, expected a number within ±{}", crate::LARGEST_SAMPLE)]
    NotFinite {
        /// The sample's index, counted at the sound's own sample rate.
        index: u64,
        /// The sample.
        value: f32,
    },
    /// The samples of a stream could not be kept for their second reading, or not be read again.
    #[error("{name}: keeping the sound in {} failed: {source}\nhint: TMPDIR may name a folder with more room; a minute takes 3.8 MB", .folder.display())]
    Kept {
        /// The stream.
        name: String,
        /// The folder of temporary files.
        folder: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A sound was shorter when it was read a second time.
    #[error("{name}: has become shorter while it was read")]
    Changed {
        /// The file.
        name: String,
    },
    /// The caller cancelled reading.
    #[error("{name}: reading was cancelled")]
    Cancelled {
        /// The file or stream.
        name: String,
    },
    /// Mel filters make no sense.
    #[error("mel filters: {problem}")]
    Filters {
        /// The mistake.
        problem: String,
    },
}

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, AudioError>;

impl AudioError {
    pub(crate) fn open(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Open { path, source }
    }
}

/// A duration with as many digits as it takes to differ from another.
fn apart(duration: Duration, other: Duration) -> String {
    let shown = |digits: usize, duration: Duration| format!("{:.digits$} s", duration.as_secs_f64());
    let digits = [2, 3].into_iter().find(|digits| shown(*digits, duration) != shown(*digits, other));
    shown(digits.unwrap_or(6), duration)
}

fn seconds(duration: Duration) -> String {
    format!("{:.2} s", duration.as_secs_f64())
}
