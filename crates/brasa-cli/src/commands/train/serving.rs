//! The finished adapter, or each best one so far, goes straight into a running server.

use std::path::Path;

use brasa::FineTuner;
use brasa::train::lora::Lora;
use serde_json::json;

use super::written;
use crate::args::TrainArguments;
use crate::commands::remote;
use crate::failure::Failure;
use crate::output;

/// Asks the server whether it is there, before hours of learning.
///
/// # Errors
///
/// [`Failure::Usage`] for a URL that is none; [`Failure::Failed`] if the server cannot be reached or refuses the key.
pub fn check(arguments: &TrainArguments) -> Result<(), Failure> {
    match &arguments.server {
        Some(server) => remote::ask(server, "/lora-adapters", None).map(drop),
        None => Ok(()),
    }
}

/// Loads the adapter at `path` into the server, in place of one of the same name.
///
/// # Errors
///
/// [`Failure::Failed`] with the server's own message. The adapter stays where it was written.
pub fn load(arguments: &TrainArguments, path: &Path) -> Result<(), Failure> {
    let Some(server) = &arguments.server else { return Ok(()) };
    output::line(&post(arguments, server, path)?)
}

/// Writes the best adapter so far into the folder `best` of the run and loads it into `server`, in place of the one before. Returns a line that tells
/// so, or a warning: a server that is away never ends a run.
pub fn load_best(arguments: &TrainArguments, server: &str, tuner: &FineTuner, lora: &Lora) -> String {
    let folder = arguments.out.join("best");
    let made = std::fs::create_dir_all(&folder);
    let written = made
        .map_err(|error| Failure::Failed(format!("{}: {error}", folder.display())))
        .and_then(|()| written::adapter(arguments, tuner, lora, &folder));
    match written.and_then(|path| post(arguments, server, &path)) {
        Ok(told) => told,
        Err(failure) => format!("warning: --serve-best: {failure}"),
    }
}

/// Loads the adapter at `path` under the name of the run; returns what became of it.
fn post(arguments: &TrainArguments, server: &str, path: &Path) -> Result<String, Failure> {
    let kept = |failure: String| {
        Failure::Failed(format!("{failure}\nhint: the adapter is written in {}", path.display()))
    };
    let absolute = path.canonicalize().map_err(|error| kept(error.to_string()))?;
    let folder = arguments.out.canonicalize().map_err(|error| kept(error.to_string()))?;
    let own =
        || folder.file_name().map_or_else(|| "adapter".into(), |name| name.to_string_lossy().into_owned());
    let name = arguments.serve_as.clone().unwrap_or_else(own);
    let body = json!({"lora_name": name, "lora_path": absolute.to_string_lossy()});
    let answer =
        remote::ask(server, "/v1/load_lora_adapter", Some(&body)).map_err(|failure| match failure {
            Failure::Failed(text) => kept(text),
            other => other,
        })?;
    let model = answer["model"].as_str().unwrap_or(&name);
    Ok(format!("{}: serves it as {model}", server.trim_end_matches('/')))
}
