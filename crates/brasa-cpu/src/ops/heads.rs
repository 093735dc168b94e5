//! Between the Q, K, V projections and attention: norms of heads, rotation, and the cache.

use brasa_graph::op::Rope;

use crate::Team;
use crate::context::{Context, Slot, Source};
use crate::kv::CacheView;
use crate::step_state::StepState;
use brasa_graph::step::PAGE_POSITIONS;

use super::norm::{Norm, ReadyNorm};
use super::rope::rotate;

/// `cache_write(k, v)`.
#[derive(Clone, Debug)]
pub(crate) struct CacheWriteOp {
    pub k: Source,
    pub v: Source,
    pub target: Target,
}

/// Which cache, and its geometry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub group: usize,
    pub place: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
}

/// `[norm →] rope` of Q and K, `[norm]` of V, and the cache write.
#[derive(Clone, Debug)]
pub(crate) struct HeadsOp {
    pub q: Source,
    pub k: Source,
    pub v: Source,
    pub q_norm: Option<Norm>,
    pub k_norm: Option<Norm>,
    pub v_norm: Option<Norm>,
    pub rope: Rope,
    pub table: Slot,
    pub target: Target,
    /// Query heads.
    pub heads: usize,
    /// Rotated queries.
    pub out: Slot,
}

/// A thread's memory for a head's key and value.
#[derive(Debug)]
pub(crate) struct HeadScratch {
    key: Vec<f32>,
    value: Vec<f32>,
}

impl HeadScratch {
    pub(crate) fn new(most_head_dim: usize) -> Self {
        Self { key: vec![0.0; most_head_dim], value: vec![0.0; most_head_dim] }
    }
}

impl CacheWriteOp {
    pub(crate) fn run(&self, cx: &Context<'_>) {
        let (k, v) = (cx.view(&self.k), cx.view(&self.v));
        let cache = cx.kv.cache(self.target.group, self.target.place);
        let width = self.target.head_dim;
        for row in cx.share(cx.step.sizes.rows) {
            let (k, v) = (k.row(row), v.row(row));
            for head in 0..self.target.kv_heads {
                let columns = head * width..(head + 1) * width;
                write(cx.step, &self.target, cache, row, head, &k[columns.clone()], &v[columns]);
            }
        }
    }
}

impl HeadsOp {
    /// This thread's share: rows, or heads of all rows where there are few.
    pub(crate) fn run(&self, cx: &Context<'_>, scratch: &mut HeadScratch) {
        let width = self.target.head_dim;
        let (k, v) = (cx.view(&self.k), cx.view(&self.v));
        let q = cx.view(&self.q);
        let table = cx.arena.read::<f32>(cx.region(&self.table));
        let [q_norm, k_norm, v_norm] =
            [&self.q_norm, &self.k_norm, &self.v_norm].map(|norm| norm.as_ref().map(|norm| norm.ready(cx)));
        let cache = cx.kv.cache(self.target.group, self.target.place);

        // Query heads, then KV heads, which cost twice as much.
        let all_heads = self.heads + self.target.kv_heads;
        let rows = cx.step.sizes.rows;
        let (rows, heads) = if rows >= cx.threads {
            (cx.share(rows), 0..all_heads)
        } else {
            (0..rows, Team::split(all_heads, 1, cx.threads, cx.thread))
        };
        let query_heads = heads.start.min(self.heads)..heads.end.min(self.heads);
        let kv_heads = heads.start.max(self.heads) - self.heads..heads.end.max(self.heads) - self.heads;

        let columns = query_heads.start * width..query_heads.end * width;
        let region = cx.region(&self.out).of_rows(rows.clone()).of_columns(columns.clone());
        let mut out = cx.arena.write::<f32>(region);
        for (i, row) in rows.enumerate() {
            let angles = table.row(row);
            let (q, out) = (&q.row(row)[columns.clone()], out.row(i));
            normed(cx, q_norm.as_ref(), q, out);
            for head in out.chunks_exact_mut(width) {
                rotate(cx.isa, &self.rope, angles, head);
            }
            for head in kv_heads.clone() {
                let columns = head * width..(head + 1) * width;
                let (key, value) = (&mut scratch.key[..width], &mut scratch.value[..width]);
                normed(cx, k_norm.as_ref(), &k.row(row)[columns.clone()], key);
                rotate(cx.isa, &self.rope, angles, key);
                normed(cx, v_norm.as_ref(), &v.row(row)[columns], value);
                write(cx.step, &self.target, cache, row, head, key, value);
            }
        }
    }
}

fn normed(cx: &Context<'_>, norm: Option<&ReadyNorm<'_>>, x: &[f32], y: &mut [f32]) {
    match norm {
        Some(norm) => norm.apply(cx.isa, x, y),
        None => y.copy_from_slice(x),
    }
}

/// Writes one head of a row of the step to the row's place in the cache.
#[expect(unsafe_code, reason = "threads write disjoint slots of shared pages")]
fn write(
    step: &StepState,
    target: &Target,
    cache: CacheView<'_>,
    row: usize,
    head: usize,
    k: &[f32],
    v: &[f32],
) {
    let (number, segment) = step.segment_of(row);
    let index = segment.index(row);
    let page = step.table(number, target.group)[index / PAGE_POSITIONS];
    // SAFETY: rows of a step have slots of their own, which was checked before it began; each head of a row is
    // one thread's, and attention reads after a barrier.
    unsafe { cache.write(page, head, index % PAGE_POSITIONS, k, v) };
}
