//! One file per command.

mod attention;
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
mod prompt;
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

use crate::args::{Arguments, Command};
use crate::failure::Failure;
use crate::{hub, output};

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
