//! Writing a session's file.

use std::io::Write;
use std::ops::ControlFlow;

use brasa_engine::{GenerateOptions, Snapshot};
use brasa_graph::device::DeviceError;

use super::{Identity, MAGIC, MOST_HEADER_BYTES, Seals, SessionFileError, VERSION, header};
use crate::{Error, SessionProgress};

/// Writes a snapshot page by page; returns the bytes written. `progress` receives the progress and may cancel.
///
/// # Errors
///
/// [`Error::SessionFile`], [`Error::Engine`], and [`DeviceError::Cancelled`] if `progress` cancels.
pub(crate) fn write(
    output: &mut dyn Write,
    snapshot: &Snapshot<'_>,
    identity: &Identity,
    options: Option<&GenerateOptions>,
    progress: &mut dyn FnMut(SessionProgress) -> ControlFlow<()>,
) -> Result<u64, Error> {
    let state = snapshot.state();
    let header = header::to_json(identity, state, options).to_string();
    if header.len() > MOST_HEADER_BYTES {
        let (bytes, most) = (header.len(), MOST_HEADER_BYTES);
        return Err(SessionFileError::TooLarge { bytes, most }.into());
    }
    let tokens: Vec<u8> = state.tokens.iter().flat_map(|id| id.to_le_bytes()).collect();
    let mut seals = Seals::default();
    let front = [MAGIC.as_slice(), &VERSION.to_le_bytes(), &(header.len() as u32).to_le_bytes()].concat();
    let mut put = |bytes: &[u8]| output.write_all(bytes).map_err(SessionFileError::from);
    let mut done_bytes = 0;
    for bytes in [&front, header.as_bytes(), &tokens] {
        seals.update(bytes);
        put(bytes)?;
        done_bytes += bytes.len() as u64;
    }
    put(&seals.seal())?;
    done_bytes += 32;
    let page_bytes = snapshot.page_bytes();
    let pages =
        state.pages.iter().zip(&page_bytes).map(|(pages, &bytes)| pages.len() as u64 * (bytes as u64 + 32));
    let total_bytes = done_bytes + pages.sum::<u64>();
    let mut page = Vec::new();
    for (group, pages) in state.pages.iter().enumerate() {
        for entry in pages.clone() {
            page = snapshot.read_page(group, entry, page)?;
            seals.update(&page);
            put(&page)?;
            put(&seals.seal())?;
            done_bytes += page.len() as u64 + 32;
            if progress(SessionProgress { done_bytes, total_bytes }).is_break() {
                return Err(DeviceError::Cancelled.into());
            }
        }
    }
    Ok(done_bytes)
}
