//! NumPy's file format.

use std::io::Write;

/// Writes the header of a NumPy file, version 1.0: `[rows, width]`, little-endian f32, row-major.
pub(super) fn npy_header(out: &mut dyn Write, rows: usize, width: usize) -> std::io::Result<()> {
    let mut header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {width}), }}");
    // Magic, version, length and header end on a multiple of 64.
    let padding = 63 - (10 + header.len()) % 64;
    header.extend(std::iter::repeat_n(' ', padding));
    header.push('\n');
    out.write_all(b"\x93NUMPY\x01\x00")?;
    out.write_all(&(header.len() as u16).to_le_bytes())?;
    out.write_all(header.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numpy_headers_end_on_a_multiple_of_64() {
        for (rows, width) in [(1, 2), (123, 4567), (1_000_000, 262_144)] {
            let mut bytes = Vec::new();
            npy_header(&mut bytes, rows, width).unwrap();
            assert_eq!(bytes.len() % 64, 0);
            assert_eq!(bytes.last(), Some(&b'\n'));
        }
    }
}
