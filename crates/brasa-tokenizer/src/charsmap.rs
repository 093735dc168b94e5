//! The table by which SentencePiece normalises characters, `precompiled_charsmap` in both containers.
//!
//! The table holds the size of a trie, the trie, and the replacements, each of which ends with a zero byte. The trie is a double
//! array in 32-bit units (Yata's darts-clone). A unit holds the byte that leads to it, the offset of its children, and whether a
//! key ends at it; the first child then holds the offset of the key's replacement. The longest prefix of a text that is a key is
//! replaced. The `tokenizers` crate, which reads the table of a `tokenizer.json`, panics if the size is wrong, so such a table is
//! checked before the crate reads it.

/// Most bytes of a replacement; SentencePiece's own table has up to 33.
const LONGEST_REPLACEMENT: usize = 64;

/// A normalisation table that was read and can be searched.
#[derive(Clone, Debug)]
pub struct Charsmap {
    units: Vec<u32>,
    replacements: String,
}

impl Charsmap {
    /// Reads a table.
    ///
    /// # Errors
    ///
    /// A sentence that describes the mistake in the table.
    pub fn new(table: &[u8]) -> Result<Self, String> {
        let (trie, replacements) = split(table)?;
        let units = trie.as_chunks::<4>().0.iter().map(|unit| u32::from_le_bytes(*unit)).collect();
        let replacements = str::from_utf8(replacements)
            .map_err(|error| format!("precompiled_charsmap replaces characters by no UTF-8: {error}"))?;
        Ok(Self { units, replacements: replacements.into() })
    }

    /// The text with every character or group of characters replaced for which the table has a replacement.
    ///
    /// # Errors
    ///
    /// A sentence that names the part of the table with an invalid offset.
    pub fn replace(&self, text: &str) -> Result<String, String> {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(char) = rest.chars().next() {
            if let Some((length_bytes, place)) = self.longest(rest.as_bytes()) {
                out.push_str(self.replacement(place)?);
                rest =
                    rest.get(length_bytes..).ok_or("precompiled_charsmap replaces a part of a character")?;
            } else {
                out.push(char);
                rest = &rest[char.len_utf8()..];
            }
        }
        Ok(out)
    }

    /// The length of the longest key that `text` begins with, and the offset of its replacement.
    fn longest(&self, text: &[u8]) -> Option<(usize, usize)> {
        let mut found = None;
        let mut at = offset(*self.units.first()?);
        for (done, &byte) in text.iter().enumerate() {
            at ^= usize::from(byte);
            let Some(&unit) = self.units.get(at) else { break };
            // A value, which has the highest bit, is the child of no byte.
            if byte == 0 || unit & (1 << 31 | 0xFF) != u32::from(byte) {
                break;
            }
            at ^= offset(unit);
            if unit >> 8 & 1 == 1
                && let Some(&value) = self.units.get(at)
            {
                found = Some((done + 1, (value & !(1 << 31)) as usize));
            }
        }
        found
    }

    fn replacement(&self, place: usize) -> Result<&str, String> {
        let text = self.replacements.get(place..).and_then(|rest| rest.split_once('\0'));
        text.map(|(text, _)| text)
            .ok_or_else(|| format!("precompiled_charsmap has no replacement at {place}"))
    }
}

/// The distance of a unit from its children.
fn offset(unit: u32) -> usize {
    ((unit >> 10) << ((unit & 1 << 9) >> 6)) as usize
}

/// Checks a table, given in base64.
///
/// # Errors
///
/// A sentence that describes the mistake in the table.
pub fn check(base64: &str) -> Result<(), String> {
    let table = from_base64(base64).ok_or("precompiled_charsmap is not base64")?;
    split(&table).map(|_| ())
}

/// The trie and the replacements of a table.
fn split(table: &[u8]) -> Result<(&[u8], &[u8]), String> {
    let (size, rest) = table.split_first_chunk::<4>().ok_or("precompiled_charsmap is empty")?;
    let size = u32::from_le_bytes(*size) as usize;
    if size > rest.len() || size < 4 || !size.is_multiple_of(4) {
        return Err(format!(
            "precompiled_charsmap has a trie of {size} bytes, and {} bytes in all",
            table.len()
        ));
    }
    let (trie, replacements) = rest.split_at(size);
    let longest = replacements.split(|byte| *byte == 0).map(<[u8]>::len).max().unwrap_or(0);
    if longest > LONGEST_REPLACEMENT {
        return Err(format!(
            "precompiled_charsmap replaces a character by {longest} bytes, expected at most {LONGEST_REPLACEMENT}"
        ));
    }
    Ok((trie, replacements))
}

/// Decodes base64.
pub fn from_base64(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut held) = (0_u32, 0);
    for digit in text.trim_end_matches('=').bytes() {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::{Charsmap, check, from_base64};

    #[test]
    fn base64_is_decoded() {
        assert_eq!(from_base64("aGVsbG8="), Some(b"hello".to_vec()));
        assert_eq!(from_base64("/+8"), Some(vec![0xFF, 0xEF]));
        assert_eq!(from_base64("a b"), None);
    }

    /// A table of one unit each for the root, `a` (which ends a beginning) and the value, and of `replacements`.
    fn table(value: u32, replacements: &[u8]) -> Vec<u8> {
        let mut units = [0_u32; 256];
        // The root's children are at its offset 1 xor their byte; the child of `a`, its value, is at 2 xor that place.
        units[0] = 1 << 10;
        let a = usize::from(1 ^ b'a');
        units[a] = 2 << 10 | 1 << 8 | u32::from(b'a');
        units[a ^ 2] = 1 << 31 | value;
        let trie = units.iter().flat_map(|unit| unit.to_le_bytes());
        1024_u32.to_le_bytes().into_iter().chain(trie).chain(replacements.iter().copied()).collect()
    }

    #[test]
    fn characters_are_replaced() {
        let map = Charsmap::new(&table(2, b"x\0yz\0")).expect("a table");
        assert_eq!(map.replace("a ba"), Ok("yz byz".into()));
        let map = Charsmap::new(&table(1, b"x\0yz\0")).expect("a table");
        assert_eq!(map.replace("ab"), Ok("b".into()), "an empty replacement");
    }

    #[test]
    fn tables_that_lead_nowhere_are_errors() {
        let error = |value, replacements| {
            let map = Charsmap::new(&table(value, replacements));
            map.and_then(|map| map.replace("ab")).expect_err("a broken table")
        };
        assert!(error(9, b"x\0").contains("no replacement at 9"));
        assert!(error(0, b"x").contains("no replacement at 0"), "without an end");
        assert!(error(0, b"\xFF\0").contains("no UTF-8"));
        assert!(error(1, "é\0".as_bytes()).contains("no replacement at 1"), "inside a character");
    }

    #[test]
    fn broken_tables_are_refused() {
        for (table, message) in [
            ("", "is empty"),
            ("?", "is not base64"),
            ("////fwAAAAA", "a trie of 2147483647 bytes"),
            ("AAAAAA", "a trie of 0 bytes"),
        ] {
            let error = check(table).expect_err(table);
            assert!(error.contains(message), "{error}");
        }
        assert_eq!(check("BAAAAAAAAABhAA"), Ok(()));
    }
}
