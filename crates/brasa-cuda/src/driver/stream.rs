//! Streams: queues of copies and kernels that run in order.

use std::ffi::{c_uint, c_void};
use std::sync::Arc;
use std::time::Duration;

use super::functions::{COOPERATIVE, Handle, LaunchAttribute, LaunchConfig, PROGRAMMATIC_SERIALIZATION};
use super::{Context, DriverError, Kernel};

/// A queue of work. What is queued later begins when everything queued before has ended.
#[derive(Debug)]
pub(crate) struct Stream {
    context: Arc<Context>,
    handle: Handle,
}

// SAFETY: the driver's functions may be called from any thread; the handle is never written after creation.
unsafe impl Send for Stream {}
// SAFETY: see `Send`.
unsafe impl Sync for Stream {}

/// How many blocks of how many threads a kernel is launched with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grid {
    /// Blocks along each axis.
    pub blocks: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of dynamic shared memory of a block.
    pub shared_bytes: u32,
}

/// A point in a stream, whose time is known once it was passed.
#[derive(Debug)]
pub(crate) struct Event {
    context: Arc<Context>,
    handle: Handle,
}

/// A stream that does not wait for the default stream.
const NON_BLOCKING: u32 = 1;

impl Stream {
    /// An empty queue.
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self, DriverError> {
        context.make_current()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: `handle` is a place for a handle.
        unsafe { context.functions.create_stream(&raw mut handle, NON_BLOCKING) }?;
        Ok(Self { context: Arc::clone(context), handle })
    }

    /// Queues a copy of `from` to device memory at `to`.
    ///
    /// # Safety
    ///
    /// `to` addresses that many bytes of a live allocation, and `from` is neither freed nor written before the stream
    /// was [synchronised](Self::synchronize).
    pub(crate) unsafe fn upload(&self, to: u64, from: &[u8]) -> Result<(), DriverError> {
        if from.is_empty() {
            return Ok(());
        }
        self.context.make_current()?;
        // SAFETY: the caller's promise.
        unsafe { self.context.functions.upload(to, from.as_ptr().cast(), from.len(), self.handle) }
    }

    /// Copies device memory at `from` to `to`, and waits until everything queued has ended.
    ///
    /// # Safety
    ///
    /// `from` addresses that many bytes of a live allocation.
    pub(crate) unsafe fn download(&self, to: &mut [u8], from: u64) -> Result<(), DriverError> {
        if to.is_empty() {
            return self.synchronize();
        }
        self.context.make_current()?;
        // SAFETY: the caller's promise; `to` outlives the wait below.
        unsafe { self.context.functions.download(to.as_mut_ptr().cast(), from, to.len(), self.handle) }?;
        self.synchronize()
    }

    /// Queues a copy of `bytes` within device memory.
    ///
    /// # Safety
    ///
    /// Both addresses are of that many bytes of live allocations, which do not overlap.
    pub(crate) unsafe fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<(), DriverError> {
        if bytes == 0 {
            return Ok(());
        }
        self.context.make_current()?;
        // SAFETY: the caller's promise.
        unsafe { self.context.functions.copy(to, from, bytes, self.handle) }
    }

    /// Queues zeros for `bytes` of device memory at `address`.
    ///
    /// # Safety
    ///
    /// `address` is of that many bytes of a live allocation.
    pub(crate) unsafe fn clear(&self, address: u64, bytes: usize) -> Result<(), DriverError> {
        if bytes == 0 {
            return Ok(());
        }
        self.context.make_current()?;
        // SAFETY: the caller's promise.
        unsafe { self.context.functions.fill(address, 0, bytes, self.handle) }
    }

    /// Queues a kernel whose only parameter is `parameters`, by value. Kernels of compute capability 9.0 start while the launch in front
    /// of them ends, and wait for it themselves (`griddepcontrol.wait`).
    ///
    /// # Safety
    ///
    /// `P` is the kernel's parameter structure, and the addresses in it are of live allocations as large as the kernel
    /// reads and writes.
    pub(crate) unsafe fn launch<P: Copy>(
        &self,
        kernel: &Kernel,
        grid: Grid,
        parameters: &P,
    ) -> Result<(), DriverError> {
        let overlaps = self.context.device().capability == (9, 0);
        // SAFETY: the caller's promise.
        unsafe { self.launch_with(kernel, grid, parameters, overlaps.then_some(PROGRAMMATIC_SERIALIZATION)) }
    }

    /// Queues a kernel behind everything queued before.
    ///
    /// # Safety
    ///
    /// `P` is the kernel's parameter structure, and the addresses in it are of live allocations as large as the kernel
    /// reads and writes.
    pub(crate) unsafe fn launch_behind<P: Copy>(
        &self,
        kernel: &Kernel,
        grid: Grid,
        parameters: &P,
    ) -> Result<(), DriverError> {
        // SAFETY: the caller's promise.
        unsafe { self.launch_with(kernel, grid, parameters, None) }
    }

    /// Queues a kernel like [`launch`](Self::launch), all of whose blocks run at the same time, behind everything queued before.
    ///
    /// # Safety
    ///
    /// `P` is the kernel's parameter structure, and the addresses in it are of live allocations as large as the kernel
    /// reads and writes.
    pub(crate) unsafe fn launch_together<P: Copy>(
        &self,
        kernel: &Kernel,
        grid: Grid,
        parameters: &P,
    ) -> Result<(), DriverError> {
        // SAFETY: the caller's promise.
        unsafe { self.launch_with(kernel, grid, parameters, Some(COOPERATIVE)) }
    }

    /// Queues a kernel with one wish or none.
    ///
    /// # Safety
    ///
    /// `P` is the kernel's parameter structure, and the addresses in it are of live allocations as large as the kernel
    /// reads and writes.
    unsafe fn launch_with<P: Copy>(
        &self,
        kernel: &Kernel,
        Grid { blocks, threads, shared_bytes }: Grid,
        parameters: &P,
        wish: Option<c_uint>,
    ) -> Result<(), DriverError> {
        self.context.make_current()?;
        let mut value = [0; 17];
        // The eight bytes of a value that begins behind the padding of its number.
        value[1] = 1;
        let attribute = LaunchAttribute { id: wish.unwrap_or(0), value };
        let config = LaunchConfig {
            grid: blocks,
            block: [threads, 1, 1],
            shared_bytes,
            stream: self.handle,
            attributes: &raw const attribute,
            attributes_count: wish.is_some().into(),
        };
        let mut list = [std::ptr::from_ref(parameters).cast::<c_void>().cast_mut()];
        // SAFETY: the caller's promise; the driver copies the parameters before it returns.
        unsafe {
            self.context.functions.launch(
                &raw const config,
                kernel.handle,
                list.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        }
    }

    /// True while something queued has not ended.
    pub(crate) fn is_busy(&self) -> Result<bool, DriverError> {
        self.context.make_current()?;
        // SAFETY: the stream is alive.
        match unsafe { self.context.functions.query_stream(self.handle) } {
            Ok(()) => Ok(false),
            Err(error) if error.is_not_ready() => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Waits until everything queued has ended.
    pub(crate) fn synchronize(&self) -> Result<(), DriverError> {
        self.context.make_current()?;
        // SAFETY: the stream is alive.
        unsafe { self.context.functions.synchronize_stream(self.handle) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.context.make_current().is_ok() {
            // SAFETY: created once, destroyed once; the driver lets queued work end.
            let _ = unsafe { self.context.functions.destroy_stream(self.handle) };
        }
    }
}

impl Event {
    /// Queues an event.
    pub(crate) fn record(stream: &Stream) -> Result<Self, DriverError> {
        let context = &stream.context;
        context.make_current()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: `handle` is a place for a handle.
        unsafe { context.functions.create_event(&raw mut handle, 0) }?;
        let event = Self { context: Arc::clone(context), handle };
        // SAFETY: both are alive.
        unsafe { context.functions.record_event(event.handle, stream.handle) }?;
        Ok(event)
    }

    /// Time from `earlier` to this event; both have been passed.
    pub(crate) fn since(&self, earlier: &Self) -> Result<Duration, DriverError> {
        self.context.make_current()?;
        let mut ms = 0.0_f32;
        // SAFETY: `ms` is a place for a float; both events are alive.
        unsafe { self.context.functions.elapsed_ms(&raw mut ms, earlier.handle, self.handle) }?;
        Ok(Duration::from_secs_f32(ms.max(0.0) / 1000.0))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.make_current().is_ok() {
            // SAFETY: created once, destroyed once.
            let _ = unsafe { self.context.functions.destroy_event(self.handle) };
        }
    }
}
