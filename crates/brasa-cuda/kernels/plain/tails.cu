// tail_tiles: a matrix of up to 64 columns as halves in tiles of 16 outputs × 64 inputs (../hopper/layout.cuh), for the tail of a product.
// Grid: a warp a tile, blocks of 256.
#include "common.cuh"

// Element `n, j` of the matrix, 0 where there is none.
DEVICE float tail_element(const TailTilesParams& p, u32 tile, u32 i, u32 j) {
    const u32 of_stretch = p.is_paired ? 8 * tile + i % 8 : 16 * tile + i;
    const u32 n = of_stretch + (p.is_paired && i >= 8 ? p.upper : p.lower);
    return of_stretch < p.rows && j < p.columns ? p.matrix[(u64)n * p.row + (u64)j * p.column] : 0.0f;
}

KERNEL(tail_tiles, TailTilesParams) {
    const u32 tile = blockIdx.x * (blockDim.x / 32) + warp(), g = lane() / 4, t = lane() % 4;
    if (tile >= p.tiles) {
        return;
    }
    // The lane's elements of each step of 16 inputs: outputs g and g + 8, inputs 2t, 2t + 1, and eight behind them.
    float values[4][8], largest = 0.0f;
#pragma unroll
    for (u32 s = 0; s < 4; ++s) {
#pragma unroll
        for (u32 e = 0; e < 8; ++e) {
            values[s][e] = tail_element(p, tile, g + e / 2 % 2 * 8, s * 16 + 2 * t + e % 2 + e / 4 * 8);
            largest = fmaxf(largest, fabsf(values[s][e]));
        }
    }
    largest = warp_max(largest);
    // The largest becomes about 2^13, as that of a weight does.
    const int exponent = (int)(__float_as_uint(largest) >> 23) - 127, up = 13 - exponent;
    const float raise = largest == 0.0f ? p.raise : __uint_as_float((u32)(127 + (up < -60 ? -60 : up > 60 ? 60 : up)) << 23);
    if (lane() == 0) {
        p.factors[tile] = raise / p.raise * p.factor;
    }
#pragma unroll
    for (u32 s = 0; s < 4; ++s) {
        Halves8 halves;
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            halves.at[i] = float_to_half(values[s][2 * i] * raise) | (u32)float_to_half(values[s][2 * i + 1] * raise) << 16;
        }
        *(Halves8*)(p.to + (u64)tile * 2048 + s * 512 + lane() * 16) = halves;
    }
}
