//! `brasa inspect --fit`: the memory that a model takes on a device, whether it fits, and which types would fit. Nothing is loaded.

use brasa::{Fit, LoadOptions, TextFit};
use indicatif::{HumanBytes, HumanCount};
use serde_json::{Value, json};

use crate::args::InspectArguments;
use crate::failure::Failure;
use crate::{bundled, output};

/// Prints the plan.
pub fn show(arguments: &InspectArguments) -> Result<(), Failure> {
    let options = LoadOptions {
        device: arguments.device.clone(),
        gpu_memory: arguments.gpu_memory.map(Into::into),
        context: arguments.context,
        kv_type: arguments.cache_type.map(Into::into),
        ..LoadOptions::default()
    };
    let fit = match &arguments.source.model {
        Some(path) => Fit::of(path, &options)?,
        None => Fit::of_gguf_bytes(bundled::MODEL, &options)?,
    };
    if arguments.json { output::line(&object(&fit).to_string()) } else { output::write(&text(&fit)) }
}

fn object(fit: &Fit) -> Value {
    let room_bytes = fit.room_bytes(fit.weight_bytes);
    let text = |text: &TextFit| {
        json!({
            "type": text.kv_name(),
            "bytes": text.bytes(fit.context),
            "longest_context": room_bytes.map(|room| text.longest(room)),
            "texts": room_bytes.map(|room| text.together(room, fit.context)),
        })
    };
    let weights = fit.weights_as.iter().map(|&(format, bytes)| {
        let longest = fit.room_bytes(bytes).zip(fit.text()).map(|(room, text)| text.longest(room));
        json!({"type": format.to_string(), "bytes": bytes, "longest_context": longest})
    });
    json!({
        "device": fit.device.name,
        "memory_bytes": fit.device.memory_bytes,
        "free_bytes": fit.free_bytes,
        "weight_bytes": fit.weight_bytes,
        "working_bytes": fit.working_bytes,
        "room_bytes": room_bytes,
        "context": fit.context,
        "sequences": fit.sequences,
        "model_context": fit.model_context,
        "warning": beyond(fit),
        "cache_type": fit.text().map(TextFit::kv_name),
        "cache_bytes": fit.text().map(|text| text.bytes(fit.context)),
        "fits": fit.fits(),
        "cache_types": fit.texts.iter().map(text).collect::<Vec<_>>(),
        "weights_as": weights.collect::<Vec<_>>(),
    })
}

fn text(fit: &Fit) -> String {
    let bytes = |bytes: u64| HumanBytes(bytes).to_string();
    let count = |count: usize| HumanCount(count as u64).to_string();
    let mut lines = vec![match (fit.free_bytes, fit.device.memory_bytes) {
        (Some(free), Some(all)) => format!("{}: {} free of {}", fit.device.name, bytes(free), bytes(all)),
        _ => format!("{}: it does not tell what memory it has", fit.device.name),
    }];
    lines.push(format!("  {:>12}  weights", bytes(fit.weight_bytes)));
    lines.push(format!("  {:>12}  values of a step of {} rows", bytes(fit.working_bytes), fit.step_rows));
    let of_text = fit.text().map_or(0, |text| text.bytes(fit.context));
    let kv_name = fit.text().map_or("no such type", TextFit::kv_name);
    lines.push(format!(
        "  {:>12}  keys and values of a text of {} tokens, {kv_name}",
        bytes(of_text),
        count(fit.context)
    ));
    let together = fit.weight_bytes.saturating_add(fit.working_bytes).saturating_add(of_text);
    let verdict = match fit.fits() {
        Some(true) => "together: it fits",
        Some(false) => "together: it does not fit",
        None => "together",
    };
    lines.push(format!("  {:>12}  {verdict}", bytes(together)));
    let room_bytes = fit.room_bytes(fit.weight_bytes);
    if let Some(room_bytes) = room_bytes {
        lines.push(format!("\nroom for keys and values: {}", bytes(room_bytes)));
        lines.push(format!(
            "  {:<6} {:>14} {:>14} {:>18}",
            "type", "a text", "longest text", "texts together"
        ));
        for text in &fit.texts {
            lines.push(format!(
                "  {:<6} {:>14} {:>14} {:>18}",
                text.kv_name(),
                bytes(text.bytes(fit.context)),
                count(text.longest(room_bytes)),
                HumanCount(text.together(room_bytes, fit.context)).to_string()
            ));
        }
    }
    let weights = fit.weights_as.iter().filter_map(|&(format, weight_bytes)| {
        let longest = fit.text()?.longest(fit.room_bytes(weight_bytes)?);
        Some(format!("  {:<6} {:>14} {:>14}", format.to_string(), bytes(weight_bytes), count(longest)))
    });
    let weights: Vec<String> = weights.collect();
    if !weights.is_empty() {
        lines.push(format!("\n  {:<6} {:>14} {:>14}", "type", "all weights", "longest text"));
        lines.extend(weights);
    }
    lines.extend(beyond(fit).map(|warning| format!("\nwarning: {warning}")));
    lines.extend(hint(fit).map(|hint| format!("\nhint: {hint}")));
    lines.join("\n") + "\n"
}

/// The warning for a context longer than the model was made for; `None` if there is no need.
fn beyond(fit: &Fit) -> Option<String> {
    let own = fit.model_context.filter(|own| *own < fit.context)?;
    Some(format!(
        "the model was made for texts of {own} tokens; it is not known to read {} of them",
        fit.context
    ))
}

/// For a model that does not fit: a shorter context, another type of keys and values, or another quantisation with which it fits.
fn hint(fit: &Fit) -> Option<String> {
    let (room_bytes, text) = (fit.room_bytes(fit.weight_bytes)?, fit.text()?);
    if fit.fits()? {
        return None;
    }
    let longest = text.longest(room_bytes);
    if longest > 0 {
        let smaller = fit.texts.last().filter(|other| other.bytes(fit.context) <= room_bytes);
        let types = smaller.map_or(String::new(), |other| {
            format!(", or the whole context with `-ctk {0} -ctv {0}`", other.kv_name())
        });
        return Some(format!("`-c {longest}` fits{types}"));
    }
    let fitting = fit.weights_as.iter().find_map(|&(format, bytes)| {
        let longest = text.longest(fit.room_bytes(bytes)?);
        (longest > 0).then(|| format!("weights in {format} fit, with `-c {}`", longest.min(fit.context)))
    });
    Some(fitting.unwrap_or_else(|| "no quantisation of this model fits; take a smaller model".into()))
}
