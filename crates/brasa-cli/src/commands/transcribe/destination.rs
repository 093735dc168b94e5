//! Destinations of transcripts. Existing files are replaced only with `--force`.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use brasa::audio::transcript::TranscriptFormat;

use super::sound::STANDARD_INPUT;
use crate::args::TranscribeArguments;
use crate::failure::Failure;
use crate::output;

/// A sound file, and the destination of its transcript.
pub struct Destination {
    /// The sound file; `-` for standard input.
    pub input: PathBuf,
    /// The file of the transcript; `None` for standard output.
    pub output: Option<PathBuf>,
}

impl Destination {
    /// The input's name in messages.
    pub fn input_name(&self) -> String {
        let name = self.input.file_name().filter(|_| self.input.as_os_str() != "-");
        name.map_or_else(|| STANDARD_INPUT.into(), |name| name.to_string_lossy().into_owned())
    }
}

/// The permission to replace transcripts.
pub fn force(arguments: &TranscribeArguments) -> output::Force {
    output::Force { given: arguments.force, how: "--force" }
}

/// The destination of each file's transcript: standard output for one file, unless `--out` names a folder; several transcripts go
/// beside their files.
///
/// # Errors
///
/// [`Failure::Usage`] for files that would have the same transcript, [`Failure::Failed`] for a transcript that exists, a file
/// that does not, and a folder that cannot be created.
pub fn of(arguments: &TranscribeArguments) -> Result<Vec<Destination>, Failure> {
    let mut files = arguments.files.clone();
    if files.is_empty() {
        if std::io::stdin().is_terminal() {
            return Err(Failure::Usage(
                "nothing to transcribe\nhint: give files of sound, - for standard input, or --stream".into(),
            ));
        }
        files.push("-".into());
    }
    for file in files.iter().filter(|file| file.as_os_str() != "-") {
        let metadata = std::fs::metadata(file).map_err(|error| Failure::file(file, &error))?;
        if metadata.is_dir() {
            let error = brasa::audio::AudioError::Folder { path: file.clone() };
            return Err(brasa::Error::from(error).into());
        }
    }
    if let [file] = &files[..]
        && arguments.out.is_none()
    {
        return Ok(vec![Destination { input: file.clone(), output: None }]);
    }
    if let Some(folder) = &arguments.out {
        std::fs::create_dir_all(folder).map_err(|error| Failure::file(folder, &error))?;
    }
    let mut taken: HashMap<PathBuf, PathBuf> = HashMap::new();
    let mut destinations = Vec::new();
    for input in files {
        let output = beside(&input, arguments.out.as_deref(), arguments.format);
        if let Some(other) = taken.insert(output.clone(), input.clone()) {
            return Err(Failure::Usage(format!(
                "{} and {} would both be transcribed to {}\nhint: give them one by one, or another --out to each",
                other.display(),
                input.display(),
                output.display()
            )));
        }
        output::refuse_existing(&output, force(arguments))?;
        destinations.push(Destination { input, output: Some(output) });
    }
    let is_input = |path: &PathBuf| destinations.iter().any(|destination| destination.input == *path);
    if let Some(path) = taken.keys().find(|path| is_input(path)) {
        return Err(Failure::Usage(format!(
            "{}: a transcript would replace this sound file",
            path.display()
        )));
    }
    Ok(destinations)
}

/// The path of a transcript: the sound's name with the format's extension, in `folder` or beside the sound.
fn beside(input: &Path, folder: Option<&Path>, format: TranscriptFormat) -> PathBuf {
    let is_standard = input.as_os_str() == "-";
    let stem = input.file_stem().filter(|_| !is_standard);
    let mut name = stem.map_or_else(|| OsString::from("transcript"), OsString::from);
    name.push(".");
    name.push(format.extension());
    match folder {
        Some(folder) => folder.join(name),
        None if is_standard => PathBuf::from(name),
        None => input.with_file_name(name),
    }
}
