// Attention of few rows over the paged cache (decoding, drafts) with mma.sync: the heads that share keys are the rows of a matrix.
//
// A block attends with a row's heads of one KV head to 128 positions, half a page: four warps of 32, each of which fetches its keys and
// values by bulk copies and never waits for another before sums are added. Those of steps before are asked for before the launch in front
// has ended, which writes this step's. A block writes what attend_pages of ../plain/pages.cu writes, with parts in place of pages;
// attend_merge adds them. The order of sums depends on positions alone.
// Grid: x: tasks, a KV head of a row each; y: parts. At most sixteen heads share keys. Positions behind the last hold finite numbers.
//
// f16 operands, f32 scores and sums. Needs a head width that is a multiple of 16, up to 256.
#pragma once
#include "../plain/sight.cuh"
#include "common.cuh"
#include "layout.cuh"
#include "overlap.cuh"

namespace brasa {

constexpr uint32_t PART_SPAN = 32, PART_WARPS = 4, PART = PART_SPAN * PART_WARPS, MOST_SHARING = 16;

template <int E> __device__ __forceinline__ void attend_part(const PagesParams& all) {
    let_next_start();
    constexpr uint32_t ROW = E * 2, LOADS = E / 16, SPAN_BYTES = PART_SPAN * ROW;
    extern __shared__ __align__(1024) uint8_t parts_shared[];
    __shared__ uint64_t arrived[PART_WARPS][2];
    __shared__ float tops[PART_WARPS][MOST_SHARING], totals[PART_WARPS][MOST_SHARING];
    const AttentionParams& p = all.attention;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane >> 2, t = lane & 3;
    const uint32_t group = p.heads / p.kv_heads, task = all.first_task + blockIdx.x, r = task / p.kv_heads, kv_head = task % p.kv_heads;
    const uint32_t segment = p.step.row_segments[r], first = blockIdx.y * PART;
    const SegmentRows& rows = p.step.segments[segment];
    const Sight sight(p, rows, r - rows.first_row);
    float* partial = all.partial + (uint64_t(blockIdx.x) * group * all.pages + blockIdx.y) * (E + 2);
    const uint64_t next_head = uint64_t(all.pages) * (E + 2);
    if (first >= sight.end || first + PART <= sight.first) {
        wait_for_last();
        if (threadIdx.x < group) {
            partial[threadIdx.x * next_head + E] = 0.0f;
            partial[threadIdx.x * next_head + E + 1] = -INFINITY;
        }
        return;
    }
    const uint32_t begin = first + warp * PART_SPAN;
    const bool works = begin < sight.end && begin + PART_SPAN > sight.first;
    uint8_t* const of_warp = parts_shared + warp * 2 * SPAN_BYTES;
    auto fetch = [&] {  // by one lane
        const uint8_t* keys = cache_of(p.cache, segment, first) + uint64_t(kv_head) * p.cache.head_bytes + begin % PAGE_POSITIONS * ROW;
        mbarrier_expect(&arrived[warp][0], SPAN_BYTES);
        bulk_load(of_warp, keys, SPAN_BYTES, &arrived[warp][0]);
        mbarrier_expect(&arrived[warp][1], SPAN_BYTES);
        bulk_load(of_warp + SPAN_BYTES, keys + uint64_t(p.cache.kv_heads) * p.cache.head_bytes, SPAN_BYTES, &arrived[warp][1]);
    };
    const bool is_older = begin + PART_SPAN <= sight.own;
    if (works && lane == 0) {
        mbarrier_init(&arrived[warp][0], 1);
        mbarrier_init(&arrived[warp][1], 1);
        fence_proxy_async();
        if (is_older) fetch();
    }
    wait_for_last();
    if (works && lane == 0 && !is_older) fetch();
    __syncwarp();
    float m0 = -INFINITY, m1 = -INFINITY, l0 = 0.0f, l1 = 0.0f;
    if (works) {
        // Queries as A fragments, times the scale, and log2 e where nothing comes between.
        const float scale = p.has_softcap ? p.scale : p.scale * 1.4426950408889634f;
        uint32_t q[LOADS][4];
#pragma unroll
        for (int e = 0; e < LOADS; e++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t h = i % 2 ? g + 8 : g;
                float2 pair = make_float2(0.0f, 0.0f);
                if (h < group) pair = *reinterpret_cast<const float2*>(p.q + uint64_t(r) * p.q_stride + (kv_head * group + h) * E + e * 16 + 2 * t + i / 2 * 8);
                q[e][i] = pack_halves(pair.x * scale, pair.y * scale);
            }
        }
        float s[PART_SPAN / 8][4], o[E / 8][4];
#pragma unroll
        for (int n = 0; n < PART_SPAN / 8; n++) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0f;
#pragma unroll
        for (int e = 0; e < E / 8; e++) o[e][0] = o[e][1] = o[e][2] = o[e][3] = 0.0f;
        const uint32_t keys = shared_address(of_warp), values = keys + SPAN_BYTES;
        mbarrier_wait(&arrived[warp][0], 0);
        // Matrices of ldmatrix: positions 8·(i/2).., elements 8·(i%2)..
        const uint32_t position = lane % 8 + lane / 16 * 8, piece = lane / 8 % 2;
#pragma unroll
        for (int e = 0; e < LOADS; e++) {
#pragma unroll
            for (int n = 0; n < PART_SPAN / 16; n++) {
                uint32_t b[4];
                load_matrix4(b, keys + (n * 16 + position) * ROW + kv_piece(E, position, 2 * e + piece) * 16);
                mma(s[2 * n], q[e], b[0], b[1]);
                mma(s[2 * n + 1], q[e], b[2], b[3]);
            }
        }
#pragma unroll
        for (int n = 0; n < PART_SPAN / 8; n++) {
#pragma unroll
            for (int c = 0; c < 4; c++) {
                if (p.has_softcap) s[n][c] = p.softcap * tanhf(s[n][c] / p.softcap) * 1.4426950408889634f;
                if (!sight.sees(p, begin + n * 8 + 2 * t + c % 2)) s[n][c] = -INFINITY;
            }
            m0 = fmaxf(m0, fmaxf(s[n][0], s[n][1]));
            m1 = fmaxf(m1, fmaxf(s[n][2], s[n][3]));
        }
        m0 = fmaxf(m0, __shfl_xor_sync(~0u, m0, 1)); m0 = fmaxf(m0, __shfl_xor_sync(~0u, m0, 2));
        m1 = fmaxf(m1, __shfl_xor_sync(~0u, m1, 1)); m1 = fmaxf(m1, __shfl_xor_sync(~0u, m1, 2));
        // A warp all of whose positions a draft tree hides keeps a finite base.
        const float b0 = m0 == -INFINITY ? 0.0f : m0, b1 = m1 == -INFINITY ? 0.0f : m1;
#pragma unroll
        for (int n = 0; n < PART_SPAN / 8; n++) {
            s[n][0] = exp2f(s[n][0] - b0); s[n][1] = exp2f(s[n][1] - b0);
            s[n][2] = exp2f(s[n][2] - b1); s[n][3] = exp2f(s[n][3] - b1);
            l0 += s[n][0] + s[n][1];
            l1 += s[n][2] + s[n][3];
        }
        l0 += __shfl_xor_sync(~0u, l0, 1); l0 += __shfl_xor_sync(~0u, l0, 2);
        l1 += __shfl_xor_sync(~0u, l1, 1); l1 += __shfl_xor_sync(~0u, l1, 2);
        mbarrier_wait(&arrived[warp][1], 0);
        // Matrices of ldmatrix.trans: positions 8·(i%2).., elements 8·(i/2)..
        const uint32_t row = lane % 16, side = lane / 16;
#pragma unroll
        for (int n = 0; n < PART_SPAN / 16; n++) {
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
        // The warp's sums take the place of its keys.
        float* sums = reinterpret_cast<float*>(of_warp);
        __syncwarp();
#pragma unroll
        for (int e = 0; e < E / 8; e++) {
            if (g < group) *reinterpret_cast<float2*>(sums + g * E + e * 8 + 2 * t) = make_float2(o[e][0], o[e][1]);
            if (g + 8 < group) *reinterpret_cast<float2*>(sums + (g + 8) * E + e * 8 + 2 * t) = make_float2(o[e][2], o[e][3]);
        }
    }
    if (t == 0) {
        tops[warp][g] = m0; tops[warp][g + 8] = m1;
        totals[warp][g] = l0; totals[warp][g + 8] = l1;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < group * E; i += PART_WARPS * 32) {
        const uint32_t h = i / E, e = i % E;
        float top = -INFINITY, sum = 0.0f, total = 0.0f;
#pragma unroll
        for (int w = 0; w < PART_WARPS; w++) top = fmaxf(top, tops[w][h]);
#pragma unroll
        for (int w = 0; w < PART_WARPS; w++) {
            if (tops[w][h] == -INFINITY) continue;
            const float weight = exp2f(tops[w][h] - top);
            sum = fmaf(weight, reinterpret_cast<const float*>(parts_shared + w * 2 * SPAN_BYTES)[i], sum);
            total = fmaf(weight, totals[w][h], total);
        }
        partial[h * next_head + e] = sum;
        if (e == 0) {
            partial[h * next_head + E] = total;
            partial[h * next_head + E + 1] = top * 0.6931471805599453f;
        }
    }
}

}  // namespace brasa

#define BRASA_PARTS(E)                                                                                             \
    extern "C" __global__ void __launch_bounds__(128, 1) attend_parts_##E(const __grid_constant__ PagesParams p) { \
        brasa::attend_part<E>(p);                                                                                  \
    }
BRASA_PARTS(32)
BRASA_PARTS(64)
BRASA_PARTS(96)
BRASA_PARTS(128)
BRASA_PARTS(192)
BRASA_PARTS(256)
