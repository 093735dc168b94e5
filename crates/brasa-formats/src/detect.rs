//! The kind of model at a path, decided by the first bytes of a file, and by the names in a directory.

use std::path::{Path, PathBuf};

use crate::directory::Directory;
use crate::error::{Fault, Printable};
use crate::gguf::PartName;
use crate::{FormatError, Result, whisper_bin};

/// A kind of checkpoint, found from a path.
pub(crate) enum Found {
    /// A GGUF file, possibly one part of several.
    Gguf { directory: Directory, file: String },
    /// A file of whisper.cpp.
    WhisperBin { directory: Directory, file: String },
    /// A directory of safetensors files, or only the file `file` of the directory.
    HuggingFace { directory: Directory, file: Option<String> },
}

/// Decides what is at `path`.
pub(crate) fn find(path: &Path) -> Result<Found> {
    let metadata = std::fs::metadata(path).map_err(|source| FormatError::io(path, source))?;
    if metadata.is_dir() {
        return find_in_directory(Directory::Disk(path.to_owned()));
    }
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
        return Err(Fault::new(path, "the file's name is not UTF-8").hint("rename it").unrecognised());
    };
    find_file(Directory::Disk(directory), name)
}

/// Decides what a directory holds.
pub(crate) fn find_in_directory(directory: Directory) -> Result<Found> {
    let names = directory.names()?;
    let has = |wanted: fn(&str) -> bool| names.iter().any(|name| wanted(name));
    // Safetensors of another name are no weights: a GGUF file beside them is the model.
    let is_weights = |name: &str| name.starts_with("model") && has_extension(name, "safetensors");
    if has(is_weights) || has(|name| name.ends_with(".safetensors.index.json")) {
        return Ok(Found::HuggingFace { directory, file: None });
    }

    // The parts of a split file count as one, and what llama.cpp calls a multimodal projector is a part of another model.
    let is_gguf = |name: &str| {
        has_extension(name, "gguf")
            && !name.starts_with("mmproj")
            && PartName::parse(name).is_none_or(|part| part.is_first())
    };
    let is_whisper_bin = |name: &str| name.starts_with("ggml-") && has_extension(name, "bin");
    for (kind, is_model) in [("GGUF", &is_gguf as &dyn Fn(&str) -> bool), ("GGML", &is_whisper_bin)] {
        let models: Vec<&str> = names.iter().map(String::as_str).filter(|name| is_model(name)).collect();
        match models.as_slice() {
            [one] => return find_file(directory, one),
            [] => {}
            several => {
                let shown = several[..several.len().min(8)].join(", ");
                let shown = shown + if several.len() > 8 { ", …" } else { "" };
                let problem = format!("{} {kind} files: {}", several.len(), Printable(&shown));
                return Err(Fault::new(directory.path(), problem)
                    .hint("name the file that you mean")
                    .unrecognised());
            }
        }
    }
    if has(|name| {
        has_extension(name, "safetensors")
            || matches!(name, "config.json" | "tokenizer.json" | "tokenizer_config.json")
    }) {
        return Ok(Found::HuggingFace { directory, file: None });
    }
    Err(Fault::new(directory.path(), "no model in this directory: no .gguf, no .safetensors, no config.json")
        .hint("give a GGUF file, or a directory with safetensors and config.json")
        .unrecognised())
}

fn find_file(directory: Directory, name: &str) -> Result<Found> {
    let start = directory.start_of(name)?;
    if start.starts_with(b"GGUF") {
        return Ok(Found::Gguf { directory, file: name.to_owned() });
    }
    if start.starts_with(&whisper_bin::MAGIC)
        && whisper_bin::is_whisper(&directory.path_of(name), &directory.map(name)?)
    {
        return Ok(Found::WhisperBin { directory, file: name.to_owned() });
    }
    if has_extension(name, "safetensors") {
        // One shard is no model: open them all.
        let file = (!is_shard(name)).then(|| name.to_owned());
        return Ok(Found::HuggingFace { directory, file });
    }
    if start.is_empty() {
        return Err(Fault::new(directory.path_of(name), "an empty file")
            .hint("download it again")
            .unrecognised());
    }
    let (kind, hint) = foreign_kind(&start);
    let shown = start[..start.len().min(4)].escape_ascii();
    let problem = format!("{kind} (it starts with \"{shown}\"), expected GGUF or safetensors");
    Err(Fault::new(directory.path_of(name), problem).hint(hint).unrecognised())
}

fn has_extension(name: &str, wanted: &str) -> bool {
    Path::new(name).extension().is_some_and(|extension| extension == wanted)
}

/// `model-00001-of-00003.safetensors`, but not the one shard of one.
fn is_shard(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let mut parts = name.trim_end_matches(".safetensors").rsplit('-');
    let count = parts.next().filter(|count| is_number(count) && count.trim_start_matches('0') != "1");
    count.is_some() && parts.next() == Some("of") && parts.next().is_some_and(is_number)
}

/// Names the kind of a file that is no model for Brasa, and a remedy.
fn foreign_kind(start: &[u8]) -> (&'static str, &'static str) {
    let convert = "convert the model to safetensors or GGUF, or download it in one of these";
    match start {
        [b'l', b'm', b'g', b'g', ..] | [b't' | b'f' | b'a', b'j' | b'm' | b'l', b'g', b'g', ..] => {
            ("a GGML file from before GGUF, and no Whisper", "download the GGUF form of this model")
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
        [b'v', b'e', b'r', b's', b'i', b'o', b'n', b' ', ..] => {
            ("a text file, probably a Git LFS pointer", "fetch the real file: `git lfs pull`")
        }
        _ => {
            ("no model of a known kind", "give a GGUF file, or a directory with safetensors and config.json")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_told_from_whole_files() {
        assert!(is_shard("model-00002-of-00003.safetensors"));
        assert!(is_shard("model-of-mine-00001-of-00012.safetensors"));
        for whole in ["model.safetensors", "model-00001-of-00001.safetensors", "a-of-b.safetensors"] {
            assert!(!is_shard(whole), "{whole}");
        }
    }
}
