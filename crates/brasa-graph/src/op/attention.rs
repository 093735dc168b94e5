//! Keys and values: written to a cache, attended to.

use super::{Operation, Type, operands, require};
use crate::{CacheId, CacheSpec, DType, Value};

/// Writes each row's keys and values into a cache, at the row's index.
///
/// Shapes: `k`, `v` `[R, G, E]` → nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheWrite {
    /// Where to.
    pub cache: CacheId,
}

impl Operation for CacheWrite {
    fn name(&self) -> &'static str {
        "cache_write"
    }

    fn infer(&self, given: &[&Value], caches: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [k, v] = operands(given)?;
        let spec = caches[self.cache.0 as usize];
        for value in [k, v] {
            require(value.shape.inner() == Some(vec![spec.kv_heads, spec.head_dim]), || {
                format!("expected [R, {}, {}]", spec.kv_heads, spec.head_dim)
            })?;
        }
        Ok(Vec::new())
    }
}

/// Where keys and values come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvSource {
    /// A cache: all indices of the row's sequence up to its own.
    Cache(CacheId),
    /// The step itself: rows of the same segment. Differentiable.
    Step(Mask),
}

/// Which rows of its segment a row sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mask {
    /// Those up to itself.
    Causal,
    /// All.
    Bidirectional,
}

/// Scaled dot-product attention with grouped KV heads.
///
/// `y[r,h] = Σ_j softmax_j(cap(scale · q[r,h]·k[j,g])) · v[j,g]`, `g = h / (H/G)`, over the visible `j`; `cap` is the
/// soft-cap `c·tanh(s/c)` where one is set. Scores and softmax in f32.
///
/// A row at index *i* sees *j* with `j ≤ i` (not where [`Mask::Bidirectional`]) and, with a window *w*, `j > i − w`.
///
/// Shapes: `q` `[R, H, E]`; for [`KvSource::Step`] also `k`, `v` `[R, G, E]` → `[R, H, E]`.
/// Vaswani et al. 2017, arXiv:1706.03762; Ainslie et al. 2023, arXiv:2305.13245.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// Where keys and values come from.
    pub source: KvSource,
    /// Multiplies the scores.
    pub scale: f32,
    /// Positions seen, the row's own included; `None` for all.
    pub window: Option<usize>,
    /// Soft-cap of the scores.
    pub softcap: Option<f32>,
}

impl Operation for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn infer(&self, given: &[&Value], caches: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let q = given.first().ok_or("no query")?;
        let (kv_heads, head_dim) = match self.source {
            KvSource::Cache(cache) => {
                let [_] = operands(given)?;
                let spec = caches[cache.0 as usize];
                (spec.kv_heads, spec.head_dim)
            }
            KvSource::Step(_) => {
                let [_, k, v] = operands(given)?;
                require(k.shape == v.shape && k.shape.outer() == q.shape.outer(), || {
                    "k and v differ".into()
                })?;
                match k.shape.inner().as_deref() {
                    Some(&[heads, width]) => (heads, width),
                    _ => return Err("k must be [R, G, E]".into()),
                }
            }
        };
        match q.shape.inner().as_deref() {
            Some(&[heads, width]) if width == head_dim && kv_heads > 0 && heads.is_multiple_of(kv_heads) => {}
            _ => return Err(format!("q must be [R, H, {head_dim}], H a multiple of {kv_heads}")),
        }
        require(self.window != Some(0), || "a window of 0 sees nothing".into())?;
        Ok(vec![(DType::F32, q.shape.clone())])
    }
}
