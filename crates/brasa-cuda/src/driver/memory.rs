//! Device memory, and host memory that the device reads directly.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Context, DriverError};

/// The address of imaginary memory, which has any alignment that kernels ask for.
const IMAGINARY_ADDRESS: u64 = 1 << 20;

/// An allocation in device memory, freed when dropped.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    context: Arc<Context>,
    address: u64,
    size_bytes: usize,
    /// True if the memory has a size and nothing else.
    imaginary: bool,
}

impl DeviceMemory {
    /// Allocates `size_bytes`, aligned to 256 bytes; their contents are undefined. `what` names their purpose in errors.
    pub(crate) fn new(context: &Arc<Context>, size_bytes: usize, what: &str) -> Result<Self, DriverError> {
        let out_of_memory = || DriverError::OutOfMemory { bytes: size_bytes as u64, what: what.into() };
        context.make_current()?;
        if !context.hold_within_limit(size_bytes) {
            return Err(out_of_memory());
        }
        let mut memory = Self { context: Arc::clone(context), address: 0, size_bytes, imaginary: false };
        if size_bytes > 0 {
            let mut address = 0;
            // SAFETY: `address` is a place for an address.
            let allocated = unsafe { context.functions.allocate(&raw mut address, size_bytes) };
            allocated.map_err(|error| if error.is_out_of_memory() { out_of_memory() } else { error })?;
            memory.address = address;
        }
        Ok(memory)
    }

    /// A stand-in for `size_bytes` bytes of device memory. Nothing is allocated, so the address must not be read or written.
    pub(crate) fn imaginary(context: &Arc<Context>, size_bytes: usize) -> Self {
        Self { context: Arc::clone(context), address: IMAGINARY_ADDRESS, size_bytes, imaginary: true }
    }

    /// The address of its first byte; 0 if it is empty.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Size of the memory in bytes.
    pub(crate) fn size_bytes(&self) -> usize {
        self.size_bytes
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.imaginary {
            return;
        }
        self.context.let_go(self.size_bytes);
        if self.address != 0 && self.context.make_current().is_ok() {
            // SAFETY: allocated once, freed once. The driver waits for kernels that may still use it.
            let _ = unsafe { self.context.functions.free(self.address) };
        }
    }
}

/// Page-locked host memory, which the device copies from and to without a detour.
#[derive(Debug)]
pub(crate) struct PinnedMemory {
    context: Arc<Context>,
    pointer: NonNull<c_void>,
    size_bytes: usize,
}

// SAFETY: owns its allocation like a `Box<[u8]>`.
unsafe impl Send for PinnedMemory {}
// SAFETY: shared references only read.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    /// Allocates `size_bytes` zero bytes.
    pub(crate) fn new(context: &Arc<Context>, size_bytes: usize) -> Result<Self, DriverError> {
        let mut pointer = NonNull::<u64>::dangling().as_ptr().cast::<c_void>();
        if size_bytes > 0 {
            context.make_current()?;
            // SAFETY: `pointer` is a place for a pointer.
            unsafe { context.functions.allocate_host(&raw mut pointer, size_bytes, 0) }.map_err(|error| {
                let what = "page-locked host memory".into();
                let out_of_memory = DriverError::OutOfMemory { bytes: size_bytes as u64, what };
                if error.is_out_of_memory() { out_of_memory } else { error }
            })?;
            // SAFETY: the driver allocated that many bytes.
            unsafe { pointer.cast::<u8>().write_bytes(0, size_bytes) };
        }
        let pointer = NonNull::new(pointer)
            .ok_or_else(|| DriverError::Kernels { what: "the driver gave page-locked memory at 0".into() })?;
        context.hold(size_bytes);
        Ok(Self { context: Arc::clone(context), pointer, size_bytes })
    }

    /// The bytes of the memory, aligned to at least 8.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: allocated and initialised by `new`.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr().cast(), self.size_bytes) }
    }

    /// The bytes of the memory, aligned to at least 8, for writing.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: allocated and initialised by `new`; borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr().cast(), self.size_bytes) }
    }
}

/// Words that the host and a running kernel read and write at the same time.
#[derive(Debug)]
pub(crate) struct MappedWords {
    memory: PinnedMemory,
}

impl MappedWords {
    /// Allocates `count` words of zero.
    pub(crate) fn new(context: &Arc<Context>, count: usize) -> Result<Self, DriverError> {
        Ok(Self { memory: PinnedMemory::new(context, count * size_of::<AtomicU64>())? })
    }

    /// The address by which kernels reach word `number`: with one address space for host and devices, the host's own.
    pub(crate) fn address(&self, number: usize) -> u64 {
        std::ptr::from_ref(&self.words()[number]) as u64
    }

    /// Word `number` as it is now; everything that its writer wrote before is visible.
    pub(crate) fn load(&self, number: usize) -> u64 {
        self.words()[number].load(Ordering::Acquire)
    }

    /// Writes word `number`.
    pub(crate) fn store(&self, number: usize, word: u64) {
        self.words()[number].store(word, Ordering::Release);
    }

    /// Writes zero to every word.
    pub(crate) fn clear(&self) {
        self.words().iter().for_each(|word| word.store(0, Ordering::Release));
    }

    fn words(&self) -> &[AtomicU64] {
        let count = self.memory.size_bytes / size_of::<AtomicU64>();
        // SAFETY: allocated and initialised by `PinnedMemory::new`, aligned to 8; nothing else refers to the memory, and all accesses
        // of host and kernels are of whole words.
        unsafe { std::slice::from_raw_parts(self.memory.pointer.as_ptr().cast(), count) }
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        self.context.let_go(self.size_bytes);
        if self.size_bytes > 0 && self.context.make_current().is_ok() {
            // SAFETY: allocated once, freed once.
            let _ = unsafe { self.context.functions.free_host(self.pointer.as_ptr()) };
        }
    }
}
