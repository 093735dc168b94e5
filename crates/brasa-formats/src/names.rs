//! Finding a name that a file has twice, among millions that it has once.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

/// The names of a file so far, remembered by their hashes.
///
/// No name is stored, and growing reads none again. The hashes are keyed, so no file can be made to have equal ones.
#[derive(Default)]
pub(crate) struct Names {
    hasher: RandomState,
    hashes: HashSet<u64>,
}

impl Names {
    /// Adds `name`; false if it equals one of `earlier`, which are the names that were added before.
    ///
    /// `earlier` is read only if a hash was there before, which in practice means that the name was.
    pub fn insert<'a>(&mut self, name: &str, mut earlier: impl Iterator<Item = &'a str>) -> bool {
        self.hashes.insert(self.hasher.hash_one(name)) || earlier.all(|other| other != name)
    }
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
}
