//! Everything that a model's files hold, whether or not the model can run.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::detect::{Found, find, find_in_directory};
use crate::directory::Directory;
use crate::error::Fault;
use crate::hugging_face::AbsentTensor;
use crate::problems::Problems;
use crate::{Bytes, FormatError, Result, StorageFormat, Tensor, gguf, hugging_face, whisper_bin};

/// The largest file beside the weights that is read. The largest tokenizers in circulation have 40 MB.
const LARGEST_SIDECAR: u64 = 256 << 20;

/// The two kinds of checkpoints.
///
/// A `match` over this enum is exhaustive on purpose: a third kind needs names and keys in every family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Container {
    /// One GGUF file, or the parts of a split one: metadata and tokenizer included. A file of whisper.cpp counts as the GGUF file
    /// that would hold the same.
    Gguf,
    /// Safetensors with `config.json`, `tokenizer.json` and others beside them; MLX checkpoints too.
    HuggingFace,
}

/// The description of a model, by container.
#[derive(Clone, Copy, Debug)]
pub enum Metadata<'a> {
    /// The key-value pairs of a GGUF file.
    Gguf(&'a gguf::Metadata),
    /// `config.json`.
    Config(&'a serde_json::Value),
}

/// One tensor as its file describes it, whether Brasa can read it or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// The name in the file.
    pub name: String,
    /// Dimensions as stored, outermost first. Packed MLX words count as words.
    pub shape: Vec<u64>,
    /// The type as its format spells it: `Q4_K`, `BF16`, `I64`.
    pub type_name: Cow<'static, str>,
    /// The storage format; `None` for types that are not read, or only as part of another tensor.
    pub format: Option<StorageFormat>,
    /// The file it is in.
    pub file: Arc<Path>,
    /// Position of the tensor's first byte in its file.
    pub offset_bytes: u64,
    /// Stored bytes; `None` if type or shape do not say.
    pub size_bytes: Option<u64>,
}

impl TensorInfo {
    /// Number of elements. For an impossible shape, as many as fit 64 bits.
    pub fn elements(&self) -> u64 {
        self.shape.iter().fold(1, |product: u64, &dim| product.saturating_mul(dim))
    }
}

/// A look into a model's files that refuses as little as possible: unsupported or cut-off tensors are
/// listed like others, and what [`Checkpoint::open`](crate::Checkpoint::open) would refuse is in
/// [`problems`](Self::problems).
#[derive(Debug)]
pub struct Inspection {
    path: PathBuf,
    container: Container,
    pub(crate) metadata: Option<Description>,
    pub(crate) infos: Vec<TensorInfo>,
    files: Vec<(PathBuf, u64)>,
    pub(crate) sidecars: Sidecars,
    gguf_version: Option<u32>,
    pub(crate) problems: Problems,
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) absent: Vec<AbsentTensor>,
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
    /// Looks into a GGUF file, a file of whisper.cpp, a `.safetensors` file, or a directory of GGUF or safetensors.
    ///
    /// # Errors
    ///
    /// [`FormatError::Unrecognised`] if the path is no model of a known kind, [`FormatError::Io`] if it cannot
    /// be read, and others if not even the metadata of a GGUF file is readable.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        Self::of_found(path.to_owned(), find(path)?)
    }

    /// Looks into a directory held in memory, files by name.
    ///
    /// # Errors
    ///
    /// Errors of [`open`](Self::open).
    pub fn of_files(files: BTreeMap<String, Bytes>) -> Result<Self> {
        Self::of_found(PathBuf::new(), find_in_directory(Directory::Memory(Arc::new(files)))?)
    }

    /// Looks into a GGUF file held in memory.
    ///
    /// # Errors
    ///
    /// Errors of [`open`](Self::open).
    pub fn of_gguf_bytes(bytes: &Bytes) -> Result<Self> {
        let mut problems = Problems::default();
        let part = gguf::read_single(Path::new(""), bytes, &mut problems)?;
        let files = vec![(PathBuf::new(), bytes.len() as u64)];
        Ok(Self::of_gguf(PathBuf::new(), part, files, problems))
    }

    fn of_found(path: PathBuf, found: Found) -> Result<Self> {
        match found {
            Found::Gguf { directory, file } => {
                let mut problems = Problems::default();
                let (part, files) = gguf::read_file(&directory, &file, &mut problems)?;
                Ok(Self::of_gguf(path, part, files, problems))
            }
            Found::WhisperBin { directory, file } => {
                let mut problems = Problems::default();
                let bytes = directory.map(&file)?;
                let part = whisper_bin::read(&directory.path_of(&file), &bytes, &mut problems)?;
                let files = vec![(directory.path_of(&file), bytes.len() as u64)];
                Ok(Self::of_gguf(path, part, files, problems))
            }
            Found::HuggingFace { directory, file } => {
                Ok(Self::of_directory(path, directory, file.as_deref()))
            }
        }
    }

    fn of_gguf(path: PathBuf, part: gguf::Part, files: Vec<(PathBuf, u64)>, problems: Problems) -> Self {
        Self {
            path,
            container: Container::Gguf,
            metadata: Some(Description::Gguf(part.metadata)),
            infos: part.infos,
            files,
            sidecars: Sidecars(None),
            gguf_version: part.version,
            problems,
            tensors: part.tensors,
            absent: Vec::new(),
        }
    }

    fn of_directory(path: PathBuf, directory: Directory, file: Option<&str>) -> Self {
        let mut problems = Problems::default();
        let store = hugging_face::read(&directory, file, &mut problems);
        let infos = store.raws.into_iter().map(|raw| TensorInfo {
            name: raw.name,
            shape: raw.shape.into_iter().map(|dim| dim as u64).collect(),
            type_name: raw.dtype_name,
            format: raw.dtype.and_then(crate::safetensors::Dtype::float_format),
            file: raw.file,
            offset_bytes: raw.offset_bytes,
            size_bytes: Some(raw.size_bytes),
        });
        Self {
            path,
            container: Container::HuggingFace,
            metadata: store.config.map(Description::Config),
            infos: infos.collect(),
            files: store.files,
            sidecars: Sidecars(Some(directory)),
            gguf_version: None,
            problems,
            tensors: store.tensors,
            absent: store.absent,
        }
    }

    /// The path that was opened; empty for bytes in memory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The kind of checkpoint.
    pub fn container(&self) -> Container {
        self.container
    }

    /// The version of the GGUF format; `None` for other files.
    pub fn gguf_version(&self) -> Option<u32> {
        self.gguf_version
    }

    /// The model's description; `None` for a directory without a readable `config.json`.
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

    /// Tensors that an index of safetensors names and no file has.
    pub fn absent_tensors(&self) -> &[AbsentTensor] {
        &self.absent
    }

    /// The files that hold the weights, with their sizes in bytes.
    pub fn files(&self) -> &[(PathBuf, u64)] {
        &self.files
    }

    /// Why this could not be opened as a checkpoint; empty if it can. At most 20 are kept.
    pub fn problems(&self) -> &[FormatError] {
        self.problems.kept()
    }

    /// A file beside the weights, such as `tokenizer.json`; `None` if there is none, and always for GGUF.
    ///
    /// # Errors
    ///
    /// [`FormatError::Io`] if it exists but cannot be read, [`FormatError::Unsupported`] above 256 MiB.
    pub fn sidecar(&self, name: &str) -> Result<Option<Vec<u8>>> {
        self.sidecars.read(name)
    }

    /// Reads a file beside the weights as text; `None` if there is none, and always for GGUF.
    ///
    /// # Errors
    ///
    /// Also [`FormatError::Malformed`] if it is not UTF-8.
    pub fn sidecar_text(&self, name: &str) -> Result<Option<String>> {
        self.sidecars.read_text(name)
    }
}

/// The small files beside the weights; none for GGUF, which holds everything itself.
#[derive(Clone, Debug)]
pub(crate) struct Sidecars(Option<Directory>);

impl Sidecars {
    pub fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let Some(directory) = &self.0 else { return Ok(None) };
        directory.read(name, LARGEST_SIDECAR)
    }

    pub fn read_text(&self, name: &str) -> Result<Option<String>> {
        let Some(directory) = &self.0 else { return Ok(None) };
        let Some(bytes) = directory.read(name, LARGEST_SIDECAR)? else { return Ok(None) };
        String::from_utf8(bytes).map(Some).map_err(|error| {
            let fault = Fault::new(directory.path_of(name), "not UTF-8");
            fault.at(error.utf8_error().valid_up_to()).malformed()
        })
    }
}
