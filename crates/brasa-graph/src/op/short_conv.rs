//! A causal convolution over a few rows, with the rows before a step as its recurrent state.

use super::{
    AccessKind, MemoryAccess, Operation, SequenceMemory, Type, constant_dims, operands, require,
    require_floats, width,
};
use crate::derivative::{Rules, Terms};
use crate::reference::{Array, Env, Number};
use crate::{CacheSpec, DType, Node, StateId, Value, ValueId};

/// A causal depthwise convolution over K rows: `y[r, c] = Σ_j w[c, j] · x[r − K + 1 + j, c]`, j from 0 to K − 1 in this
/// order.
///
/// Rows before the first row of a text are zeros. In a draft tree, the rows before a row are its ancestors. The state
/// holds the latest K − 1 rows of `x`, `[K − 1, C]`, oldest first.
///
/// Shapes: `x` `[R, C]`, `w` a weight `[C, K]`, K at least 2 → `[R, C]`.
/// Gu and Dao 2023, arXiv:2312.00752; Amini et al. 2025 (LFM2), arXiv:2511.23404.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortConv {
    /// The recurrent state that the operation advances, of `(K − 1) · C` elements.
    pub state: StateId,
}

/// The reason why operations with a recurrence cannot be differentiated, for error messages.
pub(super) const KEPT_STATE: &str = "recurrent states that are kept have no derivative";

impl Operation for ShortConv {
    fn name(&self) -> &'static str {
        "short_conv"
    }

    fn attributes(&self) -> String {
        format!("state={}", self.state.0)
    }

    fn memory_access(&self) -> Option<MemoryAccess> {
        Some(MemoryAccess { memory: SequenceMemory::State(self.state), kind: AccessKind::Advance })
    }

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [x, w] = operands(given)?;
        require_floats(given)?;
        require(x.shape.rank() == 2, || "x must be [R, C]".into())?;
        let channels = width(x)?;
        match constant_dims(w)?[..] {
            [rows, taps] if rows == channels && taps >= 2 => {}
            _ => return Err(format!("w must be [{channels}, K] with K at least 2")),
        }
        Ok(vec![(DType::F32, x.shape.clone())])
    }

    fn state_elements(&self, given: &[&Value]) -> Option<usize> {
        let [channels, taps] = constant_dims(given.get(1)?).ok()?.try_into().ok()?;
        channels.checked_mul(taps - 1)
    }

    fn reference<T: Number>(
        &self,
        operands: &[&Array<T>],
        env: &mut Env<T>,
    ) -> Result<Vec<Array<T>>, String> {
        let [x, w] = *operands else { unreachable!("inferred") };
        let (channels, taps) = (x.width(), w.width());
        let mut y = vec![T::default(); x.data.len()];
        for (number, segment) in env.segments.iter().enumerate() {
            let begin = env.kv.state(self.state, number, channels * (taps - 1));
            // The rows before each row, oldest first.
            let mut after: Vec<Vec<T>> = Vec::with_capacity(segment.rows.len());
            for (i, row) in segment.rows.clone().enumerate() {
                let before = segment.row_before(i).map_or(&begin, |row| &after[row]);
                let own = &x.floats()[row * channels..(row + 1) * channels];
                let seen = [&before[..], own].concat();
                for (channel, y) in y[row * channels..(row + 1) * channels].iter_mut().enumerate() {
                    let w = &w.floats()[channel * taps..(channel + 1) * taps];
                    for (j, &w) in w.iter().enumerate() {
                        *y += w * seen[j * channels + channel];
                    }
                }
                after.push(seen[channels..].to_vec());
            }
            env.kv.set_states(self.state, number, &after);
        }
        Ok(vec![Array::of(x.shape.clone(), y)])
    }

    fn jvp(&self, _: &mut Rules, _: &Node, _: &[Option<ValueId>]) -> Terms {
        Err(KEPT_STATE.into())
    }

    fn vjp(&self, _: &mut Rules, _: &Node, _: &[Option<ValueId>], _: &[bool]) -> Terms {
        Err(KEPT_STATE.into())
    }
}
