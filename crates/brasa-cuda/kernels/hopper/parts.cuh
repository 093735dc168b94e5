// attend_parts_<head width>: attention of few rows to a cache or memory of halves, on the tensor cores.
//
// A block attends with up to eight heads of a row that share a KV head to a part of the positions: four warps, of which each takes every fourth
// step of 16 or 32 positions. A warp fetches its keys and values by bulk copies, through places of its own, and never waits for another before
// sums are added. Those of steps before are asked for before the launch in front has ended, which writes this step's. Positions are the rows
// of products (operand A), heads their columns: keys are read as they lie, values turned.
//
// Parts are as long as the host says: so that all blocks run at once, or all positions where rows are many. The block of a task's parts that
// ends last adds them, in order of positions. Means go to y as floats, or as halves to the panels of the product behind: a weighted
// mean of numbers that are multiples of 2^-24 and no larger than the largest half needs no scale of its own.
// Grid: x: tasks, up to eight heads of a KV head of a row each; y: parts. A page may hold anything behind a text's end: values there are read as zeros, since a
// weight of 0 does not undo a NaN.
//
// f16 operands, f32 scores and sums. Needs a head width that is a multiple of 16, up to 256.
#pragma once
#include "../plain/online.cuh"
#include "../plain/panels.cuh"
#include "../plain/sight.cuh"
#include "common.cuh"
#include "layout.cuh"
#include "overlap.cuh"

namespace brasa {

constexpr uint32_t PART_WARPS = 4, PART_HEADS = 8, PART_PLACES = 3;

template <int E> struct PartShape {
    static constexpr uint32_t STEP = E <= 64 ? 32 : 16, ROW = E * 2, PLACE = STEP * ROW, OF_WARP = PART_PLACES * PLACE;
    static constexpr uint32_t HEAD = E + 4;  // floats of a head's sums: warps write them without conflicts of banks
    static constexpr int RESIDENT = E <= 128 ? 4 : E <= 192 ? 3 : 2;
};

// The addresses of pages from one on, a lane each.
struct PagesAhead {
    const CachePages& cache;
    uint32_t start, pages, first;
    const uint8_t* mine;

    __device__ __forceinline__ PagesAhead(const CachePages& cache, uint32_t segment, uint32_t page, uint32_t pages)
        : cache(cache), start(cache.starts[segment]), pages(pages) { load(page); }
    __device__ __forceinline__ void load(uint32_t page) {
        first = page;
        const uint32_t at = min(first + threadIdx.x % 32, pages - 1);
        mine = reinterpret_cast<const uint8_t*>(cache.pages[start + at]) + cache.offset_bytes;
    }
    // Pages do not go down from call to call.
    __device__ __forceinline__ const uint8_t* at(uint32_t page) {
        if (page - first >= 32) load(page);
        return reinterpret_cast<const uint8_t*>(__shfl_sync(~0u, reinterpret_cast<unsigned long long>(mine), page - first));
    }
};

// Four means: to y, or to panels.
__device__ __forceinline__ void write_means(const PartsParams& all, uint32_t row, uint32_t k, const float (&v)[4]) {
    if (!all.panels) {
        const AttentionParams& p = all.attention;
        *reinterpret_cast<float4*>(p.y + uint64_t(row) * p.heads * p.head_dim + k) = make_float4(v[0], v[1], v[2], v[3]);
        return;
    }
    // Weights were rounded before they were added, so a mean may be a little beyond the largest half.
    const float most = 65504.0f;
    float h[4];
#pragma unroll
    for (int i = 0; i < 4; i++) h[i] = fabsf(v[i]) < most + 64.0f ? fminf(fmaxf(v[i], -most), most) : v[i];
    *reinterpret_cast<uint2*>(panel_piece(all.panels, all.subs, row, k) + k % 8 * 2) = make_uint2(pack_halves(h[0], h[1]), pack_halves(h[2], h[3]));
}

template <int E> __device__ __forceinline__ void attend_part(const PartsParams& all) {
    let_next_start();
    using T = PartShape<E>;
    constexpr uint32_t STEP = T::STEP, ROW = T::ROW, TILES = STEP / 16, PIECES = E / 16;
    extern __shared__ __align__(1024) uint8_t parts_shared[];
    __shared__ uint64_t arrived[PART_WARPS][PART_PLACES];
    __shared__ float tops[PART_WARPS][PART_HEADS], totals[PART_WARPS][PART_HEADS];
    __shared__ uint32_t before;
    const AttentionParams& p = all.attention;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane >> 2, t = lane & 3;
    const uint32_t group = p.heads / p.kv_heads, chunks = (group + PART_HEADS - 1) / PART_HEADS;
    const uint32_t task = all.first_task + blockIdx.x, r = task / (p.kv_heads * chunks), kv_head = task / chunks % p.kv_heads;
    const uint32_t of_chunk = task % chunks * PART_HEADS, first_head = kv_head * group + of_chunk, heads = min(PART_HEADS, group - of_chunk);
    const uint32_t segment = p.step.row_segments[r];
    const SegmentRows& rows = p.step.segments[segment];
    const Sight sight(p, rows, r - rows.first_row);
    // Parts that see something; one where none does.
    const uint32_t first_part = sight.first / all.span, parts = sight.end > sight.first ? (sight.end - 1) / all.span + 1 - first_part : 1;
    const uint32_t part = blockIdx.y - first_part;
    if (part >= parts) {
        wait_for_last();
        return;
    }
    const uint32_t begin = max(blockIdx.y * all.span, sight.first / STEP * STEP), end = min((blockIdx.y + 1) * all.span, sight.end);
    const uint32_t steps = end > begin ? (end - begin + STEP - 1) / STEP : 0;
    const uint32_t mine = steps > warp ? (steps - warp + PART_WARPS - 1) / PART_WARPS : 0, copies = 2 * mine;
    uint8_t* const of_warp = parts_shared + warp * T::OF_WARP;
    auto position = [&](uint32_t i) { return begin + (i * PART_WARPS + warp) * STEP; };  // where the warp's step i begins
    PagesAhead pages(p.cache, segment, begin / PAGE_POSITIONS, max((sight.end + PAGE_POSITIONS - 1) / PAGE_POSITIONS, 1));
    // Copy 2i: keys of step i; copy 2i + 1: its values.
    auto fetch = [&](uint32_t copy) {  // by the whole warp
        const uint32_t at = position(copy / 2), place = copy % PART_PLACES;
        const uint8_t* page = pages.at(at / PAGE_POSITIONS);
        if (lane != 0) return;
        const uint32_t of_head = (copy % 2 ? p.cache.kv_heads : 0) + kv_head;
        mbarrier_expect(&arrived[warp][place], T::PLACE);
        bulk_load(of_warp + place * T::PLACE, page + uint64_t(of_head) * p.cache.head_bytes + at % PAGE_POSITIONS * ROW, T::PLACE, &arrived[warp][place]);
    };
    if (lane == 0) {
#pragma unroll
        for (uint32_t i = 0; i < PART_PLACES; i++) mbarrier_init(&arrived[warp][i], 1);
        fence_proxy_async();
    }
    __syncwarp();
    uint32_t asked = 0;
    while (asked < min(PART_PLACES, copies) && position(asked / 2) + STEP <= sight.own) fetch(asked++);
    wait_for_last();
    while (asked < min(PART_PLACES, copies)) fetch(asked++);
    // Sums, turned: element 16·i + g (+ 8) of heads 2t and 2t + 1.
    float o[PIECES][4];
    OnlineSoftmax<PowersOfTwo> softmax[2];  // of heads 2t and 2t + 1
#pragma unroll
    for (int e = 0; e < PIECES; e++) o[e][0] = o[e][1] = o[e][2] = o[e][3] = 0.0f;
    if (mine > 0) {
        // Queries as B fragments, times the scale, and log2 e where nothing comes between.
        const float scale = p.has_softcap ? p.scale : p.scale * 1.4426950408889634f;
        const float* of_query = p.q + uint64_t(r) * p.q_stride + uint64_t(first_head + min(g, heads - 1)) * E + 2 * t;
        uint32_t q[PIECES][2];
#pragma unroll
        for (int e = 0; e < PIECES; e++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float2 pair = *reinterpret_cast<const float2*>(of_query + e * 16 + i * 8);
                q[e][i] = pack_halves(pair.x * scale, pair.y * scale);
            }
        }
        const uint32_t shared = shared_address(of_warp);
        uint32_t place = 0, parity = 0;
        auto next = [&](uint32_t copy) {  // what lay in the place is used no more
            __syncwarp();
            if (copy + PART_PLACES < copies) fetch(copy + PART_PLACES);
            if (++place == PART_PLACES) { place = 0; parity ^= 1; }
        };
        // Matrices of ldmatrix: positions 8·(i%2).., elements 8·(i/2)..; of values, which it turns, positions 8·(i/2).., elements 8·(i%2)...
        const uint32_t key_row = lane % 16, key_piece = lane / 16, value_row = lane % 8 + lane / 16 * 8, value_piece = lane / 8 % 2;
        for (uint32_t i = 0; i < mine; i++) {
            float s[TILES][2][4];
            mbarrier_wait(&arrived[warp][place], parity);
            const uint32_t keys = shared + place * T::PLACE;
#pragma unroll
            for (int n = 0; n < TILES; n++) {
#pragma unroll
                for (int c = 0; c < 4; c++) s[n][0][c] = s[n][1][c] = 0.0f;
#pragma unroll
                for (int e = 0; e < PIECES; e++) {
                    uint32_t a[4];
                    load_matrix4(a, keys + (n * 16 + key_row) * ROW + kv_piece(E, key_row, 2 * e + key_piece) * 16);
                    mma(s[n][e % 2], a, q[e][0], q[e][1]);
                }
            }
            next(2 * i);
            float top0 = softmax[0].largest, top1 = softmax[1].largest;
#pragma unroll
            for (int n = 0; n < TILES; n++) {
                const uint32_t at = position(i) + n * 16 + g;
                const bool sees[2] = {sight.sees(p, at), sight.sees(p, at + 8)};
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    float x = s[n][0][c] + s[n][1][c];
                    if (p.has_softcap) x = p.softcap * tanhf(x / p.softcap) * 1.4426950408889634f;
                    s[n][0][c] = sees[c / 2] ? x : -INFINITY;
                }
                top0 = fmaxf(top0, fmaxf(s[n][0][0], s[n][0][2]));
                top1 = fmaxf(top1, fmaxf(s[n][0][1], s[n][0][3]));
            }
#pragma unroll
            for (int d = 4; d < 32; d *= 2) {
                top0 = fmaxf(top0, __shfl_xor_sync(~0u, top0, d));
                top1 = fmaxf(top1, __shfl_xor_sync(~0u, top1, d));
            }
            if (__any_sync(~0u, top0 > softmax[0].largest || top1 > softmax[1].largest)) {
                const float f0 = softmax[0].raise(top0), f1 = softmax[1].raise(top1);
                softmax[0].total *= f0;
                softmax[1].total *= f1;
#pragma unroll
                for (int e = 0; e < PIECES; e++) { o[e][0] *= f0; o[e][1] *= f1; o[e][2] *= f0; o[e][3] *= f1; }
            }
            uint32_t weights[TILES][2];
#pragma unroll
            for (int n = 0; n < TILES; n++) {
                float(&x)[4] = s[n][0];
                x[0] = softmax[0].weigh(x[0]); x[1] = softmax[1].weigh(x[1]);
                x[2] = softmax[0].weigh(x[2]); x[3] = softmax[1].weigh(x[3]);
                softmax[0].total += x[0] + x[2];
                softmax[1].total += x[1] + x[3];
                weights[n][0] = transpose_matrix(pack_halves(x[0], x[1]));
                weights[n][1] = transpose_matrix(pack_halves(x[2], x[3]));
            }
            mbarrier_wait(&arrived[warp][place], parity);
            // Of the last step of a text; nothing is fetched to its place any more.
            if (position(i) + STEP > sight.end) {
                uint4* const rows_behind = reinterpret_cast<uint4*>(of_warp + place * T::PLACE);
                for (uint32_t at = (sight.end - position(i)) * (ROW / 16) + lane; at < STEP * (ROW / 16); at += 32) rows_behind[at] = make_uint4(0, 0, 0, 0);
                __syncwarp();
            }
            const uint32_t values = shared + place * T::PLACE;
#pragma unroll
            for (int n = 0; n < TILES; n++) {
#pragma unroll
                for (int e = 0; e < PIECES; e++) {
                    uint32_t a[4];
                    load_matrix4_transposed(a, values + (n * 16 + value_row) * ROW + kv_piece(E, value_row, 2 * e + value_piece) * 16);
                    mma(o[e], a, weights[n][0], weights[n][1]);
                }
            }
            next(2 * i + 1);
        }
#pragma unroll
        for (int d = 4; d < 32; d *= 2) {
            softmax[0].total += __shfl_xor_sync(~0u, softmax[0].total, d);
            softmax[1].total += __shfl_xor_sync(~0u, softmax[1].total, d);
        }
        // The warp's sums take the place of its keys and values.
        float* sums = reinterpret_cast<float*>(of_warp);
#pragma unroll
        for (int e = 0; e < PIECES; e++) {
            float* to = sums + 2 * t * T::HEAD + e * 16 + g;
            to[0] = o[e][0];
            to[T::HEAD] = o[e][1];
            to[8] = o[e][2];
            to[T::HEAD + 8] = o[e][3];
        }
    }
    if (lane < 4) {
        tops[warp][2 * t] = softmax[0].largest; tops[warp][2 * t + 1] = softmax[1].largest;
        totals[warp][2 * t] = softmax[0].total; totals[warp][2 * t + 1] = softmax[1].total;
    }
    __syncthreads();
    const bool whole = parts == 1;
    float* const of_task = all.partial + uint64_t(blockIdx.x) * gridDim.y * PART_HEADS * T::HEAD;
    const uint32_t all_width = p.heads * E;
    for (uint32_t i = threadIdx.x * 4; i < heads * E; i += PART_WARPS * 32 * 4) {
        const uint32_t h = i / E, e = i % E;
        const float sink = whole ? sink_of<PowersOfTwo>(p.sinks, first_head + h) : -INFINITY;
        MergedParts<PowersOfTwo> merged;
        merged.see(sink);
#pragma unroll
        for (int w = 0; w < PART_WARPS; w++) merged.see(tops[w][h]);
        float total = whole && p.sinks ? merged.share(sink) : 0.0f, sum[4] = {};
#pragma unroll
        for (int w = 0; w < PART_WARPS; w++) {
            if (!merged.has_values(tops[w][h])) {
                total += totals[w][h];
                continue;
            }
            const float weight = merged.share(tops[w][h]);
            const float4 v = *reinterpret_cast<const float4*>(parts_shared + w * T::OF_WARP + (h * T::HEAD + e) * 4);
            sum[0] = fmaf(weight, v.x, sum[0]); sum[1] = fmaf(weight, v.y, sum[1]);
            sum[2] = fmaf(weight, v.z, sum[2]); sum[3] = fmaf(weight, v.w, sum[3]);
            total = fmaf(weight, totals[w][h], total);
        }
        if (whole) {
            const float mean[4] = {sum[0] / total, sum[1] / total, sum[2] / total, sum[3] / total};
            write_means(all, r, first_head * E + i, mean);
        } else {
            float* to = of_task + (part * PART_HEADS + h) * T::HEAD;
            *reinterpret_cast<float4*>(to + e) = make_float4(sum[0], sum[1], sum[2], sum[3]);
            if (e == 0) *reinterpret_cast<float2*>(to + E) = make_float2(total, merged.largest);
        }
    }
    if (!whole) {
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) before = atomicAdd(all.arrivals + blockIdx.x, 1);
        __syncthreads();
        if (before + 1 < parts) return;
        __threadfence();
        if (threadIdx.x == 0) all.arrivals[blockIdx.x] = 0;
        for (uint32_t i = threadIdx.x * 4; i < heads * E; i += PART_WARPS * 32 * 4) {
            const float* from = of_task + i / E * T::HEAD;
            OnlineSoftmax<PowersOfTwo> softmax;
            softmax.begin(p.sinks, first_head + i / E);
            float sum[4] = {};
            // Without branches, so that parts are fetched ahead. One without a score that is a number has sums of zero.
#pragma unroll 4
            for (uint32_t n = 0; n < parts; n++) {
                const float2 facts = __ldcg(reinterpret_cast<const float2*>(from + n * (PART_HEADS * T::HEAD) + E));
                const float4 v = __ldcg(reinterpret_cast<const float4*>(from + n * (PART_HEADS * T::HEAD) + i % E));
                const float old = softmax.raise(fmaxf(softmax.largest, facts.y)), weight = softmax.weigh(facts.y);
                sum[0] = fmaf(weight, v.x, sum[0] * old); sum[1] = fmaf(weight, v.y, sum[1] * old);
                sum[2] = fmaf(weight, v.z, sum[2] * old); sum[3] = fmaf(weight, v.w, sum[3] * old);
                softmax.total = fmaf(weight, facts.x, softmax.total * old);
            }
            const float total = softmax.total, mean[4] = {sum[0] / total, sum[1] / total, sum[2] / total, sum[3] / total};
            write_means(all, r, first_head * E + i, mean);
        }
    }
    if (all.panels) {
        if (first_head == 0 && threadIdx.x == 0) all.row_scale[r] = 1.0f;
        if (first_head + heads == p.heads) fill_panels(all.panels, all.subs, r, all_width);
    }
}

}  // namespace brasa

#define BRASA_PARTS(E)                                                                                                                            \
    extern "C" __global__ void __launch_bounds__(128, brasa::PartShape<E>::RESIDENT) attend_parts_##E(const __grid_constant__ PartsParams p) { \
        brasa::attend_part<E>(p);                                                                                                                  \
    }
BRASA_PARTS(32)
BRASA_PARTS(64)
BRASA_PARTS(96)
BRASA_PARTS(128)
BRASA_PARTS(192)
BRASA_PARTS(256)
