// Where sums of products go: scaled by their rows, with bias and residual, gated, or as parts of K.
//
// Large blocks hand their sums over in shared memory, 32 rows at a time, so that rows are written in whole lines. A lane's own outputs are eight neighbours of a
// row; all blocks write at the same time, and in pieces of 32 bytes products of 4,096 inputs take a tenth longer, those of 2,048 a fifth.
#pragma once
#include "gemm.cuh"

namespace brasa {

// The rows of a piece: how many there are, and what their products are multiplied by.
struct PieceRows { const float* scale; float of_all; uint32_t count; };

// Calls `write(row, lower, upper, read(row))` for each of the lane's rows, numbered within the piece, its products scaled. What some rows need
// is read before any of them is written, so that their loads are on their way together.
template <int ROWS, class Read, class Write>
__device__ __forceinline__ void each_row(const PieceRows& rows, const float (&d)[ROWS / 2], uint32_t t, Read read, Write write) {
    constexpr int TOGETHER = ROWS / 4 < 8 ? ROWS / 4 : 8;
#pragma unroll
    for (int begin = 0; begin < ROWS / 4; begin += TOGETHER) {
        if (begin * 4 >= rows.count) return;
        float scale[TOGETHER];
        decltype(read(0u)) before[TOGETHER];
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            const uint32_t row = min(8 * ((begin + i) / 2) + 2 * t + i % 2, rows.count - 1);
            scale[i] = rows.scale[row];
            before[i] = read(row);
        }
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            const int n = (begin + i) / 2 * 4 + i % 2;
            const uint32_t row = 8 * ((begin + i) / 2) + 2 * t + i % 2;
            if (row < rows.count) write(row, d[n] * (scale[i] * rows.of_all), d[n + 2] * (scale[i] * rows.of_all), before[i]);
        }
    }
}

// x · sigmoid(x), as exact as the half that it becomes.
__device__ __forceinline__ float fast_silu(float x) { return x * reciprocal(1.0f + __expf(-x)); }
// 1 / x for a power of two.
__device__ __forceinline__ float inverse_power(float x) { return __uint_as_float((254u << 23) - __float_as_uint(x)); }

// Outputs g and g + 8 of a tile, or parts of their sums. d[4j + c]: output g + 8·(c/2), row 8j + 2t + c%2. `first_row` is a multiple of 64 where
// there are more rows; `gates_scale`: powers of two of the rows' gated products.
template <int ROWS>
__device__ __forceinline__ void write_products(const GemmParams& p, const float (&d)[ROWS / 2], const PieceRows& rows, const float* gates_scale,
                                               uint32_t first_row, uint32_t t, uint32_t tile, uint32_t g, uint32_t split) {
    const Outputs& out = p.out;
    auto nothing = [](uint32_t) { return make_float2(0.0f, 0.0f); };
    if (p.splits > 1) {
        const uint32_t width = p.tiles * 16;
        float* to = p.partial + (uint64_t(split) * p.rows + first_row) * width + tile * 16 + g;
        each_row<ROWS>(rows, d, t, nothing, [&](uint32_t row, float lower, float upper, float2) {
            to[row * width] = lower;
            to[row * width + 8] = upper;
        });
        return;
    }
    const bool dense = out.form == TILES_DENSE;
    const uint32_t i = tile * (dense ? 16 : 8) + g, n = out.lower + i, m = out.upper + i;
    const bool has_lower = i < out.count, has_upper = dense ? i + 8 < out.count : has_lower;
    const float low_bias = out.bias && has_lower ? out.bias[n] : 0.0f, high_bias = out.bias && has_upper ? out.bias[m] : 0.0f;
    if (out.form == TILES_GATED) {
        if (!has_lower) return;
        auto gated = [&](auto act) {
            if (!out.panels) {
                float* y = out.y + uint64_t(first_row) * out.y_width + i;
                each_row<ROWS>(rows, d, t, nothing, [&](uint32_t row, float lower, float upper, float2) {
                    y[row * out.y_width] = act(lower + low_bias) * (upper + high_bias);
                });
                return;
            }
            // Halves for the product behind, where eight outputs are one piece of a row's panel.
            uint8_t* panel = out.panels + (uint64_t(first_row / 64) * out.subs + i / 64) * 8192 + first_row % 64 * 128 + i % 8 * 2;
            auto down = [&](uint32_t row) { return make_float2(inverse_power(gates_scale[row]), 0.0f); };
            each_row<ROWS>(rows, d, t, down, [&](uint32_t row, float lower, float upper, float2 scale) {
                const float value = act(lower + low_bias) * (upper + high_bias) * scale.x;
                *reinterpret_cast<__half*>(panel + row / 64 * (out.subs * 8192) + row % 64 * 128 + ((i % 64 / 8) ^ (row % 8)) * 16) = __float2half_rn(value);
            });
        };
        if (out.function == UNARY_SILU) gated(fast_silu);
        else if (out.function == UNARY_GELU_TANH) gated([](float x) { return 0.5f * x * (1.0f + tanhf(0.7978846f * (x + 0.044715f * x * x * x))); });
        else gated([](float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678f)); });
        return;
    }
    auto residual = [&](uint32_t row) {
        const Rows& r = out.residual;
        if (!r.data) return make_float2(0.0f, 0.0f);
        row += first_row;
        const float* from = r.data + uint64_t(row / r.per) * r.stride + uint64_t(row % r.per) * r.width;
        return make_float2(has_lower ? from[n] : 0.0f, has_upper ? from[m] : 0.0f);
    };
    each_row<ROWS>(rows, d, t, residual, [&](uint32_t row, float lower, float upper, float2 before) {
        float* y = out.y + uint64_t(first_row + row) * out.y_width;
        if (has_lower) y[n] = before.x + (lower + low_bias);
        if (has_upper) y[m] = before.y + (upper + high_bias);
    });
}

// Rows that a group hands over together, and floats between them: a warp's lanes meet in no bank.
constexpr uint32_t HANDED_ROWS = 32, HANDED_STRIDE = 68, HANDED_FLOATS = HANDED_ROWS * HANDED_STRIDE;

// True where outputs are written, and what is added to them is read, in pieces of four.
__device__ __forceinline__ bool hands_over(const GemmParams& p) {
    const Outputs& out = p.out;
    const uint64_t addresses = uint64_t(out.y) | uint64_t(out.bias) | uint64_t(out.residual.data);
    const uint32_t places = out.y_width | out.lower | out.count | (out.form == TILES_SPLIT ? out.upper : 0) | out.residual.stride;
    return p.splits > 1 || (out.form != TILES_GATED && addresses % 16 == 0 && places % 4 == 0 && (!out.residual.data || out.residual.per == 1));
}

// Like write_products, for a group's four tiles from `first_tile` on, by all of its threads.
template <int ROWS>
__device__ __forceinline__ void hand_over(const GemmParams& p, const float (&d)[ROWS / 2], const PieceRows& rows, float* handed, uint32_t first_row, uint32_t first_tile,
                                          uint32_t split, uint32_t group) {
    const Outputs& out = p.out;
    const bool is_part = p.splits > 1, is_split = !is_part && out.form == TILES_SPLIT;
    const uint32_t thread = threadIdx.x % 128, warp = thread / 32, g = thread % 32 / 4, t = thread % 4;
    // What the thread hands over: columns of the lower and of the upper outputs. What it writes: four columns of every eighth row.
    const uint32_t lower = is_split ? 8 * warp + g : 16 * warp + g, upper = lower + (is_split ? 32 : 8), quad = thread % 16 * 4, row_of_eight = thread / 16;
    const uint32_t i = is_split ? first_tile * 8 + quad % 32 : first_tile * 16 + quad, count = is_part ? p.tiles * 16 : out.count;
    const uint32_t n = is_part ? i : i + (is_split && quad >= 32 ? out.upper : out.lower), width = is_part ? p.tiles * 16 : out.y_width;
    float* y = (is_part ? p.partial + uint64_t(split) * p.rows * width : out.y) + uint64_t(first_row) * width + n;
    const float* residual = is_part || !out.residual.data ? nullptr : out.residual.data + uint64_t(first_row) * out.residual.stride + n;
    const bool is_there = i < count;
    float4 bias = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (!is_part && out.bias && is_there) bias = *reinterpret_cast<const float4*>(out.bias + n);
    // What is added is asked for a pass ahead.
    float4 added[2][HANDED_ROWS / 8];
    auto ask = [&](uint32_t pass) {
#pragma unroll
        for (uint32_t e = 0; e < HANDED_ROWS / 8; e++) {
            const uint32_t row = pass * HANDED_ROWS + e * 8 + row_of_eight;
            added[pass % 2][e] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (residual && is_there && row < rows.count) added[pass % 2][e] = *reinterpret_cast<const float4*>(residual + uint64_t(row) * out.residual.stride);
        }
    };
    ask(0);
#pragma unroll
    for (uint32_t pass = 0; pass < ROWS / HANDED_ROWS; pass++) {
        if (pass * HANDED_ROWS >= rows.count) return;
        if (pass + 1 < ROWS / HANDED_ROWS) ask(pass + 1);
        const float4(&before)[HANDED_ROWS / 8] = added[pass % 2];
#pragma unroll
        for (uint32_t j = 0; j < HANDED_ROWS / 8; j++) {
#pragma unroll
            for (uint32_t c = 0; c < 2; c++) {
                const uint32_t row = j * 8 + 2 * t + c, at = (pass * HANDED_ROWS / 8 + j) * 4 + c;
                const float scale = rows.scale[pass * HANDED_ROWS + row] * rows.of_all;
                handed[row * HANDED_STRIDE + lower] = d[at] * scale;
                handed[row * HANDED_STRIDE + upper] = d[at + 2] * scale;
            }
        }
        named_barrier(2 + group, 128);
#pragma unroll
        for (uint32_t e = 0; e < HANDED_ROWS / 8; e++) {
            const uint32_t row = e * 8 + row_of_eight, at = pass * HANDED_ROWS + row;
            const float4 v = *reinterpret_cast<const float4*>(handed + row * HANDED_STRIDE + quad);
            if (is_there && at < rows.count) {
                *reinterpret_cast<float4*>(y + uint64_t(at) * width) =
                    make_float4(before[e].x + (v.x + bias.x), before[e].y + (v.y + bias.y), before[e].z + (v.z + bias.z), before[e].w + (v.w + bias.w));
            }
        }
        named_barrier(2 + group, 128);
    }
}

}  // namespace brasa
