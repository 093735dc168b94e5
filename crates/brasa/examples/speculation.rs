//! Measures the gain of guessing ahead: `cargo run --release -p brasa --example speculation -- MODEL [ROUNDS] [DRAFT_MODEL]`.
//!
//! In the first tasks a mask holds each answer to a text that is known beforehand, so that any model copies, edits or invents as it is told,
//! one of random weights too; the time of a step does not depend on what is drawn. Then a grammar holds the answer to a schema: plainly, with
//! what it forces in one step, and as many tokens without a grammar. Last comes a draft model, if one is named. Every answer is made plainly and
//! with drafts in turn, and must be the same. The figures are medians of tokens a second behind the first token.

use std::path::PathBuf;
use std::sync::Arc;

use brasa::sampling::{SamplingError, TokenMask};
use brasa::tokenizer::{AddSpecial, ParseSpecial};
use brasa::{
    Error, GenerateOptions, Grammar, LoadOptions, MaskSource, Metrics, Model, SamplingParams, Speculation,
};
use serde_json::{Value, json};

/// A prompt and the answer to it.
struct Task {
    name: &'static str,
    prompt: String,
    answer: Vec<u32>,
}

fn main() -> Result<(), Error> {
    let bundled = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/lexicon-qwen3/lexicon-qwen3-Q6_K.gguf");
    let mut arguments = std::env::args_os().skip(1);
    let path = arguments.next().map_or_else(|| bundled.into(), PathBuf::from);
    let rounds = arguments.next().and_then(|rounds| rounds.to_str()?.parse().ok()).unwrap_or(3_usize);
    let draft_model = arguments.next().map(PathBuf::from);
    let drafts = draft_model.is_some();
    let model =
        Model::load(path, &LoadOptions { context: Some(4096), draft_model, ..LoadOptions::default() })?;
    println!("| task | prompt | answer | plain tok/s | drafts tok/s | ratio | drafted | accepted |");
    println!("|---|---|---|---|---|---|---|---|");
    let lookup = Speculation { forced: false, model: false, ..Speculation::LOOKUP };
    for task in tasks(&model) {
        let options = GenerateOptions {
            max_tokens: Some(task.answer.len()),
            ignore_eos: true,
            mask: Some(Arc::new(Script(task.answer.into()))),
            ..GenerateOptions::default()
        };
        compare(&model, task.name, &task.prompt, &options, lookup, rounds)?;
    }
    let prompt = "Words of the sea, as JSON: ";
    let answer = GenerateOptions { max_tokens: Some(400), ..GenerateOptions::default() };
    let constrained =
        GenerateOptions { mask: Some(model.grammar(&Grammar::JsonSchema(schema()))?), ..answer };
    compare(&model, "forced by a schema", prompt, &constrained, Speculation::FORCED, rounds)?;
    // A mask costs what plain answers differ by.
    let tokens = Some(answered(&model, prompt, &constrained, Speculation::OFF)?.1.generated_tokens);
    let free = GenerateOptions { max_tokens: tokens, ignore_eos: true, ..GenerateOptions::default() };
    compare(&model, "the same without a schema", prompt, &free, Speculation::OFF, rounds)?;
    if drafts {
        for temperature in [0.0, 0.8] {
            let sampling = SamplingParams { temperature, ..SamplingParams::default() };
            let name = format!("draft model, temperature {temperature}");
            let options =
                GenerateOptions { sampling, max_tokens: Some(200), ignore_eos: true, ..free.clone() };
            compare(&model, &name, "A short history of sailing.", &options, Speculation::MODEL, rounds)?;
        }
    }
    Ok(())
}

/// Prints a line about an answer made plainly and with guesses, in turn.
fn compare(
    model: &Model,
    name: &str,
    prompt: &str,
    options: &GenerateOptions,
    guessing: Speculation,
    rounds: usize,
) -> Result<(), Error> {
    let mut rates = [Vec::new(), Vec::new()];
    let mut last = Metrics::default();
    // The first round warms up.
    for round in 0..=rounds {
        let mut texts = Vec::new();
        for (speculation, rates) in [Speculation::OFF, guessing].into_iter().zip(&mut rates) {
            let (text, metrics) = answered(model, prompt, options, speculation)?;
            if round > 0 {
                rates.push(metrics.decode_tokens_per_second());
            }
            texts.push(text);
            last = metrics;
        }
        assert_eq!(texts[0], texts[1], "{name}: guesses changed the text");
    }
    let [plain, guessed] = rates.map(|mut rates| {
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    });
    println!(
        "| {name} | {} | {} | {plain:.1} | {guessed:.1} | {:.2} | {} | {} |",
        last.prompt_tokens,
        last.generated_tokens,
        guessed / plain,
        last.drafted_tokens,
        last.accepted_tokens
    );
    Ok(())
}

/// An answer and its figures.
fn answered(
    model: &Model,
    prompt: &str,
    options: &GenerateOptions,
    speculation: Speculation,
) -> Result<(String, Metrics), Error> {
    let options = GenerateOptions { speculation: Some(speculation), ..options.clone() };
    let mut stream = model.generate(prompt, &options)?;
    let text: Result<String, _> = stream.by_ref().map(|fragment| fragment.map(|it| it.text)).collect();
    let metrics = *stream.metrics();
    Ok((text?, metrics))
}

/// A schema like those of programs: names that are long, and values that are short.
fn schema() -> Value {
    let entry = json!({
        "type": "object",
        "properties": {
            "headword": {"type": "string", "maxLength": 12},
            "part_of_speech": {"enum": ["noun", "verb", "adjective", "adverb"]},
            "number_of_meanings": {"type": "integer", "minimum": 1, "maximum": 40},
            "etymology_is_known": {"type": "boolean"},
        },
        "required": ["headword", "part_of_speech", "number_of_meanings", "etymology_is_known"],
        "additionalProperties": false,
    });
    json!({"type": "array", "items": entry, "minItems": 6, "maxItems": 6})
}

/// Texts that copy much, something, little and nothing.
fn tasks(model: &Model) -> Vec<Task> {
    let ids = |text: &str| {
        let mut ids = model.tokenizer().encode(text, AddSpecial::No, ParseSpecial::No).unwrap_or_default();
        ids.truncate(400);
        ids
    };
    let record = |number: usize| {
        let name = ["amber", "birch", "cedar", "delta", "ember"][number % 5];
        let (id, price) = (1000 + number * 37 % 900, number * number % 83);
        format!(
            "  {{\"id\": {id}, \"name\": \"{name}\", \"price\": {price}.5, \"stock\": {}}},\n",
            number % 7
        )
    };
    let json: String = (0..24).map(record).collect();
    let source = &include_str!("speculation.rs")[3200..5200];
    let prose = include_str!("../../../models/lexicon-qwen3/perplexity.txt");
    let (before, behind) = (&prose[..2000], &prose[2000..6000]);
    // The numbers of a simple generator: ids that have nothing to do with each other.
    let mut state = 1_u64;
    let noise = (0..400).map(|_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32 % model.vocab_size() as u32
    });
    let echo = format!("Repeat this list:\n{json}");
    let edit = format!("Rename `rates` to `speeds` and `round` to `turn`:\n{source}");
    let edited = source.replace("rates", "speeds").replace("round", "turn");
    vec![
        Task { name: "JSON echo", prompt: echo, answer: ids(&json) },
        Task { name: "code edit", prompt: edit, answer: ids(&edited) },
        Task { name: "prose", prompt: before.to_owned(), answer: ids(behind) },
        Task { name: "noise", prompt: before.to_owned(), answer: noise.collect() },
    ]
}

/// Holds an answer to these tokens.
#[derive(Clone, Debug)]
struct Script(Arc<[u32]>);

/// A script, and the tokens of it that have been drawn.
struct ScriptMask(Script, usize);

impl MaskSource for Script {
    fn start(&self) -> Box<dyn TokenMask> {
        Box::new(ScriptMask(self.clone(), 0))
    }
}

impl TokenMask for ScriptMask {
    fn fill(&mut self, drafts: &[u32], words: &mut [u32]) -> Result<(), SamplingError> {
        words.fill(0);
        if let Some(&id) = self.0.0.get(self.1 + drafts.len()) {
            words[id as usize / 32] |= 1 << (id % 32);
        }
        Ok(())
    }

    fn accept(&mut self, _: u32) {
        self.1 += 1;
    }
}
