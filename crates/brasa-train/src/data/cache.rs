//! A cache of token ids of examples in files, for later runs.
//!
//! A file is named by the SHA-256 of everything that its token ids depend on: the examples, the tokenizer, the chat template and
//! the options. It holds eight bytes that name the format, the length of a JSON header (u64), the header, token ids (u32),
//! learned spans (two u32 and an f32 each), and the SHA-256 of all of that. Numbers are little-endian. A file that is damaged is
//! made anew.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read, Write as _};
use std::path::{Path, PathBuf};

use brasa_formats::{Existing, FormatError, OutputFile, read_file};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::dataset::Dataset;
use super::document::{Document, Span};
use super::encode::{DataOptions, Examples};
use super::report::Report;
use crate::{Result, TrainError};

/// The first bytes of a file. They change with the form of the file, and with the encoding of rows as token ids.
const MAGIC: &[u8; 8] = b"BRASATK1";
const HASH_BYTES: usize = 32;
/// Bytes of a span.
const SPAN_BYTES: usize = 12;
/// Most bytes of a file.
const MOST_BYTES: u64 = 1 << 40;

/// A folder of token ids, for one tokenizer and chat template.
#[derive(Clone, Debug)]
pub struct TokenCache {
    folder: PathBuf,
    tokenizer: String,
}

#[derive(Serialize, Deserialize)]
struct Header {
    report: Report,
    /// For each document, the number of its tokens, of its spans, and of the fields of its row.
    documents: Vec<[usize; 3]>,
}

impl TokenCache {
    /// A cache in `folder`, which is created if it does not exist. `tokenizer` is a fingerprint of the tokenizer and the chat
    /// template.
    ///
    /// # Errors
    ///
    /// [`TrainError::Io`] if the folder cannot be made.
    pub fn new(folder: impl Into<PathBuf>, tokenizer: impl Into<String>) -> Result<Self> {
        let folder = folder.into();
        std::fs::create_dir_all(&folder).map_err(|error| TrainError::io(&folder, error))?;
        Ok(Self { folder, tokenizer: tokenizer.into() })
    }

    /// Reads a file of examples as [`Dataset::read`] does, or takes the cached token ids of an earlier call. Returns true if they
    /// were cached.
    ///
    /// # Errors
    ///
    /// Errors of [`Dataset::read`]; [`TrainError::Format`] if token ids cannot be written.
    pub fn read(
        &self,
        path: &Path,
        examples: &Examples<'_>,
        options: &DataOptions,
    ) -> Result<(Dataset, bool)> {
        let cached = self.path_of(path, examples, options)?;
        if let Some(data) = read_file(&cached, MOST_BYTES).ok().and_then(|bytes| decode(&bytes)) {
            return Ok((data, true));
        }
        let data = Dataset::read(path, examples, options)?;
        write(&cached, &data)?;
        Ok((data, false))
    }

    /// Path of the cache file for these examples.
    fn path_of(&self, path: &Path, examples: &Examples<'_>, options: &DataOptions) -> Result<PathBuf> {
        let mut hash = Sha256::new();
        let is_table = path.extension().is_some_and(|end| end.eq_ignore_ascii_case("csv"));
        let has_template = examples.template.is_some();
        let vocab_size = examples.vocab_size;
        let settings = format!("{}\0{options:?}\0{vocab_size}\0{has_template}\0{is_table}\0", self.tokenizer);
        hash.update(MAGIC);
        hash.update(settings);
        let mut file = File::open(path).map_err(|error| TrainError::io(path, error))?;
        let mut buffer = vec![0; 1 << 16];
        loop {
            match file.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => hash.update(&buffer[..count]),
                Err(error) => return Err(TrainError::io(path, error)),
            }
        }
        let mut name = String::new();
        for byte in hash.finalize() {
            // Writing to a string does not fail.
            let _ = write!(name, "{byte:02x}");
        }
        Ok(self.folder.join(name + ".tokens"))
    }
}

fn write(path: &Path, data: &Dataset) -> Result<()> {
    let sizes =
        |(document, &fields): (&Document, &usize)| [document.tokens.len(), document.spans.len(), fields];
    let documents = data.documents.iter().zip(&data.fields).map(sizes).collect();
    let header = Header { report: data.report.clone(), documents };
    let io = |source: std::io::Error| FormatError::Io { path: path.to_owned(), source };
    let header = serde_json::to_vec(&header).map_err(|error| io(error.into()))?;
    let mut bytes = [&MAGIC[..], &(header.len() as u64).to_le_bytes(), &header].concat();
    let tokens = data.documents.iter().flat_map(|document| &document.tokens);
    tokens.for_each(|token| bytes.extend(token.to_le_bytes()));
    for span in data.documents.iter().flat_map(|document| &document.spans) {
        bytes.extend([span.tokens.start.to_le_bytes(), span.tokens.end.to_le_bytes()].as_flattened());
        bytes.extend(span.weight.to_le_bytes());
    }
    let hash = Sha256::digest(&bytes);
    let mut file = OutputFile::create(path, Existing::Replace)?;
    file.write_all(&bytes).and_then(|()| file.write_all(&hash)).map_err(io)?;
    Ok(file.commit()?)
}

/// The examples in a cache file; `None` if the file is damaged or of another kind.
fn decode(bytes: &[u8]) -> Option<Dataset> {
    let (content, hash) = bytes.split_last_chunk::<HASH_BYTES>()?;
    if Sha256::digest(content).as_slice() != hash {
        return None;
    }
    let (length, rest) = content.strip_prefix(MAGIC)?.split_first_chunk::<8>()?;
    let (header, rest) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
    let Header { report, documents } = serde_json::from_slice(header).ok()?;
    let sum = |part: usize| documents.iter().try_fold(0_usize, |sum, sizes| sum.checked_add(sizes[part]));
    let (tokens, spans) = rest.split_at_checked(sum(0)?.checked_mul(4)?)?;
    if Some(spans.len()) != sum(1)?.checked_mul(SPAN_BYTES) {
        return None;
    }
    let number = |bytes: &[u8; 4]| u32::from_le_bytes(*bytes);
    let mut tokens = tokens.as_chunks::<4>().0.iter().map(number);
    let mut spans = spans.as_chunks::<4>().0.as_chunks::<3>().0.iter().map(|[start, end, weight]| Span {
        tokens: number(start)..number(end),
        weight: f32::from_le_bytes(*weight),
    });
    let fields = documents.iter().map(|sizes| sizes[2]).collect();
    let document = |&[count, own_spans, _]: &[usize; 3]| Document {
        tokens: tokens.by_ref().take(count).collect(),
        spans: spans.by_ref().take(own_spans).collect(),
    };
    Some(Dataset { documents: documents.iter().map(document).collect(), fields, report })
}
