//! Structures that host and device share, defined here once.
//!
//! `kernels/plain/params.h` is written from these definitions: every structure with its fields, and for each field an
//! assertion that the compiler of the kernels places it where Rust does. A test fails where the file is out of date;
//! `BRASA_UPDATE=1 cargo test -p brasa-cuda params` writes it anew.
#![expect(unsafe_code, reason = "views a structure as bytes")]

#[cfg(test)]
use std::fmt::Write as _;
use std::marker::PhantomData;

/// An address in device memory of elements of type `T`; 0 for none.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Ptr<T>(pub u64, PhantomData<T>);

impl<T> Clone for Ptr<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Ptr<T> {}

impl<T> Default for Ptr<T> {
    fn default() -> Self {
        Self::NONE
    }
}

impl<T> Ptr<T> {
    /// No address: an operand that is absent.
    pub(crate) const NONE: Self = Self(0, PhantomData);

    /// The elements at `address`.
    pub(crate) const fn new(address: u64) -> Self {
        Self(address, PhantomData)
    }
}

/// A type that both sides know.
#[cfg(test)]
pub(crate) trait Shared {
    /// A declaration of `name` as a field, in C.
    fn declare(name: &str) -> String;
}

#[cfg(test)]
macro_rules! shared {
    ($($rust:ty = $c:literal),* $(,)?) => { $(
        impl Shared for $rust {
            fn declare(name: &str) -> String {
                format!("{} {name}", $c)
            }
        }
    )* };
}

#[cfg(test)]
shared! { u8 = "u8", u32 = "u32", u64 = "u64", f32 = "float", f64 = "double" }

#[cfg(test)]
impl<T: Shared> Shared for Ptr<T> {
    fn declare(name: &str) -> String {
        T::declare(&format!("*{name}"))
    }
}

#[cfg(test)]
impl<T: Shared, const N: usize> Shared for [T; N] {
    fn declare(name: &str) -> String {
        T::declare(&format!("{name}[{N}]"))
    }
}

macro_rules! params {
    ($($(#[$doc:meta])* struct $name:ident { $($field:ident: $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug)]
            #[repr(C)]
            pub(crate) struct $name { $(pub $field: $type,)* }

            #[cfg(test)]
            impl Shared for $name {
                fn declare(name: &str) -> String {
                    format!("{} {name}", stringify!($name))
                }
            }
        )*

        /// Every structure in C, in order, each with assertions of its layout.
        #[cfg(test)]
        pub(super) fn structures() -> String {
            let mut text = String::new();
            $(
                let name = stringify!($name);
                let _ = writeln!(text, "\nstruct {name} {{");
                $(let _ = writeln!(text, "    {};", <$type as Shared>::declare(stringify!($field)));)*
                let _ = writeln!(text, "}};");
                let _ = writeln!(text, "static_assert(sizeof({name}) == {}, \"\");", size_of::<$name>());
                $(
                    let (field, offset) = (stringify!($field), std::mem::offset_of!($name, $field));
                    let _ = writeln!(text, "static_assert(offsetof({name}, {field}) == {offset}, \"\");");
                )*
            )*
            text
        }
    };
}

macro_rules! constants {
    ($($name:ident = $value:expr,)*) => {
        $(pub(crate) const $name: u32 = $value;)*

        /// Every constant in C.
        #[cfg(test)]
        fn constants() -> String {
            let mut text = String::new();
            $(let _ = writeln!(text, "static const u32 {} = {};", stringify!($name), $name);)*
            text
        }
    };
}

constants! {
    UNARY_SCALE = 0,
    UNARY_CLAMP = 1,
    UNARY_SOFTCAP = 2,
    UNARY_EXP = 3,
    UNARY_LOG = 4,
    UNARY_RSQRT = 5,
    UNARY_TANH = 6,
    UNARY_SIGMOID = 7,
    UNARY_SILU = 8,
    UNARY_GELU_TANH = 9,
    UNARY_GELU_ERF = 10,
    UNARY_SQUARED_RELU = 11,
    UNIT_CLAMPED = 12,
    UNARY_SOFTPLUS = 13,
    SCORES_SOFTMAX_ALL = 0,
    SCORES_SOFTMAX_CHOSEN = 1,
    SCORES_SIGMOID = 2,
    BINARY_ADD = 0,
    BINARY_SUB = 1,
    BINARY_MUL = 2,
    BINARY_DIV = 3,
    BINARY_MAXIMUM = 4,
    CAST_F32 = 0,
    CAST_F16 = 1,
    CAST_BF16 = 2,
    CAST_U32 = 3,
    REDUCE_SUM = 0,
    REDUCE_MEAN = 1,
    REDUCE_MAX = 2,
    REDUCE_LOGSUMEXP = 3,
    SOURCE_CACHE = 0,
    SOURCE_MEMORY = 1,
    SOURCE_STEP_CAUSAL = 2,
    SOURCE_STEP_BOTH_WAYS = 3,
    SOURCE_STEP_ALIBI = 4,
    PLACE_TILES = 0,
    PLACE_LOWER = 1,
    PLACE_UPPER = 2,
    TILES_DENSE = 0,
    TILES_SPLIT = 1,
    TILES_GATED = 2,
    GATED_TURNS = 4,
    LOW_RANK_SHARED = 87_040,
    LOW_RANK_SPANS = 4,
    LOW_RANK_NONE = 0,
    LOW_RANK_F16 = 1,
    LOW_RANK_BF16 = 2,
    LOW_RANK_F32 = 3,
    DRAW_PART = 2048,
    DRAW_BINS = 128,
    DRAW_LISTED = 1024,
    DRAW_TOP_K = 0,
    DRAW_MIN_P = 1,
    DRAW_TOP_P = 2,
    DRAW_TOP_N_SIGMA = 1,
    DRAW_TYPICAL_P = 2,
    DRAW_XTC = 3,
    DRAW_DYNAMIC = 4,
    DRAW_NO_TOKEN = 0xffff_ffff,
}

mod attention;
mod experts;
mod gradients;
mod products;
mod states;

pub(crate) use attention::*;
pub(crate) use experts::*;
pub(crate) use gradients::*;
pub(crate) use products::*;
pub(crate) use states::*;

params! {
    /// Rows of f32: row `j` begins at element `j / per · stride + j % per · width` of `data`.
    struct Rows { data: Ptr<f32>, per: u32, stride: u32, width: u32, }
    /// A value of four axes, each advancing by its stride.
    struct Strided { data: Ptr<f32>, strides: [u32; 4], }
    /// Consecutive rows of a weight in one stored format: rows as they are stored, or tiles of `subs` subs, of which the rows
    /// take all places or half of them, and whose elements are multiplied with a power of two.
    struct Part {
        data: Ptr<u8>,
        scales: Ptr<u8>,
        biases: Ptr<u8>,
        first_row: u32,
        rows: u32,
        row_bytes: u32,
        format: u32,
        bits: u32,
        group_size: u32,
        groups: u32,
        scale_format: u32,
        subs: u32,
        place: u32,
        factor: f32,
        reserved: u32,
    }
    /// A stored weight: its parts in order of their rows.
    struct StoredWeight { parts: Ptr<Part>, parts_count: u32, rows: u32, row_len: u32, }
    /// The first number of a step that was beyond its table.
    struct Fault { found: u32, number: u32, limit: u32, }
    /// Rows of one sequence in a step.
    struct SegmentRows {
        first_row: u32,
        rows: u32,
        first_index: u32,
        memory_rows: u32,
        has_tree: u32,
        first_tree_row: u32,
    }
    /// A row of a draft tree: its depth, and a bit for itself and each ancestor.
    struct TreeRow { seen: [u64; 4], depth: u32, }
    /// Facts about the step that kernels read.
    struct StepRows {
        segments: Ptr<SegmentRows>,
        row_segments: Ptr<u32>,
        tree_rows: Ptr<TreeRow>,
        rows: u32,
        segments_count: u32,
    }
    /// Pages of a cache: entry `starts[segment] + index / 256` of `pages` is the address of a page. A key has
    /// `head_dim` elements, and a head's keys take `head_bytes` bytes. Values begin `values_bytes` behind the first
    /// key, a head's values take `value_bytes` bytes, and positions lie `value_row` elements apart. If values are the
    /// first elements of keys, these three describe the keys.
    struct CachePages {
        pages: Ptr<u64>,
        starts: Ptr<u32>,
        offset_bytes: u64,
        kv_heads: u32,
        head_dim: u32,
        head_bytes: u32,
        values_bytes: u32,
        value_bytes: u32,
        value_row: u32,
    }
    struct EmbedParams { ids: Ptr<u32>, table: StoredWeight, y: Ptr<f32>, fault: Ptr<Fault>, rows: u32, }
    struct GatherParams {
        table: Ptr<f32>,
        indices: Ptr<u32>,
        y: Ptr<f32>,
        fault: Ptr<Fault>,
        count: u32,
        table_len: u32,
    }
    struct SelectRowsParams {
        x: Rows,
        rows: Ptr<u32>,
        y: Ptr<f32>,
        fault: Ptr<Fault>,
        count: u32,
        x_rows: u32,
    }
    struct LinearParams { x: Rows, w: StoredWeight, y: Ptr<f32>, rows: u32, outputs: u32, }
    /// Destinations of products with a weight in tiles. `lower` and `upper` are the first outputs of the tiles' lower and upper
    /// halves. `count` is the number of outputs of both halves if they are adjacent, else of each half. If there are `panels`,
    /// gated products are written there in place of `y`, each row divided by its scale and rounded.
    struct Outputs {
        residual: Rows,
        bias: Ptr<f32>,
        y: Ptr<f32>,
        y_width: u32,
        count: u32,
        lower: u32,
        upper: u32,
        form: u32,
        function: u32,
        panels: Ptr<u8>,
        row_scale: Ptr<f32>,
        subs: u32,
    }
    struct TilesParams { x: Rows, weights: Ptr<u8>, rows: u32, inputs: u32, subs: u32, factor: f32, out: Outputs, }
    /// The norm of a row or a head: its weight, which may be absent, and the number added to the mean square; nothing where
    /// `is_there` is 0.
    struct Norm { weight: Ptr<f32>, eps: f32, is_there: u32, }
    /// Rows of `source` to become tiles. Row `i` of a tile's lower half is row `tile · tile_rows + i`, of its upper half
    /// that many behind row `upper_start`. MLX has scales and biases beside its codes, which are divided by a power
    /// of two, and the last five numbers.
    struct RepackParams {
        source: Ptr<u8>,
        scales: Ptr<u8>,
        biases: Ptr<u8>,
        to: Ptr<u8>,
        largest: Ptr<u32>,
        row_bytes: u32,
        inputs: u32,
        subs: u32,
        tiles: u32,
        tile_rows: u32,
        lower_rows: u32,
        upper_start: u32,
        upper_rows: u32,
        bits: u32,
        group_size: u32,
        groups: u32,
        scale_format: u32,
        divisor: f32,
    }
    /// The largest squared norm of the rows of a weight in tiles, as bits of a float that grows.
    struct RowNormsParams { source: Ptr<u8>, largest: Ptr<u32>, tiles: u32, subs: u32, format: u32, factor: f32, }
    struct UnpackParams { source: Ptr<u8>, to: Ptr<u8>, rows: u32, inputs: u32, subs: u32, place: u32, }
    struct LinearTransposedParams { y: Rows, w: StoredWeight, x: Ptr<f32>, rows: u32, }
    /// Matrices of f32 with any strides; `base`, whose rows are `base_row` apart, is added to the product where it is there, and the sum multiplied by `factor`.
    struct MatmulParams {
        a: Ptr<f32>,
        b: Ptr<f32>,
        c: Ptr<f32>,
        base: Ptr<f32>,
        m: u32,
        n: u32,
        k: u32,
        a_row: u32,
        a_column: u32,
        b_row: u32,
        b_column: u32,
        base_row: u32,
        factor: f32,
    }
    /// A product in tiles, each block of which takes `part` of K; sums of several parts go to `partial`, one part behind the other.
    struct MatmulTilesParams { product: MatmulParams, partial: Ptr<f32>, part: u32, parts: u32, }
    struct NormParams { x: Rows, w: Ptr<f32>, b: Ptr<f32>, y: Ptr<f32>, eps: f32, }
    struct UnaryParams {
        x: Strided,
        y: Ptr<f32>,
        dims: [u32; 4],
        count: u32,
        function: u32,
        a: f32,
        b: f32,
    }
    struct BinaryParams {
        a: Strided,
        b: Strided,
        y: Ptr<f32>,
        dims: [u32; 4],
        count: u32,
        function: u32,
    }
    /// The clamped unit `(u + 1) · g · σ(α·g)`, with `g = min(gate, limit)` and `u = clamp(up, −limit, limit)`.
    struct ClampedUnitParams {
        gate: Strided,
        up: Strided,
        y: Ptr<f32>,
        dims: [u32; 4],
        count: u32,
        alpha: f32,
        limit: f32,
    }
    /// Rows of `row_elements` elements, multiplied by `1 + beta · ln(1 + ⌊position / step⌋)`.
    struct PositionScaleParams {
        x: Strided,
        positions: Ptr<u32>,
        y: Ptr<f32>,
        dims: [u32; 4],
        count: u32,
        row_elements: u32,
        beta: f32,
        step: u32,
    }
    struct ChooseParams {
        condition: Strided,
        a: Strided,
        b: Strided,
        y: Ptr<f32>,
        dims: [u32; 4],
        count: u32,
        of_integers: u32,
    }
    struct CastParams {
        x: Strided,
        y: Ptr<f32>,
        dims: [u32; 4],
        count: u32,
        to: u32,
        from_integers: u32,
    }
    struct CopyParams { x: Strided, y: Strided, dims: [u32; 4], count: u32, }
    struct ReduceParams {
        x: Ptr<f32>,
        y: Ptr<f32>,
        outputs: u32,
        len: u32,
        inner: u32,
        function: u32,
    }
    struct SoftmaxParams { x: Rows, y: Ptr<f32>, }
    struct ArgmaxParams { x: Rows, y: Ptr<u32>, }
    /// The rules by which the token of a row is drawn, for one phase of the order.
    ///
    /// - `occurrences`: pairs of an id and the number of times that it occurred. `biases`: pairs of an id and the bits
    ///   of a float, equal ids together. `repeats`: pairs of an id and the bits of the penalty that DRY subtracts;
    ///   `repeats_first` says that DRY comes before the penalties.
    /// - `most`: top-k, or the largest possible number.
    /// - `kinds` and `values`: the filters in their order. The value of top-p is p, that of min-p the temperature times
    ///   the logarithm of min-p.
    /// - `sums` says that top-p needs the sum of all shares, at the inverse temperature `sum_temperature`. `whole` says
    ///   that top-p counts in shares of all tokens, even behind other filters.
    /// - `closing`: the stage that ends the phase, 0 for none. `closing_values`: N of top-n-sigma, p of typical-p, the
    ///   threshold of XTC, or three numbers of a dynamic temperature: the lowest temperature, the distance to the
    ///   highest, and the exponent.
    struct DrawRow {
        occurrences: Ptr<u32>,
        biases: Ptr<u32>,
        forbidden: Ptr<u32>,
        mask: Ptr<u32>,
        repeats: Ptr<u32>,
        occurrences_count: u32,
        biases_count: u32,
        forbidden_count: u32,
        position: u32,
        seed_low: u32,
        seed_high: u32,
        repeat: f32,
        frequency: f32,
        presence: f32,
        inverse_temperature: f32,
        sum_temperature: f32,
        is_greedy: u32,
        most: u32,
        filters_count: u32,
        kinds: [u32; 3],
        values: [f32; 3],
        sums: u32,
        whole: u32,
        repeats_count: u32,
        repeats_first: u32,
        closing: u32,
        closing_values: [f32; 3],
    }
    /// Destinations of a row's drawn token: state of the interpreter (null for none), words that the host reads and writes
    /// meanwhile, and ids that end a chain.
    struct HandOn {
        state: Ptr<u32>,
        shown: Ptr<u64>,
        cancel: Ptr<u64>,
        stops: Ptr<u32>,
        stops_count: u32,
        reserved: u32,
    }
    /// Rows of logits to draw from. Of each row and part of 2048 tokens the largest key and the best score, of each row and 256 tokens
    /// the sum of their shares; of each row the counts of bins, then of what is listed, and the list.
    struct DrawParams {
        x: Rows,
        rows: Ptr<DrawRow>,
        largest: Ptr<u64>,
        scores: Ptr<u64>,
        listed: Ptr<u64>,
        sums: Ptr<f32>,
        counts: Ptr<u32>,
        y: Ptr<u32>,
        hand_on: HandOn,
    }
    struct CrossEntropyParams { x: Rows, targets: Ptr<u32>, y: Ptr<f32>, fault: Ptr<Fault>, }
    struct UnfoldParams {
        x: Ptr<f32>,
        y: Ptr<f32>,
        step: StepRows,
        factor: u32,
        channels: u32,
        taps: u32,
        stride: u32,
        padding: u32,
        out_rows: u32,
    }
    struct MeanPoolParams { x: Ptr<f32>, y: Ptr<f32>, step: StepRows, factor: u32, width: u32, }
    struct IndexAddParams {
        base: Ptr<f32>,
        indices: Ptr<u32>,
        x: Ptr<f32>,
        y: Ptr<f32>,
        fault: Ptr<Fault>,
        base_rows: u32,
        rows: u32,
        width: u32,
    }
    /// An address that a kernel writes to, with any previous content.
    struct StrayParams { at: Ptr<u32>, }
}

impl Norm {
    /// There is no norm.
    pub(crate) const NONE: Self = Self { weight: Ptr::NONE, eps: 0.0, is_there: 0 };
}

impl Rows {
    /// No rows: an operand that is absent.
    pub(crate) const NONE: Self = Self { data: Ptr::NONE, per: 1, stride: 0, width: 0 };
}

/// Parts as bytes, to be copied to the device.
pub(crate) fn part_bytes(parts: &[Part]) -> &[u8] {
    const { assert!(size_of::<Part>() == 3 * size_of::<Ptr<u8>>() + size_of::<[u32; 12]>(), "no padding") };
    // SAFETY: a part holds numbers without padding between them.
    unsafe { std::slice::from_raw_parts(parts.as_ptr().cast(), size_of_val(parts)) }
}

/// Rows to draw from as bytes, to be copied to the device.
pub(crate) fn draw_bytes(rows: &[DrawRow]) -> &[u8] {
    const { assert!(size_of::<DrawRow>() == 5 * size_of::<Ptr<u32>>() + size_of::<[u32; 28]>(), "no padding") };
    // SAFETY: a row holds numbers without padding between them.
    unsafe { std::slice::from_raw_parts(rows.as_ptr().cast(), size_of_val(rows)) }
}

/// The header that kernels include.
#[cfg(test)]
fn header() -> String {
    format!(
        "// Written from crates/brasa-cuda/src/params.rs; a test says where it is out of date.\n\
         #pragma once\n\n\
         #include <stddef.h>\n\n\
         typedef unsigned char u8;\n\
         typedef unsigned int u32;\n\
         typedef unsigned long long u64;\n\n\
         static const u32 PAGE_POSITIONS = {};\n\
         {}{}{}{}{}{}{}",
        brasa_graph::step::PAGE_POSITIONS,
        constants(),
        structures(),
        products::structures(),
        experts::structures(),
        attention::structures(),
        gradients::structures(),
        states::structures()
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    #[test]
    fn the_kernels_header_is_current() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/plain/params.h");
        let expected = super::header();
        if std::env::var_os("BRASA_UPDATE").is_some() {
            std::fs::write(&path, &expected).expect("the header can be written");
        }
        let found = std::fs::read_to_string(&path).expect("the header is there");
        assert!(found == expected, "{} is not what params.rs says; see its head", path.display());
    }
}
