//! Guesses on trained models: what a grammar forces, and what a draft model says, change no text; and draft models that do not fit
//! are refused.

use std::sync::Arc;

use brasa::{GenerateOptions, Grammar, LoadOptions, MaskSource, Metrics, Model, SamplingParams, Speculation};
use brasa_golden::folder;
use serde_json::json;

fn load(name: &str, draft: Option<&str>) -> Result<Model, brasa::Error> {
    let options = LoadOptions {
        context: Some(1024),
        threads: Some(1),
        deterministic: true,
        draft_model: draft.map(folder),
        ..LoadOptions::default()
    };
    Model::load(folder(name), &options)
}

fn options(
    temperature: f32,
    mask: Option<&Arc<dyn MaskSource>>,
    speculation: Speculation,
) -> GenerateOptions {
    let repeat_penalty = if temperature > 0.5 { 1.1 } else { 1.0 };
    GenerateOptions {
        sampling: SamplingParams { temperature, repeat_penalty, seed: 7, ..SamplingParams::default() },
        max_tokens: Some(80),
        mask: mask.cloned(),
        speculation: Some(speculation),
        ..GenerateOptions::default()
    }
}

fn text(model: &Model, prompt: &str, options: &GenerateOptions) -> (String, Metrics) {
    let mut stream = model.generate(prompt, options).unwrap();
    let text = stream.by_ref().map(|fragment| fragment.unwrap().text).collect();
    (text, *stream.metrics())
}

/// A schema with long names, so that much of an answer is forced.
fn schema(model: &Model) -> Arc<dyn MaskSource> {
    let schema = json!({
        "type": "object",
        "properties": {
            "headword": {"type": "string", "maxLength": 12},
            "part_of_speech": {"enum": ["noun", "verb", "adjective"]},
            "number_of_meanings": {"type": "integer", "minimum": 0, "maximum": 99},
            "etymology_is_known": {"type": "boolean"},
        },
        "required": ["headword", "part_of_speech", "number_of_meanings", "etymology_is_known"],
        "additionalProperties": false,
    });
    model.grammar(&Grammar::JsonSchema(schema)).unwrap()
}

#[test]
fn forced_text_comes_in_fewer_steps_and_is_the_same() {
    let model = load("lexicon-qwen3/lexicon-qwen3-Q6_K.gguf", None).unwrap();
    let mask = schema(&model);
    let steps = || {
        model.engine().with(|_| ()).unwrap();
        model.engine().stats().steps
    };
    let always = Speculation { adaptive: false, ..Speculation::FORCED };
    for temperature in [0.0, 0.9] {
        let before = steps();
        let plain = text(&model, "A word: ", &options(temperature, Some(&mask), Speculation::OFF));
        let between = steps();
        let forced = text(&model, "A word: ", &options(temperature, Some(&mask), always));
        let behind = steps();
        assert_eq!(plain.0, forced.0);
        let (plain_steps, forced_steps) = (between - before, behind - between);
        assert_eq!(plain_steps - forced_steps, forced.1.accepted_tokens as u64);
        // Names are forced; what stands between the parts is free.
        assert!(forced.1.accepted_tokens > 15, "{forced_steps} steps of {plain_steps}: {forced:?}");
        assert!(forced.1.accepted_tokens * 10 >= forced.1.drafted_tokens * 9, "{:?}", forced.1);
        assert_eq!(
            text(&model, "A word: ", &options(temperature, Some(&mask), Speculation::default())).0,
            plain.0
        );
    }
}

#[test]
fn a_draft_model_guesses_and_the_text_is_the_same() {
    let eager = Speculation { adaptive: false, ..Speculation::MODEL };
    for (name, draft, least) in [("tiny-qwen2", "tiny-qwen2", 0.9), ("tiny-qwen3moe", "tiny-qwen2", 0.1)] {
        let plain = load(name, None).unwrap();
        let drafting = load(name, Some(draft)).unwrap();
        assert!(drafting.draft_model().unwrap().weight_bytes > 0 && plain.draft_model().is_none());
        let mask = schema(&plain);
        let (mut drafted, mut accepted) = (0, 0);
        for temperature in [0.0, 0.4, 1.0] {
            for mask in [None, Some(&mask)] {
                let prompt = "In the beginning God created";
                let expected = text(&plain, prompt, &options(temperature, mask, Speculation::OFF)).0;
                for speculation in [eager, Speculation::LOOKUP] {
                    let (found, metrics) = text(&drafting, prompt, &options(temperature, mask, speculation));
                    assert_eq!(found, expected, "{name} with {draft} at {temperature}");
                    if speculation == eager && mask.is_none() {
                        drafted += metrics.drafted_tokens;
                        accepted += metrics.accepted_tokens;
                    }
                }
            }
        }
        assert!(accepted as f64 >= drafted as f64 * least && drafted > 0, "{accepted} of {drafted}");
        assert!(drafting.engine().stats().draft_model_bytes > 0);
    }
}

#[test]
fn a_draft_model_with_other_tokens_is_refused() {
    let error = |draft: &str| load("tiny-qwen2", Some(draft)).unwrap_err().to_string();
    let other = error("lexicon-qwen3/lexicon-qwen3-Q6_K.gguf");
    assert!(other.contains("lexicon-qwen3") && other.contains("expected"), "{other}");
    assert!(other.contains("hint: a draft model must have the model's tokens"), "{other}");
    let llama = error("tiny-llama");
    assert!(llama.contains("tiny-llama") && llama.contains("expected"), "{llama}");
    let missing = load("tiny-qwen2", Some("no-such-model.gguf")).unwrap_err().to_string();
    assert!(missing.contains("no-such-model.gguf"), "{missing}");
    println!("{other}\n{llama}\n{missing}");
}
