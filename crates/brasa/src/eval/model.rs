//! The runner of a loaded model.

use std::collections::BTreeMap;
use std::io::Cursor;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use brasa_graph::device::DeviceError;
use brasa_tokenizer::{AddSpecial, ParseSpecial};
use serde_json::Value;

use super::{EvalAnswer, EvalRequest, EvalStart, FastEvalRunner, Trip};
use crate::{
    Error, GenerateOptions, Model, RequestOptions, RunFacts, SamplingParams, Session, Speculation,
    StateBundle, TokenStream, peak_memory_bytes,
};

/// The name of the captured session in its bundle.
const NAME: &str = "captured";

/// Evaluates a loaded model. Bundles go to a folder among the system's temporary files, which is removed in the end.
pub struct ModelRunner<'a> {
    model: Model,
    facts: RunFacts,
    goes_on: Box<dyn Fn() -> bool + 'a>,
    warm: Option<Session>,
    captured: Option<Session>,
    /// The file of the captured session.
    file: Vec<u8>,
    restored: Option<Session>,
    bundled: Option<StateBundle>,
    folder: Option<Folder>,
}

impl<'a> ModelRunner<'a> {
    /// Makes a runner. `goes_on` is called at every token; false ends the evaluation with [`DeviceError::Cancelled`].
    pub fn new(model: &Model, facts: RunFacts, goes_on: impl Fn() -> bool + 'a) -> Self {
        Self {
            model: model.clone(),
            facts,
            goes_on: Box::new(goes_on),
            warm: None,
            captured: None,
            file: Vec::new(),
            restored: None,
            bundled: None,
            folder: None,
        }
    }

    /// Reads a stream to its end.
    fn read(
        &self,
        mut stream: TokenStream,
        mut see: impl FnMut(&crate::Fragment),
    ) -> Result<EvalAnswer, Error> {
        let mut tokens = Vec::new();
        for fragment in &mut stream {
            let fragment = fragment?;
            see(&fragment);
            tokens.extend(fragment.token.map(|token| token.id));
            if !(self.goes_on)() {
                return Err(DeviceError::Cancelled.into());
            }
        }
        Ok(EvalAnswer { tokens, metrics: *stream.metrics(), events: None })
    }

    fn session(&mut self, start: EvalStart) -> Result<Option<&Session>, Error> {
        let session = match start {
            EvalStart::Fresh => return Ok(None),
            EvalStart::Warm => self.warm.as_ref(),
            EvalStart::Captured => self.captured.as_ref(),
            EvalStart::Restored => self.restored.as_ref(),
            EvalStart::Bundled => self.bundled.as_ref().and_then(|bundle| bundle.sessions.get(NAME)),
        };
        session.map(Some).ok_or_else(|| Error::Options(format!("no text to start from: {start:?}")))
    }
}

impl FastEvalRunner for ModelRunner<'_> {
    fn encode(&mut self, text: &str) -> Result<Vec<u32>, Error> {
        Ok(self.model.tokenizer().encode(text, AddSpecial::AsModel, ParseSpecial::No)?)
    }

    fn generate(&mut self, request: &EvalRequest<'_>) -> Result<EvalAnswer, Error> {
        let mut options = options(request.max_tokens);
        options.request.cache_prompt = Some(request.start != EvalStart::Fresh);
        if let Some(seed) = request.seed {
            options.sampling = SamplingParams { temperature: 1.0, seed, ..SamplingParams::default() };
        }
        if request.drafts {
            options.speculation = Some(Speculation::LOOKUP);
        }
        if let Some(probes) = request.probes {
            probes.ask(&mut options);
        }
        let prompt = request.prompt.to_vec();
        let stream = match self.session(request.start)? {
            Some(session) => session.generate_ids(prompt, &options)?,
            None => self.model.generate_ids(prompt, &options)?,
        };
        let mut watch = request.probes.map(|probes| (probes.watch(&self.model), BTreeMap::new()));
        let mut answer = self.read(stream, |fragment| {
            if let Some((watch, events)) = &mut watch {
                watch.see(fragment, |event| *events.entry(event.kind()).or_default() += 1);
            }
        })?;
        answer.events = watch.map(|(_, events)| events);
        if let (Some(probes), Some(events)) = (request.probes, &mut answer.events) {
            let text = [request.prompt, &answer.tokens[..]].concat();
            probes.look(&self.model, &text, &options.request, |event| {
                *events.entry(event.kind()).or_default() += 1;
            })?;
        }
        Ok(answer)
    }

    fn facts(&self) -> RunFacts {
        self.facts.clone()
    }

    fn identity(&self) -> Value {
        self.model.identity().to_json()
    }

    fn is_exact(&self) -> bool {
        self.model.identity().is_exact()
    }

    fn peak_memory_bytes(&self) -> Option<u64> {
        peak_memory_bytes()
    }

    fn active_memory_bytes(&mut self) -> Result<Option<u64>, Error> {
        Ok(Some(self.model.engine().with(|executor| executor.memory_bytes())?))
    }

    fn generate_together(
        &mut self,
        prompts: &[&[u32]],
        max_tokens: usize,
    ) -> Result<Option<Vec<EvalAnswer>>, Error> {
        let options = options(max_tokens);
        let start = |prompt: &&[u32]| self.model.generate_ids(prompt.to_vec(), &options);
        let streams = prompts.iter().map(start).collect::<Result<Vec<_>, _>>()?;
        streams.into_iter().map(|stream| self.read(stream, |_| ())).collect::<Result<_, _>>().map(Some)
    }

    fn warm(&mut self, text: &[u32]) -> Result<bool, Error> {
        let session = self.model.session();
        session.warm_prompt(text.to_vec(), &RequestOptions::default())?;
        self.warm = Some(session);
        Ok(true)
    }

    fn capture(&mut self, text: &[u32]) -> Result<Option<u64>, Error> {
        let session = self.model.session();
        session.warm_prompt(text.to_vec(), &options(1).request)?;
        self.file.clear();
        session.write_to(&mut self.file, |_| ControlFlow::Continue(()))?;
        self.captured = Some(session);
        Ok(Some(self.file.len() as u64))
    }

    fn restore(&mut self) -> Result<Duration, Error> {
        // The one before gives its pages back first.
        self.restored = None;
        let started = Instant::now();
        let restored =
            self.model.read_session(&mut Cursor::new(&self.file), |_| ControlFlow::Continue(()))?;
        let time = started.elapsed();
        self.restored = Some(restored);
        Ok(time)
    }

    fn bundle(&mut self) -> Result<Option<Trip>, Error> {
        self.bundled = None;
        let path = match &mut self.folder {
            Some(folder) => folder,
            none => none.insert(Folder::new()?),
        }
        .0
        .join("state.json");
        let mut bundle = StateBundle::new(&self.model);
        // The captured session goes on elsewhere; the bundle has one of its own.
        let session = self.model.read_session(&mut Cursor::new(&self.file), |_| ControlFlow::Continue(()))?;
        bundle.sessions.insert(NAME.into(), session);
        let started = Instant::now();
        let saved = bundle.save(&path)?;
        let save = started.elapsed();
        drop(bundle);
        let started = Instant::now();
        self.bundled = Some(StateBundle::load(&self.model, &path)?);
        Ok(Some(Trip { bytes: saved.bytes, save, load: started.elapsed() }))
    }
}

/// Options of a greedy answer of `max_tokens` tokens.
fn options(max_tokens: usize) -> GenerateOptions {
    GenerateOptions {
        max_tokens: Some(max_tokens),
        ignore_eos: true,
        request: RequestOptions { cache_prompt: Some(false), ..RequestOptions::default() },
        speculation: Some(Speculation::OFF),
        // A long prompt is interrupted between two chunks.
        report_prefill: true,
        ..GenerateOptions::default()
    }
}

/// A folder of its own, removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Self, Error> {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("brasa-eval-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).map_err(|error| Error::File { path: path.clone(), error })?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A folder that cannot be removed is left to the system.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
