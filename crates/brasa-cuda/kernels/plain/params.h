// Written from crates/brasa-cuda/src/params.rs; a test says where it is out of date.
#pragma once

#include <stddef.h>

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

static const u32 PAGE_POSITIONS = 256;
static const u32 UNARY_SCALE = 0;
static const u32 UNARY_CLAMP = 1;
static const u32 UNARY_SOFTCAP = 2;
static const u32 UNARY_EXP = 3;
static const u32 UNARY_LOG = 4;
static const u32 UNARY_RSQRT = 5;
static const u32 UNARY_TANH = 6;
static const u32 UNARY_SIGMOID = 7;
static const u32 UNARY_SILU = 8;
static const u32 UNARY_GELU_TANH = 9;
static const u32 UNARY_GELU_ERF = 10;
static const u32 UNARY_SQUARED_RELU = 11;
static const u32 UNIT_CLAMPED = 12;
static const u32 SCORES_SOFTMAX_ALL = 0;
static const u32 SCORES_SOFTMAX_CHOSEN = 1;
static const u32 SCORES_SIGMOID = 2;
static const u32 BINARY_ADD = 0;
static const u32 BINARY_SUB = 1;
static const u32 BINARY_MUL = 2;
static const u32 BINARY_DIV = 3;
static const u32 BINARY_MAXIMUM = 4;
static const u32 CAST_F32 = 0;
static const u32 CAST_F16 = 1;
static const u32 CAST_BF16 = 2;
static const u32 CAST_U32 = 3;
static const u32 REDUCE_SUM = 0;
static const u32 REDUCE_MEAN = 1;
static const u32 REDUCE_MAX = 2;
static const u32 REDUCE_LOGSUMEXP = 3;
static const u32 SOURCE_CACHE = 0;
static const u32 SOURCE_MEMORY = 1;
static const u32 SOURCE_STEP_CAUSAL = 2;
static const u32 SOURCE_STEP_BOTH_WAYS = 3;
static const u32 SOURCE_STEP_ALIBI = 4;
static const u32 PLACE_TILES = 0;
static const u32 PLACE_LOWER = 1;
static const u32 PLACE_UPPER = 2;
static const u32 TILES_DENSE = 0;
static const u32 TILES_SPLIT = 1;
static const u32 TILES_GATED = 2;
static const u32 GATED_TURNS = 4;
static const u32 LOW_RANK_SHARED = 87040;
static const u32 LOW_RANK_SPANS = 4;
static const u32 LOW_RANK_NONE = 0;
static const u32 LOW_RANK_F16 = 1;
static const u32 LOW_RANK_BF16 = 2;
static const u32 LOW_RANK_F32 = 3;
static const u32 DRAW_PART = 2048;
static const u32 DRAW_BINS = 128;
static const u32 DRAW_LISTED = 1024;
static const u32 DRAW_TOP_K = 0;
static const u32 DRAW_MIN_P = 1;
static const u32 DRAW_TOP_P = 2;
static const u32 DRAW_NO_TOKEN = 4294967295;

struct Rows {
    float *data;
    u32 per;
    u32 stride;
    u32 width;
};
static_assert(sizeof(Rows) == 24, "");
static_assert(offsetof(Rows, data) == 0, "");
static_assert(offsetof(Rows, per) == 8, "");
static_assert(offsetof(Rows, stride) == 12, "");
static_assert(offsetof(Rows, width) == 16, "");

struct Strided {
    float *data;
    u32 strides[4];
};
static_assert(sizeof(Strided) == 24, "");
static_assert(offsetof(Strided, data) == 0, "");
static_assert(offsetof(Strided, strides) == 8, "");

struct Part {
    u8 *data;
    u8 *scales;
    u8 *biases;
    u32 first_row;
    u32 rows;
    u32 row_bytes;
    u32 format;
    u32 bits;
    u32 group_size;
    u32 groups;
    u32 scale_format;
    u32 subs;
    u32 place;
    float factor;
    u32 reserved;
};
static_assert(sizeof(Part) == 72, "");
static_assert(offsetof(Part, data) == 0, "");
static_assert(offsetof(Part, scales) == 8, "");
static_assert(offsetof(Part, biases) == 16, "");
static_assert(offsetof(Part, first_row) == 24, "");
static_assert(offsetof(Part, rows) == 28, "");
static_assert(offsetof(Part, row_bytes) == 32, "");
static_assert(offsetof(Part, format) == 36, "");
static_assert(offsetof(Part, bits) == 40, "");
static_assert(offsetof(Part, group_size) == 44, "");
static_assert(offsetof(Part, groups) == 48, "");
static_assert(offsetof(Part, scale_format) == 52, "");
static_assert(offsetof(Part, subs) == 56, "");
static_assert(offsetof(Part, place) == 60, "");
static_assert(offsetof(Part, factor) == 64, "");
static_assert(offsetof(Part, reserved) == 68, "");

struct StoredWeight {
    Part *parts;
    u32 parts_count;
    u32 rows;
    u32 row_len;
};
static_assert(sizeof(StoredWeight) == 24, "");
static_assert(offsetof(StoredWeight, parts) == 0, "");
static_assert(offsetof(StoredWeight, parts_count) == 8, "");
static_assert(offsetof(StoredWeight, rows) == 12, "");
static_assert(offsetof(StoredWeight, row_len) == 16, "");

struct Fault {
    u32 found;
    u32 number;
    u32 limit;
};
static_assert(sizeof(Fault) == 12, "");
static_assert(offsetof(Fault, found) == 0, "");
static_assert(offsetof(Fault, number) == 4, "");
static_assert(offsetof(Fault, limit) == 8, "");

struct SegmentRows {
    u32 first_row;
    u32 rows;
    u32 first_index;
    u32 memory_rows;
    u32 has_tree;
    u32 first_tree_row;
};
static_assert(sizeof(SegmentRows) == 24, "");
static_assert(offsetof(SegmentRows, first_row) == 0, "");
static_assert(offsetof(SegmentRows, rows) == 4, "");
static_assert(offsetof(SegmentRows, first_index) == 8, "");
static_assert(offsetof(SegmentRows, memory_rows) == 12, "");
static_assert(offsetof(SegmentRows, has_tree) == 16, "");
static_assert(offsetof(SegmentRows, first_tree_row) == 20, "");

struct TreeRow {
    u64 seen[4];
    u32 depth;
};
static_assert(sizeof(TreeRow) == 40, "");
static_assert(offsetof(TreeRow, seen) == 0, "");
static_assert(offsetof(TreeRow, depth) == 32, "");

struct StepRows {
    SegmentRows *segments;
    u32 *row_segments;
    TreeRow *tree_rows;
    u32 rows;
    u32 segments_count;
};
static_assert(sizeof(StepRows) == 32, "");
static_assert(offsetof(StepRows, segments) == 0, "");
static_assert(offsetof(StepRows, row_segments) == 8, "");
static_assert(offsetof(StepRows, tree_rows) == 16, "");
static_assert(offsetof(StepRows, rows) == 24, "");
static_assert(offsetof(StepRows, segments_count) == 28, "");

struct CachePages {
    u64 *pages;
    u32 *starts;
    u64 offset_bytes;
    u32 kv_heads;
    u32 head_dim;
    u32 head_bytes;
    u32 values_bytes;
    u32 value_bytes;
    u32 value_row;
};
static_assert(sizeof(CachePages) == 48, "");
static_assert(offsetof(CachePages, pages) == 0, "");
static_assert(offsetof(CachePages, starts) == 8, "");
static_assert(offsetof(CachePages, offset_bytes) == 16, "");
static_assert(offsetof(CachePages, kv_heads) == 24, "");
static_assert(offsetof(CachePages, head_dim) == 28, "");
static_assert(offsetof(CachePages, head_bytes) == 32, "");
static_assert(offsetof(CachePages, values_bytes) == 36, "");
static_assert(offsetof(CachePages, value_bytes) == 40, "");
static_assert(offsetof(CachePages, value_row) == 44, "");

struct EmbedParams {
    u32 *ids;
    StoredWeight table;
    float *y;
    Fault *fault;
    u32 rows;
};
static_assert(sizeof(EmbedParams) == 56, "");
static_assert(offsetof(EmbedParams, ids) == 0, "");
static_assert(offsetof(EmbedParams, table) == 8, "");
static_assert(offsetof(EmbedParams, y) == 32, "");
static_assert(offsetof(EmbedParams, fault) == 40, "");
static_assert(offsetof(EmbedParams, rows) == 48, "");

struct GatherParams {
    float *table;
    u32 *indices;
    float *y;
    Fault *fault;
    u32 count;
    u32 table_len;
};
static_assert(sizeof(GatherParams) == 40, "");
static_assert(offsetof(GatherParams, table) == 0, "");
static_assert(offsetof(GatherParams, indices) == 8, "");
static_assert(offsetof(GatherParams, y) == 16, "");
static_assert(offsetof(GatherParams, fault) == 24, "");
static_assert(offsetof(GatherParams, count) == 32, "");
static_assert(offsetof(GatherParams, table_len) == 36, "");

struct SelectRowsParams {
    Rows x;
    u32 *rows;
    float *y;
    Fault *fault;
    u32 count;
    u32 x_rows;
};
static_assert(sizeof(SelectRowsParams) == 56, "");
static_assert(offsetof(SelectRowsParams, x) == 0, "");
static_assert(offsetof(SelectRowsParams, rows) == 24, "");
static_assert(offsetof(SelectRowsParams, y) == 32, "");
static_assert(offsetof(SelectRowsParams, fault) == 40, "");
static_assert(offsetof(SelectRowsParams, count) == 48, "");
static_assert(offsetof(SelectRowsParams, x_rows) == 52, "");

struct LinearParams {
    Rows x;
    StoredWeight w;
    float *y;
    u32 rows;
    u32 outputs;
};
static_assert(sizeof(LinearParams) == 64, "");
static_assert(offsetof(LinearParams, x) == 0, "");
static_assert(offsetof(LinearParams, w) == 24, "");
static_assert(offsetof(LinearParams, y) == 48, "");
static_assert(offsetof(LinearParams, rows) == 56, "");
static_assert(offsetof(LinearParams, outputs) == 60, "");

struct Outputs {
    Rows residual;
    float *bias;
    float *y;
    u32 y_width;
    u32 count;
    u32 lower;
    u32 upper;
    u32 form;
    u32 function;
    u8 *panels;
    float *row_scale;
    u32 subs;
};
static_assert(sizeof(Outputs) == 88, "");
static_assert(offsetof(Outputs, residual) == 0, "");
static_assert(offsetof(Outputs, bias) == 24, "");
static_assert(offsetof(Outputs, y) == 32, "");
static_assert(offsetof(Outputs, y_width) == 40, "");
static_assert(offsetof(Outputs, count) == 44, "");
static_assert(offsetof(Outputs, lower) == 48, "");
static_assert(offsetof(Outputs, upper) == 52, "");
static_assert(offsetof(Outputs, form) == 56, "");
static_assert(offsetof(Outputs, function) == 60, "");
static_assert(offsetof(Outputs, panels) == 64, "");
static_assert(offsetof(Outputs, row_scale) == 72, "");
static_assert(offsetof(Outputs, subs) == 80, "");

struct TilesParams {
    Rows x;
    u8 *weights;
    u32 rows;
    u32 inputs;
    u32 subs;
    float factor;
    Outputs out;
};
static_assert(sizeof(TilesParams) == 136, "");
static_assert(offsetof(TilesParams, x) == 0, "");
static_assert(offsetof(TilesParams, weights) == 24, "");
static_assert(offsetof(TilesParams, rows) == 32, "");
static_assert(offsetof(TilesParams, inputs) == 36, "");
static_assert(offsetof(TilesParams, subs) == 40, "");
static_assert(offsetof(TilesParams, factor) == 44, "");
static_assert(offsetof(TilesParams, out) == 48, "");

struct Norm {
    float *weight;
    float eps;
    u32 is_there;
};
static_assert(sizeof(Norm) == 16, "");
static_assert(offsetof(Norm, weight) == 0, "");
static_assert(offsetof(Norm, eps) == 8, "");
static_assert(offsetof(Norm, is_there) == 12, "");

struct RepackParams {
    u8 *source;
    u8 *scales;
    u8 *biases;
    u8 *to;
    u32 *largest;
    u32 row_bytes;
    u32 inputs;
    u32 subs;
    u32 tiles;
    u32 tile_rows;
    u32 lower_rows;
    u32 upper_start;
    u32 upper_rows;
    u32 bits;
    u32 group_size;
    u32 groups;
    u32 scale_format;
    float divisor;
};
static_assert(sizeof(RepackParams) == 96, "");
static_assert(offsetof(RepackParams, source) == 0, "");
static_assert(offsetof(RepackParams, scales) == 8, "");
static_assert(offsetof(RepackParams, biases) == 16, "");
static_assert(offsetof(RepackParams, to) == 24, "");
static_assert(offsetof(RepackParams, largest) == 32, "");
static_assert(offsetof(RepackParams, row_bytes) == 40, "");
static_assert(offsetof(RepackParams, inputs) == 44, "");
static_assert(offsetof(RepackParams, subs) == 48, "");
static_assert(offsetof(RepackParams, tiles) == 52, "");
static_assert(offsetof(RepackParams, tile_rows) == 56, "");
static_assert(offsetof(RepackParams, lower_rows) == 60, "");
static_assert(offsetof(RepackParams, upper_start) == 64, "");
static_assert(offsetof(RepackParams, upper_rows) == 68, "");
static_assert(offsetof(RepackParams, bits) == 72, "");
static_assert(offsetof(RepackParams, group_size) == 76, "");
static_assert(offsetof(RepackParams, groups) == 80, "");
static_assert(offsetof(RepackParams, scale_format) == 84, "");
static_assert(offsetof(RepackParams, divisor) == 88, "");

struct RowNormsParams {
    u8 *source;
    u32 *largest;
    u32 tiles;
    u32 subs;
    u32 format;
    float factor;
};
static_assert(sizeof(RowNormsParams) == 32, "");
static_assert(offsetof(RowNormsParams, source) == 0, "");
static_assert(offsetof(RowNormsParams, largest) == 8, "");
static_assert(offsetof(RowNormsParams, tiles) == 16, "");
static_assert(offsetof(RowNormsParams, subs) == 20, "");
static_assert(offsetof(RowNormsParams, format) == 24, "");
static_assert(offsetof(RowNormsParams, factor) == 28, "");

struct UnpackParams {
    u8 *source;
    u8 *to;
    u32 rows;
    u32 inputs;
    u32 subs;
    u32 place;
};
static_assert(sizeof(UnpackParams) == 32, "");
static_assert(offsetof(UnpackParams, source) == 0, "");
static_assert(offsetof(UnpackParams, to) == 8, "");
static_assert(offsetof(UnpackParams, rows) == 16, "");
static_assert(offsetof(UnpackParams, inputs) == 20, "");
static_assert(offsetof(UnpackParams, subs) == 24, "");
static_assert(offsetof(UnpackParams, place) == 28, "");

struct LinearTransposedParams {
    Rows y;
    StoredWeight w;
    float *x;
    u32 rows;
};
static_assert(sizeof(LinearTransposedParams) == 64, "");
static_assert(offsetof(LinearTransposedParams, y) == 0, "");
static_assert(offsetof(LinearTransposedParams, w) == 24, "");
static_assert(offsetof(LinearTransposedParams, x) == 48, "");
static_assert(offsetof(LinearTransposedParams, rows) == 56, "");

struct MatmulParams {
    float *a;
    float *b;
    float *c;
    float *base;
    u32 m;
    u32 n;
    u32 k;
    u32 a_row;
    u32 a_column;
    u32 b_row;
    u32 b_column;
    u32 base_row;
    float factor;
};
static_assert(sizeof(MatmulParams) == 72, "");
static_assert(offsetof(MatmulParams, a) == 0, "");
static_assert(offsetof(MatmulParams, b) == 8, "");
static_assert(offsetof(MatmulParams, c) == 16, "");
static_assert(offsetof(MatmulParams, base) == 24, "");
static_assert(offsetof(MatmulParams, m) == 32, "");
static_assert(offsetof(MatmulParams, n) == 36, "");
static_assert(offsetof(MatmulParams, k) == 40, "");
static_assert(offsetof(MatmulParams, a_row) == 44, "");
static_assert(offsetof(MatmulParams, a_column) == 48, "");
static_assert(offsetof(MatmulParams, b_row) == 52, "");
static_assert(offsetof(MatmulParams, b_column) == 56, "");
static_assert(offsetof(MatmulParams, base_row) == 60, "");
static_assert(offsetof(MatmulParams, factor) == 64, "");

struct MatmulTilesParams {
    MatmulParams product;
    float *partial;
    u32 part;
    u32 parts;
};
static_assert(sizeof(MatmulTilesParams) == 88, "");
static_assert(offsetof(MatmulTilesParams, product) == 0, "");
static_assert(offsetof(MatmulTilesParams, partial) == 72, "");
static_assert(offsetof(MatmulTilesParams, part) == 80, "");
static_assert(offsetof(MatmulTilesParams, parts) == 84, "");

struct NormParams {
    Rows x;
    float *w;
    float *b;
    float *y;
    float eps;
};
static_assert(sizeof(NormParams) == 56, "");
static_assert(offsetof(NormParams, x) == 0, "");
static_assert(offsetof(NormParams, w) == 24, "");
static_assert(offsetof(NormParams, b) == 32, "");
static_assert(offsetof(NormParams, y) == 40, "");
static_assert(offsetof(NormParams, eps) == 48, "");

struct UnaryParams {
    Strided x;
    float *y;
    u32 dims[4];
    u32 count;
    u32 function;
    float a;
    float b;
};
static_assert(sizeof(UnaryParams) == 64, "");
static_assert(offsetof(UnaryParams, x) == 0, "");
static_assert(offsetof(UnaryParams, y) == 24, "");
static_assert(offsetof(UnaryParams, dims) == 32, "");
static_assert(offsetof(UnaryParams, count) == 48, "");
static_assert(offsetof(UnaryParams, function) == 52, "");
static_assert(offsetof(UnaryParams, a) == 56, "");
static_assert(offsetof(UnaryParams, b) == 60, "");

struct BinaryParams {
    Strided a;
    Strided b;
    float *y;
    u32 dims[4];
    u32 count;
    u32 function;
};
static_assert(sizeof(BinaryParams) == 80, "");
static_assert(offsetof(BinaryParams, a) == 0, "");
static_assert(offsetof(BinaryParams, b) == 24, "");
static_assert(offsetof(BinaryParams, y) == 48, "");
static_assert(offsetof(BinaryParams, dims) == 56, "");
static_assert(offsetof(BinaryParams, count) == 72, "");
static_assert(offsetof(BinaryParams, function) == 76, "");

struct ClampedUnitParams {
    Strided gate;
    Strided up;
    float *y;
    u32 dims[4];
    u32 count;
    float alpha;
    float limit;
};
static_assert(sizeof(ClampedUnitParams) == 88, "");
static_assert(offsetof(ClampedUnitParams, gate) == 0, "");
static_assert(offsetof(ClampedUnitParams, up) == 24, "");
static_assert(offsetof(ClampedUnitParams, y) == 48, "");
static_assert(offsetof(ClampedUnitParams, dims) == 56, "");
static_assert(offsetof(ClampedUnitParams, count) == 72, "");
static_assert(offsetof(ClampedUnitParams, alpha) == 76, "");
static_assert(offsetof(ClampedUnitParams, limit) == 80, "");

struct PositionScaleParams {
    Strided x;
    u32 *positions;
    float *y;
    u32 dims[4];
    u32 count;
    u32 row_elements;
    float beta;
    u32 step;
};
static_assert(sizeof(PositionScaleParams) == 72, "");
static_assert(offsetof(PositionScaleParams, x) == 0, "");
static_assert(offsetof(PositionScaleParams, positions) == 24, "");
static_assert(offsetof(PositionScaleParams, y) == 32, "");
static_assert(offsetof(PositionScaleParams, dims) == 40, "");
static_assert(offsetof(PositionScaleParams, count) == 56, "");
static_assert(offsetof(PositionScaleParams, row_elements) == 60, "");
static_assert(offsetof(PositionScaleParams, beta) == 64, "");
static_assert(offsetof(PositionScaleParams, step) == 68, "");

struct ChooseParams {
    Strided condition;
    Strided a;
    Strided b;
    float *y;
    u32 dims[4];
    u32 count;
    u32 of_integers;
};
static_assert(sizeof(ChooseParams) == 104, "");
static_assert(offsetof(ChooseParams, condition) == 0, "");
static_assert(offsetof(ChooseParams, a) == 24, "");
static_assert(offsetof(ChooseParams, b) == 48, "");
static_assert(offsetof(ChooseParams, y) == 72, "");
static_assert(offsetof(ChooseParams, dims) == 80, "");
static_assert(offsetof(ChooseParams, count) == 96, "");
static_assert(offsetof(ChooseParams, of_integers) == 100, "");

struct CastParams {
    Strided x;
    float *y;
    u32 dims[4];
    u32 count;
    u32 to;
    u32 from_integers;
};
static_assert(sizeof(CastParams) == 64, "");
static_assert(offsetof(CastParams, x) == 0, "");
static_assert(offsetof(CastParams, y) == 24, "");
static_assert(offsetof(CastParams, dims) == 32, "");
static_assert(offsetof(CastParams, count) == 48, "");
static_assert(offsetof(CastParams, to) == 52, "");
static_assert(offsetof(CastParams, from_integers) == 56, "");

struct CopyParams {
    Strided x;
    Strided y;
    u32 dims[4];
    u32 count;
};
static_assert(sizeof(CopyParams) == 72, "");
static_assert(offsetof(CopyParams, x) == 0, "");
static_assert(offsetof(CopyParams, y) == 24, "");
static_assert(offsetof(CopyParams, dims) == 48, "");
static_assert(offsetof(CopyParams, count) == 64, "");

struct ReduceParams {
    float *x;
    float *y;
    u32 outputs;
    u32 len;
    u32 inner;
    u32 function;
};
static_assert(sizeof(ReduceParams) == 32, "");
static_assert(offsetof(ReduceParams, x) == 0, "");
static_assert(offsetof(ReduceParams, y) == 8, "");
static_assert(offsetof(ReduceParams, outputs) == 16, "");
static_assert(offsetof(ReduceParams, len) == 20, "");
static_assert(offsetof(ReduceParams, inner) == 24, "");
static_assert(offsetof(ReduceParams, function) == 28, "");

struct SoftmaxParams {
    Rows x;
    float *y;
};
static_assert(sizeof(SoftmaxParams) == 32, "");
static_assert(offsetof(SoftmaxParams, x) == 0, "");
static_assert(offsetof(SoftmaxParams, y) == 24, "");

struct ArgmaxParams {
    Rows x;
    u32 *y;
};
static_assert(sizeof(ArgmaxParams) == 32, "");
static_assert(offsetof(ArgmaxParams, x) == 0, "");
static_assert(offsetof(ArgmaxParams, y) == 24, "");

struct DrawRow {
    u32 *occurrences;
    u32 *biases;
    u32 *forbidden;
    u32 *mask;
    u32 occurrences_count;
    u32 biases_count;
    u32 forbidden_count;
    u32 position;
    u32 seed_low;
    u32 seed_high;
    float repeat;
    float frequency;
    float presence;
    float inverse_temperature;
    float sum_temperature;
    u32 is_greedy;
    u32 most;
    u32 filters_count;
    u32 kinds[3];
    float values[3];
    u32 sums;
    u32 whole;
};
static_assert(sizeof(DrawRow) == 120, "");
static_assert(offsetof(DrawRow, occurrences) == 0, "");
static_assert(offsetof(DrawRow, biases) == 8, "");
static_assert(offsetof(DrawRow, forbidden) == 16, "");
static_assert(offsetof(DrawRow, mask) == 24, "");
static_assert(offsetof(DrawRow, occurrences_count) == 32, "");
static_assert(offsetof(DrawRow, biases_count) == 36, "");
static_assert(offsetof(DrawRow, forbidden_count) == 40, "");
static_assert(offsetof(DrawRow, position) == 44, "");
static_assert(offsetof(DrawRow, seed_low) == 48, "");
static_assert(offsetof(DrawRow, seed_high) == 52, "");
static_assert(offsetof(DrawRow, repeat) == 56, "");
static_assert(offsetof(DrawRow, frequency) == 60, "");
static_assert(offsetof(DrawRow, presence) == 64, "");
static_assert(offsetof(DrawRow, inverse_temperature) == 68, "");
static_assert(offsetof(DrawRow, sum_temperature) == 72, "");
static_assert(offsetof(DrawRow, is_greedy) == 76, "");
static_assert(offsetof(DrawRow, most) == 80, "");
static_assert(offsetof(DrawRow, filters_count) == 84, "");
static_assert(offsetof(DrawRow, kinds) == 88, "");
static_assert(offsetof(DrawRow, values) == 100, "");
static_assert(offsetof(DrawRow, sums) == 112, "");
static_assert(offsetof(DrawRow, whole) == 116, "");

struct HandOn {
    u32 *state;
    u64 *shown;
    u64 *cancel;
    u32 *stops;
    u32 stops_count;
    u32 reserved;
};
static_assert(sizeof(HandOn) == 40, "");
static_assert(offsetof(HandOn, state) == 0, "");
static_assert(offsetof(HandOn, shown) == 8, "");
static_assert(offsetof(HandOn, cancel) == 16, "");
static_assert(offsetof(HandOn, stops) == 24, "");
static_assert(offsetof(HandOn, stops_count) == 32, "");
static_assert(offsetof(HandOn, reserved) == 36, "");

struct DrawParams {
    Rows x;
    DrawRow *rows;
    u64 *largest;
    u64 *scores;
    u64 *listed;
    float *sums;
    u32 *counts;
    u32 *y;
    HandOn hand_on;
};
static_assert(sizeof(DrawParams) == 120, "");
static_assert(offsetof(DrawParams, x) == 0, "");
static_assert(offsetof(DrawParams, rows) == 24, "");
static_assert(offsetof(DrawParams, largest) == 32, "");
static_assert(offsetof(DrawParams, scores) == 40, "");
static_assert(offsetof(DrawParams, listed) == 48, "");
static_assert(offsetof(DrawParams, sums) == 56, "");
static_assert(offsetof(DrawParams, counts) == 64, "");
static_assert(offsetof(DrawParams, y) == 72, "");
static_assert(offsetof(DrawParams, hand_on) == 80, "");

struct CrossEntropyParams {
    Rows x;
    u32 *targets;
    float *y;
    Fault *fault;
};
static_assert(sizeof(CrossEntropyParams) == 48, "");
static_assert(offsetof(CrossEntropyParams, x) == 0, "");
static_assert(offsetof(CrossEntropyParams, targets) == 24, "");
static_assert(offsetof(CrossEntropyParams, y) == 32, "");
static_assert(offsetof(CrossEntropyParams, fault) == 40, "");

struct UnfoldParams {
    float *x;
    float *y;
    StepRows step;
    u32 factor;
    u32 channels;
    u32 taps;
    u32 stride;
    u32 padding;
    u32 out_rows;
};
static_assert(sizeof(UnfoldParams) == 72, "");
static_assert(offsetof(UnfoldParams, x) == 0, "");
static_assert(offsetof(UnfoldParams, y) == 8, "");
static_assert(offsetof(UnfoldParams, step) == 16, "");
static_assert(offsetof(UnfoldParams, factor) == 48, "");
static_assert(offsetof(UnfoldParams, channels) == 52, "");
static_assert(offsetof(UnfoldParams, taps) == 56, "");
static_assert(offsetof(UnfoldParams, stride) == 60, "");
static_assert(offsetof(UnfoldParams, padding) == 64, "");
static_assert(offsetof(UnfoldParams, out_rows) == 68, "");

struct MeanPoolParams {
    float *x;
    float *y;
    StepRows step;
    u32 factor;
    u32 width;
};
static_assert(sizeof(MeanPoolParams) == 56, "");
static_assert(offsetof(MeanPoolParams, x) == 0, "");
static_assert(offsetof(MeanPoolParams, y) == 8, "");
static_assert(offsetof(MeanPoolParams, step) == 16, "");
static_assert(offsetof(MeanPoolParams, factor) == 48, "");
static_assert(offsetof(MeanPoolParams, width) == 52, "");

struct IndexAddParams {
    float *base;
    u32 *indices;
    float *x;
    float *y;
    Fault *fault;
    u32 base_rows;
    u32 rows;
    u32 width;
};
static_assert(sizeof(IndexAddParams) == 56, "");
static_assert(offsetof(IndexAddParams, base) == 0, "");
static_assert(offsetof(IndexAddParams, indices) == 8, "");
static_assert(offsetof(IndexAddParams, x) == 16, "");
static_assert(offsetof(IndexAddParams, y) == 24, "");
static_assert(offsetof(IndexAddParams, fault) == 32, "");
static_assert(offsetof(IndexAddParams, base_rows) == 40, "");
static_assert(offsetof(IndexAddParams, rows) == 44, "");
static_assert(offsetof(IndexAddParams, width) == 48, "");

struct StrayParams {
    u32 *at;
};
static_assert(sizeof(StrayParams) == 8, "");
static_assert(offsetof(StrayParams, at) == 0, "");

struct LowRankMatrix {
    u8 *data;
    u32 rows;
    u32 inputs;
    u32 subs;
    float factor;
};
static_assert(sizeof(LowRankMatrix) == 24, "");
static_assert(offsetof(LowRankMatrix, data) == 0, "");
static_assert(offsetof(LowRankMatrix, rows) == 8, "");
static_assert(offsetof(LowRankMatrix, inputs) == 12, "");
static_assert(offsetof(LowRankMatrix, subs) == 16, "");
static_assert(offsetof(LowRankMatrix, factor) == 20, "");

struct LowRankSpans {
    u32 tiles_end[4];
    u32 first[4];
    u32 end[4];
};
static_assert(sizeof(LowRankSpans) == 48, "");
static_assert(offsetof(LowRankSpans, tiles_end) == 0, "");
static_assert(offsetof(LowRankSpans, first) == 16, "");
static_assert(offsetof(LowRankSpans, end) == 32, "");

struct Addend {
    float *ranks;
    u32 *users;
    u32 *x_ready;
    LowRankMatrix b;
    LowRankSpans spans;
    u32 rows;
    u32 parts;
    u32 form;
    float scale;
};
static_assert(sizeof(Addend) == 112, "");
static_assert(offsetof(Addend, ranks) == 0, "");
static_assert(offsetof(Addend, users) == 8, "");
static_assert(offsetof(Addend, x_ready) == 16, "");
static_assert(offsetof(Addend, b) == 24, "");
static_assert(offsetof(Addend, spans) == 48, "");
static_assert(offsetof(Addend, rows) == 96, "");
static_assert(offsetof(Addend, parts) == 100, "");
static_assert(offsetof(Addend, form) == 104, "");
static_assert(offsetof(Addend, scale) == 108, "");

struct LowRankRowsParams {
    Rows x;
    Norm norm;
    u8 *panels;
    float *row_scale;
    LowRankMatrix a;
    Rows factors;
    Rows residual;
    Addend addend;
    float *y;
    u32 panel_subs;
    u32 is_small;
};
static_assert(sizeof(LowRankRowsParams) == 256, "");
static_assert(offsetof(LowRankRowsParams, x) == 0, "");
static_assert(offsetof(LowRankRowsParams, norm) == 24, "");
static_assert(offsetof(LowRankRowsParams, panels) == 40, "");
static_assert(offsetof(LowRankRowsParams, row_scale) == 48, "");
static_assert(offsetof(LowRankRowsParams, a) == 56, "");
static_assert(offsetof(LowRankRowsParams, factors) == 80, "");
static_assert(offsetof(LowRankRowsParams, residual) == 104, "");
static_assert(offsetof(LowRankRowsParams, addend) == 128, "");
static_assert(offsetof(LowRankRowsParams, y) == 240, "");
static_assert(offsetof(LowRankRowsParams, panel_subs) == 248, "");
static_assert(offsetof(LowRankRowsParams, is_small) == 252, "");

struct ChosenRanksParams {
    Rows factors;
    float *narrow;
    float *y;
    u32 rows;
};
static_assert(sizeof(ChosenRanksParams) == 48, "");
static_assert(offsetof(ChosenRanksParams, factors) == 0, "");
static_assert(offsetof(ChosenRanksParams, narrow) == 24, "");
static_assert(offsetof(ChosenRanksParams, y) == 32, "");
static_assert(offsetof(ChosenRanksParams, rows) == 40, "");

struct RankPanelsParams {
    Rows factors;
    float *narrow;
    float *row_scale;
    u8 *panels;
    float *ratios;
    u32 subs;
};
static_assert(sizeof(RankPanelsParams) == 64, "");
static_assert(offsetof(RankPanelsParams, factors) == 0, "");
static_assert(offsetof(RankPanelsParams, narrow) == 24, "");
static_assert(offsetof(RankPanelsParams, row_scale) == 32, "");
static_assert(offsetof(RankPanelsParams, panels) == 40, "");
static_assert(offsetof(RankPanelsParams, ratios) == 48, "");
static_assert(offsetof(RankPanelsParams, subs) == 56, "");

struct Gates {
    float *largest;
    float *row_scale;
    float *of_a;
    float *of_b;
    Rows factors;
};
static_assert(sizeof(Gates) == 56, "");
static_assert(offsetof(Gates, largest) == 0, "");
static_assert(offsetof(Gates, row_scale) == 8, "");
static_assert(offsetof(Gates, of_a) == 16, "");
static_assert(offsetof(Gates, of_b) == 24, "");
static_assert(offsetof(Gates, factors) == 32, "");

struct PanelsParams {
    Rows x;
    Rows tail;
    Norm norm;
    Gates gates;
    u8 *panels;
    float *row_scale;
    u32 rows;
    u32 inputs;
    u32 subs;
};
static_assert(sizeof(PanelsParams) == 152, "");
static_assert(offsetof(PanelsParams, x) == 0, "");
static_assert(offsetof(PanelsParams, tail) == 24, "");
static_assert(offsetof(PanelsParams, norm) == 48, "");
static_assert(offsetof(PanelsParams, gates) == 64, "");
static_assert(offsetof(PanelsParams, panels) == 120, "");
static_assert(offsetof(PanelsParams, row_scale) == 128, "");
static_assert(offsetof(PanelsParams, rows) == 136, "");
static_assert(offsetof(PanelsParams, inputs) == 140, "");
static_assert(offsetof(PanelsParams, subs) == 144, "");

struct GemmTail {
    u8 *panels;
    u8 *tiles;
    float *factors;
    float *ratios;
    u32 subs;
    float raise;
    float factor;
};
static_assert(sizeof(GemmTail) == 48, "");
static_assert(offsetof(GemmTail, panels) == 0, "");
static_assert(offsetof(GemmTail, tiles) == 8, "");
static_assert(offsetof(GemmTail, factors) == 16, "");
static_assert(offsetof(GemmTail, ratios) == 24, "");
static_assert(offsetof(GemmTail, subs) == 32, "");
static_assert(offsetof(GemmTail, raise) == 36, "");
static_assert(offsetof(GemmTail, factor) == 40, "");

struct GemmParams {
    u8 *weights;
    u8 *panels;
    float *row_scale;
    float *partial;
    u32 rows;
    u32 tiles;
    u32 subs;
    u32 splits;
    float raise;
    float scale;
    u32 panel_subs;
    GemmTail tail;
    Outputs out;
    Addend addend;
};
static_assert(sizeof(GemmParams) == 312, "");
static_assert(offsetof(GemmParams, weights) == 0, "");
static_assert(offsetof(GemmParams, panels) == 8, "");
static_assert(offsetof(GemmParams, row_scale) == 16, "");
static_assert(offsetof(GemmParams, partial) == 24, "");
static_assert(offsetof(GemmParams, rows) == 32, "");
static_assert(offsetof(GemmParams, tiles) == 36, "");
static_assert(offsetof(GemmParams, subs) == 40, "");
static_assert(offsetof(GemmParams, splits) == 44, "");
static_assert(offsetof(GemmParams, raise) == 48, "");
static_assert(offsetof(GemmParams, scale) == 52, "");
static_assert(offsetof(GemmParams, panel_subs) == 56, "");
static_assert(offsetof(GemmParams, tail) == 64, "");
static_assert(offsetof(GemmParams, out) == 112, "");
static_assert(offsetof(GemmParams, addend) == 200, "");

struct GemmSumParams {
    float *partial;
    u32 rows;
    u32 tiles;
    u32 splits;
    Outputs out;
};
static_assert(sizeof(GemmSumParams) == 112, "");
static_assert(offsetof(GemmSumParams, partial) == 0, "");
static_assert(offsetof(GemmSumParams, rows) == 8, "");
static_assert(offsetof(GemmSumParams, tiles) == 12, "");
static_assert(offsetof(GemmSumParams, splits) == 16, "");
static_assert(offsetof(GemmSumParams, out) == 24, "");

struct GemmSumsPanelsParams {
    GemmSumParams sums;
    Norm norm;
    Gates gates;
    u8 *panels;
    float *row_scale;
    u32 subs;
};
static_assert(sizeof(GemmSumsPanelsParams) == 208, "");
static_assert(offsetof(GemmSumsPanelsParams, sums) == 0, "");
static_assert(offsetof(GemmSumsPanelsParams, norm) == 112, "");
static_assert(offsetof(GemmSumsPanelsParams, gates) == 128, "");
static_assert(offsetof(GemmSumsPanelsParams, panels) == 184, "");
static_assert(offsetof(GemmSumsPanelsParams, row_scale) == 192, "");
static_assert(offsetof(GemmSumsPanelsParams, subs) == 200, "");

struct RouterTopKParams {
    Rows logits;
    u32 *experts;
    float *weights;
    u32 k;
    u32 of_chosen;
};
static_assert(sizeof(RouterTopKParams) == 48, "");
static_assert(offsetof(RouterTopKParams, logits) == 0, "");
static_assert(offsetof(RouterTopKParams, experts) == 24, "");
static_assert(offsetof(RouterTopKParams, weights) == 32, "");
static_assert(offsetof(RouterTopKParams, k) == 40, "");
static_assert(offsetof(RouterTopKParams, of_chosen) == 44, "");

struct RouterScoresParams {
    Rows logits;
    float *bias;
    u32 *experts;
    float *weights;
    u32 k;
    u32 scores;
    u32 compares_scores;
    u32 groups;
    u32 kept;
    u32 top_two;
    u32 normalises;
    float eps;
    float scale;
};
static_assert(sizeof(RouterScoresParams) == 88, "");
static_assert(offsetof(RouterScoresParams, logits) == 0, "");
static_assert(offsetof(RouterScoresParams, bias) == 24, "");
static_assert(offsetof(RouterScoresParams, experts) == 32, "");
static_assert(offsetof(RouterScoresParams, weights) == 40, "");
static_assert(offsetof(RouterScoresParams, k) == 48, "");
static_assert(offsetof(RouterScoresParams, scores) == 52, "");
static_assert(offsetof(RouterScoresParams, compares_scores) == 56, "");
static_assert(offsetof(RouterScoresParams, groups) == 60, "");
static_assert(offsetof(RouterScoresParams, kept) == 64, "");
static_assert(offsetof(RouterScoresParams, top_two) == 68, "");
static_assert(offsetof(RouterScoresParams, normalises) == 72, "");
static_assert(offsetof(RouterScoresParams, eps) == 76, "");
static_assert(offsetof(RouterScoresParams, scale) == 80, "");

struct ExpertLinearParams {
    Rows x;
    StoredWeight w;
    u32 *experts;
    float *y;
    float *bias;
    Fault *fault;
    u32 slots;
    u32 chosen;
    u32 own_rows;
    u32 experts_count;
    u32 outputs;
};
static_assert(sizeof(ExpertLinearParams) == 104, "");
static_assert(offsetof(ExpertLinearParams, x) == 0, "");
static_assert(offsetof(ExpertLinearParams, w) == 24, "");
static_assert(offsetof(ExpertLinearParams, experts) == 48, "");
static_assert(offsetof(ExpertLinearParams, y) == 56, "");
static_assert(offsetof(ExpertLinearParams, bias) == 64, "");
static_assert(offsetof(ExpertLinearParams, fault) == 72, "");
static_assert(offsetof(ExpertLinearParams, slots) == 80, "");
static_assert(offsetof(ExpertLinearParams, chosen) == 84, "");
static_assert(offsetof(ExpertLinearParams, own_rows) == 88, "");
static_assert(offsetof(ExpertLinearParams, experts_count) == 92, "");
static_assert(offsetof(ExpertLinearParams, outputs) == 96, "");

struct ExpertShares {
    u32 *experts;
    float *weights;
    float *scales;
    float factor;
    u32 chosen;
    u32 experts_count;
};
static_assert(sizeof(ExpertShares) == 40, "");
static_assert(offsetof(ExpertShares, experts) == 0, "");
static_assert(offsetof(ExpertShares, weights) == 8, "");
static_assert(offsetof(ExpertShares, scales) == 16, "");
static_assert(offsetof(ExpertShares, factor) == 24, "");
static_assert(offsetof(ExpertShares, chosen) == 28, "");
static_assert(offsetof(ExpertShares, experts_count) == 32, "");

struct ExpertGatesParams {
    Rows x;
    u32 *experts;
    float *y;
    u8 *weights[2];
    float factors[2];
    u32 slots;
    u32 chosen;
    u32 inputs;
    u32 subs;
    u32 tiles;
    u32 function;
    u32 experts_count;
    float alpha;
    float limit;
    float *biases[2];
};
static_assert(sizeof(ExpertGatesParams) == 120, "");
static_assert(offsetof(ExpertGatesParams, x) == 0, "");
static_assert(offsetof(ExpertGatesParams, experts) == 24, "");
static_assert(offsetof(ExpertGatesParams, y) == 32, "");
static_assert(offsetof(ExpertGatesParams, weights) == 40, "");
static_assert(offsetof(ExpertGatesParams, factors) == 56, "");
static_assert(offsetof(ExpertGatesParams, slots) == 64, "");
static_assert(offsetof(ExpertGatesParams, chosen) == 68, "");
static_assert(offsetof(ExpertGatesParams, inputs) == 72, "");
static_assert(offsetof(ExpertGatesParams, subs) == 76, "");
static_assert(offsetof(ExpertGatesParams, tiles) == 80, "");
static_assert(offsetof(ExpertGatesParams, function) == 84, "");
static_assert(offsetof(ExpertGatesParams, experts_count) == 88, "");
static_assert(offsetof(ExpertGatesParams, alpha) == 92, "");
static_assert(offsetof(ExpertGatesParams, limit) == 96, "");
static_assert(offsetof(ExpertGatesParams, biases) == 104, "");

struct ExpertDownParams {
    float *x;
    u8 *weights;
    ExpertShares shares;
    Rows residual;
    float *y;
    float factor;
    u32 rows;
    u32 inputs;
    u32 subs;
    u32 tiles;
    float *bias;
};
static_assert(sizeof(ExpertDownParams) == 120, "");
static_assert(offsetof(ExpertDownParams, x) == 0, "");
static_assert(offsetof(ExpertDownParams, weights) == 8, "");
static_assert(offsetof(ExpertDownParams, shares) == 16, "");
static_assert(offsetof(ExpertDownParams, residual) == 56, "");
static_assert(offsetof(ExpertDownParams, y) == 80, "");
static_assert(offsetof(ExpertDownParams, factor) == 88, "");
static_assert(offsetof(ExpertDownParams, rows) == 92, "");
static_assert(offsetof(ExpertDownParams, inputs) == 96, "");
static_assert(offsetof(ExpertDownParams, subs) == 100, "");
static_assert(offsetof(ExpertDownParams, tiles) == 104, "");
static_assert(offsetof(ExpertDownParams, bias) == 112, "");

struct ExpertPlan {
    u32 *count;
    u32 *places;
    u32 *slots;
    u32 *blocks;
};
static_assert(sizeof(ExpertPlan) == 32, "");
static_assert(offsetof(ExpertPlan, count) == 0, "");
static_assert(offsetof(ExpertPlan, places) == 8, "");
static_assert(offsetof(ExpertPlan, slots) == 16, "");
static_assert(offsetof(ExpertPlan, blocks) == 24, "");

struct ExpertPlanParams {
    u32 *experts;
    ExpertPlan plan;
    u32 slots;
    u32 experts_count;
    u32 block_rows;
    u32 aligned;
};
static_assert(sizeof(ExpertPlanParams) == 56, "");
static_assert(offsetof(ExpertPlanParams, experts) == 0, "");
static_assert(offsetof(ExpertPlanParams, plan) == 8, "");
static_assert(offsetof(ExpertPlanParams, slots) == 40, "");
static_assert(offsetof(ExpertPlanParams, experts_count) == 44, "");
static_assert(offsetof(ExpertPlanParams, block_rows) == 48, "");
static_assert(offsetof(ExpertPlanParams, aligned) == 52, "");

struct ExpertPanelsParams {
    Rows x;
    u32 *places;
    u8 *panels;
    float *row_scale;
    u8 *gated;
    float *gated_scale;
    float *largest[2];
    u32 chosen;
    u32 inputs;
    u32 subs;
    u32 gated_width;
    u32 gated_subs;
};
static_assert(sizeof(ExpertPanelsParams) == 104, "");
static_assert(offsetof(ExpertPanelsParams, x) == 0, "");
static_assert(offsetof(ExpertPanelsParams, places) == 24, "");
static_assert(offsetof(ExpertPanelsParams, panels) == 32, "");
static_assert(offsetof(ExpertPanelsParams, row_scale) == 40, "");
static_assert(offsetof(ExpertPanelsParams, gated) == 48, "");
static_assert(offsetof(ExpertPanelsParams, gated_scale) == 56, "");
static_assert(offsetof(ExpertPanelsParams, largest) == 64, "");
static_assert(offsetof(ExpertPanelsParams, chosen) == 80, "");
static_assert(offsetof(ExpertPanelsParams, inputs) == 84, "");
static_assert(offsetof(ExpertPanelsParams, subs) == 88, "");
static_assert(offsetof(ExpertPanelsParams, gated_width) == 92, "");
static_assert(offsetof(ExpertPanelsParams, gated_subs) == 96, "");

struct ExpertGemmParams {
    u8 *weights[2];
    float raise[2];
    float scale[2];
    u8 *panels;
    float *row_scale;
    ExpertPlan plan;
    float *y;
    u8 *gated;
    float *gated_scale;
    u32 tiles;
    u32 subs;
    u32 gated_subs;
    u32 function;
};
static_assert(sizeof(ExpertGemmParams) == 120, "");
static_assert(offsetof(ExpertGemmParams, weights) == 0, "");
static_assert(offsetof(ExpertGemmParams, raise) == 16, "");
static_assert(offsetof(ExpertGemmParams, scale) == 24, "");
static_assert(offsetof(ExpertGemmParams, panels) == 32, "");
static_assert(offsetof(ExpertGemmParams, row_scale) == 40, "");
static_assert(offsetof(ExpertGemmParams, plan) == 48, "");
static_assert(offsetof(ExpertGemmParams, y) == 80, "");
static_assert(offsetof(ExpertGemmParams, gated) == 88, "");
static_assert(offsetof(ExpertGemmParams, gated_scale) == 96, "");
static_assert(offsetof(ExpertGemmParams, tiles) == 104, "");
static_assert(offsetof(ExpertGemmParams, subs) == 108, "");
static_assert(offsetof(ExpertGemmParams, gated_subs) == 112, "");
static_assert(offsetof(ExpertGemmParams, function) == 116, "");

struct HeadLinearParams {
    Rows x;
    StoredWeight w;
    float *y;
    u32 rows;
    u32 heads;
    u32 outputs;
};
static_assert(sizeof(HeadLinearParams) == 72, "");
static_assert(offsetof(HeadLinearParams, x) == 0, "");
static_assert(offsetof(HeadLinearParams, w) == 24, "");
static_assert(offsetof(HeadLinearParams, y) == 48, "");
static_assert(offsetof(HeadLinearParams, rows) == 56, "");
static_assert(offsetof(HeadLinearParams, heads) == 60, "");
static_assert(offsetof(HeadLinearParams, outputs) == 64, "");

struct HeadTilesParams {
    Rows x;
    u8 *weights;
    float *y;
    u32 rows;
    u32 heads;
    u32 inputs;
    u32 subs;
    u32 tiles;
    u32 warps;
    float factor;
};
static_assert(sizeof(HeadTilesParams) == 72, "");
static_assert(offsetof(HeadTilesParams, x) == 0, "");
static_assert(offsetof(HeadTilesParams, weights) == 24, "");
static_assert(offsetof(HeadTilesParams, y) == 32, "");
static_assert(offsetof(HeadTilesParams, rows) == 40, "");
static_assert(offsetof(HeadTilesParams, heads) == 44, "");
static_assert(offsetof(HeadTilesParams, inputs) == 48, "");
static_assert(offsetof(HeadTilesParams, subs) == 52, "");
static_assert(offsetof(HeadTilesParams, tiles) == 56, "");
static_assert(offsetof(HeadTilesParams, warps) == 60, "");
static_assert(offsetof(HeadTilesParams, factor) == 64, "");

struct HeadPanelsParams {
    Rows x;
    u8 *panels;
    float *row_scale;
    ExpertPlan plan;
    u32 rows;
    u32 heads;
    u32 inputs;
    u32 subs;
    u32 block_rows;
    u32 aligned;
};
static_assert(sizeof(HeadPanelsParams) == 96, "");
static_assert(offsetof(HeadPanelsParams, x) == 0, "");
static_assert(offsetof(HeadPanelsParams, panels) == 24, "");
static_assert(offsetof(HeadPanelsParams, row_scale) == 32, "");
static_assert(offsetof(HeadPanelsParams, plan) == 40, "");
static_assert(offsetof(HeadPanelsParams, rows) == 72, "");
static_assert(offsetof(HeadPanelsParams, heads) == 76, "");
static_assert(offsetof(HeadPanelsParams, inputs) == 80, "");
static_assert(offsetof(HeadPanelsParams, subs) == 84, "");
static_assert(offsetof(HeadPanelsParams, block_rows) == 88, "");
static_assert(offsetof(HeadPanelsParams, aligned) == 92, "");

struct ExpertSumParams {
    float *x;
    ExpertShares shares;
    Rows residual;
    float *y;
    u32 rows;
    u32 width;
};
static_assert(sizeof(ExpertSumParams) == 88, "");
static_assert(offsetof(ExpertSumParams, x) == 0, "");
static_assert(offsetof(ExpertSumParams, shares) == 8, "");
static_assert(offsetof(ExpertSumParams, residual) == 48, "");
static_assert(offsetof(ExpertSumParams, y) == 72, "");
static_assert(offsetof(ExpertSumParams, rows) == 80, "");
static_assert(offsetof(ExpertSumParams, width) == 84, "");

struct RopeParams {
    float *x;
    u32 *positions;
    float *frequencies;
    float *y;
    u32 rows;
    u32 x_stride;
    u32 y_stride;
    u32 heads;
    u32 head_dim;
    u32 rotary_dim;
    u32 interleaved;
    float magnitude;
};
static_assert(sizeof(RopeParams) == 64, "");
static_assert(offsetof(RopeParams, x) == 0, "");
static_assert(offsetof(RopeParams, positions) == 8, "");
static_assert(offsetof(RopeParams, frequencies) == 16, "");
static_assert(offsetof(RopeParams, y) == 24, "");
static_assert(offsetof(RopeParams, rows) == 32, "");
static_assert(offsetof(RopeParams, x_stride) == 36, "");
static_assert(offsetof(RopeParams, y_stride) == 40, "");
static_assert(offsetof(RopeParams, heads) == 44, "");
static_assert(offsetof(RopeParams, head_dim) == 48, "");
static_assert(offsetof(RopeParams, rotary_dim) == 52, "");
static_assert(offsetof(RopeParams, interleaved) == 56, "");
static_assert(offsetof(RopeParams, magnitude) == 60, "");

struct RotateKeysParams {
    u64 *pages;
    float *angles;
    u64 offset_bytes;
    u32 pages_count;
    u32 kv_heads;
    u32 head_dim;
    u32 head_bytes;
    u32 rotary_dim;
    u32 interleaved;
};
static_assert(sizeof(RotateKeysParams) == 48, "");
static_assert(offsetof(RotateKeysParams, pages) == 0, "");
static_assert(offsetof(RotateKeysParams, angles) == 8, "");
static_assert(offsetof(RotateKeysParams, offset_bytes) == 16, "");
static_assert(offsetof(RotateKeysParams, pages_count) == 24, "");
static_assert(offsetof(RotateKeysParams, kv_heads) == 28, "");
static_assert(offsetof(RotateKeysParams, head_dim) == 32, "");
static_assert(offsetof(RotateKeysParams, head_bytes) == 36, "");
static_assert(offsetof(RotateKeysParams, rotary_dim) == 40, "");
static_assert(offsetof(RotateKeysParams, interleaved) == 44, "");

struct RotationsParams {
    u32 *positions;
    float *frequencies;
    float *table;
    u32 rows;
    u32 pairs;
    float magnitude;
};
static_assert(sizeof(RotationsParams) == 40, "");
static_assert(offsetof(RotationsParams, positions) == 0, "");
static_assert(offsetof(RotationsParams, frequencies) == 8, "");
static_assert(offsetof(RotationsParams, table) == 16, "");
static_assert(offsetof(RotationsParams, rows) == 24, "");
static_assert(offsetof(RotationsParams, pairs) == 28, "");
static_assert(offsetof(RotationsParams, magnitude) == 32, "");

struct HeadsParams {
    float *q;
    float *k;
    float *v;
    float *y;
    float *rotations;
    Norm q_norm;
    Norm k_norm;
    Norm v_norm;
    StepRows step;
    CachePages cache;
    u32 q_stride;
    u32 k_stride;
    u32 v_stride;
    u32 heads;
    u32 rotary_dim;
    u32 interleaved;
    u32 threads;
    u32 parts;
    u32 part_stride;
    float *q_bias;
    float *k_bias;
    float *v_bias;
};
static_assert(sizeof(HeadsParams) == 232, "");
static_assert(offsetof(HeadsParams, q) == 0, "");
static_assert(offsetof(HeadsParams, k) == 8, "");
static_assert(offsetof(HeadsParams, v) == 16, "");
static_assert(offsetof(HeadsParams, y) == 24, "");
static_assert(offsetof(HeadsParams, rotations) == 32, "");
static_assert(offsetof(HeadsParams, q_norm) == 40, "");
static_assert(offsetof(HeadsParams, k_norm) == 56, "");
static_assert(offsetof(HeadsParams, v_norm) == 72, "");
static_assert(offsetof(HeadsParams, step) == 88, "");
static_assert(offsetof(HeadsParams, cache) == 120, "");
static_assert(offsetof(HeadsParams, q_stride) == 168, "");
static_assert(offsetof(HeadsParams, k_stride) == 172, "");
static_assert(offsetof(HeadsParams, v_stride) == 176, "");
static_assert(offsetof(HeadsParams, heads) == 180, "");
static_assert(offsetof(HeadsParams, rotary_dim) == 184, "");
static_assert(offsetof(HeadsParams, interleaved) == 188, "");
static_assert(offsetof(HeadsParams, threads) == 192, "");
static_assert(offsetof(HeadsParams, parts) == 196, "");
static_assert(offsetof(HeadsParams, part_stride) == 200, "");
static_assert(offsetof(HeadsParams, q_bias) == 208, "");
static_assert(offsetof(HeadsParams, k_bias) == 216, "");
static_assert(offsetof(HeadsParams, v_bias) == 224, "");

struct CacheWriteParams {
    float *k;
    float *v;
    StepRows step;
    CachePages cache;
    u32 k_stride;
    u32 v_stride;
};
static_assert(sizeof(CacheWriteParams) == 104, "");
static_assert(offsetof(CacheWriteParams, k) == 0, "");
static_assert(offsetof(CacheWriteParams, v) == 8, "");
static_assert(offsetof(CacheWriteParams, step) == 16, "");
static_assert(offsetof(CacheWriteParams, cache) == 48, "");
static_assert(offsetof(CacheWriteParams, k_stride) == 96, "");
static_assert(offsetof(CacheWriteParams, v_stride) == 100, "");

struct AttentionParams {
    float *q;
    float *k;
    float *v;
    float *sinks;
    float *y;
    StepRows step;
    CachePages cache;
    u32 q_stride;
    u32 k_stride;
    u32 v_stride;
    u32 heads;
    u32 kv_heads;
    u32 head_dim;
    u32 value_dim;
    u32 source;
    float scale;
    u32 has_softcap;
    float softcap;
    u32 has_window;
    u32 window;
};
static_assert(sizeof(AttentionParams) == 176, "");
static_assert(offsetof(AttentionParams, q) == 0, "");
static_assert(offsetof(AttentionParams, k) == 8, "");
static_assert(offsetof(AttentionParams, v) == 16, "");
static_assert(offsetof(AttentionParams, sinks) == 24, "");
static_assert(offsetof(AttentionParams, y) == 32, "");
static_assert(offsetof(AttentionParams, step) == 40, "");
static_assert(offsetof(AttentionParams, cache) == 72, "");
static_assert(offsetof(AttentionParams, q_stride) == 120, "");
static_assert(offsetof(AttentionParams, k_stride) == 124, "");
static_assert(offsetof(AttentionParams, v_stride) == 128, "");
static_assert(offsetof(AttentionParams, heads) == 132, "");
static_assert(offsetof(AttentionParams, kv_heads) == 136, "");
static_assert(offsetof(AttentionParams, head_dim) == 140, "");
static_assert(offsetof(AttentionParams, value_dim) == 144, "");
static_assert(offsetof(AttentionParams, source) == 148, "");
static_assert(offsetof(AttentionParams, scale) == 152, "");
static_assert(offsetof(AttentionParams, has_softcap) == 156, "");
static_assert(offsetof(AttentionParams, softcap) == 160, "");
static_assert(offsetof(AttentionParams, has_window) == 164, "");
static_assert(offsetof(AttentionParams, window) == 168, "");

struct PagesParams {
    AttentionParams attention;
    float *partial;
    u32 first_task;
    u32 pages;
};
static_assert(sizeof(PagesParams) == 192, "");
static_assert(offsetof(PagesParams, attention) == 0, "");
static_assert(offsetof(PagesParams, partial) == 176, "");
static_assert(offsetof(PagesParams, first_task) == 184, "");
static_assert(offsetof(PagesParams, pages) == 188, "");

struct PartsParams {
    AttentionParams attention;
    float *partial;
    u32 *arrivals;
    u8 *panels;
    float *row_scale;
    u32 subs;
    u32 first_task;
    u32 span;
};
static_assert(sizeof(PartsParams) == 224, "");
static_assert(offsetof(PartsParams, attention) == 0, "");
static_assert(offsetof(PartsParams, partial) == 176, "");
static_assert(offsetof(PartsParams, arrivals) == 184, "");
static_assert(offsetof(PartsParams, panels) == 192, "");
static_assert(offsetof(PartsParams, row_scale) == 200, "");
static_assert(offsetof(PartsParams, subs) == 208, "");
static_assert(offsetof(PartsParams, first_task) == 212, "");
static_assert(offsetof(PartsParams, span) == 216, "");

struct FlashParams {
    float *q;
    float *sinks;
    float *y;
    StepRows step;
    CachePages cache;
    u32 q_stride;
    u32 heads;
    u32 fewest_rows;
    u32 window;
    float scale;
    float softcap;
};
static_assert(sizeof(FlashParams) == 128, "");
static_assert(offsetof(FlashParams, q) == 0, "");
static_assert(offsetof(FlashParams, sinks) == 8, "");
static_assert(offsetof(FlashParams, y) == 16, "");
static_assert(offsetof(FlashParams, step) == 24, "");
static_assert(offsetof(FlashParams, cache) == 56, "");
static_assert(offsetof(FlashParams, q_stride) == 104, "");
static_assert(offsetof(FlashParams, heads) == 108, "");
static_assert(offsetof(FlashParams, fewest_rows) == 112, "");
static_assert(offsetof(FlashParams, window) == 116, "");
static_assert(offsetof(FlashParams, scale) == 120, "");
static_assert(offsetof(FlashParams, softcap) == 124, "");

struct UnaryGradientParams {
    Strided x;
    Strided t;
    float *y;
    u32 dims[4];
    u32 count;
    u32 function;
    float a;
    float b;
};
static_assert(sizeof(UnaryGradientParams) == 88, "");
static_assert(offsetof(UnaryGradientParams, x) == 0, "");
static_assert(offsetof(UnaryGradientParams, t) == 24, "");
static_assert(offsetof(UnaryGradientParams, y) == 48, "");
static_assert(offsetof(UnaryGradientParams, dims) == 56, "");
static_assert(offsetof(UnaryGradientParams, count) == 72, "");
static_assert(offsetof(UnaryGradientParams, function) == 76, "");
static_assert(offsetof(UnaryGradientParams, a) == 80, "");
static_assert(offsetof(UnaryGradientParams, b) == 84, "");

struct NormGradientParams {
    Rows x;
    Rows t;
    Rows residual;
    float *w;
    float *y;
    u8 *panels;
    float *row_scale;
    float eps;
    u32 is_layer;
    u32 subs;
};
static_assert(sizeof(NormGradientParams) == 120, "");
static_assert(offsetof(NormGradientParams, x) == 0, "");
static_assert(offsetof(NormGradientParams, t) == 24, "");
static_assert(offsetof(NormGradientParams, residual) == 48, "");
static_assert(offsetof(NormGradientParams, w) == 72, "");
static_assert(offsetof(NormGradientParams, y) == 80, "");
static_assert(offsetof(NormGradientParams, panels) == 88, "");
static_assert(offsetof(NormGradientParams, row_scale) == 96, "");
static_assert(offsetof(NormGradientParams, eps) == 104, "");
static_assert(offsetof(NormGradientParams, is_layer) == 108, "");
static_assert(offsetof(NormGradientParams, subs) == 112, "");

struct GatedParams {
    float *gate;
    float *up;
    float *d;
    float *y;
    float *up_y;
    u32 gate_stride;
    u32 up_stride;
    u32 d_stride;
    u32 y_stride;
    u32 width;
    u32 rows;
    u32 function;
};
static_assert(sizeof(GatedParams) == 72, "");
static_assert(offsetof(GatedParams, gate) == 0, "");
static_assert(offsetof(GatedParams, up) == 8, "");
static_assert(offsetof(GatedParams, d) == 16, "");
static_assert(offsetof(GatedParams, y) == 24, "");
static_assert(offsetof(GatedParams, up_y) == 32, "");
static_assert(offsetof(GatedParams, gate_stride) == 40, "");
static_assert(offsetof(GatedParams, up_stride) == 44, "");
static_assert(offsetof(GatedParams, d_stride) == 48, "");
static_assert(offsetof(GatedParams, y_stride) == 52, "");
static_assert(offsetof(GatedParams, width) == 56, "");
static_assert(offsetof(GatedParams, rows) == 60, "");
static_assert(offsetof(GatedParams, function) == 64, "");

struct GatedPanelsParams {
    GatedParams of;
    u8 *panels;
    float *row_scale;
    u32 subs;
    u32 first;
    u32 second;
};
static_assert(sizeof(GatedPanelsParams) == 104, "");
static_assert(offsetof(GatedPanelsParams, of) == 0, "");
static_assert(offsetof(GatedPanelsParams, panels) == 72, "");
static_assert(offsetof(GatedPanelsParams, row_scale) == 80, "");
static_assert(offsetof(GatedPanelsParams, subs) == 88, "");
static_assert(offsetof(GatedPanelsParams, first) == 92, "");
static_assert(offsetof(GatedPanelsParams, second) == 96, "");

struct LowRankParams {
    u8 *panels;
    float *row_scale;
    float *w;
    float *y;
    float *partial;
    u32 rows;
    u32 width;
    u32 subs;
    u32 columns;
    u32 w_k;
    u32 w_column;
    u32 y_row;
    u32 y_column;
    u32 part;
    u32 parts;
    float factor;
    float tail_factor;
};
static_assert(sizeof(LowRankParams) == 88, "");
static_assert(offsetof(LowRankParams, panels) == 0, "");
static_assert(offsetof(LowRankParams, row_scale) == 8, "");
static_assert(offsetof(LowRankParams, w) == 16, "");
static_assert(offsetof(LowRankParams, y) == 24, "");
static_assert(offsetof(LowRankParams, partial) == 32, "");
static_assert(offsetof(LowRankParams, rows) == 40, "");
static_assert(offsetof(LowRankParams, width) == 44, "");
static_assert(offsetof(LowRankParams, subs) == 48, "");
static_assert(offsetof(LowRankParams, columns) == 52, "");
static_assert(offsetof(LowRankParams, w_k) == 56, "");
static_assert(offsetof(LowRankParams, w_column) == 60, "");
static_assert(offsetof(LowRankParams, y_row) == 64, "");
static_assert(offsetof(LowRankParams, y_column) == 68, "");
static_assert(offsetof(LowRankParams, part) == 72, "");
static_assert(offsetof(LowRankParams, parts) == 76, "");
static_assert(offsetof(LowRankParams, factor) == 80, "");
static_assert(offsetof(LowRankParams, tail_factor) == 84, "");

struct TailTilesParams {
    float *matrix;
    u8 *to;
    float *factors;
    u32 row;
    u32 column;
    u32 columns;
    u32 tiles;
    u32 rows;
    u32 lower;
    u32 upper;
    u32 is_paired;
    float raise;
    float factor;
};
static_assert(sizeof(TailTilesParams) == 64, "");
static_assert(offsetof(TailTilesParams, matrix) == 0, "");
static_assert(offsetof(TailTilesParams, to) == 8, "");
static_assert(offsetof(TailTilesParams, factors) == 16, "");
static_assert(offsetof(TailTilesParams, row) == 24, "");
static_assert(offsetof(TailTilesParams, column) == 28, "");
static_assert(offsetof(TailTilesParams, columns) == 32, "");
static_assert(offsetof(TailTilesParams, tiles) == 36, "");
static_assert(offsetof(TailTilesParams, rows) == 40, "");
static_assert(offsetof(TailTilesParams, lower) == 44, "");
static_assert(offsetof(TailTilesParams, upper) == 48, "");
static_assert(offsetof(TailTilesParams, is_paired) == 52, "");
static_assert(offsetof(TailTilesParams, raise) == 56, "");
static_assert(offsetof(TailTilesParams, factor) == 60, "");

struct RowsSumsParams {
    float *from[2];
    float *to[2];
    u32 rows;
    u32 kv_heads;
    u32 sharing;
    u32 head_dim;
};
static_assert(sizeof(RowsSumsParams) == 48, "");
static_assert(offsetof(RowsSumsParams, from) == 0, "");
static_assert(offsetof(RowsSumsParams, to) == 16, "");
static_assert(offsetof(RowsSumsParams, rows) == 32, "");
static_assert(offsetof(RowsSumsParams, kv_heads) == 36, "");
static_assert(offsetof(RowsSumsParams, sharing) == 40, "");
static_assert(offsetof(RowsSumsParams, head_dim) == 44, "");

struct ExpertTransposedParams {
    float *y;
    StoredWeight w;
    u32 *experts;
    float *x;
    Fault *fault;
    u32 slots;
    u32 experts_count;
    u32 outputs;
};
static_assert(sizeof(ExpertTransposedParams) == 72, "");
static_assert(offsetof(ExpertTransposedParams, y) == 0, "");
static_assert(offsetof(ExpertTransposedParams, w) == 8, "");
static_assert(offsetof(ExpertTransposedParams, experts) == 32, "");
static_assert(offsetof(ExpertTransposedParams, x) == 40, "");
static_assert(offsetof(ExpertTransposedParams, fault) == 48, "");
static_assert(offsetof(ExpertTransposedParams, slots) == 56, "");
static_assert(offsetof(ExpertTransposedParams, experts_count) == 60, "");
static_assert(offsetof(ExpertTransposedParams, outputs) == 64, "");

struct ExpertGradientParams {
    float *dy;
    u32 *experts;
    float *x;
    float *dw;
    Fault *fault;
    u32 slots;
    u32 chosen;
    u32 own_rows;
    u32 experts_count;
    u32 outputs;
    u32 inputs;
};
static_assert(sizeof(ExpertGradientParams) == 64, "");
static_assert(offsetof(ExpertGradientParams, dy) == 0, "");
static_assert(offsetof(ExpertGradientParams, experts) == 8, "");
static_assert(offsetof(ExpertGradientParams, x) == 16, "");
static_assert(offsetof(ExpertGradientParams, dw) == 24, "");
static_assert(offsetof(ExpertGradientParams, fault) == 32, "");
static_assert(offsetof(ExpertGradientParams, slots) == 40, "");
static_assert(offsetof(ExpertGradientParams, chosen) == 44, "");
static_assert(offsetof(ExpertGradientParams, own_rows) == 48, "");
static_assert(offsetof(ExpertGradientParams, experts_count) == 52, "");
static_assert(offsetof(ExpertGradientParams, outputs) == 56, "");
static_assert(offsetof(ExpertGradientParams, inputs) == 60, "");

struct AttentionTangentParams {
    AttentionParams attention;
    float *tq;
    float *tk;
    float *tv;
    float *t_sinks;
};
static_assert(sizeof(AttentionTangentParams) == 208, "");
static_assert(offsetof(AttentionTangentParams, attention) == 0, "");
static_assert(offsetof(AttentionTangentParams, tq) == 176, "");
static_assert(offsetof(AttentionTangentParams, tk) == 184, "");
static_assert(offsetof(AttentionTangentParams, tv) == 192, "");
static_assert(offsetof(AttentionTangentParams, t_sinks) == 200, "");

struct SinkGradientParams {
    float *sinks;
    float *d_sinks;
    float *sums;
    u32 rows;
    u32 heads;
};
static_assert(sizeof(SinkGradientParams) == 32, "");
static_assert(offsetof(SinkGradientParams, sinks) == 0, "");
static_assert(offsetof(SinkGradientParams, d_sinks) == 8, "");
static_assert(offsetof(SinkGradientParams, sums) == 16, "");
static_assert(offsetof(SinkGradientParams, rows) == 24, "");
static_assert(offsetof(SinkGradientParams, heads) == 28, "");

struct AttentionGradientParams {
    AttentionParams attention;
    float *dy;
    float *dk;
    float *dv;
    float *sums;
};
static_assert(sizeof(AttentionGradientParams) == 208, "");
static_assert(offsetof(AttentionGradientParams, attention) == 0, "");
static_assert(offsetof(AttentionGradientParams, dy) == 176, "");
static_assert(offsetof(AttentionGradientParams, dk) == 184, "");
static_assert(offsetof(AttentionGradientParams, dv) == 192, "");
static_assert(offsetof(AttentionGradientParams, sums) == 200, "");

struct RowsHalvesParams {
    float *from[4];
    u8 *to[4];
    float *largest;
    u32 strides[4];
    u32 widths[4];
    u32 rows;
    u32 largest_count;
    float factor;
};
static_assert(sizeof(RowsHalvesParams) == 120, "");
static_assert(offsetof(RowsHalvesParams, from) == 0, "");
static_assert(offsetof(RowsHalvesParams, to) == 32, "");
static_assert(offsetof(RowsHalvesParams, largest) == 64, "");
static_assert(offsetof(RowsHalvesParams, strides) == 72, "");
static_assert(offsetof(RowsHalvesParams, widths) == 88, "");
static_assert(offsetof(RowsHalvesParams, rows) == 104, "");
static_assert(offsetof(RowsHalvesParams, largest_count) == 108, "");
static_assert(offsetof(RowsHalvesParams, factor) == 112, "");

struct AttentionRowsParams {
    u8 *q;
    u8 *k;
    u8 *v;
    u8 *dy;
    float *y;
    float *dk;
    float *dv;
    float *sums;
    float *kept;
    float *result;
    float *raise;
    StepRows step;
    u32 rows;
    u32 heads;
    u32 kv_heads;
    u32 is_causal;
    u32 window;
    float scale;
    float softcap;
};
static_assert(sizeof(AttentionRowsParams) == 152, "");
static_assert(offsetof(AttentionRowsParams, q) == 0, "");
static_assert(offsetof(AttentionRowsParams, k) == 8, "");
static_assert(offsetof(AttentionRowsParams, v) == 16, "");
static_assert(offsetof(AttentionRowsParams, dy) == 24, "");
static_assert(offsetof(AttentionRowsParams, y) == 32, "");
static_assert(offsetof(AttentionRowsParams, dk) == 40, "");
static_assert(offsetof(AttentionRowsParams, dv) == 48, "");
static_assert(offsetof(AttentionRowsParams, sums) == 56, "");
static_assert(offsetof(AttentionRowsParams, kept) == 64, "");
static_assert(offsetof(AttentionRowsParams, result) == 72, "");
static_assert(offsetof(AttentionRowsParams, raise) == 80, "");
static_assert(offsetof(AttentionRowsParams, step) == 88, "");
static_assert(offsetof(AttentionRowsParams, rows) == 120, "");
static_assert(offsetof(AttentionRowsParams, heads) == 124, "");
static_assert(offsetof(AttentionRowsParams, kv_heads) == 128, "");
static_assert(offsetof(AttentionRowsParams, is_causal) == 132, "");
static_assert(offsetof(AttentionRowsParams, window) == 136, "");
static_assert(offsetof(AttentionRowsParams, scale) == 140, "");
static_assert(offsetof(AttentionRowsParams, softcap) == 144, "");

struct FlatParams {
    float *a;
    float *b;
    float *y;
    u32 a_stride;
    u32 b_stride;
    u32 y_stride;
    u32 pieces;
    u32 function;
    float c;
    float d;
};
static_assert(sizeof(FlatParams) == 56, "");
static_assert(offsetof(FlatParams, a) == 0, "");
static_assert(offsetof(FlatParams, b) == 8, "");
static_assert(offsetof(FlatParams, y) == 16, "");
static_assert(offsetof(FlatParams, a_stride) == 24, "");
static_assert(offsetof(FlatParams, b_stride) == 28, "");
static_assert(offsetof(FlatParams, y_stride) == 32, "");
static_assert(offsetof(FlatParams, pieces) == 36, "");
static_assert(offsetof(FlatParams, function) == 40, "");
static_assert(offsetof(FlatParams, c) == 44, "");
static_assert(offsetof(FlatParams, d) == 48, "");

struct LearnedRows {
    float *values;
    float *gradients;
    u64 first;
    u64 count;
    u32 columns;
    u32 stride;
};
static_assert(sizeof(LearnedRows) == 40, "");
static_assert(offsetof(LearnedRows, values) == 0, "");
static_assert(offsetof(LearnedRows, gradients) == 8, "");
static_assert(offsetof(LearnedRows, first) == 16, "");
static_assert(offsetof(LearnedRows, count) == 24, "");
static_assert(offsetof(LearnedRows, columns) == 32, "");
static_assert(offsetof(LearnedRows, stride) == 36, "");

struct LearnParams {
    LearnedRows *blocks;
    float *sums;
    float *means;
    float *squares;
    double *partial;
    u32 is_first;
    float factor;
    float kept;
    float new1;
    float beta2;
    float new2;
    float rate;
    float root;
    float eps;
};
static_assert(sizeof(LearnParams) == 80, "");
static_assert(offsetof(LearnParams, blocks) == 0, "");
static_assert(offsetof(LearnParams, sums) == 8, "");
static_assert(offsetof(LearnParams, means) == 16, "");
static_assert(offsetof(LearnParams, squares) == 24, "");
static_assert(offsetof(LearnParams, partial) == 32, "");
static_assert(offsetof(LearnParams, is_first) == 40, "");
static_assert(offsetof(LearnParams, factor) == 44, "");
static_assert(offsetof(LearnParams, kept) == 48, "");
static_assert(offsetof(LearnParams, new1) == 52, "");
static_assert(offsetof(LearnParams, beta2) == 56, "");
static_assert(offsetof(LearnParams, new2) == 60, "");
static_assert(offsetof(LearnParams, rate) == 64, "");
static_assert(offsetof(LearnParams, root) == 68, "");
static_assert(offsetof(LearnParams, eps) == 72, "");

struct ScoresGradientParams {
    float *scores;
    u32 *targets;
    float *d;
    Fault *fault;
    u32 width;
    float softcap;
};
static_assert(sizeof(ScoresGradientParams) == 40, "");
static_assert(offsetof(ScoresGradientParams, scores) == 0, "");
static_assert(offsetof(ScoresGradientParams, targets) == 8, "");
static_assert(offsetof(ScoresGradientParams, d) == 16, "");
static_assert(offsetof(ScoresGradientParams, fault) == 24, "");
static_assert(offsetof(ScoresGradientParams, width) == 32, "");
static_assert(offsetof(ScoresGradientParams, softcap) == 36, "");

struct ScoresLossParams {
    float *scores;
    u32 *targets;
    float *y;
    u8 *panels;
    float *row_scale;
    Fault *fault;
    u32 width;
    u32 subs;
    float softcap;
};
static_assert(sizeof(ScoresLossParams) == 64, "");
static_assert(offsetof(ScoresLossParams, scores) == 0, "");
static_assert(offsetof(ScoresLossParams, targets) == 8, "");
static_assert(offsetof(ScoresLossParams, y) == 16, "");
static_assert(offsetof(ScoresLossParams, panels) == 24, "");
static_assert(offsetof(ScoresLossParams, row_scale) == 32, "");
static_assert(offsetof(ScoresLossParams, fault) == 40, "");
static_assert(offsetof(ScoresLossParams, width) == 48, "");
static_assert(offsetof(ScoresLossParams, subs) == 52, "");
static_assert(offsetof(ScoresLossParams, softcap) == 56, "");

struct PickParams {
    Rows x;
    u32 *indices;
    float *y;
    Fault *fault;
    u32 count;
    u32 each;
};
static_assert(sizeof(PickParams) == 56, "");
static_assert(offsetof(PickParams, x) == 0, "");
static_assert(offsetof(PickParams, indices) == 24, "");
static_assert(offsetof(PickParams, y) == 32, "");
static_assert(offsetof(PickParams, fault) == 40, "");
static_assert(offsetof(PickParams, count) == 48, "");
static_assert(offsetof(PickParams, each) == 52, "");

struct PlaceParams {
    float *x;
    u32 *indices;
    float *y;
    Fault *fault;
    u32 count;
    u32 each;
    u32 width;
};
static_assert(sizeof(PlaceParams) == 48, "");
static_assert(offsetof(PlaceParams, x) == 0, "");
static_assert(offsetof(PlaceParams, indices) == 8, "");
static_assert(offsetof(PlaceParams, y) == 16, "");
static_assert(offsetof(PlaceParams, fault) == 24, "");
static_assert(offsetof(PlaceParams, count) == 32, "");
static_assert(offsetof(PlaceParams, each) == 36, "");
static_assert(offsetof(PlaceParams, width) == 40, "");

struct FoldParams {
    float *y;
    float *x;
    StepRows step;
    u32 factor;
    u32 channels;
    u32 taps;
    u32 stride;
    u32 padding;
    u32 rows;
};
static_assert(sizeof(FoldParams) == 72, "");
static_assert(offsetof(FoldParams, y) == 0, "");
static_assert(offsetof(FoldParams, x) == 8, "");
static_assert(offsetof(FoldParams, step) == 16, "");
static_assert(offsetof(FoldParams, factor) == 48, "");
static_assert(offsetof(FoldParams, channels) == 52, "");
static_assert(offsetof(FoldParams, taps) == 56, "");
static_assert(offsetof(FoldParams, stride) == 60, "");
static_assert(offsetof(FoldParams, padding) == 64, "");
static_assert(offsetof(FoldParams, rows) == 68, "");

struct SpreadMeanParams {
    float *y;
    float *x;
    StepRows step;
    u32 factor;
    u32 width;
    u32 rows;
};
static_assert(sizeof(SpreadMeanParams) == 64, "");
static_assert(offsetof(SpreadMeanParams, y) == 0, "");
static_assert(offsetof(SpreadMeanParams, x) == 8, "");
static_assert(offsetof(SpreadMeanParams, step) == 16, "");
static_assert(offsetof(SpreadMeanParams, factor) == 48, "");
static_assert(offsetof(SpreadMeanParams, width) == 52, "");
static_assert(offsetof(SpreadMeanParams, rows) == 56, "");

struct TransposeParams {
    u8 *weights;
    u8 *to;
    u32 tiles;
    u32 subs;
    u32 to_subs;
    u32 inputs;
    u32 rows;
    u32 lower;
    u32 upper;
    u32 is_paired;
    float raise;
};
static_assert(sizeof(TransposeParams) == 56, "");
static_assert(offsetof(TransposeParams, weights) == 0, "");
static_assert(offsetof(TransposeParams, to) == 8, "");
static_assert(offsetof(TransposeParams, tiles) == 16, "");
static_assert(offsetof(TransposeParams, subs) == 20, "");
static_assert(offsetof(TransposeParams, to_subs) == 24, "");
static_assert(offsetof(TransposeParams, inputs) == 28, "");
static_assert(offsetof(TransposeParams, rows) == 32, "");
static_assert(offsetof(TransposeParams, lower) == 36, "");
static_assert(offsetof(TransposeParams, upper) == 40, "");
static_assert(offsetof(TransposeParams, is_paired) == 44, "");
static_assert(offsetof(TransposeParams, raise) == 48, "");
