// The matrix products of ../kernels/hopper/gemm.cuh on the CPU: the same operands and roundings, sums in another order.
#pragma once

namespace brasa_emulation {

// x[row, k] as a panel holds it.
inline float panel_value(const GemmParams& p, u32 row, u32 k) {
    const u8* panel = p.panels + ((u64)(row / 64) * p.subs + k / 64) * 8192;
    return brasa::half_value(panel + row % 64 * 128 + ((k % 64 / 8) ^ (row % 8)) * 16 + k % 8 * 2);
}

inline void gemm(const GemmParams& p, u32 format) {
    u32 unit_subs = brasa::geometry(format).unit_subs, units = p.subs / unit_subs;
    u64 count = (u64)p.splits * p.rows * p.tiles * 8, threads = (u64)gridDim.x * blockDim.x;
    for (u64 i = thread_number(); i < count; i += threads) {
        u32 g = i % 8, tile = (u32)(i / 8 % p.tiles), row = (u32)(i / 8 / p.tiles % p.rows), split = (u32)(i / 8 / p.tiles / p.rows);
        float sums[2] = {0.0f, 0.0f};
        u32 begin = split * units / p.splits * unit_subs * 64, end = (split + 1) * units / p.splits * unit_subs * 64;
        for (u32 k = begin; k < end; ++k) {
            float x = panel_value(p, row, k);
            for (u32 half = 0; half < 2; ++half) {
                float w = brasa::weight_at(format, p.weights, p.subs, tile * 16 + half * 8 + g, k);
                w = half_to_float(float_to_half(w * (format == brasa::F16 ? 1.0f : p.raise)));
                sums[half] = fmaf(w, x, sums[half]);
            }
        }
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

}  // namespace brasa_emulation

#define BRASA_EMULATED_GEMM(name, Format)                                                                \
    KERNEL(gemm_##name##_16, GemmParams) { brasa_emulation::gemm(p, Format::FORMAT); }                    \
    KERNEL(gemm_##name##_64, GemmParams) { brasa_emulation::gemm(p, Format::FORMAT); }                    \
    KERNEL(gemm_##name##_128, GemmParams) { brasa_emulation::gemm(p, Format::FORMAT); }                   \
    KERNEL(gemm_##name##_256, GemmParams) { brasa_emulation::gemm(p, Format::FORMAT); }
TILE_FORMATS(BRASA_EMULATED_GEMM)
