//! Options of llama.cpp, MLX-LM and Ollama, translated to Brasa's before parsing.
//!
//! Short options may have several letters (`-ngl 99`), and a value may begin with `-`. Words after `--`, and values, are not read
//! as options.

pub mod environment;
mod llama_bench;
mod llama_cpp;
mod llama_others;
mod llama_server;
mod mlx_convert;
mod others;
mod own;
#[cfg(test)]
mod page;
mod row;
#[cfg(test)]
mod tests;
mod trainers;
mod whisper_cpp;

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};

use clap::{Command, CommandFactory};
use llama_bench::LLAMA_BENCH;
use llama_cpp::LLAMA_CPP;
use llama_others::{LLAMA_EMBEDDING, LLAMA_PERPLEXITY};
use llama_server::LLAMA_SERVER;
use mlx_convert::MLX_CONVERT;
use others::{COMMANDS, MLX_LM, MLX_SERVER};
use own::Options;
use row::{Outcome, Row, Value};
use trainers::TRAINERS;
use whisper_cpp::WHISPER_CPP;

use crate::args::Arguments;
use crate::failure::Failure;

/// Translated arguments for the parser, and notes for the user.
#[derive(Debug)]
pub struct Translated {
    /// The arguments, the program's name first.
    pub arguments: Vec<OsString>,
    /// Notes, one line each.
    pub notes: Vec<String>,
}

/// Translates other programs' options among the arguments to Brasa's own.
///
/// # Errors
///
/// [`Failure::Usage`] for an option that Brasa does not support; the message names a replacement.
pub fn translate(arguments: impl Iterator<Item = OsString>) -> Result<Translated, Failure> {
    let root = Arguments::command();
    let mut words = arguments;
    let mut out: Vec<OsString> = words.next().into_iter().collect();
    let mut rest: Vec<OsString> = words.collect();
    rest.reverse();
    // Colours are the only option that may stand before a command.
    let mut front = Translation::new(&root, None);
    while let Some(word) = rest.pop_if(|word| names_color(word)) {
        front.word(word, &mut rest)?;
    }
    let named = rest.last().and_then(|word| word.to_str()).filter(|word| Options::is_command(&root, word));
    let command = named.map(str::to_owned);
    if command.is_some() {
        out.extend(rest.pop());
    } else if let Some(word) = rest.last().and_then(|word| word.to_str()) {
        answer_stranger(word)?;
    }
    let mut translation = Translation { out: front.out, ..Translation::new(&root, command.as_deref()) };
    while let Some(word) = rest.pop() {
        if word == "--" {
            translation.out.push(word);
            translation.out.extend(rest.drain(..).rev());
            break;
        }
        translation.word(word, &mut rest)?;
    }
    if command.is_some() && translation.out.iter().any(|word| word == "--version") {
        // Commands have the program's version.
        out.truncate(1);
        out.push("--version".into());
        return Ok(Translated { arguments: out, notes: translation.notes });
    }
    translation.name_models()?;
    Ok(translation.finish(out, command.is_some()))
}

/// Refuses a first word that is a command of another program.
fn answer_stranger(word: &str) -> Result<(), Failure> {
    if let Some((_, answer)) = COMMANDS.iter().find(|(name, _)| *name == word) {
        return Err(Failure::Usage(format!("{word} is no command of Brasa: {answer}")));
    }
    if !word.starts_with('-') && (word.contains('/') || std::path::Path::new(word).exists()) {
        return Err(Failure::Usage(format!("{word} is no command of Brasa\nhint: -m {word} names a model")));
    }
    Ok(())
}

/// The words of one command during translation.
struct Translation {
    own: Options,
    rows: HashMap<&'static str, &'static Row>,
    out: Vec<OsString>,
    notes: Vec<String>,
    /// The command that an option implies, e.g. `generate`.
    command: Option<&'static str>,
    has_prompt: bool,
    /// Words that name models.
    models: Vec<OsString>,
    /// The note for arguments that request a single answer but hold no prompt.
    single_turn: Option<String>,
}

impl Translation {
    fn new(root: &Command, command: Option<&str>) -> Self {
        let own = Options::of(root, command);
        let rows = rows(command, &own);
        Self {
            own,
            rows,
            out: Vec::new(),
            notes: Vec::new(),
            command: None,
            has_prompt: false,
            models: Vec::new(),
            single_turn: None,
        }
    }

    /// Processes one word, and its value from `rest`, where the last word is the next one.
    fn word(&mut self, word: OsString, rest: &mut Vec<OsString>) -> Result<(), Failure> {
        let Some(text) = word.to_str().filter(|text| text.len() > 1 && text.starts_with('-')) else {
            if self.own.takes_model(self.models.len()) && word != "-" {
                self.models.push(word);
            } else {
                self.out.push(word);
            }
            return Ok(());
        };
        let (name, inline) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (text, None),
        };
        // llama.cpp reads `--top_k` as `--top-k`.
        let name = if name.starts_with("--") { name.replace('_', "-") } else { name.to_owned() };
        if let Some(&row) = self.rows.get(name.as_str()) {
            let inline = inline.map(OsString::from);
            return self.habit(&name, row, inline, rest);
        }
        if name.starts_with("--") {
            match inline {
                Some(value) => self.own_option(&name, Some(value.into())),
                None if self.own.takes_value(&name) => {
                    let value = rest.pop();
                    self.own_option(&name, value);
                }
                None => self.own_option(&name, None),
            }
            return Ok(());
        }
        if text.chars().count() > 2 && !self.own.is_cluster(text) {
            return Err(Failure::Usage(format!(
                "unexpected argument '{text}'\nhint: `brasa --help` lists the options"
            )));
        }
        // A value that begins with `-` reaches the parser as part of its option.
        match self.own.last_of_cluster(text).map(str::to_owned) {
            Some(long) if rest.last().is_some_and(|next| begins_with_hyphen(next)) => {
                let flags = &text[..text.len() - 1];
                if flags.len() > 1 {
                    self.out.push(flags.into());
                }
                let value = rest.pop();
                self.own_option(&long, value);
            }
            last => {
                self.has_prompt |= self.own.names_prompt(text);
                self.out.push(word);
                if last.is_some() {
                    self.out.extend(rest.pop());
                }
            }
        }
        Ok(())
    }

    /// Adds one of Brasa's own options.
    fn own_option(&mut self, name: &str, value: Option<OsString>) {
        self.has_prompt |= matches!(name, "--prompt" | "--file");
        match value {
            Some(value) if begins_with_hyphen(&value) || value.is_empty() => {
                let mut joined = OsString::from(name);
                joined.push("=");
                joined.push(value);
                self.out.push(joined);
            }
            Some(value) => self.out.extend([name.into(), value]),
            None => self.out.push(name.into()),
        }
    }

    /// Processes an option that is in a table.
    fn habit(
        &mut self,
        name: &str,
        row: &'static Row,
        inline: Option<OsString>,
        rest: &mut Vec<OsString>,
    ) -> Result<(), Failure> {
        if let Outcome::Answered(answer) = row.outcome {
            return Err(refusal(name, None, answer));
        }
        let missing = |value: &str| Failure::Usage(format!("{name} needs a value: {name} {value}"));
        let next_is = |words: &[&str], rest: &[OsString]| {
            let next = rest.last().and_then(|word| word.to_str());
            next.is_some_and(|next| words.iter().any(|word| word.eq_ignore_ascii_case(next)))
        };
        let value = match row.value {
            Value::None => inline,
            Value::One(value) => Some(inline.or_else(|| rest.pop()).ok_or_else(|| missing(value))?),
            Value::Many(value) => {
                let is_list = inline.is_none();
                let mut all = inline.or_else(|| rest.pop()).ok_or_else(|| missing(value))?;
                while let Some(next) = rest.pop_if(|next| is_list && is_bare(next)) {
                    all.push(" ");
                    all.push(next);
                }
                Some(all)
            }
            Value::Maybe(words) => inline.or_else(|| if next_is(words, rest) { rest.pop() } else { None }),
            Value::Two(first, second) => {
                inline.or_else(|| rest.pop()).ok_or_else(|| missing(first))?;
                Some(rest.pop().ok_or_else(|| missing(second))?)
            }
        };
        let shown = value.as_deref().unwrap_or_default().to_string_lossy().into_owned();
        let full = if shown.is_empty() { name.to_owned() } else { format!("{name} {shown}") };
        match row.outcome.for_value(&shown) {
            Outcome::Ours(long) => self.own_option(long, value),
            Outcome::Becomes(words) => self.out.extend(words.iter().map(OsString::from)),
            Outcome::Made(read, _) => {
                let words = read(&shown).map_err(|wrong| Failure::Usage(format!("{full}: {wrong}")))?;
                self.out.extend(words.into_iter().map(OsString::from));
            }
            Outcome::True(_) => {}
            Outcome::Noted(note) => self.notes.push(format!("{full}: {note}")),
            Outcome::SingleTurn(note) => self.single_turn = Some(format!("{full}: {note}")),
            Outcome::Command(command, _) => self.command = Some(command),
            Outcome::Answered(answer) => return Err(refusal(name, Some(&shown), answer)),
            Outcome::Cases(..) => unreachable!("`for_value` returns no cases"),
        }
        Ok(())
    }

    /// Adds the words that name models as options.
    fn name_models(&mut self) -> Result<(), Failure> {
        let names_model = |word: &OsString| {
            let word = word.to_string_lossy();
            let option = word.split('=').next().unwrap_or_default();
            matches!(option, "--model" | "--hf-repo") || self.own.names_model(&word)
        };
        match self.models.first() {
            Some(first) if !self.own.takes_model(1) && self.out.iter().any(names_model) => {
                Err(Failure::Usage(format!(
                    "{}: an option names the model already\nhint: `-p TEXT` is a prompt",
                    first.to_string_lossy()
                )))
            }
            _ => {
                for model in std::mem::take(&mut self.models) {
                    self.own_option("--model", Some(model));
                }
                Ok(())
            }
        }
    }

    /// The whole command line: `start`, with the program's name and the command if there is one, and the translated words.
    fn finish(self, mut start: Vec<OsString>, has_command: bool) -> Translated {
        let Self { out, mut notes, command, has_prompt, single_turn, own, .. } = self;
        let is_single = single_turn.is_some() && has_prompt;
        if let Some(command) = command.filter(|command| own.is_chat() && !(is_single && *command == "chat")) {
            start.truncate(start.len() - usize::from(has_command));
            start.push(command.into());
        }
        notes.extend(single_turn.filter(|_| !has_prompt));
        start.extend(out);
        Translated { arguments: start, notes }
    }
}

fn refusal(name: &str, value: Option<&str>, answer: &str) -> Failure {
    let value = value.map(|value| format!(" {value}")).unwrap_or_default();
    Failure::Usage(format!("{name}{value} is not supported: {answer}"))
}

/// True for an option that selects when colours are used.
fn names_color(word: &OsStr) -> bool {
    let name = word.to_str().map(|word| word.split('=').next().unwrap_or_default());
    name.is_some_and(|name| matches!(name, "--color" | "--no-color" | "-co"))
}

/// True for a word that is neither an option nor the name of a file.
fn is_bare(word: &OsStr) -> bool {
    let is_path = word.as_encoded_bytes().contains(&b'/') || std::path::Path::new(word).exists();
    !begins_with_hyphen(word) && !is_path
}

fn begins_with_hyphen(word: &OsStr) -> bool {
    word.as_encoded_bytes().first() == Some(&b'-')
}

/// The rows of the tables that apply to a command, by spelling.
fn rows(command: Option<&str>, own: &Options) -> HashMap<&'static str, &'static Row> {
    let special: &[Row] = match command {
        Some("bench") => LLAMA_BENCH,
        Some("embed") => LLAMA_EMBEDDING,
        Some("perplexity") => LLAMA_PERPLEXITY,
        Some("quantize") => MLX_CONVERT,
        Some("serve") => LLAMA_SERVER,
        Some("train") => TRAINERS,
        Some("transcribe") => WHISPER_CPP,
        _ => &[],
    };
    let spelled = |row: &'static Row| row.spellings().map(move |spelling| (spelling, row));
    // Rows that come later win.
    let mut rows: HashMap<_, _> = MLX_LM.iter().chain(LLAMA_CPP).flat_map(spelled).collect();
    if matches!(command, Some("serve" | "eval" | "inspect" | "train" | "transcribe")) {
        // What other commands refuse or do without, these may have.
        rows.retain(|spelling, _| !own.has(spelling));
    }
    rows.extend(special.iter().flat_map(spelled));
    if command == Some("serve") {
        rows.extend(MLX_SERVER.iter().flat_map(spelled));
    }
    rows
}
