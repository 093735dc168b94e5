//! Metrics of a run: one line of JSON for each update and each evaluation.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use brasa_formats::{Existing, FormatError, OutputFile};
use serde::{Deserialize, Serialize};

use crate::{Result, TrainError};

/// A line of `metrics.jsonl`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    /// Number of updates so far.
    pub update: u64,
    /// The mean loss of the update's tokens, in nats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// The mean loss of the evaluation's tokens, in nats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid_loss: Option<f64>,
    /// For preferences: the share of pairs in which the chosen document was preferred.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred: Option<f64>,
    /// The learning rate of the update.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learning_rate: Option<f64>,
    /// The norm of the gradient before clipping.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gradient_norm: Option<f64>,
    /// Number of rows that were computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<usize>,
    /// Number of tokens that were learned, or evaluated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<usize>,
    /// Time of the update or the evaluation in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
}

/// A file of metrics.
#[derive(Debug)]
pub struct Metrics {
    path: PathBuf,
    file: File,
}

impl Metrics {
    /// Opens the file and keeps its lines up to update `updates`; the run appends to them. An incomplete last line is dropped.
    ///
    /// # Errors
    ///
    /// [`TrainError::Io`], [`TrainError::Format`].
    pub fn open(path: &Path, updates: u64) -> Result<Self> {
        let kept = Self::read(path)?;
        let mut out = OutputFile::create(path, Existing::Replace)?;
        for metric in kept.iter().filter(|metric| metric.update <= updates && updates > 0) {
            writeln!(out, "{}", line(metric))
                .map_err(|source| FormatError::Io { path: path.to_owned(), source })?;
        }
        out.commit()?;
        let file = OpenOptions::new().append(true).open(path).map_err(|error| TrainError::io(path, error))?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// The lines of a file that are metrics; empty if there is no file.
    ///
    /// # Errors
    ///
    /// [`TrainError::Io`].
    pub fn read(path: &Path) -> Result<Vec<Metric>> {
        match std::fs::read_to_string(path) {
            Ok(text) => Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(TrainError::io(path, error)),
        }
    }

    /// Appends a line.
    ///
    /// # Errors
    ///
    /// [`TrainError::Io`].
    pub fn add(&mut self, metric: &Metric) -> Result<()> {
        let text = line(metric) + "\n";
        self.file.write_all(text.as_bytes()).map_err(|error| TrainError::io(&self.path, error))
    }
}

fn line(metric: &Metric) -> String {
    serde_json::to_string(metric).expect("plain data is JSON")
}
