//! Finding a name that a file has twice, among millions that it has once.

use std::collections::HashSet;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};

/// The names of a file so far, remembered by their hashes.
///
/// No name is stored, and growing reads none again. The hashes are keyed, so no file can be made to have equal ones.
#[derive(Default)]
pub(crate) struct Names {
    hasher: RandomState,
    hashes: HashSet<u64, BuildHasherDefault<OwnHash>>,
}

/// Takes a number for its own hash.
#[derive(Default)]
struct OwnHash(u64);

impl Hasher for OwnHash {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only numbers of 64 bits are hashed");
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

impl Names {
    /// Adds `name`; false if it equals one of `earlier`, which are the names that were added before.
    ///
    /// `earlier` is read only if a hash was there before, which in practice means that the name was.
    pub fn insert<'a>(&mut self, name: &str, mut earlier: impl Iterator<Item = &'a str>) -> bool {
        self.hashes.insert(self.hasher.hash_one(name)) || earlier.all(|other| other != name)
    }
}

/// True if a name may be among `names` twice, and surely if it is; about as fast as sorting as many numbers.
///
/// [`Names`] finds which it is. A table of millions of hashes is slower: nearly each of its entries is far from all caches.
pub(crate) fn any_twice<'a>(names: impl Iterator<Item = &'a str>) -> bool {
    let hasher = RandomState::new();
    let mut hashes: Vec<u64> = names.map(|name| hasher.hash_one(name)).collect();
    hashes.sort_unstable();
    !hashes.is_sorted_by(|a, b| a < b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_name_is_found_and_an_equal_hash_is_not_enough() {
        let mut names = Names::default();
        let listed = ["a", "", "ab"];
        for (at, name) in listed.iter().enumerate() {
            assert!(names.insert(name, listed[..at].iter().copied()));
        }
        assert!(!names.insert("", listed.into_iter()));
        assert!(names.insert("a", ["other", "names"].into_iter()));
    }

    #[test]
    fn a_repeated_name_is_noticed_wherever_it_is() {
        let listed = ["a", "", "ab", "b"];
        assert!(!any_twice(listed.into_iter()));
        for name in listed {
            assert!(any_twice(listed.into_iter().chain([name])));
        }
    }
}
