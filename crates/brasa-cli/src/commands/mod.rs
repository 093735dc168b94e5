//! One file per command.

mod attention;
mod attention_svg;
mod bench;
mod chat;
mod discover;
mod doctor;
mod embed;
mod eval;
mod fit;
mod generate;
mod inspect;
mod logits;
mod npy;
mod perplexity;
mod quantize;
mod remote;
mod rerank;
mod run;
mod serve;
mod texts;
mod tokenize;
mod train;
mod transcribe;

use clap::CommandFactory;

use crate::args::{Arguments, Command, PromptArguments};
use crate::failure::Failure;
use crate::{hub, input, output};

/// Runs the command that `arguments` name.
///
/// # Errors
///
/// The error of the command.
pub fn dispatch(arguments: Arguments) -> Result<(), Failure> {
    match arguments.command {
        None => run::run(&arguments.run),
        Some(Command::Run(arguments)) => run::run(&arguments),
        Some(Command::Chat(arguments)) => run::chat(&arguments),
        Some(Command::Generate(arguments)) => generate::generate(&arguments),
        Some(Command::Pull(arguments)) => {
            let path = hub::fetch(&arguments.repo, &arguments.hub)?;
            output::line(&path.display().to_string())
        }
        Some(Command::Tokenize(arguments)) => tokenize::tokenize(&arguments),
        Some(Command::Inspect(arguments)) => inspect::inspect(&arguments),
        Some(Command::Discover(arguments)) => discover::discover(&arguments),
        Some(Command::Perplexity(arguments)) => perplexity::perplexity(&arguments),
        Some(Command::Logits(arguments)) => logits::logits(&arguments),
        Some(Command::Embed(arguments)) => embed::embed(&arguments),
        Some(Command::Transcribe(arguments)) => transcribe::transcribe(&arguments),
        Some(Command::Rerank(arguments)) => rerank::rerank(&arguments),
        Some(Command::Quantize(arguments)) => quantize::quantize(&arguments),
        Some(Command::Train(arguments)) => train::train(&arguments),
        Some(Command::Bench(arguments)) => bench::bench(&arguments),
        Some(Command::Eval(arguments)) => eval::eval(&arguments),
        Some(Command::Serve(arguments)) => serve::serve(&arguments),
        Some(Command::Doctor(arguments)) => doctor::doctor(&arguments),
        Some(Command::Completions { shell }) => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "brasa", &mut script);
            output::write(&String::from_utf8_lossy(&script))
        }
    }
}

/// The prompt's bytes: from the flag, the file, or standard input; `None` if none of them gives one.
fn prompt_bytes(arguments: &PromptArguments) -> Result<Option<Vec<u8>>, Failure> {
    let bytes = raw_prompt_bytes(arguments)?;
    Ok(bytes.map(|bytes| if arguments.escape { input::unescape(&bytes) } else { bytes }))
}

/// The prompt's bytes without reading escapes.
fn raw_prompt_bytes(arguments: &PromptArguments) -> Result<Option<Vec<u8>>, Failure> {
    match (&arguments.prompt, &arguments.file) {
        (Some(text), _) => Ok(Some(text.clone().into_bytes())),
        (None, Some(path)) => input::read(path).map(Some),
        (None, None) => {
            use std::io::IsTerminal;
            let bytes = if std::io::stdin().is_terminal() { Vec::new() } else { input::standard()? };
            Ok((!bytes.is_empty()).then_some(bytes))
        }
    }
}

/// The prompt as text.
fn prompt_text(arguments: &PromptArguments) -> Result<Option<String>, Failure> {
    let text = prompt_bytes(arguments)?.map(String::from_utf8).transpose();
    text.map_err(|error| Failure::Failed(format!("the prompt is not UTF-8: {error}")))
}
