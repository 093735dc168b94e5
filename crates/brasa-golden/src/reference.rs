//! Results of transformers for a trained checkpoint: `reference.json` and `reference_logits.npz`.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::npz;

/// Prompts and answers of one checkpoint.
pub struct Reference {
    /// All prompts.
    pub prompts: Vec<Prompt>,
}

/// One prompt, and its continuation in f32.
pub struct Prompt {
    /// Name of the prompt.
    pub name: String,
    /// Token ids, special ones included.
    pub ids: Vec<u32>,
    /// Mean of −ln p over all ids but the first.
    pub mean_nll: f64,
    /// The token with the largest logit after the prompt.
    pub best: u32,
    /// Argmax continuation, not stopped at an end token.
    pub greedy_ids: Vec<u32>,
    /// Gap between the best and the second logit at each step.
    pub greedy_margins: Vec<f32>,
    /// Logits after the last token.
    pub last: Vec<f32>,
    /// Logits after every token, for some prompts.
    pub all: Option<Vec<Vec<f32>>>,
}

impl Reference {
    /// Reads both files of the checkpoint in `folder`.
    pub fn read(folder: &Path) -> Self {
        let text = std::fs::read_to_string(folder.join("reference.json")).expect("golden values");
        let reference: Value = serde_json::from_str(&text).expect("JSON");
        let mut arrays = npz::read(&folder.join("reference_logits.npz"));
        let prompts = reference["prompts"].as_array().expect("prompts");
        Self { prompts: prompts.iter().map(|prompt| Prompt::of(prompt, &mut arrays)).collect() }
    }
}

impl Prompt {
    fn of(prompt: &Value, arrays: &mut BTreeMap<String, Vec<Vec<f32>>>) -> Self {
        let numbers = |key: &str| -> Vec<f64> {
            let array = prompt[key].as_array().expect("an array");
            array.iter().map(|number| number.as_f64().expect("a number")).collect()
        };
        let ids = |key| numbers(key).into_iter().map(|id| id as u32).collect();
        let name = prompt["name"].as_str().expect("a name").to_owned();
        Self {
            ids: ids("input_ids"),
            mean_nll: prompt["mean_nll"].as_f64().expect("a number"),
            best: prompt["top8"][0][0].as_u64().expect("an id") as u32,
            greedy_ids: ids("greedy_ids"),
            greedy_margins: numbers("greedy_margins").into_iter().map(|margin| margin as f32).collect(),
            last: arrays.remove(&format!("{name}:last")).expect("the last row").swap_remove(0),
            all: arrays.remove(&format!("{name}:all")),
            name,
        }
    }
}
