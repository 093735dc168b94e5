//! Options that mlx-lm honours, in the words of its process. All others are refused by name.

use brasa_engine::EngineError;
use brasa_graph::device::Precision;
use brasa_graph::sampling::{SamplingOrder, SamplingParams, Stage};
use serde_json::{Map, Value, json};

use super::protocol::NAME;
use crate::{BackendError, ContextPolicy, Error, GenerateOptions, LoadOptions};

/// The remedy for an option that is not honoured.
const LEAVE_OUT: &str = "leave it out, or load the model with a native backend: `cpu` or `cuda`";

/// Refuses options of loading that mlx-lm cannot honour. Limits for several requests at once are accepted, though mlx-lm runs one
/// request at a time.
///
/// # Errors
///
/// [`BackendError::Unsupported`].
pub(super) fn check_load(options: &LoadOptions) -> Result<(), BackendError> {
    let LoadOptions {
        device: _,
        own_device,
        gpu_memory,
        context: _,
        threads,
        isa,
        precision,
        deterministic,
        kv_type,
        chunk,
        mixed_chunk,
        max_sequences: _,
        max_waiting: _,
        cache_bytes,
        prefix_bytes,
        prefault_bytes: _,
        speculation,
        draft_model,
        adapters,
        adapters_by_request: _,
        strict,
        pre_tokenizer,
        chat_template,
    } = options;
    refuse(&[
        ("own_device", own_device.is_some()),
        ("gpu_memory", gpu_memory.is_some()),
        ("threads", threads.is_some()),
        ("isa", isa.is_some()),
        ("precision `reference`", *precision != Precision::Fast),
        ("deterministic", *deterministic),
        ("kv_type", kv_type.is_some()),
        ("chunk", chunk.is_some()),
        ("mixed_chunk", mixed_chunk.is_some()),
        ("cache_bytes", cache_bytes.is_some()),
        ("prefix_bytes", prefix_bytes.is_some()),
        ("speculation", speculation.lookup),
        ("draft_model", draft_model.is_some()),
        ("adapters", !adapters.is_empty()),
        ("strict", *strict),
        ("pre_tokenizer", pre_tokenizer.is_some()),
        ("chat_template", chat_template.is_some()),
    ])
}

/// The fields of a request for these options, in a context of `context` positions.
///
/// # Errors
///
/// [`Error::Engine`] for options that make no sense, [`BackendError::Unsupported`] for those that mlx-lm cannot honour.
pub(super) fn fields(options: &GenerateOptions, context: usize) -> Result<Map<String, Value>, Error> {
    options.validate()?;
    let GenerateOptions {
        // One text runs at a time: there is nobody to overtake, nothing is cached, and the process waits for its reader. The stream
        // keeps the deadline.
        request: _,
        sampling,
        max_tokens,
        stop_ids,
        stop_strings,
        // Without stop strings they are without effect.
        stop_marks: _,
        ignore_eos,
        context_policy,
        mask,
        speculation,
        report_prefill,
    } = options;
    let SamplingParams {
        temperature,
        top_k,
        top_p,
        min_p,
        typical_p,
        top_n_sigma,
        xtc_probability,
        // Without a probability the threshold has no effect.
        xtc_threshold: _,
        dynatemp_range,
        // Without a range the exponent has no effect.
        dynatemp_exponent: _,
        dry,
        repeat_penalty,
        frequency_penalty,
        presence_penalty,
        repeat_last_n: _,
        logit_bias,
        suppressed,
        min_tokens,
        seed,
        order,
        logprobs,
        entropy,
    } = sampling;
    // Neutral values are the exact ones that turn a rule off.
    #[expect(clippy::float_cmp, reason = "values that the caller wrote, not results")]
    refuse(&[
        ("stop_ids", !stop_ids.is_empty()),
        ("stop_strings", !stop_strings.is_empty()),
        ("ignore_eos", *ignore_eos),
        ("the context policy `slide`", matches!(context_policy, ContextPolicy::Slide { .. })),
        ("mask: grammars and schemas", mask.is_some()),
        ("speculation", speculation.is_some_and(|wanted| wanted.lookup)),
        ("report_prefill", *report_prefill),
        ("typical_p", *typical_p != 1.0),
        ("top_n_sigma", *top_n_sigma != 0.0),
        ("xtc_probability", *xtc_probability != 0.0),
        ("dynatemp_range", *dynatemp_range != 0.0),
        ("dry", dry.is_on()),
        ("repeat_penalty", *repeat_penalty != 1.0),
        ("frequency_penalty", *frequency_penalty != 0.0),
        ("presence_penalty", *presence_penalty != 0.0),
        ("logit_bias", !logit_bias.is_empty()),
        ("suppressed", !suppressed.is_empty()),
        ("min_tokens", *min_tokens != 0),
        ("logprobs", logprobs.is_some()),
        ("entropy", *entropy),
    ])?;
    // What the stages that do something do in MLX-LM's order. In front, top-p counts in the whole vocabulary anyway.
    let is_first = |place: usize, stage: Stage| place == 0 && stage == Stage::TopPOfAll;
    let active = sampling.active_order();
    let active: Vec<Stage> = (active.stages().iter().enumerate())
        .map(|(place, &stage)| if is_first(place, stage) { Stage::TopP } else { stage })
        .collect();
    let own = SamplingOrder::MLX;
    let own = own.stages().iter().filter(|stage| active.contains(stage));
    if !sampling.is_greedy() && !own.eq(&active) {
        return Err(Error::Backend(BackendError::Unsupported {
            backend: NAME,
            what: format!("the sampling order {order}"),
            hint: "set `order` to `SamplingOrder::MLX`, which filters before the temperature",
        }));
    }
    let has = |stage| active.contains(&stage);
    let fields = json!({
        "max_tokens": max_tokens,
        "context": context,
        // There a top-p of 0 turns the filter off.
        "temperature": match () {
            () if sampling.is_greedy() => 0.0,
            () if has(Stage::Temperature) => *temperature,
            () => 1.0,
        },
        "top_k": if has(Stage::TopK) { *top_k } else { 0 },
        "top_p": if has(Stage::TopP) { *top_p } else { 1.0 },
        "min_p": if has(Stage::MinP) { *min_p } else { 0.0 },
        "seed": seed,
    });
    match fields {
        Value::Object(fields) => Ok(fields),
        _ => unreachable!("the fields are an object"),
    }
}

/// The finish reason, or the error, of a text that fills the context of `context` positions.
pub(super) fn context_full(
    policy: ContextPolicy,
    context: usize,
) -> Result<crate::FinishReason, EngineError> {
    match policy {
        ContextPolicy::Stop => Ok(crate::FinishReason::ContextFull),
        _ => Err(EngineError::ContextFull { context }),
    }
}

fn refuse(options: &[(&str, bool)]) -> Result<(), BackendError> {
    match options.iter().find(|&&(_, wanted)| wanted) {
        Some((name, _)) => {
            Err(BackendError::Unsupported { backend: NAME, what: (*name).to_owned(), hint: LEAVE_OUT })
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn orders_that_filter_alike_are_taken() {
        let of = |names: &str, params: SamplingParams| {
            let order = SamplingOrder::from_names(names.split(';')).unwrap();
            let sampling = SamplingParams { order, ..params };
            let fields = fields(&GenerateOptions { sampling, ..GenerateOptions::default() }, 50);
            fields.map(|fields| ["temperature", "top_k", "top_p", "min_p"].map(|name| fields[name].clone()))
        };
        let warm = SamplingParams { temperature: 0.5, top_k: 7, ..SamplingParams::default() };
        let both = SamplingParams { top_p: 0.75, ..warm.clone() };
        let numbers = |numbers: [f64; 4]| numbers.map(|number| json!(number));
        let whole = |fields: [Value; 4]| fields.map(|field| json!(field.as_f64().unwrap()));
        // One filter before the temperature is in every order.
        let own = of("top_k;top_p;temperature", warm.clone()).unwrap();
        assert_eq!(whole(own), numbers([0.5, 7.0, 1.0, 0.0]));
        let own = of("top_p_of_all;top_k;temperature", both.clone()).unwrap();
        assert_eq!(whole(own), numbers([0.5, 7.0, 0.75, 0.0]));
        // A sampler that is left out does nothing.
        let own = of("top_p;top_k", both.clone()).unwrap();
        assert_eq!(whole(own), numbers([1.0, 7.0, 0.75, 0.0]));
        for (order, params) in [("temperature;top_k", warm), ("top_k;top_p;temperature", both)] {
            let refused = of(order, params).unwrap_err().to_string();
            assert!(refused.contains(&format!("the sampling order {order}")), "{refused}");
        }
    }
}
