//! The context of a device: what allocations, streams and kernels belong to.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::functions::{CuDevice, Functions, Handle};
use super::{Device, Driver, DriverError, NEEDED_CAPABILITY};

/// A device's primary context, shared by everything in this process that uses the device.
#[derive(Debug)]
pub(crate) struct Context {
    pub(super) functions: Arc<Functions>,
    device: CuDevice,
    handle: Handle,
    description: Device,
    /// Bytes that are allocated.
    held: AtomicU64,
    /// Most bytes that may be allocated once device memory is added; `u64::MAX` where there is no limit.
    limit: u64,
}

// SAFETY: the driver's functions may be called from any thread; the handle is never written after creation.
unsafe impl Send for Context {}
// SAFETY: see `Send`.
unsafe impl Sync for Context {}

impl Context {
    /// Retains the primary context of device `ordinal`, for at most `limit` bytes if there is one.
    pub(crate) fn new(driver: &Driver, ordinal: usize, limit: Option<u64>) -> Result<Arc<Self>, DriverError> {
        let limit = limit.unwrap_or(u64::MAX);
        let mut description = driver.device(ordinal)?;
        description.memory_bytes = description.memory_bytes.min(limit);
        if description.capability < NEEDED_CAPABILITY {
            return Err(DriverError::OldDevice {
                name: description.name,
                found: description.capability,
                needed: NEEDED_CAPABILITY,
            });
        }
        let device = driver.handle(ordinal, driver.count()?)?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: `handle` is a place for a handle.
        unsafe { driver.functions.retain_context(&raw mut handle, device) }?;
        let functions = Arc::clone(&driver.functions);
        Ok(Arc::new(Self { functions, device, handle, description, held: AtomicU64::new(0), limit }))
    }

    /// The device's properties, as the driver reports them; its memory is no more than the limit.
    pub(crate) fn device(&self) -> &Device {
        &self.description
    }

    /// Bytes of device memory that are free, and of all of it, both within the limit.
    pub(crate) fn memory(&self) -> Result<(u64, u64), DriverError> {
        let (mut free, mut total) = (0, 0);
        self.make_current()?;
        // SAFETY: both are places for sizes.
        unsafe { self.functions.memory_info(&raw mut free, &raw mut total) }?;
        let left = self.limit.saturating_sub(self.held_bytes());
        Ok(((free as u64).min(left), (total as u64).min(self.limit)))
    }

    /// Bytes that are allocated through this context, in device memory and in host memory that the device reads.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Counts an allocation of device memory, if it is within the limit; false where it is not.
    pub(super) fn hold_within_limit(&self, size_bytes: usize) -> bool {
        let held = |held: u64| held.checked_add(size_bytes as u64).filter(|&held| held <= self.limit);
        self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, held).is_ok()
    }

    /// Counts an allocation of host memory.
    pub(super) fn hold(&self, size_bytes: usize) {
        self.held.fetch_add(size_bytes as u64, Ordering::Relaxed);
    }

    /// Counts the end of an allocation.
    pub(super) fn let_go(&self, size_bytes: usize) {
        self.held.fetch_sub(size_bytes as u64, Ordering::Relaxed);
    }

    /// Makes this context the calling thread's, which every other call of the driver needs.
    pub(super) fn make_current(&self) -> Result<(), DriverError> {
        // SAFETY: the context is retained as long as `self` lives.
        unsafe { self.functions.set_context(self.handle) }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once, released once; everything in it keeps an `Arc` of it. A failure leaves nothing to do.
        let _ = unsafe { self.functions.release_context(self.device) };
    }
}
