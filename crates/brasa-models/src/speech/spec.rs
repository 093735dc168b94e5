//! A model of speech as data.

use crate::keys::{
    ACTIVATION_FUNCTION, AUDIO_CONTEXT, AUDIO_FFN_WIDTH, AUDIO_HEADS, AUDIO_LAYERS, MEL_BINS, MODEL_WIDTH,
    SCALE_EMBEDDING, SPEECH_IS_ENCODER_DECODER, TEXT_CONTEXT, TEXT_FFN_WIDTH, TEXT_HEADS, TEXT_LAYERS,
    TEXT_WIDTH, TIED, VOCAB_SIZE,
};
use crate::metadata::{Metadata, limits};
use crate::spec::Activation;
use crate::{ModelError, Result};

/// A Whisper model: all settings that its graphs need besides the weights.
#[derive(Clone, Debug, PartialEq)]
pub struct SpeechSpec {
    /// Rows of the embedding table.
    pub vocab_size: usize,
    /// Mel bins of a frame of sound.
    pub num_mel_bins: usize,
    /// Width of both residual streams.
    pub hidden_size: usize,
    /// The encoder of sound. Its positions are rows of 20 ms: 1,500 for a window of 30 s.
    pub encoder: StackSpec,
    /// The decoder of text. Its positions are tokens.
    pub decoder: StackSpec,
    /// The activation between the projections of the networks.
    pub activation: Activation,
    /// Multiplies the token embeddings; `None` in all published models.
    pub embedding_scale: Option<f32>,
}

/// A stack of transformer blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackSpec {
    /// Number of blocks.
    pub layers: usize,
    /// Attention heads, which all have keys and values of their own.
    pub heads: usize,
    /// Elements between the projections of a network.
    pub ffn_width: usize,
    /// Most positions of a text or window.
    pub positions: usize,
}

/// Most rows of a window and tokens of a text. Published models have 1,500 and 448.
const POSITIONS: usize = 1 << 16;
/// Most mel bins. Published models have 80 and 128.
const MOST_MEL_BINS: usize = 1 << 10;

impl SpeechSpec {
    /// Elements of a head of the decoder, and of the memories that it reads.
    pub fn head_dim(&self) -> usize {
        self.hidden_size / self.decoder.heads
    }

    /// Frames of a window, two for each row of the encoder.
    pub fn window_frames(&self) -> usize {
        2 * self.encoder.positions
    }

    /// Reads the configuration.
    pub(crate) fn read(meta: &Metadata) -> Result<Self> {
        if meta.bool(SPEECH_IS_ENCODER_DECODER)? == Some(false) {
            return Err(ModelError::Config { what: "is_encoder_decoder is false for a Whisper".into() });
        }
        if meta.bool(TIED)? == Some(false) {
            return Err(ModelError::Config {
                what: "tie_word_embeddings is false; the head of a Whisper is its embedding table".into(),
            });
        }
        let hidden_size = meta.require(MODEL_WIDTH, limits::WIDTH)?;
        let text_width = meta.count(TEXT_WIDTH, limits::WIDTH)?.unwrap_or(hidden_size);
        if text_width != hidden_size {
            return Err(ModelError::Dimensions {
                what: format!("an encoder of width {hidden_size} and a decoder of width {text_width}"),
                expected: "one width".into(),
            });
        }
        let encoder = StackSpec {
            layers: meta.require(AUDIO_LAYERS, limits::LAYERS)?,
            heads: meta.require(AUDIO_HEADS, limits::HEADS)?,
            ffn_width: meta.count(AUDIO_FFN_WIDTH, limits::FFN_WIDTH)?.unwrap_or(4 * hidden_size),
            positions: meta.require(AUDIO_CONTEXT, POSITIONS)?,
        };
        let decoder = StackSpec {
            layers: meta.require(TEXT_LAYERS, limits::LAYERS)?,
            heads: meta.require(TEXT_HEADS, limits::HEADS)?,
            ffn_width: meta.count(TEXT_FFN_WIDTH, limits::FFN_WIDTH)?.unwrap_or(4 * hidden_size),
            positions: meta.require(TEXT_CONTEXT, POSITIONS)?,
        };
        for (stack, heads) in [("encoder", encoder.heads), ("decoder", decoder.heads)] {
            if !hidden_size.is_multiple_of(heads) {
                return Err(ModelError::Dimensions {
                    what: format!("{heads} heads of the {stack} for a width of {hidden_size}"),
                    expected: "a width that is a multiple of the heads".into(),
                });
            }
        }
        let activation = match meta.text(ACTIVATION_FUNCTION)? {
            None | Some("gelu") => Activation::GeluErf,
            Some("gelu_new" | "gelu_pytorch_tanh") => Activation::GeluTanh,
            Some("silu" | "swish") => Activation::Silu,
            Some(other) => {
                let expected = "gelu, gelu_new, gelu_pytorch_tanh, silu or swish";
                return Err(meta.bad_value("activation_function", &other.into(), expected));
            }
        };
        let scaled = meta.bool(SCALE_EMBEDDING)? == Some(true);
        Ok(Self {
            vocab_size: meta.require(VOCAB_SIZE, limits::VOCAB)?,
            num_mel_bins: meta.count(MEL_BINS, MOST_MEL_BINS)?.unwrap_or(80),
            hidden_size,
            encoder,
            decoder,
            activation,
            embedding_scale: scaled.then(|| (hidden_size as f32).sqrt()),
        })
    }
}
