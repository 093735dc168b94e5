// gemm_panels: rows of x, normed where a norm is there, as halves in the panels that wgmma reads (../hopper/layout.cuh), each row
// divided by a power of two.
// Grid: a block of 256 threads a row of R rounded up to 64; rows behind R are zero.
//
// gemm_sums: adds the sums that blocks made of parts of K, in order, and writes outputs.
// Grid: x: one thread an output of a tile's half, blocks of 256; y: rows.
#include "outputs.cuh"

// The exponent e for which `largest` · 2^-e lies in [2^14, 2^15); 0 for 0. Within ±100.
DEVICE int row_exponent(float largest) {
    int e = (int)(__float_as_uint(largest) >> 23) - 127 - 14;
    return largest == 0.0f ? 0 : e < -100 ? -100 : e > 100 ? 100 : e;
}

KERNEL(gemm_panels, PanelsParams) {
    __shared__ float scratch[32];
    u32 row = blockIdx.x;
    bool is_row = row < p.rows;
    const float* x = row_of(p.x, is_row ? row : 0);
    const float* w = p.norm.weight;
    bool aligned = ((u64)x | (u64)w) % 16 == 0 && p.inputs % 8 == 0;
    auto load = [&](const float* from, u32 k, float (&v)[8]) {
        if (aligned) {
            const Floats4 a = *(const Floats4*)(from + k), b = *(const Floats4*)(from + k + 4);
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                v[i] = a.at[i];
                v[4 + i] = b.at[i];
            }
        } else {
#pragma unroll
            for (u32 i = 0; i < 8; ++i) {
                v[i] = k + i < p.inputs ? from[k + i] : 0.0f;
            }
        }
    };
    float largest = 0.0f, squares = 0.0f, scale = 1.0f;
    if (is_row) {
        for (u32 k = threadIdx.x * 8; k < p.inputs; k += blockDim.x * 8) {
            float v[8], of_norm[8] = {1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f};
            load(x, k, v);
            if (w != nullptr) {
                load(w, k, of_norm);
            }
#pragma unroll
            for (u32 i = 0; i < 8; ++i) {
                squares = fmaf(v[i], v[i], squares);
                largest = fmaxf(largest, fabsf(v[i] * of_norm[i]));
            }
        }
    }
    largest = block_max(largest, scratch);
    if (p.norm.is_there) {
        scale = 1.0f / sqrtf(block_sum(squares, scratch) / (float)p.inputs + p.norm.eps);
        largest *= scale;
    }
    int e = row_exponent(largest);
    float down = __uint_as_float((u32)(127 - e) << 23);
    if (threadIdx.x == 0 && is_row) {
        p.row_scale[row] = __uint_as_float((u32)(127 + e) << 23);
    }
    u8* to = p.panels + (u64)(row / 64) * p.subs * 8192 + row % 64 * 128;
    for (u32 k = threadIdx.x * 8; k < p.subs * 64; k += blockDim.x * 8) {
        float v[8] = {}, of_norm[8] = {1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f};
        if (is_row && k < p.inputs) {
            load(x, k, v);
            if (w != nullptr) {
                load(w, k, of_norm);
            }
        }
        Halves8 halves;
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            float a = v[2 * i] * (scale * of_norm[2 * i]), b = v[2 * i + 1] * (scale * of_norm[2 * i + 1]);
            halves.at[i] = float_to_half(a * down) | (u32)float_to_half(b * down) << 16;
        }
        *(Halves8*)(to + (u64)(k / 64) * 8192 + ((k % 64 / 8) ^ (row % 8)) * 16) = halves;
    }
}

KERNEL(gemm_sums, GemmSumParams) {
    u64 i = thread_number();
    if (i >= (u64)p.tiles * 8) {
        return;
    }
    u32 tile = (u32)(i / 8), g = (u32)(i % 8), width = p.tiles * 16;
    for (u32 row = blockIdx.y; row < p.rows; row += gridDim.y) {
        float lower = 0.0f, upper = 0.0f;
        for (u32 split = 0; split < p.splits; ++split) {
            const float* sums = p.partial + ((u64)split * p.rows + row) * width + tile * 16 + g;
            lower += sums[0];
            upper += sums[8];
        }
        write_outputs(p.out, row, tile, g, lower, upper);
    }
}
