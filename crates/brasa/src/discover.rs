//! Finding models on disk.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use brasa_formats::{Container, Inspection, Metadata, TensorInfo};
use brasa_models::{ModelKind, Source};

use crate::Error;

/// Folders below folders that a search enters, at most.
const MAX_DEPTH: usize = 12;

/// A model found on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveredModel {
    /// The path for [`Model::load`](crate::Model::load).
    pub path: PathBuf,
    /// `gguf`, `safetensors` or `mlx`; `folder` for a folder that cannot be read.
    pub container: &'static str,
    /// The architecture as the checkpoint names it.
    pub architecture: Option<String>,
    /// The kind of the model, if its architecture is known.
    pub kind: Option<ModelKind>,
    /// The storage format of most weights.
    pub quantization: Option<String>,
    /// Number of elements of all its tensors.
    pub parameters: u64,
    /// Bytes of all its files together.
    pub size_bytes: u64,
    /// Number of its files.
    pub files: usize,
    /// The reason why the model cannot be used, if it shows without loading the model.
    pub problem: Option<String>,
}

/// Finds the models in `directory` and below, in order of their paths. Links to folders are not followed.
///
/// # Errors
///
/// [`Error::File`] if `directory` itself cannot be read. Files and folders below it that cannot be read are listed with their
/// problem.
pub fn discover(directory: impl AsRef<Path>) -> Result<Vec<DiscoveredModel>, Error> {
    let directory = directory.as_ref();
    let entries = |error| Error::File { path: directory.to_owned(), error };
    std::fs::read_dir(directory).map_err(entries)?;
    let mut found = Vec::new();
    search(directory, 0, &mut found);
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

/// The kind of the model at `path`, from its files; `None` if they cannot be read.
///
/// Reads names and shapes, no weights.
pub fn kind_of(path: impl AsRef<Path>) -> Option<ModelKind> {
    kind(&Inspection::open(path.as_ref()).ok()?)
}

fn kind(inspection: &Inspection) -> Option<ModelKind> {
    Source::inspected(inspection).ok().map(|source| ModelKind::of(&source))
}

fn search(directory: &Path, depth: usize, found: &mut Vec<DiscoveredModel>) {
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) => return found.push(DiscoveredModel::unusable(directory, "folder", error.to_string())),
    };
    // The folders of a sentence-transformers model's other parts are part of it.
    let has_parts = directory.join("modules.json").is_file();
    // Safetensors that are not named like weights, beside a GGUF file, are no model.
    let (mut holds_weights, mut holds_others, mut holds_gguf) = (false, false, false);
    for entry in entries.flatten() {
        let path = entry.path();
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() {
            let is_part = has_parts && is_numbered(&path);
            if depth < MAX_DEPTH && !is_part {
                search(&path, depth + 1, found);
            }
            continue;
        }
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("gguf") if is_first_part(&path) => {
                holds_gguf = true;
                found.push(describe(&path));
            }
            Some("bin") if entry.file_name().to_str().is_some_and(|name| name.starts_with("ggml-")) => {
                found.push(describe(&path));
            }
            Some("safetensors") if directory.join("config.json").is_file() => {
                let is_weights = entry.file_name().to_str().is_some_and(|name| name.starts_with("model"));
                *(if is_weights { &mut holds_weights } else { &mut holds_others }) = true;
            }
            _ => {}
        }
    }
    if holds_weights || holds_others && !holds_gguf {
        found.push(describe(directory));
    }
}

/// True for names such as `2_Dense`.
fn is_numbered(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.split_once('_').is_some_and(|(number, _)| number.parse::<u32>().is_ok())
}

/// False for the second and further parts of a split file.
fn is_first_part(path: &Path) -> bool {
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    match stem.rsplit_once("-of-") {
        Some((first, count)) if count.len() == 5 && count.bytes().all(|byte| byte.is_ascii_digit()) => {
            first.ends_with("-00001") || !first.bytes().rev().take(5).all(|byte| byte.is_ascii_digit())
        }
        _ => true,
    }
}

fn describe(path: &Path) -> DiscoveredModel {
    match Inspection::open(path) {
        Ok(inspection) => describe_inspected(path, &inspection),
        Err(error) => {
            let is_bin = path.extension().is_some_and(|extension| extension == "bin");
            let container = if path.is_dir() { "safetensors" } else { named(!is_bin) };
            // The path is shown beside the problem.
            let problem = error.to_string();
            let place = format!("{}: ", path.display());
            let problem = problem.strip_prefix(&place).unwrap_or(&problem).to_owned();
            DiscoveredModel::unusable(path, container, problem)
        }
    }
}

/// The name of a file's format: GGUF, or that of whisper.cpp.
const fn named(is_gguf: bool) -> &'static str {
    if is_gguf { "gguf" } else { "ggml" }
}

impl DiscoveredModel {
    fn unusable(path: &Path, container: &'static str, problem: String) -> Self {
        let file = path.metadata().ok().filter(std::fs::Metadata::is_file);
        Self {
            path: path.to_owned(),
            container,
            architecture: None,
            kind: None,
            quantization: None,
            parameters: 0,
            size_bytes: file.as_ref().map_or(0, std::fs::Metadata::len),
            files: usize::from(file.is_some()),
            problem: Some(problem),
        }
    }
}

fn describe_inspected(path: &Path, inspection: &Inspection) -> DiscoveredModel {
    let architecture = match inspection.metadata() {
        Some(Metadata::Gguf(metadata)) => {
            metadata.get::<&str>("general.architecture").ok().flatten().map(str::to_owned)
        }
        Some(Metadata::Config(config)) => {
            config.get("model_type").and_then(serde_json::Value::as_str).map(str::to_owned)
        }
        None => None,
    };
    let tensors = inspection.tensors();
    let mlx = tensors.iter().any(|tensor| tensor.name.ends_with(".scales"));
    DiscoveredModel {
        path: path.to_owned(),
        container: match inspection.container() {
            Container::Gguf => named(inspection.gguf_version().is_some()),
            Container::HuggingFace if mlx => "mlx",
            Container::HuggingFace => "safetensors",
        },
        architecture,
        kind: kind(inspection),
        quantization: main_type(tensors).map(|name| {
            let packed = (name == "U32").then(|| mlx_type(inspection)).flatten();
            packed.unwrap_or(name)
        }),
        parameters: tensors.iter().fold(0, |sum, tensor| sum.saturating_add(tensor.elements())),
        size_bytes: inspection.files().iter().map(|(_, bytes)| bytes).sum(),
        files: inspection.files().len(),
        problem: inspection.problems().first().map(ToString::to_string),
    }
}

/// The type of most weights of an MLX folder, whose packed words are no type of their own.
fn mlx_type(inspection: &Inspection) -> Option<String> {
    let Some(Metadata::Config(config)) = inspection.metadata() else { return None };
    let quantization = config.get("quantization").or_else(|| config.get("quantization_config"))?;
    let number = |key: &str| quantization.get(key).and_then(serde_json::Value::as_u64);
    Some(format!("MLX {} bit/{}", number("bits")?, number("group_size")?))
}

/// The type that stores the most bytes.
fn main_type(tensors: &[TensorInfo]) -> Option<String> {
    let mut bytes: BTreeMap<&str, u64> = BTreeMap::new();
    for tensor in tensors {
        *bytes.entry(&tensor.type_name).or_default() += tensor.size_bytes.unwrap_or(0);
    }
    bytes.into_iter().max_by_key(|&(_, bytes)| bytes).map(|(name, _)| name.to_owned())
}
