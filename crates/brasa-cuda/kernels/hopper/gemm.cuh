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
// What a product is of, and what stands beside it, is said by its own type: dense.cuh, experts.cuh.
//
// Blocks stay and take tiles in turn, rows fastest, so that blocks at work at one time share weights and panels in L2. Where there are
// few tiles, parts of K are tiles of their own, whose sums are added by another kernel.
// What rows are scaled by is copied to shared memory when a piece begins: at its end loads wait behind weights that the next launch asks for.
// Needs: K a multiple of 64 (256 for K-quants), N a multiple of 64·GROUPS·CLUSTER or masked at the store. Panels may hold
// anything behind M: products of those rows are dropped.
#pragma once
#include "../plain/common.cuh"
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

// Threads of a warpgroup that let a stage go: one, behind products that all of them have waited for. BRASA_EACH_LANE: ring.cuh.
#ifdef BRASA_EACH_LANE
constexpr uint32_t STAGE_LEAVERS = 128;
#else
constexpr uint32_t STAGE_LEAVERS = 1;
#endif

// Barriers of the warpgroup that makes addends, of both it and the one that adds them, and of two warps of the former.
constexpr uint32_t MAKING_ADDENDS = 3, ADDENDS_THERE = 4, ADDENDS_USED = 5, MAKING_HALVES = 6;

template <uint32_t F, int ROWS, int GROUPS, int CLUSTER> struct GemmShape {
    static constexpr uint32_t FORMAT = F;
    static constexpr Geometry G = geometry(F);
    static constexpr uint32_t OUTPUTS = 64 * GROUPS, TILES = OUTPUTS / 16;
    static constexpr uint32_t PIECE = (G.header_bytes + G.sub_bytes + 127) / 128 * 128;  // a tile's header and sub
    static constexpr uint32_t A_BYTES = (TILES * PIECE + 1023) / 1024 * 1024, B_BYTES = ROWS * 128;
    static constexpr uint32_t STAGE = (A_BYTES + B_BYTES + 1023) / 1024 * 1024;
    // Stages that fit beside so many bytes.
    BRASA_BOTH static constexpr uint32_t stages(uint32_t beside) {
        const uint32_t fit = ((GROUPS == 1 ? 112640 : ROWS == 256 ? 228352 : 229376) - beside) / STAGE, most = ROWS == 16 ? 16 : 8;
        return fit > most ? most : fit;
    }
    static constexpr uint32_t PANELS = ROWS < 64 ? 1 : ROWS / 64;  // of a stage, all or a part of one
    static constexpr uint32_t THREADS = 128 * (GROUPS + 1);
};

// A piece of the product, which one cluster makes: rows from `first_row` to `rows_end` or as many as a block has, tiles from `first_tile` to
// `tiles_end` of `weights` or as many as the cluster has, inputs of `subs` subs from `first_sub` on. The second weight is there where
// products with two are multiplied with each other.
struct Piece {
    const uint8_t* weights[2];
    float raise[2];
    uint32_t first_row, rows_end, first_tile, tiles_end, first_sub, subs, number;
};

// `Product` says which pieces there are, and where their products go.
template <uint32_t F, int ROWS, int GROUPS, int CLUSTER, class Product, class Params> __device__ __forceinline__ void gemm(const Params& p) {
    using T = GemmShape<F, ROWS, GROUPS, CLUSTER>;
    constexpr Geometry G = T::G;
    constexpr uint32_t STAGES = T::stages(Product::HANDED * GROUPS * 4 + Product::ADDENDS);
    extern __shared__ __align__(1024) uint8_t gemm_shared[];
    __shared__ uint64_t full[STAGES], empty[STAGES];
    __shared__ float facts[Product::FACTS];
    __shared__ uint64_t x_came, handovers[2];
    Handover<ADDENDS_THERE, 256> there(handovers);
    Handover<ADDENDS_USED, 256> used(handovers + 1);
    if (!Product::ADDS) let_next_start();
    uint8_t* stages = gemm_shared + ((1024 - (shared_address(gemm_shared) & 1023)) & 1023);
    const uint32_t rank = CLUSTER > 1 ? cluster_rank() : 0;
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < STAGES; i++) {
            mbarrier_init(full + i, 1);
            mbarrier_init(empty + i, GROUPS * CLUSTER * STAGE_LEAVERS);
        }
        if (Product::ADDS) {
            mbarrier_init(&x_came, 1);
            there.init(128);
            used.init(128);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if (CLUSTER > 1) cluster_sync(); else __syncthreads();
    if (!Product::AHEAD) wait_for_last();
    const Product product(p);
    const uint32_t all = product.all;
    uint32_t* x_ready = nullptr;
    if constexpr (Product::ADDS) x_ready = product.x_ready();
    if (Product::ADDS && !x_ready) let_next_start();
    auto wait_for_x = [&] {
        if (!x_ready) return wait_for_last();
        mbarrier_wait(&x_came, 0);
        __syncwarp();
        fence_proxy_async();
    };
    const uint64_t tile = tile_bytes(F, p.subs);
    const uint32_t group = threadIdx.x / 128;
    uint32_t stage = 0, parity = 0;
    uint8_t* behind_stages = stages + STAGES * T::STAGE;
    float4* addends = reinterpret_cast<float4*>(behind_stages);
    if (group == GROUPS) {
        if (Product::ADDS) asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
        else asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
        // A stage is PANELS panels and a piece of every tile, each a copy of its own. Copies of one warp are issued one after the
        // other (UBLKCP takes its operands from uniform registers), so they are dealt to the four warps: copy i to lane i/4 of warp i%4.
        const uint32_t copy = threadIdx.x % 32 * 4 + threadIdx.x % 128 / 32;
        for (uint32_t at = blockIdx.x / CLUSTER; at < all; at += gridDim.x / CLUSTER) {
            const Piece w = product.piece(at);
            const uint32_t first_tile = w.first_tile + rank * T::TILES;
            const uint32_t my_tiles = first_tile < w.tiles_end ? min(T::TILES, w.tiles_end - first_tile) : 0;
            const uint32_t first_panel = w.first_row / 64, my_panels = min(T::PANELS, (w.rows_end + 63) / 64 - first_panel);
            // Of a block's panels, the rows that are there, in eights; products of others are dropped. Blocks of a pair share whole panels.
            const uint32_t rows = min(uint32_t(ROWS), w.rows_end - w.first_row);
            const uint32_t panel_rows = T::PANELS == 1 ? rows : min(64u, rows - min(rows, copy * 64));
            const uint32_t panel_bytes = CLUSTER == 1 ? (panel_rows + 7) / 8 * 1024 : 8192;
            const uint32_t bytes_of_panels = CLUSTER == 1 ? (rows + 7) / 8 * 1024 : my_panels * 8192;
            const uint32_t bytes = my_tiles * (G.header_bytes + G.sub_bytes) + bytes_of_panels;
            const bool panel = copy < my_panels, weight = copy >= T::PANELS && copy - T::PANELS < my_tiles;
            const uint32_t i = copy - T::PANELS;  // of the tiles
            const uint8_t* from = nullptr;
            auto begin = [&](int number) {
                from = p.panels + (uint64_t(first_panel + copy) * product.panel_subs() + w.first_sub) * 8192 + w.first_row % 64 * 128 + (CLUSTER > 1 ? rank * 4096 : 0);
                if (weight) from = w.weights[number] + (first_tile + i) * tile + uint64_t(w.first_sub / G.unit_subs) * unit_bytes(F);
            };
            begin(0);
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
            if (Product::AHEAD && at == blockIdx.x / CLUSTER) {
                // Weights fill the ring while the launch in front still makes x.
                const uint32_t first = min(STAGES, w.subs);
                for (; k < first; k++) {
                    if (copy == 0) mbarrier_expect(full + k, bytes);
                    __syncwarp();
                    if (weight) ask_weight(k, k);
                }
                wait_for_x();
                for (uint32_t s = 0; s < first; s++) {
                    if (panel) ask_panel(s);
                }
                stage = first == STAGES ? 0 : first;
                parity = first == STAGES;
            }
#pragma unroll
            for (int number = 0; number < Product::WEIGHTS; number++) {
                if (number > 0) begin(number);
                for (; k < w.subs; k++) {
                    mbarrier_wait(empty + stage, parity ^ 1);
                    if (copy == 0) mbarrier_expect(full + stage, bytes);
                    __syncwarp();
                    if (panel) ask_panel(stage);
                    else if (weight) ask_weight(stage, k);
                    if (++stage == STAGES) { stage = 0; parity ^= 1; }
                }
                k = 0;
            }
            if constexpr (Product::TAILS) {
                const auto tail = product.tail(w);
                if (panel) from = product.tail_panels(w.first_row + copy * 64) + tail.first * 8192 + (CLUSTER > 1 ? rank * 4096 : 0);
                for (uint32_t piece = tail.first; piece < tail.end; piece++) {
                    mbarrier_wait(empty + stage, parity ^ 1);
                    if (copy == 0) mbarrier_expect(full + stage, bytes_of_panels);
                    __syncwarp();
                    if (panel) ask_panel(stage);
                    if (++stage == STAGES) { stage = 0; parity ^= 1; }
                }
            }
        }
    } else if (Product::ADDS && group > GROUPS) {
        if constexpr (Product::ADDS) {
            asm volatile("setmaxnreg.inc.sync.aligned.u32 112;");
            const uint32_t warp = threadIdx.x % 128 / 32;
            auto fetch = [&](uint32_t at) {
                if (at < all && product.has_addend(product.piece(at))) product.fetch_addend(product.piece(at), warp);
            };
            for (uint32_t at = blockIdx.x; at < all; at += gridDim.x) {
                const Piece w = product.piece(at);
                if (!product.has_addend(w)) continue;
                product.make_addend(addends, w, warp, threadIdx.x % 32);
                there.tell();
                fetch(at + gridDim.x);
                used.await();
            }
            wait_for_last();
        }
    } else {
        if (GROUPS == 2) asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
        if (Product::ADDS) asm volatile("setmaxnreg.inc.sync.aligned.u32 96;");
        if constexpr (Product::ADDS) {
            if (x_ready && threadIdx.x == 0) product.await_x(x_ready, &x_came);
        }
        wait_for_x();
        const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32, g = lane >> 2, t = lane & 3;
        const uint32_t my_piece = (group * 4 + warp) * T::PIECE;
        const uint32_t base = shared_address(stages);
        auto release = [&](uint32_t s) {
            if (threadIdx.x % 128 < STAGE_LEAVERS) {
                if (CLUSTER > 1) {
                    mbarrier_arrive_at(empty + s, 0);
                    mbarrier_arrive_at(empty + s, 1);
                } else mbarrier_arrive(empty + s);
            }
        };
        for (uint32_t at = blockIdx.x / CLUSTER; at < all; at += gridDim.x / CLUSTER) {
            const Piece w = product.piece(at);
            named_barrier(1, 128 * GROUPS);  // the facts of the piece before are used no more
            product.ask_facts(facts, w, threadIdx.x, 128 * GROUPS);
            const uint32_t first_tile = w.first_tile + rank * T::TILES, subs = w.subs;
            float all_d[Product::WEIGHTS][ROWS / 2];
            uint32_t a[2][4][4];
#pragma unroll
            for (int number = 0; number < Product::WEIGHTS; number++) {
                float(&d)[ROWS / 2] = all_d[number];
                auto fetch = [&](uint32_t (&to)[4][4]) {  // decodes this stage's weights
                    mbarrier_wait(full + stage, parity);
                    const uint32_t unit = base + stage * T::STAGE + my_piece;
                    decode_sub<F>(to, unit, unit + G.header_bytes, lane, w.raise[number]);
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
                if constexpr (Product::TAILS) {
                    const auto tail = product.tail(w);
                    if (tail.first < tail.end) {
                        const uint32_t of_tail = min(first_tile + group * 4 + warp, w.tiles_end - 1);
                        uint32_t weights[4][4];
                        product.load_tail(weights, of_tail, tail.first, lane);
                        wgmma_wait<0>();
                        product.template scale_for_tail<false>(d, w, of_tail, t);
                        // One piece after the other: with weights that are asked for beside products, the compiler has every product of the kernel wait for itself (C7515).
                        for (uint32_t piece = tail.first; piece < tail.end; piece++) {
                            release(last);
                            if (piece > tail.first) product.load_tail(weights, of_tail, piece, lane);
                            mbarrier_wait(full + stage, parity);
                            multiply(weights, 1);
                            last = stage;
                            if (++stage == STAGES) { stage = 0; parity ^= 1; }
                            wgmma_wait<0>();
                        }
                        product.template scale_for_tail<true>(d, w, of_tail, t);
                    }
                }
                wgmma_wait<0>();
                release(last);
            }
            copies_came();
            named_barrier(1, 128 * GROUPS);
            if constexpr (Product::ADDS) {
                if (product.has_addend(w)) {
                    there.await();
                    product.take_addend(all_d[0], addends, facts, t);
                    used.tell();
                }
            }
            const uint32_t my_tile = first_tile + group * 4 + warp;
            if constexpr (Product::HANDED > 0) {
                if (product.write_handed(all_d, facts, w, reinterpret_cast<float*>(behind_stages), first_tile + group * 4, group)) continue;
            }
            if (my_tile < w.tiles_end) product.write(all_d, facts, w, t, my_tile, g);
        }
    }
    __syncwarp();
    if (CLUSTER > 1) cluster_sync();  // no block leaves while another may still arrive at its barriers
}

}  // namespace brasa
