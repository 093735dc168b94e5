//! Models split over several files named `NAME-00001-of-0000N.gguf`.
//!
//! Part 1 carries the metadata; every part carries `split.no` (from 0) and `split.count`, and the number of tensors
//! of all parts together.

use std::path::{Path, PathBuf};

use super::metadata::Metadata;
use super::reader::{Part, read_part};
use crate::directory::Directory;
use crate::error::Fault;
use crate::names::Names;
use crate::problems::Problems;
use crate::{Bytes, FormatError, Result};

const NO: &str = "split.no";
const COUNT: &str = "split.count";
const TENSORS: &str = "split.tensors.count";
/// Keys that are equal in all parts of a model that have them.
const IDENTITY: [&str; 3] = ["general.architecture", "general.name", "general.file_type"];
const FOREIGN_PARTS: &str = "parts of different models, or renamed parts, do not fit together";

/// The name of one part, taken apart: `STEM-00002-of-00005.gguf`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PartName {
    stem: String,
    /// From 1.
    number: u32,
    pub count: u32,
}

impl PartName {
    /// Parses the name of a part; `None` for other names.
    pub fn parse(name: &str) -> Option<Self> {
        let rest = name.strip_suffix(".gguf")?;
        let (rest, count) = rest.rsplit_once("-of-")?;
        let (stem, number) = rest.rsplit_once('-')?;
        let five_digits = |text: &str| {
            (text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse::<u32>().ok())?
        };
        let (number, count) = (five_digits(number)?, five_digits(count)?);
        (1..=count).contains(&number).then(|| Self { stem: stem.to_owned(), number, count })
    }

    /// True for part 1.
    pub fn is_first(&self) -> bool {
        self.number == 1
    }

    /// The names of all parts, in order.
    pub fn siblings(&self) -> impl Iterator<Item = String> + '_ {
        (1..=self.count).map(|number| format!("{}-{number:05}-of-{:05}.gguf", self.stem, self.count))
    }
}

/// Reads a file, and its siblings if it is a part; gives the files' paths and sizes too.
pub(crate) fn read_file(
    directory: &Directory,
    file: &str,
    problems: &mut Problems,
) -> Result<(Part, Vec<(PathBuf, u64)>)> {
    let path = directory.path_of(file);
    let Some(name) = PartName::parse(file).filter(|name| name.count > 1) else {
        let bytes = directory.map(file)?;
        let part = read_single(&path, &bytes, problems)?;
        return Ok((part, vec![(path, bytes.len() as u64)]));
    };

    // Without its first part a model has no metadata; without a later one it can still be inspected.
    let mut siblings = name.siblings();
    let first = siblings.next().unwrap_or_default();
    let (mut whole, first_size) = read_part_of(directory, &first, 0, name.count, problems)?;
    let mut files = vec![first_size];
    let declared = problems.take(whole.metadata.require::<u64>(TENSORS));
    let mut names = Names::default();
    for info in &whole.infos {
        names.insert(&info.name, std::iter::empty());
    }
    for (number, sibling) in (1..).zip(siblings) {
        let part = read_part_of(directory, &sibling, number, name.count, problems);
        let Some((part, size)) = problems.take(part) else { break };
        if let Some(declared) = declared
            && part.metadata.contains(TENSORS)
        {
            problems.take(check_key(&size.0, &part.metadata, TENSORS, declared));
        }
        problems.take(check_kinship(&size.0, &whole.metadata, &part.metadata));
        for info in &part.infos {
            if !names.insert(&info.name, whole.infos.iter().map(|info| info.name.as_str())) {
                let fault = Fault::new(&size.0, "this tensor appears in an earlier part too");
                problems.push(fault.of(info.name.as_str()).malformed());
            }
        }
        whole.infos.extend(part.infos);
        whole.tensors.extend(part.tensors);
        files.push(size);
    }

    if let Some(declared) = declared.filter(|&declared| declared != whole.infos.len() as u64) {
        let problem = format!("found {declared}, but the parts hold {} tensors", whole.infos.len());
        problems.push(Fault::new(path, problem).of(TENSORS).malformed());
    }
    // What is true of a part is not true of the whole.
    for key in [NO, COUNT, TENSORS] {
        whole.metadata.remove(key);
    }
    Ok((whole, files))
}

/// Reads one part, the `number`-th from 0 of `count`; gives its path and size too.
fn read_part_of(
    directory: &Directory,
    file: &str,
    number: u32,
    count: u32,
    problems: &mut Problems,
) -> Result<(Part, (PathBuf, u64))> {
    let path = directory.path_of(file);
    let bytes = directory.map(file).map_err(|error| match error {
        // The path is in front already.
        FormatError::Io { source, .. } => {
            let problem = format!("part {} of {count} cannot be read: {source}", number + 1);
            Fault::new(&path, problem).hint("all parts have to be in one directory").missing()
        }
        other => other,
    })?;
    let part = read_part(&path, &bytes, problems)?;
    for (key, expected) in [(NO, number), (COUNT, count)] {
        problems.take(check_key(&path, &part.metadata, key, expected.into()));
    }
    Ok((part, (path, bytes.len() as u64)))
}

/// Reads a file that has to be whole by itself.
pub(crate) fn read_single(path: &Path, bytes: &Bytes, problems: &mut Problems) -> Result<Part> {
    let part = read_part(path, bytes, problems)?;
    let count = problems.take(part.metadata.get::<u64>(COUNT)).flatten();
    let no = problems.take(part.metadata.get::<u64>(NO)).flatten();
    let declared = problems.take(part.metadata.get::<u64>(TENSORS)).flatten();
    // A file that was never split says 0 or nothing.
    let parts = count.unwrap_or(0).max(1);
    if let Some(no) = no.filter(|&no| no >= parts) {
        let problem = format!("part {} of {parts}", no.saturating_add(1));
        problems.push(Fault::new(path, problem).of(NO).hint(FOREIGN_PARTS).malformed());
    } else if parts == 1
        && let Some(declared) = declared.filter(|&declared| declared != part.infos.len() as u64)
    {
        let problem = format!("found {declared}, but the file holds {} tensors", part.infos.len());
        problems.push(Fault::new(path, problem).of(TENSORS).hint(FOREIGN_PARTS).malformed());
    }
    if parts > 1 {
        let no = no.unwrap_or(0);
        let problem = format!("part {} of {parts}, without the others", no.saturating_add(1));
        problems.push(
            Fault::new(path, problem)
                .hint("parts are found by name: NAME-00001-of-00002.gguf, all in one directory")
                .unsupported(),
        );
    }
    Ok(part)
}

fn check_key(path: &Path, metadata: &Metadata, key: &str, expected: u64) -> Result<()> {
    let found: u64 = metadata.require(key)?;
    if found == expected {
        return Ok(());
    }
    let fault = Fault::new(path, format!("found {found}, expected {expected}")).of(key);
    Err(fault.hint(FOREIGN_PARTS).malformed())
}

/// Refuses a later part that describes another model than the first part does. Most later parts describe none.
fn check_kinship(path: &Path, first: &Metadata, later: &Metadata) -> Result<()> {
    for key in IDENTITY {
        let (Some(expected), Some(found)) = (first.value(key), later.value(key)) else { continue };
        if found != expected {
            let fault = Fault::new(path, "another value than in the first part").of(key);
            return Err(fault.hint(FOREIGN_PARTS).malformed());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_parts() {
        let name = PartName::parse("model-Q4-00002-of-00003.gguf").unwrap();
        assert_eq!((name.number, name.count), (2, 3));
        let siblings: Vec<_> = name.siblings().collect();
        assert_eq!(siblings.len(), 3);
        assert_eq!(siblings[0], "model-Q4-00001-of-00003.gguf");
        for other in ["m.gguf", "m-1-of-2.gguf", "m-00003-of-00002.gguf", "m-00000-of-00002.gguf", "x/"] {
            assert_eq!(PartName::parse(other), None, "{other}");
        }
    }
}
