//! Models by their names: below a folder of models, and in the cache of Hugging Face's hub.

use std::path::{Path, PathBuf};

use brasa_hub::{Hub, Wanted};

use crate::failure::Failure;

/// The variable that names the folder of models.
const FOLDER: &str = "BRASA_MODELS_DIR";

/// The folder of named models, from the environment.
pub fn folder() -> Option<PathBuf> {
    std::env::var_os(FOLDER).filter(|folder| !folder.is_empty()).map(PathBuf::from)
}

/// The model with a name that is not a path: `NAME`, `NAME:QUANT`, `USER/REPO` or `USER/REPO:QUANT`. Nothing is downloaded.
///
/// # Errors
///
/// [`Failure::Usage`] for a name of several models.
pub fn find(name: &str, folder: Option<&Path>) -> Result<Option<PathBuf>, Failure> {
    let mut found = folder.map_or(Vec::new(), |folder| below(name, folder));
    if found.is_empty() {
        let hub = Hub::from_env().ok().map(|hub| Hub { offline: true, ..hub });
        found = hub.map_or(Vec::new(), |hub| cached(name, &hub));
    }
    match found.as_slice() {
        [] => Ok(None),
        [only] => Ok(Some(only.clone())),
        several => {
            let paths: Vec<_> = several.iter().take(5).map(|path| path.display().to_string()).collect();
            Err(Failure::Usage(format!(
                "{name}: {} models have this name\nhint: name one by its path: {}",
                several.len(),
                paths.join(", ")
            )))
        }
    }
}

/// The models of a folder with this name: their path below the folder, or its last part, with or without an extension.
fn below(name: &str, folder: &Path) -> Vec<PathBuf> {
    let models = brasa::discover(folder).unwrap_or_default();
    let models = models.into_iter().filter(|model| model.problem.is_none()).map(|model| model.path);
    let is_named = |path: &PathBuf| {
        let from_here = path.strip_prefix(folder).unwrap_or(path);
        let plain = from_here.with_extension("");
        [Some(from_here.as_os_str()), Some(plain.as_os_str()), from_here.file_name(), plain.file_name()]
            .into_iter()
            .flatten()
            .any(|known| known == name)
    };
    models.filter(is_named).collect()
}

/// The repositories of the cache with this name, with the paths to open.
fn cached(name: &str, hub: &Hub) -> Vec<PathBuf> {
    let names = if Wanted::parse(name).is_ok() { vec![name.to_owned()] } else { repositories(name, hub) };
    let fetch = |name: &String| {
        let wanted = Wanted::parse(name).ok()?;
        let never = &mut |_: brasa_hub::Progress<'_>| std::ops::ControlFlow::Break(());
        hub.fetch(&wanted, never).ok().map(|fetched| fetched.path)
    };
    names.iter().filter_map(fetch).collect()
}

/// `USER/NAME:QUANT` for each repository of the cache with this name, ignoring case.
fn repositories(name: &str, hub: &Hub) -> Vec<String> {
    let (repo, quant) =
        name.split_once(':').map_or((name, String::new()), |(repo, quant)| (repo, format!(":{quant}")));
    let entries = std::fs::read_dir(&hub.cache).into_iter().flatten().flatten();
    let full = entries.filter_map(|entry| {
        let folder = entry.file_name().into_string().ok()?;
        let (user, found) = folder.strip_prefix("models--")?.split_once("--")?;
        found.eq_ignore_ascii_case(repo).then(|| format!("{user}/{found}{quant}"))
    });
    let mut full: Vec<String> = full.collect();
    full.sort();
    full
}
