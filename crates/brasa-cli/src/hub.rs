//! Models named by their repository on Hugging Face's hub.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use brasa_hub::{Hub, HubError, Wanted};

use crate::args::{HubArguments, SourceArguments};
use crate::failure::Failure;
use crate::{interrupt, load, named, output};

/// Replaces a repository by the path of its files, downloading them if needed, and a name by the path of its model.
///
/// # Errors
///
/// The errors of [`fetch`]; [`Failure::Failed`] for a name of no model.
pub fn resolve(arguments: &mut SourceArguments) -> Result<(), Failure> {
    resolve_below(arguments, named::folder().as_deref())
}

/// Like [`resolve`], also for names of models below `folder`.
///
/// # Errors
///
/// The errors of [`resolve`].
pub fn resolve_below(arguments: &mut SourceArguments, folder: Option<&Path>) -> Result<(), Failure> {
    if let Some(path) = &arguments.model {
        if let Some(found) = existing(path, folder)? {
            arguments.model = Some(found);
        }
        return Ok(());
    }
    match &arguments.hf_repo {
        Some(repo) => arguments.model = Some(fetch(repo, &arguments.hub)?),
        None if arguments.hub.hf_file.is_some() => {
            return Err(Failure::Usage(
                "--hf-file names a file of a repository: give -hf USER/REPO too".into(),
            ));
        }
        None => {}
    }
    Ok(())
}

/// For a path that does not exist, the path of the model with this name below `folder` or in the hub's cache. Fails with a hint
/// if there is none.
fn existing(path: &Path, folder: Option<&Path>) -> Result<Option<PathBuf>, Failure> {
    let Some(name) = path.to_str().filter(|_| !path.exists()) else { return Ok(None) };
    if let Some(found) = named::find(name, folder)? {
        return Ok(Some(found));
    }
    if name.to_ascii_lowercase().ends_with(".gguf") {
        // The message of the loader is about files.
        return Ok(None);
    }
    if Wanted::parse(name).is_ok() {
        return Err(Failure::Failed(format!(
            "{name}: no such file or folder\nhint: -hf {name} takes the repository of this name on Hugging Face's hub; \
             `brasa pull {name}` only downloads it"
        )));
    }
    if name.contains(['/', '\\']) {
        return Ok(None);
    }
    let below = folder.map(|folder| format!(", below {}", folder.display())).unwrap_or_default();
    Err(Failure::Failed(format!(
        "{name}: no model of this name here{below} or in the hub's cache\nhint: `brasa pull USER/{name}` downloads a repository of \
         Hugging Face's hub, `-hf USER/{name}` also runs it; `brasa discover DIR` lists the models below a folder"
    )))
}

/// Downloads the missing files of a repository, with a progress bar at a terminal; returns the path of the model.
///
/// # Errors
///
/// [`Failure::Usage`] for an invalid name, [`Failure::Interrupted`], [`Failure::Failed`] with the hub's message.
pub fn fetch(repo: &str, arguments: &HubArguments) -> Result<PathBuf, Failure> {
    let mut wanted = Wanted::parse(repo)?;
    wanted.file.clone_from(&arguments.hf_file);
    let mut hub = Hub::from_env()?;
    hub.offline |= arguments.offline;
    hub.token = arguments.hf_token.clone().or(hub.token);
    interrupt::install();
    let bar = load::bytes_bar("downloading");
    let fetched = hub.fetch(&wanted, &mut |at| {
        bar.set_length(at.total_bytes);
        bar.set_position(at.done_bytes);
        if interrupt::check().is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    bar.finish_and_clear();
    let fetched = fetched?;
    if let Some(reason) = fetched.unreachable {
        output::note(&format!("note: {reason}; the files in the cache are used"));
    }
    Ok(fetched.path)
}

impl From<HubError> for Failure {
    fn from(error: HubError) -> Self {
        match error {
            HubError::Interrupted => Self::Interrupted,
            HubError::Name { .. } => Self::Usage(error.to_string()),
            HubError::Unreachable { .. } => Self::Failed(format!(
                "{error}\nhint: HTTPS_PROXY names a proxy, HF_ENDPOINT another server; -m takes files that are there"
            )),
            error => Self::Failed(error.to_string()),
        }
    }
}
