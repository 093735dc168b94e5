// The products of ../kernels/hopper/rows_products.cuh on the CPU, warp by warp, at once.
#pragma once

#include "matrix.h"

namespace brasa {

template <u32 E, u32 ROWS> inline u32 tile_half(SharedAt tile, u32 row, u32 column) {
    unsigned short half;
    memcpy(&half, (const char*)tile + tile_piece<E, ROWS>(row, column / 8) + column % 8 * 2, 2);
    return half;
}

// Eight columns of sums: `b` gives element k, n of the other operand.
template <class B> inline void multiply_columns(float* c, const u32 (&a)[4], B b) {
    const u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    float(&d)[4] = *(float(*)[4])c;
    mma(d, a, b(2 * t, g) | b(2 * t + 1, g) << 16, b(2 * t + 8, g) | b(2 * t + 9, g) << 16);
}

template <u32 E> inline void start_products(float (&c)[32], const u32 (&a)[E / 16][4], SharedAt tile) {
    for (u32 i = 0; i < 32; ++i) {
        c[i] = 0.0f;
    }
    for (u32 e = 0; e < E / 16; ++e) {
        for (u32 n = 0; n < 8; ++n) {
            multiply_columns(c + 4 * n, a[e], [&](u32 k, u32 column) { return tile_half<E, 64>(tile, n * 8 + column, e * 16 + k); });
        }
    }
}
template <u32 E, u32 ROWS> inline void start_products_of(float (&c)[32], SharedAt rows, u32 first, SharedAt tile) {
    u32 a[E / 16][4];
    const u32 row = first + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    for (u32 e = 0; e < E / 16; ++e) {
        for (u32 i = 0; i < 4; ++i) {
            const u32 column = e * 16 + 2 * t + i / 2 * 8, r = row + i % 2 * 8;
            a[e][i] = tile_half<E, ROWS>(rows, r, column) | tile_half<E, ROWS>(rows, r, column + 1) << 16;
        }
    }
    start_products<E>(c, a, tile);
}
template <u32 E> inline void start_sums(float (&sums)[E / 2], const u32 (&a)[4][4], SharedAt tile) {
    for (u32 step = 0; step < 4; ++step) {
        for (u32 n = 0; n < E / 8; ++n) {
            multiply_columns(sums + 4 * n, a[step], [&](u32 k, u32 column) { return tile_half<E, 64>(tile, step * 16 + k, n * 8 + column); });
        }
    }
}
inline void products_end_group() {}
template <u32 N> inline void wait_for_products() {}
inline void copies_for_products() {}

}  // namespace brasa
