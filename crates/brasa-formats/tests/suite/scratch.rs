//! A place for files that a test makes.

use std::fs;
use std::path::{Path, PathBuf};

use brasa_formats::{Existing, OutputFile};

/// An empty directory, removed with everything in it at the end of the test.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new(test: &str) -> Self {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).unwrap();
        Self(directory)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// An output at a place that is empty, or whose file it may replace.
    #[allow(dead_code, reason = "not every test writes")]
    pub fn output(path: impl AsRef<Path>) -> OutputFile {
        OutputFile::create(path.as_ref(), Existing::Replace).unwrap()
    }

    /// Names of all files in the directory, hidden ones too.
    #[allow(dead_code, reason = "not every test looks")]
    pub fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
