//! One adapted layer: two thin matrices, checked against each other.

use std::collections::BTreeMap;
use std::path::Path;

use crate::error::Fault;
use crate::{Bytes, FormatError, Payload, Result, Tensor, codec};

/// The largest rank that anyone could mean.
const LARGEST_RANK: usize = 1 << 16;

/// A linear layer's low-rank change: `W + scale · B·A` (Hu et al. 2021, arXiv:2106.09685).
#[derive(Clone, Debug)]
pub struct LowRankPair {
    /// The layer's name, without `.weight`.
    pub name: String,
    /// `A`, `[r, in]`, or `[experts, r, in]`; F32, F16 or BF16.
    pub a: Tensor,
    /// `B`, `[out, r]`, or `[experts, out, r]`; F32, F16 or BF16.
    pub b: Tensor,
    /// Factor of the product.
    pub scale: f32,
    /// DoRA's magnitudes, `[out]` (Liu et al. 2024, arXiv:2402.09353).
    pub magnitude: Option<Tensor>,
}

impl LowRankPair {
    /// Rows of `A`.
    pub fn rank(&self) -> usize {
        self.a.shape[self.a.shape.len() - 2]
    }

    /// Elements of a row of the adapted matrix.
    pub fn inputs(&self) -> usize {
        self.a.row_len()
    }

    /// Rows of the adapted matrix; of one expert's.
    pub fn outputs(&self) -> usize {
        self.b.shape[self.b.shape.len() - 2]
    }

    /// Experts, if the layer is a stack of them.
    pub fn experts(&self) -> Option<usize> {
        match self.a.shape[..] {
            [experts, _, _] => Some(experts),
            _ => None,
        }
    }

    /// Checks that shapes fit together, and that every number is finite.
    pub(super) fn check(&self, path: &Path) -> Result<()> {
        let fault = |problem: String| Fault::new(path, problem).of(self.name.as_str()).malformed();
        let (a, b) = (&self.a.shape[..], &self.b.shape[..]);
        let (rank, fits) = match (a, b) {
            (&[rank, _], &[_, inner]) => (rank, rank == inner),
            (&[experts, rank, _], &[same, _, inner]) => (rank, rank == inner && experts == same),
            _ => (0, false),
        };
        if !fits || a.contains(&0) || b.contains(&0) {
            return Err(fault(format!("A has shape {a:?} and B {b:?}, expected [r, in] and [out, r]")));
        }
        if rank > LARGEST_RANK {
            return Err(fault(format!("rank {rank}, expected at most {LARGEST_RANK}")));
        }
        if !self.scale.is_finite() {
            return Err(fault(format!("scale {}, expected a finite number", self.scale)));
        }
        if let Some(magnitude) = &self.magnitude
            && magnitude.shape != [self.outputs()]
        {
            let expected = [self.outputs()];
            return Err(fault(format!("magnitudes of shape {:?}, expected {expected:?}", magnitude.shape)));
        }
        [Some(&self.a), Some(&self.b), self.magnitude.as_ref()].into_iter().flatten().try_for_each(|tensor| {
            check_finite(tensor)
                .map_err(|problem| Fault::new(path, problem).of(tensor.name.as_str()).malformed())
        })
    }
}

fn check_finite(tensor: &Tensor) -> std::result::Result<(), String> {
    if !tensor.format.is_float() {
        return Err(format!("stored as {}, expected F32, F16 or BF16", tensor.format));
    }
    let mut row = vec![0.0; tensor.row_len()];
    for at in 0..tensor.rows() {
        tensor.decode_rows(at..at + 1, &mut row).map_err(|error| error.to_string())?;
        if let Some(odd) = row.iter().find(|x| !x.is_finite()) {
            return Err(format!("row {at} holds {odd}, expected finite numbers"));
        }
    }
    Ok(())
}

/// One of the parts of a layer's pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    A,
    B,
    Magnitude,
}

/// Tensors by layer, collected until a layer has both matrices.
#[derive(Default)]
pub(super) struct Parts(BTreeMap<String, [Option<Tensor>; 3]>);

impl Parts {
    /// Adds a tensor. A second one of the same layer and part is an error.
    pub fn add(&mut self, path: &Path, layer: &str, part: Part, tensor: Tensor) -> Result<()> {
        let name = tensor.name.clone();
        match self.0.entry(layer.to_owned()).or_default()[part as usize].replace(tensor) {
            Some(_) => Err(Fault::new(path, "given twice").of(name).malformed()),
            None => Ok(()),
        }
    }

    /// The layers' names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// The adapter's pairs, checked. `scale` returns the scale for a layer and its rank.
    pub fn pairs(
        self,
        path: &Path,
        mut scale: impl FnMut(&str, usize) -> Result<f32>,
    ) -> Result<Vec<LowRankPair>> {
        if self.0.is_empty() {
            return Err(Fault::new(path, "no low-rank pair in this adapter").missing());
        }
        let pair = |(name, [a, b, magnitude]): (String, [Option<Tensor>; 3])| {
            let (Some(a), Some(b)) = (a, b) else {
                let problem = "its low-rank pair is not complete, expected both A and B";
                return Err(Fault::new(path, problem).of(name).malformed());
            };
            let mut pair = LowRankPair { name, a, b, scale: 0.0, magnitude };
            pair.check(path)?;
            pair.scale = scale(&pair.name, pair.rank())?;
            pair.check(path).map(|()| pair)
        };
        self.0.into_iter().map(pair).collect()
    }
}

/// Checks that all pairs of `path` have DoRA's magnitudes, or that none has.
pub(super) fn check_magnitudes(path: &Path, pairs: &[LowRankPair], is_dora: bool) -> Result<()> {
    let Some(pair) = pairs.iter().find(|pair| pair.magnitude.is_some() != is_dora) else { return Ok(()) };
    let problem = if is_dora { "DoRA without magnitudes" } else { "magnitudes without DoRA" };
    Err(Fault::new(path, problem).of(pair.name.as_str()).malformed())
}

/// The first of the pairs that are written to `path`, and whether the pairs have DoRA's magnitudes. Either all pairs have them or
/// none: a file in `form` states it once.
pub(super) fn first_and_dora<'a>(
    path: &Path,
    pairs: &'a [LowRankPair],
    form: &str,
) -> Result<(&'a LowRankPair, bool)> {
    let unwritable = |problem: String| Fault::new(path, problem).unwritable();
    let first = pairs.first().ok_or_else(|| unwritable("no pairs".into()))?;
    let is_dora = first.magnitude.is_some();
    if pairs.iter().any(|pair| pair.magnitude.is_some() != is_dora) {
        let problem = format!("some layers with DoRA's magnitudes and some without, which {form} cannot say");
        return Err(unwritable(problem));
    }
    Ok((first, is_dora))
}

/// The values of a tensor in f32.
pub(super) fn values(tensor: &Tensor) -> Result<Vec<f32>, FormatError> {
    let fault = |problem: String| Fault::new("", problem).of(tensor.name.as_str()).unsupported();
    let elements = tensor.rows().saturating_mul(tensor.row_len());
    let mut values = Vec::new();
    values.try_reserve_exact(elements).map_err(|_| fault(format!("no memory for {elements} numbers")))?;
    values.resize(elements, 0.0);
    tensor.decode_rows(0..tensor.rows(), &mut values).map_err(|error| fault(error.to_string()))?;
    Ok(values)
}

/// The matrix with rows as columns. Its elements keep their bits.
pub(super) fn transposed(tensor: &Tensor) -> Result<Tensor, FormatError> {
    let fault = |problem: String| Fault::new("", problem).of(tensor.name.as_str()).malformed();
    let (&[rows, columns], Payload::Blocks(bytes)) = (&tensor.shape[..], &tensor.payload) else {
        return Err(fault(format!("shape {:?}, expected a matrix", tensor.shape)));
    };
    if !tensor.format.is_float() {
        return Err(fault(format!("stored as {}, expected F32, F16 or BF16", tensor.format)));
    }
    let size = tensor.format.block_bytes();
    let mut out = Vec::new();
    out.try_reserve_exact(bytes.len()).map_err(|_| fault(format!("no memory for {} bytes", bytes.len())))?;
    for column in 0..columns {
        for row in 0..rows {
            out.extend_from_slice(&bytes[(row * columns + column) * size..][..size]);
        }
    }
    Ok(Tensor { shape: vec![columns, rows], payload: Payload::Blocks(Bytes::from(out)), ..tensor.clone() })
}

/// `tensor` times `factor`: itself if that is 1, else in F32.
pub(super) fn scaled(tensor: &Tensor, factor: f32) -> Result<Tensor, FormatError> {
    if factor.to_bits() == 1.0_f32.to_bits() {
        return Ok(tensor.clone());
    }
    let mut values = values(tensor)?;
    for x in &mut values {
        *x *= factor;
    }
    Ok(Tensor::of_floats(tensor.name.as_str(), tensor.shape.clone(), &values))
}

/// Pads a matrix `[r, in]` or `[out, r]` with zeros to the rank `rank`, in the tensor's own format.
pub(super) fn padded(tensor: &Tensor, part: Part, rank: usize) -> Result<Tensor, FormatError> {
    let mut shape = tensor.shape.clone();
    let axis = shape.len() - if part == Part::A { 2 } else { 1 };
    let own = std::mem::replace(&mut shape[axis], rank);
    if own == rank {
        return Ok(tensor.clone());
    }
    let values = values(tensor)?;
    let inner: usize = tensor.shape[axis + 1..].iter().product();
    let mut wide = Vec::with_capacity(values.len() / own * rank);
    for block in values.chunks_exact(own * inner) {
        wide.extend_from_slice(block);
        wide.resize(wide.len() + (rank - own) * inner, 0.0);
    }
    let mut bytes = vec![0; wide.len() * tensor.format.block_bytes()];
    codec::encode_row(tensor.format, &wide, None, &mut bytes)
        .map_err(|error| Fault::new("", error.to_string()).of(tensor.name.as_str()).unwritable())?;
    Ok(Tensor { shape, payload: Payload::Blocks(Bytes::from(bytes)), ..tensor.clone() })
}
