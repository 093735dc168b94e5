//! Folders of Hugging Face and MLX: the files with weights, and the small files beside them.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::directory::Directory;
use crate::error::{Fault, Printable};
use crate::json::{self, UniqueMap, UniqueValue};
use crate::mlx::{self, Quantization};
use crate::names::Names;
use crate::problems::Problems;
use crate::safetensors::{self, RawTensor};
use crate::{FormatError, Result, Tensor, npz};

const CONFIG: &str = "config.json";
const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";
/// Weights as MLX's examples name them, the newer form first.
const MLX_EXAMPLES: [&str; 2] = ["weights.safetensors", "weights.npz"];
/// Caps of the files that are read whole.
const LARGEST_CONFIG: u64 = 16 << 20;
const LARGEST_INDEX: u64 = 64 << 20;
const MOST_SHARDS: usize = 10_000;

/// The contents of a directory, or of one file with the small files beside it.
pub(crate) struct Store {
    pub config: Option<serde_json::Value>,
    pub raws: Vec<RawTensor>,
    pub tensors: Vec<Tensor>,
    pub files: Vec<(PathBuf, u64)>,
    pub absent: Vec<AbsentTensor>,
}

/// A tensor that an index names and no file has. Tools that drop a part of a model leave such indexes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AbsentTensor {
    /// The name in the index.
    pub name: String,
    /// The file that the index names for the tensor.
    pub file: PathBuf,
    /// The index.
    pub index: PathBuf,
}

/// The files of weights, and the tensors that an index names in them.
struct Weights {
    files: Vec<String>,
    /// Names of the index's tensors, each with its file's position in `files`.
    promised: Vec<(String, usize)>,
}

/// Reads `directory`, or only the weights of `file` with the small files of `directory`.
pub(crate) fn read(directory: &Directory, file: Option<&str>, problems: &mut Problems) -> Store {
    let config = problems.take(read_config(directory)).flatten();
    let weights = match file {
        Some(file) => Some(Weights { files: vec![file.to_owned()], promised: Vec::new() }),
        None => problems.take(find_weights(directory)),
    };

    let mut raws: Vec<RawTensor> = Vec::new();
    let (mut files, mut absent) = (Vec::new(), Vec::new());
    if let Some(weights) = weights {
        let mut names = Names::default();
        let promised = weights.promised.iter().enumerate();
        let promises: HashMap<&str, usize> = promised.map(|(at, (name, _))| (name.as_str(), at)).collect();
        let mut kept = vec![false; weights.promised.len()];
        // A file that cannot be read is reported itself, which says enough about its tensors.
        let mut is_read = vec![false; weights.files.len()];
        for (at, file) in weights.files.iter().enumerate() {
            let path = directory.path_of(file);
            let bytes = directory.map(file).map_err(|error| match error {
                // The path is in front already.
                FormatError::Io { source, .. } => Fault::new(&path, format!("cannot be read: {source}"))
                    .hint("all files of a checkpoint have to be in one directory")
                    .missing(),
                other => other,
            });
            let Some(bytes) = problems.take(bytes) else { continue };
            files.push((path.clone(), bytes.len() as u64));
            let is_npz = path.extension().is_some_and(|extension| extension == "npz");
            let read = if is_npz { npz::read } else { safetensors::read };
            let shard = read(&path, &bytes, problems);
            let Some(shard) = problems.take(shard) else { continue };
            if weights.files.len() == 1 && weights.promised.is_empty() {
                raws = shard;
                break;
            }
            is_read[at] = true;
            for raw in shard {
                if let Some(&promise) = promises.get(&*raw.name) {
                    kept[promise] = true;
                }
                if names.insert(&raw.name, raws.iter().map(|raw| raw.name.as_str())) {
                    raws.push(raw);
                } else {
                    let fault = Fault::new(&path, "this tensor appears in an earlier file too");
                    problems.push(fault.of(raw.name).malformed());
                }
            }
        }
        for ((name, at), kept) in weights.promised.iter().zip(kept) {
            if is_read[*at] && !kept {
                absent.push(AbsentTensor {
                    name: name.clone(),
                    file: directory.path_of(&weights.files[*at]),
                    index: directory.path_of(INDEX),
                });
            }
        }
    }

    let config_path = directory.path_of(CONFIG);
    let quantization = config.as_ref().map(|config| Quantization::from_config(&config_path, config));
    let tensors = match quantization.transpose() {
        Ok(quantization) => mlx::assemble(&raws, quantization.flatten().as_ref(), problems),
        // One clear refusal is better than one for every tensor.
        Err(error) => {
            problems.push_first(error);
            Vec::new()
        }
    };
    Store { config, raws, tensors, files, absent }
}

fn read_config(directory: &Directory) -> Result<Option<serde_json::Value>> {
    let path = directory.path_of(CONFIG);
    let Some(bytes) = directory.read(CONFIG, LARGEST_CONFIG)? else {
        return Err(Fault::new(&path, "this file is missing")
            .hint("a checkpoint directory needs config.json beside its weights")
            .missing());
    };
    let UniqueValue(config) = parse(&path, &bytes)?;
    if !config.is_object() {
        return Err(Fault::new(&path, "no JSON object").at(0_u64).malformed());
    }
    Ok(Some(config))
}

fn find_weights(directory: &Directory) -> Result<Weights> {
    if let Some(bytes) = directory.read(INDEX, LARGEST_INDEX)? {
        return read_index(&directory.path_of(INDEX), &bytes);
    }
    let names = directory.names()?;
    if names.iter().any(|name| name == SINGLE) {
        return Ok(Weights { files: vec![SINGLE.to_owned()], promised: Vec::new() });
    }
    let is_weights = |name: &&String| name.starts_with("model") && is_safetensors(name);
    let mut files: Vec<_> = names.iter().filter(is_weights).cloned().collect();
    if files.is_empty() {
        let of_mlx = MLX_EXAMPLES.iter().find(|name| names.iter().any(|known| known == *name));
        files.push((*of_mlx.ok_or_else(|| no_weights(directory, &names))?).to_owned());
    }
    Ok(Weights { files, promised: Vec::new() })
}

fn is_safetensors(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|extension| extension == "safetensors")
}

fn no_weights(directory: &Directory, names: &[String]) -> FormatError {
    let other = names.iter().find(|name| {
        let extension = Path::new(name).extension().and_then(|extension| extension.to_str());
        matches!(extension, Some("bin" | "pt" | "pth" | "npz" | "h5" | "msgpack" | "onnx" | "safetensors"))
    });
    let fault = Fault::new(directory.path(), "no model.safetensors, no model*.safetensors, no .gguf file");
    let fault = match other {
        Some(name) if is_safetensors(name) => {
            fault.hint(format!("to open {}, give its own path", Printable(name)))
        }
        Some(name) => fault.hint(format!(
            "{} is not read; convert the model to safetensors or GGUF, or download it in one of these",
            Printable(name)
        )),
        None => fault.hint("download the model's weights into this directory"),
    };
    fault.missing()
}

#[derive(Deserialize)]
struct Index {
    weight_map: UniqueMap<String>,
}

fn read_index(index: &Path, bytes: &[u8]) -> Result<Weights> {
    let parsed: Index = parse(index, bytes)?;
    let mut names = BTreeSet::new();
    for (tensor, file) in &parsed.weight_map.0 {
        let plain =
            Path::new(file).file_name() == Some(file.as_ref()) && !file.contains(['/', '\\', '\0', ':']);
        if !plain || !file.ends_with(".safetensors") {
            let problem = format!(
                "its file is \"{}\", expected the plain name of a .safetensors file",
                Printable(file)
            );
            return Err(Fault::new(index, problem).of(tensor.as_str()).malformed());
        }
        names.insert(file.as_str());
    }
    if names.is_empty() || names.len() > MOST_SHARDS {
        let problem = format!("weight_map names {} files, expected 1 to {MOST_SHARDS}", names.len());
        return Err(Fault::new(index, problem).malformed());
    }
    let files: Vec<String> = names.into_iter().map(str::to_owned).collect();
    let promised = parsed.weight_map.0.into_iter();
    let promised = promised.filter_map(|(tensor, file)| Some((tensor, files.binary_search(&file).ok()?)));
    Ok(Weights { promised: promised.collect(), files })
}

fn parse<'a, T: Deserialize<'a>>(path: &Path, bytes: &'a [u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|error| {
        Fault::new(path, json::error_text(bytes, &error)).at(json::error_offset(bytes, &error)).malformed()
    })
}
