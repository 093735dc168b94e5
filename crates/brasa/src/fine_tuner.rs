//! A model made ready to be fine-tuned.

use std::cell::Cell;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use brasa_formats::{
    AdapterFile, AdapterForm, Bytes, Changed, Checkpoint, Container, Existing, Metadata, Payload, Shards,
    Tensor, codec, gguf,
};
use brasa_graph::device::{Backend, DeviceInfo, Precision, ProgramLimits};
use brasa_models::{AdaptableLayer, Adapter, HeadCopy};
use brasa_tokenizer::{ChatTemplate, Tokenizer};
use brasa_train::data::{Examples, TokenCache};
use brasa_train::lora::{AdapterDtype, Layer, Lora, Pair, Targets};
use brasa_train::{Extent, Parameters, Resources, TrainOptions, Trainer};

use sha2::{Digest, Sha256};

use crate::session_file::hex;
use crate::{Error, LoadOptions, LoadProgress, device, verify};

/// A model that can be fine-tuned: by a low-rank adapter, for any storage format, or in its own parameters, if these are floats.
///
/// ```
/// use brasa::train::data::{Batches, DataOptions, Dataset};
/// use brasa::train::lora::{Lora, LoraOptions, Targets};
/// use brasa::train::optimizer::{Adam, Rule, Schedule, Shape};
/// use brasa::train::{Activations, Noise, Objective, TrainOptions};
/// use brasa::{FineTuner, LoadOptions};
///
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny-llama");
/// let options = LoadOptions { device: Some("cpu".into()), ..LoadOptions::default() };
/// let tuner = FineTuner::open(path, &options)?;
/// let rows = r#"{"prompt": "What is a glim?", "completion": "A small light."}"#;
/// let data = Dataset::read_from(rows.as_bytes(), "train.jsonl", &tuner.examples(), &DataOptions::default())?;
/// let mut batches = Batches::new(data.documents, 256, 16, Some(0));
///
/// let targets = Targets::parse("q_proj, v_proj", Some(2))?;
/// let lora = Lora::new(tuner.layers(), &LoraOptions { targets, ..LoraOptions::default() })?;
/// let schedule = Schedule { shape: Shape::Constant, peak: 1e-2, warm_up: 0, updates: 3, floor: 0.0 };
/// let rule = Rule::AdamW(Adam::default());
/// let (noise, activations) = (Noise::default(), Activations::Kept);
/// let (objective, longest_gradient) = (Objective::Likelihood, None);
/// let schedule = schedule.into();
/// let options = TrainOptions { objective, rule, schedule, accumulation: 1, longest_gradient, noise, activations };
/// let mut trainer = tuner.trainer(lora, options, (256, 16), &mut |_| std::ops::ControlFlow::Continue(()))?;
/// let losses = [(); 3].map(|()| trainer.update(&mut batches).map(|update| update.loss));
/// let [first, _, last] = losses.map(|loss| loss.expect("finite numbers"));
/// assert!(last < first);
/// # Ok::<(), brasa::Error>(())
/// ```
pub struct FineTuner {
    backend: Arc<dyn Backend>,
    precision: Precision,
    checkpoint: Checkpoint,
    model: brasa_models::Model,
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    /// A fingerprint of everything that determines the token ids of texts.
    tokens_from: String,
    adaptable: Vec<AdaptableLayer>,
    layers: Vec<Layer>,
    warnings: Vec<String>,
}

impl FineTuner {
    /// Opens a GGUF file, a Hugging Face checkpoint or an MLX directory. Weights are put on the device by [`trainer`](Self::trainer).
    ///
    /// # Errors
    ///
    /// [`Error`], naming file and remedy.
    pub fn open(path: impl AsRef<Path>, options: &LoadOptions) -> Result<Self, Error> {
        Self::from_checkpoint(Checkpoint::open(path.as_ref())?, options)
    }

    /// Opens a GGUF file that is already in memory.
    ///
    /// # Errors
    ///
    /// Errors of [`open`](Self::open).
    pub fn from_gguf_bytes(
        bytes: impl AsRef<[u8]> + Send + Sync + 'static,
        options: &LoadOptions,
    ) -> Result<Self, Error> {
        Self::from_checkpoint(Checkpoint::from_gguf_bytes(Bytes::new(bytes))?, options)
    }

    fn from_checkpoint(checkpoint: Checkpoint, options: &LoadOptions) -> Result<Self, Error> {
        let backend = device::of(options)?;
        let tokenizer = Tokenizer::from_checkpoint(&checkpoint, options.pre_tokenizer.as_deref())?;
        let template = match &options.chat_template {
            Some(source) => Some(tokenizer.chat_template_from(source)?),
            None => tokenizer.chat_template().ok(),
        };
        let tokens_from = tokens_from(&checkpoint, options)?;
        let load = brasa_models::LoadOptions { context_length: options.context, strict: options.strict };
        let model = brasa_models::load(&checkpoint, &load)?;
        let mut warnings = model.warnings.clone();
        warnings.extend(verify::vocabulary(&tokenizer, checkpoint.container(), model.spec.vocab_size)?);
        warnings.extend_from_slice(tokenizer.judged_warnings(options.strict)?);
        let adaptable: Vec<AdaptableLayer> =
            AdaptableLayer::of(&model).into_iter().filter(can_learn).collect();
        let layers = adaptable.iter().map(|layer| learnable(layer, &model)).collect();
        Ok(Self {
            backend,
            precision: options.precision,
            checkpoint,
            model,
            tokenizer,
            template,
            tokens_from,
            adaptable,
            layers,
            warnings,
        })
    }

    /// The tokenizer of the model.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Makes token ids of examples with the model's tokenizer and template.
    pub fn examples(&self) -> Examples<'_> {
        Examples {
            tokenizer: &self.tokenizer,
            template: self.template.as_ref(),
            vocab_size: self.model.spec.vocab_size,
        }
    }

    /// A cache of token ids in `folder`, for this tokenizer and chat template.
    ///
    /// # Errors
    ///
    /// [`Error::Train`] if the folder cannot be made.
    pub fn token_cache(&self, folder: &Path) -> Result<TokenCache, Error> {
        Ok(TokenCache::new(folder, &*self.tokens_from)?)
    }

    /// The linear layers that an adapter can be learned for, by name in both spellings: `layers.3.attn_q` and
    /// `model.layers.3.self_attn.q_proj`. Routers are not among them.
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// The adapter with learned magnitudes (DoRA), whose initial values are the norms of the weights' rows.
    ///
    /// # Errors
    ///
    /// [`Error::Train`] if a weight cannot be decoded.
    pub fn with_magnitudes(&self, lora: Lora) -> Result<Lora, Error> {
        Ok(lora.with_magnitudes(&self.model.graph)?)
    }

    /// `lora` with the values of the adapter at `path`, in any form, so that a run begins where another ended. Layers that `path`
    /// lacks keep their initial values; ranks must be equal, and scales stay.
    ///
    /// # Errors
    ///
    /// [`Error::Format`] and [`Error::Model`] for no adapter of this model; [`Error::Options`] for a layer that `lora` does not have, another rank, or magnitudes that it
    /// does not have.
    pub fn begin_from(&self, mut lora: Lora, path: &Path) -> Result<Lora, Error> {
        let file = Adapter::new(AdapterFile::open(path)?, &self.model)?;
        for pair in &file.pairs {
            let refuse =
                |what: String| Err(Error::Options(format!("{}: {}: {what}", path.display(), pair.name)));
            let layer = self.adaptable.iter().find(|layer| layer.name == pair.name);
            let own = lora.pairs.iter_mut().find(|own| own.layer.name == pair.name);
            let (Some(layer), Some(own)) = (layer, own) else {
                return refuse("this layer is not learned\nhint: choose the adapter's layers".into());
            };
            if pair.rank() != own.rank {
                return refuse(format!(
                    "rank {}, expected {}\nhint: learn with the same rank",
                    pair.rank(),
                    own.rank
                ));
            }
            let (b, magnitude) = layer.rows_of(pair)?;
            (own.a, own.b) = (decoded(&pair.a)?, decoded(&b)?);
            match (&mut own.magnitudes, magnitude) {
                (Some(own), Some(magnitude)) => *own = decoded(&magnitude)?,
                (None, None) => {}
                (None, Some(_)) => return refuse("with DoRA's magnitudes\nhint: learn by DoRA too".into()),
                (Some(_), None) => {
                    return refuse("without DoRA's magnitudes\nhint: learn without them too".into());
                }
            }
        }
        Ok(lora)
    }

    /// The device that the model is trained on.
    pub fn device(&self) -> DeviceInfo {
        self.backend.info()
    }

    /// Length of texts, in tokens, that the model was made for, if its files tell it.
    pub fn context_length(&self) -> Option<usize> {
        self.model.info.context_length
    }

    /// Oddities of the checkpoint that do not keep it from being trained.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Puts the model and an adapter on the device, for steps of at most `max_rows` rows and `max_documents` documents.
    ///
    /// # Errors
    ///
    /// Errors of the device, which names what it lacks, and of [`Trainer::new`].
    pub fn trainer(
        &self,
        lora: Lora,
        options: TrainOptions,
        (max_rows, max_documents): (usize, usize),
        progress: &mut dyn FnMut(LoadProgress) -> ControlFlow<()>,
    ) -> Result<Trainer, Error> {
        let resources = self.resources(max_rows, max_documents);
        Ok(Trainer::new(&resources, lora, options, &mut |upload| {
            progress(LoadProgress { done_bytes: upload.done_bytes, total_bytes: upload.total_bytes })
        })?)
    }

    /// The model's own parameters, for full fine-tuning.
    ///
    /// # Errors
    ///
    /// [`Error::Train`] if one is stored in blocks, whose values are no floats, or for more blocks than there are.
    pub fn parameters(&self, extent: Extent) -> Result<Parameters, Error> {
        Ok(Parameters::of(&self.model.graph, extent)?)
    }

    /// The model's own parameters that `targets` names, for full fine-tuning: linear layers, and all other parameters by their own names.
    ///
    /// # Errors
    ///
    /// [`Error::Train`] if one of them is stored in blocks, if a pattern names none, or for more blocks than there are.
    pub fn parameters_of(&self, targets: &Targets) -> Result<Parameters, Error> {
        Ok(Parameters::of_targets(&self.model.graph, &self.layers, targets)?)
    }

    /// Puts the model with learned parameters on the device, for steps of at most `max_rows` rows and `max_documents` documents.
    ///
    /// # Errors
    ///
    /// Errors of the device, which names what it lacks, and of [`Trainer::of_parameters`].
    pub fn trainer_of_parameters(
        &self,
        parameters: Parameters,
        options: TrainOptions,
        (max_rows, max_documents): (usize, usize),
        progress: &mut dyn FnMut(LoadProgress) -> ControlFlow<()>,
    ) -> Result<Trainer, Error> {
        let resources = self.resources(max_rows, max_documents);
        Ok(Trainer::of_parameters(&resources, parameters, options, &mut |upload| {
            progress(LoadProgress { done_bytes: upload.done_bytes, total_bytes: upload.total_bytes })
        })?)
    }

    fn resources(&self, max_rows: usize, max_documents: usize) -> Resources<'_> {
        Resources {
            backend: &*self.backend,
            model: &self.model.graph,
            precision: self.precision,
            limits: ProgramLimits { max_rows, max_outs: max_rows, max_segments: max_documents },
        }
    }

    /// True if the model is a GGUF file. [`write_model`](Self::write_model) then writes a GGUF file too.
    pub fn is_gguf(&self) -> bool {
        self.checkpoint.container() == Container::Gguf
    }

    /// Writes the model with other parameters. GGUF becomes the file `path`; safetensors become the folder `path`, in the base's
    /// files or in `shards` of a limited size, with all other files of the checkpoint. Tensors keep their names and formats, and
    /// values are rounded to these. File or folder appears whole or not at all.
    ///
    /// # Errors
    ///
    /// [`Error::Format`] if `existing` forbids to replace a file or folder at `path`, if the disk fails, for a base of npz, or
    /// for shards of a GGUF file.
    pub fn write_model(
        &self,
        parameters: &Parameters,
        path: &Path,
        shards: Shards,
        existing: Existing,
    ) -> Result<(), Error> {
        let changed = |(tensor, first, values)| Changed { tensor, first, values };
        let mut changes: Vec<Changed<'_>> = parameters.changes().map(changed).collect();
        if let Some(HeadCopy { copy, table }) = &self.model.head_copy {
            let of_table = changes.iter().filter(|change| change.tensor == table);
            let of_copy: Vec<_> = of_table.map(|change| Changed { tensor: copy, ..*change }).collect();
            changes.extend(of_copy);
        }
        Ok(self.checkpoint.write_changed(&changes, path, shards, existing)?)
    }

    /// Writes an adapter: into the folder `path`, or as the GGUF file `path`. Files appear whole or not at all.
    ///
    /// `A` and `B` are stored in the adapter's own [type](Lora::dtype): with [`AdapterDtype::Bf16`], the rounded numbers that
    /// training multiplies with. A clone of the adapter with [`AdapterDtype::F32`] writes the learned values.
    ///
    /// # Errors
    ///
    /// [`Error::Format`] if `existing` forbids to replace a file, if the disk fails, or for magnitudes as GGUF; [`Error::Model`]
    /// for an adapter of another model.
    pub fn write(
        &self,
        lora: &Lora,
        form: AdapterForm,
        path: &Path,
        existing: Existing,
    ) -> Result<(), Error> {
        let pair = |pair: &Pair| {
            let layer = self.adaptable.iter().find(|layer| layer.name == pair.layer.name);
            let layer = layer
                .ok_or_else(|| Error::Options(format!("{}: no layer of this model", pair.layer.name)))?;
            let of_each = |shape: [usize; 2]| [layer.experts.as_slice(), &shape].concat();
            let a = matrix("a", of_each([pair.rank, pair.layer.inputs]), &pair.a, lora.dtype);
            let b = matrix("b", of_each([pair.layer.rows.len(), pair.rank]), &pair.b, lora.dtype);
            let magnitudes = pair.magnitudes.as_ref();
            let magnitudes = magnitudes.map(|values| Tensor::of_floats("m", vec![values.len()], values));
            Ok(layer.pair(a, b, pair.scale, magnitudes))
        };
        let pairs = lora.pairs.iter().map(pair).collect::<Result<_, Error>>()?;
        let mut file = Adapter { pairs }.file(&self.model, form)?;
        file.base = base_name(self.checkpoint.path());
        Ok(file.write(path, existing)?)
    }
}

/// A matrix of an adapter as it is stored.
fn matrix(name: &str, shape: Vec<usize>, values: &[f32], dtype: AdapterDtype) -> Tensor {
    let format = dtype.storage_format();
    let mut bytes = vec![0; values.len() * format.block_bytes()];
    codec::encode_row(format, values, None, &mut bytes).expect("floats of any number");
    Tensor { name: name.into(), shape, format, payload: Payload::Blocks(Bytes::from(bytes)) }
}

/// The name under which adapters refer to the model at `path`: `owner/name` for a snapshot in the cache of Hugging Face's hub, else the
/// path. `None` for a model that was read from memory.
fn base_name(path: &Path) -> Option<String> {
    let of_hub = path.iter().filter_map(|part| part.to_str()?.strip_prefix("models--")).next_back();
    let name = of_hub.map_or_else(|| path.display().to_string(), |name| name.replace("--", "/"));
    Some(name).filter(|name| !name.is_empty())
}

/// Files beside safetensors that the token ids of texts may depend on.
const TOKENIZER_FILES: [&str; 10] = [
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
];

/// A fingerprint of everything that determines the token ids of texts: the tokenizer's files or keys, options, and the day, if a
/// template tells it.
fn tokens_from(checkpoint: &Checkpoint, options: &LoadOptions) -> Result<String, Error> {
    let mut hash = Sha256::new();
    let tells_time = Cell::new(false);
    let mut add = |name: &str, bytes: &[u8]| {
        if bytes.windows(b"strftime_now".len()).any(|part| part == b"strftime_now") {
            tells_time.set(true);
        }
        for part in [name.as_bytes(), bytes] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
    };
    match checkpoint.metadata() {
        Metadata::Config(_) => {
            for name in TOKENIZER_FILES {
                if let Some(bytes) = checkpoint.sidecar(name)? {
                    add(name, &bytes);
                }
            }
        }
        Metadata::Gguf(metadata) => {
            for (key, value) in metadata.iter().filter(|(key, _)| key.starts_with("tokenizer.")) {
                match value {
                    gguf::Value::Array(array) => {
                        let strings = array.strings().into_iter().flatten();
                        strings.for_each(|text| add(key, text));
                        let scalars = array.scalars().into_iter().flatten();
                        scalars.for_each(|scalar| add(key, format!("{scalar:?}").as_bytes()));
                    }
                    gguf::Value::String(text) => add(key, text.as_bytes()),
                    scalar => add(key, format!("{scalar:?}").as_bytes()),
                }
            }
        }
    }
    for (name, text) in [("template", &options.chat_template), ("pre-tokenizer", &options.pre_tokenizer)] {
        add(name, text.as_deref().unwrap_or_default().as_bytes());
    }
    if tells_time.get() {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        add("day", &(since.as_secs() / 86400).to_le_bytes());
    }
    Ok(hex(&hash.finalize()))
}

fn decoded(tensor: &Tensor) -> Result<Vec<f32>, Error> {
    let mut values = vec![0.0; tensor.rows() * tensor.row_len()];
    let decoded = tensor.decode_rows(0..tensor.rows(), &mut values);
    decoded.map_err(|error| Error::Options(format!("{}: {error}", tensor.name)))?;
    Ok(values)
}

/// True if an adapter may learn the layer. False for a router: gradients do not cover the choice of experts, which a changed
/// router alters.
fn can_learn(layer: &AdaptableLayer) -> bool {
    !layer.name.ends_with(".ffn_gate_inp")
}

fn learnable(layer: &AdaptableLayer, model: &brasa_models::Model) -> Layer {
    Layer {
        name: layer.name.clone(),
        aliases: layer.hugging_face_name(model).into_iter().collect(),
        weight: layer.weight,
        rows: layer.rows.clone(),
        inputs: layer.inputs,
        experts: layer.experts,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::base_name;

    #[test]
    fn bases_have_the_names_of_the_hub_or_paths() {
        let snapshot = "/home/a/.cache/huggingface/hub/models--Qwen--Qwen3-0.6B/snapshots/c1899de";
        for (path, name) in
            [(snapshot, Some("Qwen/Qwen3-0.6B")), ("models/tiny", Some("models/tiny")), ("", None)]
        {
            assert_eq!(base_name(Path::new(path)).as_deref(), name);
        }
    }
}
