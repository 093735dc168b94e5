//! Reading RoPE from configuration: the old `rope_scaling`, the newer `rope_parameters` (flat or by layer type), and
//! GGUF's keys and factor tensors.

use std::cell::RefCell;

use brasa_graph::op::RopeLayout;
use serde_json::{Map, Value};

use crate::keys::{
    ROPE_ATTENTION_FACTOR, ROPE_DIM, ROPE_LOCAL_DIM, ROPE_LOCAL_THETA, ROPE_ORIGINAL, ROPE_PARAMETERS,
    ROPE_PARTIAL, ROPE_SCALING_FACTOR, ROPE_SCALING_TYPE, ROPE_THETA, YARN_ATTENTION_FACTOR, YARN_BETA_FAST,
    YARN_BETA_SLOW, YARN_EXTRAPOLATION,
};
use crate::metadata::{Metadata, finite, limits};
use crate::rope::{RopeScaling, RopeSpec, longrope_magnitude, yarn_magnitude};
use crate::{ModelError, Result};

/// The kind of a layer: full attention, or a window. Some families rotate differently in each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LayerKind {
    Full,
    Sliding,
}

/// Facts about RoPE that the family supplies for reading the configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RopeQuery {
    pub layout: RopeLayout,
    pub head_dim: usize,
    /// The longest context that the model was trained for, in positions.
    pub context_length: usize,
    /// Base if the file names none.
    pub default_theta: f32,
    /// Context length before stretching if the file names none; the model's own otherwise.
    pub default_original: Option<usize>,
    /// The kind of the layers that the RoPE is for; `None` if the family does not distinguish kinds.
    pub kind: Option<LayerKind>,
}

/// Reads the RoPE of the layers that `query` describes.
pub(crate) fn rope(meta: &Metadata, query: RopeQuery) -> Result<RopeSpec> {
    let spec = if meta.is_gguf() { from_gguf(meta, query)? } else { from_hf(meta, query)? };
    let whole = spec.rotary_dim > 0 && spec.rotary_dim.is_multiple_of(2) && spec.rotary_dim <= query.head_dim;
    if whole {
        return Ok(spec);
    }
    Err(ModelError::Dimensions {
        what: format!("RoPE turns {} elements of heads of {}", spec.rotary_dim, query.head_dim),
        expected: "an even number, at most the head".into(),
    })
}

fn from_hf(meta: &Metadata, query: RopeQuery) -> Result<RopeSpec> {
    let top_theta = meta.positive(ROPE_THETA)?;
    let local_theta = meta.positive(ROPE_LOCAL_THETA)?;
    let partial = meta.number(ROPE_PARTIAL)?;
    let fields = Fields::find(meta, query.kind)?;
    let theta = fields.number("rope_theta")?.or(match query.kind {
        Some(LayerKind::Sliding) => local_theta,
        _ => top_theta,
    });
    let theta = theta.unwrap_or(query.default_theta);
    let partial = fields.number("partial_rotary_factor")?.or(partial).unwrap_or(1.0);
    if !(theta > 0.0 && (0.0..=1.0).contains(&partial)) {
        return Err(ModelError::Dimensions {
            what: format!("rope_theta {theta}, partial_rotary_factor {partial}"),
            expected: "a base above zero and a share from 0 to 1".into(),
        });
    }
    let mut spec = RopeSpec {
        layout: query.layout,
        rotary_dim: (query.head_dim as f32 * partial) as usize,
        theta,
        divisors: None,
        scaling: RopeScaling::None,
        magnitude: 1.0,
    };

    let context = query.context_length as f32;
    // Phi-3 keeps it beside the parameters, and there it counts first.
    let original = meta.positive(ROPE_ORIGINAL)?.or(fields.number("original_max_position_embeddings")?);
    let original = original.unwrap_or(query.default_original.map_or(context, |original| original as f32));
    let long_factors = fields.numbers("long_factor")?;
    let short_factors = fields.numbers("short_factor")?;
    let kind = fields.text("rope_type")?.or(fields.text("type")?).unwrap_or("default");
    match kind {
        // Early Phi-3 exports call their LongRoPE `su` or `yarn`.
        "longrope" | "su" | "yarn" if long_factors.is_some() || kind != "yarn" => {
            let factor = fields.number("factor")?.unwrap_or(context / original);
            let chosen = if is_long(meta, query, original) { long_factors } else { short_factors };
            let missing = || ModelError::MissingKey { key: fields.path("long_factor and short_factor") };
            let chosen = fields.divisors(chosen.ok_or_else(missing)?, spec.rotary_dim / 2)?;
            spec.divisors = Some(chosen.into());
            spec.magnitude = match fields.number("attention_factor")? {
                Some(given) => given,
                None => stretched_magnitude(factor, original)?,
            };
        }
        "default" => {}
        "linear" => spec.scaling = RopeScaling::Linear { factor: fields.required("factor")? },
        "llama3" => {
            let low_freq_factor = fields.required("low_freq_factor")?;
            let high_freq_factor = fields.required("high_freq_factor")?;
            if high_freq_factor <= low_freq_factor {
                return Err(ModelError::BadValue {
                    key: fields.path("high_freq_factor"),
                    found: high_freq_factor.to_string(),
                    expected: format!("more than low_freq_factor, {low_freq_factor}"),
                });
            }
            let factor = fields.required("factor")?;
            spec.scaling = RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original };
        }
        "yarn" => {
            let factor = fields.number("factor")?.unwrap_or(context / original);
            spec.scaling = RopeScaling::Yarn {
                factor,
                beta_fast: fields.number("beta_fast")?.unwrap_or(32.0),
                beta_slow: fields.number("beta_slow")?.unwrap_or(1.0),
                original,
                truncate: fields.bool("truncate")?.unwrap_or(true),
            };
            let mscale = fields.number("mscale")?.filter(|&m| m != 0.0);
            let mscale_all = fields.number("mscale_all_dim")?.filter(|&m| m != 0.0);
            spec.magnitude = match (fields.number("attention_factor")?, mscale, mscale_all) {
                (Some(given), ..) => given,
                (None, Some(m), Some(all)) => yarn_magnitude(factor, m) / yarn_magnitude(factor, all),
                _ => yarn_magnitude(factor, 1.0),
            };
        }
        "proportional" => {
            spec.rotary_dim = query.head_dim;
            spec.scaling = RopeScaling::Proportional {
                rotated: (query.head_dim as f32 * partial / 2.0) as usize,
                factor: fields.number("factor")?.unwrap_or(1.0),
            };
        }
        other => {
            return Err(ModelError::BadValue {
                key: fields.path("rope_type"),
                found: other.into(),
                expected: "default, linear, llama3, yarn, longrope or proportional".into(),
            });
        }
    }
    fields.finish(meta)?;
    Ok(spec)
}

fn from_gguf(meta: &Metadata, query: RopeQuery) -> Result<RopeSpec> {
    let sliding = query.kind == Some(LayerKind::Sliding);
    // Both are read whatever is asked, so that neither counts as unknown.
    let (theta, local_theta) = (meta.positive(ROPE_THETA)?, meta.positive(ROPE_LOCAL_THETA)?);
    let (dim, local_dim) =
        (meta.count(ROPE_DIM, limits::HEAD_DIM)?, meta.count(ROPE_LOCAL_DIM, limits::HEAD_DIM)?);
    let context = query.context_length as f32;
    let original = meta.positive(ROPE_ORIGINAL)?.unwrap_or(context);
    let factor = meta.cap(ROPE_SCALING_FACTOR)?.filter(|factor| factor - 1.0 != 0.0);
    if meta.number(ROPE_SCALING_FACTOR)? == Some(0.0) {
        meta.warn_once("rope.scaling.factor is 0 and counts as unset");
    }
    let attention_factor = meta.positive(ROPE_ATTENTION_FACTOR)?;
    let yarn_attention_factor = meta.positive(YARN_ATTENTION_FACTOR)?;
    let (beta_fast, beta_slow) = (meta.positive(YARN_BETA_FAST)?, meta.positive(YARN_BETA_SLOW)?);
    let extrapolated = meta.number(YARN_EXTRAPOLATION)?.is_none_or(|factor| factor - 1.0 == 0.0);
    let kind = meta.text(ROPE_SCALING_TYPE)?.unwrap_or("linear");

    let mut spec = RopeSpec {
        layout: query.layout,
        rotary_dim: if sliding { local_dim.or(dim) } else { dim }.unwrap_or(query.head_dim),
        theta: if sliding {
            // The families of such layers define their base.
            local_theta.unwrap_or(query.default_theta)
        } else if matches!(meta.source().architecture(), "gemma" | "gemma2") {
            // So do these, of which llama.cpp's converter never writes it.
            theta.unwrap_or(query.default_theta)
        } else {
            meta.or_assumed(ROPE_THETA, theta, query.default_theta)?
        },
        divisors: None,
        scaling: RopeScaling::None,
        magnitude: attention_factor.unwrap_or(1.0),
    };
    let pairs = spec.rotary_dim / 2;
    // Both sets count as used, whichever it is.
    if ["rope_factors_long.weight", "rope_factors_short.weight"].map(|name| meta.uses_tensor(name))
        == [true; 2]
    {
        let name = if is_long(meta, query, original) { "rope_factors_long" } else { "rope_factors_short" };
        let name = format!("{name}.weight");
        let factors = meta.vector(&name, pairs)?.ok_or(ModelError::MissingTensor { tensor: name })?;
        spec.divisors = Some(factors.into());
        spec.magnitude = match attention_factor {
            Some(given) => given,
            None => stretched_magnitude(context / original, original)?,
        };
        return Ok(spec);
    }
    if sliding {
        // Scaling and factors are of the layers that see everything (Gemma 3 and 4).
        return Ok(spec);
    }
    spec.divisors = meta.vector("rope_freqs.weight", pairs)?.map(Into::into);
    match kind {
        "none" | "longrope" => {}
        "linear" => {
            spec.scaling = factor.map_or(RopeScaling::None, |factor| RopeScaling::Linear { factor });
        }
        "yarn" if extrapolated => {
            let factor = factor.unwrap_or(1.0);
            spec.scaling = RopeScaling::Yarn {
                factor,
                beta_fast: beta_fast.unwrap_or(32.0),
                beta_slow: beta_slow.unwrap_or(1.0),
                original,
                truncate: true,
            };
            // The converter carries transformers' `attention_factor` over, and llama.cpp passes over it for most
            // families. We follow transformers.
            spec.magnitude =
                yarn_attention_factor.unwrap_or_else(|| spec.magnitude * yarn_magnitude(factor, 1.0));
        }
        other => {
            let expected = "none, linear, yarn with an extrapolation factor of 1, or longrope";
            return Err(meta.bad_value("rope.scaling.type", &Value::from(other), expected));
        }
    }
    Ok(spec)
}

/// The magnitude of LongRoPE. It is undefined for an original context of one position or less.
fn stretched_magnitude(factor: f32, original: f32) -> Result<f32> {
    let magnitude = longrope_magnitude(factor, original);
    if magnitude.is_finite() {
        return Ok(magnitude);
    }
    let what = format!("LongRoPE stretches an original context of {original} positions by {factor}");
    Err(ModelError::Dimensions { what, expected: "an original context of more than one".into() })
}

/// LongRoPE has one set of factors for texts within the original context and one for longer ones. A graph has one set: the long
/// one if the wanted context (or else the model's own) exceeds the original. transformers changes sets when a text passes the
/// mark, with keys of both kinds in its cache.
fn is_long(meta: &Metadata, query: RopeQuery, original: f32) -> bool {
    meta.wanted_context().unwrap_or(query.context_length) as f32 > original
}

/// The RoPE parameters of some layers, and which of them were read.
struct Fields<'a> {
    /// Objects and their names; the first that has a parameter supplies it.
    maps: Vec<(String, &'a Map<String, Value>)>,
    read: RefCell<Vec<&'static str>>,
}

impl<'a> Fields<'a> {
    /// transformers takes `rope_parameters` unless there is a `rope_scaling`; in families whose layers rotate differently, a flat
    /// `rope_scaling` is laid over the parameters of the layers without a window.
    fn find(meta: &Metadata<'a>, kind: Option<LayerKind>) -> Result<Self> {
        let mut maps = Vec::new();
        for (name, map) in meta.objects(ROPE_PARAMETERS)? {
            if ["full_attention", "sliding_attention"].iter().any(|kind| map.contains_key(*kind)) {
                let kind = match kind {
                    Some(LayerKind::Sliding) => "sliding_attention",
                    _ => "full_attention",
                };
                let own = map.get(kind).and_then(Value::as_object);
                maps.extend(own.map(|own| (format!("{name}.{kind}."), own)));
            } else if kind != Some(LayerKind::Sliding) {
                maps.push((format!("{name}."), map));
            }
            if kind.is_none() {
                break;
            }
        }
        Ok(Self { maps, read: RefCell::default() })
    }

    /// The full name of a parameter, for messages; also for a missing parameter.
    fn path(&self, key: &str) -> String {
        let holder = self.maps.iter().find(|(_, map)| map.contains_key(key)).or(self.maps.first());
        holder.map_or_else(|| key.into(), |(prefix, _)| format!("{prefix}{key}"))
    }

    fn get<T>(
        &self,
        key: &'static str,
        expected: &str,
        convert: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        self.read.borrow_mut().push(key);
        let value = self.maps.iter().find_map(|(_, map)| map.get(key).filter(|value| !value.is_null()));
        let Some(value) = value else { return Ok(None) };
        convert(value).map(Some).ok_or_else(|| ModelError::BadValue {
            key: self.path(key),
            found: crate::metadata::shortened(value),
            expected: expected.into(),
        })
    }

    /// The number above zero under a name; `partial_rotary_factor` may be zero.
    fn number(&self, key: &'static str) -> Result<Option<f32>> {
        let least = if key == "partial_rotary_factor" { -1.0 } else { 0.0 };
        self.get(key, "a number above zero", |value| finite(value).filter(|&x| x > least))
    }

    fn required(&self, key: &'static str) -> Result<f32> {
        self.number(key)?.ok_or_else(|| ModelError::MissingKey { key: self.path(key) })
    }

    fn bool(&self, key: &'static str) -> Result<Option<bool>> {
        self.get(key, "true or false", Value::as_bool)
    }

    fn text(&self, key: &'static str) -> Result<Option<&'a str>> {
        self.get(key, "a string", Value::as_str)
    }

    fn numbers(&self, key: &'static str) -> Result<Option<Vec<f32>>> {
        self.get(key, "an array of numbers above zero", |value| {
            value.as_array()?.iter().map(|one| finite(one).filter(|&x| x > 0.0)).collect()
        })
    }

    fn divisors(&self, factors: Vec<f32>, pairs: usize) -> Result<Vec<f32>> {
        if factors.len() == pairs {
            return Ok(factors);
        }
        Err(ModelError::BadValue {
            key: self.path("long_factor and short_factor"),
            found: format!("{} factors", factors.len()),
            expected: format!("{pairs}, one per rotated pair"),
        })
    }

    /// Reports parameters that were never read.
    fn finish(self, meta: &Metadata) -> Result<()> {
        let read = self.read.borrow();
        for (prefix, map) in &self.maps {
            for (key, value) in *map {
                if !read.contains(&key.as_str()) && key != "finetuned" {
                    meta.unknown(&format!("{prefix}{key}"), value)?;
                }
            }
        }
        Ok(())
    }
}
