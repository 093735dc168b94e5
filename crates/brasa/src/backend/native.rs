//! Brasa's own devices as backends, and [`Model`] as a [`TextModel`].

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use brasa_engine::EngineError;
use brasa_graph::device::DeviceError;
use brasa_graph::sampling::{DrawRules, Row, Sampler};
use brasa_tokenizer::{AddSpecial, ParseSpecial};

use super::contract::{Backend, kind};
use super::error::Unavailable;
use crate::{
    BatchAnswer, Class, ClassifyOptions, Error, FinishReason, Fragment, GenerateOptions, LoadOptions,
    Message, Metrics, Model, ModelInfo, TextModel, TextStream, Token, TokenStream, device,
};

/// The native backend of one kind of device: `cpu` or `cuda`.
pub(super) struct Native(pub(super) &'static str);

impl Backend for Native {
    fn name(&self) -> &str {
        self.0
    }

    fn available(&self) -> Result<String, Unavailable> {
        match device::open(Some(self.0), &LoadOptions::default()) {
            Ok(device) => Ok(device.info().description),
            Err(DeviceError::Unavailable { reason, .. }) => Err(Unavailable::new(self.0, reason)),
            Err(error) => Err(Unavailable::new(self.0, error.to_string())),
        }
    }

    fn load(&self, path: &Path, options: &LoadOptions) -> Result<Box<dyn TextModel>, Error> {
        let device = options.device.as_deref().unwrap_or(self.0);
        if kind(device) != self.0 {
            return Err(Error::Options(format!("backend {} cannot use the device {device}", self.0)));
        }
        let options = LoadOptions { device: Some(device.to_owned()), ..options.clone() };
        Ok(Box::new(Model::load(path, &options)?))
    }
}

/// A backend that this build lacks: its name and the reason.
pub(super) struct Missing(pub(super) &'static str, pub(super) &'static str);

impl Backend for Missing {
    fn name(&self) -> &str {
        self.0
    }

    fn available(&self) -> Result<String, Unavailable> {
        Err(Unavailable::new(self.0, self.1))
    }

    fn load(&self, _: &Path, _: &LoadOptions) -> Result<Box<dyn TextModel>, Error> {
        Err(Error::Backend(Unavailable::new(self.0, self.1).into()))
    }
}

impl TextModel for Model {
    fn generate(&self, prompt: &str, options: &GenerateOptions) -> Result<Box<dyn TextStream>, Error> {
        Ok(Box::new(Stream { stream: self.generate(prompt, options)?, latest: Arc::clone(self.latest()) }))
    }

    fn chat(&self, messages: &[Message], options: &GenerateOptions) -> Result<Box<dyn TextStream>, Error> {
        Ok(Box::new(Stream { stream: self.chat(messages, options)?, latest: Arc::clone(self.latest()) }))
    }

    fn classify(
        &self,
        prompts: &[&str],
        options: &ClassifyOptions,
    ) -> Result<Vec<Result<Class, Error>>, Error> {
        let rules = DrawRules::new(options.sampling.clone()).map_err(EngineError::from)?;
        options.sampling.validate_ids(self.vocab_size()).map_err(EngineError::from)?;
        let mut sampler = Sampler::default();
        let mut costs = Vec::new();
        let classes = self.each(prompts, |prompts| {
            let rows = self.next_rows(prompts.clone(), &options.request);
            let mut class = |prompt: Vec<u32>, (logits, metrics): (Vec<f32>, Metrics)| {
                let position = prompt.len() as u32;
                let ends = self.tokenizer().special_tokens().end_of_generation.clone();
                let rules = rules.clone().with_ends(ends, position);
                let draw =
                    sampler.draw(&rules, &Row::new(&logits, position, &prompt)).map_err(EngineError::from)?;
                costs.push(metrics);
                Ok(Class {
                    text: self.tokenizer().decode(&[draw.token], true)?,
                    token: Token::from(draw),
                    logits: options.logits.then_some(logits),
                })
            };
            prompts.into_iter().zip(rows).map(|(prompt, row)| class(prompt, row?)).collect()
        });
        set(self.latest(), together(costs));
        Ok(classes)
    }

    fn batch_generate(
        &self,
        prompts: &[&str],
        options: &GenerateOptions,
    ) -> Result<Vec<Result<BatchAnswer, Error>>, Error> {
        options.validate()?;
        let answers = self.each(prompts, |prompts| self.batch(prompts, options).collect());
        set(self.latest(), together(answers.iter().flatten().map(|answer| answer.metrics)));
        Ok(answers)
    }

    fn info(&self) -> &ModelInfo {
        self.info()
    }

    fn metrics(&self) -> Metrics {
        *self.latest().lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) {
        self.close();
    }

    fn as_native(&self) -> Option<&Model> {
        Some(self)
    }
}

impl Model {
    /// Gives the token ids of `prompts` to `work`. A prompt that cannot be tokenized has its error in its place.
    fn each<T>(
        &self,
        prompts: &[&str],
        work: impl FnOnce(Vec<Vec<u32>>) -> Vec<Result<T, Error>>,
    ) -> Vec<Result<T, Error>> {
        let encode = |prompt: &&str| self.tokenizer().encode(prompt, AddSpecial::AsModel, ParseSpecial::No);
        let mut ids = Vec::new();
        let refused: Vec<_> =
            prompts.iter().map(|prompt| encode(prompt).map(|it| ids.push(it)).err()).collect();
        let mut done = work(ids).into_iter();
        let result =
            |refused: Option<_>| refused.map_or_else(|| done.next(), |error| Some(Err(Error::from(error))));
        refused.into_iter().filter_map(result).collect()
    }
}

/// A native stream that stores its metrics in the model when it ends.
struct Stream {
    stream: TokenStream,
    latest: Arc<Mutex<Metrics>>,
}

impl Iterator for Stream {
    type Item = Result<Fragment, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.stream.next();
        if !matches!(next, Some(Ok(_))) {
            set(&self.latest, *self.stream.metrics());
        }
        Some(next?.map_err(Error::from))
    }
}

impl TextStream for Stream {
    fn finish_reason(&self) -> Option<FinishReason> {
        self.stream.finish_reason()
    }

    fn metrics(&self) -> &Metrics {
        self.stream.metrics()
    }

    fn canceller(&self) -> Box<dyn Fn() + Send + Sync> {
        let canceller = self.stream.canceller();
        Box::new(move || canceller.cancel())
    }
}

fn set(latest: &Mutex<Metrics>, metrics: Metrics) {
    *latest.lock().unwrap_or_else(PoisonError::into_inner) = metrics;
}

/// The cost of requests that ran side by side: sums of counts, times of the slowest.
fn together(costs: impl IntoIterator<Item = Metrics>) -> Metrics {
    costs.into_iter().fold(Metrics::default(), |sum, cost| Metrics {
        prompt_tokens: sum.prompt_tokens + cost.prompt_tokens,
        cached_tokens: sum.cached_tokens + cost.cached_tokens,
        prefilled_tokens: sum.prefilled_tokens + cost.prefilled_tokens,
        generated_tokens: sum.generated_tokens + cost.generated_tokens,
        drafted_tokens: sum.drafted_tokens + cost.drafted_tokens,
        accepted_tokens: sum.accepted_tokens + cost.accepted_tokens,
        preemptions: sum.preemptions + cost.preemptions,
        queue_time: sum.queue_time.max(cost.queue_time),
        prefill_time: sum.prefill_time.max(cost.prefill_time),
        decode_time: sum.decode_time.max(cost.decode_time),
        first_token_time: sum.first_token_time.max(cost.first_token_time),
    })
}
