//! NumPy archives of MLX's examples: what is read of them, and how broken ones are refused.

use std::collections::BTreeMap;

use brasa_formats::{Bytes, Checkpoint, FormatError, StorageFormat};

/// An archive of arrays, each with its name, its description and its bytes, none of them compressed.
pub fn archive(arrays: &[(&str, &str, &[u8])]) -> Vec<u8> {
    let (mut files, mut entries) = (Vec::new(), Vec::new());
    for (name, description, data) in arrays {
        let name = format!("{name}.npy");
        let mut npy = b"\x93NUMPY\x01\x00".to_vec();
        npy.extend((description.len() as u16).to_le_bytes());
        npy.extend(description.as_bytes());
        npy.extend(*data);
        let (size, local) = (npy.len() as u32, files.len() as u32);
        let sizes = [0, size, size].map(u32::to_le_bytes).concat();
        // Version, flags, method, time, date; checksum and sizes; lengths of the name and of what follows it.
        files.extend(b"PK\x03\x04");
        files.extend([0; 10]);
        files.extend(&sizes);
        files.extend([name.len() as u16, 0].map(u16::to_le_bytes).concat());
        files.extend(name.as_bytes());
        files.extend(npy);
        entries.extend(b"PK\x01\x02");
        entries.extend([0; 12]);
        entries.extend(&sizes);
        entries.extend((name.len() as u16).to_le_bytes());
        entries.extend([0; 12]);
        entries.extend(local.to_le_bytes());
        entries.extend(name.as_bytes());
    }
    let (start, length) = (files.len() as u32, entries.len() as u32);
    files.extend(entries);
    files.extend(b"PK\x05\x06\0\0\0\0");
    files.extend([arrays.len() as u16; 2].map(u16::to_le_bytes).concat());
    files.extend([length, start].map(u32::to_le_bytes).concat());
    files.extend([0, 0]);
    files
}

fn open(npz: Vec<u8>) -> Result<Checkpoint, FormatError> {
    let files = [("config.json", b"{}".to_vec()), ("weights.npz", npz)];
    let files = files.map(|(name, bytes)| (name.to_owned(), Bytes::from(bytes)));
    Checkpoint::from_files(BTreeMap::from(files))
}

const HALVES: &str = "{'descr': '<f2', 'fortran_order': False, 'shape': (2, 3, ), }";
/// 0 to 5 in halves.
const BYTES: [u8; 12] = [0, 0, 0, 0x3C, 0, 0x40, 0, 0x42, 0, 0x44, 0, 0x45];

#[test]
fn arrays_are_tensors() {
    let bf16 = "{'descr': '<V2', 'fortran_order': True, 'shape': (2, )}";
    let heads = "{'descr': '<i8', 'fortran_order': True, 'shape': (1, 1)}";
    let checkpoint = open(archive(&[
        ("a.weight", HALVES, &BYTES),
        ("b", bf16, &[0, 0, 0x80, 0x3F]),
        ("heads", heads, &[0; 8]),
    ]))
    .unwrap();
    assert_eq!(checkpoint.tensors().len(), 2, "integers are no weights");
    let tensor = checkpoint.tensor("a.weight").unwrap();
    assert_eq!((&tensor.shape[..], tensor.format), (&[2, 3][..], StorageFormat::F16));
    let mut values = [0.0; 6];
    tensor.decode_rows(0..2, &mut values).unwrap();
    assert_eq!(values.map(|x| x as u8), [0, 1, 2, 3, 4, 5]);
    let tensor = checkpoint.tensor("b").unwrap();
    assert_eq!((&tensor.shape[..], tensor.format), (&[2][..], StorageFormat::BF16));
}

#[test]
fn broken_archives_are_refused() {
    let good = archive(&[("a", HALVES, &BYTES)]);
    let changed = |at: usize, byte: u8| {
        let mut bad = good.clone();
        bad[at] = byte;
        bad
    };
    let described = |text: &str| archive(&[("a", text, &BYTES)]);
    let (end, entry) = (good.len() - 22, good.len() - 22 - 46 - 5);
    for (npz, expected) in [
        (Vec::new(), "no directory of a ZIP archive"),
        (good[..good.len() - 1].to_vec(), "no directory of a ZIP archive"),
        (good[40..].to_vec(), "no entry of a ZIP archive's directory"),
        (changed(end + 10, 9), "no entry of a ZIP archive's directory"),
        (changed(end + 16, 1), "no entry of a ZIP archive's directory"),
        (changed(end + 19, 0x7F), "behind its own end"),
        (changed(entry + 10, 8), "compressed by method 8"),
        (changed(entry + 20, 1), "stored as 1"),
        (changed(entry + 45, 1), "the file ends inside a file of the archive"),
        (changed(entry + 42, 3), "no file of a ZIP archive"),
        (changed(0x23, b'!'), "no NumPy array of version 1 to 3"),
        (described("{}"), "an array described as \"{}\""),
        (described(&HALVES.replace("False", "True")), "columns before rows"),
        (described(&HALVES.replace("2, 3", "2, 4")), "12 bytes of <f2 do not make the shape [2, 4]"),
        (
            described(&HALVES.replace("2, 3", "18446744073709551615, 18446744073709551615")),
            "do not make the shape",
        ),
        (described(&HALVES.replace("<f2", ">f2")), "unknown dtype \">f2\""),
        (archive(&[("a", HALVES, &BYTES), ("a", HALVES, &BYTES)]), "appears twice"),
    ] {
        let error = open(npz).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}\nexpected: {expected}");
    }
}
