//! The `brasa` command: flags, terminals and exit codes around the `brasa` library.
//!
//! Results go to standard output, everything else to standard error. Exit codes: 0 done, 1 failed, 2 wrong usage,
//! 75 a device is lost for this process, 130 interrupted.

mod args;
mod bundled;
mod commands;
mod config;
mod failure;
mod habits;
mod hub;
mod input;
mod interrupt;
mod load;
mod mlx_config;
mod named;
mod output;
mod paint;
mod painted;
mod prompt_cache;
mod sampling;
mod suggested;
mod templates;
mod terminal;
mod values;
mod visible;
mod xml;

use std::process::ExitCode;

use clap::FromArgMatches;

use crate::args::Arguments;
use crate::failure::Failure;
use crate::paint::When;

fn main() -> ExitCode {
    #[cfg(unix)]
    brasa::formats::exit_on_shrunk_files(1);
    brasa::keep_no_large_blocks();
    match run() {
        // A closed output is no failure: its reader has seen enough.
        Ok(()) | Err(Failure::OutputClosed) => ExitCode::SUCCESS,
        Err(failure) => {
            if !matches!(failure, Failure::Interrupted) {
                output::note(&format!("error: {failure}"));
            }
            ExitCode::from(failure.code())
        }
    }
}

/// Reads the arguments and runs the command that they name.
fn run() -> Result<(), Failure> {
    let habits::Translated { arguments, notes } = habits::translate(std::env::args_os())?;
    let color = When::of(&arguments);
    paint::choose(color);
    let arguments = mlx_config::extend(config::extend(arguments, color)?, color)?;
    let habits::Translated { arguments, notes: of_variables } =
        habits::environment::extend(arguments, std::env::vars_os(), color)?;
    let matches = Arguments::parser_of(&arguments, color).get_matches_from(arguments);
    let mut arguments = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    for note in notes.into_iter().chain(of_variables) {
        output::note(&format!("note: {note}"));
    }
    if let Some(source) = arguments.source_mut() {
        hub::resolve(source)?;
    }
    commands::dispatch(arguments)
}
