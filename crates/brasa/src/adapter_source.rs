//! The place of a low-rank adapter, and the factor of its scale.

use std::path::{Path, PathBuf};

/// A low-rank adapter to be loaded beside a model: a directory of PEFT or MLX-LM, or a GGUF file.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterSource {
    /// The directory or file.
    pub path: PathBuf,
    /// Factor of the adapter's own scale; 1 for the scale that it was trained with.
    pub scale: f32,
}

impl AdapterSource {
    /// The adapter at `path`, as it was trained.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), scale: 1.0 }
    }

    /// The name of the directory or file, without an ending.
    pub fn name(&self) -> String {
        name_of(&self.path)
    }
}

/// `adapters/shakespeare.gguf` and `adapters/shakespeare/` are `shakespeare`, `shakespeare/adapters.safetensors` too.
pub(crate) fn name_of(path: &Path) -> String {
    let is_weights = path.extension().is_some_and(|end| end == "safetensors");
    let named = if is_weights { path.parent().unwrap_or(path) } else { path };
    let is_gguf = named.extension().is_some_and(|end| end == "gguf");
    let name = if is_gguf { named.file_stem() } else { named.file_name() };
    name.map_or_else(|| "adapter".into(), |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adapters_go_by_their_files_names() {
        for path in ["a/bard", "bard.gguf", "a/bard/adapters.safetensors", "a/bard/adapter_model.safetensors"]
        {
            assert_eq!(name_of(Path::new(path)), "bard", "{path}");
        }
        assert_eq!(name_of(Path::new("bard-0.5")), "bard-0.5");
        assert_eq!(name_of(Path::new("adapters.safetensors")), "adapter");
    }
}
