//! The heads of a Whisper's decoder that look where a token is spoken.

use brasa_formats::Checkpoint;
use serde_json::Value;

use super::SpeechSpec;
use crate::metadata::shortened;
use crate::{ModelError, Result};

const CONFIG: &str = "generation_config.json";
const KEY: &str = "alignment_heads";

impl SpeechSpec {
    /// Layer and head of each head by which words are timed: those that `generation_config.json` names, else all heads of the
    /// later half of the decoder, as in openai-whisper.
    ///
    /// # Errors
    ///
    /// [`ModelError::Config`] for a `generation_config.json` that cannot be read, [`ModelError::BadValue`] for heads that the
    /// model does not have.
    pub fn alignment_heads(&self, checkpoint: &Checkpoint) -> Result<Vec<(usize, usize)>> {
        let config = |what: String| ModelError::Config { what };
        let text = checkpoint.sidecar_text(CONFIG).map_err(|error| config(error.to_string()))?;
        let named = match text {
            Some(text) => {
                let config: Value =
                    serde_json::from_str(&text).map_err(|error| config(format!("{CONFIG}: {error}")))?;
                config.get(KEY).filter(|value| !value.is_null()).cloned()
            }
            None => None,
        };
        let Some(named) = named else { return Ok(self.later_heads()) };
        let bad = || ModelError::BadValue {
            key: format!("{CONFIG}: {KEY}"),
            found: shortened(&named),
            expected: format!(
                "pairs of a layer below {} and a head below {}",
                self.decoder.layers, self.decoder.heads
            ),
        };
        let pair = |pair: &Value| {
            let [layer, head] = pair.as_array()?.as_slice() else { return None };
            let (layer, head) = (layer.as_u64()? as usize, head.as_u64()? as usize);
            (layer < self.decoder.layers && head < self.decoder.heads).then_some((layer, head))
        };
        let pairs = named.as_array().ok_or_else(bad)?;
        let mut heads: Vec<_> =
            pairs.iter().map(|value| pair(value).ok_or_else(bad)).collect::<Result<_>>()?;
        heads.sort_unstable();
        heads.dedup();
        if heads.is_empty() { Err(bad()) } else { Ok(heads) }
    }

    fn later_heads(&self) -> Vec<(usize, usize)> {
        let layers = self.decoder.layers / 2..self.decoder.layers;
        layers.flat_map(|layer| (0..self.decoder.heads).map(move |head| (layer, head))).collect()
    }
}
