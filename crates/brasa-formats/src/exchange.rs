//! Two paths that change places in one step, which only a system call of Linux does.
#![expect(unsafe_code, reason = "a call of C")]

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Exchanges what `a` and `b` name.
///
/// # Errors
///
/// `EINVAL` and `ENOSYS` if the file system or the kernel cannot.
pub(crate) fn exchange(a: &Path, b: &Path) -> io::Result<()> {
    let [a, b] = [a, b].map(|path| CString::new(path.as_os_str().as_bytes()));
    let (a, b) = (a?, b?);
    // SAFETY: both paths end in a zero byte and live until the call is over; it writes no memory.
    let result = unsafe {
        libc::syscall(
            libc::SYS_renameat2,
            libc::AT_FDCWD,
            a.as_ptr(),
            libc::AT_FDCWD,
            b.as_ptr(),
            libc::RENAME_EXCHANGE,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
