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

// An element of a tail as it is multiplied.
inline float tail_value(const u8* tile, u32 g, u32 k) { return brasa::half_value(tile + k / 16 * 512 + (g % 8 * 4 + k % 8 / 2) * 16 + (k % 2 + 2 * (g / 8) + k % 16 / 8 * 4) * 2); }

// An element of B of a bank as it is multiplied.
inline float bank_value(const GemmParams& p, u32 n, u32 k) {
    const LowRankMatrix& b = p.addend.b;
    if (n >= b.rows || k >= b.inputs) {
        return 0.0f;
    }
    if (p.addend.form == LOW_RANK_F32) {
        return half_to_float(float_to_half(((const float*)b.data)[(u64)n * b.inputs + k] * p.tail.raise));
    }
    return rounded_weight(p.addend.form == LOW_RANK_F16 ? brasa::F16 : brasa::BF16, b.data, b.subs, n, k, p.tail.raise);
}

// Rows whose sums are made together: a weight is decoded once for all of them.
const u32 ROWS_AT_ONCE = 32;

// sums[h][i] += row first + i of panels times output n[h], for inputs from `begin` to `end` in order.
inline void add_products(float (&sums)[2][ROWS_AT_ONCE], u32 format, const u8* const (&weights)[2], const u32 (&n)[2], const float (&raise)[2], u32 outputs,
                         const u8* panels, u32 subs, u32 panel_subs, u32 first, u32 rows, u32 begin, u32 end) {
    for (u32 k = begin; k < end; ++k) {
        float w[2] = {};
        for (u32 h = 0; h < outputs; ++h) {
            w[h] = rounded_weight(format, weights[h], subs, n[h], k, raise[h]);
        }
        for (u32 i = 0; i < rows; ++i) {
            float x = panel_value(panels, panel_subs, first + i, k);
            for (u32 h = 0; h < outputs; ++h) {
                sums[h][i] = fmaf(w[h], x, sums[h][i]);
            }
        }
    }
}

// A warp's tile: its first eight lanes make outputs g and g + 8, of all rows. What is added is made by the whole warp, by the kernels' own code.
inline void gemm(const GemmParams& p, u32 format) {
    static __thread float of_warps[32][2][16][8];
    static __thread brasa::BatchRanks ranks_of_warps[32];
    float(&addends)[2][16][8] = of_warps[threadIdx.x / 32];
    brasa::BatchRanks& ranks = ranks_of_warps[threadIdx.x / 32];
    u32 unit_subs = brasa::geometry(format).unit_subs, units = p.subs / unit_subs, warps = gridDim.x * (blockDim.x / 32);
    for (u32 i = (u32)(thread_number() / 32); i < p.splits * p.tiles; i += warps) {
        u32 tile = i % p.tiles, split = i / p.tiles, g = lane() % 8, n = tile * 16 + g;
        const bool adds = p.addend.form != LOW_RANK_NONE && !p.tail.panels && split == 0;
        if (adds) {
            auto wait = [] { brasa::warp_barrier(); };
            auto ready = [] {};
            for (u32 half = 0; half < 2; ++half) {
                const u32 output = (half == 0 ? p.out.lower : p.out.upper) + tile * (p.out.form == TILES_DENSE ? 16 : 8), of_b = output / 16;
                const brasa::Crew<decltype(wait), decltype(ready)> alone = {0, 1, of_b, wait, ready};
                float sums[2][4] = {};
                brasa::add_addend<2>(sums, p.addend, 0, alone, ranks);
                for (u32 e = 0; e < 4; ++e) {
                    addends[half][8 * (e / 2) + 2 * (lane() % 4) + e % 2][lane() / 4] = sums[e / 2][output / 8 % 2 * 2 + e % 2];
                }
            }
            brasa::warp_barrier();
        }
        u32 begin = split * units / p.splits * unit_subs * 64, end = (split + 1) * units / p.splits * unit_subs * 64;
        for (u32 first = 0; first < p.rows && lane() < 8; first += ROWS_AT_ONCE) {
            u32 rows = min(ROWS_AT_ONCE, p.rows - first);
            float sums[2][ROWS_AT_ONCE] = {};
            add_products(sums, format, {p.weights, p.weights}, {n, n + 8}, {p.raise, p.raise}, 2, p.panels, p.subs, p.panel_subs, first, rows, begin, end);
            if (p.tail.panels && split + 1 == p.splits) {
                for (u32 h = 0; h < 2; ++h) {
                    const u32 output = (h == 0 || p.out.form == TILES_DENSE ? p.out.lower : p.out.upper) + tile * (p.out.form == TILES_DENSE ? 16 : 8);
                    const brasa::Pieces bank = brasa::pieces_of(p.addend.spans, output / 16, 1), pieces = p.tail.tiles ? brasa::Pieces{0, 1} : bank;
                    for (u32 r = 0; r < rows && pieces.first < pieces.end; ++r) {
                        const float factor = p.tail.tiles ? p.tail.factors[tile] : p.tail.factor * p.tail.ratios[first + r];
                        float sum = sums[h][r] * factor;
                        for (u32 k = pieces.first * 64; k < pieces.end * 64; ++k) {
                            const float w = p.tail.tiles ? tail_value(p.tail.tiles + (u64)tile * 2048, g + 8 * h, k)
                                                         : bank_value(p, output + g + (p.out.form == TILES_DENSE ? 8 * h : 0), k);
                            sum = fmaf(w, panel_value(p.tail.panels, p.tail.subs, first + r, k), sum);
                        }
                        sums[h][r] = sum * (1.0f / factor);
                    }
                }
            }
            for (u32 r = 0; r < rows; ++r) {
                u32 row = first + r;
                float scale = p.row_scale[row] * p.scale, lower = sums[0][r] * scale, upper = sums[1][r] * scale;
                if (adds) {
                    lower += addends[0][row][g] * (p.addend.scale * p.scale);
                    upper += addends[1][row][g] * (p.addend.scale * p.scale);
                }
                if (p.splits > 1) {
                    float* to = p.partial + ((u64)split * p.rows + row) * p.tiles * 16 + n;
                    to[0] = lower;
                    to[8] = upper;
                } else {
                    write_outputs(p.out, row, tile, g, lower, upper);
                }
            }
        }
        brasa::warp_barrier();
    }
}

// Grouped products: of each block of sorted rows with its expert's weights, one or two.
inline void expert_gemm(const ExpertGemmParams& p, u32 format, u32 weights) {
    u32 outputs = p.tiles * 16;
    for (u32 block = blockIdx.x; block < *p.plan.count; block += gridDim.x) {
        const u32* of_block = p.plan.blocks + block * 3;
        for (u32 n = threadIdx.x; n < outputs; n += blockDim.x) {
            u32 of_expert = of_block[0] * outputs + n;
            for (u32 first = of_block[1]; first < of_block[2]; first += ROWS_AT_ONCE) {
                u32 rows = min(ROWS_AT_ONCE, of_block[2] - first);
                float sums[2][ROWS_AT_ONCE] = {};
                add_products(sums, format, {p.weights[0], p.weights[1]}, {of_expert, of_expert}, {p.raise[0], p.raise[1]}, weights, p.panels, p.subs, p.subs, first,
                             rows, 0, p.subs * 64);
                for (u32 position = first; position < first + rows; ++position) {
                    float products[2] = {};
                    for (u32 weight = 0; weight < weights; ++weight) {
                        products[weight] = sums[weight][position - first] * (p.row_scale[position] * p.scale[weight]);
                    }
                    if (weights == 1) {
                        p.y[(u64)p.plan.slots[position] * outputs + n] = products[0];
                    } else {
                        float gated = unary_value(p.function, products[0], 0.0f, 0.0f) * (products[1] / p.gated_scale[position]);
                        ((unsigned short*)panel_piece(p.gated, p.gated_subs, position, n))[n % 8] = float_to_half(gated);
                    }
                }
            }
        }
    }
}

}  // namespace brasa_emulation

#define BRASA_EMULATED_GEMM(name, Format)                                                                \
    KERNEL(gemm_##name##_16, GemmParams) { brasa_emulation::gemm(p, Format::FORMAT); }                    \
    KERNEL(gemm_##name##_16_adding, GemmParams) { brasa_emulation::gemm(p, Format::FORMAT); }             \
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
