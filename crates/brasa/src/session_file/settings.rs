//! The settings of a generation in a file's header.

use brasa_engine::{ContextPolicy, GenerateOptions};
use brasa_graph::sampling::{Distribution, Dry, DryBreakers, Logprobs, SamplingOrder, SamplingParams};
use serde_json::{Value, json};

use super::SessionFileError;

/// The settings that a text depends on, as JSON. A mask is a program and is left out.
pub(crate) fn to_json(options: &GenerateOptions) -> Value {
    let sampling = &options.sampling;
    let bias = sampling.logit_bias.iter().map(|&(id, bias)| {
        // JSON has no infinity.
        json!([id, bias.is_finite().then_some(bias)])
    });
    json!({
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "typical_p": sampling.typical_p,
        "top_n_sigma": sampling.top_n_sigma,
        "xtc": [sampling.xtc_probability, sampling.xtc_threshold],
        "dynatemp": [sampling.dynatemp_range, sampling.dynatemp_exponent],
        "dry": sampling.dry.is_on().then(|| json!({
            "multiplier": sampling.dry.multiplier,
            "base": sampling.dry.base,
            "allowed_length": sampling.dry.allowed_length,
            "last_n": sampling.dry.last_n,
            "breakers": sampling.dry.breakers.sequences(),
        })),
        "repeat_penalty": sampling.repeat_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "presence_penalty": sampling.presence_penalty,
        "repeat_last_n": sampling.repeat_last_n,
        "logit_bias": bias.collect::<Value>(),
        "suppressed": sampling.suppressed,
        "min_tokens": sampling.min_tokens,
        "seed": sampling.seed,
        "order": order(sampling.order),
        "logprobs": sampling.logprobs.map(|logprobs| json!({
            "top": logprobs.top,
            "final": logprobs.of == Distribution::Final,
        })),
        "entropy": sampling.entropy,
        "max_tokens": options.max_tokens,
        "stop_ids": options.stop_ids,
        "stop_strings": options.stop_strings,
        "ignore_eos": options.ignore_eos,
        "context_policy": match options.context_policy {
            ContextPolicy::Stop => json!("stop"),
            ContextPolicy::Slide { keep } => json!(keep),
            _ => json!("error"),
        },
    })
}

/// Reads the settings from a header.
///
/// # Errors
///
/// [`SessionFileError::Malformed`], naming the setting.
pub(crate) fn from_json(value: &Value) -> Result<GenerateOptions, SessionFileError> {
    let settings = Settings(value);
    let order = settings.get("order", |value| {
        if let Some(name) = value.as_str() {
            return SamplingOrder::NAMED.iter().find(|(known, _)| *known == name).map(|&(_, order)| order);
        }
        let names: Option<Vec<&str>> = value.as_array()?.iter().map(Value::as_str).collect();
        SamplingOrder::from_names(names?).ok()
    })?;
    let logprobs = settings.optional("logprobs", |value| {
        let of = if value["final"].as_bool()? { Distribution::Final } else { Distribution::Raw };
        Some(Logprobs { top: count(&value["top"])?, of })
    })?;
    // Files that are older than these settings do not have them.
    let neutral = SamplingParams::default();
    let pair = |value: &Value| Some((float(value.get(0)?)?, float(value.get(1)?)?));
    let (xtc_probability, xtc_threshold) =
        settings.later("xtc", (neutral.xtc_probability, neutral.xtc_threshold), pair)?;
    let (dynatemp_range, dynatemp_exponent) =
        settings.later("dynatemp", (neutral.dynatemp_range, neutral.dynatemp_exponent), pair)?;
    let sampling = SamplingParams {
        typical_p: settings.later("typical_p", neutral.typical_p, float)?,
        top_n_sigma: settings.later("top_n_sigma", neutral.top_n_sigma, float)?,
        xtc_probability,
        xtc_threshold,
        dynatemp_range,
        dynatemp_exponent,
        dry: settings.later("dry", neutral.dry, dry)?,
        temperature: settings.get("temperature", float)?,
        top_k: settings.get("top_k", count)?,
        top_p: settings.get("top_p", float)?,
        min_p: settings.get("min_p", float)?,
        repeat_penalty: settings.get("repeat_penalty", float)?,
        frequency_penalty: settings.get("frequency_penalty", float)?,
        presence_penalty: settings.get("presence_penalty", float)?,
        repeat_last_n: settings.optional("repeat_last_n", count)?,
        logit_bias: settings.get("logit_bias", |value| list(value, bias))?,
        suppressed: settings.get("suppressed", |value| list(value, id))?,
        min_tokens: settings.get("min_tokens", count)?,
        seed: settings.get("seed", Value::as_u64)?,
        order,
        logprobs,
        // Files of before there was the setting have none.
        entropy: value
            .get("entropy")
            .map_or(Some(false), Value::as_bool)
            .ok_or_else(|| no_such("entropy"))?,
    };
    let options = GenerateOptions {
        sampling,
        max_tokens: settings.optional("max_tokens", count)?,
        stop_ids: settings.get("stop_ids", |value| list(value, id))?,
        stop_strings: settings
            .get("stop_strings", |value| list(value, |text| Some(text.as_str()?.to_owned())))?,
        ignore_eos: settings.get("ignore_eos", Value::as_bool)?,
        context_policy: settings.get("context_policy", |value| match value.as_str() {
            Some("error") => Some(ContextPolicy::Error),
            Some("stop") => Some(ContextPolicy::Stop),
            Some(_) => None,
            None => Some(ContextPolicy::Slide { keep: count(value)? }),
        })?,
        ..GenerateOptions::default()
    };
    options.validate().map_err(|error| SessionFileError::malformed(error.to_string()))?;
    Ok(options)
}

/// The name of a sampling order; a list of the stages' names for an order without a name.
fn order(order: SamplingOrder) -> Value {
    let named = SamplingOrder::NAMED.iter().find(|(_, known)| *known == order);
    match named {
        Some((name, _)) => json!(name),
        None => order.stages().iter().map(|stage| stage.name()).collect(),
    }
}

struct Settings<'a>(&'a Value);

impl Settings<'_> {
    fn get<T>(
        &self,
        name: &'static str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<T, SessionFileError> {
        let found = self.0.get(name).and_then(read);
        found.ok_or_else(|| no_such(name))
    }

    /// Reads the setting `name`; `neutral` for a file that is older than the setting.
    fn later<T>(
        &self,
        name: &'static str,
        neutral: T,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<T, SessionFileError> {
        if self.0.get(name).is_none() { Ok(neutral) } else { self.get(name, read) }
    }

    fn optional<T>(
        &self,
        name: &'static str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<Option<T>, SessionFileError> {
        self.get(name, |value| if value.is_null() { Some(None) } else { read(value).map(Some) })
    }
}

/// Reads DRY's settings; the default if `value` is null, which stands for a DRY that is off.
fn dry(value: &Value) -> Option<Dry> {
    if value.is_null() {
        return Some(Dry::default());
    }
    let breakers = list(&value["breakers"], |sequence| list(sequence, id))?;
    let last_n = &value["last_n"];
    Some(Dry {
        multiplier: float(&value["multiplier"])?,
        base: float(&value["base"])?,
        allowed_length: count(&value["allowed_length"])?,
        last_n: if last_n.is_null() { None } else { Some(count(last_n)?) },
        breakers: DryBreakers::new(breakers.iter().map(Vec::as_slice)),
    })
}

fn no_such(name: &str) -> SessionFileError {
    SessionFileError::malformed(format!("the setting {name} is missing or no such setting"))
}

fn float(value: &Value) -> Option<f32> {
    value.as_f64().map(|number| number as f32)
}

fn count(value: &Value) -> Option<usize> {
    usize::try_from(value.as_u64()?).ok()
}

fn id(value: &Value) -> Option<u32> {
    u32::try_from(value.as_u64()?).ok()
}

fn bias(value: &Value) -> Option<(u32, f32)> {
    let [token, bias] = value.as_array()?.as_slice() else { return None };
    Some((id(token)?, if bias.is_null() { f32::NEG_INFINITY } else { float(bias)? }))
}

fn list<T>(value: &Value, read: impl Fn(&Value) -> Option<T>) -> Option<Vec<T>> {
    value.as_array()?.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn orders_are_kept_by_their_name_or_their_stages() {
        for (names, expected) in [
            ("penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature", json!("llama-cpp")),
            ("top_k;penalties;temperature", json!(["top_k", "penalties", "temperature"])),
            ("", json!([])),
        ] {
            let names = names.split(';').filter(|name| !name.is_empty());
            let sampling =
                SamplingParams { order: SamplingOrder::from_names(names).unwrap(), ..Default::default() };
            let mut written = to_json(&GenerateOptions { sampling, ..GenerateOptions::default() });
            assert_eq!(written["order"], expected);
            let read = from_json(&written).unwrap();
            assert_eq!(to_json(&read), written);
            for name in ["typical_p", "top_n_sigma", "xtc", "dynatemp", "dry"] {
                written.as_object_mut().unwrap().remove(name);
            }
            assert_eq!(from_json(&written).unwrap().sampling, read.sampling, "an older file");
            written["order"] = json!(["top_k", "magic"]);
            assert!(from_json(&written).unwrap_err().to_string().contains("order"));
        }
    }
}
