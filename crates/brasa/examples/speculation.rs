//! What guessing ahead is worth: `cargo run --release -p brasa --example speculation -- MODEL [ROUNDS] [DRAFT_MODEL]`.
//!
//! A mask holds each answer to a text that is known beforehand, so that any model copies, edits or invents as it is told, one of random
//! weights too; the time of a step does not depend on what is drawn. Every answer is made plainly and with drafts in turn, and must be
//! the same. The figures are medians of tokens a second behind the first token.

use std::path::PathBuf;
use std::sync::Arc;

use brasa::sampling::{SamplingError, TokenMask};
use brasa::tokenizer::{AddSpecial, ParseSpecial};
use brasa::{Error, GenerateOptions, LoadOptions, MaskSource, Model, Speculation};

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
    let model = Model::load(path, &LoadOptions { context: Some(4096), ..LoadOptions::default() })?;
    println!("| task | prompt | answer | plain tok/s | drafts tok/s | ratio | drafted | accepted |");
    println!("|---|---|---|---|---|---|---|---|");
    for task in tasks(&model) {
        let mut rates = [Vec::new(), Vec::new()];
        let mut drafts = (0, 0, 0);
        // The first round warms up.
        for round in 0..=rounds {
            let mut texts = [Speculation::OFF, Speculation::LOOKUP].into_iter().zip(&mut rates).map(
                |(speculation, rates)| -> Result<String, Error> {
                    let options = GenerateOptions {
                        max_tokens: Some(task.answer.len()),
                        ignore_eos: true,
                        mask: Some(Arc::new(Script(task.answer.clone().into()))),
                        speculation: Some(speculation),
                        ..GenerateOptions::default()
                    };
                    let mut stream = model.generate(&task.prompt, &options)?;
                    let text: Result<String, _> =
                        stream.by_ref().map(|fragment| fragment.map(|it| it.text)).collect();
                    let metrics = stream.metrics();
                    if round > 0 {
                        rates.push(metrics.decode_tokens_per_second());
                    }
                    drafts = (metrics.prompt_tokens, metrics.drafted_tokens, metrics.accepted_tokens);
                    Ok(text?)
                },
            );
            let (plain, drafted) = (texts.next().transpose()?, texts.next().transpose()?);
            assert_eq!(plain, drafted, "{}: drafts changed the text", task.name);
        }
        let [plain, drafted] = rates.map(|mut rates| {
            rates.sort_by(f64::total_cmp);
            rates[rates.len() / 2]
        });
        let (prompt, made, accepted) = drafts;
        let (name, answer, ratio) = (task.name, task.answer.len(), drafted / plain);
        println!(
            "| {name} | {prompt} | {answer} | {plain:.1} | {drafted:.1} | {ratio:.2} | {made} | {accepted} |"
        );
    }
    Ok(())
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
    let source = &include_str!("speculation.rs")[600..2600];
    let prose = include_str!("../../../models/lexicon-qwen3/perplexity.txt");
    let (before, behind) = (&prose[..2000], &prose[2000..6000]);
    // The numbers of a simple generator: ids that have nothing to do with each other.
    let mut state = 1_u64;
    let noise = (0..400).map(|_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32 % model.vocab_size() as u32
    });
    let echo = format!("Repeat this list:\n{json}");
    let edit = format!("Rename `rates` to `speeds` and `drafts` to `guesses`:\n{source}");
    let edited = source.replace("rates", "speeds").replace("drafts", "guesses");
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
struct Reading(Script, usize);

impl MaskSource for Script {
    fn start(&self) -> Box<dyn TokenMask> {
        Box::new(Reading(self.clone(), 0))
    }
}

impl TokenMask for Reading {
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
