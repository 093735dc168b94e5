//! A model made ready to answer.

use std::fmt;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use brasa_engine::{
    Engine, EngineConfig, MakeProgram, MaskSource, Request, SessionId, Speculation, TextDecoder, pages_bytes,
};
use brasa_formats::{Bytes, Checkpoint};
use brasa_grammar::{Grammar, Grammars};
use brasa_graph::device::{DeviceInfo, KvPoolSpec};
use brasa_models::{ModelError, ModelInfo, ModelSpec, RecommendedSampling, SentenceConfig};
use brasa_tokenizer::{
    AddSpecial, AnswerParser, ChatOptions, ChatTemplate, DecodeStream, Message, ParseSpecial, ThoughtMarks,
    Thoughts, Tokenizer, ToolChoice, ToolFormat,
};
use serde_json::Value;

use crate::bank::{Bank, Opened};
use crate::draft_model::{self, DraftModelInfo};
use crate::inside::{Inside, LoadedDevice};
use crate::session_file::{Identity, Weights, tokenizer_fingerprint};
use crate::{
    Error, GenerateOptions, LoadOptions, LoadProgress, LoadTimes, Metrics, Session, TokenStream, adapter,
    device, verify,
};

/// Most positions of a context if the options name none.
pub(crate) const DEFAULT_CONTEXT: usize = 131_072;

/// Bytes of keys and values that sessions share if the options name none.
const SESSION_PREFIX_BYTES: u64 = 1 << 30;

/// Most positions of any context: numbers of positions have 32 bits.
pub(crate) const MOST_POSITIONS: usize = i32::MAX as usize;

/// Positions of a text, as the options say or the model was made for.
pub(crate) fn context_of(options: &LoadOptions, info: &ModelInfo) -> usize {
    options.context.unwrap_or(info.context_length.map_or(DEFAULT_CONTEXT, |own| own.min(DEFAULT_CONTEXT)))
}

/// Most bytes of keys and values if the options name none, on a device of `memory_bytes` beside `weight_bytes`.
pub(crate) fn cache_room(memory_bytes: u64, weight_bytes: u64) -> u64 {
    memory_bytes.saturating_sub(weight_bytes) / 4 * 3
}

/// A model made ready: tokenizer, chat template, compiled program, engine.
///
/// A handle: clones are cheap, name one loaded model, and may be used from any thread, any number of streams at once.
/// [Sessions](Session) hold a clone. Dropping the last handle cancels the streams that still run and frees the model.
#[derive(Clone)]
pub struct Model(Arc<Parts>);

/// A handle that does not keep its model loaded.
pub(crate) struct WeakModel(Weak<Parts>);

impl WeakModel {
    /// The model, if it is still loaded.
    pub(crate) fn upgrade(&self) -> Option<Model> {
        self.0.upgrade().map(Model)
    }
}

struct Parts {
    engine: Engine,
    /// True if requests without a session share the beginnings of their prompts.
    shares_prompts: bool,
    speculation: Speculation,
    tokenizer: Arc<Tokenizer>,
    grammars: Grammars,
    template: Option<ChatTemplate>,
    thought_marks: Option<&'static ThoughtMarks>,
    tool_format: ToolFormat,
    /// Tokens of the marks, which are part of an answer's text even if they are control tokens.
    shown: Arc<[u32]>,
    info: ModelInfo,
    device: DeviceInfo,
    warnings: Vec<String>,
    load_times: LoadTimes,
    recommended_sampling: RecommendedSampling,
    sentence: SentenceConfig,
    inside: Inside,
    weight_bytes: u64,
    draft_model: Option<DraftModelInfo>,
    bank: Bank,
    /// The identity that sessions' files have, without the tokenizer.
    identity: Identity,
    tokenizer_fingerprint: OnceLock<String>,
    /// The cost of the latest request by way of [`TextModel`](crate::TextModel).
    latest: Arc<Mutex<Metrics>>,
    _last: TidyHeap,
}

/// What stands last in a model and goes last: the memory of all else is free by then.
struct TidyHeap;

impl Drop for TidyHeap {
    fn drop(&mut self) {
        brasa_cpu::heap::give_back_free_memory();
    }
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

    /// Like [`load`](Self::load), but `progress` is told how far it has come and may cancel.
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
            || options.max_sequences == 0
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
                    Some(source) => Some(tokenizer.chat_template_from(source)?),
                    // A model without a template still continues texts; chatting with it is the error.
                    None => tokenizer.chat_template().ok(),
                };
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
            let weights = backend.upload(&graph, options.precision, &mut |upload| {
                progress(LoadProgress { done_bytes: upload.done_bytes, total_bytes: upload.total_bytes })
            })?;
            let weights_done = Instant::now();
            let limits = options.program_limits(&backend.info(), spec.vocab_size);
            let weight_bytes = weights.size_bytes();
            let device = Arc::new(LoadedDevice { backend: Arc::clone(&backend), weights });
            let program = device.program(&graph, limits)?;
            let dtype = options.kv_type();
            let pool_spec = KvPoolSpec { groups: graph.cache_groups(), dtype };
            let context = context_of(options, &info);
            let loaded = Weights { checkpoint, spec: &spec, adapted_by };
            let identity = Identity::new(&loaded, &pool_spec, options.precision, options.deterministic);
            let pool = backend.kv_pool(pool_spec)?;
            let draft_started = Instant::now();
            let draft = match &options.draft_model {
                Some(path) => {
                    Some(draft_model::load(path, options, &backend, (context, dtype), &mut progress)?)
                }
                None => None,
            };
            let draft_time = draft_started.elapsed();
            let draft_bytes =
                draft.as_ref().map_or(0, |draft| draft.about.weight_bytes + draft.about.cache_bytes);
            let cache_bytes = options.cache_bytes.unwrap_or_else(|| {
                // Texts that wait in sessions hold pages too: room for as many of them as for running requests.
                let texts = options.max_sequences.saturating_mul(2) as u64;
                let wanted = pages_bytes(&*pool, context).saturating_mul(texts);
                let room =
                    backend.info().memory_bytes.map(|bytes| cache_room(bytes, weight_bytes + draft_bytes));
                room.map_or(wanted, |room| wanted.min(room))
            });
            let config = EngineConfig {
                context,
                max_sequences: options.max_sequences,
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
                limits,
                dtype,
            };
            let bank = adapters.bank(graph, Arc::clone(&device), limits)?;
            let hidden: MakeProgram = Box::new(move || device.program(&hidden_graph, limits));
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
            let engine =
                Engine::start_adapted(program, Some(hidden), draft, bank.rows().cloned(), pool, config)?;
            let source = options.chat_template.as_deref().or(tokenizer.chat_template_source());
            let thought_marks = ThoughtMarks::of(source, &tokenizer);
            let tool_format = ToolFormat::of(source, &tokenizer);
            let mut shown = thought_marks.map_or(Vec::new(), |marks| marks.token_ids(&tokenizer));
            shown.extend(tool_format.token_ids(&tokenizer));
            let shown = shown.into();
            warnings.extend(verify::vocabulary(&tokenizer, checkpoint.container(), spec.vocab_size)?);
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
                latest: Arc::default(),
                _last: TidyHeap,
            })))
        })
    }

    /// Architecture, sizes and storage of the model.
    pub fn info(&self) -> &ModelInfo {
        &self.0.info
    }

    /// The device that the model runs on.
    pub fn device(&self) -> &DeviceInfo {
        &self.0.device
    }

    /// The tokenizer of the model.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.0.tokenizer
    }

    /// The chat template; `None` if the checkpoint has none that works and none of the built-in forms fits.
    pub fn chat_template(&self) -> Option<&ChatTemplate> {
        self.0.template.as_ref()
    }

    /// Oddities of the checkpoint that do not keep it from running.
    pub fn warnings(&self) -> &[String] {
        &self.0.warnings
    }

    /// Positions that a text may have.
    pub fn context(&self) -> usize {
        self.0.engine.config().context
    }

    /// Token ids of the model: the width of its logits.
    pub fn vocab_size(&self) -> usize {
        self.0.engine.config().vocab_size
    }

    /// How long loading took.
    pub fn load_time(&self) -> Duration {
        self.0.load_times.total
    }

    /// Times of the parts of loading.
    pub fn load_times(&self) -> LoadTimes {
        self.0.load_times
    }

    /// The sampling that the checkpoint recommends, from `generation_config.json` or GGUF's `general.sampling.…`.
    ///
    /// The library never applies it by itself: [`GenerateOptions::default`] takes the most probable token, for every model.
    /// [`RecommendedSampling::apply`] puts it into [`SamplingParams`](crate::SamplingParams).
    pub fn recommended_sampling(&self) -> &RecommendedSampling {
        &self.0.recommended_sampling
    }

    /// Bytes of the weights on the device, without the draft model's.
    pub fn weight_bytes(&self) -> u64 {
        self.0.weight_bytes
    }

    /// The draft model beside the model; `None` if it was loaded without one.
    pub fn draft_model(&self) -> Option<&DraftModelInfo> {
        self.0.draft_model.as_ref()
    }

    /// The adapters that requests choose among.
    pub(crate) fn bank(&self) -> &Bank {
        &self.0.bank
    }

    /// A handle that does not keep the model loaded.
    pub(crate) fn downgrade(&self) -> WeakModel {
        WeakModel(Arc::downgrade(&self.0))
    }

    /// What a look inside needs.
    pub(crate) fn inside(&self) -> &Inside {
        &self.0.inside
    }

    /// How the checkpoint makes embeddings, as the files beside it say.
    pub(crate) fn sentence(&self) -> &SentenceConfig {
        &self.0.sentence
    }

    /// Continues a raw text, with the special tokens that the model puts in front; the text itself is not searched
    /// for special tokens.
    ///
    /// # Errors
    ///
    /// [`Error::Tokenizer`], [`Error::Engine`]; later errors come through the stream.
    pub fn generate(&self, prompt: &str, options: &GenerateOptions) -> Result<TokenStream, Error> {
        let ids = self.0.tokenizer.encode(prompt, AddSpecial::AsModel, ParseSpecial::No)?;
        self.generate_ids(ids, options)
    }

    /// Continues a text given as token ids, used as they are.
    ///
    /// # Errors
    ///
    /// [`Error::Engine`]; later errors come through the stream.
    pub fn generate_ids(&self, prompt: Vec<u32>, options: &GenerateOptions) -> Result<TokenStream, Error> {
        self.start(prompt, options, None)
    }

    /// Answers a conversation.
    ///
    /// # Errors
    ///
    /// [`Error::Tokenizer`] if the model has no chat template, or the template refuses the messages; [`Error::Engine`]. Later
    /// errors come through the stream.
    pub fn chat(&self, messages: &[Message], options: &GenerateOptions) -> Result<TokenStream, Error> {
        self.start_chat(self.chat_prompt(messages)?, options, None)
    }

    /// Compiles a grammar for [`GenerateOptions::mask`], which holds answers to it.
    ///
    /// The first grammar of a model takes longer: about a second for a vocabulary of 150,000 tokens. Later ones take
    /// milliseconds.
    ///
    /// # Errors
    ///
    /// [`Error::Grammar`] says where the grammar is wrong, or what of it is not supported.
    pub fn grammar(&self, grammar: &Grammar) -> Result<Arc<dyn MaskSource>, Error> {
        Ok(self.0.grammars.compile(grammar)?)
    }

    /// A mask for the answer to a chat's `prompt`: a model that thinks first may do so freely, and `mask` sets in behind the
    /// thoughts. [`chat`](Self::chat) does this by itself.
    pub fn after_thoughts(&self, prompt: &[u32], mask: Arc<dyn MaskSource>) -> Arc<dyn MaskSource> {
        self.0.grammars.after_thoughts(mask, self.0.thought_marks, &self.end_of_prompt(prompt))
    }

    /// A session: keys and values stay cached between its requests.
    pub fn session(&self) -> Session {
        Session::new(self.clone())
    }

    /// The token ids of a conversation, ready for the answer.
    ///
    /// # Errors
    ///
    /// The errors of [`chat`](Self::chat).
    pub fn chat_prompt(&self, messages: &[Message]) -> Result<Vec<u32>, Error> {
        self.chat_prompt_with(messages, &ChatOptions::default())
    }

    /// Like [`chat_prompt`](Self::chat_prompt), with tools, thinking and other arguments of the template.
    ///
    /// # Errors
    ///
    /// The errors of [`chat`](Self::chat).
    pub fn chat_prompt_with(
        &self,
        messages: &[Message],
        options: &ChatOptions<'_>,
    ) -> Result<Vec<u32>, Error> {
        let missing;
        let template = if let Some(template) = &self.0.template {
            template
        } else {
            // Asked again, the tokenizer says why there is none.
            missing = self.0.tokenizer.chat_template()?;
            &missing
        };
        // A user's words are text, even if they look like a control token.
        Ok(self.0.tokenizer.encode_chat(template, messages, options, ParseSpecial::No)?)
    }

    /// Splits the answer to `prompt` into thoughts and the answer proper.
    ///
    /// The marks are those of the model's chat template or vocabulary; the text of a stream holds them.
    pub fn thoughts(&self, prompt: &[u32]) -> Thoughts {
        Thoughts::new(self.0.thought_marks, &self.end_of_prompt(prompt))
    }

    /// Takes the answer to `prompt` apart into thoughts, content, and calls of tools.
    ///
    /// `tools` are the tools of the prompt, `{"type": "function", "function": {…}}` each. The text of a stream holds the marks
    /// around calls; the command line shows them as they are.
    pub fn answer_parser(&self, prompt: &[u32], tools: &[Value], choice: &ToolChoice) -> AnswerParser {
        let end = self.end_of_prompt(prompt);
        AnswerParser::new(self.0.tool_format, self.0.thought_marks, &end, tools, choice)
    }

    /// The form in which the model writes calls of tools.
    pub fn tool_format(&self) -> ToolFormat {
        self.0.tool_format
    }

    /// The grammar that an answer has to follow so that its calls of tools are right, in Lark as llguidance reads it; `None` if
    /// nothing is asked of the answer. [`ToolFormat::constraint`] says more.
    ///
    /// # Errors
    ///
    /// [`Error::Tokenizer`] if no grammar describes the model's calls, or if `choice` names a tool that is not there.
    pub fn tool_constraint(
        &self,
        tools: &[Value],
        choice: &ToolChoice,
        parallel: bool,
    ) -> Result<Option<String>, Error> {
        Ok(self.0.tool_format.constraint(tools, choice, parallel, &self.0.tokenizer)?)
    }

    /// The grammar of answers that are either calls of tools or texts of `content`. Such answers are read by
    /// [`AnswerParser::either`].
    ///
    /// # Errors
    ///
    /// The errors of [`tool_constraint`](Self::tool_constraint), and [`Error::Tokenizer`] for models whose calls begin like other
    /// answers.
    pub fn calls_or(
        &self,
        tools: &[Value],
        choice: &ToolChoice,
        parallel: bool,
        content: Grammar,
    ) -> Result<Grammar, Error> {
        let calls = self.0.tool_format.marked_calls(tools, choice, parallel, &self.0.tokenizer)?;
        Ok(match calls {
            Some(calls) => Grammar::OneOf(vec![Grammar::Lark(calls), content]),
            None => content,
        })
    }

    /// The end of a prompt's text, long enough for any mark around thoughts.
    fn end_of_prompt(&self, prompt: &[u32]) -> String {
        // The longest mark is shorter than this many tokens.
        const LAST_TOKENS: usize = 32;
        let last = &prompt[prompt.len().saturating_sub(LAST_TOKENS)..];
        self.0.tokenizer.decode(last, false).unwrap_or_default()
    }

    /// Cancels the streams that still run, waits for the engine, and frees the model's weights, keys and values, for all handles.
    /// Those streams, and every later request, give [`EngineError::Closed`](brasa_engine::EngineError::Closed). Closing a closed
    /// model does nothing.
    ///
    /// Dropping the last handle does the same. The tokenizer and [`info`](Self::info) stay usable until then.
    pub fn close(&self) {
        self.0.engine.close();
    }

    /// The cost of the latest request by way of [`TextModel`](crate::TextModel).
    pub(crate) fn latest(&self) -> &Arc<Mutex<Metrics>> {
        &self.0.latest
    }

    /// The engine below, for benchmarks and tools.
    pub fn engine(&self) -> &Engine {
        &self.0.engine
    }

    /// The identity that the files of this model's sessions have.
    pub(crate) fn identity(&self) -> Identity {
        let fingerprint =
            self.0.tokenizer_fingerprint.get_or_init(|| tokenizer_fingerprint(&self.0.tokenizer));
        self.0.identity.with_tokenizer(fingerprint)
    }

    /// Starts the answer to a chat's prompt.
    pub(crate) fn start_chat(
        &self,
        prompt: Vec<u32>,
        options: &GenerateOptions,
        session: Option<SessionId>,
    ) -> Result<TokenStream, Error> {
        let Some(mask) = &options.mask else { return self.start(prompt, options, session) };
        let mask = self.after_thoughts(&prompt, Arc::clone(mask));
        self.start(prompt, &GenerateOptions { mask: Some(mask), ..options.clone() }, session)
    }

    pub(crate) fn start(
        &self,
        prompt: Vec<u32>,
        options: &GenerateOptions,
        session: Option<SessionId>,
    ) -> Result<TokenStream, Error> {
        let mut options = options.clone();
        options.stop_ids.extend(&self.0.tokenizer.special_tokens().end_of_generation);
        options.speculation.get_or_insert(self.0.speculation);
        options.cache_prompt.get_or_insert(session.is_some() || self.0.shares_prompts);
        let decoder =
            Box::new(Decoder(self.0.tokenizer.decode_stream(true).showing(Arc::clone(&self.0.shown))));
        Ok(self.0.engine.generate(Request { prompt, options, decoder, session })?)
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model")
            .field("info", &self.0.info)
            .field("device", &self.0.device)
            .finish_non_exhaustive()
    }
}

/// The tokenizer's decoder in the engine's terms.
struct Decoder(DecodeStream);

impl TextDecoder for Decoder {
    fn push(&mut self, token: u32) -> String {
        // An id beyond the tokenizer's table (a padded vocabulary) has no text.
        self.0.push(token).unwrap_or_default()
    }

    fn finish(&mut self) -> String {
        self.0.finish()
    }
}

/// The sampling that `checkpoint` recommends. A recommendation that cannot be read, or cannot be followed, is a warning; the
/// former is an error if `strict`.
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

/// How `checkpoint` makes embeddings. Files that cannot be read or followed are a warning, or an error if `strict`: a model that generates is
/// of use without them.
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
