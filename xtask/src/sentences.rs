//! Doc comments that cannot be understood alone: known bad patterns, which `cargo xtask ci` refuses.
//!
//! A rustdoc page shows one item and nothing around it, so the first paragraph of a doc comment has to name its subject. The patterns are few and have
//! hardly any false positives; most riddles pass them, and only a reader finds those.

use std::fs;
use std::path::{Path, PathBuf};

/// First words of a paragraph that leans on a neighbour or hides its subject.
const BEGINNINGS: &[&str] = &[
    "And",
    "As above",
    "As many",
    "Ditto",
    "It",
    "Its",
    "Likewise",
    "None.",
    "Of",
    "See above",
    "So many",
    "That",
    "The same",
    "Their",
    "Them",
    "These",
    "They",
    "Those",
    "What",
    "Where",
    "Who",
    "Whoever",
    "Whom",
    "Whose",
];

/// Words that hide who does something, anywhere in a doc comment's first paragraph.
const WORDS: &[&str] = &["nobody", "thereby", "whoever"];

/// Folders whose sources are read, below the repository's root.
const FOLDERS: [&str; 2] = ["crates", "xtask"];

/// Fails with a list of the doc comments below `root` that match a pattern.
///
/// # Errors
///
/// The list: path, line, paragraph and pattern, a line for each.
pub fn check(root: &Path) -> Result<(), String> {
    let mut files = Vec::new();
    for folder in FOLDERS {
        find_sources(&root.join(folder), &mut files);
    }
    if files.len() < 100 {
        return Err(format!("{}: {} sources, expected hundreds", root.display(), files.len()));
    }
    files.sort();
    let mut found = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let shown = file.strip_prefix(root).unwrap_or(&file).display();
        found.extend(riddles(&text).map(|(line, riddle)| format!("{shown}:{line}: {riddle}")));
    }
    if found.is_empty() {
        return Ok(());
    }
    let count = found.len();
    Err(format!("{}\n{count} doc comments lean on a neighbour or hide their subject", found.join("\n")))
}

fn find_sources(folder: &Path, files: &mut Vec<PathBuf>) {
    for path in fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
        if path.is_dir() && !path.ends_with("target") {
            find_sources(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// The doc comments of a source that match a pattern: line number, and the pattern with the paragraph.
fn riddles(source: &str) -> impl Iterator<Item = (usize, String)> {
    paragraphs(source).into_iter().filter_map(|(line, paragraph)| {
        let pattern = pattern(&paragraph)?;
        Some((line, format!("`{pattern}`: {paragraph}")))
    })
}

/// The first paragraph of each doc comment, with the number of its first line.
fn paragraphs(source: &str) -> Vec<(usize, String)> {
    let mut paragraphs: Vec<(usize, String)> = Vec::new();
    // Lines of a doc comment that follow its first paragraph are passed over.
    let (mut is_open, mut is_inside) = (false, false);
    for (number, line) in source.lines().enumerate() {
        let line = line.trim_start();
        let text = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
        let Some(text) = text.filter(|text| !text.starts_with('/')).map(str::trim) else {
            (is_open, is_inside) = (false, false);
            continue;
        };
        match (is_inside, is_open, text) {
            (true, true, "") => is_open = false,
            (true, true, text) => {
                if let Some((_, paragraph)) = paragraphs.last_mut() {
                    paragraph.push(' ');
                    paragraph.push_str(text);
                }
            }
            (true, false, _) | (false, _, "") => {}
            (false, _, text) => {
                paragraphs.push((number + 1, text.to_owned()));
                (is_open, is_inside) = (true, true);
            }
        }
    }
    paragraphs
}

/// The pattern that a paragraph matches.
fn pattern(paragraph: &str) -> Option<&'static str> {
    let begins = |beginning: &&&str| {
        let behind = paragraph.strip_prefix(**beginning);
        behind.is_some_and(|behind| {
            !behind.starts_with(|next: char| next.is_alphanumeric() || "'’-".contains(next))
        })
    };
    let words = || paragraph.split(|c: char| !c.is_alphanumeric());
    let holds = |word: &&&str| words().any(|found| found.eq_ignore_ascii_case(word));
    BEGINNINGS.iter().find(begins).or_else(|| WORDS.iter().find(holds)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines_of(source: &str) -> Vec<usize> {
        riddles(source).map(|(line, _)| line).collect()
    }

    #[test]
    fn riddles_are_found() {
        for riddle in [
            "Its name.",
            "Those of `x`.",
            "What is wrong.",
            "Where keys go.",
            "Of the norm.",
            "None.",
            "So many zeros.",
            "The same, by way of files.",
            "Wakes whoever sleeps.",
            "Who gives way.",
            "A key that nobody read.",
            "They are kept.",
            "It falls.",
            "That of the separate operations.",
        ] {
            assert_eq!(
                lines_of(&format!("struct A {{\n    /// {riddle}\n    a: u8,\n}}\n")),
                [2],
                "{riddle}"
            );
            assert_eq!(lines_of(&format!("//! {riddle}\n//!\n//! More.\n")), [1], "{riddle}");
        }
        // A paragraph goes on in its next lines.
        assert_eq!(lines_of("/// A key that\n/// nobody read.\nfn a() {}\n/// Its name.\nfn b() {}"), [1, 4]);
    }

    #[test]
    fn plain_sentences_pass() {
        for plain in [
            "Name of the device.",
            "None for a norm without a weight.",
            "Items, one a line.",
            "Offset in bytes.",
            "Whether the head is a copy.",
            "Itself.",
            "Thatch.",
            "True if it is open.",
            "Andrew's rule.",
        ] {
            assert_eq!(lines_of(&format!("/// {plain}\nfn a() {{}}\n")), [0; 0], "{plain}");
        }
        // Only the first paragraph counts, and only doc comments.
        assert_eq!(
            lines_of("/// Plain.\n///\n/// It is kept, whoever asks.\nfn a() {}\n// Its name.\n//// It.\n"),
            [0; 0]
        );
    }

    #[test]
    fn no_doc_comment_of_the_repository_is_a_known_riddle() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        assert_eq!(check(&root), Ok(()));
    }
}
