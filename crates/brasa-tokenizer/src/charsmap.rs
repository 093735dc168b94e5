//! The table by which SentencePiece normalises characters: `precompiled_charsmap` of a `Precompiled` normaliser.
//!
//! It holds the size of a trie, the trie, and the replacements, each of which ends with a zero. The `tokenizers` crate trusts
//! the size and panics if it lies, so a table is checked before the crate sees it.

/// Bytes of the longest replacement; SentencePiece's own table has 33.
const LONGEST_REPLACEMENT: usize = 64;

/// Checks a table, given in base64.
///
/// # Errors
///
/// A sentence that says what is wrong with the table.
pub fn check(base64: &str) -> std::result::Result<(), String> {
    let table = from_base64(base64).ok_or("precompiled_charsmap is not base64")?;
    let (size, rest) = table.split_first_chunk::<4>().ok_or("precompiled_charsmap is empty")?;
    let size = u32::from_le_bytes(*size) as usize;
    if size > rest.len() || size < 4 || !size.is_multiple_of(4) {
        return Err(format!(
            "precompiled_charsmap has a trie of {size} bytes, and {} bytes in all",
            table.len()
        ));
    }
    let longest = rest[size..].split(|byte| *byte == 0).map(<[u8]>::len).max().unwrap_or(0);
    if longest > LONGEST_REPLACEMENT {
        return Err(format!(
            "precompiled_charsmap replaces a character by {longest} bytes, expected at most {LONGEST_REPLACEMENT}"
        ));
    }
    Ok(())
}

fn from_base64(text: &str) -> Option<Vec<u8>> {
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
    use super::{check, from_base64};

    #[test]
    fn base64_is_decoded() {
        assert_eq!(from_base64("aGVsbG8="), Some(b"hello".to_vec()));
        assert_eq!(from_base64("/+8"), Some(vec![0xFF, 0xEF]));
        assert_eq!(from_base64("a b"), None);
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
