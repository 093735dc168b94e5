//! How well documents answer a query, as the model judges.

use std::task::{Poll, ready};

use brasa_engine::{ReadRequest, ReadRows, ReadValue};
use brasa_models::{LogitScore, ScoreActivation};
use brasa_tokenizer::{AddSpecial, ChatOptions, Message, ParseSpecial};

use crate::batch::rows_then;
use crate::score::negative_log_likelihood;
use crate::{Error, InOrder, Model, RequestOptions};

/// Instructions to the model, in the words that Qwen3-Reranker was trained with (Zhang et al. 2025, arXiv:2506.05176).
const JUDGE: &str = "Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the answer can only be \"yes\" or \"no\".";

/// The task, if the caller names none: that of Qwen3-Reranker.
const TASK: &str = "Given a web search query, retrieve relevant passages that answer the query";

/// Options of reranking.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RerankOptions {
    /// The criterion for a relevant document, in a sentence; `None` for answering a search for web pages.
    pub instruction: Option<String>,
    /// True for scores without their last function: the logit of a cross-encoder, ln p(yes) − ln p(no) of a language model.
    pub raw: bool,
    /// True if a query and a document that are too long together lose the end of the longer one. Otherwise they are an error. A language
    /// model's prompts are never cut.
    pub truncate: bool,
    /// Options of the request. A cross-encoder honours the deadline alone, since it caches nothing and computes texts in turn.
    pub request: RequestOptions,
}

/// Documents as prompts, ready to be judged.
#[derive(Clone, Debug)]
pub struct RerankPrompts {
    /// A prompt for each document.
    prompts: Vec<Vec<u32>>,
    judgement: Judgement,
    /// True for scores without their last function.
    raw: bool,
    request: RequestOptions,
}

/// The rule that turns the model's answer into a score.
#[derive(Clone, Debug)]
enum Judgement {
    /// The score comes from the probabilities of the two answers yes and no.
    Words(YesNoIds),
    /// The score comes from the logits that the checkpoint names, by a function that the checkpoint names.
    Logits(LogitScore, ScoreActivation),
}

/// Token ids of the answers yes and no.
#[derive(Clone, Debug)]
struct YesNoIds {
    yes: Vec<u32>,
    no: Vec<u32>,
}

impl RerankPrompts {
    /// Tokens of all prompts.
    pub fn tokens(&self) -> usize {
        self.prompts.iter().map(Vec::len).sum()
    }
}

impl Model {
    /// Prompts that ask the model about each document: Qwen3-Reranker's question in the model's own chat template. If the
    /// checkpoint names the tokens that judge (the module `LogitScore` of sentence-transformers), its own template holds the
    /// question. Query and document are then messages with the roles `query` and `document`, with the instruction as the system
    /// message.
    ///
    /// # Errors
    ///
    /// [`Error::Tokenizer`] if the model has no chat template or the template refuses the question. [`Error::Options`] for
    /// [`truncate`](RerankOptions::truncate), which these prompts do not allow, and for tokens that the vocabulary does not have.
    pub fn rerank_prompts(
        &self,
        query: &str,
        documents: &[String],
        options: &RerankOptions,
    ) -> Result<RerankPrompts, Error> {
        if options.truncate {
            return Err(Error::Options(
                "prompts of a language model that judges are not cut: their end is the question".into(),
            ));
        }
        let judgement = self.judgement()?;
        let prompt = |document: &String| match &judgement {
            Judgement::Words(_) => self.question(query, document, options),
            Judgement::Logits(..) => self.pair(query, document, options),
        };
        let prompts = documents.iter().map(prompt).collect::<Result<_, _>>()?;
        Ok(RerankPrompts { prompts, judgement, raw: options.raw, request: options.request })
    }

    fn judgement(&self) -> Result<Judgement, Error> {
        let Some(tokens) = self.sentence().logit_score else {
            let word = |word| self.tokenizer().encode(word, AddSpecial::No, ParseSpecial::No);
            return Ok(Judgement::Words(YesNoIds { yes: word("yes")?, no: word("no")? }));
        };
        let LogitScore { relevant, irrelevant } = tokens;
        let vocabulary = self.vocab_size();
        if let Some(id) =
            [Some(relevant), irrelevant].into_iter().flatten().find(|&id| id as usize >= vocabulary)
        {
            let what = format!("the checkpoint judges by token {id}, and its vocabulary has {vocabulary}");
            return Err(Error::Options(what));
        }
        Ok(Judgement::Logits(tokens, self.sentence().score.unwrap_or(ScoreActivation::Sigmoid)))
    }

    /// The question in the words of Qwen3-Reranker.
    fn question(&self, query: &str, document: &str, options: &RerankOptions) -> Result<Vec<u32>, Error> {
        let task = options.instruction.as_deref().unwrap_or(TASK);
        let chat = ChatOptions { thinking: Some(false), ..ChatOptions::default() };
        let asked = format!("<Instruct>: {task}\n<Query>: {query}\n<Document>: {document}");
        let messages = [Message::new("system", JUDGE), Message::new("user", asked.as_str())];
        self.chat_prompt_with(&messages, &chat).or_else(|_| {
            // Some templates know no system: what it would say goes before the question.
            self.chat_prompt_with(&[Message::new("user", format!("{JUDGE}\n\n{asked}"))], &chat)
        })
    }

    /// The question in the checkpoint's own template, for a checkpoint that names the tokens that judge.
    fn pair(&self, query: &str, document: &str, options: &RerankOptions) -> Result<Vec<u32>, Error> {
        let sentence = self.sentence();
        let default = sentence.default_prompt.as_ref().and_then(|name| sentence.prompts.get(name));
        let instruction = options.instruction.as_ref().or(default).filter(|text| !text.is_empty());
        let system = instruction.map(|text| Message::new("system", text.as_str()));
        let pair = [Message::new("query", query), Message::new("document", document)];
        let messages: Vec<Message> = system.into_iter().chain(pair).collect();
        self.chat_prompt_with(&messages, &ChatOptions::default())
    }

    /// The relevance of each document, in the order of the documents: p(yes) ÷ (p(yes) + p(no)) of the model's answer, from 0 to 1,
    /// or the checkpoint's own score of the logits that it names.
    ///
    /// The prompts are requests of the engine like any others; the beginning that they share is computed once. A prompt that
    /// fails gives an error in its place.
    ///
    /// ```
    /// # use brasa::{LoadOptions, Model, RerankOptions};
    /// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/lexicon-qwen3/lexicon-qwen3-Q6_K.gguf");
    /// # let model = Model::load(path, &LoadOptions::default())?;
    /// let documents = ["An ember is a glowing coal.".to_owned(), "Rivers flow to the sea.".to_owned()];
    /// let prompts = model.rerank_prompts("What is an ember?", &documents, &RerankOptions::default())?;
    /// let scores: Vec<f32> = model.rerank(prompts).collect::<Result<_, _>>()?;
    /// assert!(scores.iter().all(|score| (0.0..=1.0).contains(score)));
    /// # Ok::<(), brasa::Error>(())
    /// ```
    pub fn rerank(&self, prompts: RerankPrompts) -> InOrder<std::vec::IntoIter<Vec<u32>>, f32> {
        let RerankPrompts { prompts, judgement, raw, request } = prompts;
        let model = self.clone();
        self.in_order(prompts, move |prompt| {
            let YesNoIds { yes, no } = match judgement.clone() {
                Judgement::Words(answers) => answers,
                Judgement::Logits(LogitScore { relevant, irrelevant }, activation) => {
                    let activation = if raw { ScoreActivation::Identity } else { activation };
                    let logits = model.read_answer(prompt, &[relevant], request)?;
                    return Ok(rows_then(logits, move |rows, _| {
                        let logit = |id: u32| rows[0][id as usize];
                        Ok(activation.apply(logit(relevant) - irrelevant.map_or(0.0, logit)))
                    }));
                }
            };
            let of_yes = model.read_answer(prompt, &yes, request)?;
            if yes.len() == 1 && no.len() == 1 {
                // Both are read from the same logits.
                return Ok(rows_then(of_yes, move |rows, _| {
                    Ok(score(nll(&rows, &yes), nll(&rows, &no), raw))
                }));
            }
            let of_no = model.read_answer(prompt, &no, request)?;
            let mut of_yes = rows_then(of_yes, move |rows, _| Ok(nll(&rows, &yes)));
            let mut of_no = rows_then(of_no, move |rows, _| Ok(nll(&rows, &no)));
            let mut nll_of_yes = None;
            Ok(Box::new(move |context| {
                let of_yes = match nll_of_yes {
                    Some(nll) => nll,
                    None => *nll_of_yes.insert(ready!(of_yes(context))?),
                };
                Poll::Ready(Ok(score(of_yes, ready!(of_no(context))?, raw)))
            }))
        })
    }

    /// The logits from which each token of `answer` is drawn after `prompt`, `[vocab_size]` each.
    fn read_answer(
        &self,
        prompt: &[u32],
        answer: &[u32],
        mut options: RequestOptions,
    ) -> Result<ReadRows, Error> {
        let tokens = [prompt, &answer[..answer.len().saturating_sub(1)]].concat();
        options.cache_prompt.get_or_insert(true);
        let first = prompt.len().saturating_sub(1);
        Ok(self.engine().read(ReadRequest { tokens, value: ReadValue::Logits, first, options })?)
    }
}

/// −ln p of a text, from the logits that its tokens are drawn from.
fn nll(rows: &[Vec<f32>], text: &[u32]) -> f64 {
    rows.iter().zip(text).map(|(logits, &token)| negative_log_likelihood(logits, token)).sum()
}

/// p(yes) ÷ (p(yes) + p(no)), or ln p(yes) − ln p(no) if `raw`, from −ln p of each.
fn score(of_yes: f64, of_no: f64, raw: bool) -> f32 {
    let difference = of_no - of_yes;
    (if raw { difference } else { 1.0 / (1.0 + (-difference).exp()) }) as f32
}
