//! Files of low-rank adapters: PEFT, MLX and GGUF, read into one form and written from that form.
//!
//! | | `A` | `B` | scale |
//! |---|---|---|---|
//! | PEFT | `base_model.model.<path>.lora_A.weight` `[r, in]` | `.lora_B.weight` `[out, r]` | `α / r`, or `α / √r` with `use_rslora` |
//! | MLX | `<path>.lora_a` `[in, r]` | `.lora_b` `[r, out]` | `scale` |
//! | GGUF | `<tensor>.weight.lora_a` `[r, in]` | `.lora_b` `[out, r]` | `α / r`, one `α` for all |
//!
//! Stacks of experts are `[experts, r, in]` and `[experts, out, r]` in MLX and GGUF alike. Names stay as each form spells
//! them, and so does the order of rows: which layer of which model a name means is not known here.
//!
//! What changes a model otherwise than by `scale · B·A` is refused by name: whole trained modules, biases, changed norms,
//! embeddings' own pairs. DoRA's magnitudes are read and written where a form has them.

mod gguf;
mod mlx;
mod pair;
mod peft;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use crate::directory::Directory;
use crate::error::Fault;
use crate::json::{self, UniqueValue};
use crate::safetensors::{self, TensorPlan, Writer};
use crate::{Bytes, Existing, FormatError, OutputFile, Payload, Result, Tensor};

pub use pair::LowRankPair;

const CONFIG: &str = "adapter_config.json";
const LARGEST_CONFIG: u64 = 16 << 20;

/// A form in which adapters are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdapterForm {
    /// Hugging Face's: a directory of `adapter_config.json` and `adapter_model.safetensors`.
    Peft,
    /// MLX-LM's: a directory of `adapter_config.json` and `adapters.safetensors`.
    Mlx,
    /// llama.cpp's: one GGUF file.
    Gguf,
}

/// A low-rank adapter in the names and shapes of its file.
///
/// ```no_run
/// use brasa_formats::AdapterFile;
///
/// let adapter = AdapterFile::open("my-adapter")?;
/// for pair in &adapter.pairs {
///     println!("{} rank {} scale {}", pair.name, pair.rank(), pair.scale);
/// }
/// # Ok::<(), brasa_formats::FormatError>(())
/// ```
#[derive(Clone, Debug)]
pub struct AdapterFile {
    /// The form.
    pub form: AdapterForm,
    /// The base model's architecture, as GGUF names it; `None` for other forms.
    pub architecture: Option<String>,
    /// The base's name or path, if it is known. For information only.
    pub base: Option<String>,
    /// Layers of the base, if they are known. With them, a layer that is adapted everywhere is named once when the file is written.
    pub num_layers: Option<usize>,
    /// The adapted layers, sorted by name, each once.
    pub pairs: Vec<LowRankPair>,
}

impl AdapterFile {
    /// Opens an adapter: a directory of PEFT or MLX, a `.safetensors` file of such a directory, or a GGUF file.
    ///
    /// # Errors
    ///
    /// [`FormatError`], naming file and tensor or key, if there is no adapter, if it is damaged or incomplete, if a value is not
    /// finite, or if it holds more than low-rank pairs.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let metadata = std::fs::metadata(path).map_err(|source| FormatError::io(path, source))?;
        if metadata.is_dir() {
            return Self::in_directory(&Directory::Disk(path.to_owned()));
        }
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let directory = Directory::Disk(parent.map_or_else(|| PathBuf::from("."), Path::to_owned));
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
            return Err(Fault::new(path, "the file's name is not UTF-8").hint("rename it").unrecognised());
        };
        Self::of_file(&directory, name)
    }

    /// Opens a directory held in memory, files by name.
    ///
    /// # Errors
    ///
    /// Errors of [`open`](Self::open).
    pub fn from_files(files: BTreeMap<String, Bytes>) -> Result<Self> {
        Self::in_directory(&Directory::Memory(Arc::new(files)))
    }

    fn in_directory(directory: &Directory) -> Result<Self> {
        let names = directory.names()?;
        let has = |wanted: &str| names.iter().any(|name| name == wanted);
        for weights in [peft::WEIGHTS, mlx::WEIGHTS] {
            if has(weights) {
                return Self::of_file(directory, weights);
            }
        }
        if let Some(name) = names.iter().find(|name| matches!(&***name, "adapter_model.bin" | "adapters.npz"))
        {
            return Err(Fault::new(directory.path_of(name), "an adapter that is not stored as safetensors")
                .hint("save it as safetensors")
                .unsupported());
        }
        let is_gguf = |name: &&String| Path::new(name).extension().is_some_and(|end| end == "gguf");
        let files: Vec<&String> = names.iter().filter(is_gguf).collect();
        match files[..] {
            [file] => Self::of_file(directory, file),
            [] => Err(no_adapter(directory)),
            _ => Err(Fault::new(directory.path(), format!("{} GGUF files", files.len()))
                .hint("name the file that you mean")
                .unrecognised()),
        }
    }

    fn of_file(directory: &Directory, name: &str) -> Result<Self> {
        let path = directory.path_of(name);
        if directory.start_of(name)?.starts_with(b"GGUF") {
            return gguf::read(&path, &directory.map(name)?);
        }
        if Path::new(name).extension().is_none_or(|end| end != "safetensors") {
            return Err(Fault::new(path, "neither a GGUF file nor a .safetensors file")
                .hint("give an adapter's directory, or its file")
                .unrecognised());
        }
        let config = read_config(directory)?;
        let tensors = safetensors::float_tensors(&path, &directory.map(name)?)?;
        let config_path = directory.path_of(CONFIG);
        if config.get("peft_type").is_some() {
            peft::read(&config_path, &config, &path, tensors)
        } else if ["fine_tune_type", "lora_parameters"].iter().any(|key| config.get(key).is_some()) {
            mlx::read(&config_path, &config, &path, tensors)
        } else {
            Err(Fault::new(
                config_path,
                "neither `peft_type` nor `lora_parameters`: no adapter of PEFT or MLX",
            )
            .unrecognised())
        }
    }

    /// Writes the adapter: in the directory `path`, which is made if it is not there, or as the one GGUF file `path`.
    ///
    /// Of a directory's two files the configuration is put in place last, and an old configuration is removed first. A write that
    /// is interrupted therefore never leaves a mixture of two adapters that would load.
    ///
    /// # Errors
    ///
    /// [`FormatError::Exists`] if a file is there that shall be kept, [`FormatError::Io`], and [`FormatError::Unwritable`] for
    /// what the form cannot say: DoRA in GGUF, stacks of experts in PEFT.
    pub fn write(&self, path: impl AsRef<Path>, existing: Existing) -> Result<()> {
        let path = path.as_ref();
        for pair in &self.pairs {
            pair.check(path)?;
        }
        match self.form {
            AdapterForm::Peft => peft::write(self, path, existing),
            AdapterForm::Mlx => mlx::write(self, path, existing),
            AdapterForm::Gguf => gguf::write(self, path, existing),
        }
    }
}

fn no_adapter(directory: &Directory) -> FormatError {
    let problem =
        format!("no adapter in this directory: no {}, no {}, no .gguf", peft::WEIGHTS, mlx::WEIGHTS);
    Fault::new(directory.path(), problem)
        .hint("give a directory of PEFT or MLX-LM, or an adapter's GGUF file")
        .unrecognised()
}

fn read_config(directory: &Directory) -> Result<Value> {
    let path = directory.path_of(CONFIG);
    let Some(bytes) = directory.read(CONFIG, LARGEST_CONFIG)? else {
        return Err(Fault::new(path, "this file is missing")
            .hint("it says how an adapter is scaled")
            .missing());
    };
    let UniqueValue(config) = serde_json::from_slice(&bytes).map_err(|error| {
        Fault::new(&path, json::error_text(&bytes, &error)).at(json::error_offset(&bytes, &error)).malformed()
    })?;
    if config.is_object() {
        Ok(config)
    } else {
        Err(Fault::new(path, "no JSON object").at(0_u64).malformed())
    }
}

/// Writes weights and configuration into a directory.
fn write_directory(
    path: &Path,
    weights: &str,
    format: &str,
    tensors: &[Tensor],
    config: &Value,
    existing: Existing,
) -> Result<()> {
    std::fs::create_dir_all(path).map_err(|source| FormatError::io(path, source))?;
    let mut config_file = OutputFile::create(path.join(CONFIG), existing)?;
    let weights = OutputFile::create(path.join(weights), existing)?;
    let plan = tensors.iter().map(|tensor| TensorPlan {
        name: tensor.name.clone(),
        dtype: safetensors::Dtype::of_float(tensor.format).expect("pairs are floats"),
        shape: tensor.shape.clone(),
    });
    let mut writer = Writer::create(weights, &[("format", format)], &plan.collect::<Vec<_>>())?;
    for tensor in tensors {
        if let Payload::Blocks(bytes) = &tensor.payload {
            writer.write(&tensor.name, bytes)?;
        }
    }
    let text = serde_json::to_string_pretty(config).expect("JSON without maps of odd keys") + "\n";
    let old = path.join(CONFIG);
    match std::fs::remove_file(&old) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(FormatError::io(&old, error));
        }
        _ => {}
    }
    writer.finish()?;
    std::io::Write::write_all(&mut config_file, text.as_bytes())
        .map_err(|source| FormatError::io(config_file.path(), source))?;
    config_file.commit()
}
