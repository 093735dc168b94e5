//! The process's heap: what it keeps of memory that is free.
#![expect(unsafe_code, reason = "a function of the C library")]

/// Gives the free memory of the heap back to the system; does nothing where the C library has no such function.
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
