//! Paths that are typed in a chat: `~` for the home folder, and completions.

use std::path::{Path, PathBuf};

use super::names::NAMES;

/// Commands that take a path.
const WITH_FILE: [&str; 3] = ["/save ", "/save! ", "/load "];

/// Most completions that are offered.
const MOST: usize = 200;

/// The path for `text`, with a leading `~` replaced by the home folder.
pub fn expanded(text: &str) -> PathBuf {
    match (text.strip_prefix('~'), std::env::home_dir()) {
        (Some(rest), Some(home)) => below(&home, rest).unwrap_or_else(|| text.into()),
        _ => text.into(),
    }
}

/// The path `rest` after a leading `~`, below the home folder; `None` for `~somebody`.
fn below(home: &Path, rest: &str) -> Option<PathBuf> {
    match rest.strip_prefix('/') {
        Some(path) => Some(home.join(path)),
        None => rest.is_empty().then(|| home.to_owned()),
    }
}

/// Completes a line up to the cursor: commands, and paths after commands that take one. Returns the byte from which the line is
/// replaced, and the candidates.
pub fn completions(line: &str) -> (usize, Vec<String>) {
    if let Some(command) = WITH_FILE.iter().find(|command| line.starts_with(**command)) {
        let typed = line[command.len()..].trim_start();
        return (line.len() - typed.len(), files(typed));
    }
    let begun = line.strip_prefix('/');
    let names = begun.map(|begun| NAMES.iter().filter(move |name| name.starts_with(begun)));
    (0, names.into_iter().flatten().map(|name| format!("/{name} ")).collect())
}

/// The paths that begin with `typed`, in order; folders end with a slash.
fn files(typed: &str) -> Vec<String> {
    if typed == "~" {
        return vec!["~/".into()];
    }
    let split = typed.rfind('/').map_or(0, |at| at + 1);
    let (folder, begun) = typed.split_at(split);
    let place = if folder.is_empty() { PathBuf::from(".") } else { expanded(folder) };
    let Ok(entries) = std::fs::read_dir(place) else { return Vec::new() };
    let named = entries.flatten().filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        // Hidden files are offered to those who begin with a full stop.
        let fits = name.starts_with(begun) && (begun.starts_with('.') || !name.starts_with('.'));
        let is_plain = !name.chars().any(char::is_control);
        let end = if entry.path().is_dir() { "/" } else { "" };
        (fits && is_plain).then(|| format!("{folder}{name}{end}"))
    });
    let mut found: Vec<String> = named.collect();
    found.sort();
    found.truncate(MOST);
    found
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_tilde_is_the_home_folder() {
        let home = Path::new("/home/ada");
        assert_eq!(below(home, ""), Some(home.into()));
        assert_eq!(below(home, "/chats/a.json"), Some("/home/ada/chats/a.json".into()));
        assert_eq!(below(home, "bob/a.json"), None);
        for text in ["a.json", "./~", "a~", "/x/~/y", "~bob/a"] {
            assert_eq!(expanded(text), Path::new(text), "{text}");
        }
    }

    #[test]
    fn commands_and_their_files_are_completed() {
        let folder = std::env::temp_dir().join(format!("brasa-paths-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("chats")).unwrap();
        for name in ["chat.json", ".hidden", "chats/one.json"] {
            std::fs::write(folder.join(name), "").unwrap();
        }
        let at = folder.display().to_string();
        let of = |line: String| {
            let (from, found) = completions(&line);
            let all: Vec<String> = found.iter().map(|end| format!("{}{end}", &line[..from])).collect();
            all.join("|").replace(&at, "AT")
        };
        assert_eq!(of("/lo".into()), "/load ");
        assert_eq!(of(format!("/load {at}/ch")), "/load AT/chat.json|/load AT/chats/");
        assert_eq!(of(format!("/save! {at}/chats/")), "/save! AT/chats/one.json");
        assert_eq!(of(format!("/load {at}/.h")), "/load AT/.hidden");
        assert_eq!(of(format!("/load {at}/x")), "");
        assert_eq!(of("/load ~".into()), "/load ~/");
        assert_eq!(of(format!("look at {at}/ch")), "");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
