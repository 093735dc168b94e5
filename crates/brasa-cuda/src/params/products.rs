//! Structures of products on tensor cores, and of low-rank products.

#[cfg(test)]
use std::fmt::Write as _;

#[cfg(test)]
use super::Shared;
use super::{LOW_RANK_NONE, LOW_RANK_SPANS, Norm, Outputs, Ptr, Rows};

params! {
    /// A matrix in tiles of 16-bit floats, `subs` pieces of 64 inputs each, or dense rows of f32, which have an even number of inputs. Products are multiplied by `factor`.
    struct LowRankMatrix { data: Ptr<u8>, rows: u32, inputs: u32, subs: u32, factor: f32, }
    /// Tiles of B below `tiles_end[i]`, and not below the one before, are zero but in subs from `first[i]` to `end[i]`; the last span has all further tiles.
    struct LowRankSpans {
        tiles_end: [u32; LOW_RANK_SPANS as usize],
        first: [u32; LOW_RANK_SPANS as usize],
        end: [u32; LOW_RANK_SPANS as usize],
    }
    /// Low-rank products: ranks of rows, [parts][rows][ranks], of which each part is a sum of other inputs, times B, which has the form `form`. `users` has a bit
    /// for each row that uses some of sixteen ranks. Sums are multiplied by `scale`; within another product by what that one is scaled by, too. Of the two words
    /// `x_ready`, zero before and behind, the launch that makes ranks sets the first when the rows are there, so that a product can begin with them while it still
    /// runs; null if a product begins behind it.
    struct Addend {
        ranks: Ptr<f32>,
        users: Ptr<u32>,
        x_ready: Ptr<u32>,
        b: LowRankMatrix,
        spans: LowRankSpans,
        rows: u32,
        parts: u32,
        form: u32,
        scale: f32,
    }
    /// Rows are floats, which the norm is of, or lie in `panels` with a power of two each. Their products with A of each part of K, times their factors, become the
    /// addend's ranks, and those that use some its users. A small bank's A is asked for whether or not rows use it.
    struct LowRankRowsParams {
        x: Rows,
        norm: Norm,
        panels: Ptr<u8>,
        row_scale: Ptr<f32>,
        a: LowRankMatrix,
        factors: Rows,
        residual: Rows,
        addend: Addend,
        y: Ptr<f32>,
        panel_subs: u32,
        is_small: u32,
    }
    struct ChosenRanksParams { factors: Rows, narrow: Ptr<f32>, y: Ptr<f32>, rows: u32, }
    /// Panels have `subs` pieces of 64 ranks. `row_scale` are the powers of two of the rows whose ranks they are, `ratios` what these are to those of the ranks.
    struct RankPanelsParams {
        factors: Rows,
        narrow: Ptr<f32>,
        row_scale: Ptr<f32>,
        panels: Ptr<u8>,
        ratios: Ptr<f32>,
        subs: u32,
    }
    /// A weight in tiles behind rows that are rounded, whose gated products are rounded in turn: the largest squared norm of its rows, and
    /// where the power of two goes by which a row of products is divided. Of a bank's product beside it the largest squared norms of rows of A and of B, and the
    /// rows' factors. Null where there is none.
    struct Gates { largest: Ptr<f32>, row_scale: Ptr<f32>, of_a: Ptr<f32>, of_b: Ptr<f32>, factors: Rows, }
    /// `tail` is more of each row, which becomes the last piece; none where it has no data.
    struct PanelsParams {
        x: Rows,
        tail: Rows,
        norm: Norm,
        gates: Gates,
        panels: Ptr<u8>,
        row_scale: Ptr<f32>,
        rows: u32,
        inputs: u32,
        subs: u32,
    }
    /// More inputs of a product, whose panels of 64 rows lie `subs` pieces apart; null if there are none. Of a matrix that is learned there are 64, whose weights are
    /// halves in `tiles`, with the factor of each tile from the raise of the weight to its own. Otherwise they are ranks of a bank, whose B is that of the addend: its
    /// elements are multiplied by `raise` before they are rounded, and sums of the weight come to the scale of these by `factor` and the `ratios` of rows.
    struct GemmTail {
        panels: Ptr<u8>,
        tiles: Ptr<u8>,
        factors: Ptr<f32>,
        ratios: Ptr<f32>,
        subs: u32,
        raise: f32,
        factor: f32,
    }
    /// Product of panels with a weight in tiles. Elements that are rounded to f16 are multiplied by `raise` before, and products by
    /// `scale`. Parts of K are dealt to `splits` blocks, whose sums go to `partial` where there are several. Panels have `panel_subs` pieces.
    /// The `addend`, of outputs of the whole weight, is added to the products by kernels that have one, or by the `tail`.
    struct GemmParams {
        weights: Ptr<u8>,
        panels: Ptr<u8>,
        row_scale: Ptr<f32>,
        partial: Ptr<f32>,
        rows: u32,
        tiles: u32,
        subs: u32,
        splits: u32,
        raise: f32,
        scale: f32,
        panel_subs: u32,
        tail: GemmTail,
        out: Outputs,
        addend: Addend,
    }
    struct GemmSumParams { partial: Ptr<f32>, rows: u32, tiles: u32, splits: u32, out: Outputs, }
    /// Sums of parts of K and what follows them, normed and rounded to panels for the product behind.
    struct GemmSumsPanelsParams {
        sums: GemmSumParams,
        norm: Norm,
        gates: Gates,
        panels: Ptr<u8>,
        row_scale: Ptr<f32>,
        subs: u32,
    }
}

impl Addend {
    /// There is no addend.
    pub(crate) const NONE: Self = Self {
        ranks: Ptr::NONE,
        users: Ptr::NONE,
        x_ready: Ptr::NONE,
        b: LowRankMatrix { data: Ptr::NONE, rows: 0, inputs: 0, subs: 0, factor: 0.0 },
        spans: LowRankSpans { tiles_end: [0; 4], first: [0; 4], end: [0; 4] },
        rows: 0,
        parts: 0,
        form: LOW_RANK_NONE,
        scale: 0.0,
    };
}

impl GemmTail {
    /// No further inputs.
    pub(crate) const NONE: Self = Self {
        panels: Ptr::NONE,
        tiles: Ptr::NONE,
        factors: Ptr::NONE,
        ratios: Ptr::NONE,
        subs: 0,
        raise: 0.0,
        factor: 0.0,
    };
}

impl Gates {
    /// No gates behind.
    pub(crate) const NONE: Self = Self {
        largest: Ptr::NONE,
        row_scale: Ptr::NONE,
        of_a: Ptr::NONE,
        of_b: Ptr::NONE,
        factors: Rows::NONE,
    };
}
