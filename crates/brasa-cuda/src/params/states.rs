//! Structures of operations with recurrent states.

#[cfg(test)]
use std::fmt::Write as _;

#[cfg(test)]
use super::Shared;
use super::{Ptr, StepRows};

params! {
    /// State pages: the address of the page before each segment and of the page after each row, 0 for none; and the bytes of a page
    /// in front of a state. Without addresses no state is kept.
    struct StatePlaces { from: Ptr<u64>, to: Ptr<u64>, offset_bytes: u64, }
    struct ShortConvParams {
        step: StepRows,
        places: StatePlaces,
        x: Ptr<f32>,
        w: Ptr<f32>,
        y: Ptr<f32>,
        x_stride: u32,
        channels: u32,
        taps: u32,
        activates: u32,
        function: u32,
        reserved: u32,
    }
    struct StateScanParams {
        step: StepRows,
        places: StatePlaces,
        q: Ptr<f32>,
        k: Ptr<f32>,
        v: Ptr<f32>,
        decay: Ptr<f32>,
        beta: Ptr<f32>,
        y: Ptr<f32>,
        q_stride: u32,
        k_stride: u32,
        v_stride: u32,
        decay_stride: u32,
        beta_stride: u32,
        key_heads: u32,
        key_dim: u32,
        heads: u32,
        value_dim: u32,
        is_tiled: u32,
    }
}
