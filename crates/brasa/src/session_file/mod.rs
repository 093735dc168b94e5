//! Files that keep sessions: the text of a [`Session`](crate::Session), its keys and values, and the settings of its last
//! request.
//!
//! # The file
//!
//! Integers are little-endian. A *seal* is the SHA-256 of the seal before it (of nothing for the first) and of the bytes
//! since.
//!
//! | bytes | |
//! |---|---|
//! | 8 | `BRASAKV` and a zero |
//! | 4 | version: 1 |
//! | 4 | bytes of the header, at most 4 MiB |
//! | header | JSON: the identity of model and settings, the number of tokens, the pages of each cache group, the generation's settings |
//! | 4 a token | token ids |
//! | 32 | seal |
//! | page and 32, for each page | a page in the [canonical layout](mod@brasa_graph::page), as it is, and a seal; group after group |
//!
//! A reader allocates one page, and otherwise memory in proportion to the bytes that it has read. Nothing of a file is used
//! before its seal has been checked.

mod error;
mod header;
mod identity;
mod read;
pub(crate) mod settings;
mod write;

pub use error::SessionFileError;
pub(crate) use identity::{Identity, Weights, hex, tokenizer_fingerprint};
pub(crate) use read::read;
pub(crate) use write::write;

use sha2::{Digest, Sha256};

/// First bytes of a file.
const MAGIC: &[u8; 8] = b"BRASAKV\0";
/// The version of files that are written; no other version is read.
const VERSION: u32 = 1;
/// Most bytes of a header.
const MOST_HEADER_BYTES: usize = 4 << 20;

/// A chain of checksums.
#[derive(Default)]
struct Seals(Sha256);

impl Seals {
    /// Adds bytes to the next seal.
    fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The seal of the bytes so far; the next one begins with it.
    fn seal(&mut self) -> [u8; 32] {
        let seal: [u8; 32] = std::mem::take(&mut self.0).finalize().into();
        self.0.update(seal);
        seal
    }
}
