//! Checks of an engine over a device, for tests of devices and of the engine: a text is the same in whatever way its
//! tokens are computed.
//!
//! Nothing here is used outside tests. A graph of a check goes from token ids to logits. Its device must compute every
//! row as if it were alone, as devices do in deterministic mode.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::channel;

use brasa_graph::Graph;
use brasa_graph::device::{Backend, KvPool, KvPoolSpec, KvType, Precision, ProgramLimits};
use brasa_graph::sampling::{DrawRules, Row, Sampler, SamplingParams};
use brasa_graph::step::PAGE_POSITIONS;
use brasa_graph::testing::{Running, tokens as prompt};

use crate::{
    Engine, EngineConfig, EngineParts, Executor, GenerateOptions, Metrics, PlainIds, Request, RequestOptions,
    SessionId, Speculation, TokenStream, pages_bytes,
};

/// Tokens that each text generates.
const TOKENS: usize = 24;
/// Rows of the longest step.
const CHUNK: usize = 32;

/// A device and a model on it.
#[derive(Clone)]
pub struct CheckedModel<'a> {
    /// The device, which computes every row as if it were alone.
    pub device: &'a dyn Backend,
    /// The model: token ids to logits.
    pub graph: Arc<Graph>,
    /// How exactly the device multiplies.
    pub precision: Precision,
    /// Element type of keys and values.
    pub kv: KvType,
}

/// A prompt, the way of its continuation, and the tokens that single steps of one row give.
#[derive(Clone)]
struct Text {
    prompt: Vec<u32>,
    options: GenerateOptions,
    expected: Vec<u32>,
}

impl CheckedModel<'_> {
    /// Checks that texts have the tokens of single steps and draws, without an engine, in each of these ways:
    ///
    /// - alone, and again behind their kept pages and states;
    /// - all at once, in chunks and chains;
    /// - with drafts from the text itself, of which some are kept and some are not;
    /// - in a session that goes on, goes back into its answer, and moves to another engine;
    /// - after a paused text has given up its pages.
    ///
    /// # Panics
    ///
    /// If a token differs, or if nothing was drafted, resumed or given up.
    pub fn check_texts(&self) {
        let texts = self.texts();
        self.check_company(&texts);
        self.check_drafts(&texts);
        self.check_sessions(&texts[0]);
        self.check_paused(&texts[0], &texts[2]);
    }

    fn check_company(&self, texts: &[Text]) {
        let engine = self.engine(texts.len(), 1 << 30, |_| u64::MAX);
        for round in ["alone", "behind kept pages"] {
            for text in texts {
                assert_together(&engine, std::slice::from_ref(text), round);
            }
        }
        let cached = engine.stats().cached_tokens;
        assert!(cached > 0, "no text went on from kept pages");
        let engine = self.engine(texts.len(), 0, |_| u64::MAX);
        assert_together(&engine, texts, "all at once");
        // One has begun when the others come.
        let mut first = start(&engine, &texts[0].prompt, &texts[0].options, None);
        let begun: Vec<u32> = ids(&mut first.by_ref().take(5));
        assert_together(&engine, &texts[1..], "beside a text that has begun");
        assert_eq!([begun, ids(&mut first)].concat(), texts[0].expected, "the text that has begun");
    }

    fn check_drafts(&self, texts: &[Text]) {
        let engine = self.engine(texts.len(), 0, |_| u64::MAX);
        let speculation = Some(Speculation { most: 5, adaptive: false, ..Speculation::LOOKUP });
        let mut drafting = texts.to_vec();
        for text in &mut drafting {
            text.options.speculation = speculation;
        }
        let mut metrics = assert_together(&engine, &drafting, "with drafts");
        for text in &drafting {
            metrics.extend(assert_together(&engine, std::slice::from_ref(text), "with drafts, alone"));
        }
        let sum = |count: fn(&Metrics) -> usize| metrics.iter().map(count).sum::<usize>();
        let [drafted, accepted] =
            [sum(|metrics| metrics.drafted_tokens), sum(|metrics| metrics.accepted_tokens)];
        assert!(0 < accepted && accepted < drafted, "{accepted} of {drafted} drafts were kept");
    }

    fn check_sessions(&self, text: &Text) {
        let [here, there] = [0, 1].map(|_| self.engine(2, 0, |_| u64::MAX));
        let session = here.open_session();
        let mut said = text.prompt.clone();
        said.extend(self.go_on(&here, &text.prompt, session, 0));
        // Back into the answer. A model with states goes on from the states behind the prompt.
        said.truncate(said.len() - 10);
        let kept = if self.graph.state_layout().is_empty() { said.len() } else { text.prompt.len() - 1 };
        said.extend(prompt(6, 8));
        said.extend(self.go_on(&here, &said, session, kept));
        // The last token was never computed.
        let held = said.len() - 1;
        let other = there.open_session();
        move_session((&here, session), (&there, other));
        said.extend(prompt(9, 5));
        self.go_on(&there, &said, other, held);
        self.go_on(&here, &said, session, held);
    }

    /// Continues a session with `text`, and checks that at least `cached` tokens are not computed again and that the answer is that of
    /// single steps. Returns the answer.
    fn go_on(&self, engine: &Engine, text: &[u32], session: SessionId, cached: usize) -> Vec<u32> {
        let options = limited(SamplingParams::default());
        let mut stream = start(engine, text, &options, Some(session));
        let answer = ids(&mut stream);
        assert_eq!(answer, self.stepwise(text, &options), "a session behind {} tokens", text.len());
        let found = stream.metrics().cached_tokens;
        assert!(found >= cached, "{found} tokens of {} were cached, expected {cached}", text.len());
        answer
    }

    /// A text whose reader is behind gives its pages to a text that needs them.
    fn check_paused(&self, paused: &Text, other: &Text) {
        let engine = self.engine(2, 0, |pool| pages_bytes(pool, PAGE_POSITIONS));
        let request = RequestOptions { run_ahead: 4, ..RequestOptions::default() };
        let options = GenerateOptions { request, ..paused.options.clone() };
        let mut stream = start(&engine, &paused.prompt, &options, None);
        let begun = ids(&mut stream.by_ref().take(3));
        assert_together(&engine, std::slice::from_ref(other), "in the pages of a paused text");
        assert_eq!([begun, ids(&mut stream)].concat(), paused.expected, "a text that was paused");
        assert!(stream.metrics().preemptions > 0, "the paused text has kept its pages");
    }

    /// Texts of several lengths, drawn in several ways. One draws among few tokens, so that its tokens are easily guessed.
    fn texts(&self) -> Vec<Text> {
        let few = SamplingParams { suppressed: (3..self.vocab() as u32).collect(), ..sampled(2, 1.5) };
        let penalised = SamplingParams { repeat_penalty: 1.3, ..sampled(1, 0.9) };
        [(20, SamplingParams::default()), (5, penalised), (41, few), (1, sampled(3, 0.7))]
            .map(|(length, sampling)| self.text(length, sampling))
            .to_vec()
    }

    fn text(&self, length: usize, sampling: SamplingParams) -> Text {
        let (prompt, options) = (prompt(length, length as u64), limited(sampling));
        let expected = self.stepwise(&prompt, &options);
        Text { prompt, options, expected }
    }

    /// The tokens that follow `prompt` if its rows are one step, and each token is drawn from a step of one row.
    fn stepwise(&self, prompt: &[u32], options: &GenerateOptions) -> Vec<u32> {
        let rules = DrawRules::new(options.sampling.clone()).expect("parameters within their range");
        let mut running = Running::new(self.device, &self.graph, self.precision, self.kv);
        let (mut text, mut sampler, vocab) = (prompt.to_vec(), Sampler::default(), self.vocab());
        let mut logits = running.step(&[(1, prompt)]);
        while text.len() < prompt.len() + TOKENS {
            let last = &logits[logits.len() - vocab..];
            let draw = sampler.draw(&rules, &Row::new(last, text.len() as u32, &text)).expect("a token");
            text.push(draw.token);
            logits = running.step(&[(1, &[draw.token])]);
        }
        text.split_off(prompt.len())
    }

    /// Width of the logits.
    fn vocab(&self) -> usize {
        let logits = self.graph.value(self.graph.outputs()[0]);
        logits.shape.width().expect("logits of a constant width")
    }

    /// An engine with at most `cache_bytes` of pages, which depend on the pool.
    fn engine(
        &self,
        max_sequences: usize,
        prefix_bytes: u64,
        cache_bytes: impl FnOnce(&dyn KvPool) -> u64,
    ) -> Engine {
        let Self { device, graph, precision, kv } = self;
        let weights =
            device.upload(graph, *precision, &mut |_| ControlFlow::Continue(())).expect("an upload");
        let limits = ProgramLimits { max_rows: CHUNK, max_outs: CHUNK, max_segments: max_sequences };
        let program = device.compile(Arc::clone(graph), weights, limits.with(*kv)).expect("a program");
        let pool = device.kv_pool(KvPoolSpec::of(graph, *kv)).expect("a pool");
        let config = EngineConfig {
            context: 2 * PAGE_POSITIONS,
            max_sequences,
            max_waiting: 100,
            mixed_prompt_rows: 8,
            vocab_size: self.vocab(),
            cache_bytes: cache_bytes(&*pool),
            prefix_bytes,
            prefault_bytes: 0,
        };
        Engine::start(EngineParts::new(program, pool), config).expect("an engine")
    }
}

/// Starts texts at once, and checks their tokens. Returns their metrics.
fn assert_together(engine: &Engine, texts: &[Text], what: &str) -> Vec<Metrics> {
    let (held, is_held) = channel();
    let (release, released) = channel::<()>();
    let mut streams: Vec<TokenStream> = std::thread::scope(|scope| {
        let wait = move |_: &mut Executor| {
            held.send(()).expect("somebody waits");
            // A request that is refused has dropped the sender.
            let _ = released.recv();
        };
        scope.spawn(|| engine.with(wait).expect("an engine that runs"));
        is_held.recv().expect("an engine that runs");
        let begin = |text: &Text| start(engine, &text.prompt, &text.options, None);
        let streams = texts.iter().map(begin).collect();
        drop(release);
        streams
    });
    for (number, (stream, text)) in streams.iter_mut().zip(texts).enumerate() {
        assert_eq!(ids(stream), text.expected, "{what}: text {number} of {}", texts.len());
    }
    streams.iter().map(|stream| *stream.metrics()).collect()
}

/// Copies the text of a session, page by page, to a session of another engine.
fn move_session((here, from): (&Engine, SessionId), (there, to): (&Engine, SessionId)) {
    let snapshot = here.snapshot(from).expect("a session at rest");
    let mut restoration = there.restore(snapshot.state().clone()).expect("a state of the same model");
    for (group, entries) in snapshot.state().pages.iter().enumerate() {
        for entry in entries.clone() {
            let page = snapshot.read_page(group, entry, Vec::new()).expect("a page of the text");
            restoration.write_page(group, page).expect("a page of the same model");
        }
    }
    restoration.finish(to).expect("all pages");
}

fn start(
    engine: &Engine,
    prompt: &[u32],
    options: &GenerateOptions,
    session: Option<SessionId>,
) -> TokenStream {
    let (prompt, options) = (prompt.to_vec(), options.clone());
    engine
        .generate(Request { prompt, options, end_ids: Vec::new(), decoder: Box::new(PlainIds), session })
        .expect("a valid request")
}

fn ids(stream: &mut impl Iterator<Item = Result<crate::Fragment, crate::EngineError>>) -> Vec<u32> {
    stream.filter_map(|fragment| fragment.expect("a token").token).map(|token| token.id).collect()
}

fn limited(sampling: SamplingParams) -> GenerateOptions {
    GenerateOptions { sampling, max_tokens: Some(TOKENS), ..GenerateOptions::default() }
}

fn sampled(seed: u64, temperature: f32) -> SamplingParams {
    SamplingParams { temperature, seed, ..SamplingParams::default() }
}
