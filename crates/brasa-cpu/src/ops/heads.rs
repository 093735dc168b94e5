//! The steps between the Q, K, V projections and attention: norms of heads, rotation, and the cache.
#![expect(
    unsafe_code,
    reason = "threads write disjoint heads of one result and disjoint slots of shared pages"
)]

use brasa_graph::Sizes;
use brasa_graph::op::Rope;
use brasa_graph::step::PAGE_POSITIONS;

use crate::Team;
use crate::context::Context;
use crate::kv::CacheView;
use crate::slot::{Operands, Place, Slot, Source};
use crate::step_state::StepState;

use super::norm::{Norm, ReadyNorm};
use super::operation::Operation;
use super::rope::rotate;
use super::scratch::{Scratch, ScratchSize};

/// `cache_write(k, v)`.
#[derive(Clone, Debug)]
pub(crate) struct CacheWriteOp {
    pub k: Source,
    /// Values; `None` if values are the first elements of keys.
    pub v: Option<Source>,
    pub target: Target,
}

/// The cache that is written, and its geometry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    /// Cache group.
    pub group: usize,
    /// Number of the cache in its group.
    pub place: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Elements of a head's key.
    pub key_dim: usize,
    /// Elements of a head's value that is stored beside the key; 0 for a value within the key.
    pub value_dim: usize,
}

/// Optional norms of Q, K and V, the rotation of Q and K, and the cache write of K and V.
#[derive(Clone, Debug)]
pub(crate) struct HeadsOp {
    pub q: Source,
    pub k: Source,
    pub v: Source,
    pub q_norm: Option<Norm>,
    pub k_norm: Option<Norm>,
    pub v_norm: Option<Norm>,
    pub rope: Rope,
    /// Cosines and sines of the step.
    pub table: Slot,
    pub target: Target,
    /// Query heads.
    pub heads: usize,
    /// The rotated queries.
    pub out: Slot,
}

impl Target {
    fn place(&self) -> Place {
        Place::Cache(self.group, self.place)
    }
}

impl Operation for CacheWriteOp {
    fn operands(&self, list: &mut Operands) {
        list.reads("k", self.k);
        if let Some(v) = self.v {
            list.reads("v", v);
        }
        list.writes("cache", self.target.place());
    }

    fn run(&self, cx: &mut Context<'_>, _: &mut Scratch) {
        let (k, v) = (cx.view(&self.k), self.v.as_ref().map(|v| cx.view(v)));
        let cache = cx.kv.cache(self.target.group, self.target.place);
        let Target { key_dim, value_dim, .. } = self.target;
        for row in cx.share(cx.step.sizes.rows) {
            let (k, v) = (k.row(row), v.as_ref().map_or(&[][..], |v| v.row(row)));
            for head in 0..self.target.kv_heads {
                let key = &k[head * key_dim..(head + 1) * key_dim];
                let value = &v[head * value_dim..(head + 1) * value_dim];
                // SAFETY: each row belongs to one thread.
                unsafe { write(cx.step, &self.target, cache, row, head, key, value) };
            }
        }
    }
}

impl Operation for HeadsOp {
    fn operands(&self, list: &mut Operands) {
        list.reads("q", self.q).reads("k", self.k).reads("v", self.v).reads("table", self.table);
        for norm in [&self.q_norm, &self.k_norm, &self.v_norm].into_iter().flatten() {
            norm.operands(list);
        }
        list.writes("out", self.out).writes("cache", self.target.place());
    }

    fn scratch(&self, _: &Sizes, size: &mut ScratchSize) {
        size.add_heads(self.heads, self.target.kv_heads, self.target.key_dim);
    }

    /// A thread takes whole rows, or some heads of all rows if there are few rows.
    fn run(&self, cx: &mut Context<'_>, scratch: &mut Scratch) {
        let width = self.target.key_dim;
        let (k, v) = (cx.view(&self.k), cx.view(&self.v));
        let q = cx.view(&self.q);
        let table = cx.rows::<f32>(&self.table);
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
        // SAFETY: rows and heads are split among threads.
        let mut out = unsafe { cx.write::<f32>(&self.out, region) };
        let [key, value] = &mut scratch.head;
        for (i, row) in rows.enumerate() {
            let angles = table.row(row);
            let (q, out) = (&q.row(row)[columns.clone()], out.row(i));
            normed(cx, q_norm.as_ref(), q, out);
            for head in out.chunks_exact_mut(width) {
                rotate(cx.isa, &self.rope, angles, head);
            }
            for head in kv_heads.clone() {
                let columns = head * width..(head + 1) * width;
                let (key, value) = (&mut key[..width], &mut value[..width]);
                normed(cx, k_norm.as_ref(), &k.row(row)[columns.clone()], key);
                rotate(cx.isa, &self.rope, angles, key);
                normed(cx, v_norm.as_ref(), &v.row(row)[columns], value);
                // SAFETY: each KV head of a row belongs to one thread.
                unsafe { write(cx.step, &self.target, cache, row, head, key, value) };
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
///
/// # Safety
///
/// No other thread writes this head of this row, and none reads the cache until a barrier.
unsafe fn write(
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
    // SAFETY: `StepRules` checked before the step that its rows have slots of their own; the rest by the contract.
    unsafe { cache.write(page, head, index % PAGE_POSITIONS, k, v) };
}
