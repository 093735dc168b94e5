//! Weights and caches: the values that outlive a step.

use std::ops::Range;

use brasa_formats::codec::{CodecError, encode_row};
use brasa_formats::{Bytes, Payload, StorageFormat, Tensor};

use crate::device::DeviceError;
use crate::{GraphError, Origin};

/// Number of a weight in its graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(pub u32);

/// A weight: rows of stored tensors, stacked.
///
/// Each part keeps its own storage format. So parts serve for stacked Q|K|V or gate|up of mixed types, experts stored as separate
/// tensors, tensor splits and binding limits.
#[derive(Clone, Debug)]
pub struct Weight {
    /// A readable name, e.g. `layers.3.qkv`.
    pub name: String,
    /// Logical dimensions, outermost first: `[N, K]` of a linear layer, `[X, N, K]` of X experts, `[D]` of a norm.
    pub shape: Vec<usize>,
    /// Stored rows, in order; their counts add up to the product of all dimensions but the last.
    pub parts: Vec<WeightPart>,
    /// True if training may change the weight.
    pub trainable: bool,
    /// The stored values from which the weight was computed; `None` if its parts are stored as they are, or if it was not
    /// computed from stored values.
    pub origin: Option<Origin>,
}

/// Rows of one stored tensor, in order. Cloning shares the bytes.
#[derive(Clone, Debug)]
pub struct WeightPart {
    /// The tensor.
    pub tensor: Tensor,
    /// The stored rows that [`rows`](Self::rows) counts: all rows of the tensor, or every n-th one.
    pub stride: RowStride,
    /// The part's rows, as numbers among the rows that [`stride`](Self::stride) selects.
    pub rows: Range<usize>,
}

/// Selects every `step`-th row of a stored tensor, from row `first` on.
///
/// A tensor that stores gate and up rows in turns makes two parts, both with a step of 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowStride {
    /// Number of the first selected row in the stored tensor.
    pub first: usize,
    /// Distance from one selected row to the next, in stored rows; at least 1.
    pub step: usize,
}

impl RowStride {
    /// Selects every row.
    pub const ALL: Self = Self { first: 0, step: 1 };

    /// The number of selected rows in a tensor of `stored` rows.
    pub fn count(self, stored: usize) -> usize {
        stored.saturating_sub(self.first).div_ceil(self.step.max(1))
    }

    /// The number, in the stored tensor, of the selected row number `row`.
    pub fn stored(self, row: usize) -> usize {
        self.first + row * self.step
    }
}

impl WeightPart {
    /// All rows of `tensor`.
    pub fn whole(tensor: Tensor) -> Self {
        let rows = 0..tensor.rows();
        Self::of_rows(tensor, rows)
    }

    /// Consecutive rows of `tensor`.
    pub fn of_rows(tensor: Tensor, rows: Range<usize>) -> Self {
        Self { tensor, stride: RowStride::ALL, rows }
    }

    /// All rows of `tensor` that `stride` selects.
    ///
    /// # Panics
    ///
    /// If `stride.step` is 0.
    pub fn of_stride(tensor: Tensor, stride: RowStride) -> Self {
        assert!(stride.step > 0, "steps of 0 rows");
        Self { rows: 0..stride.count(tensor.rows()), stride, tensor }
    }

    /// A part of this part: its rows `rows`, counted from its first row.
    ///
    /// # Panics
    ///
    /// If `rows` runs backwards or reaches beyond the part.
    #[must_use]
    pub fn cut(&self, rows: Range<usize>) -> Self {
        assert!(rows.start <= rows.end && rows.end <= self.rows.len(), "rows {rows:?} of {:?}", self.rows);
        let start = self.rows.start;
        Self { rows: start + rows.start..start + rows.end, ..self.clone() }
    }

    /// The numbers of the part's rows in the stored tensor, in order.
    pub fn stored_rows(&self) -> impl ExactSizeIterator<Item = usize> + use<> {
        let stride = self.stride;
        self.rows.clone().map(move |row| stride.stored(row))
    }

    /// True if the part's rows are neighbours in the stored tensor.
    pub fn is_consecutive(&self) -> bool {
        self.stride.step == 1 || self.rows.len() <= 1
    }

    /// The part's rows in the stored tensor, if they are neighbours there; else `None`.
    pub fn consecutive_rows(&self) -> Option<Range<usize>> {
        let start = self.stride.stored(self.rows.start);
        self.is_consecutive().then(|| start..start + self.rows.len())
    }

    /// Decodes the rows exactly into `out`, `[rows, row_len]`.
    fn decode(&self, out: &mut [f32]) -> Result<(), CodecError> {
        if let Some(rows) = self.consecutive_rows() {
            return self.tensor.decode_rows(rows, out);
        }
        let row_len = self.tensor.row_len().max(1);
        self.stored_rows()
            .zip(out.chunks_exact_mut(row_len))
            .try_for_each(|(row, out)| self.tensor.decode_rows(row..row + 1, out))
    }

    /// The storage format of the rows.
    pub fn format(&self) -> StorageFormat {
        self.tensor.format
    }
}

impl Weight {
    /// A weight of `shape` from stacked `parts`.
    ///
    /// # Errors
    ///
    /// [`GraphError::Weight`] if the parts' rows or row lengths do not make up `shape`.
    pub fn new(name: impl Into<String>, shape: &[usize], parts: Vec<WeightPart>) -> Result<Self, GraphError> {
        let weight = Self { name: name.into(), shape: shape.to_vec(), parts, trainable: false, origin: None };
        let refuse = |what: String| Err(GraphError::Weight { weight: weight.name.clone(), what });
        if shape.iter().try_fold(1_usize, |product, &dim| product.checked_mul(dim)).is_none() {
            return refuse(format!("shape {shape:?} has more elements than can be counted"));
        }
        let mut rows = 0;
        for part in &weight.parts {
            let available = part.stride.count(part.tensor.rows());
            if part.stride.step == 0 || part.rows.start > part.rows.end || part.rows.end > available {
                let what = format!("rows {:?} of {}, which has {available}", part.rows, part.tensor.name);
                return refuse(match part.stride {
                    RowStride::ALL => what,
                    RowStride { first, step } => format!("{what} from row {first} in steps of {step}"),
                });
            }
            if part.tensor.row_len() != weight.row_len() {
                return refuse(format!(
                    "{} has shape {:?}, expected rows of {}",
                    part.tensor.name,
                    part.tensor.shape,
                    weight.row_len()
                ));
            }
            rows += part.rows.len();
        }
        if rows == weight.rows() {
            Ok(weight)
        } else {
            refuse(format!("{rows} stored rows, expected {} for shape {shape:?}", weight.rows()))
        }
    }

    /// The elements, decoded exactly to f32. `device` is the device's name in errors.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Unsupported`] if bytes of a part do not decode, [`DeviceError::OutOfMemory`].
    pub fn decode(&self, device: &str) -> Result<Vec<f32>, DeviceError> {
        let elements = self.rows().saturating_mul(self.row_len());
        let mut values = Vec::new();
        values.try_reserve_exact(elements).map_err(|_| DeviceError::OutOfMemory {
            bytes: (elements as u64).saturating_mul(4),
            what: self.name.clone(),
        })?;
        values.resize(elements, 0.0);
        let mut rest = values.as_mut_slice();
        for part in &self.parts {
            let (out, tail) = rest.split_at_mut(part.rows.len() * self.row_len());
            part.decode(out).map_err(|error| DeviceError::Unsupported {
                device: device.into(),
                what: format!("{}: {error}", self.name),
            })?;
            rest = tail;
        }
        Ok(values)
    }

    /// Decodes `rows` of the weight exactly into `out`, `[rows, row_len]`.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Unsupported`] if bytes of a part do not decode.
    ///
    /// # Panics
    ///
    /// If there are no such rows, or `out` has another length.
    pub fn decode_rows(&self, rows: Range<usize>, out: &mut [f32]) -> Result<(), DeviceError> {
        assert!(rows.end <= self.rows() && out.len() == rows.len() * self.row_len(), "rows {rows:?}");
        let (mut first, mut rest) = (0, out);
        for part in &self.parts {
            let [start, end] = [rows.start, rows.end].map(|row| row.clamp(first, first + part.rows.len()));
            let (own, tail) = rest.split_at_mut((end - start) * self.row_len());
            part.cut(start - first..end - first).decode(own).map_err(|error| DeviceError::Unsupported {
                device: "host".into(),
                what: format!("{}: {error}", self.name),
            })?;
            (first, rest) = (first + part.rows.len(), tail);
        }
        Ok(())
    }

    /// A weight of the same name, shape and formats that holds `values`, `[rows, row_len]`. F16 and BF16 rows round to the
    /// nearest, ties to even.
    ///
    /// # Errors
    ///
    /// [`GraphError::Weight`] for another number of values, and if a part is quantised, since its scales were chosen for other
    /// values.
    pub fn with_values(&self, values: &[f32]) -> Result<Self, GraphError> {
        let refuse = |what: String| Err(GraphError::Weight { weight: self.name.clone(), what });
        if Some(values.len()) != self.rows().checked_mul(self.row_len()) {
            return refuse(format!("{} values for shape {:?}", values.len(), self.shape));
        }
        let (mut parts, mut rest) = (Vec::with_capacity(self.parts.len()), values);
        for part in &self.parts {
            let format = part.format();
            if !format.is_float() {
                return refuse(format!("values for rows stored as {format}, expected F32, F16 or BF16"));
            }
            let (own, after) = rest.split_at(part.rows.len() * self.row_len());
            let mut bytes = vec![0; own.len() * format.block_bytes()];
            if let Err(error) = encode_row(format, own, None, &mut bytes) {
                return refuse(error.to_string());
            }
            let shape = vec![part.rows.len(), self.row_len()];
            let payload = Payload::Blocks(Bytes::from(bytes));
            parts.push(WeightPart::whole(Tensor { name: part.tensor.name.clone(), shape, format, payload }));
            rest = after;
        }
        Ok(Self { parts, ..self.clone() })
    }

    /// Stored bytes of the weight's rows.
    pub fn stored_bytes(&self) -> u64 {
        let part_bytes = |part: &WeightPart| {
            let (bytes, rows) = (part.tensor.size_bytes() as u64, part.tensor.rows().max(1) as u64);
            bytes / rows * part.rows.len() as u64
        };
        self.parts.iter().map(part_bytes).sum()
    }

    /// Elements of the innermost dimension.
    pub fn row_len(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Product of all dimensions but the innermost.
    pub fn rows(&self) -> usize {
        self.shape.iter().rev().skip(1).product()
    }
}

/// Number of a cache in its graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CacheId(pub u32);

/// Geometry of one KV cache. Several layers may read the same cache, and caches of one model may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CacheSpec {
    /// K/V heads.
    pub kv_heads: usize,
    /// Elements of one head's key.
    pub key_dim: usize,
    /// Width of one head's value, and whether the cache stores values beside keys.
    pub value: ValueWidth,
    /// Positions that a query sees, its own included; `None` for all.
    pub window: Option<usize>,
}

/// The width of one head's value, and whether a cache stores values beside keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ValueWidth {
    /// A value of this many elements, stored beside the key.
    Own(usize),
    /// The value is the key's first elements, this many; only keys are stored. Multi-head latent attention in its
    /// absorbed form has one KV head of this kind (DeepSeek-AI 2024, arXiv:2405.04434).
    PrefixOfKey(usize),
}

impl ValueWidth {
    /// Elements of one head's value.
    pub const fn dim(self) -> usize {
        match self {
            Self::Own(width) | Self::PrefixOfKey(width) => width,
        }
    }

    /// Elements of one head's value that a cache stores beside the key; 0 for a value within the key.
    pub const fn stored(self) -> usize {
        match self {
            Self::Own(width) => width,
            Self::PrefixOfKey(_) => 0,
        }
    }

    /// True if the values are the first elements of the keys.
    pub const fn is_prefix(self) -> bool {
        matches!(self, Self::PrefixOfKey(_))
    }
}

impl CacheSpec {
    /// A cache of `kv_heads` heads whose keys and values have `head_dim` elements each.
    pub const fn new(kv_heads: usize, head_dim: usize, window: Option<usize>) -> Self {
        Self { kv_heads, key_dim: head_dim, value: ValueWidth::Own(head_dim), window }
    }

    /// A cache of one head whose keys have `key_dim` elements, the first `value_dim` of which are the value.
    pub const fn latent(key_dim: usize, value_dim: usize, window: Option<usize>) -> Self {
        Self { kv_heads: 1, key_dim, value: ValueWidth::PrefixOfKey(value_dim), window }
    }

    /// Elements of one head's value.
    pub const fn value_dim(self) -> usize {
        self.value.dim()
    }

    /// Elements of a key and of a stored value if both have the same width. `None` if widths differ, or if values are
    /// within keys.
    pub const fn head_dim(self) -> Option<usize> {
        match self.value {
            ValueWidth::Own(width) if width == self.key_dim => Some(width),
            _ => None,
        }
    }

    /// Fails if a head has no elements, or a value would be longer than the key that holds it.
    pub(crate) fn check(self) -> Result<(), String> {
        let Self { kv_heads, key_dim, value, .. } = self;
        match value {
            _ if kv_heads == 0 || key_dim == 0 || value.dim() == 0 => Err("a cache of nothing".into()),
            ValueWidth::PrefixOfKey(width) if width > key_dim => {
                Err(format!("values of the first {width} elements of keys of {key_dim}"))
            }
            _ => Ok(()),
        }
    }
}

/// KV heads × elements of a key, as `2 × 128`. Values of another width follow, as `2 × 192, values 128`; values within
/// keys print as `1 × 576, values their first 512`.
impl std::fmt::Display for CacheSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { kv_heads, key_dim, value, .. } = *self;
        write!(f, "{kv_heads} × {key_dim}")?;
        match value {
            ValueWidth::Own(width) if width == key_dim => Ok(()),
            ValueWidth::Own(width) => write!(f, ", values {width}"),
            ValueWidth::PrefixOfKey(width) => write!(f, ", values their first {width}"),
        }
    }
}

/// Number of a group of caches with equal geometry and window, which share block tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupId(pub u32);

/// Number of a memory in its graph: keys and values that an encoder writes once for a sequence, with a length of their own. Made
/// by [`Builder::memory`](crate::Builder::memory). A pool stores memories like caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MemoryId(pub(crate) CacheId);

/// The meaning of a cache's positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CacheKind {
    /// Positions of the sequence's text.
    Text,
    /// Rows of an encoder: a memory.
    Memory,
}

/// Caches of equal kind, geometry and window. A page of the group holds 256 positions of each of its caches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheGroup {
    /// Geometry and window of the group's caches.
    pub spec: CacheSpec,
    /// The meaning of the group's positions.
    pub kind: CacheKind,
    /// The caches, in order of their place within a page.
    pub caches: Vec<CacheId>,
}

/// Groups caches by kind and geometry, in order of first appearance.
pub(crate) fn cache_groups(caches: &[CacheSpec], memories: &[MemoryId]) -> Vec<CacheGroup> {
    let mut groups: Vec<CacheGroup> = Vec::new();
    for (index, &spec) in caches.iter().enumerate() {
        let id = CacheId(index as u32);
        let kind = if memories.contains(&MemoryId(id)) { CacheKind::Memory } else { CacheKind::Text };
        match groups.iter_mut().find(|group| (group.spec, group.kind) == (spec, kind)) {
            Some(group) => group.caches.push(id),
            None => groups.push(CacheGroup { spec, kind, caches: vec![id] }),
        }
    }
    groups
}
