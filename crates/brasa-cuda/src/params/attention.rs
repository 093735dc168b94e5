//! Structures of turned heads, of the cache and of attention.

#[cfg(test)]
use std::fmt::Write as _;

#[cfg(test)]
use super::Shared;
use super::{CachePages, Norm, Ptr, StepRows};

params! {
    struct RopeParams {
        x: Ptr<f32>,
        positions: Ptr<u32>,
        frequencies: Ptr<f32>,
        y: Ptr<f32>,
        rows: u32,
        x_stride: u32,
        y_stride: u32,
        heads: u32,
        head_dim: u32,
        rotary_dim: u32,
        interleaved: u32,
        magnitude: f32,
    }
    struct RotateKeysParams {
        pages: Ptr<u64>,
        angles: Ptr<f32>,
        offset_bytes: u64,
        pages_count: u32,
        kv_heads: u32,
        head_dim: u32,
        head_bytes: u32,
        rotary_dim: u32,
        interleaved: u32,
    }
    /// Cosine and sine of each row and pair.
    struct RotationsParams {
        positions: Ptr<u32>,
        frequencies: Ptr<f32>,
        table: Ptr<f32>,
        rows: u32,
        pairs: u32,
        magnitude: f32,
    }
    /// Norms of heads, rotations of queries and keys by a table, and the write of keys and values. `threads` work on a head. Where there
    /// are `parts`, queries, keys and values are the sums of as many numbers, `part_stride` apart, and of their biases.
    struct HeadsParams {
        q: Ptr<f32>,
        k: Ptr<f32>,
        v: Ptr<f32>,
        y: Ptr<f32>,
        rotations: Ptr<f32>,
        q_norm: Norm,
        k_norm: Norm,
        v_norm: Norm,
        step: StepRows,
        cache: CachePages,
        q_stride: u32,
        k_stride: u32,
        v_stride: u32,
        heads: u32,
        rotary_dim: u32,
        interleaved: u32,
        threads: u32,
        parts: u32,
        part_stride: u32,
        q_bias: Ptr<f32>,
        k_bias: Ptr<f32>,
        v_bias: Ptr<f32>,
    }
    struct CacheWriteParams {
        k: Ptr<f32>,
        v: Ptr<f32>,
        step: StepRows,
        cache: CachePages,
        k_stride: u32,
        v_stride: u32,
    }
    /// Attention: queries and keys have `head_dim` elements, values and results `value_dim`. `sinks` has one number for
    /// each query head, or is null.
    struct AttentionParams {
        q: Ptr<f32>,
        k: Ptr<f32>,
        v: Ptr<f32>,
        sinks: Ptr<f32>,
        y: Ptr<f32>,
        step: StepRows,
        cache: CachePages,
        q_stride: u32,
        k_stride: u32,
        v_stride: u32,
        heads: u32,
        kv_heads: u32,
        head_dim: u32,
        value_dim: u32,
        source: u32,
        scale: f32,
        has_softcap: u32,
        softcap: f32,
        has_window: u32,
        window: u32,
    }
    /// Attention of a row's KV heads, numbered on from row to row from `first_task`, to one page each.
    struct PagesParams { attention: AttentionParams, partial: Ptr<f32>, first_task: u32, pages: u32, }
    /// Attention to parts of `span` positions, by tasks of up to eight heads of a KV head of a row, numbered on from `first_task`. Where a task has
    /// several parts, a word of `arrivals`, which is 0 before and behind, counts those that have ended. Means go to `panels` of `subs` pieces
    /// unless it is null.
    struct PartsParams {
        attention: AttentionParams,
        partial: Ptr<f32>,
        arrivals: Ptr<u32>,
        panels: Ptr<u8>,
        row_scale: Ptr<f32>,
        subs: u32,
        first_task: u32,
        span: u32,
    }
    /// Attention of segments of `fewest_rows` or more to a cache of halves; softcap and window are 0 for none.
    struct FlashParams {
        q: Ptr<f32>,
        sinks: Ptr<f32>,
        y: Ptr<f32>,
        step: StepRows,
        cache: CachePages,
        q_stride: u32,
        heads: u32,
        fewest_rows: u32,
        window: u32,
        scale: f32,
        softcap: f32,
    }
}
