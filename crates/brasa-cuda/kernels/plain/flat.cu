// unary, binary, clamped_unit, copy (elementwise.cu) and unary_gradient (gradients.cu) of values whose inner axes are dense: four elements a thread, without the
// divisions that find an element's place among four axes. The same bits.
// Grid: x: pieces of four elements of a row, y: rows; blocks of 256. An operand's row stride is 0 where it repeats.
#include "unary.cuh"

// The piece of this thread in an operand whose rows are `stride` elements apart.
DEVICE const Floats4& piece_of(const float* data, u32 stride, u32 piece) { return *(const Floats4*)(data + (u64)blockIdx.y * stride + (u64)piece * 4); }

// Stores f(a, b) for each of the thread's elements.
template <class Function> DEVICE void each_element(const FlatParams& p, Function f) {
    const u32 piece = blockIdx.x * blockDim.x + threadIdx.x;
    if (piece >= p.pieces) {
        return;
    }
    const Floats4 a = piece_of(p.a, p.a_stride, piece), b = piece_of(p.b, p.b_stride, piece);
    Floats4 y;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        y.at[i] = f(a.at[i], b.at[i]);
    }
    *(Floats4*)(p.y + (u64)blockIdx.y * p.y_stride + (u64)piece * 4) = y;
}

KERNEL(binary_flat, FlatParams) {
    switch (p.function) {
        case BINARY_ADD: return each_element(p, [](float a, float b) { return a + b; });
        case BINARY_SUB: return each_element(p, [](float a, float b) { return a - b; });
        case BINARY_MUL: return each_element(p, [](float a, float b) { return a * b; });
        case BINARY_DIV: return each_element(p, [](float a, float b) { return a / b; });
        default: return each_element(p, [](float a, float b) { return fmaxf(a, b); });
    }
}

// Both operands are the same.
KERNEL(unary_flat, FlatParams) {
    each_element(p, [&](float x, float) { return unary_value(p.function, x, p.c, p.d); });
}

KERNEL(clamped_unit_flat, FlatParams) {
    each_element(p, [&](float gate, float up) { return clamped_unit(gate, up, p.c, p.d); });
}

KERNEL(unary_gradient_flat, FlatParams) {
    each_element(p, [&](float x, float t) { return unary_slope(p.function, x, p.c, p.d) * t; });
}

KERNEL(copy_flat, FlatParams) {
    each_element(p, [](float x, float) { return x; });
}
