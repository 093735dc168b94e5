//! Low-rank adapters beside a loaded model.

use std::path::{Path, PathBuf};

use brasa_formats::{AdapterFile, LowRankPair, Payload, Tensor};
use brasa_graph::pass::add_low_rank;
use sha2::{Digest, Sha256};

use crate::session_file::hex;
use crate::{Error, LoadOptions};

/// A low-rank adapter to be loaded beside a model: a directory of PEFT or MLX-LM, or a GGUF file.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterSource {
    /// The directory or file.
    pub path: PathBuf,
    /// Multiplies the adapter's own scale; 1 is what it was trained with.
    pub scale: f32,
}

/// A low-rank adapter that has been loaded.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterInfo {
    /// The name of its directory or file, without an ending.
    pub name: String,
    /// The directory or file.
    pub path: PathBuf,
    /// Multiplies the adapter's own scale.
    pub scale: f32,
    /// Adapted layers.
    pub layers: usize,
    /// The largest rank.
    pub rank: usize,
    /// Numbers of all its matrices.
    pub parameters: u64,
}

impl AdapterSource {
    /// The adapter at `path`, as it was trained.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), scale: 1.0 }
    }
}

/// Adds the adapters of `options` to the model's graph. Returns what they are, and a fingerprint of them all.
///
/// # Errors
///
/// [`Error::Format`], [`Error::Adapter`].
pub(crate) fn apply(
    options: &LoadOptions,
    model: &mut brasa_models::Model,
) -> Result<(Vec<AdapterInfo>, String), Error> {
    if options.adapters.is_empty() {
        return Ok((Vec::new(), "none".into()));
    }
    let mut hash = Sha256::new();
    let (mut infos, mut low_ranks) = (Vec::new(), Vec::new());
    for AdapterSource { path, scale } in &options.adapters {
        if !scale.is_finite() {
            return Err(Error::Options(format!(
                "{}: scale {scale}, expected a finite number",
                path.display()
            )));
        }
        let fit = |error| Error::Adapter { path: path.clone(), error: Box::new(error) };
        let adapter = brasa_models::Adapter::new(AdapterFile::open(path)?, model).map_err(fit)?;
        low_ranks.extend(adapter.low_ranks(model, *scale).map_err(fit)?);
        hash.update(scale.to_le_bytes());
        for pair in &adapter.pairs {
            add_pair(&mut hash, pair);
        }
        let elements = |tensor: &Tensor| (tensor.rows() * tensor.row_len()) as u64;
        infos.push(AdapterInfo {
            name: name_of(path),
            path: path.clone(),
            scale: *scale,
            layers: adapter.pairs.len(),
            rank: adapter.pairs.iter().map(LowRankPair::rank).max().unwrap_or(0),
            parameters: adapter.pairs.iter().map(|pair| elements(&pair.a) + elements(&pair.b)).sum(),
        });
    }
    // Values keep their ids, those that the model names among them.
    model.graph = add_low_rank(&model.graph, &low_ranks).map_err(brasa_models::ModelError::from)?;
    Ok((infos, hex(&hash.finalize()[..16])))
}

/// Refuses adapters for a model that takes none.
pub(crate) fn refuse(options: &LoadOptions, what: &str) -> Result<(), Error> {
    match options.adapters.first() {
        Some(adapter) => Err(Error::Options(format!(
            "{}: adapters change language models, and this is {what}",
            adapter.path.display()
        ))),
        None => Ok(()),
    }
}

/// `adapters/shakespeare.gguf` and `adapters/shakespeare/` are `shakespeare`, `shakespeare/adapters.safetensors` too.
fn name_of(path: &Path) -> String {
    let is_weights = path.extension().is_some_and(|end| end == "safetensors");
    let named = if is_weights { path.parent().unwrap_or(path) } else { path };
    let is_gguf = named.extension().is_some_and(|end| end == "gguf");
    let name = if is_gguf { named.file_stem() } else { named.file_name() };
    name.map_or_else(|| "adapter".into(), |name| name.to_string_lossy().into_owned())
}

fn add_pair(hash: &mut Sha256, pair: &LowRankPair) {
    hash.update(format!("{} {:?} {};", pair.name, pair.a.shape, pair.scale.to_bits()));
    for tensor in [&pair.a, &pair.b] {
        hash.update(format!("{:?};", tensor.format));
        if let Payload::Blocks(bytes) = &tensor.payload {
            hash.update(&**bytes);
        }
    }
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
