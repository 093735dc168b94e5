//! Ids that differ from one request to the next.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// The version of Brasa, as answers contain it.
pub(crate) const FINGERPRINT: &str = concat!("brasa-", env!("CARGO_PKG_VERSION"));

/// A random number that cannot be guessed and is not repeated.
pub(crate) fn fresh() -> u64 {
    static KEYS: LazyLock<(RandomState, RandomState)> = LazyLock::new(Default::default);
    static NEXT: AtomicU64 = AtomicU64::new(0);
    KEYS.0.hash_one(NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A fresh id: a prefix and 24 hexadecimal digits.
pub(crate) fn name(prefix: &str) -> String {
    format!("{prefix}{:016x}{:08x}", fresh(), fresh() as u32)
}

/// A fresh id of nine letters and digits, as Mistral's templates require.
pub(crate) fn nine_characters() -> String {
    const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let number = fresh();
    (0..9).map(|at| char::from(ALPHABET[(number >> (5 * at)) as usize & 31])).collect()
}

/// Seconds since 1970.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
