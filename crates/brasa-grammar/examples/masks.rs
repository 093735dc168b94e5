//! Times masks, and writes documents that were drawn at random under the masks of JSON schemas.
//!
//! `cargo run --release -p brasa-grammar --example masks -- VOCABULARY SCHEMAS [DOCUMENTS [WALKS]]`
//!
//! VOCABULARY is a file of `models/tokenizers` (`….gguf.xz`) or a folder with a tokenizer, SCHEMAS a folder of schemas. Each schema gives
//! WALKS documents, three if nothing else is said. A walk draws tokens evenly for a while, and then takes the shortest way to the end. The time of a
//! mask is the time from a token to the mask behind the token, with a thread's waking. DOCUMENTS has a line of JSON for each schema;
//! `tools/schema_corpus.py` validates these documents with an independent validator.
//!
//! A file may also have the form of MaskBench's cases: `{"schema": …, "tests": [{"data": …}, …]}`. The line of such a file says of each instance
//! whether the masks allow it.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use brasa_engine::MaskSource;
use brasa_formats::{Bytes, Inspection};
use brasa_grammar::{Grammar, Grammars, Literals};
use brasa_graph::sampling::TokenMask;
use brasa_tokenizer::{AddSpecial, ParseSpecial, Tokenizer};
use serde_json::{Value, json};

type Failure = Box<dyn std::error::Error>;

/// Documents of each schema, if nothing else is said.
const WALKS: u64 = 3;
/// Tokens that are drawn evenly.
const FREE_TOKENS: usize = 96;
/// Tokens after which a walk is given up.
const MOST_TOKENS: usize = 6_000;

fn main() -> Result<(), Failure> {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [vocabulary, folder, rest @ ..] = arguments.as_slice() else {
        return Err("usage: masks VOCABULARY SCHEMAS [DOCUMENTS [WALKS]]".into());
    };
    let walks = match rest {
        [_, walks, ..] => walks.to_string_lossy().parse()?,
        _ => WALKS,
    };
    let tokenizer = Arc::new(tokenizer(vocabulary)?);
    let vocab_size = tokenizer.vocabulary().len();
    let grammars = Grammars::new(Arc::clone(&tokenizer), vocab_size);
    let start = Instant::now();
    grammars.compile(&Grammar::AnyJson)?;
    println!("{vocab_size} tokens; the first grammar {:.0} ms", start.elapsed().as_secs_f64() * 1e3);
    let walker = Walker::new(tokenizer, vocab_size);

    let mut paths =
        std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    let (mut compile_us, mut mask_us, mut lines, mut refused) = (Vec::new(), Vec::new(), String::new(), 0);
    for (number, path) in paths.iter().enumerate() {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let bytes = std::fs::read(path)?;
        let (mut schema, instances) = case(serde_json::from_slice(&bytes)?);
        Literals::of(&bytes).put_back(&mut schema);
        let start = Instant::now();
        let compiled = grammars.compile(&Grammar::JsonSchema(schema));
        let elapsed_us = micros(start);
        let line = match compiled {
            Err(error) => {
                refused += 1;
                json!({"schema": name, "error": error.to_string()})
            }
            Ok(compiled) => {
                compile_us.push((elapsed_us, name.clone()));
                let (mut documents, mut why, mut unfinished) = (Vec::new(), String::new(), 0);
                for walk in 0..walks {
                    let mut times = Vec::new();
                    let walked = walker.walk(compiled.start(), (number as u64) << 8 | walk, &mut times);
                    mask_us.extend(times.into_iter().map(|time| (time, name.clone())));
                    match walked {
                        Ok(text) => documents.push(text),
                        Err(error) => {
                            unfinished += 1;
                            why = error.to_string();
                        }
                    }
                }
                let allowed: Vec<bool> = instances
                    .iter()
                    .map(|value| walker.allows(compiled.start(), value))
                    .collect::<Result<_, _>>()?;
                json!({"schema": name, "documents": documents, "unfinished": unfinished, "why": why,
                    "allowed": allowed, "warnings": compiled.warnings()})
            }
        };
        writeln!(lines, "{line}")?;
    }
    if let [documents, ..] = rest {
        std::fs::write(documents, lines)?;
    }
    println!("{} schemas, {refused} refused", paths.len());
    report("compile", compile_us);
    report("mask", mask_us);
    Ok(())
}

/// The schema and the instances of a file.
fn case(mut file: Value) -> (Value, Vec<Value>) {
    match (file.get("schema"), file.get("tests")) {
        (Some(_), Some(Value::Array(tests))) => {
            let instances = tests.iter().map(|test| test["data"].clone()).collect();
            (file["schema"].take(), instances)
        }
        _ => (file, Vec::new()),
    }
}

fn tokenizer(path: &Path) -> Result<Tokenizer, Failure> {
    if path.is_dir() {
        return Ok(Tokenizer::from_directory(path)?);
    }
    let packed = std::fs::read(path)?;
    let mut unpacked = Vec::new();
    lzma_rs::xz_decompress(&mut packed.as_slice(), &mut unpacked).map_err(|error| format!("{error:?}"))?;
    let bytes: Bytes = unpacked.into();
    Ok(Tokenizer::from_inspection(&Inspection::of_gguf_bytes(&bytes)?, None)?)
}

fn micros(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e6
}

fn report(what: &str, mut times_us: Vec<(f64, String)>) {
    times_us.sort_by(|one, other| one.0.total_cmp(&other.0));
    let Some((worst, name)) = times_us.last() else { return };
    let at = |share: f64| times_us[((times_us.len() - 1) as f64 * share) as usize].0;
    let mean = times_us.iter().map(|time| time.0).sum::<f64>() / times_us.len() as f64;
    println!(
        "{what}: {} times, mean {mean:.0} µs, p50 {:.0} µs, p90 {:.0} µs, p99 {:.0} µs, worst {worst:.0} µs ({name})",
        times_us.len(),
        at(0.5),
        at(0.9),
        at(0.99)
    );
}

/// Draws texts under masks.
struct Walker {
    tokenizer: Arc<Tokenizer>,
    vocab_size: usize,
    ends: Vec<u32>,
    /// The tokens of single bytes.
    bytes: HashMap<u8, u32>,
}

impl Walker {
    fn new(tokenizer: Arc<Tokenizer>, vocab_size: usize) -> Self {
        let ends = tokenizer.special_tokens().end_of_generation.clone();
        let single = |id: u32| match tokenizer.piece_bytes(id).ok()?.as_ref() {
            [byte] => Some((*byte, id)),
            _ => None,
        };
        let bytes = (0..vocab_size as u32).rev().filter_map(single).collect();
        Self { tokenizer, vocab_size, ends, bytes }
    }

    /// True if masks allow a value. A mask that cannot be made allows none.
    fn allows(&self, mut mask: Box<dyn TokenMask>, value: &Value) -> Result<bool, Failure> {
        let mut words = vec![0; self.vocab_size.div_ceil(32)];
        let has = |words: &[u32], id: u32| words[id as usize / 32] >> (id % 32) & 1 == 1;
        for id in self.tokenizer.encode(&value.to_string(), AddSpecial::No, ParseSpecial::No)? {
            if mask.fill(&[], &mut words).is_err() || !has(&words, id) {
                return Ok(false);
            }
            mask.accept(id);
        }
        Ok(mask.fill(&[], &mut words).is_ok() && self.ends.iter().any(|&id| has(&words, id)))
    }

    fn walk(
        &self,
        mut mask: Box<dyn TokenMask>,
        seed: u64,
        times_us: &mut Vec<f64>,
    ) -> Result<String, Failure> {
        let mut words = vec![0; self.vocab_size.div_ceil(32)];
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut text: Vec<u8> = Vec::new();
        mask.fill(&[], &mut words)?;
        for count in 0..MOST_TOKENS {
            let has = |id: u32| words[id as usize / 32] >> (id % 32) & 1 == 1;
            let in_string = ends_in_string(&text);
            let shortest = || {
                // Inside a text, everything that is not the end of the text would only make it longer.
                let wanted: &[u8] = if in_string { b"\"" } else { b"}]:ntf,0123456789\"[{ " };
                wanted.iter().filter_map(|byte| self.bytes.get(byte).copied()).find(|&id| has(id))
            };
            let dice = next(&mut random);
            let end = self.ends.iter().copied().find(|&id| has(id));
            // A value without a type is an object, which has the most parts; texts are mostly short.
            let token = match (end, count) {
                (Some(_), count) if count >= FREE_TOKENS || dice.is_multiple_of(4) => break,
                (_, 0) if self.bytes.get(&b'{').is_some_and(|&id| has(id)) => self.bytes[&b'{'],
                (_, count) if count >= FREE_TOKENS || (in_string && dice.is_multiple_of(4)) => {
                    shortest().or_else(|| any(&words, &mut random)).ok_or("no token may come")?
                }
                _ => any(&words, &mut random).ok_or("no token may come")?,
            };
            if self.ends.contains(&token) {
                break;
            }
            text.extend_from_slice(&self.tokenizer.piece_bytes(token)?);
            if count + 1 == MOST_TOKENS {
                return Err(format!("no end within {MOST_TOKENS} tokens").into());
            }
            let start = Instant::now();
            mask.accept(token);
            mask.fill(&[], &mut words)?;
            times_us.push(micros(start));
        }
        Ok(String::from_utf8(text)?)
    }
}

/// True if a beginning of a JSON text ends inside a text.
fn ends_in_string(text: &[u8]) -> bool {
    let (mut inside, mut escaped) = (false, false);
    for &byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if inside => escaped = true,
            b'"' => inside = !inside,
            _ => {}
        }
    }
    inside
}

/// One of the tokens that a mask allows, each as likely as another.
fn any(words: &[u32], random: &mut u64) -> Option<u32> {
    let count: u64 = words.iter().map(|word| u64::from(word.count_ones())).sum();
    let mut left = next(random).checked_rem(count)?;
    for (at, &word) in words.iter().enumerate() {
        let here = u64::from(word.count_ones());
        if left < here {
            return (0..32)
                .filter(|bit| word >> bit & 1 == 1)
                .nth(left as usize)
                .map(|bit| at as u32 * 32 + bit);
        }
        left -= here;
    }
    None
}

/// Marsaglia's xorshift64*.
fn next(state: &mut u64) -> u64 {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
}
