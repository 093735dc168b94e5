//! Everything that symphonia reads.
//!
//! Each call is guarded: a panic of symphonia is the error that a damaged file is.

use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use brasa_fault::without_panic;
use symphonia::core::audio::Channels;
use symphonia::core::codecs::audio::well_known::{CODEC_ID_AAC, CODEC_ID_OPUS};
use symphonia::core::codecs::audio::{AudioDecoder, AudioDecoderOptions};
use symphonia::core::errors::Error;
use symphonia::core::formats::probe::Hint;
use symphonia::core::formats::{FormatOptions, FormatReader, TrackType};
use symphonia::core::io::{MediaSource, MediaSourceStream, MediaSourceStreamOptions};
use symphonia::core::meta::MetadataOptions;
use symphonia::core::packet::Packet;

use crate::{AudioError, Limits, Result};

use super::opus::{self, Opus};
use super::{Input, Source, check, duration, mix, shortfall};

/// Number of consecutive packets that cannot be decoded from which on the file counts as damaged.
const MOST_BROKEN_PACKETS: u32 = 50;
/// Samples that every encoder of AAC puts in front of the sound: one frame, the first half of an overlap. Some files declare this
/// delay in a list of edits, which symphonia ignores.
const AAC_DELAY: usize = 1024;

pub(super) struct Decoder {
    format: Box<dyn FormatReader>,
    codec: Codec,
    track: u32,
    rate: u32,
    claimed: Option<u64>,
    frames: u64,
    /// Frames before the sound that have not been skipped yet.
    delay: usize,
    /// Frames of the last packet; a packet that cannot be decoded becomes silence of this length.
    packet_frames: usize,
    broken_packets: u32,
    interleaved: Vec<f32>,
    name: String,
    limits: Limits,
    warnings: Vec<String>,
}

/// The decoder of packets.
enum Codec {
    Symphonia(Box<dyn AudioDecoder>),
    Opus(Box<Opus>),
}

/// The form of decoded samples.
struct Decoded {
    rate: u32,
    channels: usize,
    frames: usize,
}

impl Codec {
    /// Decodes a packet into interleaved samples.
    fn decode(
        &mut self,
        packet: &Packet,
        interleaved: &mut Vec<f32>,
    ) -> symphonia::core::errors::Result<Decoded> {
        match self {
            Self::Symphonia(codec) => {
                let buffer = codec.decode(packet)?;
                interleaved.clear();
                buffer.copy_to_vec_interleaved(interleaved);
                let (rate, channels) = (buffer.spec().rate(), buffer.spec().channels().count());
                Ok(Decoded { rate, channels, frames: buffer.frames() })
            }
            Self::Opus(opus) => {
                let frames = opus
                    .decode(&packet.data, interleaved)
                    .map_err(|_| Error::DecodeError("a packet that is no Opus"))?;
                // Frames behind the end, to which the last packet was filled up.
                let kept = frames - usize::try_from(packet.trim_end.get()).unwrap_or(0).min(frames);
                interleaved.truncate(kept * opus.channels());
                Ok(Decoded { rate: opus::RATE_HZ, channels: opus.channels(), frames: kept })
            }
        }
    }
}

/// The outcome of reading a packet.
enum Step {
    Samples,
    Nothing,
    End,
}

impl Decoder {
    pub(super) fn new(input: Input, name: &str, limits: &Limits, warnings: Vec<String>) -> Result<Self> {
        guarded(name, Duration::ZERO, || Self::probe(input, name, limits, warnings))
    }

    fn probe(input: Input, name: &str, limits: &Limits, warnings: Vec<String>) -> Result<Self> {
        let mut hint = Hint::new();
        if let Some(extension) = Path::new(name).extension().and_then(|extension| extension.to_str()) {
            hint.with_extension(extension);
        }
        let stream =
            MediaSourceStream::new(Box::new(Shared(Mutex::new(input))), MediaSourceStreamOptions::default());
        let format = symphonia::default::get_probe()
            .probe(&hint, stream, FormatOptions::default(), MetadataOptions::default())
            .map_err(|error| unrecognised(name, error))?;
        let no_sound = || AudioError::Empty { name: name.to_owned() };
        let track = format.default_track(TrackType::Audio).ok_or_else(no_sound)?;
        let parameters =
            track.codec_params.as_ref().and_then(|parameters| parameters.audio()).ok_or_else(no_sound)?;
        let unsupported = |what: String| AudioError::Unsupported { name: name.to_owned(), what };
        let (codec, rate, delay) = if parameters.codec == CODEC_ID_OPUS {
            let channels = parameters.channels.as_ref().map_or(1, Channels::count);
            check(name, opus::RATE_HZ, channels, limits)?;
            let opus = Opus::new(parameters.extra_data.as_deref(), channels).map_err(unsupported)?;
            let delay = opus.delay;
            (Codec::Opus(Box::new(opus)), opus::RATE_HZ, delay)
        } else {
            let codec = symphonia::default::get_codecs()
                .make_audio_decoder(parameters, &AudioDecoderOptions::default())
                .map_err(|error| {
                    unsupported(match error {
                        Error::Unsupported(_) => {
                            format!("the codec of the {} file", format.format_info().long_name)
                        }
                        error => error.to_string(),
                    })
                })?;
            let delay = if parameters.codec == CODEC_ID_AAC { AAC_DELAY } else { 0 };
            (Codec::Symphonia(codec), parameters.sample_rate.unwrap_or(0), delay)
        };
        // Some containers leave the number of channels to the codec's packets, which are checked one by one.
        check(name, rate, parameters.channels.as_ref().map_or(1, Channels::count), limits)?;
        let (track, claimed) = (track.id, track.num_frames);
        Ok(Self {
            format,
            codec,
            track,
            rate,
            claimed,
            frames: 0,
            delay,
            packet_frames: 0,
            broken_packets: 0,
            interleaved: Vec::new(),
            name: name.to_owned(),
            limits: *limits,
            warnings,
        })
    }

    fn step(&mut self, mono: &mut Vec<f32>) -> Result<Step> {
        let packet = match self.format.next_packet() {
            Ok(Some(packet)) => packet,
            Ok(None) | Err(Error::ResetRequired) => return Ok(Step::End),
            Err(Error::IoError(error)) if error.kind() == ErrorKind::UnexpectedEof => return self.cut_off(),
            Err(Error::IoError(source)) => {
                return Err(AudioError::Read { name: self.name.clone(), at: self.at(), source });
            }
            Err(error) => return Err(self.damaged(error.to_string())),
        };
        if packet.track_id != self.track {
            return Ok(Step::Nothing);
        }
        let Decoded { rate, channels, frames } = match self.codec.decode(&packet, &mut self.interleaved) {
            Ok(decoded) => decoded,
            Err(Error::DecodeError(_) | Error::IoError(_)) if self.broken_packets < MOST_BROKEN_PACKETS => {
                self.broken_packets += 1;
                mono.resize(mono.len() + self.packet_frames, 0.0);
                self.frames += self.packet_frames as u64;
                return Ok(Step::Nothing);
            }
            Err(error) => return Err(self.damaged(error.to_string())),
        };
        if rate != self.rate {
            let reason = format!("the sample rate changes from {} Hz to {rate} Hz", self.rate);
            return Err(self.damaged(reason));
        }
        check(&self.name, rate, channels, &self.limits)?;
        self.broken_packets = 0;
        self.packet_frames = frames;
        self.frames += frames as u64;
        let delay = self.delay.min(frames);
        self.delay -= delay;
        mix(&self.interleaved[delay * channels..], channels, mono);
        Ok(if frames > delay { Step::Samples } else { Step::Nothing })
    }

    /// The bytes end in the middle of a packet.
    fn cut_off(&mut self) -> Result<Step> {
        if let Some(claimed) = self.claimed {
            let warning = shortfall(&self.name, self.frames, claimed, self.rate, 0)?;
            self.warnings.extend(warning);
        }
        Ok(Step::End)
    }

    fn damaged(&self, reason: String) -> AudioError {
        AudioError::Damaged { name: self.name.clone(), at: self.at(), reason }
    }

    fn at(&self) -> Duration {
        duration(self.frames, self.rate)
    }
}

impl Source for Decoder {
    fn rate(&self) -> u32 {
        self.rate
    }

    fn claimed(&self) -> Option<u64> {
        self.claimed
    }

    fn warnings(&self) -> &[String] {
        &self.warnings
    }

    fn next(&mut self, mono: &mut Vec<f32>) -> Result<bool> {
        let (name, at) = (self.name.clone(), self.at());
        guarded(&name, at, || {
            loop {
                match self.step(mono)? {
                    Step::Samples => return Ok(true),
                    Step::Nothing => {}
                    Step::End => return Ok(!mono.is_empty()),
                }
            }
        })
    }
}

/// Runs symphonia; a panic in it becomes an error.
fn guarded<T>(name: &str, at: Duration, run: impl FnOnce() -> Result<T>) -> Result<T> {
    without_panic(run).unwrap_or_else(|_| {
        Err(AudioError::Damaged { name: name.to_owned(), at, reason: "the decoder gave up on it".to_owned() })
    })
}

fn unrecognised(name: &str, error: Error) -> AudioError {
    let name = name.to_owned();
    match error {
        Error::IoError(source) if source.kind() != ErrorKind::UnexpectedEof => {
            AudioError::Read { name, at: Duration::ZERO, source }
        }
        Error::IoError(_) => AudioError::Format { name, reason: "it ends too early".to_owned() },
        // The words of symphonia are about its readers.
        Error::Unsupported(_) => AudioError::Format {
            name,
            reason: "its bytes are in no format of sound that is known".to_owned(),
        },
        error => AudioError::Format { name, reason: error.to_string() },
    }
}

/// An input in the form that symphonia requires: shared between threads, though only one ever reads it.
struct Shared(Mutex<Input>);

impl Shared {
    fn input(&mut self) -> &mut Input {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Read for Shared {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.input().read(to)
    }
}

impl Seek for Shared {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        match self.input() {
            Input::Whole { bytes, .. } => bytes.seek(to),
            Input::Stream(_) => Err(ErrorKind::Unsupported.into()),
        }
    }
}

impl MediaSource for Shared {
    fn is_seekable(&self) -> bool {
        self.byte_len().is_some()
    }

    fn byte_len(&self) -> Option<u64> {
        match &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Input::Whole { len, .. } => Some(*len),
            Input::Stream(_) => None,
        }
    }
}
