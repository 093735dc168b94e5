//! Settings of the process's heap for free memory.
#![expect(unsafe_code, reason = "a function of the C library")]

/// Returns the heap's free memory to the system; does nothing if the C library has no such function.
///
/// glibc keeps what is freed, in a heap for every few threads. After a hundred models that came and went, or a million requests, that is a
/// multiple of what is in use. The call takes some milliseconds, and is made when a model goes.
pub fn give_back_free_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: no precondition; it takes the locks of the heap that it needs.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Makes the heap return freed blocks of a megabyte and more to the system at once; does nothing if the C library has no such
/// setting.
///
/// glibc learns from large blocks that are freed, and soon keeps up to 64 MiB of them for every few threads, of which
/// [`give_back_free_memory`] gives back only what does not lie last. A program calls this once, before it has threads.
pub fn keep_no_large_blocks() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        const LARGE_BYTES: libc::c_int = 1 << 20;
        // SAFETY: no precondition; the two numbers are thresholds in bytes.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BYTES);
            libc::mallopt(libc::M_TRIM_THRESHOLD, LARGE_BYTES);
        }
    }
}
