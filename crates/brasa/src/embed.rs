//! Vectors that stand for texts.

use std::collections::BTreeMap;
use std::task::{Poll, ready};

use brasa_engine::{EngineError, ReadRequest, ReadRows, ReadValue};
use brasa_models::Pooling;

use crate::batch::InOrder;
use crate::sentence::{check_dimensions, check_unpooled, finish, tokens};
use crate::{EmbedOptions, Error, Model, RequestOptions, TokensOptions};

impl Model {
    /// Pooling of embeddings if the options do not choose: the checkpoint's, else the last token, which alone has seen the whole
    /// text.
    pub fn pooling(&self) -> Pooling {
        self.sentence().pooling.unwrap_or(Pooling::Last)
    }

    /// The token ids of a text to embed, with the model's special tokens, and behind the checkpoint's default prompt if it has one.
    ///
    /// # Errors
    ///
    /// [`Error::Tokenizer`].
    pub fn embedding_prompt(&self, text: &str) -> Result<Vec<u32>, Error> {
        self.embedding_prompt_with(text, &TokensOptions::default())
    }

    /// Like [`embedding_prompt`](Self::embedding_prompt), but with another prompt, or cut to the model's longest text.
    ///
    /// # Errors
    ///
    /// [`Error::Tokenizer`]; [`Error::Options`] for a prompt that the checkpoint does not have.
    pub fn embedding_prompt_with(&self, text: &str, options: &TokensOptions) -> Result<Vec<u32>, Error> {
        tokens(self.sentence(), self.tokenizer(), self.context(), text, options)
    }

    /// The checkpoint's prompts for texts to embed, by name: `query`, `document`.
    pub fn embedding_prompts(&self) -> &BTreeMap<String, String> {
        &self.sentence().prompts
    }

    /// Number of elements of an embedding; `None` if the checkpoint does not tell the width of its hidden states.
    pub fn embedding_dimensions(&self) -> Option<usize> {
        self.info().hidden_size.map(|width| self.sentence().dimensions(width))
    }

    /// Lengths to which embeddings may be cut without losing their meaning, as the checkpoint declares them.
    pub fn matryoshka_dimensions(&self) -> &[usize] {
        &self.sentence().matryoshka
    }

    /// Refuses embeddings of another length than the model's own and those that the checkpoint declares.
    pub(crate) fn check_dimensions(&self, dimensions: usize) -> Result<(), Error> {
        match self.embedding_dimensions() {
            Some(own) => check_dimensions(self.sentence(), own, dimensions),
            None => Ok(()),
        }
    }

    /// Embeds each text, in order: the hidden states behind the model's last norm, pooled, `[hidden_size]`, and passed through the
    /// checkpoint's dense layers if it has any. Texts are token ids, as [`embedding_prompt`](Self::embedding_prompt) makes them.
    ///
    /// The texts are requests of the engine like any others: they run together, beside generations, and an embedding does not
    /// depend on the other texts. A text that fails gives an error in its place, and the others go on.
    ///
    /// ```
    /// # use brasa::{EmbedOptions, LoadOptions, Model};
    /// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/lexicon-qwen3/lexicon-qwen3-Q6_K.gguf");
    /// # let model = Model::load(path, &LoadOptions::default())?;
    /// let texts = ["An ember glows.", "A river flows."].map(|text| model.embedding_prompt(text));
    /// let texts: Vec<_> = texts.into_iter().collect::<Result<_, _>>()?;
    /// let vectors: Vec<Vec<f32>> = model.embed(texts, &EmbedOptions::default())?.collect::<Result<_, _>>()?;
    /// let cosine: f32 = vectors[0].iter().zip(&vectors[1]).map(|(a, b)| a * b).sum();
    /// assert!(cosine < 1.0);
    /// # Ok::<(), brasa::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Options`] for a way of pooling that Brasa does not compute.
    pub fn embed<P>(&self, texts: P, options: &EmbedOptions) -> Result<InOrder<P::IntoIter, Vec<f32>>, Error>
    where
        P: IntoIterator<Item = Vec<u32>>,
    {
        let pooling = options.pooling.unwrap_or_else(|| self.pooling());
        if let Pooling::First | Pooling::Other(_) = pooling {
            let name = pooling.name();
            return Err(Error::Options(format!(
                "the model asks for {name} pooling, which Brasa does not compute\nhint: choose last or mean"
            )));
        }
        check_unpooled(options)?;
        if let Some(dimensions) = options.dimensions {
            self.check_dimensions(dimensions)?;
        }
        let (model, options) = (self.clone(), *options);
        Ok(self.in_order(texts, move |text| {
            let mut rows = model.hidden_states(text.to_vec(), pooling, options.request)?;
            let (mut states, mut sum, mut count) = (Vec::new(), Vec::new(), 0_u32);
            let model = model.clone();
            Ok(Box::new(move |context| {
                while let Some(row) = ready!(rows.poll_next(context)) {
                    let row = row?;
                    count += 1;
                    sum.resize(row.len(), 0.0_f64);
                    if pooling == Pooling::None {
                        states.extend_from_slice(&row);
                    } else {
                        sum.iter_mut().zip(&row).for_each(|(sum, &x)| *sum += f64::from(x));
                    }
                }
                if count == 0 {
                    return Poll::Ready(Err(EngineError::Closed.into()));
                }
                let width = sum.len();
                if pooling != Pooling::None {
                    states = sum.iter().map(|sum| (sum / f64::from(count)) as f32).collect();
                }
                Poll::Ready(Ok(finish(model.sentence(), std::mem::take(&mut states), width, &options)))
            }))
        }))
    }

    /// The hidden states that `pooling` needs: the states of all tokens, or of the last one.
    fn hidden_states(
        &self,
        tokens: Vec<u32>,
        pooling: Pooling,
        mut options: RequestOptions,
    ) -> Result<ReadRows, Error> {
        let first =
            if matches!(pooling, Pooling::Mean | Pooling::None) { 0 } else { tokens.len().saturating_sub(1) };
        // What the cache holds of a text has no hidden states any more; for its last token it is of use.
        options.cache_prompt.get_or_insert(first > 0);
        Ok(self.engine().read(ReadRequest { tokens, value: ReadValue::Hidden, first, options })?)
    }
}
