//! A model's files, opened and checked. All other crates read weights and settings through it.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::hugging_face::AbsentTensor;
use crate::inspection::{Container, Description, Inspection, Metadata, Sidecars, TensorInfo};
use crate::{Bytes, Result, Tensor};

/// An opened checkpoint: tensors, metadata, and the small files beside them, from any container.
///
/// Opening maps the files and checks everything that can be checked without reading weights; tensors
/// share the map. The files must not change while the checkpoint or any of its tensors is in use.
///
/// ```no_run
/// use brasa_formats::{Checkpoint, Metadata};
///
/// let checkpoint = Checkpoint::open("models/lexicon-qwen3")?;
/// match checkpoint.metadata() {
///     Metadata::Gguf(metadata) => println!("{:?}", metadata.value("general.architecture")),
///     Metadata::Config(config) => println!("{:?}", config.get("model_type")),
/// }
/// for tensor in checkpoint.tensors() {
///     println!("{} {:?} {}", tensor.name, tensor.shape, tensor.format);
/// }
/// let tokenizer = checkpoint.sidecar_text("tokenizer.json")?;
/// # Ok::<(), brasa_formats::FormatError>(())
/// ```
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    container: Container,
    metadata: Description,
    tensors: Vec<Tensor>,
    infos: Vec<TensorInfo>,
    absent: Vec<AbsentTensor>,
    /// Places of tensors by name, made when the first is asked for.
    index: OnceLock<HashMap<String, usize>>,
    sidecars: Sidecars,
    file_bytes: u64,
}

impl Checkpoint {
    /// Opens a GGUF file (with its siblings, if it is split), a Whisper as whisper.cpp keeps it (`ggml-*.bin`), a `.safetensors`
    /// file, or a directory that holds either safetensors or exactly one GGUF file.
    ///
    /// # Errors
    ///
    /// [`FormatError`](crate::FormatError), naming file, tensor or key, found and expected, if the path is no
    /// model, a file is damaged or incomplete, or a tensor is stored in a way that is not read.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::try_from(Inspection::open(path)?)
    }

    /// Opens a GGUF file held in memory.
    ///
    /// # Errors
    ///
    /// Errors of [`open`](Self::open).
    pub fn from_gguf_bytes(bytes: impl Into<Bytes>) -> Result<Self> {
        Self::try_from(Inspection::of_gguf_bytes(&bytes.into())?)
    }

    /// Opens a directory held in memory, files by name.
    ///
    /// # Errors
    ///
    /// Errors of [`open`](Self::open).
    pub fn from_files(files: BTreeMap<String, Bytes>) -> Result<Self> {
        Self::try_from(Inspection::of_files(files)?)
    }

    /// The path that was opened; empty for bytes in memory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The kind of checkpoint.
    pub fn container(&self) -> Container {
        self.container
    }

    /// The model's description: GGUF's key-value pairs, or `config.json`.
    pub fn metadata(&self) -> Metadata<'_> {
        self.metadata.view()
    }

    /// The tensors, in the order of the files. Integer arrays that are no weights (position numbers, masks) are left
    /// out.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// All arrays as the files describe them, in the order of the files: integer arrays too, and the parts of quantised tensors one by one.
    pub fn stored(&self) -> &[TensorInfo] {
        &self.infos
    }

    /// Tensors that an index of safetensors names and no file has. A model that needs one of them cannot be built.
    pub fn absent_tensors(&self) -> &[AbsentTensor] {
        &self.absent
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.index
            .get_or_init(|| {
                let tensors = self.tensors.iter().enumerate();
                tensors.map(|(at, tensor)| (tensor.name.clone(), at)).collect()
            })
            .get(name)
            .map(|&at| &self.tensors[at])
    }

    /// Reads a file beside the weights, such as `tokenizer.json`. `None` if there is none, and always for GGUF.
    ///
    /// # Errors
    ///
    /// [`FormatError::Io`](crate::FormatError::Io) if it exists but cannot be read,
    /// [`FormatError::Unsupported`](crate::FormatError::Unsupported) above 256 MiB.
    pub fn sidecar(&self, name: &str) -> Result<Option<Vec<u8>>> {
        self.sidecars.read(name)
    }

    /// Reads a file beside the weights as text; `None` if there is none, and always for GGUF.
    ///
    /// # Errors
    ///
    /// Also [`FormatError::Malformed`](crate::FormatError::Malformed) if it is not UTF-8.
    pub fn sidecar_text(&self, name: &str) -> Result<Option<String>> {
        self.sidecars.read_text(name)
    }

    /// Bytes of all files that hold weights.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }
}

impl TryFrom<Inspection> for Checkpoint {
    type Error = crate::FormatError;

    /// A checkpoint, if the inspection found no problem; otherwise the first problem.
    fn try_from(inspection: Inspection) -> Result<Self> {
        let path = inspection.path().to_owned();
        let container = inspection.container();
        let file_bytes = inspection.files().iter().map(|(_, bytes)| bytes).sum();
        let Inspection { metadata, sidecars, problems, tensors, infos, absent, .. } = inspection;
        if let Some(problem) = problems.into_first() {
            return Err(problem);
        }
        let metadata = metadata.ok_or_else(|| crate::error::Fault::new(&path, "no metadata").missing())?;
        let index = OnceLock::new();
        Ok(Self { path, container, metadata, tensors, infos, absent, index, sidecars, file_bytes })
    }
}
