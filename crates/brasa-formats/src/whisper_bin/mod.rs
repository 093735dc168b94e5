//! Files of whisper.cpp, `ggml-*.bin`: read into the GGUF form of the same model, and written from that form.
//!
//! Layout, packed without padding: magic, eleven numbers, a filter bank, the vocabulary, and tensors up to the end of the file. A vocabulary
//! holds the tokens of text alone; the special ones behind them go without saying.

mod vocabulary;
mod writer;

pub use writer::Writer;

use std::path::Path;
use std::sync::Arc;

use crate::cursor::{Cursor, Read};
use crate::error::Fault;
use crate::gguf::{Array, Metadata, Part, TensorType};
use crate::inspection::TensorInfo;
use crate::names::Names;
use crate::problems::Problems;
use crate::{Bytes, Payload, Result, StorageFormat, Tensor};

/// The first bytes of a file of whisper.cpp: `ggml` as a little-endian number.
pub(crate) const MAGIC: [u8; 4] = *b"lmgg";

/// The largest of the eleven numbers that is believed.
const LARGEST: u32 = 1 << 24;
/// The most mel bins and frequencies of a filter bank.
const LARGEST_BANK: u32 = 1 << 14;
/// The longest token in bytes. Those of published models have at most 128.
const LONGEST_TOKEN: u64 = 1 << 8;
const LONGEST_NAME: u64 = 1 << 10;
const MOST_DIMS: u32 = 4;
/// File types are counted from zero again in each version of the quantised formats.
const FILE_TYPES: u32 = 1000;
/// The version of the quantised formats since May 2023, those of GGUF.
const QUANTISATION: u32 = 2;
/// Codes of file types below which weights are plain floats: F32, F16.
const QUANTISED: u32 = 2;

/// The eleven numbers, in the order of the file.
struct Header {
    vocab: u32,
    audio_context: u32,
    audio_width: u32,
    audio_heads: u32,
    audio_layers: u32,
    text_context: u32,
    text_width: u32,
    text_heads: u32,
    text_layers: u32,
    mel_bins: u32,
    file_type: u32,
}

/// True if the beginning of a file is one of whisper.cpp's: other models had the same magic, and no filter bank.
pub(crate) fn is_whisper(path: &Path, bytes: &Bytes) -> bool {
    let mut cursor = Cursor { path, bytes, at: 0 };
    let read = |cursor: &mut Cursor<'_>| -> Read<bool> {
        cursor.array::<4>("the magic")?;
        let header = Header::read(cursor)?;
        Ok(header.mel_bins > 0 && header.mel_bins == cursor.u32("the filter bank")?)
    };
    bytes.starts_with(&MAGIC) && read(&mut cursor).unwrap_or(false)
}

/// Reads a file.
///
/// Fails only if the part before the tensors is unreadable; mistakes in tensors are added to `problems`.
pub(crate) fn read(path: &Path, bytes: &Bytes, problems: &mut Problems) -> Result<Part> {
    let mut cursor = Cursor { path, bytes, at: MAGIC.len() };
    let header = Header::read(&mut cursor)?;
    header.check(path)?;
    let (mut infos, mut tensors) = (Vec::new(), Vec::new());
    let shared_path: Arc<Path> = path.into();
    let filters = filter_bank(&mut cursor, &header)?;
    let tokens = text_tokens(&mut cursor, &header)?;
    let metadata = header.metadata(path, &tokens)?;
    tensors.push(filters);
    let mut names = Names::default();
    while cursor.remaining() > 0 {
        // What follows a tensor that cannot be understood cannot be found either.
        let entry = match Entry::read(&mut cursor) {
            Ok(entry) => entry,
            Err(fault) => {
                problems.push(fault.malformed());
                break;
            }
        };
        if !names.insert(&entry.name, infos.iter().map(|info: &TensorInfo| info.name.as_str())) {
            let fault = Fault::new(path, "this tensor appears twice").of(entry.name).at(entry.start);
            problems.push(fault.malformed());
            break;
        }
        infos.push(entry.info(&shared_path));
        match entry.tensor(&mut cursor) {
            Ok(tensor) => tensors.push(tensor),
            Err(error) => {
                problems.push(error);
                break;
            }
        }
    }
    Ok(Part { version: None, metadata, infos, tensors })
}

impl Header {
    fn read(cursor: &mut Cursor<'_>) -> Read<Self> {
        let mut number = || {
            let at = cursor.at;
            let found = cursor.u32("the header")?;
            if found > LARGEST {
                let problem = format!("found {found}, expected at most {LARGEST}");
                return Err(Fault::new(cursor.path, problem).at(at));
            }
            Ok(found)
        };
        Ok(Self {
            vocab: number()?,
            audio_context: number()?,
            audio_width: number()?,
            audio_heads: number()?,
            audio_layers: number()?,
            text_context: number()?,
            text_width: number()?,
            text_heads: number()?,
            text_layers: number()?,
            mel_bins: number()?,
            file_type: number()?,
        })
    }

    fn check(&self, path: &Path) -> Result<()> {
        let (version, file_type) = (self.file_type / FILE_TYPES, self.file_type % FILE_TYPES);
        if file_type >= QUANTISED && version != QUANTISATION {
            let problem = format!(
                "quantised formats of version {version}, expected version {QUANTISATION}, that of GGUF"
            );
            let hint = "make the file anew: versions 0 and 1 are from before May 2023";
            return Err(Fault::new(path, problem).at(44_u64).hint(hint).unsupported());
        }
        Ok(())
    }

    /// The metadata of the GGUF file that would hold this model.
    fn metadata(&self, path: &Path, tokens: &[&[u8]]) -> Result<Metadata> {
        let vocabulary = vocabulary::of(path, self.vocab as usize, tokens)?;
        let mut metadata = Metadata::from_file(path);
        metadata.insert("general.architecture", "whisper");
        metadata.insert("whisper.vocab_size", self.vocab);
        metadata.insert("whisper.encoder.context_length", self.audio_context);
        metadata.insert("whisper.encoder.embedding_length", self.audio_width);
        metadata.insert("whisper.encoder.block_count", self.audio_layers);
        metadata.insert("whisper.encoder.attention.head_count", self.audio_heads);
        metadata.insert("whisper.encoder.mels_count", self.mel_bins);
        metadata.insert("whisper.decoder.context_length", self.text_context);
        metadata.insert("whisper.decoder.embedding_length", self.text_width);
        metadata.insert("whisper.decoder.block_count", self.text_layers);
        metadata.insert("whisper.decoder.attention.head_count", self.text_heads);
        metadata.insert("tokenizer.ggml.model", "gpt2");
        metadata.insert("tokenizer.ggml.pre", "gpt-2");
        metadata.insert("tokenizer.ggml.tokens", Array::of_strings(&vocabulary.tokens));
        metadata.insert("tokenizer.ggml.token_type", Array::of(vocabulary.types));
        metadata.insert("tokenizer.ggml.merges", Array::of_strings(&vocabulary.merges));
        metadata.insert("tokenizer.ggml.eos_token_id", vocabulary.end_of_text as u32);
        metadata.insert("tokenizer.ggml.add_bos_token", false);
        Ok(metadata)
    }
}

/// The filter bank, as a tensor `mel_filters` `[mel bins, frequencies]` in F32.
fn filter_bank(cursor: &mut Cursor<'_>, header: &Header) -> Result<Tensor> {
    let start = cursor.at;
    let (bins, frequencies) = (cursor.u32("the filter bank")?, cursor.u32("the filter bank")?);
    if bins != header.mel_bins || bins > LARGEST_BANK || !(1..=LARGEST_BANK).contains(&frequencies) {
        let problem = format!(
            "a filter bank of {bins} mel bins and {frequencies} frequencies, expected {} mel bins and at most {LARGEST_BANK} frequencies",
            header.mel_bins
        );
        return Err(Fault::new(cursor.path, problem).at(start).malformed());
    }
    let (bins, frequencies) = (bins as usize, frequencies as usize);
    let at = cursor.at;
    cursor.take((bins * frequencies * 4) as u64, "the filter bank")?;
    let window = cursor.bytes.slice(at..cursor.at).expect("already walked");
    Ok(Tensor {
        name: "mel_filters".into(),
        shape: vec![bins, frequencies],
        format: StorageFormat::F32,
        payload: Payload::Blocks(window),
    })
}

/// The bytes of the tokens that the file spells out, by id.
fn text_tokens<'a>(cursor: &mut Cursor<'a>, header: &Header) -> Read<Vec<&'a [u8]>> {
    let start = cursor.at;
    let count = cursor.u32("the vocabulary")?;
    cursor.check_count("tokens", u64::from(count), 4, start)?;
    if count > header.vocab {
        let problem = format!("{count} tokens, expected at most the model's {}", header.vocab);
        return Err(Fault::new(cursor.path, problem).at(start));
    }
    let bytes = cursor.bytes;
    (0..count)
        .map(|_| {
            let at = cursor.at;
            let len = u64::from(cursor.u32("the vocabulary")?);
            if len > LONGEST_TOKEN {
                let problem = format!("a token of {len} bytes, expected at most {LONGEST_TOKEN}");
                return Err(Fault::new(cursor.path, problem).at(at));
            }
            cursor.take(len, "the vocabulary")?;
            Ok(&bytes[cursor.at - len as usize..cursor.at])
        })
        .collect()
}

/// The description of a tensor; its data follow.
struct Entry {
    name: String,
    /// Dimensions, fastest first.
    dims: Vec<u64>,
    type_code: u32,
    /// Offset of the entry's description in bytes.
    start: usize,
    /// Offset of the entry's data in bytes.
    data: usize,
}

impl Entry {
    fn read(cursor: &mut Cursor<'_>) -> Read<Self> {
        let start = cursor.at;
        let what = "a tensor description";
        let (num_dims, name_len) = (cursor.u32(what)?, cursor.u32(what)?);
        let type_code = cursor.u32(what)?;
        if num_dims > MOST_DIMS || u64::from(name_len) > LONGEST_NAME {
            let problem = format!(
                "a tensor of {num_dims} dimensions with a name of {name_len} bytes, expected at most {MOST_DIMS} and {LONGEST_NAME}"
            );
            return Err(Fault::new(cursor.path, problem).at(start));
        }
        let dims = (0..num_dims).map(|_| cursor.u32(what).map(u64::from)).collect::<Read<Vec<_>>>()?;
        let at = cursor.at;
        let path = cursor.path;
        let name = str::from_utf8(cursor.take(u64::from(name_len), "a tensor's name")?)
            .map_err(|_| Fault::new(path, "a tensor's name is not UTF-8").at(at))?
            .to_owned();
        Ok(Self { name, dims, type_code, start, data: cursor.at })
    }

    /// Dimensions, outermost first. Biases of convolutions are stored as matrices with a column.
    fn shape(&self) -> Vec<u64> {
        match self.dims[..] {
            [1, outputs] if self.name.rsplit_once('.').is_some_and(|(_, last)| last == "bias") => {
                vec![outputs]
            }
            _ => self.dims.iter().rev().copied().collect(),
        }
    }

    fn info(&self, path: &Arc<Path>) -> TensorInfo {
        let known = TensorType::from_code(self.type_code);
        TensorInfo {
            name: self.name.clone(),
            shape: self.shape(),
            type_name: TensorType::shown(self.type_code),
            format: StorageFormat::from_gguf_code(self.type_code),
            file: Arc::clone(path),
            offset_bytes: self.data as u64,
            size_bytes: known.and_then(|known| known.size_bytes(&self.dims)),
        }
    }

    /// Reads one tensor. The cursor stands after its data then.
    fn tensor(&self, cursor: &mut Cursor<'_>) -> Result<Tensor> {
        let fault = |problem: String| Fault::new(cursor.path, problem).of(self.name.as_str());
        let known = TensorType::from_code(self.type_code);
        let (Some(known), Some(format)) = (known, StorageFormat::from_gguf_code(self.type_code)) else {
            return Err(fault(TensorType::unread(self.type_code)).unsupported());
        };
        let Some(size) = known.size_bytes(&self.dims) else {
            let problem = format!(
                "dimensions {:?} in {}, whose blocks have {} elements",
                self.dims, known.name, known.block_len
            );
            return Err(fault(problem).at(self.start).malformed());
        };
        cursor.take(size, "a tensor").map_err(|fault| fault.of(self.name.as_str()))?;
        let payload = cursor.bytes.slice(self.data..cursor.at).expect("already walked");
        // Every dimension of a tensor that is not empty is at most its size.
        let shape = self.shape().into_iter().map(|dim| dim as usize).collect();
        Ok(Tensor { name: self.name.clone(), shape, format, payload: Payload::Blocks(payload) })
    }
}
