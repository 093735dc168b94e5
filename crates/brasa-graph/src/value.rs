//! Values of a graph: element type, symbolic shape, and where they come from.

use std::fmt;

use crate::device::ProgramLimits;
use crate::graph::NodeId;
use crate::step::{Segment, Step};
use crate::weight::WeightId;

/// Element type of a value. Weights are `F32` as values, in any storage format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// 32-bit float.
    F32,
    /// IEEE half.
    F16,
    /// bfloat16.
    BF16,
    /// Unsigned 32-bit integer: token ids, positions, expert numbers.
    U32,
}

impl DType {
    /// Bytes of one element.
    pub const fn size_bytes(self) -> usize {
        match self {
            Self::F32 | Self::U32 => 4,
            Self::F16 | Self::BF16 => 2,
        }
    }
}

/// A quantity that differs from step to step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Symbol {
    /// Rows of the step: tokens of all its segments.
    Rows,
    /// Rows with outputs.
    Outs,
    /// Sequences that take part in this step.
    Segments,
}

/// A dimension: a constant, or a constant times a symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dim {
    /// The constant, or the factor of `symbol`.
    pub factor: usize,
    /// The symbol that the constant multiplies.
    pub symbol: Option<Symbol>,
}

impl Dim {
    /// One element for each row of the step.
    pub const ROWS: Self = Self { factor: 1, symbol: Some(Symbol::Rows) };
    /// One element for each row with outputs.
    pub const OUTS: Self = Self { factor: 1, symbol: Some(Symbol::Outs) };
    /// One element for each sequence in the step.
    pub const SEGMENTS: Self = Self { factor: 1, symbol: Some(Symbol::Segments) };

    /// The value of the dimension, if it is a constant.
    pub fn constant(self) -> Option<usize> {
        self.symbol.is_none().then_some(self.factor)
    }
}

/// The values of symbols in one step, or their upper bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Sizes {
    /// Value of [`Symbol::Rows`].
    pub rows: usize,
    /// Value of [`Symbol::Outs`].
    pub outs: usize,
    /// Value of [`Symbol::Segments`].
    pub segments: usize,
}

impl Sizes {
    /// The values of symbols in `step`.
    pub fn of(step: &Step) -> Self {
        Self { rows: step.rows(), outs: step.outs(), segments: step.segments.len() }
    }

    /// The values of symbols in the largest step within `limits`.
    pub fn at_most(limits: &ProgramLimits) -> Self {
        Self { rows: limits.max_rows, outs: limits.max_outs, segments: limits.max_segments }
    }
}

impl Dim {
    /// Value of the dimension, given the symbols' values.
    pub fn resolve(self, sizes: &Sizes) -> usize {
        self.factor.saturating_mul(match self.symbol {
            None => 1,
            Some(Symbol::Rows) => sizes.rows,
            Some(Symbol::Outs) => sizes.outs,
            Some(Symbol::Segments) => sizes.segments,
        })
    }
}

impl From<usize> for Dim {
    fn from(factor: usize) -> Self {
        Self { factor, symbol: None }
    }
}

/// Dimensions of a value, outermost first. Values of a step have their rows outermost.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shape(pub Vec<Dim>);

impl Shape {
    /// A shape from dimensions, outermost first.
    pub fn new(dims: impl IntoIterator<Item = impl Into<Dim>>) -> Self {
        Self(dims.into_iter().map(Into::into).collect())
    }

    /// `[outer, inner…]`.
    pub fn rows(outer: Dim, inner: &[usize]) -> Self {
        Self(std::iter::once(outer).chain(inner.iter().map(|&n| n.into())).collect())
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// The outermost dimension; a scalar counts as `1`.
    pub fn outer(&self) -> Dim {
        self.0.first().copied().unwrap_or(Dim::from(1))
    }

    /// The innermost dimension, if it is constant; a scalar counts as `1`.
    pub fn width(&self) -> Option<usize> {
        self.0.last().map_or(Some(1), |dim| dim.constant())
    }

    /// All dimensions but the outermost, if they are constant: the shape of one row.
    pub fn inner(&self) -> Option<Vec<usize>> {
        self.0.iter().skip(1).map(|dim| dim.constant()).collect()
    }

    /// The dimensions as numbers, given the symbols' values.
    pub fn resolve(&self, sizes: &Sizes) -> Vec<usize> {
        self.0.iter().map(|dim| dim.resolve(sizes)).collect()
    }

    /// Elements in one row: the product of the inner dimensions.
    pub fn row_elements(&self) -> Option<usize> {
        self.inner().map(|dims| dims.into_iter().fold(1, usize::saturating_mul))
    }
}

/// An input that a step supplies, besides weights and caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// Token id of each row, `[Rows]`, `U32`.
    TokenIds,
    /// Position of each row for RoPE or learned embeddings, `[Rows]`, `U32`.
    Positions,
    /// Numbers of the rows with outputs, `[Outs]`, `U32`.
    OutRows,
    /// Values of a type and shape that the graph declares: mel frames, targets, weights of a loss.
    Given(GivenId),
}

/// Number of a declared input in its graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GivenId(pub u32);

/// An input that a graph declares, made by [`Builder::given`](crate::Builder::given).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// A readable name, e.g. `mel`.
    pub name: String,
    /// `F32` or `U32`.
    pub dtype: DType,
    /// Number of rows of the whole step: a constant times a symbol. Each segment brings its own rows.
    pub rows: Dim,
    /// Dimensions of one row.
    pub inner: Vec<usize>,
}

impl Given {
    /// Elements of one row.
    pub fn row_elements(&self) -> usize {
        self.inner.iter().fold(1, |product, &dim| product.saturating_mul(dim))
    }

    /// Elements that `segment` must bring.
    pub fn elements(&self, segment: &Segment) -> usize {
        let sizes = Sizes { rows: segment.rows, outs: segment.outs(), segments: 1 };
        self.rows.resolve(&sizes).saturating_mul(self.row_elements())
    }
}

/// Source of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ValueKind {
    /// Supplied by the step.
    Input(Input),
    /// A weight of the model.
    Weight(WeightId),
    /// An output of a node.
    Temporary(NodeId),
    /// No source: a [rewrite](crate::rewrite()) replaced or removed the value, and no node reads it. The id stays taken, so that
    /// the ids of other values do not change.
    Removed,
}

/// Number of a value in its graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub u32);

/// A value: its type, its shape and its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// Element type.
    pub dtype: DType,
    /// Dimensions.
    pub shape: Shape,
    /// Source of the value.
    pub kind: ValueKind,
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::U32 => "u32",
        })
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let symbol = match self.symbol {
            None => return write!(f, "{}", self.factor),
            Some(Symbol::Rows) => "rows",
            Some(Symbol::Outs) => "outs",
            Some(Symbol::Segments) => "segments",
        };
        if self.factor == 1 { f.write_str(symbol) } else { write!(f, "{}·{symbol}", self.factor) }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (axis, dim) in self.0.iter().enumerate() {
            if axis > 0 {
                f.write_str(", ")?;
            }
            dim.fmt(f)?;
        }
        f.write_str("]")
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}

impl fmt::Display for ValueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}
