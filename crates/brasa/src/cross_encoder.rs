//! How well documents answer a query, as an encoder's head judges each pair of the two.

use std::task::{Context, Poll, ready};

use brasa_engine::{EncoderOutput, EncoderRows, EncoderText, EncoderVectors, EngineError};
use brasa_models::ScoreActivation;
use brasa_tokenizer::{AddSpecial, ParseSpecial};

use crate::dense::judge;
use crate::{Encoder, Error, RerankOptions};

impl Encoder {
    /// Labels of the head that judges texts; `None` if the checkpoint has none. A cross-encoder that reranks has one label.
    pub fn labels(&self) -> Option<usize> {
        self.head().map(|head| head.labels)
    }

    /// The relevance of each document to `query`, in the order of the documents: the logit of the pair, through the activation that
    /// the checkpoint names, else a sigmoid (sentence-transformers' `CrossEncoder`).
    ///
    /// Pairs are computed whole, longest first, as many together as fit in a step, without padding. A pair that fails on the device gives
    /// an error in its place.
    ///
    /// ```
    /// # use brasa::{Encoder, LoadOptions, RerankOptions};
    /// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/random-encoders/bert-judge");
    /// let encoder = Encoder::load(path, &LoadOptions::default())?;
    /// let documents = ["An ember is a glowing coal.".to_owned(), "Rivers flow to the sea.".to_owned()];
    /// let scores = encoder.rerank("What is an ember?", &documents, &RerankOptions::default())?;
    /// let scores: Vec<f32> = scores.collect::<Result<_, _>>()?;
    /// assert!(scores.iter().all(|score| (0.0..=1.0).contains(score)));
    /// # Ok::<(), brasa::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Options`] for an encoder without a head, for a head with several labels, for a tokenizer that joins no texts, and for an
    /// instruction, which cross-encoders do not read. [`Error::Engine`] for a pair that is too long, unless the options cut it; no pair is
    /// computed then. [`Error::Tokenizer`].
    pub fn rerank(
        &self,
        query: &str,
        documents: &[String],
        options: &RerankOptions,
    ) -> Result<PairScores, Error> {
        let activation = self.score_activation()?;
        if options.instruction.is_some() {
            return Err(Error::Options("a cross-encoder reads no instruction: it judges pairs alone".into()));
        }
        Self::check_request(&options.request)?;
        let texts = self.pairs(query, documents, options.truncate)?;
        let tokens = texts.iter().map(|text| text.tokens.len()).sum();
        let (output, rows) = match self.mean_head() {
            Some(_) => (EncoderOutput::Hidden, EncoderRows::Mean),
            None => (EncoderOutput::Logits, EncoderRows::First),
        };
        let vectors = self.engine().encode(texts, output, rows, options.request.deadline)?;
        let activation = if options.raw { ScoreActivation::Identity } else { activation };
        Ok(PairScores { encoder: self.clone(), vectors, activation, tokens })
    }

    /// The function that makes a score of a logit.
    fn score_activation(&self) -> Result<ScoreActivation, Error> {
        let name = &self.info().architecture;
        match self.labels() {
            Some(1) => Ok(self.sentence().score.unwrap_or(ScoreActivation::Sigmoid)),
            Some(labels) => Err(Error::Options(format!(
                "the head of this {name} has {labels} labels, and a reranker has one: it is a classifier"
            ))),
            None => Err(Error::Options(format!(
                "this {name} has no head that judges pairs of texts: it makes vectors\nhint: compare embeddings in place of reranking"
            ))),
        }
    }

    /// Query and document as one text, for each document.
    fn pairs(&self, query: &str, documents: &[String], truncate: bool) -> Result<Vec<EncoderText>, Error> {
        let template = self.tokenizer().pair().ok_or_else(|| {
            Error::Options("the tokenizer of this encoder does not say how two texts are joined".into())
        })?;
        let lowercase = self.sentence().lowercase;
        let ids = |text: &str| {
            let text = if lowercase { text.to_lowercase() } else { text.to_owned() };
            self.tokenizer().encode(&text, AddSpecial::No, ParseSpecial::No)
        };
        let most = if truncate { self.context() } else { usize::MAX };
        let has_types = self.sentence().token_types && self.head().is_some_and(|head| head.token_types > 1);
        let query = ids(query)?;
        let pair = |document: &String| {
            let document = ids(document)?;
            let (first, second) = template.cut(query.len(), document.len(), most);
            let (tokens, types) = template.join(&query[..first], &document[..second]);
            Ok(EncoderText { tokens, types: if has_types { types } else { Vec::new() } })
        };
        documents.iter().map(pair).collect()
    }
}

/// Scores of pairs, in the order of the documents: the iterator waits for the next one, [`poll_next`](Self::poll_next) does not.
/// Dropping it ends the request at the next step.
#[derive(Debug)]
pub struct PairScores {
    encoder: Encoder,
    /// Logits, or for a head that is computed outside the graph the mean states that it reads.
    vectors: EncoderVectors,
    activation: ScoreActivation,
    tokens: usize,
}

impl PairScores {
    /// Tokens of all pairs.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Waits until more than `done` pairs are computed; returns how many are. Pairs are not computed in their order.
    pub fn wait_beyond(&self, done: usize) -> usize {
        self.vectors.wait_beyond(done)
    }

    /// The next score if it is there; otherwise `Pending`, and the task of `context` is woken when there is more to read.
    ///
    /// This is the method of the same name of `futures`' `Stream`.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<f32, Error>>> {
        let next = ready!(self.vectors.poll_next(context));
        Poll::Ready(self.score(next))
    }

    fn score(&self, next: Option<Result<Vec<f32>, EngineError>>) -> Option<Result<f32, Error>> {
        let score = |vector: Vec<f32>| {
            let logit = match self.encoder.mean_head() {
                Some(head) => judge(head, &vector)[0],
                None => vector[0],
            };
            self.activation.apply(logit)
        };
        Some(next?.map(score).map_err(Error::from))
    }
}

impl Iterator for PairScores {
    type Item = Result<f32, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.vectors.next();
        self.score(next)
    }
}
