//! Opus (RFC 6716, RFC 8251), which symphonia finds in OGG (RFC 7845) and WebM and does not decode.

use opus_decoder::OpusMultistreamDecoder;

/// The sample rate of decoded sound in Hz, for any rate of the original.
pub(super) const RATE_HZ: u32 = 48_000;
/// Frames of the longest packet: 120 ms.
const MOST_FRAMES: usize = 5760;

/// A decoder with the settings of the identification header.
pub(super) struct Opus {
    decoder: OpusMultistreamDecoder,
    channels: usize,
    /// The gain from the header, as a factor.
    gain: f32,
    /// Frames before the sound, which the decoder needs to settle.
    pub(super) delay: usize,
    samples: Vec<i16>,
}

impl Opus {
    /// A decoder for a stream of `channels`, whose identification header is `head`. Some files have no header; the settings are
    /// then those of one stream.
    ///
    /// # Errors
    ///
    /// A message with the mistake in the header.
    pub(super) fn new(head: Option<&[u8]>, channels: usize) -> Result<Self, String> {
        let Head { channels, delay, gain, streams, coupled, mapping } = match head {
            Some(head) if !head.is_empty() => Head::read(head).ok_or("its Opus header makes no sense")?,
            _ => Head::of_channels(channels, 0, 0).ok_or("its Opus stream has no header")?,
        };
        let decoder = OpusMultistreamDecoder::new(RATE_HZ, channels, streams, coupled, &mapping)
            .map_err(|error| error.to_string())?;
        let gain = 10_f32.powf(f32::from(gain) / (20.0 * 256.0));
        Ok(Self { decoder, channels, gain, delay, samples: vec![0; MOST_FRAMES * channels] })
    }

    /// Channels of the decoded samples.
    pub(super) fn channels(&self) -> usize {
        self.channels
    }

    /// Decodes a packet into interleaved samples; returns the number of frames.
    ///
    /// # Errors
    ///
    /// A message with the mistake in the packet.
    pub(super) fn decode(&mut self, packet: &[u8], interleaved: &mut Vec<f32>) -> Result<usize, String> {
        let frames =
            self.decoder.decode(packet, &mut self.samples, false).map_err(|error| error.to_string())?;
        let samples = &self.samples[..(frames * self.channels).min(self.samples.len())];
        let scale = self.gain / 32_768.0;
        interleaved.clear();
        interleaved.extend(samples.iter().map(|&sample| f32::from(sample) * scale));
        Ok(samples.len() / self.channels)
    }
}

/// The identification header.
struct Head {
    channels: usize,
    delay: usize,
    /// The gain in 256ths of a decibel.
    gain: i16,
    streams: usize,
    coupled: usize,
    mapping: Vec<u8>,
}

impl Head {
    fn read(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(b"OpusHead")?;
        let (&version, &channels) = (rest.first()?, rest.get(1)?);
        // Minor versions only add to what is there.
        if version >> 4 != 0 {
            return None;
        }
        let channels = usize::from(channels);
        let delay = usize::from(u16::from_le_bytes([*rest.get(2)?, *rest.get(3)?]));
        let gain = i16::from_le_bytes([*rest.get(8)?, *rest.get(9)?]);
        if rest.get(10)? == &0 {
            Self::of_channels(channels, delay, gain)
        } else {
            let (streams, coupled) = (usize::from(*rest.get(11)?), usize::from(*rest.get(12)?));
            let mapping = rest.get(13..13 + channels)?.to_vec();
            Some(Self { channels, delay, gain, streams, coupled, mapping })
        }
    }

    /// The settings for one stream of one or two channels.
    fn of_channels(channels: usize, delay: usize, gain: i16) -> Option<Self> {
        let mapping = match channels {
            1 => vec![0],
            2 => vec![0, 1],
            _ => return None,
        };
        Some(Self { channels, delay, gain, streams: 1, coupled: channels - 1, mapping })
    }
}
