// The experts of a row in the interpreter: a router's logits from dense f32, and the choice among them.
//
// Every multiprocessor that multiplies with experts chooses by itself, so that no other is waited for; its producer then knows which tiles to fetch. One without such tiles
// reads no logits: nobody waits for it, and the next layer's may take their place.
#pragma once
#include "linear.cuh"

namespace brasa {

// Outputs of a router that a multiprocessor makes at a time: a quad.
constexpr uint32_t ROUTED = 4;

template <Sync S> __device__ __noinline__ void route(uint32_t sequence) {
    using V = Values<S>;
    const uint32_t thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    const Instr& in = instruction(sequence);
    const uint32_t K = in.inputs, outputs = in.outputs, tag = sequence - in.x_back;
    const uint64_t from = in.x;
    const float4* norm = in.flags & NORM ? reinterpret_cast<const float4*>(in.norm_weight) : nullptr;
    float* sums = reinterpret_cast<float*>(smem + AT_MAXIMA);  // [warps][8]
    for (uint32_t first = blockIdx.x * ROUTED; first < outputs; first += gridDim.x * ROUTED) {
        const float* w = reinterpret_cast<const float*>(in.weights) + uint64_t(first) * K;
        const uint32_t rows = min(ROUTED, outputs - first);
        float sum[ROUTED + 1] = {};
        constexpr int N = 2;
        for (uint32_t begin = 0; begin < K; begin += N * 4 * CONSUMERS) {
            const uint32_t mine = begin + thread * 4;
            typename V::Raw4 raw[N];
            float4 x[N], scale[N], of[N][ROUTED];
#pragma unroll
            for (int c = 0; c < N; c++) {
                const uint32_t i = mine + c * 4 * CONSUMERS;
                raw[c] = {};
                if (i < K) raw[c] = V::start4(from, i);
                scale[c] = make_float4(1, 1, 1, 1);
                if (norm && i < K) scale[c] = __ldg(norm + i / 4);
#pragma unroll
                for (uint32_t r = 0; r < ROUTED; r++) {
                    of[c][r] = make_float4(0, 0, 0, 0);
                    if (r < rows && i < K) of[c][r] = __ldg(reinterpret_cast<const float4*>(w + uint64_t(r) * K + i));
                }
            }
            V::template finish4s<N, Ask::First>(raw, x, from, mine, 4 * CONSUMERS, K, tag);
#pragma unroll
            for (int c = 0; c < N; c++) {
                sum[ROUTED] = fmaf(x[c].x, x[c].x, fmaf(x[c].y, x[c].y, fmaf(x[c].z, x[c].z, fmaf(x[c].w, x[c].w, sum[ROUTED]))));
                x[c].x *= scale[c].x; x[c].y *= scale[c].y; x[c].z *= scale[c].z; x[c].w *= scale[c].w;
#pragma unroll
                for (uint32_t r = 0; r < ROUTED; r++) {
                    const float4 v = of[c][r];
                    sum[r] = fmaf(x[c].x, v.x, fmaf(x[c].y, v.y, fmaf(x[c].z, v.z, fmaf(x[c].w, v.w, sum[r]))));
                }
            }
        }
#pragma unroll
        for (uint32_t r = 0; r <= ROUTED; r++) {
            for (int d = 1; d < 32; d *= 2) sum[r] += __shfl_xor_sync(~0u, sum[r], d);
        }
        consumers_sync();  // those of the outputs before may still be read
        if (lane == 0) {
#pragma unroll
            for (uint32_t r = 0; r <= ROUTED; r++) sums[warp * 8 + r] = sum[r];
        }
        consumers_sync();
        if (warp == 0) {
            float v = 0.0f;
            if (lane < rows) {
                v = tree(sums + lane, 8);
                if (in.flags & NORM) v *= reciprocal_root(fmaf(tree(sums + ROUTED, 8), __fdividef(1.0f, float(K)), in.eps));
            }
            Values<S>::store(in.y, first + lane, v, sequence, lane < ROUTED);
        }
    }
}

// The `chosen` largest logits, a NaN behind all numbers, ties to the lowest expert, and their shares, which are NaN where a logit is.
template <Sync S> __device__ __noinline__ void choose(uint32_t sequence) {
    const uint32_t thread = threadIdx.x;
    const Instr& in = instruction(sequence);
    const Range first = my_tiles(in.tiles_each, in.tiles_odd, in.rotation), second = my_tiles(in.heads, in.kv_heads, in.head_dim);
    if (first.count + second.count == 0) return;
    const uint32_t count = in.inputs, chosen = in.chosen;
    float* logits = reinterpret_cast<float*>(smem + AT_X);
    uint32_t* experts = reinterpret_cast<uint32_t*>(smem + AT_CHOSEN);
    float* shares = reinterpret_cast<float*>(smem + AT_SHARES);
    consumers_sync();  // x may still be read
    for (uint32_t i = thread; i < count; i += CONSUMERS) logits[i] = load_value<Values<S>>(in.x, i, sequence - in.x_back);
    consumers_sync();
    for (uint32_t i = thread; i < count; i += CONSUMERS) {
        const float v = logits[i];
        uint32_t before = 0;
        if (v != v) {
            for (uint32_t j = 0; j < count; j++) before += (logits[j] == logits[j]) | (j < i);
        } else {
#pragma unroll 8
            for (uint32_t j = 0; j < count; j++) before += (logits[j] > v) | ((logits[j] == v) & (j < i));
        }
        if (before < chosen) experts[before] = i;
    }
    consumers_sync();
    if (thread < 32) {
        const float largest = logits[experts[0]];
        const uint32_t expert = experts[thread < chosen ? thread : 0];
        const float mine = thread < chosen ? raise_two(LOG2E * (logits[expert] - largest)) : 0.0f;
        float all = 0.0f;
        for (uint32_t i = thread; i < count; i += 32) all += raise_two(LOG2E * (logits[i] - largest));
        if ((in.flags & OF_CHOSEN) && !__any_sync(~0u, all != all)) all = mine;
        float share = mine * in.scale / warp_sum(all);
        if (thread < chosen) {
            if (in.k_norm) share *= __ldg(reinterpret_cast<const float*>(in.k_norm) + expert);
            shares[thread] = share;
        }
    }
    consumers_sync();
    if (thread < CHOOSERS) mbarrier_arrive(choice());  // the producer may fetch them
}

}  // namespace brasa
