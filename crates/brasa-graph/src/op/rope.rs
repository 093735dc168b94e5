//! Rotary position embedding.

use super::{Operation, Type, constant_dims, operands, require, require_floats, width};
use crate::derivative::{Rules, Terms};
use crate::reference::{Array, Env, Number};
use crate::{CacheSpec, DType, Node, Value, ValueId};

/// Which elements of a head form the rotated pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeLayout {
    /// Pairs `(2i, 2i+1)`: Llama-family weights as GGUF stores them.
    Interleaved,
    /// Pairs `(i, i + rotary_dim/2)`: everything from Hugging Face, and NeoX-like families in GGUF.
    SplitHalf,
}

/// Rotary position embedding of the leading `rotary_dim` elements of each head; the rest pass through.
///
/// Pair *i* at position *p* turns by the angle `p · f[i]`: `(a, b) → m·(a·cos − b·sin, a·sin + b·cos)`.
/// A frequency of zero leaves a pair as it is (up to `m`), which is how partial rotations over a whole head are
/// written.
///
/// Shapes: `x` `[R, H, E]`, `positions` `[R]` u32, `f` a weight `[rotary_dim / 2]` → as `x`.
/// Su et al. 2021, arXiv:2104.09864.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Which elements form pairs.
    pub layout: RopeLayout,
    /// Leading elements of a head that turn; even.
    pub rotary_dim: usize,
    /// `m`, applied to cosine and sine: YaRN's attention factor; 1 otherwise. Peng et al. 2023, arXiv:2309.00071.
    pub magnitude: f32,
}

/// The reason why frequencies are constants.
const FREQUENCIES: &str = "no derivative with respect to frequencies is defined";

impl Operation for Rope {
    fn name(&self) -> &'static str {
        "rope"
    }

    fn attributes(&self) -> String {
        let layout = match self.layout {
            RopeLayout::Interleaved => "interleaved",
            RopeLayout::SplitHalf => "split_half",
        };
        let whole = self.magnitude.to_bits() == 1.0_f32.to_bits();
        let magnitude = if whole { String::new() } else { format!(" magnitude={}", self.magnitude) };
        format!("{layout} {}{magnitude}", self.rotary_dim)
    }

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [x, positions, frequencies] = operands(given)?;
        require_floats(&[x, frequencies])?;
        require(x.shape.rank() == 3, || "x must be [R, H, E]".into())?;
        require(positions.dtype == DType::U32 && positions.shape.0 == [x.shape.outer()], || {
            "positions must be u32 [R]".into()
        })?;
        require(self.rotary_dim.is_multiple_of(2) && self.rotary_dim <= width(x)?, || {
            format!("rotary dimension {} of heads {}", self.rotary_dim, x.shape)
        })?;
        require(constant_dims(frequencies)? == [self.rotary_dim / 2], || {
            format!("expected {} frequencies", self.rotary_dim / 2)
        })?;
        Ok(vec![(DType::F32, x.shape.clone())])
    }

    fn reference<T: Number>(&self, operands: &[&Array<T>], _: &mut Env<T>) -> Result<Vec<Array<T>>, String> {
        let [x, positions, frequencies] = *operands else { unreachable!("inferred") };
        let (half, magnitude) = (self.rotary_dim / 2, T::constant(self.magnitude.into()));
        let mut y = x.floats().to_vec();
        for (row, &position) in y.chunks_exact_mut(x.row_elements()).zip(positions.integers()) {
            for head in row.chunks_exact_mut(x.width()) {
                for (i, &frequency) in frequencies.floats().iter().enumerate() {
                    let (sin, cos) = (T::constant(position.into()) * frequency).sin_cos();
                    let (sin, cos) = (sin * magnitude, cos * magnitude);
                    let (first, second) = match self.layout {
                        RopeLayout::Interleaved => (2 * i, 2 * i + 1),
                        RopeLayout::SplitHalf => (i, i + half),
                    };
                    let (a, b) = (head[first], head[second]);
                    head[first] = a * cos - b * sin;
                    head[second] = a * sin + b * cos;
                }
            }
        }
        Ok(vec![Array::of(x.shape.clone(), y)])
    }

    fn jvp(&self, g: &mut Rules, at: &Node, tangents: &[Option<ValueId>]) -> Terms {
        if tangents[2].is_some() {
            return Err(FREQUENCIES.into());
        }
        Ok(vec![g.instead(tangents[0], *self, at, 0)?])
    }

    fn vjp(&self, g: &mut Rules, at: &Node, cotangents: &[Option<ValueId>], wanted: &[bool]) -> Terms {
        let &[_, positions, frequencies] = &at.inputs[..] else { unreachable!("inferred") };
        if wanted[2] {
            return Err(FREQUENCIES.into());
        }
        // Turning back by the same angles is turning by the frequencies' opposites.
        let back = g.negative(frequencies)?;
        let by_x = cotangents[0].map(|d| g.apply(*self, &[d, positions, back])).transpose()?;
        Ok(vec![by_x, None, None])
    }
}
