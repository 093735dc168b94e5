//! A checkpoint in GGUF's terms: keys, tables, and the place of every tensor.

use brasa_formats::gguf;
use brasa_graph::op::RopeLayout;

use crate::metadata::limits;
use crate::names::{Change, GgufPlace, Names};
use crate::source::Source;
use crate::spec::ModelSpec;
use crate::{LoadOptions, ModelError, Result, read_spec};

/// A checkpoint's configuration in GGUF's terms.
#[derive(Clone, Debug)]
pub struct GgufForm {
    /// `general.architecture`, and the prefix of the keys.
    pub architecture: &'static str,
    /// Configuration keys with their prefix, and their values, in the order of llama.cpp's converter.
    pub pairs: Vec<(String, gguf::Value)>,
    /// Tensors of factors that divide the frequency of each rotated pair: names and values.
    pub factors: Vec<(&'static str, Vec<f32>)>,
    /// True if every expert's gate and up lie in one tensor, gate first.
    pub joined_experts: bool,
    /// Messages about settings that Brasa reads from the keys and llama.cpp does not.
    pub notes: Vec<String>,
    pub(crate) spec: ModelSpec,
    pub(crate) names: Names,
}

impl GgufForm {
    /// Checks that `written`, a GGUF file in this form, computes what the checkpoint `source` computes, in short and in long
    /// contexts. Two differences are allowed: norm weights include their offset, and the heads of Llamas pair adjacent elements.
    ///
    /// # Errors
    ///
    /// [`ModelError::OtherInGguf`], naming the first setting that differs; errors of [`read_spec`].
    pub fn verify(&self, source: &Source, written: &Source) -> Result<()> {
        for context_length in [None, Some(1), Some(limits::POSITIONS)] {
            let (mut expected, _) = read_spec(source, &LoadOptions { context_length, strict: false })?;
            expected.norm_offset = 0.0;
            if self.interleaves() {
                expected.attentions().for_each(|attention| attention.rope.layout = RopeLayout::Interleaved);
            }
            let (found, _) = read_spec(written, &LoadOptions { context_length, strict: true })?;
            if let Some(difference) = expected.difference(&found) {
                return Err(ModelError::OtherInGguf { difference });
            }
        }
        Ok(())
    }

    /// The place of the checkpoint's tensor `name` in GGUF; `None` for a name that no family has.
    pub fn place(&self, name: &str) -> Option<GgufPlace> {
        let mut place = self.names.gguf_place(name, &self.spec)?;
        if let GgufPlace::Tensor { layer, name, change } = &mut place {
            *change = self.change(*layer, name);
        }
        Some(place)
    }

    fn change(&self, layer: Option<usize>, name: &str) -> Change {
        let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
        if stem.ends_with("norm") && self.spec.norm_offset != 0.0 {
            return Change::Shift(self.spec.norm_offset);
        }
        let attention = layer.map(|layer| &self.spec.layers[layer].attention).filter(|_| self.interleaves());
        let Some(attention) = attention else { return Change::None };
        let interleave = |heads| Change::Interleave {
            heads,
            head_dim: attention.head_dim,
            rotary_dim: attention.rope.rotary_dim,
        };
        match stem.rsplit_once('.').map_or(stem, |(_, last)| last) {
            "attn_q" => interleave(attention.num_heads),
            "attn_k" => interleave(attention.num_kv_heads),
            _ => Change::None,
        }
    }

    fn interleaves(&self) -> bool {
        self.architecture == "llama"
    }
}
