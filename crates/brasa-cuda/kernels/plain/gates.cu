// gated: y = act(gate) · up of two values whose rows may lie apart. gated_gradient: where that product changes by d, the gradients of both,
// act'(gate) · (d · up) and d · act(gate). The bits of the operations one by one.
// Grid: x: pieces of four elements of a row, y: rows; blocks of 256. Bound by memory: every element is read and written once.
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
