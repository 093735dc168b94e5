//! Arrays of an `.npz` file: a ZIP archive of deflated `.npy` files.

use std::collections::BTreeMap;
use std::path::Path;

/// All f32 arrays of the archive, by name, as rows of the innermost axis.
pub fn read(path: &Path) -> BTreeMap<String, Vec<Vec<f32>>> {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let u16_at = |at: usize| usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
    let u32_at = |at: usize| u16_at(at) | u16_at(at + 2) << 16;

    // The end record is last, without a comment; it says where the directory is.
    let end = bytes.len() - 22;
    assert_eq!(u32_at(end), 0x0605_4b50, "{}: end of a ZIP archive", path.display());
    let (count, mut at) = (u16_at(end + 10), u32_at(end + 16));
    let mut arrays = BTreeMap::new();
    for _ in 0..count {
        let (method, packed_bytes, name_bytes, local) =
            (u16_at(at + 10), u32_at(at + 20), u16_at(at + 28), u32_at(at + 42));
        let name = String::from_utf8(bytes[at + 46..][..name_bytes].to_vec()).expect("UTF-8");
        let start = local + 30 + u16_at(local + 26) + u16_at(local + 28);
        let packed = &bytes[start..start + packed_bytes];
        let npy = match method {
            0 => packed.to_vec(),
            8 => miniz_oxide::inflate::decompress_to_vec(packed).expect("deflated bytes"),
            other => panic!("{name}: compression method {other}"),
        };
        arrays.insert(name.trim_end_matches(".npy").to_string(), rows(&name, &npy));
        at += 46 + name_bytes + u16_at(at + 30) + u16_at(at + 32);
    }
    arrays
}

/// The rows of a `.npy` file of f32, C order.
fn rows(name: &str, npy: &[u8]) -> Vec<Vec<f32>> {
    assert_eq!(&npy[..8], b"\x93NUMPY\x01\x00", "{name}: version 1.0");
    let header_bytes = usize::from(u16::from_le_bytes([npy[8], npy[9]]));
    let header = std::str::from_utf8(&npy[10..10 + header_bytes]).expect("ASCII");
    assert!(header.contains("'<f4'") && header.contains("'fortran_order': False"), "{name}: {header}");
    let shape = header.split(['(', ')']).nth(1).expect("a shape");
    let width: usize = shape
        .split(',')
        .map(str::trim)
        .rfind(|dim| !dim.is_empty())
        .and_then(|dim| dim.parse().ok())
        .expect("a width");
    let values: Vec<f32> =
        npy[10 + header_bytes..].as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
    values.chunks_exact(width).map(<[f32]>::to_vec).collect()
}
