//! Zeroed, aligned memory that several threads may fill in disjoint parts.
#![expect(unsafe_code, reason = "one allocation, handed to threads in disjoint parts")]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ops::Range;
use std::ptr::NonNull;
use std::thread;

use memmap2::MmapMut;

/// Alignment of every block of memory: a cache line, and a vector.
pub(crate) const ALIGNMENT_BYTES: usize = 64;

/// Bytes from which on memory gets a mapping of its own, on large pages. Address translation then does not hold up
/// reads in order; otherwise it costs a third of the bandwidth.
const MAPPED_BYTES: usize = 4 << 20;

/// The least size of a system's page of memory.
const SYSTEM_PAGE_BYTES: usize = 4096;

/// Bytes of a large page of the system.
const LARGE_PAGE_BYTES: usize = 2 << 20;

/// A zeroed allocation with an aligned start. Untouched pages of a large allocation cost nothing.
#[derive(Debug)]
pub(crate) struct Memory {
    owner: Owner,
    start: NonNull<u8>,
    len_bytes: usize,
}

/// The allocation, to be given back in the end.
#[derive(Debug)]
enum Owner {
    Mapping(#[expect(dead_code, reason = "unmapped when dropped")] MmapMut),
    Allocation(NonNull<u8>, Layout),
}

// SAFETY: it owns its allocation; callers of the methods for shared access promise disjointness.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

/// An element type of which any bits are a value, with at most the alignment of a [`Memory`].
pub(crate) trait Element: Copy + 'static {}
impl Element for f32 {}
impl Element for u32 {}
impl Element for u16 {}
impl Element for i8 {}
impl Element for u8 {}

impl Memory {
    /// Allocates `len_bytes` zeroes; `None` if they cannot be had.
    pub(crate) fn zeroed(len_bytes: usize) -> Option<Self> {
        if len_bytes >= MAPPED_BYTES { Self::mapped(len_bytes) } else { Self::allocated(len_bytes) }
    }

    fn mapped(len_bytes: usize) -> Option<Self> {
        let mut map = MmapMut::map_anon(len_bytes).ok()?;
        // Ordinary pages work as well, only slower.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        let start = NonNull::new(map.as_mut_ptr())?;
        Some(Self { owner: Owner::Mapping(map), start, len_bytes })
    }

    fn allocated(len_bytes: usize) -> Option<Self> {
        // The system's allocator clears aligned memory by writing it, but fetches plain zeroes lazily.
        let layout = Layout::from_size_align(len_bytes.checked_add(ALIGNMENT_BYTES)?, 16).ok()?;
        // SAFETY: the layout is not empty.
        let allocation = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let shift = allocation.align_offset(ALIGNMENT_BYTES);
        assert!(shift <= ALIGNMENT_BYTES, "bytes can be aligned");
        // SAFETY: `shift` bytes beyond the requested ones were allocated.
        let start = unsafe { allocation.add(shift) };
        Some(Self { owner: Owner::Allocation(allocation, layout), start, len_bytes })
    }

    /// Size in bytes.
    pub(crate) const fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Views the memory as elements of type `T`, and of them `range`, for reading.
    ///
    /// # Safety
    ///
    /// No thread writes the elements while the result lives.
    pub(crate) unsafe fn get<T: Element>(&self, range: Range<usize>) -> &[T] {
        self.check::<T>(&range);
        // SAFETY: in bounds by the check, aligned, valid for any bits; not written by the caller's promise.
        unsafe { std::slice::from_raw_parts(self.start.cast::<T>().as_ptr().add(range.start), range.len()) }
    }

    /// Views the memory as elements of type `T`, and of them `range`, for writing.
    ///
    /// # Safety
    ///
    /// No other view reads or writes the elements while the result lives.
    #[expect(clippy::mut_from_ref, reason = "disjointness is the caller's promise")]
    pub(crate) unsafe fn get_mut<T: Element>(&self, range: Range<usize>) -> &mut [T] {
        self.check::<T>(&range);
        // SAFETY: in bounds by the check, aligned, valid for any bits; exclusive by the caller's promise.
        unsafe {
            std::slice::from_raw_parts_mut(self.start.cast::<T>().as_ptr().add(range.start), range.len())
        }
    }

    /// Writes `elements` to the places `start`, `start + stride`, …
    ///
    /// # Safety
    ///
    /// Nothing else reads or writes these places meanwhile.
    pub(crate) unsafe fn scatter<T: Element>(&self, start: usize, stride: usize, elements: &[T]) {
        let Some(last) = elements.len().checked_sub(1) else { return };
        self.check::<T>(&(start..start + last * stride + 1));
        let first = self.start.cast::<T>();
        for (i, &element) in elements.iter().enumerate() {
            // SAFETY: in bounds by the check, exclusive by the caller's promise.
            unsafe { first.add(start + i * stride).write(element) };
        }
    }

    /// Writes to every page of the system in `bytes`, so that it is fetched now, by a thread for each large page's bytes. Contents stay.
    pub(crate) fn touch(&mut self, bytes: Range<usize>) {
        let touch = |bytes: &mut [u8]| {
            for byte in bytes.iter_mut().step_by(SYSTEM_PAGE_BYTES) {
                // Kept by the compiler, which could drop a byte's write to itself.
                *byte = std::hint::black_box(*byte);
            }
        };
        let mut parts = self.all_mut::<u8>()[bytes].chunks_mut(LARGE_PAGE_BYTES);
        let own = parts.next();
        thread::scope(|scope| {
            for part in parts {
                // Memory that no thread can be had for is fetched when it is first written.
                let _ = thread::Builder::new().spawn_scoped(scope, move || touch(part));
            }
            own.into_iter().for_each(touch);
        });
    }

    /// All elements, for reading and writing.
    pub(crate) fn all_mut<T: Element>(&mut self) -> &mut [T] {
        let len = self.len_bytes / size_of::<T>();
        // SAFETY: borrowed mutably.
        unsafe { self.get_mut(0..len) }
    }

    fn check<T>(&self, range: &Range<usize>) {
        assert!(
            range.start <= range.end && range.end <= self.len_bytes / size_of::<T>(),
            "elements {range:?} of {} bytes of memory",
            self.len_bytes
        );
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Owner::Allocation(allocation, layout) = self.owner {
            // SAFETY: allocated with this layout, once.
            unsafe { dealloc(allocation.as_ptr(), layout) }
        }
    }
}
