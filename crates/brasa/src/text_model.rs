//! Operations that the models of every backend have in common.

use brasa_graph::sampling::SamplingParams;

use crate::{
    BatchAnswer, Error, FinishReason, Fragment, GenerateOptions, Message, Metrics, Model, ModelInfo,
    RequestOptions, Token,
};

/// A loaded model of any [`Backend`](crate::Backend): the operations for programs that let their user choose the backend.
///
/// [`Model`] is the native implementation, and also has sessions, grammars, tools and scores. [`as_native`](Self::as_native)
/// returns it.
///
/// A model may be used from any thread. Options that a backend cannot honour are errors that name the option.
pub trait TextModel: Send + Sync {
    /// Continues a raw text, with the special tokens that the model puts in front.
    ///
    /// # Errors
    ///
    /// [`Error`]; later errors come through the stream.
    fn generate(&self, prompt: &str, options: &GenerateOptions) -> Result<Box<dyn TextStream>, Error>;

    /// Answers a conversation, formatted by the model's own chat template.
    ///
    /// # Errors
    ///
    /// [`Error`]; later errors come through the stream.
    fn chat(&self, messages: &[Message], options: &GenerateOptions) -> Result<Box<dyn TextStream>, Error>;

    /// Draws the one token that follows each prompt, in the order of the prompts. A prompt that fails has an error in its place.
    ///
    /// # Errors
    ///
    /// [`Error`] if no prompt can be classified.
    fn classify(
        &self,
        prompts: &[&str],
        options: &ClassifyOptions,
    ) -> Result<Vec<Result<Class, Error>>, Error>;

    /// Continues every prompt; the answers are in the order of the prompts. A prompt that fails has an error in its place.
    ///
    /// # Errors
    ///
    /// [`Error`] if no prompt can be continued.
    fn batch_generate(
        &self,
        prompts: &[&str],
        options: &GenerateOptions,
    ) -> Result<Vec<Result<BatchAnswer, Error>>, Error>;

    /// The architecture, as the checkpoint spells it: `gemma3`, `qwen3`, `llama`.
    fn model_type(&self) -> &str {
        &self.info().architecture
    }

    /// Architecture, sizes and storage of the model.
    fn info(&self) -> &ModelInfo;

    /// Metrics of the latest finished request of this trait; zeros before the first. For several prompts, counts are sums and
    /// times are those of the slowest. Each stream has [metrics of its own](TextStream::metrics).
    fn metrics(&self) -> Metrics;

    /// Ends the running streams, waits for them and frees the model. The ended streams and every later request give
    /// [`EngineError::Closed`](crate::engine::EngineError::Closed). Closing a closed model does nothing.
    fn close(&self);

    /// The native model, which can do more; `None` if another backend runs the model.
    fn as_native(&self) -> Option<&Model> {
        None
    }
}

/// The text of one generation, as it appears.
///
/// The iterator waits for the next [`Fragment`]. The fragments' texts joined are the whole answer. A failed stream yields its
/// error once, after the text that was generated. Dropping the stream cancels the generation and makes room for others.
pub trait TextStream: Iterator<Item = Result<Fragment, Error>> + Send {
    /// The reason why the generation ended; `None` while it runs and after an error.
    fn finish_reason(&self) -> Option<FinishReason>;

    /// The cost of the generation; complete once the stream has ended.
    fn metrics(&self) -> &Metrics;

    /// A function that asks the generation to end, from any thread; fragments already made are still yielded.
    fn canceller(&self) -> Box<dyn Fn() + Send + Sync>;

    /// Asks the generation to end; fragments already made are still yielded.
    fn cancel(&self) {
        self.canceller()();
    }

    /// The whole remaining text, waited for.
    ///
    /// # Errors
    ///
    /// The stream's error; the text before it is lost.
    fn into_text(self: Box<Self>) -> Result<String, Error> {
        self.map(|fragment| fragment.map(|fragment| fragment.text)).collect()
    }
}

/// Options of classifying.
#[derive(Clone, Debug, Default)]
pub struct ClassifyOptions {
    /// How the token is drawn: by default the most probable one. `sampling.logprobs` requests log-probabilities.
    pub sampling: SamplingParams,
    /// True to return all logits.
    pub logits: bool,
    /// How the request is run.
    pub request: RequestOptions,
}

/// The token that follows a prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Class {
    /// The token that was drawn.
    pub token: Token,
    /// Text of the token; empty for a control token.
    pub text: String,
    /// Logits that the token was drawn from, before penalties, `[vocab_size]`, if requested.
    pub logits: Option<Vec<f32>>,
}
