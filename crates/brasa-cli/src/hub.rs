//! Models that are named by their repository on Hugging Face's hub.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use brasa_hub::{Hub, HubError, Wanted};

use crate::args::{HubArguments, SourceArguments};
use crate::failure::Failure;
use crate::{interrupt, load, output};

/// Replaces a repository by the path of its files, which are downloaded if they are not there.
///
/// # Errors
///
/// The errors of [`fetch`]; [`Failure::Failed`] for a path that does not exist and looks like a repository.
pub fn resolve(arguments: &mut SourceArguments) -> Result<(), Failure> {
    if let Some(path) = &arguments.model {
        return existing(path);
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

/// Fails with a hint if a path does not exist and could be a repository.
fn existing(path: &Path) -> Result<(), Failure> {
    let text = path.to_str().filter(|text| !text.to_ascii_lowercase().ends_with(".gguf"));
    match text.filter(|_| !path.exists()).filter(|text| Wanted::parse(text).is_ok()) {
        Some(repo) => Err(Failure::Failed(format!(
            "{repo}: no such file or folder\nhint: -hf {repo} takes the repository of this name on Hugging Face's hub; \
             `brasa pull {repo}` only downloads it"
        ))),
        None => Ok(()),
    }
}

/// Downloads the files of a repository that are not there, with a progress bar at a terminal; returns the path to open.
///
/// # Errors
///
/// [`Failure::Usage`] for a name that is none, [`Failure::Interrupted`], [`Failure::Failed`] with the hub's message.
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
