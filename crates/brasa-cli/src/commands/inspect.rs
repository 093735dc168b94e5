//! `brasa inspect`: the contents of a model's files. Needs neither readable tensors nor a supported architecture.

use std::collections::BTreeMap;

use brasa::LoadOptions;
use brasa::formats::{Bytes, Container, Inspection, Metadata, TensorInfo, gguf};
use serde_json::{Map, Value, json};

use super::{attention, fit};
use crate::args::InspectArguments;
use crate::failure::Failure;
use crate::{bundled, output};

/// Most elements of a metadata array that are shown.
const SHOWN_ELEMENTS: usize = 8;

/// Prints the contents of a model's files.
pub fn inspect(arguments: &InspectArguments) -> Result<(), Failure> {
    if let Some(heads) = &arguments.attention {
        return attention::show(arguments, heads);
    }
    if arguments.fit {
        return fit::show(arguments);
    }
    let path = arguments.source.model.as_ref();
    if arguments.graph {
        let options = LoadOptions { device: arguments.device.clone(), ..LoadOptions::default() };
        let text = match path {
            Some(path) => brasa::describe_graph(path, &options)?,
            None => brasa::describe_graph_bytes(bundled::MODEL, &options)?,
        };
        if arguments.json {
            return output::line(&json!({"graph": text}).to_string());
        }
        return output::write(&text);
    }
    let inspection = match path {
        Some(path) => Inspection::open(path),
        None => Inspection::of_gguf_bytes(&Bytes::new(bundled::MODEL)),
    };
    let inspection = inspection.map_err(brasa::Error::from)?;
    let name = path.map_or_else(|| bundled::NAME.to_owned(), |path| path.display().to_string());
    if arguments.json {
        return output::line(&object(&name, &inspection).to_string());
    }
    text(&name, &inspection, arguments.tensors)
}

fn object(name: &str, inspection: &Inspection) -> Value {
    let tensors: Vec<Value> = inspection
        .tensors()
        .iter()
        .map(|tensor| {
            json!({
                "name": tensor.name,
                "shape": tensor.shape,
                "type": tensor.type_name,
                "supported": tensor.format.is_some(),
                "offset_bytes": tensor.offset_bytes,
                "size_bytes": tensor.size_bytes,
            })
        })
        .collect();
    let verdict = brasa::verify(inspection);
    let split = |texts: &[String]| -> (Vec<String>, Vec<String>) {
        let parts = texts.iter().map(|text| brasa::split_hint(text));
        let (told, hints): (Vec<&str>, Vec<Option<&str>>) = parts.unzip();
        (
            told.into_iter().map(str::to_owned).collect(),
            hints.into_iter().flatten().map(str::to_owned).collect(),
        )
    };
    let ((problems, mut hints), (warnings, more)) = (split(&verdict.problems), split(&verdict.warnings));
    hints.extend(more);
    json!({
        "path": name,
        "container": container(inspection),
        "architecture": architecture(inspection),
        "parameters": parameters(inspection.tensors()),
        "size_bytes": size_bytes(inspection),
        "types": types(inspection.tensors()).into_iter().map(|(name, (count, bytes))| (name, json!({"tensors": count, "size_bytes": bytes}))).collect::<Map<_, _>>(),
        "metadata": metadata(inspection),
        "tensors": tensors,
        "problems": problems,
        "warnings": warnings,
        "hints": hints,
    })
}

fn text(name: &str, inspection: &Inspection, list_tensors: bool) -> Result<(), Failure> {
    output::line(&format!(
        "{name}: {}, {}",
        container(inspection),
        architecture(inspection).unwrap_or("architecture unknown")
    ))?;
    output::line(&format!(
        "{} parameters in {}, {}",
        parameters(inspection.tensors()),
        output::plural(inspection.tensors().len(), "tensor"),
        indicatif::HumanBytes(size_bytes(inspection))
    ))?;
    output::line("\nstored as")?;
    for (name, (count, bytes)) in types(inspection.tensors()) {
        output::line(&format!(
            "  {name:<12} {count:>6} {:<7} {:>12}",
            if count == 1 { "tensor" } else { "tensors" },
            indicatif::HumanBytes(bytes).to_string()
        ))?;
    }
    output::line("\nmetadata")?;
    if let Value::Object(metadata) = metadata(inspection) {
        for (key, value) in metadata {
            let mut line = format!("  {key} = {value}");
            // JSON has all of it.
            if line.chars().count() > output::COLUMNS {
                line = line.chars().take(output::COLUMNS - 1).collect::<String>() + "…";
            }
            output::line(&line)?;
        }
    }
    if list_tensors {
        output::line("\ntensors")?;
        for tensor in inspection.tensors() {
            output::line(&format!(
                "  {:<48} {:<20} {}",
                tensor.name,
                format!("{:?}", tensor.shape),
                tensor.type_name
            ))?;
        }
    }
    let verdict = brasa::verify(inspection);
    for problem in verdict.problems {
        output::line(&format!("\nproblem: {problem}"))?;
    }
    for warning in verdict.warnings {
        output::line(&format!("\nwarning: {warning}"))?;
    }
    Ok(())
}

fn container(inspection: &Inspection) -> String {
    match inspection.container() {
        Container::Gguf => inspection
            .gguf_version()
            .map_or("GGML of whisper.cpp".into(), |version| format!("GGUF v{version}")),
        Container::HuggingFace => "safetensors".into(),
    }
}

fn architecture(inspection: &Inspection) -> Option<&str> {
    match inspection.metadata()? {
        Metadata::Gguf(metadata) => metadata.get("general.architecture").ok().flatten(),
        Metadata::Config(config) => config.get("model_type").and_then(Value::as_str),
    }
}

fn parameters(tensors: &[TensorInfo]) -> u64 {
    tensors.iter().fold(0, |sum, tensor| sum.saturating_add(tensor.elements()))
}

fn size_bytes(inspection: &Inspection) -> u64 {
    inspection.files().iter().map(|(_, bytes)| bytes).sum()
}

/// Number and bytes of the tensors of each stored type.
fn types(tensors: &[TensorInfo]) -> BTreeMap<String, (usize, u64)> {
    let mut types: BTreeMap<String, (usize, u64)> = BTreeMap::new();
    for tensor in tensors {
        let (count, bytes) = types.entry(tensor.type_name.to_string()).or_default();
        *count += 1;
        *bytes = bytes.saturating_add(tensor.size_bytes.unwrap_or(0));
    }
    types
}

/// The metadata as JSON; of long arrays, the first elements and the length.
fn metadata(inspection: &Inspection) -> Value {
    match inspection.metadata() {
        None => Value::Null,
        Some(Metadata::Config(config)) => config.clone(),
        Some(Metadata::Gguf(metadata)) => metadata
            .iter()
            .map(|(key, value)| (key.to_owned(), value_json(value)))
            .collect::<Map<_, _>>()
            .into(),
    }
}

fn value_json(value: &gguf::Value) -> Value {
    match value {
        gguf::Value::U8(number) => json!(number),
        gguf::Value::I8(number) => json!(number),
        gguf::Value::U16(number) => json!(number),
        gguf::Value::I16(number) => json!(number),
        gguf::Value::U32(number) => json!(number),
        gguf::Value::I32(number) => json!(number),
        gguf::Value::U64(number) => json!(number),
        gguf::Value::I64(number) => json!(number),
        gguf::Value::F32(number) => json!(number),
        gguf::Value::F64(number) => json!(number),
        gguf::Value::Bool(truth) => json!(truth),
        gguf::Value::String(text) => json!(text),
        gguf::Value::Array(array) => array_json(array),
    }
}

fn array_json(array: &gguf::Array) -> Value {
    let mut shown: Vec<Value> = Vec::new();
    if let Some(strings) = array.strings() {
        shown.extend(strings.take(SHOWN_ELEMENTS).map(|text| json!(String::from_utf8_lossy(text))));
    } else if let Some(scalars) = array.scalars() {
        shown.extend(scalars.take(SHOWN_ELEMENTS).map(|value| value_json(&value)));
    } else if let Some(arrays) = array.arrays() {
        shown.extend(arrays.take(SHOWN_ELEMENTS).map(|array| array_json(&array)));
    }
    if array.len() > SHOWN_ELEMENTS {
        return json!({"length": array.len(), "first": shown});
    }
    shown.into()
}
