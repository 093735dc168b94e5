//! Folders of the cache: `blobs` holds contents by their hash, `snapshots/COMMIT` holds names that link to them, `refs/main` holds
//! the latest commit. No path leaves the cache, even through links.

use std::fs;
use std::path::{Path, PathBuf};

use crate::name::{RepoName, is_safe};
use crate::{HubError, Result};

/// Most files of a snapshot that are looked at.
const MOST_FILES: usize = 10_000;

/// The folder of one repository.
pub struct Folder {
    cache: PathBuf,
    path: PathBuf,
}

impl Folder {
    /// The folder of `repo` in the cache at `cache`. Nothing is created.
    pub fn new(cache: &Path, repo: &RepoName) -> Self {
        Self { cache: cache.to_owned(), path: cache.join(repo.folder()) }
    }

    /// The path of the file with a content; creates the folder that it is in.
    pub fn blob(&self, digits: &str) -> Result<PathBuf> {
        Ok(self.created(&self.path.join("blobs"))?.join(digits))
    }

    /// The folder of a commit's files.
    pub fn snapshot(&self, commit: &str) -> PathBuf {
        self.path.join("snapshots").join(commit)
    }

    /// The commit that was fetched last.
    pub fn commit(&self) -> Option<String> {
        let text = fs::read_to_string(self.inside(&self.path.join("refs/main")).ok()?).ok()?;
        let text = text.trim();
        (text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit())).then(|| text.to_owned())
    }

    /// Makes `commit` the latest.
    pub fn set_commit(&self, commit: &str) -> Result<()> {
        let folder = self.created(&self.path.join("refs"))?;
        let temporary = folder.join(format!(".main-{}", std::process::id()));
        fs::write(&temporary, commit).map_err(HubError::io(&temporary))?;
        fs::rename(&temporary, folder.join("main")).map_err(HubError::io(&temporary))
    }

    /// Names of the whole files of a commit.
    pub fn names(&self, commit: &str) -> Vec<String> {
        let mut names = Vec::new();
        let snapshot = self.snapshot(commit);
        let mut folders = vec![String::new()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(snapshot.join(&folder)).into_iter().flatten().flatten() {
                let Ok(name) = entry.file_name().into_string() else { continue };
                let name = if folder.is_empty() { name } else { format!("{folder}/{name}") };
                if !is_safe(&name) || names.len() + folders.len() >= MOST_FILES {
                    continue;
                }
                let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
                if is_folder {
                    folders.push(name);
                } else if self.inside(&entry.path()).is_ok_and(|path| path.is_file()) {
                    names.push(name);
                }
            }
        }
        names.sort_unstable();
        names
    }

    /// Adds a file name to a commit for a content in the cache.
    pub fn link(&self, commit: &str, name: &str, blob: &Path) -> Result<()> {
        let path = self.snapshot(commit).join(name);
        let parent = path.parent().unwrap_or(&path);
        self.created(parent)?;
        if path.canonicalize().ok().is_some_and(|found| blob.canonicalize().is_ok_and(|blob| found == blob)) {
            return Ok(());
        }
        let temporary = parent.join(format!(".link-{}", std::process::id()));
        // A link of a run that was killed may be in the way.
        let _ = fs::remove_file(&temporary);
        link(name, blob, &temporary).map_err(HubError::io(&temporary))?;
        fs::rename(&temporary, &path).map_err(HubError::io(&path))
    }

    /// `folder`, created, if it lies inside the cache.
    fn created(&self, folder: &Path) -> Result<PathBuf> {
        fs::create_dir_all(&self.cache).map_err(HubError::io(&self.cache))?;
        // One level after the other, so that nothing is created behind a link that leads out.
        let mut path = self.cache.clone();
        for part in folder.strip_prefix(&self.cache).unwrap_or(folder) {
            path.push(part);
            match fs::create_dir(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                    return Err(HubError::io(&path)(error));
                }
                _ => self.inside(&path)?,
            };
        }
        Ok(path)
    }

    /// The true path of something that exists, if it lies inside the cache.
    pub fn inside(&self, path: &Path) -> Result<PathBuf> {
        let cache = self.cache.canonicalize().map_err(HubError::io(&self.cache))?;
        let found = path.canonicalize().map_err(HubError::io(path))?;
        if found.starts_with(&cache) {
            Ok(found)
        } else {
            Err(HubError::OutsideCache { path: path.to_owned() })
        }
    }
}

/// Makes `path` a link to a content, relative as those of the `hf` command.
#[cfg(unix)]
fn link(name: &str, blob: &Path, path: &Path) -> std::io::Result<()> {
    let mut target = PathBuf::from("../../");
    (0..name.matches('/').count()).for_each(|_| target.push(".."));
    target.push("blobs");
    target.push(blob.file_name().unwrap_or_default());
    std::os::unix::fs::symlink(target, path)
}

/// Makes `path` another name of a content: links need a permission of their own here.
#[cfg(not(unix))]
fn link(_: &str, blob: &Path, path: &Path) -> std::io::Result<()> {
    fs::hard_link(blob, path).or_else(|_| fs::copy(blob, path).map(|_| ()))
}
