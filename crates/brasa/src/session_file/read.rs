//! Reading a session's file.

use std::io::Read;
use std::ops::ControlFlow;

use brasa_engine::{Engine, EngineError, GenerateOptions, SessionId};
use brasa_graph::device::DeviceError;

use super::{Identity, MAGIC, MOST_HEADER_BYTES, Seals, SessionFileError, VERSION, header};
use crate::{Error, SessionProgress};

/// Reads a file into `session`; returns the settings in it. `progress` receives the progress and may cancel.
///
/// # Errors
///
/// [`Error::SessionFile`], [`Error::Engine`], and [`DeviceError::Cancelled`] if `progress` cancels. The session is unchanged
/// then.
pub(crate) fn read(
    input: &mut dyn Read,
    engine: &Engine,
    session: SessionId,
    identity: &Identity,
    progress: &mut dyn FnMut(SessionProgress) -> ControlFlow<()>,
) -> Result<Option<GenerateOptions>, Error> {
    let mut source = Source { input, seals: Seals::default(), done_bytes: 0 };
    let front = source.take(16, "its beginning")?;
    let (magic, numbers) = front.split_at(8);
    if magic != MAGIC {
        return Err(SessionFileError::NotASession.into());
    }
    let (version, header_bytes) = numbers.split_at(4);
    let number =
        |bytes: &[u8]| bytes.iter().rev().fold(0, |number: u32, &byte| number << 8 | u32::from(byte));
    let (version, header_bytes) = (number(version), number(header_bytes) as usize);
    if version != VERSION {
        return Err(SessionFileError::Version { found: version, expected: VERSION }.into());
    }
    if header_bytes > MOST_HEADER_BYTES {
        let reason = format!("it has {header_bytes} bytes, at most {MOST_HEADER_BYTES} are possible");
        return Err(SessionFileError::malformed(reason).into());
    }
    let header = source.take(header_bytes, "its header")?;
    let header = header::from_json(&header, identity)?;
    let context = engine.config().context;
    if header.tokens > context {
        return Err(EngineError::PromptTooLong { tokens: header.tokens, context }.into());
    }
    let mut state = header.state;
    let tokens = source.take(header.tokens * 4, "its tokens")?;
    state.tokens = tokens.chunks_exact(4).map(number).collect();
    source.check_seal("header and tokens")?;
    drop(tokens);
    if let Some(options) = &header.options {
        options.sampling.validate_ids(engine.config().vocab_size).map_err(EngineError::from)?;
    }
    let pages = state.pages.clone();
    let mut restoration = engine.restore(state)?;
    let page_bytes = restoration.page_bytes();
    let rest = pages.iter().zip(&page_bytes).map(|(pages, &bytes)| pages.len() as u64 * (bytes as u64 + 32));
    let total_bytes = source.done_bytes + rest.sum::<u64>();
    let mut page = Vec::new();
    for (group, (pages, &bytes)) in pages.iter().zip(&page_bytes).enumerate() {
        for _ in pages.clone() {
            page.resize(bytes, 0);
            source.fill(&mut page, "a page")?;
            source.check_seal("a page")?;
            page = restoration.write_page(group, page)?;
            let done_bytes = source.done_bytes;
            if progress(SessionProgress { done_bytes, total_bytes }).is_break() {
                return Err(DeviceError::Cancelled.into());
            }
        }
    }
    if source.input.read(&mut [0]).map_err(SessionFileError::from)? > 0 {
        return Err(SessionFileError::malformed("there are bytes behind the last page").into());
    }
    restoration.finish(session)?;
    Ok(header.options)
}

struct Source<'a> {
    input: &'a mut dyn Read,
    seals: Seals,
    done_bytes: u64,
}

impl Source<'_> {
    /// The next `count` bytes of the file. Allocates memory only as bytes arrive, so a false `count` costs nothing.
    fn take(&mut self, count: usize, part: &'static str) -> Result<Vec<u8>, SessionFileError> {
        let mut bytes = Vec::new();
        (&mut *self.input).take(count as u64).read_to_end(&mut bytes)?;
        if bytes.len() < count {
            return Err(SessionFileError::CutOff { part });
        }
        self.saw(&bytes);
        Ok(bytes)
    }

    /// Fills `bytes` with the next bytes of the file; `part` names them in an error.
    fn fill(&mut self, bytes: &mut [u8], part: &'static str) -> Result<(), SessionFileError> {
        self.exactly(bytes, part)?;
        self.saw(bytes);
        Ok(())
    }

    fn check_seal(&mut self, part: &'static str) -> Result<(), SessionFileError> {
        let mut found = [0; 32];
        self.exactly(&mut found, part)?;
        self.done_bytes += 32;
        if self.seals.seal() == found { Ok(()) } else { Err(SessionFileError::Checksum { part }) }
    }

    fn exactly(&mut self, bytes: &mut [u8], part: &'static str) -> Result<(), SessionFileError> {
        self.input.read_exact(bytes).map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => SessionFileError::CutOff { part },
            _ => error.into(),
        })
    }

    fn saw(&mut self, bytes: &[u8]) {
        self.seals.update(bytes);
        self.done_bytes += bytes.len() as u64;
    }
}
