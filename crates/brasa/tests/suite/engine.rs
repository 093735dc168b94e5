//! The engine on the CPU device against itself, on trained models: chunked = whole, continued = fresh, together = alone,
//! any number of threads = one. All are equalities of bits, in logits and log-probabilities.

use brasa::sampling::{Distribution, Logprobs};
use brasa::{
    GenerateOptions, LoadOptions, Message, Metrics, Model, Precision, RequestOptions, SamplingParams,
    Speculation, TokenStream,
};
use brasa_golden::folder;

/// A quantised model with full attention, and two with sliding windows of 64, the second with caches that layers share.
const MODELS: [&str; 3] = ["lexicon-qwen3/lexicon-qwen3-Q6_K.gguf", "tiny-gemma3", "tiny-gemma4"];
const PRECISIONS: [Precision; 2] = [Precision::Fast, Precision::Reference];

/// Runs `check` on every model in every precision.
fn everywhere(check: impl Fn(&dyn Fn(LoadOptions) -> Model)) {
    for name in MODELS {
        for precision in PRECISIONS {
            println!("{name}, {precision:?}");
            check(&|options| {
                let options = LoadOptions {
                    precision,
                    context: options.context.or(Some(1024)),
                    threads: options.threads.or(Some(1)),
                    deterministic: true,
                    ..options
                };
                Model::load(folder(name), &options).unwrap()
            });
        }
    }
}

fn chunks_of(chunk: usize) -> LoadOptions {
    // A step must have room for a row of every sequence.
    LoadOptions { chunk: Some(chunk), max_sequences: Some(chunk.min(16)), ..LoadOptions::default() }
}

/// Text-like ids: no special tokens, few repetitions.
fn prompt(length: usize, seed: usize) -> Vec<u32> {
    (0..length).map(|index| (300 + (index * index * 7 + index * 31 + seed * 101) % 3000) as u32).collect()
}

fn greedy(tokens: usize) -> GenerateOptions {
    let logprobs = Some(Logprobs { top: 5, of: Distribution::Raw });
    let sampling = SamplingParams { logprobs, ..SamplingParams::default() };
    GenerateOptions { sampling, max_tokens: Some(tokens), ignore_eos: true, ..GenerateOptions::default() }
}

fn drawn(tokens: usize, seed: u64) -> GenerateOptions {
    let mut options = greedy(tokens);
    options.sampling.temperature = 1.0;
    options.sampling.seed = seed;
    let sampling = &mut options.sampling;
    match seed % 4 {
        1 => (sampling.typical_p, sampling.top_n_sigma) = (0.8, 2.0),
        2 => (sampling.xtc_probability, sampling.xtc_threshold) = (0.5, 0.02),
        3 => (sampling.dynatemp_range, sampling.dry.multiplier) = (0.5, 1.0),
        _ => {}
    }
    options
}

/// Contents of a stream: text, ids, and the bits of every log-probability.
#[derive(Debug, PartialEq)]
struct Said {
    text: String,
    ids: Vec<u32>,
    bits: Vec<u32>,
}

fn said(mut stream: TokenStream) -> (Said, Metrics) {
    let mut said = Said { text: String::new(), ids: Vec::new(), bits: Vec::new() };
    for fragment in &mut stream {
        let fragment = fragment.unwrap();
        said.text.push_str(&fragment.text);
        let Some(token) = fragment.token else { continue };
        said.ids.push(token.id);
        said.bits.push(token.logprob.unwrap().to_bits());
        said.bits.extend(token.top.iter().flat_map(|&(id, logprob)| [id, logprob.to_bits()]));
    }
    (said, *stream.metrics())
}

fn generated(model: &Model, prompt: Vec<u32>, options: &GenerateOptions) -> Said {
    said(model.generate_ids(prompt, options).unwrap()).0
}

/// The bits of the logits after every token.
fn logits(model: &Model, ids: &[u32]) -> Vec<Vec<u32>> {
    let mut rows = Vec::new();
    model
        .score(ids, &RequestOptions::DEFAULT, |row| rows.push(row.iter().map(|x| x.to_bits()).collect()))
        .unwrap();
    rows
}

#[test]
fn chunked_prefill_equals_whole() {
    everywhere(|load| {
        // Longer than a page of 256 positions and than a window of 64.
        let long = prompt(270, 1);
        let scored = &long[..80];
        let whole = load(chunks_of(512));
        let expected_logits = logits(&whole, scored);
        assert_eq!(expected_logits.len(), scored.len());
        let expected = generated(&whole, long.clone(), &greedy(6));
        for chunk in [1, 17, 64] {
            let model = load(chunks_of(chunk));
            // Compared row by row: a difference is reported by its place, not by a page of numbers.
            for (row, (found, expected)) in logits(&model, scored).iter().zip(&expected_logits).enumerate() {
                assert!(found == expected, "chunks of {chunk}: logits of row {row} differ");
            }
            if chunk > 1 {
                assert_eq!(generated(&model, long.clone(), &greedy(6)), expected, "chunks of {chunk}");
            }
        }
    });
}

/// By default sessions find what other sessions computed, and plain requests pay for their own prompts.
#[test]
fn sessions_share_the_beginnings_of_their_prompts() {
    let cached = |options: &LoadOptions| {
        let model = Model::load(folder(MODELS[0]), options).unwrap();
        let ask = |question: &str, alone: bool| {
            let messages = [Message::new("user", question)];
            let session = model.session();
            let asked =
                if alone { model.chat(&messages, &greedy(3)) } else { session.chat(&messages, &greedy(3)) };
            said(asked.unwrap()).1.cached_tokens > 0
        };
        [("What is a river?", false), ("What is a lake?", false), ("What is a hill?", true)]
            .map(|(question, alone)| ask(question, alone))
    };
    assert_eq!(cached(&LoadOptions::default()), [false, true, false]);
    let asked = |prefix_bytes| LoadOptions { prefix_bytes: Some(prefix_bytes), ..LoadOptions::default() };
    assert_eq!(cached(&asked(1 << 24)), [false, true, true]);
    assert_eq!(cached(&asked(0)), [false; 3]);
}

#[test]
fn a_continued_session_equals_a_fresh_run() {
    everywhere(|load| {
        let model = load(chunks_of(64));
        let session = model.session();
        let mut messages = Vec::new();
        let ask = |messages: &[Message], turn: u64| {
            let options = drawn(20, turn);
            let fresh = said(model.chat(messages, &options).unwrap()).0;
            let (continued, metrics) = said(session.chat(messages, &options).unwrap());
            assert_eq!(continued, fresh, "turn {turn}");
            (fresh.text, metrics.cached_tokens)
        };
        for (turn, question) in ["What is a river?", "And a mountain?", "Which is older?"].iter().enumerate()
        {
            messages.push(Message::new("user", *question));
            let (answer, cached) = ask(&messages, turn as u64);
            assert_eq!(cached > 0, turn > 0, "turn {turn}: {cached} cached tokens");
            messages.push(Message::new("assistant", answer));
        }
        // History rewritten in the middle, then a shorter conversation, then the same again.
        messages[1] = Message::new("assistant", "Water that flows.");
        messages.push(Message::new("user", "Thank you."));
        ask(&messages, 7);
        messages.truncate(3);
        ask(&messages, 8);
        let (_, cached) = ask(&messages, 8);
        assert!(cached > 0, "the whole prompt but its last token is known");
    });
}

/// Prompts of any lengths: results in order, each that of its prompt alone; a bad one fails by itself.
#[test]
fn a_batch_gives_each_prompt_what_it_has_alone() {
    let options = LoadOptions { max_sequences: Some(3), max_waiting: 2, ..chunks_of(64) };
    let model = Model::load(folder(MODELS[0]), &LoadOptions { deterministic: true, ..options }).unwrap();
    let mut prompts: Vec<Vec<u32>> = (0..7).map(|seed| prompt(3 + 19 * seed, seed)).collect();
    prompts[4] = Vec::new();
    let answers: Vec<_> = model.batch(prompts.clone(), &greedy(5)).collect();
    let logits: Vec<_> = model.next_logits(prompts.clone(), &RequestOptions::DEFAULT).collect();
    for ((prompt, answer), logits) in prompts.iter().zip(answers).zip(logits) {
        if prompt.is_empty() {
            assert!(answer.is_err() && logits.is_err());
            continue;
        }
        let alone = said(model.generate_ids(prompt.clone(), &greedy(5)).unwrap()).0;
        let answer = answer.unwrap();
        assert_eq!((answer.text, answer.tokens), (alone.text, alone.ids));
        assert!(
            logits.unwrap() == model.score(prompt, &RequestOptions::DEFAULT, |_| {}).unwrap().last_logits
        );
    }
}

#[test]
fn streams_together_equal_each_alone() {
    everywhere(|load| {
        let model = load(chunks_of(64));
        let requests: Vec<_> = [(5, 9), (130, 4), (1, 16), (64, 12), (33, 1), (257, 6)]
            .iter()
            .enumerate()
            .map(|(seed, &(length, tokens))| (prompt(length, seed), drawn(tokens, seed as u64)))
            .collect();
        let streams: Vec<_> =
            requests.iter().map(|(ids, options)| model.generate_ids(ids.clone(), options).unwrap()).collect();
        let together: Vec<_> = streams.into_iter().map(|stream| said(stream).0).collect();
        for (number, ((ids, options), together)) in requests.iter().zip(&together).enumerate() {
            assert_eq!(&generated(&model, ids.clone(), options), together, "request {number}");
        }
    });
}

#[test]
fn a_seed_names_a_text() {
    everywhere(|load| {
        let model = load(chunks_of(64));
        let text = |seed| generated(&model, prompt(9, 3), &drawn(24, seed));
        assert_eq!(text(5), text(5));
        assert_ne!(text(5).ids, text(6).ids);
        assert_eq!(text(5), generated(&load(chunks_of(16)), prompt(9, 3), &drawn(24, 5)), "loaded again");
    });
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    everywhere(|load| {
        let run = |threads| {
            let model = load(LoadOptions { threads: Some(threads), ..chunks_of(64) });
            (logits(&model, &prompt(40, 2)), generated(&model, prompt(90, 2), &drawn(8, 1)))
        };
        assert!(run(1) == run(3), "three threads");
    });
}

/// Texts that copy: alone and plain, alone and drafted, drafted together.
#[test]
fn drafts_leave_every_text_as_it_is() {
    let eager = Speculation { adaptive: false, ..Speculation::LOOKUP };
    everywhere(|load| {
        let model = load(chunks_of(64));
        let texts: Vec<Vec<u32>> = (0..2).map(|seed| prompt(12 + 5 * seed, seed).repeat(4)).collect();
        let mut penalised = drawn(16, 5);
        (penalised.sampling.repeat_penalty, penalised.sampling.temperature) = (1.05, 0.3);
        let ways = [greedy(24), penalised];
        let drafted = ways.clone().map(|way| GenerateOptions { speculation: Some(eager), ..way });
        let all = || texts.iter().flat_map(|text| (0..ways.len()).map(move |way| (text, way)));
        let expected: Vec<Said> =
            all().map(|(text, way)| generated(&model, text.clone(), &ways[way])).collect();
        let start = |model: &Model| -> Vec<TokenStream> {
            all().map(|(text, way)| model.generate_ids(text.clone(), &drafted[way]).unwrap()).collect()
        };
        let mut accepted = 0;
        for ((text, way), expected) in all().zip(&expected) {
            let (found, metrics) = said(model.generate_ids(text.clone(), &drafted[way]).unwrap());
            assert_eq!(&found, expected, "alone");
            accepted += metrics.accepted_tokens;
        }
        assert!(accepted > 0, "no draft was drawn");
        for (stream, expected) in start(&model).into_iter().zip(&expected) {
            assert_eq!(&said(stream).0, expected, "in company");
        }
    });
}
