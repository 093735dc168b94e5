use std::env;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

use crate::cache::Folder;
use crate::choose::{Choice, choose};
use crate::client::Client;
use crate::download::{Source, download};
use crate::listing::Listing;
use crate::name::Wanted;
use crate::{HubError, Result};

/// The server, the cache and the token.
#[derive(Clone, Debug)]
pub struct Hub {
    /// The server's address: `HF_ENDPOINT`, else `https://huggingface.co`.
    pub endpoint: String,
    /// The cache's folder: `HF_HUB_CACHE`, else `hub` in `HF_HOME`, else in `~/.cache/huggingface`.
    pub cache: PathBuf,
    /// The token: `HF_TOKEN`, else the file that `hf auth login` writes.
    pub token: Option<String>,
    /// True to forbid downloads: `HF_HUB_OFFLINE`.
    pub offline: bool,
    /// The pause after a connection broke. Each further break without a byte received makes it four times as long.
    pub pause: Duration,
}

/// The progress of a download.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// The file that is being downloaded.
    pub file: &'a str,
    /// Number of bytes that were downloaded so far, of all files.
    pub done_bytes: u64,
    /// Number of bytes of all files.
    pub total_bytes: u64,
}

/// A model that is in the cache.
#[derive(Clone, Debug)]
pub struct Fetched {
    /// The path to open: a GGUF file or a checkpoint's folder.
    pub path: PathBuf,
    /// The reason why the server could not be reached and the cache was used; `None` if the server answered or was not asked.
    pub unreachable: Option<String>,
}

impl Hub {
    /// The hub that the environment describes.
    ///
    /// # Errors
    ///
    /// [`HubError::Variable`] if no folder for the cache can be found, or if an address is invalid.
    pub fn from_env() -> Result<Self> {
        let endpoint = variable("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".into());
        if !endpoint.starts_with("https://") && !endpoint.starts_with("http://") {
            let expected = "an address that begins with https://";
            return Err(HubError::Variable { variable: "HF_ENDPOINT", value: endpoint, expected });
        }
        let home = variable("HF_HOME").map(PathBuf::from).or_else(|| {
            let cache = variable("XDG_CACHE_HOME").map(PathBuf::from);
            let cache = cache.or_else(|| env::home_dir().map(|home| home.join(".cache")));
            cache.map(|cache| cache.join("huggingface"))
        });
        let named = variable("HF_HUB_CACHE").or_else(|| variable("HUGGINGFACE_HUB_CACHE")).map(PathBuf::from);
        let Some(cache) = named.or_else(|| home.as_ref().map(|home| home.join("hub"))) else {
            let expected = "the folder for downloaded models";
            return Err(HubError::Variable { variable: "HF_HUB_CACHE", value: String::new(), expected });
        };
        let token = variable("HF_TOKEN").or_else(|| {
            let path = variable("HF_TOKEN_PATH").map(PathBuf::from).or_else(|| Some(home?.join("token")))?;
            std::fs::read_to_string(path).ok()
        });
        let token = token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty());
        let offline =
            ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"].iter().any(|name| is_on(variable(name).as_deref()));
        Ok(Self { endpoint, cache, token, offline, pause: Duration::from_millis(250) })
    }

    /// Downloads a model's missing files and returns the path to open. `progress` may stop the download; the bytes so far stay, and
    /// the next call continues there.
    ///
    /// # Errors
    ///
    /// [`HubError`]; a path is only returned once every file is whole and its hash is right.
    pub fn fetch(
        &self,
        wanted: &Wanted,
        progress: &mut dyn FnMut(Progress<'_>) -> ControlFlow<()>,
    ) -> Result<Fetched> {
        let folder = Folder::new(&self.cache, &wanted.repo);
        if self.offline {
            return self.cached(wanted, &folder);
        }
        let client = Client::new(&self.endpoint, self.token.as_deref())?;
        let (url, text) = match client.listing(&wanted.repo) {
            Ok(answer) => answer,
            // Without a network, what was downloaded before still runs.
            Err(HubError::Unreachable { url, reason }) => {
                return match self.cached(wanted, &folder) {
                    Ok(fetched) => Ok(Fetched { unreachable: Some(format!("{url}: {reason}")), ..fetched }),
                    Err(_) => Err(HubError::Unreachable { url, reason }),
                };
            }
            Err(error) => return Err(error),
        };
        let listing = Listing::read(&url, &text)?;
        let names: Vec<&str> = listing.files.iter().map(|file| file.name.as_str()).collect();
        let choice = choose(wanted, &names)?;
        let files: Vec<_> = listing.files.iter().filter(|file| choice.files().contains(&file.name)).collect();
        let total_bytes = files.iter().fold(0_u64, |sum, file| sum.saturating_add(file.size_bytes));
        let source =
            Source { client: &client, repo: &wanted.repo, commit: &listing.commit, pause: self.pause };
        let mut blobs = Vec::new();
        let mut before = 0_u64;
        for file in &files {
            let mut at = |bytes: u64| {
                progress(Progress { file: &file.name, done_bytes: before.saturating_add(bytes), total_bytes })
            };
            blobs.push(download(&source, &folder, file, &mut at)?);
            before = before.saturating_add(file.size_bytes);
        }
        // Names appear when all files are whole.
        for (file, blob) in files.iter().zip(&blobs) {
            folder.link(&listing.commit, &file.name, blob)?;
        }
        folder.set_commit(&listing.commit)?;
        opened(&folder, &listing.commit, &choice)
    }

    /// The model as the cache has it.
    fn cached(&self, wanted: &Wanted, folder: &Folder) -> Result<Fetched> {
        let missing = || HubError::NotCached { repo: wanted.repo.to_string(), cache: self.cache.clone() };
        let commit = folder.commit().ok_or_else(missing)?;
        let names = folder.names(&commit);
        if names.is_empty() {
            return Err(missing());
        }
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let choice = choose(wanted, &names)?;
        opened(folder, &commit, &choice)
    }
}

/// The path to open, for files that are in the cache.
fn opened(folder: &Folder, commit: &str, choice: &Choice) -> Result<Fetched> {
    let snapshot = folder.snapshot(commit);
    let path = match choice {
        Choice::Gguf(files) => files.first().map_or(snapshot.clone(), |first| snapshot.join(first)),
        Choice::Folder(_) => snapshot,
    };
    folder.inside(&path)?;
    Ok(Fetched { path, unreachable: None })
}

/// The value of an environment variable that is not empty.
fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// True for the values that the `hf` command takes as true.
fn is_on(value: Option<&str>) -> bool {
    value.is_some_and(|value| ["1", "on", "yes", "true"].contains(&value.to_ascii_lowercase().as_str()))
}
