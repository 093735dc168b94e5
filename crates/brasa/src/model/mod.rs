//! A model made ready to answer.

pub(crate) mod breakers;
mod conversation;
mod load;
pub(crate) mod turn;

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use brasa_engine::{Engine, Request, SessionId, Speculation, TextDecoder};
use brasa_grammar::Grammars;
use brasa_graph::device::DeviceInfo;
use brasa_models::{ModelInfo, RecommendedSampling, SentenceConfig};
use brasa_tokenizer::{
    AddSpecial, ChatTemplate, DecodeStream, Message, ParseSpecial, ThoughtMarks, Tokenizer, ToolFormat,
};

#[cfg(feature = "mlx_lm")]
pub(crate) use self::load::DEFAULT_CONTEXT;
pub(crate) use self::load::{MOST_POSITIONS, context_of};
use self::turn::{AnswerForm, Turn, TurnOptions};
use crate::bank::Bank;
use crate::draft_model::DraftModelInfo;
use crate::inside::Inside;
use crate::session_file::{Identity, tokenizer_fingerprint};
use crate::{Error, GenerateOptions, LoadTimes, Metrics, Session, TokenStream};

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
    /// Token ids of the marks around thoughts and calls. They are part of an answer's text even if they are control tokens.
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
    /// The identity that the files of this model's sessions have, without the tokenizer.
    identity: Identity,
    tokenizer_fingerprint: OnceLock<String>,
    breakers: breakers::Latest,
    /// The cost of the latest request by way of [`TextModel`](crate::TextModel).
    latest: Arc<Mutex<Metrics>>,
    _last: TidyHeap,
}

/// Returns free memory to the system when dropped. It is the last field of a model, so that the memory of all other fields is free
/// by then.
struct TidyHeap;

impl Drop for TidyHeap {
    fn drop(&mut self) {
        crate::memory::give_back_free_memory();
    }
}

impl Model {
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

    /// Number of token ids: the width of the logits.
    pub fn vocab_size(&self) -> usize {
        self.0.engine.config().vocab_size
    }

    /// The time that loading took.
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

    /// The bank of adapters that requests choose from.
    pub(crate) fn bank(&self) -> &Bank {
        &self.0.bank
    }

    /// A handle that does not keep the model loaded.
    pub(crate) fn downgrade(&self) -> WeakModel {
        WeakModel(Arc::downgrade(&self.0))
    }

    /// Device, graph and states, from which attention weights and hidden states are read.
    pub(crate) fn inside(&self) -> &Inside {
        &self.0.inside
    }

    /// Settings of embeddings, from the files beside the checkpoint.
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

    /// Continues a text given as token ids, used as they are. The answer's text includes the control tokens that the model
    /// writes.
    ///
    /// # Errors
    ///
    /// [`Error::Engine`]; later errors come through the stream.
    pub fn generate_ids_shown(
        &self,
        prompt: Vec<u32>,
        options: &GenerateOptions,
    ) -> Result<TokenStream, Error> {
        self.start_with(prompt, options, None, self.0.tokenizer.decode_stream(false))
    }

    /// Answers a conversation.
    ///
    /// # Errors
    ///
    /// [`Error::Tokenizer`] if the model has no chat template, or the template refuses the messages; [`Error::Engine`]. Later
    /// errors come through the stream.
    pub fn chat(&self, messages: &[Message], options: &GenerateOptions) -> Result<TokenStream, Error> {
        self.start_chat(messages, options, None)
    }

    /// A session: keys and values stay cached between its requests.
    pub fn session(&self) -> Session {
        Session::new(self.clone())
    }

    /// Cancels the running streams, waits for the engine, and frees the model's weights, keys and values, for all handles. The
    /// cancelled streams and every later request give [`EngineError::Closed`](brasa_engine::EngineError::Closed). Closing a
    /// closed model does nothing.
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

    /// The marks around thoughts and calls, which readers of a chat do not see, for [`GenerateOptions::stop_marks`].
    /// [`chat`](Self::chat) sets them by itself.
    pub fn stop_marks(&self) -> Vec<String> {
        let thoughts = self.0.thought_marks.into_iter().flat_map(|marks| [marks.start, marks.end]);
        let tokens = self.0.shown.iter().filter_map(|&id| self.0.tokenizer.piece(id).ok());
        let mut marks: Vec<String> = thoughts.map(str::to_owned).chain(tokens).collect();
        marks.sort_unstable();
        marks.dedup();
        marks
    }

    /// Starts the answer to a conversation.
    pub(crate) fn start_chat(
        &self,
        messages: &[Message],
        options: &GenerateOptions,
        session: Option<SessionId>,
    ) -> Result<TokenStream, Error> {
        let form = options.mask.clone().map_or(AnswerForm::Free, AnswerForm::Mask);
        let Turn { prompt, mask, .. } =
            self.turn(messages, &TurnOptions { form, ..TurnOptions::default() })?;
        let mut options = GenerateOptions { mask, ..options.clone() };
        if options.stop_marks.is_empty() {
            options.stop_marks = self.stop_marks();
        }
        self.start(prompt, &options, session)
    }

    pub(crate) fn start(
        &self,
        prompt: Vec<u32>,
        options: &GenerateOptions,
        session: Option<SessionId>,
    ) -> Result<TokenStream, Error> {
        let decoder = self.0.tokenizer.decode_stream(true).showing(Arc::clone(&self.0.shown));
        self.start_with(prompt, options, session, decoder)
    }

    fn start_with(
        &self,
        prompt: Vec<u32>,
        options: &GenerateOptions,
        session: Option<SessionId>,
        decoder: DecodeStream,
    ) -> Result<TokenStream, Error> {
        let mut options = options.clone();
        options.speculation.get_or_insert(self.0.speculation);
        options.request.cache_prompt.get_or_insert(session.is_some() || self.0.shares_prompts);
        let decoder = Box::new(Decoder(decoder));
        let end_ids = self.0.tokenizer.special_tokens().end_of_generation.clone();
        Ok(self.0.engine.generate(Request { prompt, options, end_ids, decoder, session })?)
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

/// Implements the engine's [`TextDecoder`] with the tokenizer's decoder.
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
