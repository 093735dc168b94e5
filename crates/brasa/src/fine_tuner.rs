//! A model made ready to be fine-tuned.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use brasa_formats::{AdapterForm, Bytes, Changed, Checkpoint, Container, Existing, Tensor};
use brasa_graph::device::{Backend, DeviceInfo, Precision, ProgramLimits};
use brasa_models::{AdaptableLayer, Adapter, HeadCopy};
use brasa_tokenizer::{ChatTemplate, Tokenizer};
use brasa_train::data::Examples;
use brasa_train::lora::{Layer, Lora, Pair};
use brasa_train::{Extent, Parameters, Resources, TrainOptions, Trainer};

use crate::{Error, LoadOptions, LoadProgress, device, verify};

/// A model that can be fine-tuned: low-rank adapters, in whatever format it is stored, or its own parameters, if these are floats.
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

    /// Takes a GGUF file that is already in memory.
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
        let load = brasa_models::LoadOptions { context_length: options.context, strict: options.strict };
        let model = brasa_models::load(&checkpoint, &load)?;
        let mut warnings = model.warnings.clone();
        warnings.extend(verify::vocabulary(&tokenizer, checkpoint.container(), model.spec.vocab_size)?);
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
            adaptable,
            layers,
            warnings,
        })
    }

    /// The tokenizer of the model.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// What makes token ids of examples.
    pub fn examples(&self) -> Examples<'_> {
        Examples {
            tokenizer: &self.tokenizer,
            template: self.template.as_ref(),
            vocab_size: self.model.spec.vocab_size,
        }
    }

    /// The linear layers that an adapter can be learned for, by name in both spellings: `layers.3.attn_q` and
    /// `model.layers.3.self_attn.q_proj`. Routers and stacks of experts are not among them.
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// The adapter with magnitudes that are learned too (DoRA), which begin as the norms of the model's rows.
    ///
    /// # Errors
    ///
    /// [`Error::Train`] if a weight cannot be decoded.
    pub fn with_magnitudes(&self, lora: Lora) -> Result<Lora, Error> {
        Ok(lora.with_magnitudes(&self.model.graph)?)
    }

    /// The device.
    pub fn device(&self) -> DeviceInfo {
        self.backend.info()
    }

    /// Tokens of a text that the model was made for, if it says.
    pub fn context_length(&self) -> Option<usize> {
        self.model.info.context_length
    }

    /// Oddities of the checkpoint.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Puts the model and an adapter on the device, for steps of at most so many rows and documents.
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

    /// Puts the model with parameters that are learned on the device, for steps of at most so many rows and documents.
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

    /// True if the model is a GGUF file, and written as one.
    pub fn is_gguf(&self) -> bool {
        self.checkpoint.container() == Container::Gguf
    }

    /// Writes the model with other parameters: a GGUF file as the file `path`, safetensors as the folder `path`, with all that lies beside the weights. Tensors keep
    /// their names and formats, and values are rounded to these. File or folder appears whole or not at all.
    ///
    /// # Errors
    ///
    /// [`Error::Format`] if something is there that shall be kept, if the disk fails, or for a base of npz.
    pub fn write_model(&self, parameters: &Parameters, path: &Path, existing: Existing) -> Result<(), Error> {
        let changed = |(tensor, first, values)| Changed { tensor, first, values };
        let mut changes: Vec<Changed<'_>> = parameters.changes().map(changed).collect();
        if let Some(HeadCopy { copy, table }) = &self.model.head_copy {
            let of_table = changes.iter().filter(|change| change.tensor == table);
            let of_copy: Vec<_> = of_table.map(|change| Changed { tensor: copy, ..*change }).collect();
            changes.extend(of_copy);
        }
        Ok(self.checkpoint.write_changed(&changes, path, existing)?)
    }

    /// Writes an adapter: into the folder `path`, or as the GGUF file `path`. Files appear whole or not at all.
    ///
    /// # Errors
    ///
    /// [`Error::Format`] if a file is there that shall be kept, if the disk fails, or for magnitudes as GGUF; [`Error::Model`] for an adapter of another
    /// model.
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
            let a = Tensor::of_floats("a", vec![pair.rank, pair.layer.inputs], &pair.a);
            let b = Tensor::of_floats("b", vec![pair.layer.rows.len(), pair.rank], &pair.b);
            let magnitudes = pair.magnitudes.as_ref();
            let magnitudes = magnitudes.map(|values| Tensor::of_floats("m", vec![values.len()], values));
            Ok(layer.pair(a, b, pair.scale, magnitudes))
        };
        let pairs = lora.pairs.iter().map(pair).collect::<Result<_, Error>>()?;
        Adapter { pairs }.file(&self.model, form)?.write(path, existing)?;
        Ok(())
    }
}

/// A router that is changed sends tokens to other experts, and gradients know nothing of that.
fn can_learn(layer: &AdaptableLayer) -> bool {
    layer.experts.is_none() && !layer.name.ends_with(".ffn_gate_inp")
}

fn learnable(layer: &AdaptableLayer, model: &brasa_models::Model) -> Layer {
    Layer {
        name: layer.name.clone(),
        aliases: layer.hugging_face_name(model).into_iter().collect(),
        weight: layer.weight,
        rows: layer.rows.clone(),
        inputs: layer.inputs,
    }
}
