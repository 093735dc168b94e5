//! Low-rank adapters beside a loaded model.

use std::path::PathBuf;

use brasa_formats::{AdapterFile, Bytes, LowRankPair, Payload, Tensor};
use brasa_graph::pass::{LowRank, add_low_rank};
use sha2::{Digest, Sha256};

use crate::adapter_source::name_of;
use crate::session_file::hex;
use crate::{AdapterSource, Error, LoadOptions};

/// A low-rank adapter that has been loaded.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterInfo {
    /// Id of the adapter for [`Model::adapter_scope`](crate::Model::adapter_scope). Ids of unloaded adapters are not used again.
    pub id: usize,
    /// Name of the adapter: that of its directory or file, without an ending, or the one given to
    /// [`load_adapter_as`](crate::Model::load_adapter_as).
    pub name: String,
    /// The directory or file.
    pub path: PathBuf,
    /// Multiplies the adapter's own scale.
    pub scale: f32,
    /// True if the adapter applies to requests that choose none: it is one of [`LoadOptions::adapters`].
    pub is_default: bool,
    /// Adapted layers.
    pub layers: usize,
    /// The largest rank.
    pub rank: usize,
    /// Elements of all the adapter's matrices together.
    pub parameters: u64,
}

/// An adapter that has been read and fits its model.
pub(crate) struct Fitted {
    pub info: AdapterInfo,
    /// The low-rank products that the adapter adds to the model's graph, at its own scale.
    pub low_ranks: Vec<LowRank>,
    /// A fingerprint of the adapter's content, independent of its name and scale.
    pub content: u64,
    /// The adapter's low-rank pairs, for a fingerprint of several adapters.
    pairs: Vec<LowRankPair>,
}

/// Reads an adapter and compares it with the model.
///
/// # Errors
///
/// [`Error::Options`] for a scale that is no finite number, and for DoRA's magnitudes if the adapter is chosen `by_request`;
/// [`Error::Format`], [`Error::Adapter`].
pub(crate) fn fit(
    source: &AdapterSource,
    model: &brasa_models::Model,
    by_request: bool,
) -> Result<Fitted, Error> {
    let AdapterSource { path, scale } = source;
    if !scale.is_finite() {
        return Err(Error::Options(format!("{}: scale {scale}, expected a finite number", path.display())));
    }
    let fit = |error| Error::Adapter { path: path.clone(), error: Box::new(error) };
    let mut adapter = brasa_models::Adapter::new(AdapterFile::open(path)?, model).map_err(fit)?;
    if by_request && adapter.pairs.iter().any(|pair| pair.magnitude.is_some()) {
        return Err(Error::Options(format!(
            "{}: DoRA's magnitudes change whole rows of the model, so requests cannot choose them\nhint: merge the adapter \
             into the model (brasa quantize --lora), or load it for all requests",
            path.display()
        )));
    }
    if by_request {
        for pair in &mut adapter.pairs {
            own(pair).map_err(|what| Error::Options(format!("{}: {}: {what}", path.display(), pair.name)))?;
        }
    }
    let low_ranks = adapter.low_ranks(model, if by_request { 1.0 } else { *scale }).map_err(fit)?;
    let mut hash = Sha256::new();
    adapter.pairs.iter().for_each(|pair| add_pair(&mut hash, pair));
    let digest = hash.finalize();
    let elements = |tensor: &Tensor| (tensor.rows() * tensor.row_len()) as u64;
    let info = AdapterInfo {
        id: 0,
        name: name_of(path),
        path: path.clone(),
        scale: *scale,
        is_default: false,
        layers: adapter.pairs.len(),
        rank: adapter.pairs.iter().map(LowRankPair::rank).max().unwrap_or(0),
        parameters: adapter.pairs.iter().map(|pair| elements(&pair.a) + elements(&pair.b)).sum(),
    };
    let content = digest.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    Ok(Fitted { info, low_ranks, content, pairs: adapter.pairs })
}

/// Gives a pair bytes of its own: its file may be written again while the adapter is in use.
///
/// # Errors
///
/// A value that is no finite number: zero times it would reach the texts of other adapters.
fn own(pair: &mut LowRankPair) -> Result<(), String> {
    for tensor in [&mut pair.a, &mut pair.b] {
        if let Payload::Blocks(bytes) = &tensor.payload {
            tensor.payload = Payload::Blocks(Bytes::from(bytes.to_vec()));
        }
        let mut values = vec![0.0; tensor.rows() * tensor.row_len()];
        tensor.decode_rows(0..tensor.rows(), &mut values).map_err(|error| error.to_string())?;
        if let Some(value) = values.iter().find(|value| !value.is_finite()) {
            return Err(format!("a value is {value}, expected finite numbers"));
        }
    }
    Ok(())
}

/// Reads the adapters of `options`; their ids follow the order of the options.
///
/// # Errors
///
/// The errors of [`fit`].
pub(crate) fn fit_all(options: &LoadOptions, model: &brasa_models::Model) -> Result<Vec<Fitted>, Error> {
    let mut all = Vec::new();
    for (id, source) in options.adapters.iter().enumerate() {
        let mut fitted = fit(source, model, options.adapters_by_request)?;
        (fitted.info.id, fitted.info.is_default) = (id, true);
        all.push(fitted);
    }
    Ok(all)
}

/// A fingerprint of adapters and their scales, or `none`.
pub(crate) fn fingerprint(adapters: &[Fitted]) -> String {
    if adapters.is_empty() {
        return "none".into();
    }
    let mut hash = Sha256::new();
    for adapter in adapters {
        hash.update(adapter.info.scale.to_le_bytes());
        adapter.pairs.iter().for_each(|pair| add_pair(&mut hash, pair));
    }
    hex(&hash.finalize()[..16])
}

/// Adds `adapters` to the model's graph, for every text that the model computes.
///
/// # Errors
///
/// [`Error::Model`].
pub(crate) fn apply(adapters: &[Fitted], model: &mut brasa_models::Model) -> Result<(), Error> {
    let all: Vec<LowRank> = adapters.iter().flat_map(|adapter| adapter.low_ranks.iter().cloned()).collect();
    // Values keep their ids, those that the model names among them.
    model.graph = add_low_rank(&model.graph, &all).map_err(brasa_models::ModelError::from)?;
    Ok(())
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

fn add_pair(hash: &mut Sha256, pair: &LowRankPair) {
    hash.update(format!("{} {:?} {};", pair.name, pair.a.shape, pair.scale.to_bits()));
    for tensor in [&pair.a, &pair.b] {
        hash.update(format!("{:?};", tensor.format));
        if let Payload::Blocks(bytes) = &tensor.payload {
            hash.update(&**bytes);
        }
    }
}
