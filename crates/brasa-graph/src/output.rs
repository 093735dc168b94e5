//! Results of a step: the graph's outputs, as dense rows of f32 or u32.

use std::ops::Range;

use crate::{DType, Graph, Shape, Sizes};

/// The outputs of one step, in the order in which the graph names them.
#[derive(Clone, Copy, Debug)]
pub struct Outputs<'a> {
    places: &'a [OutputPlace],
    words: &'a [u32],
}

/// One output of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Output<'a> {
    shape: &'a [usize],
    values: OutputValues<'a>,
}

/// The elements of an output, row-major.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OutputValues<'a> {
    /// Floats; f16 and bf16 values of a graph are widened.
    F32(&'a [f32]),
    /// Unsigned integers.
    U32(&'a [u32]),
}

/// Place of one output on a device, in words of four bytes. The place lives in the program and holds the values of its latest step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputPlace {
    is_float: bool,
    symbolic: Shape,
    shape: Vec<usize>,
    words: Range<usize>,
}

impl OutputPlace {
    /// The places of the outputs of `graph`, for a step of no rows.
    pub fn of(graph: &Graph) -> Vec<Self> {
        let place = |&id| {
            let value = graph.value(id);
            let shape = value.shape.resolve(&Sizes::default());
            let is_float = value.dtype != DType::U32;
            Self { is_float, symbolic: value.shape.clone(), shape, words: 0..0 }
        };
        graph.outputs().iter().map(place).collect()
    }

    /// Updates the place for a step of `sizes`, in which the output begins at word `start`. Returns the number of elements.
    pub fn resolve(&mut self, sizes: &Sizes, start: usize) -> usize {
        self.shape.clear();
        self.shape.extend(self.symbolic.0.iter().map(|dim| dim.resolve(sizes)));
        let elements = self.shape.iter().product();
        self.words = start..start + elements;
        elements
    }

    /// Elements of the output in the latest step.
    pub fn elements(&self) -> usize {
        self.words.len()
    }
}

impl<'a> Outputs<'a> {
    /// The outputs at `places` in `words`.
    pub fn new(places: &'a [OutputPlace], words: &'a [u32]) -> Self {
        Self { places, words }
    }

    /// Number of outputs.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// True if the graph returns nothing.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Output `number`.
    ///
    /// # Panics
    ///
    /// If there is no such output.
    pub fn get(&self, number: usize) -> Output<'a> {
        let place = &self.places[number];
        let words = &self.words[place.words.clone()];
        let values = if place.is_float {
            OutputValues::F32(bytemuck::cast_slice(words))
        } else {
            OutputValues::U32(words)
        };
        Output { shape: &place.shape, values }
    }

    /// All outputs, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Output<'a>> {
        let this = *self;
        (0..this.len()).map(move |number| this.get(number))
    }

    /// The only output of a graph that has one: for a language model the logits.
    ///
    /// # Panics
    ///
    /// If the graph has another number of outputs.
    pub fn only(&self) -> Output<'a> {
        assert_eq!(self.len(), 1, "outputs of a graph that should have one");
        self.get(0)
    }
}

impl<'a> Output<'a> {
    /// Dimensions, outermost first.
    pub fn shape(&self) -> &'a [usize] {
        self.shape
    }

    /// The elements, row-major.
    pub fn values(&self) -> OutputValues<'a> {
        self.values
    }

    /// The elements of an output of floats, row-major.
    ///
    /// # Panics
    ///
    /// For an output of integers.
    pub fn floats(&self) -> &'a [f32] {
        match self.values {
            OutputValues::F32(values) => values,
            OutputValues::U32(_) => panic!("an output of integers, read as floats"),
        }
    }

    /// The elements of an output of integers, row-major.
    ///
    /// # Panics
    ///
    /// For an output of floats.
    pub fn numbers(&self) -> &'a [u32] {
        match self.values {
            OutputValues::U32(values) => values,
            OutputValues::F32(_) => panic!("an output of floats, read as integers"),
        }
    }

    /// Converts the elements to floats; integers beyond 2²⁴ are rounded.
    pub fn to_floats(&self) -> Vec<f32> {
        match self.values {
            OutputValues::F32(values) => values.to_vec(),
            OutputValues::U32(values) => values.iter().map(|&value| value as f32).collect(),
        }
    }

    /// Number of rows: the outermost dimension.
    pub fn rows(&self) -> usize {
        self.shape.first().copied().unwrap_or(1)
    }

    /// Elements of a row: the vocabulary size for logits.
    pub fn width(&self) -> usize {
        self.shape.iter().skip(1).product()
    }

    /// Row `index` of an output of floats.
    ///
    /// # Panics
    ///
    /// If there is no such row, and for an output of integers.
    pub fn row(&self, index: usize) -> &'a [f32] {
        let width = self.width();
        &self.floats()[index * width..(index + 1) * width]
    }
}
