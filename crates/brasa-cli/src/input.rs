//! Reads whole texts: from files, pipes and standard input.

use std::fs::File;
use std::io::stdin;
use std::path::Path;

use brasa::formats::read_capped;

use crate::failure::Failure;

/// Most bytes of a text that is read. A context of a million tokens has a tenth of this.
const LARGEST_TEXT: u64 = 64 << 20;

/// Reads a file, a pipe such as that of `<(command)`, or standard input for `-`.
///
/// # Errors
///
/// [`Failure::Failed`], naming the file; also if the file is larger than the limit.
pub fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    if path.as_os_str() == "-" {
        return standard();
    }
    let file = File::open(path).map_err(|error| Failure::file(path, &error))?;
    read_capped(file, path, LARGEST_TEXT).map_err(|error| Failure::Failed(error.to_string()))
}

/// Reads a file as text.
///
/// # Errors
///
/// [`Failure::Failed`], naming the file.
pub fn text(path: &Path) -> Result<String, Failure> {
    String::from_utf8(read(path)?)
        .map_err(|error| Failure::Failed(format!("{}: not UTF-8: {error}", path.display())))
}

/// Reads standard input to its end.
///
/// # Errors
///
/// [`Failure::Failed`] if reading fails or the input is larger than the limit.
pub fn standard() -> Result<Vec<u8>, Failure> {
    read_capped(stdin().lock(), Path::new("standard input"), LARGEST_TEXT)
        .map_err(|error| Failure::Failed(error.to_string()))
}

/// Replaces the escapes `\n`, `\t`, `\r`, `\"`, `\'` and `\\` in `text`, as llama.cpp does. Other backslashes are unchanged.
pub fn unescape(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, tail)) = rest.split_first() {
        let meant = match tail.first() {
            Some(b'n') => Some(b'\n'),
            Some(b't') => Some(b'\t'),
            Some(b'r') => Some(b'\r'),
            Some(&same) if matches!(same, b'"' | b'\'' | b'\\') => Some(same),
            _ => None,
        };
        let escape = meant.filter(|_| first == b'\\');
        plain.push(escape.unwrap_or(first));
        rest = &tail[usize::from(escape.is_some())..];
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::unescape;

    #[test]
    fn escapes_are_read_as_llama_cpp_reads_them() {
        assert_eq!(unescape(br#"a\nb\tc\rd\"e\'f\\n\q\"#), b"a\nb\tc\rd\"e'f\\n\\q\\");
    }
}
