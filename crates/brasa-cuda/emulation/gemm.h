// The matrix products of ../kernels/hopper/gemm.cuh on the CPU: the same operands and roundings, sums in another order.
#pragma once

namespace brasa_emulation {

// x[row, k] as a panel holds it.
inline float panel_value(const u8* panels, u32 subs, u32 row, u32 k) {
    const u8* panel = panels + ((u64)(row / 64) * subs + k / 64) * 8192;
    return brasa::half_value(panel + row % 64 * 128 + ((k % 64 / 8) ^ (row % 8)) * 16 + k % 8 * 2);
}

// An element of a weight as it is multiplied.
inline float rounded_weight(u32 format, const u8* weights, u32 subs, u32 n, u32 k, float raise) {
    float w = brasa::weight_at(format, weights, subs, n, k);
    return half_to_float(float_to_half(w * (format == brasa::F16 ? 1.0f : raise)));
}

inline void gemm(const GemmParams& p, u32 format) {
    u32 unit_subs = brasa::geometry(format).unit_subs, units = p.subs / unit_subs;
    u64 count = (u64)p.splits * p.rows * p.tiles * 8, threads = (u64)gridDim.x * blockDim.x;
    for (u64 i = thread_number(); i < count; i += threads) {
        u32 g = i % 8, tile = (u32)(i / 8 % p.tiles), row = (u32)(i / 8 / p.tiles % p.rows), split = (u32)(i / 8 / p.tiles / p.rows);
        float sums[2] = {0.0f, 0.0f};
        u32 begin = split * units / p.splits * unit_subs * 64, end = (split + 1) * units / p.splits * unit_subs * 64;
        for (u32 k = begin; k < end; ++k) {
            float x = panel_value(p.panels, p.subs, row, k);
            for (u32 half = 0; half < 2; ++half) {
                sums[half] = fmaf(rounded_weight(format, p.weights, p.subs, tile * 16 + half * 8 + g, k, p.raise), x, sums[half]);
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

// Grouped products: of each block of sorted rows with its expert's weights, one or two.
inline void expert_gemm(const ExpertGemmParams& p, u32 format, u32 weights) {
    u32 outputs = p.tiles * 16;
    for (u32 block = blockIdx.x; block < *p.plan.count; block += gridDim.x) {
        const u32 *of_block = p.plan.blocks + block * 3, rows = of_block[2] - of_block[1];
        for (u32 i = threadIdx.x; i < rows * outputs; i += blockDim.x) {
            u32 position = of_block[1] + i / outputs, n = i % outputs;
            float sums[2] = {0.0f, 0.0f};
            for (u32 weight = 0; weight < weights; ++weight) {
                for (u32 k = 0; k < p.subs * 64; ++k) {
                    float w = rounded_weight(format, p.weights[weight], p.subs, of_block[0] * outputs + n, k, p.raise[weight]);
                    sums[weight] = fmaf(w, panel_value(p.panels, p.subs, position, k), sums[weight]);
                }
                sums[weight] *= p.row_scale[position] * p.scale[weight];
            }
            if (weights == 1) {
                p.y[(u64)p.plan.slots[position] * outputs + n] = sums[0];
            } else {
                float gated = unary_value(p.function, sums[0], 0.0f, 0.0f) * (sums[1] / p.gated_scale[position]);
                ((unsigned short*)panel_piece(p.gated, p.gated_subs, position, n))[n % 8] = float_to_half(gated);
            }
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

#define BRASA_EMULATED_EXPERTS(name, Format)                                                                            \
    KERNEL(experts_##name##_16, ExpertGemmParams) { brasa_emulation::expert_gemm(p, Format::FORMAT, 1); }                 \
    KERNEL(experts_##name##_64, ExpertGemmParams) { brasa_emulation::expert_gemm(p, Format::FORMAT, 1); }                 \
    KERNEL(experts_##name##_128, ExpertGemmParams) { brasa_emulation::expert_gemm(p, Format::FORMAT, 1); }                \
    KERNEL(experts_gated_##name##_16, ExpertGemmParams) { brasa_emulation::expert_gemm(p, Format::FORMAT, 2); }           \
    KERNEL(experts_gated_##name##_64, ExpertGemmParams) { brasa_emulation::expert_gemm(p, Format::FORMAT, 2); }           \
    KERNEL(experts_gated_##name##_128, ExpertGemmParams) { brasa_emulation::expert_gemm(p, Format::FORMAT, 2); }
TILE_FORMATS(BRASA_EMULATED_EXPERTS)
