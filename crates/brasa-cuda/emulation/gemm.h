// The matrix products of ../kernels/hopper/gemm.cuh on the CPU: the same operands and roundings, sums in another order.
#pragma once

#include "../kernels/hopper/stream.cuh"

namespace brasa_emulation {

// x[row, k] as a panel holds it.
inline float panel_value(const GemmParams& p, u32 row, u32 k) {
    const u8* panel = p.panels + ((u64)(row / 64) * p.subs + k / 64) * 8192;
    return brasa::half_value(panel + row % 64 * 128 + ((k % 64 / 8) ^ (row % 8)) * 16 + k % 8 * 2);
}

// The sums of outputs g and g + 8 of a tile over K from `begin` to `end`, unscaled.
inline void sum_products(const GemmParams& p, u32 format, u32 row, u32 tile, u32 g, u32 begin, u32 end, float (&sums)[2]) {
    for (u32 k = begin; k < end; ++k) {
        float x = panel_value(p, row, k);
        for (u32 half = 0; half < 2; ++half) {
            float w = brasa::weight_at(format, p.weights, p.subs, tile * 16 + half * 8 + g, k);
            w = half_to_float(float_to_half(w * (format == brasa::F16 ? 1.0f : p.raise)));
            sums[half] = fmaf(w, x, sums[half]);
        }
    }
}

inline void gemm(const GemmParams& p, u32 format) {
    u32 unit_subs = brasa::geometry(format).unit_subs, units = p.subs / unit_subs;
    u64 count = (u64)p.splits * p.rows * p.tiles * 8, threads = (u64)gridDim.x * blockDim.x;
    for (u64 i = thread_number(); i < count; i += threads) {
        u32 g = i % 8, tile = (u32)(i / 8 % p.tiles), row = (u32)(i / 8 / p.tiles % p.rows), split = (u32)(i / 8 / p.tiles / p.rows);
        float sums[2] = {0.0f, 0.0f};
        u32 begin = split * units / p.splits * unit_subs * 64, end = (split + 1) * units / p.splits * unit_subs * 64;
        sum_products(p, format, row, tile, g, begin, end, sums);
        float scale = p.row_scale[row] * p.scale;
        if (p.splits > 1) {
            float* to = p.partial + ((u64)split * p.rows + row) * p.tiles * 16 + tile * 16 + g;
            to[0] = sums[0] * scale;
            to[8] = sums[1] * scale;
        } else {
            write_outputs(p.out, row, tile, g, sums[0] * scale, sums[1] * scale);
        }
    }
}

// Each thread has the sums that it has on the tensor cores: d[4j + c] is output g + 8·(c/2) of its warp's tile, row 8j + 2t + c%2.
template <int ROWS> inline void gemm_stream(const GemmParams& p, u32 format) {
    if (threadIdx.x >= brasa::STREAM_THREADS) {
        return;  // it copies
    }
    __shared__ u32 is_last;
    u32 unit_subs = brasa::geometry(format).unit_subs, units = p.subs / unit_subs, row_blocks = (p.rows + ROWS - 1) / ROWS;
    brasa::Stream stream = {row_blocks * ((p.tiles + 3) / 4), units, gridDim.x};
    u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, end = stream.begin(blockIdx.x + 1);
    for (u32 at = stream.begin(blockIdx.x), next; at < end; at = next) {
        u32 piece = at / units, first = at % units, count = min(units - first, end - at);
        u32 tile = piece / row_blocks * 4 + threadIdx.x / 32, first_row = piece % row_blocks * ROWS;
        next = at + count;
        float d[ROWS / 2] = {};
        for (u32 i = 0; i < ROWS / 4; ++i) {
            u32 row = first_row + 8 * (i / 2) + 2 * t + i % 2;
            float sums[2] = {0.0f, 0.0f};
            if (row < p.rows && tile < p.tiles) {
                sum_products(p, format, row, tile, g, first * unit_subs * 64, (first + count) * unit_subs * 64, sums);
            }
            d[i / 2 * 4 + i % 2] = sums[0];
            d[i / 2 * 4 + i % 2 + 2] = sums[1];
        }
        if (!brasa::join(p, stream, piece, d, is_last, __syncthreads)) {
            continue;
        }
        for (u32 i = 0; i < ROWS / 4; ++i) {
            u32 row = first_row + 8 * (i / 2) + 2 * t + i % 2, n = i / 2 * 4 + i % 2;
            if (row < p.rows && tile < p.tiles) {
                float scale = p.row_scale[row] * p.scale;
                write_outputs(p.out, row, tile, g, d[n] * scale, d[n + 2] * scale);
            }
        }
    }
}

}  // namespace brasa_emulation

#define BRASA_EMULATED_GEMM(name, Format)                                                                \
    KERNEL(gemm_##name##_16, GemmParams) { brasa_emulation::gemm(p, Format::FORMAT); }                    \
    KERNEL(gemm_##name##_64, GemmParams) { brasa_emulation::gemm(p, Format::FORMAT); }                    \
    KERNEL(gemm_##name##_128, GemmParams) { brasa_emulation::gemm(p, Format::FORMAT); }                   \
    KERNEL(gemm_##name##_256, GemmParams) { brasa_emulation::gemm(p, Format::FORMAT); }                   \
    KERNEL(gemm_##name##_16_stream, GemmParams) { brasa_emulation::gemm_stream<16>(p, Format::FORMAT); }  \
    KERNEL(gemm_##name##_64_stream, GemmParams) { brasa_emulation::gemm_stream<64>(p, Format::FORMAT); }
TILE_FORMATS(BRASA_EMULATED_GEMM)
