//! Pages of a map that were given back cost no memory. A test of its own, because it looks at the whole process.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "suite/scratch.rs"]
mod scratch;

use std::fs;

use brasa_formats::map_file;

use scratch::Scratch;

const MIB: usize = 1 << 20;

/// Resident bytes of mapped files.
fn resident_file_bytes() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssFile:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}

#[test]
fn released_pages_are_not_resident_and_come_back() {
    let scratch = Scratch::new("released_pages_are_not_resident_and_come_back");
    let content: Vec<u8> = (0..32 * MIB).map(|i| (i / 4096) as u8).collect();
    fs::write(scratch.path("weights"), &content).unwrap();
    let bytes = map_file(&scratch.path("weights")).unwrap();

    assert_eq!(*bytes, *content);
    let read = resident_file_bytes();
    // All but the first and the last bytes.
    bytes.slice(100..content.len() - 100).unwrap().release_pages();
    let released = resident_file_bytes();
    assert!(released + 31 * MIB < read, "{released} bytes resident, {read} before");
    assert_eq!(*bytes, *content);
}
