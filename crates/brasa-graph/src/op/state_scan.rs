//! Linear recurrences with a matrix as state: gated delta rule, Mamba-2, linear attention.

use super::short_conv::KEPT_STATE;
use super::{AccessKind, MemoryAccess, Operation, SequenceMemory, Type, operands, require, require_floats};
use crate::derivative::{Rules, Terms};
use crate::reference::{Array, Env, Number};
use crate::{CacheSpec, DType, Node, Shape, StateId, Value, ValueId};

/// A linear recurrence over the rows of a text. Each value head has a matrix `S` `[E, V]`, zero before the first row.
///
/// Each row, in order, computes `S ← decay · S`, then `S ← S + k ⊗ u`, then `y = Sᵀ q`. [`ScanRule::Add`] has `u = v`.
/// [`ScanRule::Delta`] has `u = beta · (v − Sᵀ k)`, with `S` after its decay.
///
/// The state holds the matrices of all value heads, `[H, E, V]`. In a draft tree, a row goes on from the state after
/// its parent. Each column of a matrix is computed alone, row after row, so the result does not depend on how a text is
/// cut into steps.
///
/// Shapes: `q`, `k` `[R, G, E]`, `v` `[R, H, V]`, `decay` `[R, H]`, for [`ScanRule::Delta`] also `beta` `[R, H]` →
/// `[R, H, V]`. H is a multiple of G.
///
/// Gated delta rule: Yang et al. 2024, arXiv:2412.06464. Mamba-2: Dao and Gu 2024, arXiv:2405.21060, with `q = C`,
/// `k = B`, `v = Δ · x` and `decay = exp(Δ · A)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateScan {
    /// The recurrent state that the operation advances, of `H · E · V` elements. `None` if each segment is a whole
    /// text: its matrices begin with zeros and are not kept.
    pub state: Option<StateId>,
    /// The rule for `u` in the term `k ⊗ u` that a row adds to a matrix.
    pub rule: ScanRule,
    /// The rule that gives each value head its key head.
    pub sharing: HeadSharing,
}

/// The vector `u` in the term `k ⊗ u` that a row of a [`StateScan`] adds to a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanRule {
    /// `u = v`: the value itself, as in Mamba-2 and linear attention.
    Add,
    /// `u = beta · (v − Sᵀ k)`: the value minus the one that the matrix returns for the key, times `beta` (the delta
    /// rule).
    Delta,
}

/// The rule by which H value heads share G key heads in a [`StateScan`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadSharing {
    /// Value head *h* uses key head `⌊h / (H / G)⌋`: neighbours share.
    Grouped,
    /// Value head *h* uses key head `h mod G`.
    Tiled,
}

impl HeadSharing {
    /// The key head of value head `head`, with `heads` value heads and `key_heads` key heads.
    pub fn key_head(self, head: usize, heads: usize, key_heads: usize) -> usize {
        match self {
            Self::Grouped => head / (heads / key_heads),
            Self::Tiled => head % key_heads,
        }
    }
}

/// Numbers and widths of the heads of a [`StateScan`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanSizes {
    /// Key heads G.
    pub key_heads: usize,
    /// Elements E of a key.
    pub key_dim: usize,
    /// Value heads H.
    pub heads: usize,
    /// Elements V of a value.
    pub value_dim: usize,
}

impl ScanSizes {
    /// Elements of the state: `H · E · V`.
    pub fn state_elements(self) -> usize {
        self.heads.saturating_mul(self.key_dim).saturating_mul(self.value_dim)
    }
}

impl StateScan {
    /// Reads the sizes from the shapes of the operands `q`, `k` and `v`.
    ///
    /// # Errors
    ///
    /// Shapes that do not fit together, as a sentence.
    pub fn sizes(&self, q: &Shape, k: &Shape, v: &Shape) -> Result<ScanSizes, String> {
        let heads_of = |shape: &Shape, what: &str| match shape.inner().as_deref() {
            Some(&[heads, width]) if heads > 0 && width > 0 => Ok((heads, width)),
            _ => Err(format!("{what}, expected at least one head of one element")),
        };
        let (key_heads, key_dim) = heads_of(k, "k must be [R, G, E]")?;
        let (heads, value_dim) = heads_of(v, "v must be [R, H, V]")?;
        require(q == k, || "q and k differ".into())?;
        require(k.outer() == v.outer(), || "k and v differ in rows".into())?;
        require(heads.is_multiple_of(key_heads), || {
            format!("{heads} value heads, expected a multiple of {key_heads} key heads")
        })?;
        Ok(ScanSizes { key_heads, key_dim, heads, value_dim })
    }
}

impl Operation for StateScan {
    fn name(&self) -> &'static str {
        "state_scan"
    }

    fn attributes(&self) -> String {
        let state = self.state.map_or_else(String::new, |state| format!("state={} ", state.0));
        let rule = match self.rule {
            ScanRule::Add => "add",
            ScanRule::Delta => "delta",
        };
        let sharing = match self.sharing {
            HeadSharing::Grouped => "grouped",
            HeadSharing::Tiled => "tiled",
        };
        format!("{state}{rule} {sharing}")
    }

    fn memory_access(&self) -> Option<MemoryAccess> {
        Some(MemoryAccess { memory: SequenceMemory::State(self.state?), kind: AccessKind::Advance })
    }

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        require_floats(given)?;
        let (q, k, v, factors) = match self.rule {
            ScanRule::Add => {
                let [q, k, v, decay] = operands(given)?;
                (q, k, v, vec![decay])
            }
            ScanRule::Delta => {
                let [q, k, v, decay, beta] = operands(given)?;
                (q, k, v, vec![decay, beta])
            }
        };
        let sizes = self.sizes(&q.shape, &k.shape, &v.shape)?;
        let by_head = Shape::rows(v.shape.outer(), &[sizes.heads]);
        require(factors.iter().all(|factor| factor.shape == by_head), || {
            format!("decay and beta must be [R, {}]", sizes.heads)
        })?;
        Ok(vec![(DType::F32, v.shape.clone())])
    }

    fn state_elements(&self, given: &[&Value]) -> Option<usize> {
        let &[q, k, v, ..] = given else { return None };
        Some(self.sizes(&q.shape, &k.shape, &v.shape).ok()?.state_elements())
    }

    fn reference<T: Number>(
        &self,
        operands: &[&Array<T>],
        env: &mut Env<T>,
    ) -> Result<Vec<Array<T>>, String> {
        let &[q, k, v, decay, ref beta @ ..] = operands else { unreachable!("inferred") };
        let [_, heads, value_dim] = v.shape[..] else { unreachable!("inferred") };
        let [_, key_heads, key_dim] = k.shape[..] else { unreachable!("inferred") };
        let matrix = key_dim * value_dim;
        let mut y = vec![T::default(); v.data.len()];
        for (number, segment) in env.segments.iter().enumerate() {
            let zeros = || vec![T::default(); heads * matrix];
            let begin = self.state.map_or_else(zeros, |state| env.kv.state(state, number, heads * matrix));
            let mut after: Vec<Vec<T>> = Vec::with_capacity(segment.rows.len());
            for (i, row) in segment.rows.clone().enumerate() {
                let mut states = segment.row_before(i).map_or(&begin, |row| &after[row]).clone();
                for head in 0..heads {
                    let key = row * key_heads + self.sharing.key_head(head, heads, key_heads);
                    let (k, q) =
                        (&k.floats()[key * key_dim..][..key_dim], &q.floats()[key * key_dim..][..key_dim]);
                    let at = row * heads + head;
                    let decay = decay.floats()[at];
                    let beta = beta.first().map(|beta| beta.floats()[at]);
                    let values = &v.floats()[at * value_dim..][..value_dim];
                    let y = &mut y[at * value_dim..][..value_dim];
                    let state = &mut states[head * matrix..][..matrix];
                    for (column, (&v, y)) in values.iter().zip(y).enumerate() {
                        step(state.iter_mut().skip(column).step_by(value_dim), k, q, decay, beta, v, y);
                    }
                }
                after.push(states);
            }
            if let Some(state) = self.state {
                env.kv.set_states(state, number, &after);
            }
        }
        Ok(vec![Array::of(v.shape.clone(), y)])
    }

    fn jvp(&self, _: &mut Rules, _: &Node, _: &[Option<ValueId>]) -> Terms {
        Err(KEPT_STATE.into())
    }

    fn vjp(&self, _: &mut Rules, _: &Node, _: &[Option<ValueId>], _: &[bool]) -> Terms {
        Err(KEPT_STATE.into())
    }
}

/// Advances one column of a matrix by one row, and adds `Sᵀ q` to `y`.
fn step<'a, T: Number + 'a>(
    column: impl Iterator<Item = &'a mut T>,
    k: &[T],
    q: &[T],
    decay: T,
    beta: Option<T>,
    v: T,
    y: &mut T,
) {
    let mut column: Vec<&mut T> = column.collect();
    let mut known = T::default();
    for (state, &k) in column.iter_mut().zip(k) {
        **state *= decay;
        known += **state * k;
    }
    let added = beta.map_or(v, |beta| beta * (v - known));
    for ((state, &k), &q) in column.iter_mut().zip(k).zip(q) {
        **state += k * added;
        *y += **state * q;
    }
}
