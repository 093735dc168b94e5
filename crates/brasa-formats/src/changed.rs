//! A checkpoint with changed values: the same files, tensors and formats, with other numbers in some places.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;

use crate::error::Fault;
use crate::{
    Checkpoint, Container, Existing, FormatError, Metadata, OutputFile, OutputFolder, Payload, Result,
    Shards, StorageFormat, codec, gguf, map_file, shards,
};

/// Elements that are encoded at a time.
const SLAB_ELEMENTS: usize = 1 << 20;
/// Endings of the names of files that hold weights.
const WEIGHTS: [&str; 10] =
    ["safetensors", "bin", "pt", "pth", "ckpt", "gguf", "npz", "h5", "msgpack", "onnx"];
/// Files beside weights that belong to an adapter, or to weights that Brasa does not write.
const NOT_COPIED: [&str; 3] = ["adapter_config.json", "pytorch_model.bin.index.json", "checkpoint.brasa"];

/// New values of consecutive elements of a stored tensor.
#[derive(Clone, Copy, Debug)]
pub struct Changed<'a> {
    /// The tensor, which is stored as F32, F16 or BF16.
    pub tensor: &'a str,
    /// The first element.
    pub first: usize,
    /// The values. F16 and BF16 round to the nearest, ties to even.
    pub values: &'a [f32],
}

/// The changes of each tensor, in the order of their elements.
pub(crate) type Changes<'a> = BTreeMap<&'a str, Vec<Changed<'a>>>;

impl Checkpoint {
    /// Writes the checkpoint with other values. GGUF becomes the file `path`; safetensors become the folder `path`, in files as
    /// `shards` says, with the configuration, the tokenizer and all other files of the checkpoint. File or folder appears whole or
    /// not at all.
    ///
    /// # Errors
    ///
    /// [`FormatError::Unwritable`] for a change of a tensor that is not there or stored in blocks, or of elements that it does not have;
    /// [`FormatError::Unsupported`] for weights in a form that is not written (npz, whisper.cpp's), and for [`Shards::Limited`] of a GGUF file;
    /// [`FormatError::Exists`] if something is there that shall be kept; [`FormatError::Io`] if the disk is full or fails. What was there before stays.
    pub fn write_changed(
        &self,
        changes: &[Changed<'_>],
        path: &Path,
        shards: Shards,
        existing: Existing,
    ) -> Result<()> {
        let changes = self.sorted(changes, path)?;
        match (self.container(), shards) {
            (Container::Gguf, Shards::Kept) => self.write_gguf(&changes, path, existing),
            (Container::Gguf, Shards::Limited { .. }) => {
                Err(Fault::new(self.path(), "a GGUF file is written whole, only safetensors in shards")
                    .unsupported())
            }
            (Container::HuggingFace, _) => self.write_folder(&changes, path, shards, existing),
        }
    }

    /// The changes by tensor, checked.
    fn sorted<'a>(&self, changes: &[Changed<'a>], path: &Path) -> Result<Changes<'a>> {
        let mut sorted = Changes::new();
        for change in changes {
            sorted.entry(change.tensor).or_default().push(*change);
        }
        for (name, changes) in &mut sorted {
            let unwritable = |problem: String| Err(Fault::new(path, problem).of(*name).unwritable());
            let Some(tensor) = self.tensor(name) else {
                return unwritable("the base has no such tensor".into());
            };
            if !tensor.format.is_float() {
                return unwritable(format!("stored as {}, expected F32, F16 or BF16", tensor.format));
            }
            changes.sort_by_key(|change| change.first);
            let mut end = 0;
            for change in changes.iter() {
                if change.first < end {
                    return unwritable(format!("element {} is changed twice", change.first));
                }
                end = change.first.saturating_add(change.values.len());
            }
            let elements = tensor.rows() * tensor.row_len();
            if end > elements {
                return unwritable(format!("elements up to {end} are changed, there are {elements}"));
            }
        }
        Ok(sorted)
    }

    fn write_gguf(&self, changes: &Changes<'_>, path: &Path, existing: Existing) -> Result<()> {
        let Metadata::Gguf(metadata) = self.metadata() else { unreachable!("of GGUF files") };
        let mut kept = gguf::Metadata::new();
        for (key, value) in metadata.iter().filter(|(key, _)| !key.starts_with("split.")) {
            kept.insert(key, value.clone());
        }
        let plan = |tensor: &crate::Tensor| gguf::TensorPlan {
            name: tensor.name.clone(),
            shape: tensor.shape.clone(),
            format: tensor.format,
        };
        let plans = self.tensors().iter().map(plan).collect();
        let mut writer = gguf::Writer::create(OutputFile::create(path, existing)?, &kept, plans)?;
        for tensor in self.tensors() {
            let Payload::Blocks(bytes) = &tensor.payload else { unreachable!("of GGUF files") };
            let changes = changes.get(tensor.name.as_str()).map_or(&[][..], Vec::as_slice);
            pieces(bytes, tensor.format, changes, &mut |piece| writer.write(&tensor.name, piece))?;
            tensor.release_pages();
        }
        writer.finish()
    }

    fn write_folder(
        &self,
        changes: &Changes<'_>,
        path: &Path,
        shards: Shards,
        existing: Existing,
    ) -> Result<()> {
        let folder = OutputFolder::create(path, existing)?;
        let mut files: Vec<&Path> = self.stored().iter().map(|info| &*info.file).collect();
        files.dedup();
        if let Some(file) = files.iter().find(|file| file.extension().is_none_or(|end| end != "safetensors"))
        {
            let problem = "weights of this form are not written, only safetensors and GGUF";
            return Err(Fault::new(*file, problem).unsupported());
        }
        match shards {
            Shards::Kept => {
                for file in &files {
                    self.write_shard(changes, file, &folder.file(file.file_name().unwrap_or_default()))?;
                }
            }
            Shards::Limited { most_bytes } => shards::write(self, changes, &files, most_bytes, &folder)?,
        }
        // The folder of a single file of weights is the file's.
        let base = files.first().and_then(|file| file.parent()).unwrap_or(self.path());
        let base = if base.as_os_str().is_empty() { Path::new(".") } else { base };
        let fail = |source| FormatError::io(base, source);
        for entry in fs::read_dir(base).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let (name, from) = (entry.file_name(), entry.path());
            let is_weights =
                from.extension().and_then(|end| end.to_str()).is_some_and(|end| WEIGHTS.contains(&end));
            let text = name.to_string_lossy();
            let is_old_index = shards != Shards::Kept && text == shards::INDEX;
            let is_other =
                is_weights || is_old_index || text.starts_with('.') || NOT_COPIED.contains(&&*text);
            // Asked of the path, which may be a link.
            if is_other || !fs::metadata(&from).map_err(|source| FormatError::io(&from, source))?.is_file() {
                continue;
            }
            copy(&from, &folder.file(&name))?;
        }
        folder.commit()
    }

    /// Writes one file of weights: the bytes of `file`, but for the elements that change.
    fn write_shard(&self, changes: &Changes<'_>, file: &Path, to: &Path) -> Result<()> {
        let bytes = map_file(file)?;
        let mut infos: Vec<_> = (self.stored().iter())
            .filter(|info| &*info.file == file)
            .filter_map(|info| Some((info, changes.get(info.name.as_str())?)))
            .collect();
        infos.sort_by_key(|(info, _)| info.offset_bytes);
        let mut output = OutputFile::create(to, Existing::Replace)?;
        let mut write = |piece: &[u8]| output.write_all(piece).map_err(|source| FormatError::io(to, source));
        let mut at = 0;
        for (info, changes) in infos {
            let start = usize::try_from(info.offset_bytes).unwrap_or(usize::MAX);
            let end =
                start.saturating_add(usize::try_from(info.size_bytes.unwrap_or(0)).unwrap_or(usize::MAX));
            let own = bytes.get(start..end).filter(|_| at <= start);
            let (Some(format), Some(own)) = (info.format, own) else {
                return Err(Fault::new(file, "changed since it was opened")
                    .of(info.name.as_str())
                    .malformed());
            };
            write(&bytes[at..start])?;
            pieces(own, format, changes, &mut write)?;
            at = end;
        }
        write(&bytes[at..])?;
        output.commit()
    }
}

/// Gives a tensor's bytes to `write`, piece by piece: the stored ones, and the new ones of elements that change.
pub(crate) fn pieces(
    bytes: &[u8],
    format: StorageFormat,
    changes: &[Changed<'_>],
    write: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let width = format.block_bytes();
    let (mut at, mut encoded) = (0, Vec::new());
    for change in changes {
        write(&bytes[at..change.first * width])?;
        for slab in change.values.chunks(SLAB_ELEMENTS) {
            encoded.resize(slab.len() * width, 0);
            codec::encode_row(format, slab, None, &mut encoded)
                .map_err(|error| Fault::new("", error.to_string()).of(change.tensor).unwritable())?;
            write(&encoded)?;
        }
        at = (change.first + change.values.len()) * width;
    }
    write(&bytes[at..])
}

/// Copies a small file, whole or not at all.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let mut input = fs::File::open(from).map_err(|source| FormatError::io(from, source))?;
    let mut output = OutputFile::create(to, Existing::Replace)?;
    std::io::copy(&mut input, &mut output).map_err(|source| FormatError::io(to, source))?;
    output.commit()
}
