//! Lines of a file, with their numbers.

use std::io::{BufRead, Read};

use super::row::Fault;

/// Most bytes of a line.
const MOST_BYTES: u64 = 64 << 20;

/// Calls `each` with every line that is not blank, trimmed, and its number, from 1. Stops at the first error.
pub fn each_line(
    reader: impl BufRead,
    mut each: impl FnMut(usize, &str) -> Result<(), Fault>,
) -> Result<(), LineFault> {
    each_whole_line(reader, |number, line| match line.trim() {
        "" => Ok(()),
        line => each(number, line).map_err(|fault| LineFault::Row(number, fault)),
    })
}

/// Calls `each` with every line and its number, from 1. Stops at the first error.
pub fn each_whole_line(
    mut reader: impl BufRead,
    mut each: impl FnMut(usize, &str) -> Result<(), LineFault>,
) -> Result<(), LineFault> {
    let mut bytes = Vec::new();
    for number in 1.. {
        bytes.clear();
        let read = (&mut reader).take(MOST_BYTES + 1).read_until(b'\n', &mut bytes).map_err(LineFault::Io)?;
        if read == 0 {
            break;
        }
        let refuse = |what: String, hint: &str| Err(LineFault::Row(number, Fault::new(what, hint)));
        if bytes.len() as u64 > MOST_BYTES {
            return refuse(
                format!("longer than {} MiB", MOST_BYTES >> 20),
                "break the file into shorter lines",
            );
        }
        let line = match std::str::from_utf8(&bytes) {
            Ok(line) => line,
            Err(error) => {
                let what = format!("byte {} is not UTF-8", error.valid_up_to() + 1);
                return refuse(what, "save the file as UTF-8");
            }
        };
        let line = if number == 1 { line.trim_start_matches('\u{FEFF}') } else { line };
        each(number, line)?;
    }
    Ok(())
}

/// The reason why a file could not be read to its end.
pub enum LineFault {
    Io(std::io::Error),
    Row(usize, Fault),
}
