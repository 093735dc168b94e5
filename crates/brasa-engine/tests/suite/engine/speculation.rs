//! Drafts change the time of a text and nothing else: alone, in company, with masks, penalties, stops and limits, and in contexts
//! that slide.

use std::sync::Arc;

use brasa_engine::{
    ContextPolicy, Engine, EngineStats, FinishReason, GenerateOptions, MaskSource, Metrics, Speculation,
    Token,
};
use brasa_graph::device::KvType;
use brasa_graph::sampling::{Distribution, Dry, Logprobs, SamplingError, SamplingParams, TokenMask};

use super::texts::ThirdsFromZero;
use super::{LAYERS, VOCAB, engine, engine_of, limit, prompt, start};

/// Every draft that there is, whatever it costs.
pub const EAGER: Speculation = Speculation { most: 5, adaptive: false, ..Speculation::LOOKUP };

/// A text that comes again and again, so that its answer is easily guessed.
fn refrain(seed: usize) -> Vec<u32> {
    prompt(21 + seed, seed).repeat(5)
}

/// Ways to generate that have nothing in common.
pub fn ways(seed: usize) -> Vec<GenerateOptions> {
    let sampling = |temperature, repeat_penalty, presence_penalty| SamplingParams {
        temperature,
        repeat_penalty,
        presence_penalty,
        seed: seed as u64,
        ..SamplingParams::default()
    };
    let logprobs = Some(Logprobs { top: 2, of: Distribution::Raw });
    let with = |sampling, tokens| GenerateOptions { sampling, ..limit(tokens) };
    vec![
        limit(60),
        with(sampling(0.4, 1.0, 0.0), 60),
        with(sampling(0.0, 1.1, 0.2), 60),
        GenerateOptions { mask: Some(Arc::new(ThirdsFromZero)), ..limit(60) },
        GenerateOptions { mask: Some(Arc::new(ThirdsFromZero)), ..with(sampling(0.7, 1.0, 0.0), 45) },
        with(SamplingParams { logprobs, min_tokens: 9, ..sampling(0.3, 1.0, 0.0) }, 33),
        with(
            SamplingParams {
                typical_p: 0.8,
                top_n_sigma: 2.0,
                xtc_probability: 0.3,
                xtc_threshold: 0.02,
                dynatemp_range: 0.3,
                ..sampling(0.5, 1.0, 0.0)
            },
            50,
        ),
        with(
            SamplingParams {
                dry: Dry { multiplier: 0.4, allowed_length: 3, ..Dry::default() },
                ..sampling(0.3, 1.0, 0.0)
            },
            50,
        ),
        limit(1),
        limit(2),
    ]
}

/// The tokens of an answer, with log-probabilities, and its end.
pub fn answer(
    engine: &Engine,
    text: Vec<u32>,
    options: &GenerateOptions,
) -> (Vec<Token>, Option<FinishReason>, Metrics) {
    let mut stream = start(engine, text, options, None);
    let tokens = stream.by_ref().filter_map(|fragment| fragment.unwrap().token).collect();
    (tokens, stream.finish_reason(), *stream.metrics())
}

#[test]
pub fn drafts_leave_the_text_as_it_is() {
    let (plain, drafting) = (engine(1024, 64, 4), engine(1024, 64, 4));
    let mut accepted = 0;
    for seed in 0..3 {
        let ways = ways(seed);
        let expected: Vec<_> = ways.iter().map(|way| answer(&plain, refrain(seed), way)).collect();
        let drafted = |way: &GenerateOptions| GenerateOptions { speculation: Some(EAGER), ..way.clone() };
        for (number, (way, expected)) in ways.iter().zip(&expected).enumerate() {
            let (tokens, reason, metrics) = answer(&drafting, refrain(seed), &drafted(way));
            assert_eq!((&tokens, reason), (&expected.0, expected.1), "seed {seed}, way {number}");
            assert!(metrics.accepted_tokens <= metrics.drafted_tokens);
            assert_eq!(metrics.generated_tokens, expected.2.generated_tokens);
            assert_eq!(expected.2.drafted_tokens, 0);
            accepted += metrics.accepted_tokens;
        }
        // In company, some with drafts and some without: all of them, which leaves few rows for drafts, and pairs.
        for together in [ways.len(), 2] {
            let numbered: Vec<_> = ways.iter().zip(&expected).enumerate().collect();
            for company in numbered.chunks(together) {
                let begin = |&(number, (way, _)): &(usize, (&GenerateOptions, _))| {
                    let way = if number % 3 == 1 { way.clone() } else { drafted(way) };
                    start(&drafting, refrain(seed), &way, None)
                };
                let streams: Vec<_> = company.iter().map(begin).collect();
                for (stream, (number, (_, expected))) in streams.into_iter().zip(company) {
                    let tokens: Vec<Token> = stream.filter_map(|fragment| fragment.unwrap().token).collect();
                    assert_eq!(tokens, expected.0, "seed {seed}, way {number}, {together} together");
                }
            }
        }
    }
    assert!(accepted > 100, "{accepted} drafts were drawn: nothing was tried");
    let stats = drafting.stats();
    assert!(stats.accepted_rows as usize > accepted && stats.draft_rows > stats.accepted_rows, "{stats:?}");
    assert!(stats.steps < stats.decode_rows, "{stats:?}");
}

/// Stop ids and stop strings among drafts end the text where they end it otherwise.
#[test]
pub fn drafts_end_where_the_text_ends() {
    let (plain, drafting) = (engine(1024, 64, 2), engine(1024, 64, 2));
    let (text, _, _) = answer(&plain, refrain(1), &limit(60));
    for place in [5, 20, 21, 22, 40, 59] {
        let stops = GenerateOptions { stop_ids: vec![text[place].id], ..limit(60) };
        let expected = answer(&plain, refrain(1), &stops);
        let found = answer(&drafting, refrain(1), &GenerateOptions { speculation: Some(EAGER), ..stops });
        assert_eq!((found.0, found.1), (expected.0, expected.1));
        // What is cached behind the end is the text's and nothing of the drafts.
        let session = drafting.open_session();
        let options = GenerateOptions { speculation: Some(EAGER), ..limit(place) };
        start(&drafting, refrain(1), &options, Some(session)).for_each(drop);
        let longer: Vec<u32> =
            refrain(1).into_iter().chain(text[..place].iter().map(|token| token.id)).collect();
        let mut rest = start(&drafting, longer, &limit(60 - place), Some(session));
        let tokens: Vec<Token> = rest.by_ref().filter_map(|fragment| fragment.unwrap().token).collect();
        assert_eq!(tokens, text[place..]);
        assert_eq!(rest.metrics().cached_tokens, refrain(1).len() + place - 1);
    }
}

/// A context that is full, slides or is nearly full has drafts up to its end and none behind it.
#[test]
pub fn drafts_fit_the_context() {
    let engine = || engine_of(LAYERS, KvType::F32, 300, 64, 2, 0);
    for context_policy in [ContextPolicy::Stop, ContextPolicy::Slide { keep: 8 }] {
        let plain = GenerateOptions { context_policy, ..limit(400) };
        let expected = answer(&engine(), refrain(3), &plain);
        let found = answer(&engine(), refrain(3), &GenerateOptions { speculation: Some(EAGER), ..plain });
        assert_eq!((found.0, found.1), (expected.0, expected.1), "{context_policy:?}");
        assert!(found.2.accepted_tokens > 20);
    }
}

/// Tokens that a mask forces come in fewer steps, in any company, and are those of a step each, though the mask is wrong at times.
#[test]
pub fn forced_tokens_come_in_one_step() {
    let (plain, forcing) = (engine(1024, 64, 4), engine(1024, 64, 4));
    let with = |temperature, speculation, period| {
        let sampling = SamplingParams { temperature, repeat_penalty: 1.1, ..SamplingParams::default() };
        GenerateOptions { sampling, speculation, mask: Some(Arc::new(Runs { period })), ..limit(90) }
    };
    let without = Some(Speculation { forced: false, ..EAGER });
    for (speculation, most) in
        [(None, 7), (Some(EAGER), 5), (Some(Speculation { adaptive: false, ..Speculation::FORCED }), 7)]
    {
        for (seed, temperature) in [(0, 0.0), (1, 0.9)] {
            for period in [2, 5, 11] {
                let expected =
                    answer(&plain, prompt(30, seed), &with(temperature, Some(Speculation::OFF), period));
                let before = settled_stats(&forcing);
                let found = answer(&forcing, prompt(30, seed), &with(temperature, speculation, period));
                assert_eq!((&found.0, found.1), (&expected.0, expected.1), "period {period}");
                let (stats, metrics) = (settled_stats(&forcing), found.2);
                assert_eq!(metrics.generated_tokens, 90);
                assert_eq!(metrics.drafted_tokens as u64, stats.draft_rows - before.draft_rows);
                assert_eq!(metrics.accepted_tokens as u64, stats.accepted_rows - before.accepted_rows);
                if speculation.is_some_and(|speculation| !speculation.adaptive) {
                    // All but the first token of an answer, less those that cost no step, and one for the prompt.
                    assert_eq!(stats.steps - before.steps, 90 - metrics.accepted_tokens as u64);
                    let forced = 90 * (period - 1).min(most) / period;
                    assert!(metrics.accepted_tokens > forced * 3 / 5, "period {period}: {metrics:?}");
                }
                let (text, _, metrics) =
                    answer(&forcing, prompt(30, seed), &with(temperature, without, period));
                assert_eq!(text, expected.0, "guesses of the text alone, period {period}: {metrics:?}");
            }
        }
    }
    let all: Vec<_> = [0.0, 0.8].into_iter().flat_map(|heat| [3, 7].map(|period| (heat, period))).collect();
    let streams: Vec<_> = all
        .iter()
        .map(|&(heat, period)| start(&forcing, prompt(20, 3), &with(heat, Some(EAGER), period), None))
        .collect();
    for (stream, &(heat, period)) in streams.into_iter().zip(&all) {
        let tokens: Vec<Token> = stream.filter_map(|fragment| fragment.unwrap().token).collect();
        assert_eq!(tokens, answer(&plain, prompt(20, 3), &with(heat, Some(Speculation::OFF), period)).0);
    }
}

/// The totals once the engine has done all that it was asked for.
fn settled_stats(engine: &Engine) -> EngineStats {
    engine.with(|_| ()).unwrap();
    engine.stats()
}

/// Makes masks that allow several tokens at every so many, and a single one between them.
#[derive(Debug)]
struct Runs {
    period: usize,
}

/// The accepted tokens of [`Runs`], and their sum.
struct Run {
    period: usize,
    accepted: usize,
    sum: u32,
}

impl Run {
    /// The only token that may come behind `accepted` tokens; `None` if there are several.
    fn only(&self, accepted: usize, sum: u32) -> Option<u32> {
        (!accepted.is_multiple_of(self.period)).then_some((sum * 7 + accepted as u32) % VOCAB as u32)
    }
}

impl MaskSource for Runs {
    fn start(&self) -> Box<dyn TokenMask> {
        Box::new(Run { period: self.period, accepted: 0, sum: 1 })
    }
}

impl TokenMask for Run {
    fn fill(&mut self, drafts: &[u32], words: &mut [u32]) -> Result<(), SamplingError> {
        words.fill(0);
        let sum = self.sum + drafts.iter().sum::<u32>();
        match self.only(self.accepted + drafts.len(), sum) {
            Some(id) => words[id as usize / 32] = 1 << (id % 32),
            None => words[0] = 0xF0F0_F0F0,
        }
        Ok(())
    }

    fn accept(&mut self, id: u32) {
        self.accepted += 1;
        self.sum += id;
    }

    fn forced(&mut self, tokens: &mut Vec<u32>) {
        let (mut accepted, mut sum) = (self.accepted, self.sum);
        while let Some(id) = self.only(accepted, sum) {
            // Every ninth guess is wrong.
            tokens.push(if accepted.is_multiple_of(9) { (id + 1) % VOCAB as u32 } else { id });
            (accepted, sum) = (accepted + 1, sum + id);
        }
    }
}
