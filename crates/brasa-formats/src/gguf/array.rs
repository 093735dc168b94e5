//! Arrays of metadata values, in the form they have in the file.
//!
//! A vocabulary of a quarter of a million strings is walked when it is asked for and copied when it is written, never
//! turned into a quarter of a million allocations in between.

use super::value::{Value, ValueType};
use crate::Bytes;

/// An array of values of one type, packed as in the file.
#[derive(Clone, Debug)]
pub struct Array {
    element: ValueType,
    len: usize,
    /// Validated: exactly `len` elements, strings and inner arrays with their headers.
    packed: Bytes,
}

/// A number or bool that an [`Array`] can be packed from.
pub trait Scalar: Into<Value> {
    /// The type that the file gives to such elements.
    const TYPE: ValueType;
}

impl Array {
    /// Packs numbers or bools.
    pub fn of<T: Scalar>(elements: impl IntoIterator<Item = T>) -> Self {
        let mut packed = Vec::new();
        let mut len = 0;
        for element in elements {
            element.into().pack(&mut packed);
            len += 1;
        }
        Self { element: T::TYPE, len, packed: packed.into() }
    }

    /// Packs strings; they may hold any bytes, as the tokens of a vocabulary do.
    pub fn of_strings<S: AsRef<[u8]>>(strings: impl IntoIterator<Item = S>) -> Self {
        let mut packed = Vec::new();
        let mut len = 0;
        for string in strings {
            pack_string(string.as_ref(), &mut packed);
            len += 1;
        }
        Self { element: ValueType::String, len, packed: packed.into() }
    }

    /// Packs arrays.
    pub fn of_arrays(arrays: impl IntoIterator<Item = Array>) -> Self {
        let mut packed = Vec::new();
        let mut len = 0;
        for array in arrays {
            array.pack(&mut packed);
            len += 1;
        }
        Self { element: ValueType::Array, len, packed: packed.into() }
    }

    /// An array whose `packed` form has been checked.
    pub(super) fn validated(element: ValueType, len: usize, packed: Bytes) -> Self {
        Self { element, len, packed }
    }

    /// The type of every element.
    pub fn element_type(&self) -> ValueType {
        self.element
    }

    /// The number of elements.
    #[expect(clippy::len_without_is_empty, reason = "nobody asks")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The elements of an array of numbers or bools.
    pub fn scalars(&self) -> Option<impl Iterator<Item = Value> + '_> {
        let size = self.element.size_bytes()?;
        Some(self.packed.chunks_exact(size).filter_map(|bytes| Value::from_le_bytes(self.element, bytes)))
    }

    /// The elements of an array of strings; they may hold any bytes.
    pub fn strings(&self) -> Option<impl Iterator<Item = &[u8]> + '_> {
        let mut rest: &[u8] = &self.packed;
        (self.element == ValueType::String)
            .then(|| std::iter::from_fn(move || take_string(&mut rest)).take(self.len))
    }

    /// The elements of an array of arrays.
    pub fn arrays(&self) -> Option<impl Iterator<Item = Array> + '_> {
        let mut at = 0;
        (self.element == ValueType::Array).then(|| {
            std::iter::from_fn(move || {
                let (array, end) = Self::unpack(&self.packed, at)?;
                at = end;
                Some(array)
            })
            .take(self.len)
        })
    }

    /// The array whose header is at `at` of `packed`, and where it ends.
    fn unpack(packed: &Bytes, at: usize) -> Option<(Self, usize)> {
        let mut rest = packed.get(at..)?;
        let element = ValueType::from_code(u32::from_le_bytes(*rest.split_off(..4)?.as_array()?))?;
        let len = usize::try_from(u64::from_le_bytes(*rest.split_off(..8)?.as_array()?)).ok()?;
        let start = at + 12;
        let bytes = match element {
            ValueType::String => {
                let before = rest.len();
                for _ in 0..len {
                    take_string(&mut rest)?;
                }
                before - rest.len()
            }
            ValueType::Array => {
                let mut end = start;
                for _ in 0..len {
                    end = Self::unpack(packed, end)?.1;
                }
                end - start
            }
            scalar => scalar.size_bytes()?.checked_mul(len)?,
        };
        let end = start.checked_add(bytes)?;
        Some((Self { element, len, packed: packed.slice(start..end)? }, end))
    }

    pub(super) fn pack(&self, out: &mut Vec<u8>) {
        out.extend((self.element as u32).to_le_bytes());
        out.extend((self.len as u64).to_le_bytes());
        out.extend_from_slice(&self.packed);
    }
}

impl PartialEq for Array {
    fn eq(&self, other: &Self) -> bool {
        self.element == other.element && self.len == other.len && *self.packed == *other.packed
    }
}

fn take_string<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = u64::from_le_bytes(*rest.split_off(..8)?.as_array()?);
    rest.split_off(..usize::try_from(len).ok()?)
}

pub(super) fn pack_string(string: &[u8], out: &mut Vec<u8>) {
    out.extend((string.len() as u64).to_le_bytes());
    out.extend_from_slice(string);
}
