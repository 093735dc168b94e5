//! How much memory a thread holds, counted by a global allocator that tests install.
#![expect(unsafe_code, reason = "a global allocator is an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, with a count of the bytes that each thread holds.
///
/// ```
/// #[global_allocator]
/// static ALLOCATOR: brasa_fuzz::MeteredAllocator = brasa_fuzz::MeteredAllocator;
/// # fn main() {}
/// ```
#[derive(Clone, Copy, Debug)]
pub struct MeteredAllocator;

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

/// Forgets the peak; gives what is held now.
pub(crate) fn reset_peak() -> usize {
    let held = HELD.get();
    PEAK.set(held);
    held
}

/// The most this thread has held since [`reset_peak`].
pub(crate) fn peak() -> usize {
    PEAK.get()
}

/// Runs `work` on this thread. Returns its result, and the most bytes that the thread held at a time beyond those before. Counts
/// nothing unless [`MeteredAllocator`] is installed.
pub fn most_bytes<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = reset_peak();
    let result = work();
    (result, peak().saturating_sub(before))
}

fn took(bytes: usize) {
    // A thread that is ending has no counters any more, and nobody asks for them.
    let _ = HELD.try_with(|held| {
        held.set(held.get().wrapping_add(bytes));
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(held.get())));
    });
}

fn gave(bytes: usize) {
    // Memory may come back on another thread than took it: the count stops at nothing.
    let _ = HELD.try_with(|held| held.set(held.get().saturating_sub(bytes)));
}

// SAFETY: every call goes to `System` with the same arguments; counting does not allocate, because the counters are
// constants without destructors.
unsafe impl GlobalAlloc for MeteredAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        gave(layout.size());
        // SAFETY: the caller keeps the contract of `GlobalAlloc::dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // Both copies may exist for a moment.
        took(new_size);
        gave(layout.size());
        // SAFETY: the caller keeps the contract of `GlobalAlloc::realloc`.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}
