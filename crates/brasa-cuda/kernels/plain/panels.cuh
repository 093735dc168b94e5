// Rows as halves in the panels that wgmma reads: where a piece lies, and how it is written.
#pragma once

#include "common.cuh"

// The exponent e for which `largest` · 2^-e lies in [2^14, 2^15); 0 for 0. Within ±100.
DEVICE int row_exponent(float largest) {
    int e = (int)(__float_as_uint(largest) >> 23) - 127 - 14;
    return largest == 0.0f ? 0 : e < -100 ? -100 : e > 100 ? 100 : e;
}

// 2^e, of normal numbers.
DEVICE float power_of_two(int e) { return __uint_as_float((u32)(127 + e) << 23); }

// A power of two and its inverse, by which a row whose largest magnitude is `largest` is rounded.
struct RowScale {
    float up, down;

    explicit DEVICE RowScale(float largest) {
        const int e = row_exponent(largest);
        up = power_of_two(e);
        down = power_of_two(-e);
    }
};

// Where inputs `k` to `k + 7` of a row lie in panels of `subs` pieces of 64.
DEVICE u8* panel_piece(u8* panels, u32 subs, u32 row, u32 k) {
    return panels + ((u64)(row / 64) * subs + k / 64) * 8192 + row % 64 * 128 + ((k % 64 / 8) ^ (row % 8)) * 16;
}

DEVICE void store_halves(u8* to, const float (&v)[8]) {
    Halves8 halves;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        halves.at[i] = float_to_half(v[2 * i]) | (u32)float_to_half(v[2 * i + 1]) << 16;
    }
    *(Halves8*)to = halves;
}

// Half a piece, its elements times a power of two.
DEVICE void store_four_halves(u8* to, const Floats4& v, float down) {
    *(Halves4*)to = {{float_to_half(v.at[0] * down) | (u32)float_to_half(v.at[1] * down) << 16, float_to_half(v.at[2] * down) | (u32)float_to_half(v.at[3] * down) << 16}};
}

// Zeros from input `width`, a multiple of eight, to the end of a row's panels, by the threads of a block.
DEVICE void fill_panels(u8* panels, u32 subs, u32 row, u32 width) {
    for (u32 k = width + threadIdx.x * 8; k < subs * 64; k += blockDim.x * 8) {
        *(Halves8*)panel_piece(panels, subs, row, k) = {};
    }
}
