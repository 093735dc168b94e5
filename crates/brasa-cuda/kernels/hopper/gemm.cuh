// Matrix products of many rows: y[M, N] = x[M, K] · W[N, K]ᵀ, f16 on the tensor cores, f32 sums.
//
// Weights are operand A of wgmma, from registers: a warp reads its 16 × 64 piece in fragment order (layout.cuh) from shared memory,
// decodes it in registers whatever its format, and multiplies it with panels of x (operand B, in shared memory). So one
// kernel serves every format, and quantised weights never exist as 16-bit values in memory.
//
// A block makes 64·GROUPS outputs × ROWS rows: GROUPS warpgroups multiply, another copies. Blocks in pairs (a cluster)
// share their rows of x: each copies half of a panel stage to both. K goes by in stages of 64 through a ring; while the tensor cores
// multiply stage k, the warps decode stage k+1.
//
// Blocks stay and take tiles in turn, rows fastest, so that blocks at work at one time share weights and panels in L2. Where there are
// few tiles, parts of K are tiles of their own, whose sums are added by another kernel.
// Needs: K a multiple of 64 (256 for K-quants), N a multiple of 64·GROUPS·CLUSTER or masked at the store. Panels may hold
// anything behind M: products of those rows are dropped.
#pragma once
#include "../plain/params.h"
#include "halves.cuh"
#include "overlap.cuh"
#include "wgmma.cuh"

namespace brasa {

__device__ __forceinline__ uint32_t cluster_rank() {
    uint32_t r;
    asm volatile("mov.u32 %0, %cluster_ctarank;" : "=r"(r));
    return r;
}
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\n barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Arrives at the barrier of the same place in block `rank` of the cluster. Nothing was written that others read; with
// `.release.cluster` the compiler puts a fence of all memory before it, which takes longer than the products of a stage.
__device__ __forceinline__ void mbarrier_arrive_at(uint64_t* bar, uint32_t rank) {
    asm volatile("{\n .reg .b32 r;\n mapa.shared::cluster.u32 r, %0, %1;\n mbarrier.arrive.shared::cluster.b64 _, [r];\n}"
                 ::"r"(shared_address(bar)), "r"(rank) : "memory");
}
__device__ __forceinline__ void bulk_load_both(void* to, const void* from, uint32_t bytes, uint64_t* bar) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;"
                 ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(bar)), "h"(uint16_t(3)) : "memory");
}

template <uint32_t F, int ROWS, int GROUPS, int CLUSTER> struct GemmShape {
    static constexpr Geometry G = geometry(F);
    static constexpr uint32_t OUTPUTS = 64 * GROUPS, TILES = OUTPUTS / 16;
    static constexpr uint32_t PIECE = (G.header_bytes + G.sub_bytes + 127) / 128 * 128;  // a tile's header and sub
    static constexpr uint32_t A_BYTES = (TILES * PIECE + 1023) / 1024 * 1024, B_BYTES = ROWS * 128;
    static constexpr uint32_t STAGE = (A_BYTES + B_BYTES + 1023) / 1024 * 1024;
    static constexpr uint32_t FIT = (GROUPS == 1 ? 112640 : 229376) / STAGE, MOST = ROWS == 16 ? 16 : 8, STAGES = FIT > MOST ? MOST : FIT;
    static constexpr uint32_t PANELS = ROWS < 64 ? 1 : ROWS / 64;  // of a stage, all or a part of one
    static constexpr uint32_t SHARED = STAGES * STAGE + 1024;
    static constexpr uint32_t THREADS = 128 * (GROUPS + 1);
};

// Calls `write(row, lower, upper, read(row))` for each of the lane's rows, its products scaled. What eight rows need is read before any
// of them is written, so that their loads are on their way together.
template <int ROWS, class Read, class Write>
__device__ __forceinline__ void each_row(const GemmParams& p, const float (&d)[ROWS / 2], uint32_t first_row, uint32_t t, Read read, Write write) {
    constexpr int TOGETHER = ROWS / 4 < 8 ? ROWS / 4 : 8;
#pragma unroll
    for (int begin = 0; begin < ROWS / 4; begin += TOGETHER) {
        if (first_row + begin * 4 >= p.rows) return;
        float scale[TOGETHER];
        float2 before[TOGETHER];
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            const uint32_t row = min(first_row + 8 * ((begin + i) / 2) + 2 * t + i % 2, p.rows - 1);
            scale[i] = __ldg(p.row_scale + row);
            before[i] = read(row);
        }
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            const int n = (begin + i) / 2 * 4 + i % 2;
            const uint32_t row = first_row + 8 * ((begin + i) / 2) + 2 * t + i % 2;
            if (row < p.rows) write(row, d[n] * (scale[i] * p.scale), d[n + 2] * (scale[i] * p.scale), before[i]);
        }
    }
}

// Outputs g and g + 8 of a tile, or parts of their sums. d[4j + c]: output g + 8·(c/2), row 8j + 2t + c%2.
template <int ROWS>
__device__ __forceinline__ void write_products(const GemmParams& p, const float (&d)[ROWS / 2], uint32_t first_row, uint32_t t, uint32_t tile, uint32_t g, uint32_t split) {
    const Outputs& out = p.out;
    auto nothing = [](uint32_t) { return make_float2(0.0f, 0.0f); };
    if (p.splits > 1) {
        float* to = p.partial + uint64_t(split) * p.rows * p.tiles * 16 + tile * 16 + g;
        each_row<ROWS>(p, d, first_row, t, nothing, [&](uint32_t row, float lower, float upper, float2) {
            to[uint64_t(row) * p.tiles * 16] = lower;
            to[uint64_t(row) * p.tiles * 16 + 8] = upper;
        });
        return;
    }
    const bool dense = out.form == TILES_DENSE;
    const uint32_t i = tile * (dense ? 16 : 8) + g, n = out.lower + i, m = out.upper + i;
    const bool has_lower = i < out.count, has_upper = dense ? i + 8 < out.count : has_lower;
    const float low_bias = out.bias && has_lower ? out.bias[n] : 0.0f, high_bias = out.bias && has_upper ? out.bias[m] : 0.0f;
    if (out.form == TILES_GATED) {
        if (!has_lower) return;
        auto gated = [&](auto act) {
            if (!out.panels) {
                each_row<ROWS>(p, d, first_row, t, nothing, [&](uint32_t row, float lower, float upper, float2) {
                    out.y[uint64_t(row) * out.y_width + i] = act(lower + low_bias) * (upper + high_bias);
                });
                return;
            }
            // Halves for the product behind, where eight outputs are one piece of a row's panel.
            auto down = [&](uint32_t row) { return make_float2(1.0f / out.row_scale[row], 0.0f); };
            each_row<ROWS>(p, d, first_row, t, down, [&](uint32_t row, float lower, float upper, float2 scale) {
                const float value = act(lower + low_bias) * (upper + high_bias) * scale.x;
                uint8_t* piece = out.panels + (uint64_t(row / 64) * out.subs + i / 64) * 8192 + row % 64 * 128 + ((i % 64 / 8) ^ (row % 8)) * 16;
                reinterpret_cast<__half*>(piece)[i % 8] = __float2half_rn(value);
            });
        };
        if (out.function == UNARY_SILU) gated([](float x) { return x / (1.0f + __expf(-x)); });
        else if (out.function == UNARY_GELU_TANH) gated([](float x) { return 0.5f * x * (1.0f + tanhf(0.7978846f * (x + 0.044715f * x * x * x))); });
        else gated([](float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678f)); });
        return;
    }
    auto residual = [&](uint32_t row) {
        const Rows& r = out.residual;
        if (!r.data) return make_float2(0.0f, 0.0f);
        const float* from = r.data + uint64_t(row / r.per) * r.stride + uint64_t(row % r.per) * r.width;
        return make_float2(has_lower ? from[n] : 0.0f, has_upper ? from[m] : 0.0f);
    };
    each_row<ROWS>(p, d, first_row, t, residual, [&](uint32_t row, float lower, float upper, float2 before) {
        float* y = out.y + uint64_t(row) * out.y_width;
        if (has_lower) y[n] = before.x + (lower + low_bias);
        if (has_upper) y[m] = before.y + (upper + high_bias);
    });
}

template <uint32_t F, int ROWS, int GROUPS, int CLUSTER> __device__ __forceinline__ void gemm(const GemmParams& p) {
    using T = GemmShape<F, ROWS, GROUPS, CLUSTER>;
    constexpr Geometry G = T::G;
    constexpr uint32_t STAGES = T::STAGES;
    extern __shared__ __align__(1024) uint8_t gemm_shared[];
    __shared__ uint64_t full[STAGES], empty[STAGES];
    let_next_start();
    uint8_t* stages = gemm_shared + ((1024 - (shared_address(gemm_shared) & 1023)) & 1023);
    const uint32_t rank = CLUSTER > 1 ? cluster_rank() : 0;
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < STAGES; i++) {
            mbarrier_init(full + i, 1);
            mbarrier_init(empty + i, GROUPS * CLUSTER);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if (CLUSTER > 1) cluster_sync(); else __syncthreads();
    const uint32_t row_blocks = (p.rows + ROWS - 1) / ROWS, output_blocks = (p.tiles + T::TILES * CLUSTER - 1) / (T::TILES * CLUSTER);
    const uint32_t panels = (p.rows + 63) / 64, all = row_blocks * output_blocks * p.splits;
    const uint64_t tile = tile_bytes(F, p.subs);
    // Units of K, which splits share.
    const uint32_t units = p.subs / G.unit_subs;
    struct Work { uint32_t row_block, output_block, split, first_sub, subs; };
    auto work = [&](uint32_t at) {
        Work w;
        w.row_block = at % row_blocks;
        w.output_block = at / row_blocks % output_blocks;
        w.split = at / row_blocks / output_blocks;
        const uint32_t first = w.split * units / p.splits;
        w.first_sub = first * G.unit_subs;
        w.subs = ((w.split + 1) * units / p.splits - first) * G.unit_subs;
        return w;
    };
    const uint32_t group = threadIdx.x / 128;
    uint32_t stage = 0, parity = 0;
    if (group == GROUPS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
        // A stage is PANELS panels and a piece of every tile, each a copy of its own. Copies of one warp are issued one after the
        // other (UBLKCP takes its operands from uniform registers), so they are dealt to the four warps: copy i to lane i/4 of warp i%4.
        const uint32_t copy = threadIdx.x % 32 * 4 + threadIdx.x % 128 / 32;
        for (uint32_t at = blockIdx.x / CLUSTER; at < all; at += gridDim.x / CLUSTER) {
            const Work w = work(at);
            const uint32_t row_block = w.row_block, first_tile = (w.output_block * CLUSTER + rank) * T::TILES;
            const uint32_t my_tiles = first_tile < p.tiles ? min(T::TILES, p.tiles - first_tile) : 0;
            const uint32_t first_panel = row_block * ROWS / 64, my_panels = min(T::PANELS, panels - first_panel);
            // Of a block's only panel, the rows that are there, in eights; products of others are dropped.
            const uint32_t panel_bytes = CLUSTER == 1 ? (min(uint32_t(ROWS), p.rows - row_block * ROWS) + 7) / 8 * 1024 : 8192;
            const uint32_t bytes = my_tiles * (G.header_bytes + G.sub_bytes) + my_panels * panel_bytes;
            const bool panel = copy < my_panels, weight = copy >= T::PANELS && copy - T::PANELS < my_tiles;
            const uint32_t i = copy - T::PANELS;  // of the tiles
            const uint8_t* from = p.panels + (uint64_t(first_panel + copy) * p.subs + w.first_sub) * 8192 + row_block * ROWS % 64 * 128 + (CLUSTER > 1 ? rank * 4096 : 0);
            if (weight) from = p.weights + (first_tile + i) * tile + uint64_t(w.first_sub / G.unit_subs) * unit_bytes(F);
            const uint32_t to = weight ? i * T::PIECE : T::A_BYTES + copy * 8192 + (CLUSTER > 1 ? rank * 4096 : 0);
            auto ask_panel = [&](uint32_t s) {
                uint8_t* there = stages + s * T::STAGE + to;
                if (CLUSTER > 1) bulk_load_both(there, from, 4096, full + s);
                else bulk_load(there, from, panel_bytes, full + s);
                from += 8192;
            };
            auto ask_weight = [&](uint32_t s, uint32_t k) {
                uint8_t* there = stages + s * T::STAGE + to;
                if (G.header_bytes) bulk_load(there, from, G.header_bytes, full + s);
                bulk_load(there + G.header_bytes, from + G.header_bytes + k % G.unit_subs * G.sub_bytes, G.sub_bytes, full + s);
                if (k % G.unit_subs == G.unit_subs - 1) from += unit_bytes(F);
            };
            uint32_t k = 0;
            if (at == blockIdx.x / CLUSTER) {
                // Weights fill the ring while the launch in front still makes x.
                const uint32_t first = min(STAGES, w.subs);
                for (; k < first; k++) {
                    if (copy == 0) mbarrier_expect(full + k, bytes);
                    __syncwarp();
                    if (weight) ask_weight(k, k);
                }
                wait_for_last();
                for (uint32_t s = 0; s < first; s++) {
                    if (panel) ask_panel(s);
                }
                stage = first == STAGES ? 0 : first;
                parity = first == STAGES;
            }
            for (; k < w.subs; k++) {
                mbarrier_wait(empty + stage, parity ^ 1);
                if (copy == 0) mbarrier_expect(full + stage, bytes);
                __syncwarp();
                if (panel) ask_panel(stage);
                else if (weight) ask_weight(stage, k);
                if (++stage == STAGES) { stage = 0; parity ^= 1; }
            }
        }
    } else {
        if (GROUPS == 2) asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
        wait_for_last();
        const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32, g = lane >> 2, t = lane & 3;
        const uint32_t my_piece = (group * 4 + warp) * T::PIECE;
        const uint32_t base = shared_address(stages);
        auto release = [&](uint32_t s) {
            if (threadIdx.x % 128 == 0) {
                if (CLUSTER > 1) {
                    mbarrier_arrive_at(empty + s, 0);
                    mbarrier_arrive_at(empty + s, 1);
                } else mbarrier_arrive(empty + s);
            }
        };
        for (uint32_t at = blockIdx.x / CLUSTER; at < all; at += gridDim.x / CLUSTER) {
            const Work w = work(at);
            const uint32_t first_tile = (w.output_block * CLUSTER + rank) * T::TILES, subs = w.subs;
            float d[ROWS / 2];
            uint32_t a[2][4][4];
            auto fetch = [&](uint32_t (&to)[4][4]) {  // decodes this stage's weights
                mbarrier_wait(full + stage, parity);
                const uint32_t unit = base + stage * T::STAGE + my_piece;
                decode_sub<F>(to, unit, unit + G.header_bytes, lane, p.raise);
            };
            auto multiply = [&](uint32_t (&from)[4][4], uint32_t k) {
                wgmma_fence();
                const uint64_t b = wgmma_descriptor(base + stage * T::STAGE + T::A_BYTES);
#pragma unroll
                for (int s = 0; s < 4; s++) wgmma<ROWS>(d, from[s], b + 2 * s, k > 0 || s > 0);
                wgmma_commit();
            };
            uint32_t last = 0;
            // Starts products of stage k, then decodes stage k+1 once those of stage k-1, whose registers it takes, have ended: the
            // tensor cores always have work queued.
            auto step = [&](uint32_t (&mine)[4][4], uint32_t (&next)[4][4], uint32_t k) {
                multiply(mine, k);
                if (k > 0) {
                    wgmma_wait<1>();
                    release(last);
                }
                last = stage;
                if (++stage == STAGES) { stage = 0; parity ^= 1; }
                if (k + 1 < subs) fetch(next);
            };
            fetch(a[0]);
            for (uint32_t k = 0; k < subs; k += 2) {
                step(a[0], a[1], k);
                if (k + 1 < subs) step(a[1], a[0], k + 1);
            }
            wgmma_wait<0>();
            release(last);
            const uint32_t my_tile = first_tile + group * 4 + warp;
            if (my_tile < p.tiles) write_products<ROWS>(p, d, w.row_block * ROWS, t, my_tile, g, w.split);
        }
    }
    __syncwarp();
    if (CLUSTER > 1) cluster_sync();  // no block leaves while another may still arrive at its barriers
}

}  // namespace brasa

#define BRASA_GEMM(NAME, FORMAT, ROWS, GROUPS, CLUSTER)                                                                             \
    extern "C" __global__ void __launch_bounds__(brasa::GemmShape<brasa::FORMAT, ROWS, GROUPS, CLUSTER>::THREADS, GROUPS == 1 ? 2 : 1)  \
        __cluster_dims__(CLUSTER, 1, 1) NAME(const __grid_constant__ GemmParams p) {                                               \
        brasa::gemm<brasa::FORMAT, ROWS, GROUPS, CLUSTER>(p);                                                                       \
    }
#define BRASA_GEMMS(NAME, FORMAT)                  \
    BRASA_GEMM(gemm_##NAME##_16, FORMAT, 16, 1, 1)   \
    BRASA_GEMM(gemm_##NAME##_64, FORMAT, 64, 1, 1)   \
    BRASA_GEMM(gemm_##NAME##_128, FORMAT, 128, 2, 2) \
    BRASA_GEMM(gemm_##NAME##_256, FORMAT, 256, 2, 2)

BRASA_GEMMS(f16, F16)
BRASA_GEMMS(bf16, BF16)
BRASA_GEMMS(q8_0, Q8_0)
BRASA_GEMMS(q4_0, Q4_0)
BRASA_GEMMS(q4_k, Q4_K)
BRASA_GEMMS(q6_k, Q6_K)
BRASA_GEMMS(q5_k, Q5_K)
BRASA_GEMMS(q4_1, Q4_1)
BRASA_GEMMS(mlx8, MLX8)
BRASA_GEMMS(q3_k, Q3_K)
BRASA_GEMMS(q2_k, Q2_K)
BRASA_GEMMS(iq4_xs, IQ4_XS)
