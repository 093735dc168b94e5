// gated: y = act(gate) · up of two values whose rows may lie apart. gated_gradient: where that product changes by d, the gradients of both,
// act'(gate) · (d · up) and d · act(gate). The bits of the operations one by one.
// Grid: x: pieces of four elements of a row, y: rows; blocks of 256. Bound by memory: every element is read and written once.
//
// gated_panels, gated_gradient_panels: these as halves in panels (panels.cuh), for products behind. Grid: a block a row, up to 448 threads of
// GATED_TURNS · 8 elements.
#include "panels.cuh"
#include "unary.cuh"

// Whether all rows may be read in pieces of four.
DEVICE bool is_aligned(const GatedParams& p) {
    return (p.width | p.gate_stride | p.up_stride | p.d_stride | p.y_stride) % 4 == 0 &&
           ((u64)p.gate | (u64)p.up | (u64)p.d | (u64)p.y | (u64)p.up_y) % 16 == 0;
}

KERNEL(gated, GatedParams) {
    const bool aligned = is_aligned(p);
    const u32 i = (u32)thread_number() * 4;
    for (u64 row = blockIdx.y; i < p.width && row < p.rows; row += gridDim.y) {
        const Floats4 gate = four(p.gate + row * p.gate_stride, i, p.width, aligned), up = four(p.up + row * p.up_stride, i, p.width, aligned);
        Floats4 y;
#pragma unroll
        for (u32 j = 0; j < 4; ++j) {
            y.at[j] = unary_value(p.function, gate.at[j], 0.0f, 0.0f) * up.at[j];
        }
        store_four(p.y + row * p.y_stride, i, p.width, aligned, y);
    }
}

KERNEL(gated_gradient, GatedParams) {
    const bool aligned = is_aligned(p);
    const u32 i = (u32)thread_number() * 4;
    for (u64 row = blockIdx.y; i < p.width && row < p.rows; row += gridDim.y) {
        const Floats4 gate = four(p.gate + row * p.gate_stride, i, p.width, aligned), up = four(p.up + row * p.up_stride, i, p.width, aligned);
        const Floats4 d = four(p.d + row * p.d_stride, i, p.width, aligned);
        Floats4 of_gate, of_up;
#pragma unroll
        for (u32 j = 0; j < 4; ++j) {
            of_gate.at[j] = unary_slope(p.function, gate.at[j], 0.0f, 0.0f) * (d.at[j] * up.at[j]);
            of_up.at[j] = d.at[j] * unary_value(p.function, gate.at[j], 0.0f, 0.0f);
        }
        store_four(p.y + row * p.y_stride, i, p.width, aligned, of_gate);
        store_four(p.up_y + row * p.y_stride, i, p.width, aligned, of_up);
    }
}

// A gate and its slope, as exact as the halves that they become.
template <u32 FUNCTION>
DEVICE void gate_and_slope(float x, float& value, float& slope) {
    if (FUNCTION == UNARY_SILU) {
        const float gate = fast_divide(1.0f, 1.0f + fast_exp(-x));
        value = x * gate;
        slope = gate * (1.0f + x * (1.0f - gate));
        return;
    }
    value = unary_value(FUNCTION, x, 0.0f, 0.0f);
    slope = unary_slope(FUNCTION, x, 0.0f, 0.0f);
}

// Eight numbers as halves divided by a power of two of their own, until that of their row is known: half of the registers, so that a multiprocessor holds two
// rows. They are rounded once, but for those that are too small for normal halves beside the row's largest.
struct KeptPiece {
    u32 halves[4];
    int exponent;

    DEVICE void set(const float (&v)[8], float largest) {
        exponent = row_exponent(largest);
        const float down = power_of_two(-exponent);
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            halves[i] = float_to_half(v[2 * i] * down) | (u32)float_to_half(v[2 * i + 1] * down) << 16;
        }
    }
    // As halves divided by 2^e, which is at least as large.
    DEVICE void store(u8* to, int e) const {
        float v[8];
        const float down = power_of_two(exponent - e < -126 ? -126 : exponent - e);
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            v[2 * i] = half_to_float((unsigned short)halves[i]) * down;
            v[2 * i + 1] = half_to_float((unsigned short)(halves[i] >> 16)) * down;
        }
        store_halves(to, v);
    }
};

// A row of up to 448 · GATED_TURNS · 8 gated products, or of both gradients, rounded: elements stay in registers until the largest is known.
template <bool IS_GRADIENT, u32 FUNCTION>
DEVICE void gate_row(const GatedPanelsParams& p, float* scratch) {
    const u32 SIDES = IS_GRADIENT ? 2 : 1;
    const GatedParams& of = p.of;
    const u32 row = blockIdx.x, step = blockDim.x * 8;
    const float *gates = of.gate + (u64)row * of.gate_stride, *ups = of.up + (u64)row * of.up_stride, *changes = of.d + (u64)row * of.d_stride;
    KeptPiece kept[GATED_TURNS][SIDES];
    float largest = 0.0f;
#pragma unroll
    for (u32 turn = 0; turn < GATED_TURNS; ++turn) {
        const u32 k = turn * step + threadIdx.x * 8;
        if (k < of.width) {
            float gate[8], up[8], d[8], v[SIDES][8];
            load8(gates + k, gate);
            load8(ups + k, up);
            if (IS_GRADIENT) {
                load8(changes + k, d);
            }
#pragma unroll
            for (u32 i = 0; i < 8; ++i) {
                float value, slope;
                gate_and_slope<FUNCTION>(gate[i], value, slope);
                if (IS_GRADIENT) {
                    v[0][i] = slope * (d[i] * up[i]);
                    v[SIDES - 1][i] = d[i] * value;
                } else {
                    v[0][i] = value * up[i];
                }
            }
#pragma unroll
            for (u32 side = 0; side < SIDES; ++side) {
                float of_piece = 0.0f;
#pragma unroll
                for (u32 i = 0; i < 8; ++i) {
                    of_piece = fmaxf(of_piece, fabsf(v[side][i]));
                }
                kept[turn][side].set(v[side], of_piece);
                largest = fmaxf(largest, of_piece);
            }
        }
    }
    const int e = row_exponent(block_max(largest, scratch));
    if (threadIdx.x == 0) {
        p.row_scale[row] = power_of_two(e);
    }
#pragma unroll
    for (u32 turn = 0; turn < GATED_TURNS; ++turn) {
        const u32 k = turn * step + threadIdx.x * 8;
        if (k < of.width) {
#pragma unroll
            for (u32 side = 0; side < SIDES; ++side) {
                kept[turn][side].store(panel_piece(p.panels, p.subs, row, k + (side == 0 ? p.first : p.second)), e);
            }
        }
    }
    fill_panels(p.panels, p.subs, row, SIDES * of.width);
}

template <bool IS_GRADIENT>
DEVICE void gate_rows(const GatedPanelsParams& p) {
    __shared__ float scratch[32];
    switch (p.of.function) {
        case UNARY_SILU: return gate_row<IS_GRADIENT, UNARY_SILU>(p, scratch);
        case UNARY_GELU_TANH: return gate_row<IS_GRADIENT, UNARY_GELU_TANH>(p, scratch);
        default: return gate_row<IS_GRADIENT, UNARY_GELU_ERF>(p, scratch);
    }
}

KERNEL_WITHIN(__launch_bounds__(448, 2), gated_panels, GatedPanelsParams) { gate_rows<false>(p); }
KERNEL_WITHIN(__launch_bounds__(448, 2), gated_gradient_panels, GatedPanelsParams) { gate_rows<true>(p); }
