//! Everything a model's files say, without asking whether it can be run.

use std::path::{Path, PathBuf};

use crate::error::{Fault, Printable};
use crate::gguf::{self, PartName};
use crate::hugging_face::{self, list, read_sidecar};
use crate::{Bytes, FormatError, Result, StorageFormat, Tensor};

/// The two kinds of checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Container {
    /// One GGUF file, or the parts of a split one: metadata and tokenizer included.
    Gguf,
    /// Safetensors with `config.json`, `tokenizer.json` and others beside them; MLX checkpoints too.
    HuggingFace,
}

/// What describes the model.
#[derive(Clone, Copy, Debug)]
pub enum Metadata<'a> {
    /// The key-value pairs of a GGUF file.
    Gguf(&'a gguf::Metadata),
    /// `config.json`.
    Config(&'a serde_json::Value),
}

/// One tensor as its file describes it, readable or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// The name in the file.
    pub name: String,
    /// Dimensions as stored, outermost first. Packed MLX words count as words.
    pub shape: Vec<u64>,
    /// The type as its format spells it: `Q4_K`, `BF16`, `I64`.
    pub type_name: String,
    /// The storage format; `None` for types that are not read, or only as part of another tensor.
    pub format: Option<StorageFormat>,
    /// The file it is in.
    pub file: PathBuf,
    /// Where its bytes start in that file.
    pub offset_bytes: u64,
    /// How many bytes it has; `None` where type or shape do not say.
    pub size_bytes: Option<u64>,
}

/// A look into a model's files that refuses as little as possible: unsupported or cut-off tensors are
/// listed like others, and what [`Checkpoint::open`](crate::Checkpoint::open) would refuse is in
/// [`problems`](Self::problems).
#[derive(Debug)]
pub struct Inspection {
    path: PathBuf,
    container: Container,
    pub(crate) metadata: Option<Description>,
    infos: Vec<TensorInfo>,
    files: Vec<(PathBuf, u64)>,
    pub(crate) sidecars: Sidecars,
    gguf_version: Option<u32>,
    pub(crate) problems: Problems,
    pub(crate) tensors: Vec<Tensor>,
}

#[derive(Clone, Debug)]
pub(crate) enum Description {
    Gguf(gguf::Metadata),
    Config(serde_json::Value),
}

impl Description {
    pub fn view(&self) -> Metadata<'_> {
        match self {
            Self::Gguf(metadata) => Metadata::Gguf(metadata),
            Self::Config(config) => Metadata::Config(config),
        }
    }
}

impl Inspection {
    /// Looks into a GGUF file, a `.safetensors` file, or a directory of either kind.
    ///
    /// # Errors
    ///
    /// [`FormatError::Unrecognised`] where the path is no model of a known kind, [`FormatError::Io`] where it cannot
    /// be read, and others where not even the metadata of a GGUF file is readable.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        match find(path)? {
            Found::Gguf(file) => {
                let mut problems = Problems::default();
                let (part, files) = gguf::read_path(&file, &mut problems)?;
                Ok(Self::of_gguf(path.to_owned(), part, files, problems))
            }
            Found::HuggingFace { directory, file } => {
                Ok(Self::of_directory(path, directory, file.as_deref()))
            }
        }
    }

    /// Looks into a GGUF file held in memory.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn of_gguf_bytes(bytes: &Bytes) -> Result<Self> {
        let mut problems = Problems::default();
        let part = gguf::read_single(Path::new(""), bytes, &mut problems)?;
        let files = vec![(PathBuf::new(), bytes.len() as u64)];
        Ok(Self::of_gguf(PathBuf::new(), part, files, problems))
    }

    fn of_gguf(path: PathBuf, part: gguf::Part, files: Vec<(PathBuf, u64)>, problems: Problems) -> Self {
        Self {
            path,
            container: Container::Gguf,
            metadata: Some(Description::Gguf(part.metadata)),
            infos: part.infos,
            files,
            sidecars: Sidecars(None),
            gguf_version: Some(part.version),
            problems,
            tensors: part.tensors,
        }
    }

    fn of_directory(path: &Path, directory: PathBuf, file: Option<&Path>) -> Self {
        let mut problems = Problems::default();
        let store = hugging_face::read(&directory, file, &mut problems);
        let infos = store.raws.iter().map(|raw| TensorInfo {
            name: raw.name.clone(),
            shape: raw.shape.iter().map(|&dim| dim as u64).collect(),
            type_name: raw.dtype_name.clone(),
            format: raw.dtype.and_then(crate::safetensors::Dtype::float_format),
            file: raw.file.clone(),
            offset_bytes: raw.offset_bytes,
            size_bytes: Some(raw.size_bytes),
        });
        Self {
            path: path.to_owned(),
            container: Container::HuggingFace,
            metadata: store.config.map(Description::Config),
            infos: infos.collect(),
            files: store.files,
            sidecars: Sidecars(Some(directory)),
            gguf_version: None,
            problems,
            tensors: store.tensors,
        }
    }

    /// The path that was opened; empty for bytes in memory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Which kind of checkpoint it is.
    pub fn container(&self) -> Container {
        self.container
    }

    /// The version of the GGUF format; `None` for other containers.
    pub fn gguf_version(&self) -> Option<u32> {
        self.gguf_version
    }

    /// What describes the model; `None` for a directory without a readable `config.json`.
    pub fn metadata(&self) -> Option<Metadata<'_>> {
        self.metadata.as_ref().map(Description::view)
    }

    /// Every tensor that the files describe, in their order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.infos
    }

    /// The tensors that can be used, as [`Checkpoint::tensors`](crate::Checkpoint::tensors) would give them.
    pub fn readable_tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// The files that hold the weights, with their sizes in bytes.
    pub fn files(&self) -> &[(PathBuf, u64)] {
        &self.files
    }

    /// Why this could not be opened as a checkpoint; empty where it can. At most 20 are kept.
    pub fn problems(&self) -> &[FormatError] {
        &self.problems.kept
    }

    /// A file beside the weights, such as `tokenizer.json`; `None` where there is none, and always for GGUF.
    ///
    /// # Errors
    ///
    /// [`FormatError::Io`] where it exists but cannot be read, [`FormatError::Unsupported`] above 256 MiB.
    pub fn sidecar(&self, name: &str) -> Result<Option<Vec<u8>>> {
        self.sidecars.read(name)
    }

    /// As [`sidecar`](Self::sidecar), for text.
    ///
    /// # Errors
    ///
    /// Also [`FormatError::Malformed`] where it is not UTF-8.
    pub fn sidecar_text(&self, name: &str) -> Result<Option<String>> {
        self.sidecars.read_text(name)
    }
}

/// The directory of small files beside the weights; none for GGUF, which holds everything itself.
#[derive(Clone, Debug)]
pub(crate) struct Sidecars(Option<PathBuf>);

impl Sidecars {
    pub fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let Some(directory) = &self.0 else { return Ok(None) };
        read_sidecar(directory, name)
    }

    pub fn read_text(&self, name: &str) -> Result<Option<String>> {
        let Some(bytes) = self.read(name)? else { return Ok(None) };
        String::from_utf8(bytes).map(Some).map_err(|error| {
            let path = self.0.as_deref().unwrap_or(Path::new("")).join(name);
            Fault::new(path, "not UTF-8").at(error.utf8_error().valid_up_to()).malformed()
        })
    }
}

/// What was found wrong, in order; only so much of it is kept.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    kept: Vec<FormatError>,
    total: usize,
}

impl Problems {
    const MOST: usize = 20;

    pub fn push(&mut self, error: FormatError) {
        self.total += 1;
        if self.kept.len() < Self::MOST {
            self.kept.push(error);
        }
    }

    /// For what explains all others.
    pub fn push_first(&mut self, error: FormatError) {
        self.total += 1;
        self.kept.truncate(Self::MOST - 1);
        self.kept.insert(0, error);
    }

    /// The value, or `None` after noting the error.
    pub fn take<T>(&mut self, result: Result<T>) -> Option<T> {
        result.map_err(|error| self.push(error)).ok()
    }

    pub fn total(&self) -> usize {
        self.total
    }

    pub fn into_first(self) -> Option<FormatError> {
        self.kept.into_iter().next()
    }
}

enum Found {
    Gguf(PathBuf),
    HuggingFace { directory: PathBuf, file: Option<PathBuf> },
}

/// Decides what kind of model a path is.
fn find(path: &Path) -> Result<Found> {
    let metadata = std::fs::metadata(path).map_err(|source| FormatError::io(path, source))?;
    if metadata.is_dir() { find_in_directory(path) } else { find_file(path) }
}

fn find_in_directory(path: &Path) -> Result<Found> {
    let names = list(path)?;
    let has = |wanted: fn(&str) -> bool| names.iter().any(|name| wanted(name));
    let hugging_face = Found::HuggingFace { directory: path.to_owned(), file: None };
    if has(|name| name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json")) {
        return Ok(hugging_face);
    }

    // The parts of a split file count as one.
    let ggufs: Vec<PathBuf> = names
        .iter()
        .map(|name| path.join(name))
        .filter(|file| file.extension().is_some_and(|extension| extension == "gguf"))
        .filter(|file| PartName::parse(file).is_none_or(|part| part.is_first()))
        .collect();
    match ggufs.as_slice() {
        [one] => return Ok(Found::Gguf(one.clone())),
        [] => {}
        several => {
            let names: Vec<_> =
                several.iter().filter_map(|file| file.file_name()?.to_str()).take(8).collect();
            return Err(Fault::new(path, format!("{} GGUF files: {}", several.len(), names.join(", ")))
                .hint("name the file that you mean")
                .unrecognised());
        }
    }
    if has(|name| matches!(name, "config.json" | "tokenizer.json" | "tokenizer_config.json")) {
        return Ok(hugging_face);
    }
    Err(Fault::new(path, "no model in this directory: no .gguf, no .safetensors, no config.json")
        .hint("give a GGUF file, or a directory with safetensors and config.json")
        .unrecognised())
}

fn find_file(path: &Path) -> Result<Found> {
    let start = first_bytes(path)?;
    if start.starts_with(b"GGUF") {
        return Ok(Found::Gguf(path.to_owned()));
    }
    if path.extension().is_some_and(|extension| extension == "safetensors") {
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        // One shard is no model: open them all.
        let shard = path.file_name().and_then(|name| name.to_str()).is_some_and(is_shard);
        return Ok(Found::HuggingFace { directory, file: (!shard).then(|| path.to_owned()) });
    }
    let (kind, hint) = foreign_kind(&start);
    let shown = start[..start.len().min(4)].escape_ascii().to_string();
    let problem = format!("{kind} (it starts with \"{}\"), expected GGUF or safetensors", Printable(&shown));
    Err(Fault::new(path, problem).at(0_u64).hint(hint).unrecognised())
}

/// `model-00001-of-00003.safetensors`
fn is_shard(name: &str) -> bool {
    let mut parts = name.trim_end_matches(".safetensors").rsplit('-');
    let digits = |text: Option<&str>| text.is_some_and(|text| text.parse::<u32>().is_ok());
    let count = parts.next().filter(|count| *count != "00001");
    digits(count) && parts.next() == Some("of") && digits(parts.next())
}

fn first_bytes(path: &Path) -> Result<Vec<u8>> {
    use std::io::Read;
    let mut start = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(16).read_to_end(&mut start))
        .map_err(|source| FormatError::io(path, source))?;
    Ok(start)
}

/// What a file that is no model for us is, and what to do about it.
fn foreign_kind(start: &[u8]) -> (&'static str, &'static str) {
    let convert = "convert the model to safetensors or GGUF, or download it in one of these";
    match start {
        [] => ("an empty file", "download it again"),
        [b'l', b'm', b'g', b'g', ..] | [b't' | b'f' | b'a', b'j' | b'm' | b'l', b'g', b'g', ..] => {
            ("a GGML file from before GGUF", "download the GGUF form of this model")
        }
        [b'F', b'U', b'G', b'G', ..] => {
            ("a big-endian GGUF file", "download the little-endian form of this model")
        }
        [b'P', b'K', 3, 4, ..] => ("a ZIP archive, as PyTorch (.bin, .pt) and NumPy (.npz) write", convert),
        [0x80, 2..=5, ..] => ("a Python pickle, as PyTorch (.bin, .pt) writes", convert),
        [0x93, b'N', b'U', b'M', ..] => ("a NumPy array", convert),
        [0x89, b'H', b'D', b'F', ..] => ("an HDF5 file, as Keras writes", convert),
        [0x1f, 0x8b, ..] | [0xfd, b'7', b'z', ..] | [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            ("a compressed file", "unpack it first")
        }
        [b'v', b'e', b'r', b's', ..] => {
            ("a text file, perhaps a Git LFS pointer", "fetch the real file: `git lfs pull`")
        }
        _ => {
            ("no model of a known kind", "give a GGUF file, or a directory with safetensors and config.json")
        }
    }
}
