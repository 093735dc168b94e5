//! The state of a run in one file. A run continues from it bit for bit.
//!
//! The file holds eight bytes that name the format, the length of a JSON header (u64), the header, all numbers (f32), all codes
//! of eight bits, and the SHA-256 of all this. Numbers are little-endian. A new file replaces the last one only when it is
//! complete, so the last one survives an interrupted write.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use brasa_formats::{Existing, FormatError, OutputFile, read_file};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::data::Place;
use crate::optimizer::{BLOCK, Codes, Moment};
use crate::{Result, TrainError};

const MAGIC: &[u8; 8] = b"BRASATR1";
const HASH_BYTES: usize = 32;
/// Numbers that are written at once.
const PIECE: usize = 1 << 16;
/// Most bytes of a checkpoint.
const MOST_BYTES: u64 = 1 << 40;

/// The state of a run between two updates.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// Updates so far.
    pub updates: u64,
    /// The place of the next step in the data.
    pub place: Place,
    /// Settings of the run by name: everything that affects the run's bits.
    pub settings: BTreeMap<String, String>,
    /// The best evaluation so far.
    pub best: Option<Best>,
    /// The update of the last evaluation.
    pub evaluated: Option<u64>,
    /// Evaluations since the best one.
    pub worse: u64,
    /// The [arrays](crate::Trainer::arrays).
    pub values: Vec<Vec<f32>>,
    /// The optimizer's moments for each array.
    pub moments: Vec<Vec<Moment>>,
    /// The values at the best evaluation; empty before the first one.
    pub best_values: Vec<Vec<f32>>,
}

/// The best evaluation of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// The update after which it was made.
    pub update: u64,
    /// Loss of the evaluation.
    pub loss: f64,
}

#[derive(Serialize, Deserialize)]
struct Header {
    updates: u64,
    place: Place,
    settings: BTreeMap<String, String>,
    best: Option<Best>,
    evaluated: Option<u64>,
    worse: u64,
    /// Number of values in each array.
    values: Vec<usize>,
    moments: Vec<Vec<Size>>,
    best_values: Vec<usize>,
}

/// The size of a moment.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(untagged)]
enum Size {
    /// Numbers in f32.
    Floats(usize),
    /// Numbers in eight bits: magnitudes of blocks in f32, then the codes.
    Codes { codes: usize, is_signed: bool },
}

impl Size {
    fn of(moment: &Moment) -> Self {
        match moment {
            Moment::Floats(values) => Self::Floats(values.len()),
            Moment::Codes(own) => Self::Codes { codes: own.codes.len(), is_signed: own.is_signed },
        }
    }

    /// Bytes of the array.
    fn bytes(self) -> usize {
        match self {
            Self::Floats(count) => count.saturating_mul(4),
            Self::Codes { codes, .. } => codes.saturating_add(codes.div_ceil(BLOCK).saturating_mul(4)),
        }
    }
}

impl State {
    /// Writes the state. An existing file is replaced once the new one is complete.
    ///
    /// # Errors
    ///
    /// [`TrainError::Format`] if the disk is full or fails.
    pub fn write(&self, path: &Path) -> Result<()> {
        let Self { values, moments, .. } = self;
        self.write_with(path, values, moments)
    }

    /// Writes the state with `values` and `moments` in place of its own, so that large arrays need not be copied.
    ///
    /// # Errors
    ///
    /// Errors of [`write`](Self::write).
    pub fn write_with(&self, path: &Path, values: &[Vec<f32>], moments: &[Vec<Moment>]) -> Result<()> {
        let sizes = |arrays: &[Vec<f32>]| arrays.iter().map(Vec::len).collect::<Vec<_>>();
        let header = Header {
            updates: self.updates,
            place: self.place,
            settings: self.settings.clone(),
            best: self.best,
            evaluated: self.evaluated,
            worse: self.worse,
            values: sizes(values),
            moments: moments.iter().map(|arrays| arrays.iter().map(Size::of).collect()).collect(),
            best_values: sizes(&self.best_values),
        };
        let io = |source: std::io::Error| FormatError::Io { path: path.to_owned(), source };
        let header = serde_json::to_vec(&header).map_err(|error| io(error.into()))?;
        let (mut file, mut hash) = (OutputFile::create(path, Existing::Replace)?, Sha256::new());
        let mut put = |bytes: &[u8]| {
            hash.update(bytes);
            file.write_all(bytes).map_err(io)
        };
        put(MAGIC)?;
        put(&(header.len() as u64).to_le_bytes())?;
        put(&header)?;
        let of_moments = moments.iter().flatten().map(|moment| match moment {
            Moment::Floats(values) => values,
            Moment::Codes(codes) => &codes.magnitudes,
        });
        let mut bytes = Vec::new();
        for piece in
            values.iter().chain(of_moments).chain(&self.best_values).flat_map(|array| array.chunks(PIECE))
        {
            bytes.clear();
            bytes.extend(piece.iter().flat_map(|x| x.to_le_bytes()));
            put(&bytes)?;
        }
        for moment in moments.iter().flatten() {
            if let Moment::Codes(codes) = moment {
                put(&codes.codes)?;
            }
        }
        file.write_all(&hash.finalize()).map_err(io)?;
        Ok(file.commit()?)
    }

    /// Reads a state.
    ///
    /// # Errors
    ///
    /// [`TrainError::Format`] if there is no file; [`TrainError::Checkpoint`] if it is no checkpoint or is damaged.
    pub fn read(path: &Path) -> Result<Self> {
        let refuse = |what: &str| TrainError::Checkpoint {
            path: path.display().to_string(),
            what: what.into(),
            hint: "start the run anew, in another folder or without the file".into(),
        };
        let bytes = read_file(path, MOST_BYTES)?;
        let Some(inner) = bytes.strip_prefix(MAGIC) else {
            return Err(refuse("not a checkpoint of Brasa's training"));
        };
        let (Some((content, hash)), Some((header_bytes, rest))) =
            (bytes.split_last_chunk::<HASH_BYTES>(), inner.split_first_chunk::<8>())
        else {
            return Err(refuse("cut off"));
        };
        if Sha256::digest(content).as_slice() != hash {
            return Err(refuse("damaged: its SHA-256 is another"));
        }
        let rest = &rest[..rest.len() - HASH_BYTES];
        let length =
            usize::try_from(u64::from_le_bytes(*header_bytes)).ok().filter(|&length| length <= rest.len());
        let (header, numbers) = rest.split_at(length.ok_or_else(|| refuse("cut off"))?);
        let header: Header = serde_json::from_slice(header).map_err(|error| refuse(&error.to_string()))?;
        let floats = header.values.iter().chain(&header.best_values).map(|size| size.saturating_mul(4));
        let all = floats.chain(header.moments.iter().flatten().map(|size| size.bytes()));
        if all.fold(0, |sum: usize, size| sum.saturating_add(size)) != numbers.len() {
            return Err(refuse("another number of values than its header says"));
        }
        let is_code = |size: &&Size| matches!(size, Size::Codes { .. });
        let codes = header.moments.iter().flatten().filter(is_code).map(|size| match size {
            Size::Codes { codes, .. } => *codes,
            Size::Floats(_) => 0,
        });
        // Codes lie behind all floats.
        let (numbers, mut codes) = numbers.split_at(numbers.len() - codes.sum::<usize>());
        let mut numbers = numbers.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        let mut take = |size: usize| -> Vec<f32> { numbers.by_ref().take(size).collect() };
        let values = header.values.iter().map(|&size| take(size)).collect();
        let mut moment = |size: &Size| match *size {
            Size::Floats(count) => Moment::Floats(take(count)),
            Size::Codes { codes: count, is_signed } => {
                let (own, rest) = codes.split_at(count);
                codes = rest;
                let magnitudes = take(count.div_ceil(BLOCK));
                Moment::Codes(Codes { codes: own.to_vec(), magnitudes, is_signed })
            }
        };
        let moments = (header.moments.iter()).map(|sizes| sizes.iter().map(&mut moment).collect()).collect();
        let best_values = header.best_values.iter().map(|&size| take(size)).collect();
        let Header { updates, place, settings, best, evaluated, worse, .. } = header;
        Ok(Self { updates, place, settings, best, evaluated, worse, values, moments, best_values })
    }

    /// Checks that a run with `settings` may continue from this state.
    ///
    /// # Errors
    ///
    /// [`TrainError::Checkpoint`], naming the first setting that differs.
    pub fn check(&self, path: &Path, settings: &BTreeMap<String, String>) -> Result<()> {
        let names = self.settings.keys().chain(settings.keys());
        for name in names {
            let [there, here] = [&self.settings, settings].map(|settings| settings.get(name));
            if there != here {
                let shown = |value: Option<&String>| value.map_or("not set", String::as_str).to_owned();
                return Err(TrainError::Checkpoint {
                    path: path.display().to_string(),
                    what: format!("{name} was {}, now it is {}", shown(there), shown(here)),
                    hint: "go on with the settings and the data of the run, or start anew in another folder"
                        .into(),
                });
            }
        }
        Ok(())
    }
}
