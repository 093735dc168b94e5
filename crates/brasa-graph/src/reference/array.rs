//! A dense array.

use std::fmt;

use super::Number;
use crate::DType;

/// A dense array of elements, row-major. Floats of any width are kept as numbers of type `T`.
#[derive(Clone, PartialEq)]
pub struct Array<T = f32> {
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// The elements, as many as the product of the dimensions.
    pub data: Data<T>,
}

/// The elements of an [`Array`].
#[derive(Clone, PartialEq)]
pub enum Data<T = f32> {
    /// Floats of any width.
    Floats(Vec<T>),
    /// Token ids, positions, expert numbers.
    U32(Vec<u32>),
}

impl Array {
    /// An f32 array of `shape`.
    ///
    /// # Panics
    ///
    /// If the number of elements is not the product of `shape`.
    pub fn f32(shape: impl Into<Vec<usize>>, data: Vec<f32>) -> Self {
        Self::of(shape, data)
    }
}

impl<T: Number> Array<T> {
    /// An array of numbers of type `T`, of `shape`.
    ///
    /// # Panics
    ///
    /// If the number of elements is not the product of `shape`.
    pub fn of(shape: impl Into<Vec<usize>>, data: Vec<T>) -> Self {
        Self::new(shape.into(), Data::Floats(data))
    }

    /// Converts the floats to numbers of another type, one by one; integers stay.
    #[must_use]
    pub fn map<U: Number>(&self, change: impl FnMut(T) -> U) -> Array<U> {
        let data = match &self.data {
            Data::Floats(data) => Data::Floats(data.iter().copied().map(change).collect()),
            Data::U32(data) => Data::U32(data.clone()),
        };
        Array { shape: self.shape.clone(), data }
    }

    /// An array of integers, of `shape`.
    ///
    /// # Panics
    ///
    /// If the number of elements is not the product of `shape`.
    pub fn u32(shape: impl Into<Vec<usize>>, data: Vec<u32>) -> Self {
        Self::new(shape.into(), Data::U32(data))
    }

    fn new(shape: Vec<usize>, data: Data<T>) -> Self {
        assert_eq!(shape.iter().product::<usize>(), data.len(), "elements of an array of shape {shape:?}");
        Self { shape, data }
    }

    /// The elements in another shape.
    ///
    /// # Panics
    ///
    /// If `shape` holds another number of elements.
    #[must_use]
    pub fn reshaped(&self, shape: impl Into<Vec<usize>>) -> Self {
        Self::new(shape.into(), self.data.clone())
    }

    /// The elements of a float array.
    ///
    /// # Panics
    ///
    /// If the elements are integers: shape inference has accepted a wrong operand.
    pub fn floats(&self) -> &[T] {
        match &self.data {
            Data::Floats(data) => data,
            Data::U32(_) => panic!("an array of integers {:?} where floats were expected", self.shape),
        }
    }

    /// The elements of an integer array.
    ///
    /// # Panics
    ///
    /// If the elements are floats: shape inference has accepted a wrong operand.
    pub fn integers(&self) -> &[u32] {
        match &self.data {
            Data::U32(data) => data,
            Data::Floats(_) => panic!("an array of floats {:?} where integers were expected", self.shape),
        }
    }

    /// The innermost dimension; 1 for a scalar.
    pub fn width(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// The outermost dimension; 1 for a scalar.
    pub fn outer(&self) -> usize {
        self.shape.first().copied().unwrap_or(1)
    }

    /// Elements in one outermost row.
    pub fn row_elements(&self) -> usize {
        self.shape.iter().skip(1).product()
    }

    /// Rows along the innermost axis.
    ///
    /// # Panics
    ///
    /// If the elements are integers.
    pub fn rows(&self) -> std::slice::ChunksExact<'_, T> {
        self.floats().chunks_exact(self.width().max(1))
    }

    /// Overwrites whole rows from row `first` on.
    ///
    /// # Panics
    ///
    /// If the elements are integers or too many.
    pub(super) fn put_rows(&mut self, first: usize, rows: &[T]) {
        let start = first * self.row_elements();
        match &mut self.data {
            Data::Floats(data) => data[start..start + rows.len()].copy_from_slice(rows),
            Data::U32(_) => panic!("rows of floats for an array of integers {:?}", self.shape),
        }
    }

    /// Converts the elements to floats.
    pub fn to_floats(&self) -> Vec<T> {
        match &self.data {
            Data::Floats(data) => data.clone(),
            Data::U32(data) => data.iter().map(|&x| T::constant(x.into())).collect(),
        }
    }

    /// An array of `shape` whose element *i* is this array's element `source(i)`.
    pub(crate) fn gathered(&self, shape: Vec<usize>, source: impl Fn(usize) -> usize) -> Self {
        let len = shape.iter().product();
        let data = match &self.data {
            Data::Floats(data) => Data::Floats((0..len).map(|i| data[source(i)]).collect()),
            Data::U32(data) => Data::U32((0..len).map(|i| data[source(i)]).collect()),
        };
        Self { shape, data }
    }

    /// Converts the elements to another type, rounded to nearest even; floats beyond the range of integers are clamped.
    pub(crate) fn cast(&self, dtype: DType) -> Self {
        let data = match dtype {
            DType::U32 => match &self.data {
                Data::U32(data) => Data::U32(data.clone()),
                Data::Floats(data) => {
                    Data::U32(data.iter().map(|x| x.value().round_ties_even() as u32).collect())
                }
            },
            _ => Data::Floats(self.to_floats().into_iter().map(|x| x.rounded(dtype)).collect()),
        };
        Self { shape: self.shape.clone(), data }
    }
}

impl<T> Data<T> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::Floats(data) => data.len(),
            Self::U32(data) => data.len(),
        }
    }

    /// True if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T: fmt::Debug> fmt::Debug for Array<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 16;
        write!(f, "{:?} ", self.shape)?;
        match &self.data {
            Data::Floats(data) => write!(f, "{:?}", &data[..data.len().min(SHOWN)])?,
            Data::U32(data) => write!(f, "{:?}", &data[..data.len().min(SHOWN)])?,
        }
        if self.data.len() > SHOWN { f.write_str("…") } else { Ok(()) }
    }
}

impl<T> fmt::Debug for Data<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Floats(data) => write!(f, "{} floats", data.len()),
            Self::U32(data) => write!(f, "{} integers", data.len()),
        }
    }
}
