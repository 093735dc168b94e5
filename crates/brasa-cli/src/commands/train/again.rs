//! Command lines that continue a run.

use std::path::{Path, PathBuf};

use crate::args::TrainArguments;
use crate::habits;

/// Options for the begin and the results of a run, and whether they take a value.
const ENDS: &[(&str, bool)] = &[
    ("--out", true),
    ("--adapter-path", true),
    ("--from", true),
    ("--resume-adapter-file", true),
    ("--resume", false),
];
/// Options that name the model, and whether they take a value.
const MODEL: &[(&str, bool)] = &[("--model", true), ("-m", true), ("--hf-repo", true), ("-hf", true)];

/// The command of a new run that begins with the finished adapter at `path`.
pub fn with_adapter(arguments: &TrainArguments, path: &Path) -> String {
    let out = next(&arguments.out);
    let ends = ["--from".into(), shown(path), "--out".into(), shown(&out)];
    line(&without(words(), ENDS), &ends)
}

/// The command of a new run that begins with the finished model at `path`.
pub fn with_model(arguments: &TrainArguments, path: &Path) -> String {
    let own = arguments.source.model.as_deref().map(shown);
    let mut kept = without(without(words(), ENDS), MODEL);
    kept.retain(|word| Some(word) != own.as_ref());
    let out = next(&arguments.out);
    line(&kept, &["--model".into(), shown(path), "--out".into(), shown(&out)])
}

/// The command that resumes a run that was stopped.
pub fn resumed() -> String {
    line(&without(words(), &[("--resume", false)]), &["--resume".into()])
}

/// The words of this process after the program's name, in the parser's form.
fn words() -> Vec<String> {
    let translated = habits::translate(std::env::args_os());
    let words = translated.map_or_else(|_| Vec::new(), |translated| translated.arguments);
    words.into_iter().skip(1).map(|word| word.to_string_lossy().into_owned()).collect()
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// `words` without some options and their values.
fn without(words: Vec<String>, options: &[(&str, bool)]) -> Vec<String> {
    let mut kept = Vec::with_capacity(words.len());
    let mut rest = words.into_iter();
    while let Some(word) = rest.next() {
        if word == "--" {
            kept.push(word);
            kept.extend(rest);
            break;
        }
        let (name, has_value) = word.split_once('=').map_or((&*word, false), |(name, _)| (name, true));
        match options.iter().find(|(option, _)| *option == name) {
            Some((_, true)) if !has_value => drop(rest.next()),
            Some(_) => {}
            None => kept.push(word),
        }
    }
    kept
}

/// A line for a shell: the program's name, `words`, and `more` before a `--`.
fn line(words: &[String], more: &[String]) -> String {
    let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
    let all = words[..end].iter().chain(more).chain(&words[end..]);
    std::iter::once("brasa".to_owned()).chain(all.map(|word| quoted(word))).collect::<Vec<_>>().join(" ")
}

/// A word quoted for a shell.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "_-./:=,@%+".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// The first unused folder name after `out`: `adapter-2` after `adapter`, `adapter-3` after `adapter-2`.
fn next(out: &Path) -> PathBuf {
    let name = out.file_name().map_or_else(|| "adapter".into(), |name| name.to_string_lossy());
    let numbered = name.rsplit_once('-').and_then(|(stem, number)| Some((stem, number.parse::<u32>().ok()?)));
    let (stem, first) = numbered.map_or((&*name, 2), |(stem, number)| (stem, number.saturating_add(1)));
    let folder = |number: u32| out.with_file_name(format!("{stem}-{number}"));
    (first..u32::MAX).map(folder).find(|folder| !folder.exists()).unwrap_or_else(|| folder(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn options_are_left_out_with_their_values() {
        let of = |text: &str| line(&without(words(text), ENDS), &["--from".into(), "a b".into()]);
        assert_eq!(of("train m --out x --lr 1"), "brasa train m --lr 1 --from 'a b'");
        assert_eq!(of("train m --out=x --from=y --resume"), "brasa train m --from 'a b'");
        assert_eq!(
            of("train --outer 1 --data d -- --out"),
            "brasa train --outer 1 --data d --from 'a b' -- --out"
        );
    }

    #[test]
    fn folders_are_numbered_and_words_are_quoted() {
        assert_eq!(next(Path::new("none/here")), Path::new("none/here-2"));
        assert_eq!(next(Path::new("none-7")), Path::new("none-8"));
        assert_eq!(next(Path::new("none-here")), Path::new("none-here-2"));
        assert_eq!(quoted("o_proj,/norm/"), "o_proj,/norm/");
        assert_eq!(quoted("it's $HOME"), r"'it'\''s $HOME'");
        assert_eq!(quoted(""), "''");
    }
}
