//! The history of typed lines, kept from chat to chat.
//!
//! The history is a file of one line for each entry (`\n` for a line end, `\\` for a backslash) that only its owner can read:
//! `$XDG_STATE_HOME/brasa/history`, or `~/.local/state/brasa/history`. `BRASA_HISTORY` names another file, or `off` for none.
//! Entries are written as they are made, so that they survive any end of the program.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use brasa::formats::{Existing, OutputFile};

/// Most entries that are kept.
const MOST_ENTRIES: usize = 1000;
/// Most bytes of the file that are read; a longer file is shortened.
const MOST_BYTES: u64 = 1 << 20;
/// Most bytes of an entry that is kept.
const LONGEST_ENTRY: usize = 64 << 10;

/// The lines typed in earlier chats, and the file that stores them.
pub struct History {
    path: Option<PathBuf>,
}

impl History {
    /// A history that stores nothing.
    pub fn none() -> Self {
        Self { path: None }
    }

    /// Opens the user's history and returns its entries, oldest first. Without a home folder, or if the file cannot be read,
    /// nothing is stored.
    pub fn open() -> (Self, Vec<String>) {
        let variable =
            |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let path = match variable("BRASA_HISTORY") {
            Some(path) if path.as_os_str() == "off" => None,
            Some(path) => Some(path),
            None => variable("XDG_STATE_HOME")
                .filter(|path| path.is_absolute())
                .or_else(|| Some(variable("HOME")?.join(".local/state")))
                .map(|state| state.join("brasa/history")),
        };
        let Some(path) = path else { return (Self::none(), Vec::new()) };
        Self::at(path)
    }

    /// The history in the file at `path`, and its entries.
    fn at(path: PathBuf) -> (Self, Vec<String>) {
        // Pipes and devices keep nothing; a link to /dev/null is a way to say so.
        if path.exists() && !path.is_file() {
            return (Self::none(), Vec::new());
        }
        let (mut entries, whole) = read(&path).unwrap_or((Vec::new(), true));
        if entries.len() > MOST_ENTRIES || !whole {
            entries.drain(..entries.len().saturating_sub(MOST_ENTRIES));
            // A history that cannot be shortened now is shortened another time.
            let _ = rewrite(&path, &entries);
        }
        (Self { path: Some(path) }, entries)
    }

    /// Stores an entry. If the file cannot be written, the history is given up without an error.
    pub fn add(&mut self, entry: &str) {
        if entry.len() > LONGEST_ENTRY {
            return;
        }
        if let Some(path) = &self.path
            && append(path, entry).is_err()
        {
            self.path = None;
        }
    }
}

/// The entries of the file, and true if these are all.
fn read(path: &Path) -> std::io::Result<(Vec<String>, bool)> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let skipped = length.saturating_sub(MOST_BYTES);
    file.seek(SeekFrom::Start(skipped))?;
    let mut bytes = Vec::new();
    file.take(MOST_BYTES).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    // The first line of a part may be cut.
    let lines = text.lines().skip(usize::from(skipped > 0));
    Ok((lines.filter(|line| !line.is_empty()).map(unescaped).collect(), skipped == 0))
}

fn rewrite(path: &Path, entries: &[String]) -> std::io::Result<()> {
    let mut file = OutputFile::create(path, Existing::Replace).map_err(std::io::Error::other)?;
    for entry in entries {
        writeln!(file, "{}", escaped(entry))?;
    }
    file.commit().map_err(std::io::Error::other)
}

fn append(path: &Path, entry: &str) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        let mut builder = DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.recursive(true).create(folder)?;
    }
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.create(true).append(true).open(path)?;
    // One write, so that chats that run side by side do not mix their entries.
    file.write_all(format!("{}\n", escaped(entry)).as_bytes())
}

fn escaped(entry: &str) -> String {
    entry.replace('\\', "\\\\").replace('\n', "\\n").replace('\r', "\\r")
}

fn unescaped(line: &str) -> String {
    let mut entry = String::with_capacity(line.len());
    let mut characters = line.chars();
    while let Some(c) = characters.next() {
        match (c, c == '\\') {
            (_, true) => match characters.next() {
                Some('n') => entry.push('\n'),
                Some('r') => entry.push('\r'),
                Some(other) => entry.push(other),
                None => entry.push('\\'),
            },
            (c, false) => entry.push(c),
        }
    }
    entry
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::{History, MOST_ENTRIES, escaped, unescaped};

    #[test]
    fn entries_come_back_as_they_were() {
        for entry in ["", "plain", "two\nlines", "a\\nb \\ c\\\\", "\r\n\t süß"] {
            assert_eq!(unescaped(&escaped(entry)), entry);
            assert!(!escaped(entry).contains('\n'));
        }
        assert_eq!(unescaped("ends with \\"), "ends with \\");
    }

    #[test]
    fn the_file_is_private_and_bounded() {
        let folder = std::env::temp_dir().join(format!("brasa-history-{}", std::process::id()));
        let path = folder.join("state/history");
        let (mut history, entries) = History::at(path.clone());
        assert!(entries.is_empty());
        history.add("one\ntwo");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        }
        assert_eq!(History::at(path.clone()).1, ["one\ntwo"]);
        // Too many entries, and bytes that are no text: the latest stay.
        let mut bytes = b"\xff\xfe\n".repeat(MOST_ENTRIES);
        bytes.extend(b"last\n");
        std::fs::write(&path, bytes).unwrap();
        let (_, entries) = History::at(path.clone());
        assert_eq!((entries.len(), entries.last().unwrap().as_str()), (MOST_ENTRIES, "last"));
        assert_eq!(History::at(path.clone()).1, entries);
        std::fs::write(&path, "x".repeat(3 << 20)).unwrap();
        assert!(History::at(path.clone()).1.is_empty());
        assert_eq!(path.metadata().unwrap().len(), 0);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
