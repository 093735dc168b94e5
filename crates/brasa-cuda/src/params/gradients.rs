//! Structures of the operations that only derivatives use.

#[cfg(test)]
use std::fmt::Write as _;

#[cfg(test)]
use super::Shared;
use super::{AttentionParams, Fault, Ptr, Rows, StepRows, StoredWeight, Strided};

params! {
    struct UnaryGradientParams {
        x: Strided,
        t: Strided,
        y: Ptr<f32>,
        dims: [u32; 4],
        count: u32,
        function: u32,
        a: f32,
        b: f32,
    }
    /// `t` is multiplied by the weights `w` where they are there, and the result is added to `residual` where it is. It also goes to panels of `subs` pieces
    /// where these are there; its width is a multiple of eight then.
    struct NormGradientParams {
        x: Rows,
        t: Rows,
        residual: Rows,
        w: Ptr<f32>,
        y: Ptr<f32>,
        panels: Ptr<u8>,
        row_scale: Ptr<f32>,
        eps: f32,
        is_layer: u32,
        subs: u32,
    }
    /// Rows of `width` elements, `*_stride` apart. The gradient of a gated product has `d`, its change, and a second result, of `up`.
    struct GatedParams {
        gate: Ptr<f32>,
        up: Ptr<f32>,
        d: Ptr<f32>,
        y: Ptr<f32>,
        up_y: Ptr<f32>,
        gate_stride: u32,
        up_stride: u32,
        d_stride: u32,
        y_stride: u32,
        width: u32,
        rows: u32,
        function: u32,
    }
    /// Gated products, or their gradients, that go to panels of `subs` pieces: the gradient of gates, or the product, from column `first` on, that of `up` from
    /// column `second` on.
    struct GatedPanelsParams {
        of: GatedParams,
        panels: Ptr<u8>,
        row_scale: Ptr<f32>,
        subs: u32,
        first: u32,
        second: u32,
    }
    /// Rows of `width` halves in panels of `subs` pieces, and a matrix `w` of `columns` columns of f32, whose elements along the sum lie `w_k` apart and whose
    /// columns lie `w_column` apart. The sum goes along a row, in parts of `part` pieces, or along the rows, in parts of `part` panels; sums of several parts go
    /// to `partial`. Of a product that is the tail of its rows, `tail_factor` is what it is multiplied by there, else 0.
    struct LowRankParams {
        panels: Ptr<u8>,
        row_scale: Ptr<f32>,
        w: Ptr<f32>,
        y: Ptr<f32>,
        partial: Ptr<f32>,
        rows: u32,
        width: u32,
        subs: u32,
        columns: u32,
        w_k: u32,
        w_column: u32,
        y_row: u32,
        y_column: u32,
        part: u32,
        parts: u32,
        factor: f32,
        tail_factor: f32,
    }
    /// A matrix of up to 64 columns that becomes the tail of a weight in tiles: element `n, j` is `n · row + j · column` elements behind the first. Halves of
    /// each tile follow each other; outputs are those of the weight's tiles, as in [`TransposeParams`]. Each tile has a power of two of its own, and its ratio
    /// to `raise`, times `factor`, is written.
    struct TailTilesParams {
        matrix: Ptr<f32>,
        to: Ptr<u8>,
        factors: Ptr<f32>,
        row: u32,
        column: u32,
        columns: u32,
        tiles: u32,
        rows: u32,
        lower: u32,
        upper: u32,
        is_paired: u32,
        raise: f32,
        factor: f32,
    }
    /// Gradients of keys and of values by `kv_heads` times `sharing` query heads, to be added for each KV head.
    struct RowsSumsParams {
        from: [Ptr<f32>; 2],
        to: [Ptr<f32>; 2],
        rows: u32,
        kv_heads: u32,
        sharing: u32,
        head_dim: u32,
    }
    /// Dense rows of chosen experts, of `outputs` elements, and the weight's `experts_count` matrices of as many rows.
    struct ExpertTransposedParams {
        y: Ptr<f32>,
        w: StoredWeight,
        experts: Ptr<u32>,
        x: Ptr<f32>,
        fault: Ptr<Fault>,
        slots: u32,
        experts_count: u32,
        outputs: u32,
    }
    struct ExpertGradientParams {
        dy: Ptr<f32>,
        experts: Ptr<u32>,
        x: Ptr<f32>,
        dw: Ptr<f32>,
        fault: Ptr<Fault>,
        slots: u32,
        chosen: u32,
        own_rows: u32,
        experts_count: u32,
        outputs: u32,
        inputs: u32,
    }
    /// The tangent of attention. `attention.y` is the place of the result's tangent; tangents are dense.
    struct AttentionTangentParams {
        attention: AttentionParams,
        tq: Ptr<f32>,
        tk: Ptr<f32>,
        tv: Ptr<f32>,
        t_sinks: Ptr<f32>,
    }
    /// Gradients `d_sinks` of the sinks of heads, made of the `sums` of each row and head.
    struct SinkGradientParams { sinks: Ptr<f32>, d_sinks: Ptr<f32>, sums: Ptr<f32>, rows: u32, heads: u32, }
    /// Attention whose result's place, `y`, is that of the queries' gradient; gradients are dense. `sums` has three numbers for each
    /// row and head: the largest score, the sum of exponentials over it, the mean of `dp`.
    struct AttentionGradientParams {
        attention: AttentionParams,
        dy: Ptr<f32>,
        dk: Ptr<f32>,
        dv: Ptr<f32>,
        sums: Ptr<f32>,
    }
    /// Rows of queries, keys, values and the gradient of attention's result, to round to halves: `from` floats `strides` apart to dense halves, each
    /// `widths` wide. Queries are multiplied by `factor`. `largest` has `largest_count` numbers, and then the power of two that gradients are
    /// multiplied by.
    struct RowsHalvesParams {
        from: [Ptr<f32>; 4],
        to: [Ptr<u8>; 4],
        largest: Ptr<f32>,
        strides: [u32; 4],
        widths: [u32; 4],
        rows: u32,
        largest_count: u32,
        factor: f32,
    }
    /// Attention to the rows of the step, of halves; `y` is the result, or the gradient of the queries. `sums` has two numbers for each head and
    /// row, `kept` the logarithm of the sum of exponentials that attention with the result `result` left there, or null. Softcap and window are 0 for none.
    struct AttentionRowsParams {
        q: Ptr<u8>,
        k: Ptr<u8>,
        v: Ptr<u8>,
        dy: Ptr<u8>,
        y: Ptr<f32>,
        dk: Ptr<f32>,
        dv: Ptr<f32>,
        sums: Ptr<f32>,
        kept: Ptr<f32>,
        result: Ptr<f32>,
        raise: Ptr<f32>,
        step: StepRows,
        rows: u32,
        heads: u32,
        kv_heads: u32,
        is_causal: u32,
        window: u32,
        scale: f32,
        softcap: f32,
    }
    /// Rows of `pieces` pieces of four elements each, `*_stride` elements apart.
    struct FlatParams {
        a: Ptr<f32>,
        b: Ptr<f32>,
        y: Ptr<f32>,
        a_stride: u32,
        b_stride: u32,
        y_stride: u32,
        pieces: u32,
        function: u32,
        c: f32,
        d: f32,
    }
    /// A learned block: `count` elements, `columns` of each row, rows `stride` elements apart; `first` elements of other blocks come before its own.
    struct LearnedRows { values: Ptr<f32>, gradients: Ptr<f32>, first: u64, count: u64, columns: u32, stride: u32, }
    struct LearnParams {
        blocks: Ptr<LearnedRows>,
        sums: Ptr<f32>,
        means: Ptr<f32>,
        squares: Ptr<f32>,
        partial: Ptr<f64>,
        is_first: u32,
        factor: f32,
        kept: f32,
        new1: f32,
        beta2: f32,
        new2: f32,
        rate: f32,
        root: f32,
        eps: f32,
    }
    /// Scores of `width` a row, which become the gradient of the loss by them; softcap is 0 for none.
    struct ScoresGradientParams {
        scores: Ptr<f32>,
        targets: Ptr<u32>,
        d: Ptr<f32>,
        fault: Ptr<Fault>,
        width: u32,
        softcap: f32,
    }
    /// Scores of `width` a row, of which the loss `y` is computed and the row's own gradient: in panels of `subs` pieces, or, without panels, in the
    /// scores' place; softcap is 0 for none.
    struct ScoresLossParams {
        scores: Ptr<f32>,
        targets: Ptr<u32>,
        y: Ptr<f32>,
        panels: Ptr<u8>,
        row_scale: Ptr<f32>,
        fault: Ptr<Fault>,
        width: u32,
        subs: u32,
        softcap: f32,
    }
    /// Elements of rows, `each` of a row, by number.
    struct PickParams { x: Rows, indices: Ptr<u32>, y: Ptr<f32>, fault: Ptr<Fault>, count: u32, each: u32, }
    struct PlaceParams {
        x: Ptr<f32>,
        indices: Ptr<u32>,
        y: Ptr<f32>,
        fault: Ptr<Fault>,
        count: u32,
        each: u32,
        width: u32,
    }
    /// `rows` rows of x, `factor` for each row of the step.
    struct FoldParams {
        y: Ptr<f32>,
        x: Ptr<f32>,
        step: StepRows,
        factor: u32,
        channels: u32,
        taps: u32,
        stride: u32,
        padding: u32,
        rows: u32,
    }
    struct SpreadMeanParams { y: Ptr<f32>, x: Ptr<f32>, step: StepRows, factor: u32, width: u32, rows: u32, }
    /// Tiles to become part of tiles of halves of the transposed weight, of `to_subs` subs, its elements times `raise`. Outputs begin with
    /// row `lower`; those of upper halves of paired tiles with row `upper`.
    struct TransposeParams {
        weights: Ptr<u8>,
        to: Ptr<u8>,
        tiles: u32,
        subs: u32,
        to_subs: u32,
        inputs: u32,
        rows: u32,
        lower: u32,
        upper: u32,
        is_paired: u32,
        raise: f32,
    }
}

impl LearnedRows {
    /// The structure as five words.
    pub(crate) fn words(&self) -> [u64; 5] {
        let &Self { values, gradients, first, count, columns, stride } = self;
        [values.0, gradients.0, first, count, u64::from(columns) | u64::from(stride) << 32]
    }
}
