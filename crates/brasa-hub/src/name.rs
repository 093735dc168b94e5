//! Names of repositories and of files in them, checked before they become parts of paths and addresses.

use std::fmt;

use crate::{HubError, Result};

/// The name of a repository, `USER/REPO`. Both parts are letters, digits, `-`, `_` and `.`, and neither is a folder's `..`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepoName {
    user: String,
    repo: String,
}

impl RepoName {
    /// Reads `USER/REPO`.
    ///
    /// # Errors
    ///
    /// [`HubError::Name`].
    pub fn parse(text: &str) -> Result<Self> {
        let fault = |reason| HubError::Name { text: text.to_owned(), reason };
        let (user, repo) = text.split_once('/').ok_or_else(|| fault("no user"))?;
        for part in [user, repo] {
            let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            if part.is_empty() || part.len() > 96 || !part.chars().all(fits) {
                return Err(fault("no name of a repository"));
            }
            if part.starts_with(['.', '-'])
                || part.ends_with(['.', '-'])
                || part.contains("..")
                || part.contains("--")
            {
                return Err(fault("no name of a repository"));
            }
        }
        Ok(Self { user: user.to_owned(), repo: repo.to_owned() })
    }

    /// The repository's folder in the cache.
    pub(crate) fn folder(&self) -> String {
        format!("models--{}--{}", self.user, self.repo)
    }
}

impl fmt::Display for RepoName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.user, self.repo)
    }
}

/// A model of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The repository.
    pub repo: RepoName,
    /// The type of a GGUF file, e.g. `Q4_K_M`; `None` for the usual one.
    pub quant: Option<String>,
    /// A file by its name in place of a type.
    pub file: Option<String>,
}

impl Wanted {
    /// Reads `USER/REPO` or `USER/REPO:QUANT`.
    ///
    /// # Errors
    ///
    /// [`HubError::Name`].
    pub fn parse(text: &str) -> Result<Self> {
        let (repo, quant) = match text.split_once(':') {
            Some((repo, quant)) => (repo, Some(quant)),
            None => (text, None),
        };
        let repo = RepoName::parse(repo).map_err(|error| match error {
            HubError::Name { reason, .. } => HubError::Name { text: text.to_owned(), reason },
            error => error,
        })?;
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if quant.is_some_and(|quant| quant.is_empty() || !quant.chars().all(fits)) {
            return Err(HubError::Name { text: text.to_owned(), reason: "no type after the colon" });
        }
        Ok(Self { repo, quant: quant.map(str::to_owned), file: None })
    }
}

/// True if `name` may become a path below a folder of the cache: relative, without `..`, and a plain name on every system.
pub(crate) fn is_safe(name: &str) -> bool {
    let plain = |part: &str| {
        let fits = |c: char| !c.is_control() && !matches!(c, '\\' | ':' | '*' | '?' | '"' | '<' | '>' | '|');
        !part.is_empty()
            && part.len() <= 200
            && !part.starts_with('.')
            && !part.ends_with(['.', ' '])
            && part.chars().all(fits)
    };
    name.len() <= 800 && name.split('/').count() <= 8 && name.split('/').all(plain)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::{RepoName, Wanted, is_safe};

    #[test]
    fn repositories_have_two_plain_names() {
        let wanted = Wanted::parse("Qwen/Qwen3-0.6B-GGUF:q8_0").unwrap();
        assert_eq!(wanted.repo.to_string(), "Qwen/Qwen3-0.6B-GGUF");
        assert_eq!(wanted.repo.folder(), "models--Qwen--Qwen3-0.6B-GGUF");
        assert_eq!(wanted.quant.as_deref(), Some("q8_0"));
        assert_eq!(Wanted::parse("a/b").unwrap().quant, None);
        for text in [
            "", "a", "/", "a/", "/b", "a/b/c", "../b", "a/..", "a/b..c", "a/b\\c", "a/b c", "a/b%2e", "~/b",
            "./b", "-a/b", "a/b--c",
        ] {
            assert!(RepoName::parse(text).is_err(), "{text:?}");
        }
        for text in ["a/b:", "a/b:Q4:K", "a/b:../x", "a/b:.*("] {
            assert!(Wanted::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn names_of_files_stay_below_their_folder() {
        for name in ["model.gguf", "Q4_K_M/model-00001-of-00002.gguf", "übung.gguf", "a b.gguf"] {
            assert!(is_safe(name), "{name:?}");
        }
        let long = "x/".repeat(9) + "y";
        for name in [
            "",
            "/etc/passwd",
            "../x",
            "a/../x",
            "a//b",
            "a/",
            ".",
            ".git/config",
            "a\\b",
            "C:x",
            "a\0b",
            "a\u{1b}[2Jb",
            "x.",
            "a/.b",
            &long,
        ] {
            assert!(!is_safe(name), "{name:?}");
        }
    }
}
