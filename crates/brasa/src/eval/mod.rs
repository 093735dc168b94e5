//! The fast evaluation: speed, reuse of keys and values, files of state, probes and sameness of answers, in a minute.
//!
//! [`run_fast_eval`] asks a [runner](FastEvalRunner) for generations and times, and depends on no model. [`ModelRunner`] is the
//! runner of a loaded model. What a runner cannot do is a section of the report that was not *attempted*.

mod compare;
mod config;
mod model;
mod report;
mod runner;

use std::ops::ControlFlow;

use brasa_graph::device::DeviceError;

use crate::Error;
use compare::Comparisons;

pub use config::FastEvalConfig;
pub use model::ModelRunner;
pub use report::{
    EvalCheck, FastEvalReport, GenerationSpeed, KvRestore, ProbeCost, PromptCacheUse, Quality,
    StateBundleTrip,
};
pub use runner::{EvalAnswer, EvalRequest, EvalStart, FastEvalRunner, Trip};

/// How far an evaluation has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvalProgress {
    /// The section that is measured now.
    pub section: &'static str,
    /// Sections that are done.
    pub done: usize,
    /// Sections in all.
    pub total: usize,
}

/// Sections, in the order in which they are measured.
const SECTIONS: [&str; 6] = ["generation", "prompt cache", "KV restore", "state bundle", "probes", "quality"];

/// Runs the evaluation. `progress` receives each section before it is measured, and may cancel.
///
/// # Errors
///
/// [`Error::Options`] for a configuration that makes no sense, the errors of the runner, and [`DeviceError::Cancelled`] if `progress`
/// breaks.
pub fn run_fast_eval<R: FastEvalRunner + ?Sized>(
    runner: &mut R,
    config: &FastEvalConfig,
    progress: &mut dyn FnMut(EvalProgress) -> ControlFlow<()>,
) -> Result<FastEvalReport, Error> {
    if config.max_tokens < 2 || config.runs == 0 {
        return Err(Error::Options(format!(
            "{} runs of {} tokens: at least 1 of 2 are needed for a speed of decoding",
            config.runs, config.max_tokens
        )));
    }
    let prompt = runner.encode(&config.prompt)?;
    if prompt.is_empty() {
        return Err(Error::Options("the prompt is empty: there is nothing to continue".into()));
    }
    let mut begin =
        |done: usize| match progress(EvalProgress { section: SECTIONS[done], done, total: SECTIONS.len() }) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Error::from(DeviceError::Cancelled)),
        };
    let mut eval = Eval { runner, config, prompt, same: Comparisons::default() };
    begin(0)?;
    let (generation, plain) = eval.generation()?;
    begin(1)?;
    let prompt_cache = eval.prompt_cache()?;
    begin(2)?;
    let kv_restore = eval.kv_restore(&plain)?;
    begin(3)?;
    let state_bundle = eval.state_bundle(&plain)?;
    begin(4)?;
    let probes = eval.probes(&plain)?;
    begin(5)?;
    let quality = eval.quality(&plain)?;
    let Eval { runner, .. } = eval;
    Ok(FastEvalReport {
        facts: runner.facts(),
        identity: runner.identity(),
        config: config.clone(),
        generation: GenerationSpeed { peak_memory_bytes: runner.peak_memory_bytes(), ..generation },
        prompt_cache,
        kv_restore,
        state_bundle,
        probes,
        quality,
    })
}

/// An evaluation under way.
struct Eval<'a, R: ?Sized> {
    runner: &'a mut R,
    config: &'a FastEvalConfig,
    prompt: Vec<u32>,
    same: Comparisons,
}

impl<R: FastEvalRunner + ?Sized> Eval<'_, R> {
    fn request<'b>(&self, prompt: &'b [u32], start: EvalStart) -> EvalRequest<'b> {
        EvalRequest {
            prompt,
            max_tokens: self.config.max_tokens,
            start,
            seed: None,
            probes: None,
            drafts: false,
        }
    }

    /// Fresh greedy answers; the last of them.
    fn generation(&mut self) -> Result<(GenerationSpeed, EvalAnswer), Error> {
        let prompt = self.prompt.clone();
        // The first run pays for page faults and cold caches.
        let first = self.runner.generate(&self.request(&prompt, EvalStart::Fresh))?;
        let mut report = GenerationSpeed { prompt_tokens: prompt.len(), ..GenerationSpeed::default() };
        for _ in 0..self.config.runs {
            let answer = self.runner.generate(&self.request(&prompt, EvalStart::Fresh))?;
            self.same.see("greedy answers repeat", true, &answer.tokens, &first.tokens);
            report.generated_tokens += answer.tokens.len();
            report.prefill.push(answer.metrics.prefill_tokens_per_second());
            report.decode.push(answer.metrics.decode_tokens_per_second());
            report.first_token.push(answer.metrics.first_token_time);
        }
        report.active_memory_bytes = self.runner.active_memory_bytes()?;
        Ok((report, first))
    }

    /// Measures prompts that begin with texts whose keys and values are cached.
    fn prompt_cache(&mut self) -> Result<PromptCacheUse, Error> {
        let mut report = PromptCacheUse::default();
        let exact = self.runner.is_exact();
        let own = self.config.cache_prompts.is_empty().then(String::new);
        for text in self.config.cache_prompts.iter().chain(&own) {
            // Without a text of its own, the prompt is what is stable.
            let stable = if own.is_some() { self.prompt.clone() } else { self.runner.encode(text)? };
            let whole = self.runner.encode(&format!("{text}{}", self.config.prompt))?;
            let fresh = self.runner.generate(&self.request(&whole, EvalStart::Fresh))?;
            if !self.runner.warm(&stable)? {
                return Ok(PromptCacheUse::default());
            }
            let warm = self.runner.generate(&self.request(&whole, EvalStart::Warm))?;
            self.same.see("cached = fresh", exact, &warm.tokens, &fresh.tokens);
            report.attempted = true;
            report.requests += 1;
            report.hits += usize::from(warm.metrics.cached_tokens > 0);
            report.prompt_tokens += warm.metrics.prompt_tokens;
            report.reused_tokens += warm.metrics.cached_tokens;
            report.fresh_first_token.push(fresh.metrics.first_token_time);
            report.warm_first_token.push(warm.metrics.first_token_time);
        }
        Ok(report)
    }

    /// Measures how long it takes to restore the prompt's keys and values, and compares the text that follows with `plain`.
    fn kv_restore(&mut self, plain: &EvalAnswer) -> Result<KvRestore, Error> {
        let Some(bytes) = self.runner.capture(&self.prompt.clone())? else { return Ok(KvRestore::default()) };
        let mut report = KvRestore { attempted: true, tokens: self.prompt.len(), bytes, samples: Vec::new() };
        for _ in 0..self.config.runs {
            report.samples.push(self.runner.restore()?);
        }
        self.goes_on("restored = uninterrupted", EvalStart::Restored, plain)?;
        Ok(report)
    }

    /// Measures a bundle of sessions in files, and checks that it continues like the plain answer.
    fn state_bundle(&mut self, plain: &EvalAnswer) -> Result<StateBundleTrip, Error> {
        let mut report = StateBundleTrip::default();
        for _ in 0..self.config.runs {
            let Some(trip) = self.runner.bundle()? else { return Ok(StateBundleTrip::default()) };
            report.attempted = true;
            report.bytes = trip.bytes;
            report.save.push(trip.save);
            report.load.push(trip.load);
        }
        self.goes_on("bundled = uninterrupted", EvalStart::Bundled, plain)?;
        Ok(report)
    }

    /// Compares the text that goes on from `start` with the one that was never interrupted.
    fn goes_on(&mut self, name: &'static str, start: EvalStart, plain: &EvalAnswer) -> Result<(), Error> {
        let text: Vec<u32> = self.prompt.iter().chain(plain.tokens.first()).copied().collect();
        let uninterrupted = self.runner.generate(&self.request(&text, EvalStart::Captured))?;
        let resumed = self.runner.generate(&self.request(&text, start))?;
        self.same.see(name, true, &resumed.tokens, &uninterrupted.tokens);
        Ok(())
    }

    /// Measures generations with and without probes, in turn.
    fn probes(&mut self, plain: &EvalAnswer) -> Result<ProbeCost, Error> {
        let prompt = self.prompt.clone();
        let exact = self.runner.is_exact();
        let mut report = ProbeCost::default();
        for _ in 0..self.config.runs {
            let without = self.runner.generate(&self.request(&prompt, EvalStart::Fresh))?;
            let probes = Some(&self.config.probes);
            let probed =
                self.runner.generate(&EvalRequest { probes, ..self.request(&prompt, EvalStart::Fresh) })?;
            let Some(events) = probed.events else { return Ok(ProbeCost::default()) };
            self.same.see("probed = plain", exact, &probed.tokens, &plain.tokens);
            report.attempted = true;
            report.events = events;
            report.plain.push(without.metrics.decode_tokens_per_second());
            report.probed.push(probed.metrics.decode_tokens_per_second());
        }
        Ok(report)
    }

    /// Compares answers that have to be the same.
    fn quality(&mut self, plain: &EvalAnswer) -> Result<Quality, Error> {
        let prompt = self.prompt.clone();
        let exact = self.runner.is_exact();
        let drawn = EvalRequest { seed: Some(17), ..self.request(&prompt, EvalStart::Fresh) };
        let [first, second] = [self.runner.generate(&drawn)?, self.runner.generate(&drawn)?];
        self.same.see("drawn answers repeat", true, &second.tokens, &first.tokens);

        let drafted =
            self.runner.generate(&EvalRequest { drafts: true, ..self.request(&prompt, EvalStart::Fresh) })?;
        self.same.see("drafted = plain", exact, &drafted.tokens, &plain.tokens);

        // Prompts of unequal lengths, one of which is that of all runs.
        let prompts = [&prompt[..], &prompt[..prompt.len().div_ceil(2)], &prompt[..prompt.len().div_ceil(3)]];
        if let Some(together) = self.runner.generate_together(&prompts, self.config.max_tokens)? {
            for (prompt, batched) in prompts.into_iter().zip(together) {
                let alone = self.runner.generate(&self.request(prompt, EvalStart::Fresh))?;
                self.same.see("batched = alone", exact, &batched.tokens, &alone.tokens);
            }
        }
        Ok(Quality { attempted: true, checks: std::mem::take(&mut self.same).into_checks() })
    }
}
