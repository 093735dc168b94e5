//! Samples of a stream that are kept for a second reading.

use std::io::{Read, Seek, SeekFrom, Write};
use std::sync::{Arc, Mutex, PoisonError};

use tempfile::SpooledTempFile;

use crate::{AudioError, Result};

/// Bytes that are kept in memory; two minutes of sound. More go into a temporary file.
const MOST_BYTES: usize = 8 << 20;
/// Samples that are read at once.
const BLOCK: usize = 1 << 14;

/// Samples at 16 kHz in memory or in a temporary file, which has no name and goes with the last owner.
#[derive(Clone, Debug)]
pub(crate) struct Spool {
    file: Arc<Mutex<SpooledTempFile>>,
    name: String,
}

impl Spool {
    /// An empty spool. `name` names the stream in errors.
    pub fn new(name: String) -> Self {
        Self { file: Arc::new(Mutex::new(SpooledTempFile::new(MOST_BYTES))), name }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Appends samples.
    pub fn write(&self, samples: &[f32]) -> Result<()> {
        let bytes: Vec<u8> = samples.iter().flat_map(|sample| sample.to_le_bytes()).collect();
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(&bytes).map_err(self.failed())
    }

    /// Samples from `start` on, as many as one read returns; empty at the end.
    pub fn read(&self, start: u64) -> Result<Vec<f32>> {
        let mut bytes = Vec::with_capacity(BLOCK * 4);
        {
            let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
            file.seek(SeekFrom::Start(start * 4)).map_err(self.failed())?;
            Read::take(&mut *file, BLOCK as u64 * 4).read_to_end(&mut bytes).map_err(self.failed())?;
        }
        Ok(bytes.as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect())
    }

    fn failed(&self) -> impl FnOnce(std::io::Error) -> AudioError {
        let name = self.name.clone();
        move |source| AudioError::Kept { name, folder: std::env::temp_dir(), source }
    }
}
