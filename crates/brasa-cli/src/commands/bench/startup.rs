//! `brasa bench --startup`: the time from starting the program to the first byte of its answer.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::time::Instant;

use brasa::statistics::{median, spread};
use brasa::tokenizer::{AddSpecial, ParseSpecial, Tokenizer};
use serde_json::{Map, Value, json};

use crate::args::{BenchArguments, TableFormat};
use crate::failure::Failure;
use crate::{bundled, interrupt, output};

/// Number of tokens of the prompt.
const PROMPT_TOKENS: usize = 16;
const WORDS: &str =
    "the river runs past the old stone house and on to the sea where small boats wait for wind";

/// Starts this program repeatedly with a short prompt, and measures from outside.
pub fn startup(arguments: &BenchArguments) -> Result<(), Failure> {
    let prompt = prompt(arguments)?;
    let (mut first_bytes, mut parts) = (Vec::new(), Vec::<Vec<(String, f64)>>::new());
    // The first run fetches the file into the page cache, and does not count.
    for repetition in 0..=arguments.repetitions {
        interrupt::check()?;
        let (seconds, found) = once(arguments, &prompt)?;
        if repetition > 0 {
            first_bytes.push(seconds * 1e3);
            parts.push(found);
        }
    }
    let names: Vec<String> =
        parts.first().map_or(Vec::new(), |parts| parts.iter().map(|(name, _)| name.clone()).collect());
    let samples = |name: &str| -> Vec<f64> {
        parts.iter().flatten().filter(|(other, _)| other == name).map(|(_, ms)| *ms).collect()
    };
    if arguments.output == TableFormat::Json {
        let mut object = Map::new();
        object.insert("model".into(), arguments.load.source.name().into());
        object.insert("prompt_tokens".into(), PROMPT_TOKENS.into());
        object
            .insert("first_byte_ms".into(), json!({"median": median(&first_bytes), "samples": first_bytes}));
        for name in &names {
            let samples = samples(name);
            object.insert(format!("{name}_ms"), json!({"median": median(&samples), "samples": samples}));
        }
        return output::line(&Value::from(object).to_string());
    }
    output::line(&format!(
        "from exec to the first byte of the answer to {PROMPT_TOKENS} tokens: {:.1} ms (median of {}, spread {:.1} %)",
        median(&first_bytes),
        first_bytes.len(),
        spread(&first_bytes) * 100.0
    ))?;
    for name in &names {
        output::line(&format!("{name:>12} {:>8.1} ms", median(&samples(name))))?;
    }
    output::line("the tokenizer is made while device, graph and weights are")
}

/// A text of [`PROMPT_TOKENS`] tokens for this model.
fn prompt(arguments: &BenchArguments) -> Result<String, Failure> {
    let tokenizer: Tokenizer = match &arguments.load.source.model {
        Some(path) => brasa::open_tokenizer(path, arguments.load.setup.pre.as_deref())?,
        None => brasa::open_tokenizer_bytes(bundled::MODEL, arguments.load.setup.pre.as_deref())?,
    };
    let encode = |text: &str| {
        let ids = tokenizer.encode(text, AddSpecial::AsModel, ParseSpecial::No);
        ids.map(|ids| ids.len()).map_err(brasa::Error::from)
    };
    let mut text = String::new();
    for letter in WORDS.chars().cycle().take(WORDS.len() * 4) {
        text.push(letter);
        if encode(&text)? > PROMPT_TOKENS {
            text.pop();
            return Ok(text);
        }
    }
    Ok(text)
}

/// Starts the program once. Returns the seconds to the first byte, and the times of parts in milliseconds that the program
/// reports.
fn once(arguments: &BenchArguments, prompt: &str) -> Result<(f64, Vec<(String, f64)>), Failure> {
    let load = &arguments.load;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["generate", "-n", "8", "--temp", "0", "--ignore-eos", "--verbose", "-p", prompt]);
    if let Some(model) = &load.source.model {
        command.arg("-m").arg(model);
    }
    for (flag, value) in
        [("-c", load.setup.context), ("-t", load.setup.threads), ("--ubatch-size", load.setup.chunk)]
    {
        if let Some(value) = value {
            command.args([flag, &value.to_string()]);
        }
    }
    if let Some(pre) = &load.setup.pre {
        command.args(["--pre", pre]);
    }
    if let Some(isa) = arguments.isa.first() {
        command.env("BRASA_ISA", isa);
    }
    let started = Instant::now();
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut first = [0];
    let mut seconds = None;
    if let Some(stdout) = &mut child.stdout {
        if stdout.read_exact(&mut first).is_ok() {
            seconds = Some(started.elapsed().as_secs_f64());
        }
        std::io::copy(stdout, &mut std::io::sink())?;
    }
    let mut parts = Vec::new();
    let mut said = String::new();
    for line in child.stderr.take().map(BufReader::new).into_iter().flat_map(BufRead::lines) {
        let line = line?;
        match line.strip_prefix(crate::load::PARTS) {
            Some(list) => parts = list.split(", ").filter_map(part).collect(),
            None => said = line,
        }
    }
    let status = child.wait()?;
    match seconds {
        Some(seconds) if status.success() => Ok((seconds, parts)),
        _ => Err(Failure::Failed(format!("the program that was to answer ended with {status}: {said}"))),
    }
}

/// Parses a part's time, such as `weights 81.2 ms`.
fn part(text: &str) -> Option<(String, f64)> {
    let (name, milliseconds) = text.strip_suffix(" ms")?.rsplit_once(' ')?;
    Some((name.trim().to_owned(), milliseconds.parse().ok()?))
}
