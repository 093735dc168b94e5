// Attention of many rows over the paged cache (prompts): flash attention with mma.sync.
//
// A block makes one head of 128 rows of a segment: eight warps of sixteen rows. Keys and values of 64 positions at a time come by
// bulk copies into a ring of stages; the pages' own swizzle keeps ldmatrix free of bank conflicts. Rows see j ≤ index and, with a
// window w, j > index − w; blocks skip positions that none of their rows sees. The row's own keys are in the cache already. Segments
// of fewer than `p.fewest_rows` rows and draft trees are left alone.
// Grid: x: blocks of rows of the longest segment, y: heads, z: segments. Positions behind the last hold finite numbers.
//
// Dao 2023, arXiv:2307.08691. f16 operands, f32 scores and sums. Needs a head width that is a multiple of 16, up to 256.
#pragma once
#include "../plain/params.h"
#include "common.cuh"
#include "layout.cuh"
#include "overlap.cuh"

namespace brasa {

template <int E> struct FlashShape {
    static constexpr uint32_t ROWS = 128, SPAN = 64, STAGE = 2 * SPAN * E * 2, STAGES = E <= 128 ? 3 : 2;
    static constexpr uint32_t SHARED = STAGES * STAGE + 1024;
};

template <int E> __device__ __forceinline__ void flash(const FlashParams& p) {
    let_next_start();
    wait_for_last();
    using T = FlashShape<E>;
    constexpr uint32_t SPAN = T::SPAN, ROW = E * 2, LOADS = E / 16;
    extern __shared__ __align__(1024) uint8_t flash_shared[];
    __shared__ uint64_t full[T::STAGES], empty[T::STAGES];
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane >> 2, t = lane & 3;
    const SegmentRows segment = p.step.segments[blockIdx.z];
    const uint32_t blocks = (segment.rows + T::ROWS - 1) / T::ROWS;
    if (blockIdx.x >= blocks || segment.rows < p.fewest_rows || segment.has_tree) return;
    // The last rows see most: they begin first.
    const uint32_t first_row = (blocks - 1 - blockIdx.x) * T::ROWS, head = blockIdx.y, kv_head = head / (p.heads / p.cache.kv_heads);
    const uint32_t last_row = min(first_row + T::ROWS, segment.rows) - 1;
    const uint32_t first_index = segment.first_index + first_row, end = segment.first_index + last_row + 1;
    const uint32_t begin = (p.window && first_index + 1 > p.window ? first_index + 1 - p.window : 0) / SPAN * SPAN;
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < T::STAGES; i++) {
            mbarrier_init(full + i, 1);
            mbarrier_init(empty + i, 8);
        }
        fence_proxy_async();
    }
    __syncthreads();
    const u64* pages = p.cache.pages + p.cache.starts[blockIdx.z];
    auto fetch = [&](uint32_t at, uint32_t stage) {  // by one thread
        const uint64_t page = pages[at / PAGE_POSITIONS] + p.cache.offset_bytes;
        const uint8_t* from = reinterpret_cast<const uint8_t*>(page) + uint64_t(kv_head) * p.cache.head_bytes + at % PAGE_POSITIONS * ROW;
        uint8_t* to = flash_shared + stage * T::STAGE;
        mbarrier_expect(full + stage, T::STAGE);
        bulk_load(to, from, SPAN * ROW, full + stage);
        bulk_load(to + SPAN * ROW, from + uint64_t(p.cache.kv_heads) * p.cache.head_bytes, SPAN * ROW, full + stage);
    };
    uint32_t ahead = begin;
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < T::STAGES && ahead < end; i++, ahead += SPAN) fetch(ahead, i);
    }
    // Queries as A fragments, times the scale, and log2 e where nothing comes between.
    const float scale = p.softcap > 0.0f ? p.scale : p.scale * 1.4426950408889634f;
    const uint32_t r0 = first_row + warp * 16 + g, r1 = r0 + 8;
    uint32_t q[LOADS][4];
#pragma unroll
    for (int e = 0; e < LOADS; e++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t r = min(i % 2 ? r1 : r0, segment.rows - 1);
            const float* from = p.q + uint64_t(segment.first_row + r) * p.q_stride + head * E + e * 16 + 2 * t + i / 2 * 8;
            q[e][i] = pack_halves(from[0] * scale, from[1] * scale);
        }
    }
    float o[E / 8][4];
#pragma unroll
    for (int e = 0; e < E / 8; e++) o[e][0] = o[e][1] = o[e][2] = o[e][3] = 0.0f;
    float m0 = -INFINITY, m1 = -INFINITY, l0 = 0.0f, l1 = 0.0f;
    const uint32_t index0 = segment.first_index + r0, index1 = index0 + 8;
    const uint32_t base = shared_address(flash_shared);
    uint32_t stage = 0, parity = 0;
    for (uint32_t at = begin; at < end; at += SPAN) {
        mbarrier_wait(full + stage, parity);
        const uint32_t keys = base + stage * T::STAGE, values = keys + SPAN * ROW;
        float s[SPAN / 8][4];
#pragma unroll
        for (int n = 0; n < SPAN / 8; n++) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0f;
        // Matrices of ldmatrix: positions 8·(i/2).., elements 8·(i%2)..
        const uint32_t position = lane % 8 + lane / 16 * 8, piece = lane / 8 % 2;
#pragma unroll
        for (int e = 0; e < LOADS; e++) {
#pragma unroll
            for (int n = 0; n < SPAN / 16; n++) {
                uint32_t b[4];
                load_matrix4(b, keys + (n * 16 + position) * ROW + kv_piece(E, position, 2 * e + piece) * 16);
                mma(s[2 * n], q[e], b[0], b[1]);
                mma(s[2 * n + 1], q[e], b[2], b[3]);
            }
        }
        if (p.softcap > 0.0f) {
#pragma unroll
            for (int n = 0; n < SPAN / 8; n++) {
#pragma unroll
                for (int c = 0; c < 4; c++) s[n][c] = p.softcap * tanhf(s[n][c] / p.softcap) * 1.4426950408889634f;
            }
        }
        if (at + SPAN > first_index + warp * 16 || p.window) {
#pragma unroll
            for (int n = 0; n < SPAN / 8; n++) {
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    const uint32_t j = at + n * 8 + 2 * t + c % 2, index = c < 2 ? index0 : index1;
                    if (j > index || (p.window && j + p.window <= index)) s[n][c] = -INFINITY;
                }
            }
        }
        float n0 = m0, n1 = m1;
#pragma unroll
        for (int n = 0; n < SPAN / 8; n++) {
            n0 = fmaxf(n0, fmaxf(s[n][0], s[n][1]));
            n1 = fmaxf(n1, fmaxf(s[n][2], s[n][3]));
        }
        n0 = fmaxf(n0, __shfl_xor_sync(~0u, n0, 1)); n0 = fmaxf(n0, __shfl_xor_sync(~0u, n0, 2));
        n1 = fmaxf(n1, __shfl_xor_sync(~0u, n1, 1)); n1 = fmaxf(n1, __shfl_xor_sync(~0u, n1, 2));
        // A row that has seen nothing yet keeps a finite base.
        const float b0 = n0 == -INFINITY ? 0.0f : n0, b1 = n1 == -INFINITY ? 0.0f : n1;
        const float f0 = exp2f(m0 - b0), f1 = exp2f(m1 - b1);
        m0 = n0; m1 = n1;
        l0 *= f0; l1 *= f1;
#pragma unroll
        for (int n = 0; n < SPAN / 8; n++) {
            s[n][0] = exp2f(s[n][0] - b0); s[n][1] = exp2f(s[n][1] - b0);
            s[n][2] = exp2f(s[n][2] - b1); s[n][3] = exp2f(s[n][3] - b1);
            l0 += s[n][0] + s[n][1];
            l1 += s[n][2] + s[n][3];
        }
#pragma unroll
        for (int e = 0; e < E / 8; e++) { o[e][0] *= f0; o[e][1] *= f0; o[e][2] *= f1; o[e][3] *= f1; }
        // Matrices of ldmatrix.trans: positions 8·(i%2).., elements 8·(i/2)..
        const uint32_t row = lane % 16, side = lane / 16;
#pragma unroll
        for (int n = 0; n < SPAN / 16; n++) {
            const uint32_t a[4] = {pack_halves(s[2 * n][0], s[2 * n][1]), pack_halves(s[2 * n][2], s[2 * n][3]),
                                   pack_halves(s[2 * n + 1][0], s[2 * n + 1][1]), pack_halves(s[2 * n + 1][2], s[2 * n + 1][3])};
#pragma unroll
            for (int e = 0; e < LOADS; e++) {
                uint32_t b[4];
                load_matrix4_transposed(b, values + (n * 16 + row) * ROW + kv_piece(E, row, 2 * e + side) * 16);
                mma(o[2 * e], a, b[0], b[1]);
                mma(o[2 * e + 1], a, b[2], b[3]);
            }
        }
        // racecheck names the next copy to this stage and the ldmatrix above. It does not follow this order: what all lanes have read lies before
        // __syncwarp, hence before lane 0's arrival (a release), and the thread that copies waits for the arrivals of all eight warps. As in
        // CUTLASS's pipelines, reads need no fence between them and a bulk copy; only writes would.
        __syncwarp();
        if (lane == 0) mbarrier_arrive(empty + stage);
        if (threadIdx.x == 0 && ahead < end) {
            mbarrier_wait(empty + stage, parity);
            fetch(ahead, stage);
            ahead += SPAN;
        }
        if (++stage == T::STAGES) { stage = 0; parity ^= 1; }
    }
    l0 += __shfl_xor_sync(~0u, l0, 1); l0 += __shfl_xor_sync(~0u, l0, 2);
    l1 += __shfl_xor_sync(~0u, l1, 1); l1 += __shfl_xor_sync(~0u, l1, 2);
    const float i0 = 1.0f / l0, i1 = 1.0f / l1;
#pragma unroll
    for (int e = 0; e < E / 8; e++) {
        if (r0 < segment.rows) {
            *reinterpret_cast<float2*>(p.y + (uint64_t(segment.first_row + r0) * p.heads + head) * E + e * 8 + 2 * t) = make_float2(o[e][0] * i0, o[e][1] * i0);
        }
        if (r1 < segment.rows) {
            *reinterpret_cast<float2*>(p.y + (uint64_t(segment.first_row + r1) * p.heads + head) * E + e * 8 + 2 * t) = make_float2(o[e][2] * i1, o[e][3] * i1);
        }
    }
}

}  // namespace brasa

#define BRASA_FLASH(E, BLOCKS)                                                                                        \
    extern "C" __global__ void __launch_bounds__(256, BLOCKS) flash_##E(const __grid_constant__ FlashParams p) {      \
        brasa::flash<E>(p);                                                                                           \
    }
BRASA_FLASH(32, 2)
BRASA_FLASH(64, 2)
BRASA_FLASH(96, 1)
BRASA_FLASH(128, 1)
BRASA_FLASH(192, 1)
BRASA_FLASH(256, 1)
