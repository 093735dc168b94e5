//! Times what takes long: templates over a conversation, loading a large vocabulary, unlucky texts of a megabyte.
//!
//! `cargo run --release -p brasa-tokenizer --example tokenizer_times -- [templates | load | encode] [SHARE OF A NAME]`
//!
//! Each line holds the least of several runs; the conversation has 100 messages, each text 2^20 bytes.

use std::path::{Path, PathBuf};
use std::time::Instant;

use brasa_formats::{Bytes, Inspection};
use brasa_tokenizer::{AddSpecial, ChatOptions, ChatTemplate, HfFiles, Message, ParseSpecial, Tokenizer};

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let part = arguments.next().unwrap_or_default();
    let name = arguments.next().unwrap_or_default();
    if part.is_empty() || part == "templates" {
        templates(&name)?;
    }
    if part.is_empty() || part == "load" {
        load()?;
    }
    if part.is_empty() || part == "encode" {
        encode(&name)?;
    }
    Ok(())
}

/// The least time of some runs, in milliseconds.
fn least_ms<T>(runs: usize, mut run: impl FnMut() -> Result<T, Failure>) -> Result<f64, Failure> {
    let mut least = f64::INFINITY;
    for _ in 0..runs {
        let start = Instant::now();
        std::hint::black_box(run()?);
        least = least.min(start.elapsed().as_secs_f64() * 1e3);
    }
    Ok(least)
}

fn sorted(folder: &Path, suffix: &str) -> Result<Vec<PathBuf>, Failure> {
    let mut paths =
        std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    paths.retain(|path| path.to_string_lossy().ends_with(suffix));
    paths.sort();
    Ok(paths)
}

fn templates(name: &str) -> Result<(), Failure> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/chat/templates");
    let messages: Vec<Message> = (0..100)
        .map(|index| {
            let role = if index % 2 == 0 { "user" } else { "assistant" };
            Message::new(role, format!("Message {index}: ") + &"some words of a talk, ".repeat(20))
        })
        .collect();
    let (mut compile_sum, mut render_sum) = (0.0, 0.0);
    for path in sorted(&folder, ".jinja")? {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if !stem.contains(name) {
            continue;
        }
        let source = std::fs::read_to_string(&path)?;
        let tokens = [("bos_token", "<s>"), ("eos_token", "</s>")];
        let compile = least_ms(20, || Ok(ChatTemplate::new(&source, tokens)?))?;
        let template = ChatTemplate::new(&source, tokens)?;
        let options = ChatOptions::default();
        let render = least_ms(50, || Ok(template.render(&messages, &options)))?;
        println!("{stem:50} compile {compile:8.3} ms  render {render:8.3} ms");
        compile_sum += compile;
        render_sum += render;
    }
    println!("{:50} compile {compile_sum:8.3} ms  render {render_sum:8.3} ms", "sum");
    Ok(())
}

/// A vocabulary with a million added tokens.
fn load() -> Result<(), Failure> {
    for special in [true, false] {
        let added: Vec<String> = (0..1_000_000)
            .map(|id| format!(r#"{{"id": {}, "content": "<added {id}>", "special": {special}}}"#, id + 1))
            .collect();
        let json = format!(
            r#"{{"version": "1.0", "added_tokens": [{}], "model": {{"type": "BPE", "vocab": {{"a": 0}}, "merges": []}}}}"#,
            added.join(",")
        );
        let files = HfFiles { tokenizer: &json, ..HfFiles::default() };
        let time = least_ms(2, || Ok(Tokenizer::from_json(&files)?))?;
        println!("1,000,000 added tokens, special {special}: {time:10.1} ms");
    }
    Ok(())
}

fn texts() -> Vec<(&'static str, String)> {
    const BYTES: usize = 1 << 20;
    let filled = |unit: &str| unit.repeat(BYTES / unit.len());
    let mut state = 12345_u32;
    let mut random = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 8
    };
    let letters: String = (0..BYTES).map(|_| char::from(b'a' + (random() % 26) as u8)).collect();
    let marks: String =
        (0..BYTES).map(|_| char::from(b"!\"#$%&'()*+,-./:;<=>?@[]^_`{|}~"[random() as usize % 31])).collect();
    let han: String = (0..BYTES / 3).filter_map(|_| char::from_u32(0x4E00 + random() % 0x5000)).collect();
    vec![
        ("prose", filled("The quick brown fox jumps over the lazy dog. ")),
        ("a…", filled("a")),
        ("ab…", filled("ab")),
        ("spaces", filled(" ")),
        ("newlines", filled("\n")),
        ("space newline", filled(" \n")),
        ("digits", filled("1")),
        ("one word", letters),
        ("marks", marks),
        ("equals", filled("=")),
        ("han", han),
        ("emoji", filled("🙂")),
        ("accents", filled("e\u{301}")),
        ("null bytes", filled("\0")),
        ("▁", filled("▁")),
        ("<|", filled("<|")),
        ("<|im_start|>", filled("<|im_start|>")),
        ("<s>", filled("<s>")),
        ("'s", filled("'s")),
    ]
}

fn encode(name: &str) -> Result<(), Failure> {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models");
    let mut tokenizers = Vec::new();
    for folder in ["lexicon-qwen3", "tiny-llama", "tiny-gemma3", "tiny-gemma4"] {
        if folder.contains(name) {
            tokenizers.push((folder.to_owned(), Tokenizer::from_directory(&models.join(folder))?));
        }
    }
    for path in sorted(&models.join("tokenizers"), ".gguf.xz")? {
        let stem = path.file_name().unwrap_or_default().to_string_lossy().replace(".gguf.xz", "");
        if stem.contains(name) {
            let mut unpacked = Vec::new();
            lzma_rs::xz_decompress(&mut std::fs::read(&path)?.as_slice(), &mut unpacked)
                .map_err(|error| format!("{error:?}"))?;
            let bytes: Bytes = unpacked.into();
            tokenizers.push((stem, Tokenizer::from_inspection(&Inspection::of_gguf_bytes(&bytes)?, None)?));
        }
    }
    let texts = texts();
    for (stem, tokenizer) in &tokenizers {
        for (text_name, text) in &texts {
            for parse in [ParseSpecial::No, ParseSpecial::Yes] {
                let time = least_ms(2, || Ok(tokenizer.encode(text, AddSpecial::No, parse)?))?;
                if parse == ParseSpecial::No || text_name.starts_with('<') {
                    println!("{stem:30} {text_name:14} {parse:?} {time:9.1} ms");
                }
            }
        }
    }
    Ok(())
}
