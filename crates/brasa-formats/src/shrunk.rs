//! A message in place of a bare SIGBUS if a mapped file becomes shorter while it is read.
//!
//! Reading a map behind the new end of its file raises SIGBUS, which ends the process without a word. A process that [asks
//! for it](exit_on_shrunk_files) instead names the file and exits. The handler finds the file by the faulting address, in a
//! table that every map enters; any other SIGBUS goes to the handler that was there before.
#![expect(unsafe_code, reason = "signal handlers are functions of C, and read what other threads write")]

use std::ffi::{c_int, c_void};
use std::io;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::error::ShownPath;
use crate::remove_partial_files;

/// One map in the table. Entries are never freed, only reused, so that the handler may walk over them at any time.
struct Entry {
    /// Address of the first byte; 0 for a free entry.
    start: AtomicUsize,
    end: AtomicUsize,
    /// The message that names the file; null for a free entry.
    message: AtomicPtr<String>,
    /// The next entry: the entry that was added before this one.
    next: *const Entry,
}

// SAFETY: `next` is set before an entry is shared and never changes, and entries live for ever; all else is atomic.
unsafe impl Sync for Entry {}
// SAFETY: as above; no part of an entry belongs to a thread.
unsafe impl Send for Entry {}

/// The first entry: the entry that was added last.
static ENTRIES: AtomicPtr<Entry> = AtomicPtr::new(ptr::null_mut());
/// Lock for taking and adding entries. The handler does not take it.
static CHANGES: Mutex<()> = Mutex::new(());
static EXIT_CODE: AtomicI32 = AtomicI32::new(1);
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// Installs a handler for files that shrink while they are mapped. A read beyond their end then names the file on standard error,
/// removes partial outputs, and ends the process with `exit_code`.
///
/// Signal handlers belong to the whole process, so a library never installs this one by itself. A SIGBUS of another cause
/// goes to the handler that was installed before, if there was one.
pub fn exit_on_shrunk_files(exit_code: i32) {
    EXIT_CODE.store(exit_code, Ordering::Relaxed);
    PREVIOUS.get_or_init(|| {
        // SAFETY: a zeroed `sigaction` is one without flags and with an empty mask on every platform; the handler has the
        // signature that SA_SIGINFO asks for, and runs on the stack for signals where a thread has one.
        unsafe {
            let mut previous: libc::sigaction = std::mem::zeroed();
            libc::sigaction(libc::SIGBUS, ptr::null(), &raw mut previous);
            previous
        }
    });
    // SAFETY: as above. PREVIOUS is set before the handler can run.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_bus_error;
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // A refusal leaves the process as it was: it would die without a message.
        libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut());
    }
}

/// The place of a map in the table, until it is dropped.
pub(crate) struct Watched(&'static Entry);

impl Watched {
    /// Enters the map of the file at `path`, which occupies `bytes`.
    pub fn new(path: &Path, bytes: &[u8]) -> Self {
        let message = format!(
            "{}: the file became shorter while it was in use\n\
             hint: nothing may write to a model's file while it is loaded; replace it by renaming another file instead",
            ShownPath(path)
        );
        let message = Box::into_raw(Box::new(message));
        let start = bytes.as_ptr() as usize;
        let _changes = CHANGES.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = free_entry();
        entry.message.store(message, Ordering::Relaxed);
        entry.end.store(start + bytes.len(), Ordering::Relaxed);
        entry.start.store(start, Ordering::Release);
        Self(entry)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let _changes = CHANGES.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.start.store(0, Ordering::Release);
        let message = self.0.message.swap(ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: the pointer came from `Box::into_raw` in `new` and is taken out once. The handler follows it only for a
        // fault inside this map, and nobody reads the map any more.
        drop(unsafe { Box::from_raw(message) });
    }
}

/// A free entry, or a new one. The caller holds [`CHANGES`].
fn free_entry() -> &'static Entry {
    if let Some(free) = entries().find(|entry| entry.start.load(Ordering::Acquire) == 0) {
        return free;
    }
    let next = ENTRIES.load(Ordering::Acquire);
    let entry = Box::leak(Box::new(Entry {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        message: AtomicPtr::new(ptr::null_mut()),
        next,
    }));
    ENTRIES.store(entry, Ordering::Release);
    entry
}

fn entries() -> impl Iterator<Item = &'static Entry> {
    let mut at: *const Entry = ENTRIES.load(Ordering::Acquire);
    std::iter::from_fn(move || {
        // SAFETY: the pointer is null or that of a leaked entry.
        let entry = unsafe { at.as_ref() }?;
        at = entry.next;
        Some(entry)
    })
}

/// The entry of the map that `address` lies in.
fn entry_at(address: usize) -> Option<&'static Entry> {
    let page = |end: usize| end.saturating_add(0xffff) & !0xffff;
    entries().find(|entry| {
        let start = entry.start.load(Ordering::Acquire);
        start != 0 && (start..page(entry.end.load(Ordering::Relaxed))).contains(&address)
    })
}

/// The error of a system call that was to read `bytes`; if they were mapped and are gone, it names their file.
///
/// The system raises no signal for itself: it says "Bad address", and a writer would blame the file that it writes.
pub(crate) fn blame_source(error: io::Error, bytes: &[u8]) -> io::Error {
    if error.raw_os_error() != Some(libc::EFAULT) {
        return error;
    }
    let _changes = CHANGES.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(entry) = entry_at(bytes.as_ptr() as usize) else { return error };
    // SAFETY: an entry that is not free has a message, and none is freed while changes are locked.
    let message = unsafe { (*entry.message.load(Ordering::Acquire)).clone() };
    io::Error::other(message)
}

/// The handler. It may interrupt a thread anywhere, but what it does beyond reading atomics it does only for a fault inside a
/// map: then the thread was reading the map, so it holds no lock of the allocator or of this crate.
extern "C" fn on_bus_error(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the system passes a valid `siginfo_t` to a handler with SA_SIGINFO.
    let address = unsafe { (*info).si_addr() } as usize;
    let Some(entry) = entry_at(address) else { return pass_on(signal, info, context) };
    // SAFETY: an entry that is not free has a message, which lives as long as the map that was just being read; `write` and
    // `_exit` may be called from handlers.
    unsafe {
        let message = &*entry.message.load(Ordering::Acquire);
        for text in ["\nerror: ", message, "\n"] {
            libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len());
        }
        remove_partial_files();
        libc::_exit(EXIT_CODE.load(Ordering::Relaxed));
    }
}

/// Passes a SIGBUS outside all maps to the handler that was installed before.
fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let previous = PREVIOUS.get();
    match previous {
        Some(previous) if ![libc::SIG_DFL, libc::SIG_IGN].contains(&previous.sa_sigaction) => {
            // SAFETY: the address is that of the handler which was installed, with the signature that its flags say.
            unsafe {
                if previous.sa_flags & libc::SA_SIGINFO != 0 {
                    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                        std::mem::transmute(previous.sa_sigaction);
                    handler(signal, info, context);
                } else {
                    let handler: extern "C" fn(c_int) = std::mem::transmute(previous.sa_sigaction);
                    handler(signal);
                }
            }
        }
        // SAFETY: resetting a signal may be done in a handler. The instruction faults again, and ends the process.
        _ => unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        },
    }
}
