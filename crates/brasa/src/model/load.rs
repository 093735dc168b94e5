//! How a checkpoint becomes a model that is ready to answer.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use brasa_engine::{Engine, EngineConfig, EngineParts, MakeProgram, pages_bytes};
use brasa_formats::{Bytes, Checkpoint};
use brasa_grammar::Grammars;
use brasa_graph::device::KvPoolSpec;
use brasa_models::{ModelError, ModelInfo, ModelSpec, RecommendedSampling, SentenceConfig};
use brasa_tokenizer::{BuiltinTemplate, ThoughtMarks, Tokenizer, ToolFormat};

use super::{Model, Parts, TidyHeap};
use crate::bank::Opened;
use crate::inside::{Inside, LoadedDevice};
use crate::session_file::{Identity, Weights};
use crate::{Error, LoadOptions, LoadProgress, LoadTimes, adapter, device, draft_model, room, verify};

/// Most positions of a context if the options set none.
pub(crate) const DEFAULT_CONTEXT: usize = 131_072;

/// Most bytes of keys and values that sessions share if the options set none.
const SESSION_PREFIX_BYTES: u64 = 1 << 30;

/// Most positions of any context: numbers of positions have 32 bits.
pub(crate) const MOST_POSITIONS: usize = i32::MAX as usize;

/// Positions of a text: from the options, else the model's own limit.
pub(crate) fn context_of(options: &LoadOptions, info: &ModelInfo) -> usize {
    options.context.unwrap_or(info.context_length.map_or(DEFAULT_CONTEXT, |own| own.min(DEFAULT_CONTEXT)))
}

impl Model {
    /// Loads a GGUF file, a Hugging Face checkpoint or an MLX directory.
    ///
    /// # Errors
    ///
    /// [`Error`], naming file and remedy.
    pub fn load(path: impl AsRef<Path>, options: &LoadOptions) -> Result<Self, Error> {
        Self::load_with_progress(path, options, |_| ControlFlow::Continue(()))
    }

    /// Like [`load`](Self::load), but `progress` receives the progress and may cancel.
    ///
    /// # Errors
    ///
    /// The errors of [`load`](Self::load), and [`DeviceError::Cancelled`](brasa_graph::device::DeviceError::Cancelled).
    pub fn load_with_progress(
        path: impl AsRef<Path>,
        options: &LoadOptions,
        progress: impl FnMut(LoadProgress) -> ControlFlow<()>,
    ) -> Result<Self, Error> {
        let started = Instant::now();
        Self::from_checkpoint(&Checkpoint::open(path.as_ref())?, options, progress, started)
    }

    /// Loads a GGUF file that is already in memory, such as one embedded in a program.
    ///
    /// # Errors
    ///
    /// The errors of [`load_with_progress`](Self::load_with_progress).
    pub fn from_gguf_bytes(
        bytes: impl AsRef<[u8]> + Send + Sync + 'static,
        options: &LoadOptions,
        progress: impl FnMut(LoadProgress) -> ControlFlow<()>,
    ) -> Result<Self, Error> {
        let started = Instant::now();
        Self::from_checkpoint(&Checkpoint::from_gguf_bytes(Bytes::new(bytes))?, options, progress, started)
    }

    pub(crate) fn from_checkpoint(
        checkpoint: &Checkpoint,
        options: &LoadOptions,
        mut progress: impl FnMut(LoadProgress) -> ControlFlow<()>,
        started: Instant,
    ) -> Result<Self, Error> {
        if options.chunk == Some(0)
            || options.mixed_chunk == Some(0)
            || options.max_sequences == Some(0)
            || options.max_waiting == 0
            || options.context == Some(0)
            || options.threads == Some(0)
        {
            return Err(Error::Options(
                "chunks, sequences, waiting requests, context and threads must be at least 1".into(),
            ));
        }
        if let Some(context) = options.context.filter(|&context| context > MOST_POSITIONS) {
            return Err(Error::Options(format!(
                "a context of {context} tokens: at most {MOST_POSITIONS} are possible"
            )));
        }
        let mut times = LoadTimes { open: started.elapsed(), ..LoadTimes::default() };
        std::thread::scope(|scope| {
            // A large vocabulary takes as long as preparing a device and its weights do: the two go side by side.
            let text = scope.spawn(|| {
                let started = Instant::now();
                let tokenizer = Tokenizer::from_checkpoint(checkpoint, options.pre_tokenizer.as_deref())?;
                let template = match &options.chat_template {
                    Some(source) => Some(match BuiltinTemplate::by_name(source) {
                        Some(form) => tokenizer.builtin_chat_template(form),
                        None => tokenizer.chat_template_from(source)?,
                    }),
                    // A model without a template still continues texts; chatting with it is the error.
                    None => tokenizer.chat_template().ok(),
                };
                tokenizer.judged_warnings(options.strict)?;
                Ok::<_, Error>((tokenizer, template, started.elapsed()))
            });
            let backend = device::of(options)?;
            let graph_started = Instant::now();
            let load = brasa_models::LoadOptions { context_length: options.context, strict: options.strict };
            let mut loaded = brasa_models::load(checkpoint, &load)?;
            let adapters = adapter::fit_all(options, &loaded)?;
            let adapted_by = adapter::fingerprint(&adapters);
            let adapters = Opened::new(&mut loaded, adapters, options.adapters_by_request)?;
            let (hidden_graph, attentions) = (Arc::new(loaded.hidden_graph()), loaded.attentions());
            let routers = loaded.routers();
            let brasa_models::Model { spec, graph, states, info, mut warnings, .. } = loaded;
            let sentence = sentence(checkpoint, &spec, options.strict, &mut warnings)?;
            let recommended_sampling = recommended_sampling(checkpoint, options.strict, &mut warnings)?;
            let graph = Arc::new(graph);
            let graph_done = Instant::now();
            // Limits of the device are checked first, since the upload of weights takes long.
            backend.capabilities().check(&backend.info().name, &graph, options.kv_type())?;
            let weights = backend.upload(&graph, options.precision, &mut |upload| {
                progress(LoadProgress { done_bytes: upload.done_bytes, total_bytes: upload.total_bytes })
            })?;
            let weights_done = Instant::now();
            let weight_bytes = weights.size_bytes();
            let dtype = options.kv_type();
            let pool_spec = KvPoolSpec::of(&graph, dtype);
            let context = context_of(options, &info);
            let loaded = Weights { checkpoint, spec: &spec, adapted_by };
            let identity = Identity::new(&loaded, &pool_spec, options.precision, options.deterministic);
            let pool = backend.kv_pool(pool_spec)?;
            let max_sequences = room::sequences(options, &backend.info(), weight_bytes, context, &*pool);
            let program_spec = options.program_spec(&backend.info(), max_sequences, spec.vocab_size);
            let device = Arc::new(LoadedDevice { backend: Arc::clone(&backend), weights });
            let program = device.program(&graph, program_spec)?;
            let draft_started = Instant::now();
            let draft = match &options.draft_model {
                Some(path) => {
                    let texts = draft_model::Texts { context, dtype, sequences: max_sequences };
                    Some(draft_model::load(path, options, &backend, texts, &mut progress)?)
                }
                None => None,
            };
            let draft_time = draft_started.elapsed();
            let draft_bytes =
                draft.as_ref().map_or(0, |draft| draft.about.weight_bytes + draft.about.cache_bytes);
            let cache_bytes = options.cache_bytes.unwrap_or_else(|| {
                let other_bytes = weight_bytes + draft_bytes;
                room::page_budget(&backend.info(), other_bytes, max_sequences, pages_bytes(&*pool, context))
            });
            let config = EngineConfig {
                context,
                max_sequences,
                max_waiting: options.max_waiting,
                mixed_prompt_rows: options.mixed_prompt_rows(&backend.info()),
                vocab_size: spec.vocab_size,
                cache_bytes,
                prefix_bytes: options.prefix_bytes.unwrap_or(SESSION_PREFIX_BYTES),
                prefault_bytes: options.prefault_bytes,
            };
            let description = backend.info();
            let inside = Inside {
                device: Arc::clone(&device),
                graph: Arc::new(adapters.base_graph()),
                attentions,
                states,
                routers,
                program_spec,
            };
            let bank = adapters.bank(graph, Arc::clone(&device), program_spec)?;
            let hidden: MakeProgram = Box::new(move || device.program(&hidden_graph, program_spec));
            times.graph = graph_done - graph_started;
            times.weights = weights_done - graph_done;
            times.compile = weights_done.elapsed().saturating_sub(draft_time);
            let (tokenizer, template, tokenizer_time) = match text.join() {
                Ok(text) => text?,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            if let Some(draft) = &draft {
                draft.check(&tokenizer, spec.vocab_size)?;
            }
            let (draft, draft_model) = draft.map(|draft| (draft.model, draft.about)).unzip();
            let (hidden, adapter_rows) = (Some(hidden), bank.rows().cloned());
            let parts = EngineParts { program, pool, hidden, draft_model: draft, adapter_rows };
            let engine = Engine::start(parts, config)?;
            let source = options.chat_template.as_deref().or(tokenizer.chat_template_source());
            let thought_marks = ThoughtMarks::of(source, &tokenizer);
            let tool_format = ToolFormat::of(source, &tokenizer);
            let mut shown = thought_marks.map_or(Vec::new(), |marks| marks.token_ids(&tokenizer));
            shown.extend(tool_format.token_ids(&tokenizer));
            let shown = shown.into();
            warnings.extend(verify::vocabulary(&tokenizer, checkpoint.container(), spec.vocab_size)?);
            warnings.extend_from_slice(tokenizer.warnings());
            let tokenizer = Arc::new(tokenizer);
            let grammars = Grammars::new(Arc::clone(&tokenizer), spec.vocab_size);
            times.tokenizer = tokenizer_time;
            times.total = started.elapsed();
            Ok(Self(Arc::new(Parts {
                engine,
                shares_prompts: options.prefix_bytes.is_some(),
                speculation: options.speculation,
                tokenizer,
                grammars,
                template,
                thought_marks,
                tool_format,
                shown,
                info,
                device: description,
                warnings,
                load_times: times,
                recommended_sampling,
                sentence,
                inside,
                weight_bytes,
                draft_model,
                bank,
                identity,
                tokenizer_fingerprint: OnceLock::new(),
                breakers: super::breakers::Latest::default(),
                latest: Arc::default(),
                _last: TidyHeap,
            })))
        })
    }
}

/// Sampling that `checkpoint` recommends. A recommendation that cannot be read or followed is a warning; one that cannot be read is
/// an error if `strict`.
fn recommended_sampling(
    checkpoint: &Checkpoint,
    strict: bool,
    warnings: &mut Vec<String>,
) -> Result<RecommendedSampling, Error> {
    let found = match RecommendedSampling::of(checkpoint) {
        Err(error) if !strict => {
            warnings.push(format!("no recommended sampling: {error}"));
            RecommendedSampling::default()
        }
        found => found?,
    };
    warnings.extend(found.passed_over.iter().map(|setting| format!("sampling does not follow {setting}")));
    Ok(found)
}

/// Reads how `checkpoint` makes embeddings. Files that cannot be read or followed are a warning, or an error if `strict`: a model
/// that generates is of use without them.
fn sentence(
    checkpoint: &Checkpoint,
    spec: &ModelSpec,
    strict: bool,
    warnings: &mut Vec<String>,
) -> Result<SentenceConfig, Error> {
    let fits = |config: SentenceConfig| match config.dense.first() {
        Some(layer) if layer.inputs != spec.hidden_size => Err(ModelError::Config {
            what: format!(
                "a dense layer has {} inputs, and hidden states have {}",
                layer.inputs, spec.hidden_size
            ),
        }),
        _ => Ok(config),
    };
    match SentenceConfig::of(checkpoint).and_then(fits) {
        Err(error) if !strict => {
            warnings.push(format!("embeddings are not the checkpoint's own: {error}"));
            Ok(SentenceConfig::default())
        }
        found => Ok(found?),
    }
}
