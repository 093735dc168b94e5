//! The models that are broken: the repository's random ones, each of a few dozen kilobytes, with a vocabulary of bytes.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use brasa_fuzz::Rng;
use serde_json::{Value, json};

use crate::mutate::gguf::{self, Gguf};
use crate::mutate::{json as json_text, text};

/// Tokens of the random models.
const VOCABULARY: usize = 160;
const FILE: &str = "model.gguf";
const WEIGHTS: &str = "model.safetensors";
const TEMPLATE: &str = "{%- if tools %}{{ tools | tojson }}{% endif %}{% for message in messages %}{{ '<|s|>' + message['role'] + '\\n' + message['content'] | trim + '<|e|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|s|>assistant\\n' }}{% endif %}";

/// Models in one GGUF file, and where their vocabulary is of SentencePiece's kind.
const GGUF: &[(&str, bool)] = &[
    ("llama31", false),
    ("llama31", true),
    ("qwen3moe", false),
    ("gemma4", true),
    ("gemma3-linear", true),
    ("phi3-longrope", true),
    ("qwen2", false),
    ("mixtral", true),
];

/// Models in folders.
const FOLDERS: &[&str] = &[
    "random/llama31",
    "random/qwen3moe",
    "random/gemma4",
    "random/phi3-longrope",
    "random/mixtral",
    "random/qwen2",
    "random-mlx/llama-biased-tied",
    "random-mlx/gemma2",
];

/// A model as files by name.
#[derive(Clone, Debug)]
pub struct Model {
    pub name: String,
    files: BTreeMap<String, Vec<u8>>,
}

/// All models, from the repository's folder of models.
///
/// # Errors
///
/// The file that cannot be read.
pub fn all(folder: &Path) -> Result<Vec<Model>, String> {
    let read = |path: PathBuf| fs::read(&path).map_err(|error| format!("{}: {error}", path.display()));
    let mut models = Vec::new();
    for (name, pieces) in GGUF {
        let bytes = read(folder.join("random-gguf").join(format!("{name}.gguf")))?;
        let mut file = Gguf::parse(&bytes).ok_or_else(|| format!("{name}.gguf: cannot be taken apart"))?;
        give_vocabulary(&mut file, *pieces);
        let kind = if *pieces { "pieces" } else { "bytes" };
        let files = BTreeMap::from([(FILE.to_owned(), file.bytes())]);
        models.push(Model { name: format!("{name}.gguf of {kind}"), files });
    }
    for name in FOLDERS {
        let mut files = BTreeMap::new();
        for file in ["config.json", WEIGHTS] {
            files.insert(file.to_owned(), read(folder.join(name).join(file))?);
        }
        for (file, value) in tokenizer_files() {
            files.insert(file.to_owned(), value.to_string().into_bytes());
        }
        models.push(Model { name: (*name).to_owned(), files });
    }
    Ok(models)
}

impl Model {
    /// The path that commands are given.
    pub fn path(&self, folder: &Path) -> PathBuf {
        if self.files.contains_key(FILE) { folder.join("model").join(FILE) } else { folder.join("model") }
    }

    /// Writes the files into a new folder in place of `folder`.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        match fs::remove_dir_all(folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let model = folder.join("model");
        fs::create_dir_all(&model)?;
        for (name, bytes) in &self.files {
            fs::write(model.join(name), bytes)?;
        }
        Ok(())
    }

    /// Changes one file. Returns what was done.
    pub fn mutate(&mut self, rng: &mut Rng) -> String {
        let names: Vec<String> = self.files.keys().cloned().collect();
        // The configuration and the tokenizer have more to say than the other files.
        let often = ["config.json", "tokenizer.json"].map(String::from);
        let often = often.iter().filter(|name| names.contains(name));
        let names: Vec<&String> = names.iter().chain(often).collect();
        let name = (*rng.choose(&names)).clone();
        let Some(bytes) = self.files.get_mut(&name) else { return "nothing".into() };
        let what = match name.as_str() {
            FILE => mutate_gguf(bytes, rng),
            WEIGHTS => mutate_safetensors(bytes, rng),
            "tokenizer_config.json" if rng.below(2) == 0 => mutate_template_of(bytes, rng),
            _ if rng.below(12) == 0 => text::bytes(bytes, rng),
            _ if rng.below(30) == 0 => {
                self.files.remove(&name);
                "gone".into()
            }
            _ => {
                let (new, what) = json_text::mutate(bytes, rng);
                *bytes = new;
                what
            }
        };
        format!("{name}: {what}")
    }
}

fn mutate_gguf(bytes: &mut Vec<u8>, rng: &mut Rng) -> String {
    const KEY: &str = "tokenizer.chat_template";
    let Some(mut file) = Gguf::parse(bytes) else { return text::bytes(bytes, rng) };
    let (new, what) = match file.text(KEY) {
        Some(mut template) if rng.below(6) == 0 => {
            let what = text::template(&mut template, rng);
            file.set(KEY, 8, &gguf::string(template.as_bytes()));
            (file.bytes(), what)
        }
        _ => file.mutate(rng),
    };
    *bytes = new;
    what
}

fn mutate_template_of(bytes: &mut Vec<u8>, rng: &mut Rng) -> String {
    let Ok(mut value) = serde_json::from_slice::<Value>(bytes) else { return text::bytes(bytes, rng) };
    let mut template = value["chat_template"].as_str().unwrap_or_default().to_owned();
    let what = text::template(&mut template, rng);
    value["chat_template"] = template.into();
    *bytes = value.to_string().into_bytes();
    what
}

/// Changes the header's length, its JSON, or any byte.
fn mutate_safetensors(bytes: &mut Vec<u8>, rng: &mut Rng) -> String {
    let length = bytes.first_chunk().map_or(0, |length| u64::from_le_bytes(*length) as usize);
    let Some(header) = bytes.get(8..length.saturating_add(8)).map(<[u8]>::to_vec) else {
        return text::bytes(bytes, rng);
    };
    match rng.below(8) {
        0 => text::bytes(bytes, rng),
        1 => {
            let old = length as u64;
            let new = *rng.choose(&[
                0,
                1,
                2,
                old.saturating_sub(1),
                old + 1,
                old * 2,
                100_000_000,
                100_000_001,
                1 << 40,
                u64::MAX,
            ]);
            bytes[..8].copy_from_slice(&new.to_le_bytes());
            format!("header length = {new}")
        }
        _ => {
            let (mut new, what) = json_text::mutate(&header, rng);
            new.resize(new.len().next_multiple_of(8), b' ');
            let data = bytes.split_off(8 + length);
            *bytes = (new.len() as u64).to_le_bytes().to_vec();
            bytes.extend(new);
            bytes.extend(data);
            what
        }
    }
}

/// The tokens: two that mark turns, unknown and padding, printable characters, a few merges, and spare ones.
fn tokens(space: &str) -> Vec<String> {
    let mut tokens: Vec<String> = ["<pad>", "<|s|>", "<|e|>", "<unk>"].map(String::from).to_vec();
    tokens.extend((0x21_u8..0x7f).map(|byte| char::from(byte).to_string()));
    tokens.extend([
        "Ċ".into(),
        space.to_owned(),
        "ab".into(),
        format!("{space}c"),
        "ef".into(),
        format!("{space}ab"),
    ]);
    while tokens.len() < VOCABULARY {
        tokens.push(format!("[unused{}]", tokens.len()));
    }
    tokens
}

fn merges(space: &str) -> Vec<String> {
    vec!["a b".into(), format!("{space} c"), "e f".into(), format!("{space} ab")]
}

/// Puts a vocabulary into a GGUF file: of bytes with merges, or of pieces with scores.
fn give_vocabulary(file: &mut Gguf, pieces: bool) {
    for key in ["eot", "eom", "unknown", "seperator", "padding", "cls", "mask"] {
        file.remove(&format!("tokenizer.ggml.{key}_token_id"));
    }
    let space = if pieces { "▁" } else { "Ġ" };
    let mut names = tokens(space);
    let mut kinds: Vec<i32> = (0..VOCABULARY).map(|id| if id < 4 { 3 } else { 1 }).collect();
    if pieces {
        // A SentencePiece vocabulary spells unknown characters as bytes.
        kinds[3] = 2;
        let line = names.iter().position(|name| name == "Ċ").unwrap_or(0);
        names[line] = "<0x0A>".into();
        kinds[line] = 6;
    }
    file.set("tokenizer.ggml.model", 8, &gguf::string(if pieces { b"llama" } else { b"gpt2" }));
    file.set("tokenizer.ggml.pre", 8, &gguf::string(if pieces { b"default" } else { b"qwen2" }));
    file.set("tokenizer.ggml.tokens", 9, &gguf::strings(&names));
    file.set("tokenizer.ggml.token_type", 9, &gguf::numbers(5, kinds.into_iter().map(i32::to_le_bytes)));
    if pieces {
        let scores = (0..VOCABULARY).map(|id| (-(id as f32)).to_le_bytes());
        file.set("tokenizer.ggml.scores", 9, &gguf::numbers(6, scores));
        file.set("tokenizer.ggml.unknown_token_id", 4, &3_u32.to_le_bytes());
    } else {
        file.set("tokenizer.ggml.merges", 9, &gguf::strings(&merges(space)));
    }
    for (key, id) in [("bos", 1_u32), ("eos", 2), ("padding", 0)] {
        file.set(&format!("tokenizer.ggml.{key}_token_id"), 4, &id.to_le_bytes());
    }
    file.set("tokenizer.ggml.add_bos_token", 7, &[0]);
    file.set("tokenizer.chat_template", 8, &gguf::string(TEMPLATE.as_bytes()));
}

/// The small files of a folder, with the vocabulary of bytes.
fn tokenizer_files() -> [(&'static str, Value); 3] {
    let names = tokens("Ġ");
    let vocabulary: serde_json::Map<String, Value> =
        names.iter().enumerate().skip(4).map(|(id, name)| (name.clone(), id.into())).collect();
    let added: Vec<Value> = (0..4)
        .map(|id| {
            json!({
                "id": id, "content": names[id], "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true,
            })
        })
        .collect();
    let bytes =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    // Qwen2's way of cutting text, which has a name in GGUF.
    let cut = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": cut}, "behavior": "Isolated", "invert": false},
            bytes,
        ]},
        "post_processor": bytes, "decoder": bytes,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocabulary, "merges": merges("Ġ"),
        },
    });
    let config = json!({
        "add_bos_token": false, "add_prefix_space": false, "bos_token": null, "eos_token": "<|e|>",
        "pad_token": "<pad>", "unk_token": null, "model_max_length": 64, "clean_up_tokenization_spaces": false,
        "tokenizer_class": "Qwen2Tokenizer", "chat_template": TEMPLATE,
        "added_tokens_decoder": {"1": added[1], "2": added[2]},
    });
    let generation = json!({
        "eos_token_id": [2], "do_sample": true, "temperature": 0.7, "top_k": 20, "top_p": 0.8, "min_p": 0.01,
        "repetition_penalty": 1.05,
    });
    [("tokenizer.json", tokenizer), ("tokenizer_config.json", config), ("generation_config.json", generation)]
}
