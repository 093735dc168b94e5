//! The context of a device, which owns allocations, streams and kernels.
//!
//! A kernel that touches memory which belongs to nothing, or traps, takes its context with it: from then on every call of the driver fails, and nothing that lies in
//! the context can be read any more. Such a context is *lost*. Whatever belongs to it fails with the first error and calls the driver no more.
//! [`Context::new`] asks for another: the device's primary context anew, once nothing uses the lost one, or before that a context of its own.
//! The driver decides whether there is one. Driver 580 on an H200 refuses after an illegal address, with the same error: only another process can use
//! that GPU then, and the error says so.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use super::functions::{CuDevice, Functions, Handle};
use super::{Device, Driver, DriverError, NEEDED_CAPABILITY};

/// A device's context as a backend uses it, with a limit of memory.
#[derive(Debug)]
pub(crate) struct Context {
    pub(super) functions: Arc<Functions>,
    shared: Arc<Shared>,
    description: Device,
    /// Bytes that are allocated, and the most that ever were.
    held: AtomicU64,
    most_held: AtomicU64,
    /// Most bytes that may be allocated once device memory is added; `u64::MAX` where there is no limit.
    limit: u64,
}

/// A context of the driver, shared by everything in this process that uses the device.
#[derive(Debug)]
struct Shared {
    functions: Arc<Functions>,
    device: CuDevice,
    handle: Handle,
    is_primary: bool,
    /// The error that ended it.
    lost: OnceLock<DriverError>,
}

// SAFETY: the driver's functions may be called from any thread; the handle is never written after creation.
unsafe impl Send for Shared {}
// SAFETY: see `Send`.
unsafe impl Sync for Shared {}

/// The contexts of this process, by driver library and device.
static SHARED: Mutex<Vec<Used>> = Mutex::new(Vec::new());

/// A context that is used: of which driver library and device it is.
type Used = ((usize, CuDevice), Weak<Shared>);

impl Shared {
    /// The context of `device` that this process uses; a new context if the old one was lost.
    fn of(functions: &Arc<Functions>, device: CuDevice) -> Result<Arc<Self>, DriverError> {
        let mut all = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (functions.library(), device);
        all.retain(|(_, shared)| shared.strong_count() > 0);
        let users: Vec<Arc<Self>> =
            all.iter().filter(|(of, _)| *of == key).filter_map(|(_, shared)| shared.upgrade()).collect();
        if let Some(alive) = users.iter().find(|shared| shared.lost.get().is_none()) {
            return Ok(Arc::clone(alive));
        }
        let is_primary = !users.iter().any(|shared| shared.is_primary);
        let mut handle = std::ptr::null_mut();
        // SAFETY: `handle` is a place for a handle.
        unsafe {
            if is_primary {
                functions.retain_context(&raw mut handle, device)
            } else {
                functions.create_context(&raw mut handle, 0, device)
            }
        }
        .map_err(|error| match users.iter().find_map(|shared| shared.lost.get()) {
            Some(lost) => DriverError::Lost { reason: lost.to_string() },
            None if error.loses_context() => DriverError::Lost { reason: error.to_string() },
            None => error,
        })?;
        let functions = Arc::clone(functions);
        let shared = Arc::new(Self { functions, device, handle, is_primary, lost: OnceLock::new() });
        all.push((key, Arc::downgrade(&shared)));
        Ok(shared)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: retained or created once, given back once; everything in it keeps an `Arc` of it. A failure leaves nothing to do.
        let _ = unsafe {
            if self.is_primary {
                self.functions.release_context(self.device)
            } else {
                self.functions.destroy_context(self.handle)
            }
        };
    }
}

impl Context {
    /// The context of device `ordinal`, for at most `limit` bytes if there is one.
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
        let shared = Shared::of(&driver.functions, driver.handle(ordinal, driver.count()?)?)?;
        let functions = Arc::clone(&driver.functions);
        let (held, most_held) = (AtomicU64::new(0), AtomicU64::new(0));
        Ok(Arc::new(Self { functions, shared, description, held, most_held, limit }))
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

    /// The most that [`held_bytes`](Self::held_bytes) has been.
    pub(crate) fn most_held_bytes(&self) -> u64 {
        self.most_held.load(Ordering::Relaxed)
    }

    /// Counts an allocation of device memory, if it is within the limit; false where it is not.
    pub(super) fn hold_within_limit(&self, size_bytes: usize) -> bool {
        let held = |held: u64| held.checked_add(size_bytes as u64).filter(|&held| held <= self.limit);
        let before = self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, held);
        if let Ok(before) = before {
            self.raise_most(before, size_bytes);
        }
        before.is_ok()
    }

    /// Counts an allocation of host memory.
    pub(super) fn hold(&self, size_bytes: usize) {
        let before = self.held.fetch_add(size_bytes as u64, Ordering::Relaxed);
        self.raise_most(before, size_bytes);
    }

    fn raise_most(&self, before: u64, size_bytes: usize) {
        self.most_held.fetch_max(before + size_bytes as u64, Ordering::Relaxed);
    }

    /// Counts the end of an allocation.
    pub(super) fn let_go(&self, size_bytes: usize) {
        self.held.fetch_sub(size_bytes as u64, Ordering::Relaxed);
    }

    /// Makes this context the calling thread's, which every other call of the driver needs.
    ///
    /// # Errors
    ///
    /// The error by which the context was lost: the driver must not be called for anything that belongs to it.
    pub(super) fn make_current(&self) -> Result<(), DriverError> {
        if let Some(error) = self.shared.lost.get() {
            return Err(error.clone());
        }
        // SAFETY: the context is kept as long as `self` lives.
        unsafe { self.functions.set_context(self.shared.handle) }
    }

    /// Notes an error of a call. One that leaves no call behind it possible loses the context.
    pub(crate) fn note(&self, error: &DriverError) {
        if error.loses_context() {
            let _ = self.shared.lost.set(error.clone());
        }
    }

    /// The error by which the context was lost.
    pub(crate) fn lost(&self) -> Option<&DriverError> {
        self.shared.lost.get()
    }
}
