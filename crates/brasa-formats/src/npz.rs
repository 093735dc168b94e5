//! NumPy archives, as MLX's examples write weights: a ZIP archive of `.npy` files, each a short text and an array.
//!
//! Arrays that are stored as they are stay where they lie; an archive whose files are compressed is refused.

use std::path::Path;
use std::sync::Arc;

use crate::cursor::{Cursor, Read};
use crate::error::Fault;
use crate::names::Names;
use crate::problems::Problems;
use crate::safetensors::{Dtype, RawTensor};
use crate::{Bytes, Result};

const END: [u8; 4] = *b"PK\x05\x06";
const END_BYTES: usize = 22;
const ENTRY: [u8; 4] = *b"PK\x01\x02";
const FILE: [u8; 4] = *b"PK\x03\x04";
/// The longest comment at the end of an archive.
const LONGEST_COMMENT: usize = u16::MAX as usize;
/// A field of 32 bits with this value stands for a field of 64 bits elsewhere, in archives of more than 4 GiB.
const ELSEWHERE: u32 = u32::MAX;
const NPY: [u8; 6] = *b"\x93NUMPY";
/// Bytes of the text that describes an array. NumPy's own limit.
const LONGEST_TEXT: u64 = 10_000;
const MOST_DIMS: usize = 8;

/// NumPy's names of element types, and the types. NumPy has no name for BF16; MLX writes it as two bytes without a type.
const TYPES: [(&str, Dtype); 13] = [
    ("<f2", Dtype::F16),
    ("<f4", Dtype::F32),
    ("<f8", Dtype::F64),
    ("<V2", Dtype::BF16),
    ("|V2", Dtype::BF16),
    ("|b1", Dtype::BOOL),
    ("|u1", Dtype::U8),
    ("|i1", Dtype::I8),
    ("<u2", Dtype::U16),
    ("<i4", Dtype::I32),
    ("<u4", Dtype::U32),
    ("<i8", Dtype::I64),
    ("<u8", Dtype::U64),
];

/// A file of the archive, as the directory at its end describes it.
struct Entry {
    name: String,
    method: u16,
    packed_bytes: u32,
    bytes: u32,
    local: u32,
}

/// Reads the archive at `path`, and binds each array to its bytes.
///
/// Fails if the directory is unreadable; what is wrong with single arrays goes to `problems`.
pub(crate) fn read(path: &Path, bytes: &Bytes, problems: &mut Problems) -> Result<Vec<RawTensor>> {
    let entries = directory(path, bytes)?;
    let shared: Arc<Path> = path.into();
    let mut tensors: Vec<RawTensor> = Vec::with_capacity(entries.len());
    let mut names = Names::default();
    for entry in entries {
        let Some(name) = entry.name.strip_suffix(".npy") else { continue };
        if !names.insert(name, tensors.iter().map(|tensor| tensor.name.as_str())) {
            problems.push(Fault::new(path, "this array appears twice").of(name).malformed());
            continue;
        }
        match array(&shared, bytes, name, &entry) {
            Ok(tensor) => tensors.push(tensor),
            Err(error) => problems.push(error),
        }
    }
    Ok(tensors)
}

/// The archive's directory.
fn directory(path: &Path, bytes: &Bytes) -> Read<Vec<Entry>> {
    let incomplete = "the file is incomplete; download it again";
    let from = bytes.len().saturating_sub(END_BYTES + LONGEST_COMMENT);
    let end = bytes[from..].windows(END.len()).rposition(|window| window == END).map(|at| from + at);
    let Some(end) = end.filter(|end| end + END_BYTES <= bytes.len()) else {
        return Err(Fault::new(path, "no directory of a ZIP archive at the file's end").hint(incomplete));
    };
    let mut cursor = Cursor { path, bytes, at: end + 10 };
    let count = u16_of(&mut cursor)?;
    let (_, start) = (cursor.u32("the archive's end")?, cursor.u32("the archive's end")?);
    if start == ELSEWHERE || count == u16::MAX {
        return Err(Fault::new(path, "a ZIP archive of more than 4 GiB or 65,534 files")
            .hint("convert the weights to safetensors"));
    }
    if start as usize > end {
        return Err(Fault::new(path, format!("a directory at {start}, behind its own end")).at(end));
    }
    cursor.at = start as usize;
    (0..count)
        .map(|_| {
            let at = cursor.at;
            if cursor.array::<4>("the archive's directory")? != ENTRY {
                return Err(Fault::new(path, "no entry of a ZIP archive's directory").at(at));
            }
            cursor.take(6, "the archive's directory")?;
            let method = u16_of(&mut cursor)?;
            cursor.take(8, "the archive's directory")?;
            let (packed_bytes, bytes) =
                (cursor.u32("the archive's directory")?, cursor.u32("the archive's directory")?);
            let lengths = [u16_of(&mut cursor)?, u16_of(&mut cursor)?, u16_of(&mut cursor)?];
            cursor.take(8, "the archive's directory")?;
            let local = cursor.u32("the archive's directory")?;
            let name = cursor.take(u64::from(lengths[0]), "a name")?;
            let name = str::from_utf8(name)
                .map_err(|_| Fault::new(path, "an array's name is not UTF-8").at(at))?
                .to_owned();
            cursor.take(u64::from(lengths[1]) + u64::from(lengths[2]), "the archive's directory")?;
            Ok(Entry { name, method, packed_bytes, bytes, local })
        })
        .collect()
}

/// The array of one file of the archive.
fn array(path: &Arc<Path>, bytes: &Bytes, name: &str, entry: &Entry) -> Result<RawTensor> {
    let fault = |problem: String| Fault::new(&**path, problem).of(name).at(u64::from(entry.local));
    if entry.method != 0 {
        let problem = format!("compressed by method {}, expected bytes as they are", entry.method);
        return Err(fault(problem).hint("convert the weights to safetensors").unsupported());
    }
    if [entry.packed_bytes, entry.bytes, entry.local].contains(&ELSEWHERE)
        || entry.packed_bytes != entry.bytes
    {
        let problem = format!("{} bytes stored as {}", entry.bytes, entry.packed_bytes);
        return Err(fault(problem).malformed());
    }
    let mut cursor = Cursor { path, bytes, at: (entry.local as usize).min(bytes.len()) };
    let (size, text) = description(&mut cursor, entry).map_err(|fault| fault.of(name).malformed())?;
    let shown = || text.chars().take(200).collect::<String>();
    let Description { dtype_name, shape, by_columns } =
        parse(&text).ok_or_else(|| fault(format!("an array described as {:?}", shown())).malformed())?;
    let dtype = TYPES.iter().find(|(known, _)| *known == dtype_name).map(|(_, dtype)| *dtype);
    // Integers that are no packed weights are not read.
    if by_columns && dtype.is_none_or(|dtype| !dtype.is_integer() || dtype == Dtype::U32) {
        return Err(fault(format!("columns before rows: {:?}", shown())).unsupported());
    }
    let elements = shape.iter().try_fold(1_u64, |product, &dim| product.checked_mul(dim as u64));
    let needed = elements.and_then(|elements| elements.checked_mul(dtype.map_or(0, Dtype::bits)));
    if dtype.is_some() && needed != (size as u64).checked_mul(8) {
        let problem = format!("{size} bytes of {dtype_name} do not make the shape {shape:?}");
        return Err(fault(problem).malformed());
    }
    let at = cursor.at;
    cursor.take(size as u64, "an array").map_err(|fault| fault.of(name).malformed())?;
    Ok(RawTensor {
        name: name.into(),
        dtype_name: dtype.map_or_else(|| dtype_name.into(), |dtype| dtype.to_string().into()),
        dtype,
        shape,
        file: Arc::clone(path),
        offset_bytes: at as u64,
        size_bytes: size as u64,
        bytes: bytes.slice(at..cursor.at),
    })
}

/// Reads what stands before an array's bytes; returns how many these are, and the text that describes them.
fn description(cursor: &mut Cursor<'_>, entry: &Entry) -> Read<(usize, String)> {
    let start = cursor.at;
    if cursor.array::<4>("a file of the archive")? != FILE {
        return Err(Fault::new(cursor.path, "no file of a ZIP archive").at(start));
    }
    cursor.take(22, "a file of the archive")?;
    let skipped = u64::from(u16_of(cursor)?) + u64::from(u16_of(cursor)?);
    cursor.take(skipped, "a file of the archive")?;
    let begin = cursor.at;
    let magic = cursor.array::<6>("an array")?;
    let [major, _] = cursor.array::<2>("an array")?;
    if magic != NPY || !(1..=3).contains(&major) {
        return Err(Fault::new(cursor.path, "no NumPy array of version 1 to 3").at(begin));
    }
    let length = if major == 1 { u32::from(u16_of(cursor)?) } else { cursor.u32("an array")? };
    if u64::from(length) > LONGEST_TEXT {
        let problem = format!("a description of {length} bytes, expected at most {LONGEST_TEXT}");
        return Err(Fault::new(cursor.path, problem).at(begin));
    }
    let text =
        String::from_utf8_lossy(cursor.take(u64::from(length), "an array's description")?).into_owned();
    let size = (entry.bytes as usize).checked_sub(cursor.at - begin);
    let size =
        size.ok_or_else(|| Fault::new(cursor.path, "an array shorter than its description").at(begin))?;
    Ok((size, text))
}

/// The header of an array: its type, order and shape.
#[derive(Debug, PartialEq)]
struct Description {
    dtype_name: String,
    shape: Vec<usize>,
    /// True if the first index varies fastest in memory (Fortran's order).
    by_columns: bool,
}

/// Reads `{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }`.
fn parse(text: &str) -> Option<Description> {
    let behind = |key: &str| Some(text.split_once(&format!("'{key}':"))?.1.trim_start());
    let dtype = behind("descr")?.strip_prefix('\'')?.split_once('\'')?.0;
    let dims = behind("shape")?.strip_prefix('(')?.split_once(')')?.0;
    let dims = dims.split(',').map(str::trim).filter(|dim| !dim.is_empty());
    let shape: Vec<usize> = dims.map(|dim| dim.parse().ok()).collect::<Option<_>>()?;
    let by_columns = match behind("fortran_order")? {
        order if order.starts_with("False") => false,
        order if order.starts_with("True") => true,
        _ => return None,
    };
    // Where at most one dimension is more than 1, both orders are the same.
    let by_columns = by_columns && shape.iter().filter(|&&dim| dim > 1).count() > 1;
    let dtype_name = dtype.to_owned();
    (shape.len() <= MOST_DIMS).then_some(Description { dtype_name, shape, by_columns })
}

fn u16_of(cursor: &mut Cursor<'_>) -> Read<u16> {
    cursor.array("the archive").map(u16::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn descriptions_are_read() {
        let read = |text: &str| parse(text).map(|read| (read.dtype_name, read.shape, read.by_columns));
        let array = "{'descr': '<f2', 'fortran_order': False, 'shape': (4, 3, ), }   \n";
        assert_eq!(read(array), Some(("<f2".into(), vec![4, 3], false)));
        assert_eq!(read(&array.replace("(4, 3, )", "()")), Some(("<f2".into(), vec![], false)));
        assert_eq!(read(&array.replace("False", "True")), Some(("<f2".into(), vec![4, 3], true)));
        let row = array.replace("False", "True").replace('4', "1");
        assert_eq!(read(&row), Some(("<f2".into(), vec![1, 3], false)));
        for wrong in [
            "",
            "{}",
            &array.replace('4', "-4"),
            &array.replace('(', "["),
            &array.replace("False", "0"),
            &array.replace("4,", &"1, ".repeat(9)),
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
