//! The finished adapter goes straight into a running server.

use std::path::Path;

use serde_json::json;

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
    output::line(&format!("{}: serves it as {model}", server.trim_end_matches('/')))
}
