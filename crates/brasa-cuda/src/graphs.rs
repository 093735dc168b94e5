//! A step's launches as one graph.
//!
//! Each step is captured as it would be queued, in a stream of its own in which nothing runs. The graph of the last step of as many rows and
//! segments takes the new parameters over if its launches are the same, and is made anew if they are not. So what runs is what would have
//! been queued; only the gaps between kernels differ.
#![expect(unsafe_code, reason = "queues captured launches")]

use std::sync::Arc;

use crate::driver::{Captured, Context, DriverError, Executable, Stream};

/// Most rows of a step that is captured: kernels of more rows last longer than launches.
pub(crate) const MOST_ROWS: usize = 64;
/// Graphs that are kept.
const KEPT: usize = 8;

/// The graphs of a program.
#[derive(Debug)]
pub(crate) struct Graphs {
    stream: Stream,
    /// Rows and segments of a step, and its graph; the latest used last.
    kept: Vec<((usize, usize), Executable)>,
}

impl Graphs {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self, DriverError> {
        Ok(Self { stream: Stream::new(context)?, kept: Vec::new() })
    }

    /// The stream that is captured.
    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Queues in `stream` what was captured for a step of these rows and segments.
    ///
    /// # Safety
    ///
    /// The addresses in the parameters are of live allocations as large as the kernels read and write.
    pub(crate) unsafe fn launch(
        &mut self,
        captured: &Captured,
        shape: (usize, usize),
        stream: &Stream,
    ) -> Result<(), DriverError> {
        let place = self.kept.iter().position(|(kept, _)| *kept == shape);
        let mut old = place.map(|place| self.kept.remove(place).1);
        let updated = old.as_mut().is_some_and(|graph| graph.update(captured));
        let graph = match old.filter(|_| updated) {
            Some(graph) => graph,
            None => captured.instantiate()?,
        };
        // SAFETY: the caller's promise.
        unsafe { graph.launch(stream) }?;
        if self.kept.len() == KEPT {
            self.kept.remove(0);
        }
        self.kept.push((shape, graph));
        Ok(())
    }
}
