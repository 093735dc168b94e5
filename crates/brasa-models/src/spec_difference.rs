//! Compares two specifications from any containers: do they give the same results?

use std::fmt::Debug;

use crate::encoder::{EncoderLayerSpec, EncoderSpec};
use crate::rope::RopeSpec;
use crate::spec::{AttentionSpec, LayerSpec, ModelSpec};

/// Largest relative difference of two frequencies that count as equal: the same frequencies computed in another order may differ
/// by rounding.
const ROUNDING: f32 = 1e-5;
/// Largest frequency that counts as zero: the angle is negligible at any position.
const STILL: f32 = 1e-15;

impl ModelSpec {
    /// The first setting that changes the computation between this model and `other`, as `setting: this, other`; `None` if both
    /// compute the same. The family's name is not compared. Of RoPE the frequencies are compared, not the settings that they come
    /// from.
    pub fn difference(&self, other: &Self) -> Option<String> {
        field("vocab_size", &self.vocab_size, &other.vocab_size)
            .or_else(|| field("hidden_size", &self.hidden_size, &other.hidden_size))
            .or_else(|| field("context_length", &self.context_length, &other.context_length))
            .or_else(|| field("norm_eps", &self.norm_eps, &other.norm_eps))
            .or_else(|| field("norm_offset", &self.norm_offset, &other.norm_offset))
            .or_else(|| field("embedding_scale", &self.embedding_scale, &other.embedding_scale))
            .or_else(|| field("layers", &self.layers.len(), &other.layers.len()))
            .or_else(|| field("per_layer_inputs", &self.per_layer_inputs, &other.per_layer_inputs))
            .or_else(|| field("head", &self.head, &other.head))
            .or_else(|| field("final_softcap", &self.final_softcap, &other.final_softcap))
            .or_else(|| {
                let mut pairs = self.layers.iter().zip(&other.layers).enumerate();
                pairs.find_map(|(at, (a, b))| Some(format!("layers.{at}.{}", a.difference(b)?)))
            })
    }
}

impl EncoderSpec {
    /// The first setting that changes the computation between this and `other`, as `setting: this, other`; `None` if both compute
    /// the same. Of RoPE the frequencies are compared, not the settings that they come from.
    pub(crate) fn difference(&self, other: &Self) -> Option<String> {
        let layers = || {
            let mut pairs = self.layers.iter().zip(&other.layers).enumerate();
            pairs.find_map(|(at, (a, b))| match (&a.rope, &b.rope) {
                (Some(ours), Some(theirs)) if ours.difference(theirs).is_none() => {
                    let b = EncoderLayerSpec { rope: a.rope.clone(), ..b.clone() };
                    field(&format!("layers.{at}"), a, &b)
                }
                _ => field(&format!("layers.{at}"), a, b),
            })
        };
        let number = field("layers", &self.layers.len(), &other.layers.len());
        let without_layers = |spec: &Self| Self { layers: Vec::new(), ..spec.clone() };
        number.or_else(layers).or_else(|| field("encoder", &without_layers(self), &without_layers(other)))
    }
}

impl LayerSpec {
    fn difference(&self, other: &Self) -> Option<String> {
        field("ffn", &self.ffn, &other.ffn)
            .or_else(|| field("norms", &self.norms, &other.norms))
            .or_else(|| field("output_scalar", &self.output_scalar, &other.output_scalar))
            .or_else(|| Some(format!("attention.{}", self.attention.difference(&other.attention)?)))
    }
}

impl AttentionSpec {
    fn difference(&self, other: &Self) -> Option<String> {
        field("num_heads", &self.num_heads, &other.num_heads)
            .or_else(|| field("num_kv_heads", &self.num_kv_heads, &other.num_kv_heads))
            .or_else(|| field("head_dim", &self.head_dim, &other.head_dim))
            .or_else(|| field("qk_norm", &self.qk_norm, &other.qk_norm))
            .or_else(|| field("kv", &self.kv, &other.kv))
            .or_else(|| field("scale", &self.scale, &other.scale))
            .or_else(|| field("window", &self.window, &other.window))
            .or_else(|| field("softcap", &self.softcap, &other.softcap))
            .or_else(|| Some(format!("rope.{}", self.rope.difference(&other.rope)?)))
    }
}

impl RopeSpec {
    fn difference(&self, other: &Self) -> Option<String> {
        let frequencies = || {
            let (ours, theirs) = (self.frequencies(), other.frequencies());
            let differs = |(a, b): (&f32, &f32)| (a - b).abs() > ROUNDING * a.abs() + STILL;
            let pair = ours.iter().zip(&theirs).position(differs)?;
            field(&format!("frequencies.{pair}"), &ours[pair], &theirs[pair])
        };
        let magnitude = || {
            let close = (self.magnitude - other.magnitude).abs() <= ROUNDING * self.magnitude.abs();
            if close { None } else { field("magnitude", &self.magnitude, &other.magnitude) }
        };
        field("layout", &self.layout, &other.layout)
            .or_else(|| field("rotary_dim", &self.rotary_dim, &other.rotary_dim))
            .or_else(frequencies)
            .or_else(magnitude)
    }
}

fn field<T: PartialEq + Debug>(name: &str, a: &T, b: &T) -> Option<String> {
    (a != b).then(|| format!("{name}: {a:?}, {b:?}"))
}
