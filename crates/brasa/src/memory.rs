//! How much memory this process uses.

#[cfg(feature = "cpu")]
pub use brasa_cpu::heap::{give_back_free_memory, keep_no_large_blocks};

/// Returns free heap memory to the system. Does nothing in this build, which lacks the device `cpu`.
#[cfg(not(feature = "cpu"))]
pub fn give_back_free_memory() {}

/// Has the allocator return large freed blocks to the system. Does nothing in this build, which lacks the device `cpu`.
#[cfg(not(feature = "cpu"))]
pub fn keep_no_large_blocks() {}

/// The largest resident set of this process so far; `None` if the system does not tell.
pub fn peak_memory_bytes() -> Option<u64> {
    status_bytes("VmHWM:")
}

/// The resident set of this process; `None` if the system does not tell.
pub fn resident_memory_bytes() -> Option<u64> {
    status_bytes("VmRSS:")
}

/// The value of the field `name` in the system's report on this process, in bytes.
fn status_bytes(name: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}
