//! Graphs: launches that were captured from a stream, and are queued in one piece.

use std::sync::Arc;

use super::functions::Handle;
use super::{Context, DriverError, Stream};

/// Launches that were captured; none of them has run.
#[derive(Debug)]
pub(crate) struct Captured {
    context: Arc<Context>,
    handle: Handle,
}

/// A graph made ready to be queued.
#[derive(Debug)]
pub(crate) struct Executable {
    context: Arc<Context>,
    handle: Handle,
}

// SAFETY: the driver's functions may be called from any thread; the handles are never written after creation.
unsafe impl Send for Executable {}
// SAFETY: see `Send`; one owner updates and queues it, by way of `&mut` and `&`, which the driver orders.
unsafe impl Sync for Executable {}

/// Calls of other threads go on as if nothing were captured.
const THREAD_LOCAL: u32 = 1;

impl Captured {
    /// A graph of the launches that `queue` makes in `stream`, which is idle. They are recorded and do not run.
    pub(crate) fn of(
        stream: &Stream,
        queue: impl FnOnce() -> Result<(), DriverError>,
    ) -> Result<Self, DriverError> {
        let context = Arc::clone(stream.context());
        context.make_current()?;
        // SAFETY: the stream is alive.
        unsafe { context.functions.begin_capture(stream.handle(), THREAD_LOCAL) }?;
        let queued = queue();
        let mut handle = std::ptr::null_mut();
        // SAFETY: `handle` is a place for a handle. The capture is ended whether or not all was queued.
        let ended = unsafe { context.functions.end_capture(stream.handle(), &raw mut handle) };
        let captured = Self { context, handle };
        queued.and(ended).map(|()| captured)
    }

    /// Makes it ready.
    pub(crate) fn instantiate(&self) -> Result<Executable, DriverError> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: `handle` is a place for a handle; the graph is alive.
        unsafe { self.context.functions.instantiate_graph(&raw mut handle, self.handle, 0) }?;
        Ok(Executable { context: Arc::clone(&self.context), handle })
    }
}

impl Executable {
    /// Gives its launches the parameters of `captured`'s; false where the driver refuses, as for other launches. Nothing has changed then.
    pub(crate) fn update(&mut self, captured: &Captured) -> bool {
        // A result and two handles, which say what differs.
        let mut why = [0_u64; 3];
        // SAFETY: both are alive, and `why` is as large as the structure that is written.
        unsafe { self.context.functions.update_graph(self.handle, captured.handle, why.as_mut_ptr().cast()) }
            .is_ok()
    }

    /// Queues its launches in `stream`.
    ///
    /// # Safety
    ///
    /// The addresses in their parameters are of live allocations as large as the kernels read and write.
    pub(crate) unsafe fn launch(&self, stream: &Stream) -> Result<(), DriverError> {
        self.context.make_current()?;
        // SAFETY: both are alive; the caller's promise.
        unsafe { self.context.functions.launch_graph(self.handle, stream.handle()) }
    }
}

impl Drop for Captured {
    fn drop(&mut self) {
        if !self.handle.is_null() && self.context.make_current().is_ok() {
            // SAFETY: created once, destroyed once.
            let _ = unsafe { self.context.functions.destroy_graph(self.handle) };
        }
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        if self.context.make_current().is_ok() {
            // SAFETY: created once, destroyed once; the driver lets queued work end.
            let _ = unsafe { self.context.functions.destroy_executable(self.handle) };
        }
    }
}
