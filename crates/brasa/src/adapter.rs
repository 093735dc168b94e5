//! Low-rank adapters beside a loaded model.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use brasa_engine::AdapterRows;
use brasa_formats::{AdapterFile, LowRankPair, Payload, Tensor};
use brasa_graph::pass::{add_low_rank, add_low_rank_bank};
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

/// The adapters of a loaded model.
#[derive(Debug, Default)]
pub(crate) struct Adapters {
    pub infos: Vec<AdapterInfo>,
    /// The scales that rows bring, if requests choose.
    pub rows: Option<Arc<AdapterRows>>,
}

impl Adapters {
    /// The number by which keys and values of these scales are known; adapters that are not named have the scale 0.
    ///
    /// # Errors
    ///
    /// [`Error::Options`] if requests do not choose, for an adapter that is not there and a scale that is no finite number;
    /// [`Error::Engine`] if too many mixtures are known.
    pub fn scope(&self, scales: &[(usize, f32)]) -> Result<u64, Error> {
        let refuse = |what: String| Err(Error::Options(what));
        let Some(rows) = &self.rows else {
            return refuse("this model was loaded without adapters that requests may choose".into());
        };
        let mut row = vec![0.0; self.infos.len()];
        for &(number, scale) in scales {
            if !scale.is_finite() {
                return refuse(format!("adapter {number}: scale {scale}, expected a finite number"));
            }
            match row.get_mut(number) {
                // Without a sign, so that equal mixtures have one number.
                Some(place) => *place = scale + 0.0,
                None => return refuse(format!("adapter {number}: there are {}", self.infos.len())),
            }
        }
        if self.infos.iter().map(|info| info.scale + 0.0).eq(row.iter().copied()) {
            return Ok(0);
        }
        // By its content, so that a saved text goes on with the same scales in another process.
        let bytes: Vec<u8> = row.iter().flat_map(|x| x.to_le_bytes()).collect();
        let digest = Sha256::digest(&bytes);
        let number = digest.first_chunk().map_or(1, |bytes| u64::from_le_bytes(*bytes).max(1));
        rows.insert(number, &row)?;
        Ok(number)
    }
}

/// Adds the adapters of `options` to the model's graph. Returns them, and a fingerprint of them all.
///
/// # Errors
///
/// [`Error::Format`], [`Error::Adapter`].
pub(crate) fn apply(
    options: &LoadOptions,
    model: &mut brasa_models::Model,
) -> Result<(Adapters, String), Error> {
    if options.adapters.is_empty() {
        return Ok((Adapters::default(), "none".into()));
    }
    let mut hash = Sha256::new();
    let (mut infos, mut bank) = (Vec::new(), Vec::new());
    let by_request = options.adapters_by_request;
    for AdapterSource { path, scale } in &options.adapters {
        if !scale.is_finite() {
            return Err(Error::Options(format!(
                "{}: scale {scale}, expected a finite number",
                path.display()
            )));
        }
        let fit = |error| Error::Adapter { path: path.clone(), error: Box::new(error) };
        let adapter = brasa_models::Adapter::new(AdapterFile::open(path)?, model).map_err(fit)?;
        if by_request && adapter.pairs.iter().any(|pair| pair.magnitude.is_some()) {
            return Err(Error::Options(format!(
                "{}: DoRA's magnitudes change whole rows of the model, so requests cannot choose them\nhint: merge the adapter \
                 into the model (brasa quantize --lora), or load it for all requests",
                path.display()
            )));
        }
        bank.push(adapter.low_ranks(model, if by_request { 1.0 } else { *scale }).map_err(fit)?);
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
    let adapted = if by_request {
        add_low_rank_bank(&model.graph, &bank)
    } else {
        add_low_rank(&model.graph, &bank.concat())
    };
    model.graph = adapted.map_err(brasa_models::ModelError::from)?;
    let plain: Vec<f32> = infos.iter().map(|info: &AdapterInfo| info.scale).collect();
    let rows = by_request.then(|| Arc::new(AdapterRows::new(&plain)));
    Ok((Adapters { infos, rows }, hex(&hash.finalize()[..16])))
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
