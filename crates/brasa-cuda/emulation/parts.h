// The attention of few rows of ../kernels/hopper/parts.cuh on the CPU: the same operands, queries rounded alike, sums in another order.
#pragma once

namespace brasa_emulation {

// Sums of a part for one head: [E], the sum of weights, the largest score.
inline void attend_to(const PartsParams& all, const Sight& sight, u32 segment, u32 kv_head, const float* q, u32 begin, u32 end, float* sums) {
    const AttentionParams& p = all.attention;
    u32 width = p.head_dim;
    float largest = -INFINITY, total = 0.0f;
    for (u32 e = 0; e < width; ++e) {
        sums[e] = 0.0f;
    }
    for (u32 j = begin; j < end; ++j) {
        if (!sight.sees(p, j)) {
            continue;
        }
        const PagedHead<KvF16> head(p, segment, j, kv_head);
        float score = 0.0f;
        for (u32 e = 0; e < width; ++e) {
            float scaled = half_to_float(float_to_half(q[e] * p.scale));
            score = fmaf(scaled, head.key(j % PAGE_POSITIONS, e, width), score);
        }
        score = p.has_softcap ? p.softcap * tanhf(score / p.softcap) : score;
        const float above = fmaxf(largest, score), old = expf(largest - above), weight = expf(score - above);
        largest = above;
        total = total * old + weight;
        for (u32 e = 0; e < width; ++e) {
            sums[e] = fmaf(half_to_float(float_to_half(weight)), head.value(j % PAGE_POSITIONS, e), sums[e] * old);
        }
    }
    sums[width] = total;
    sums[width + 1] = largest;
}

inline void attend_part(const PartsParams& all, u32 width) {
    const AttentionParams& p = all.attention;
    const u32 group = p.heads / p.kv_heads, chunks = (group + 7) / 8, task = all.first_task + blockIdx.x, r = task / (p.kv_heads * chunks);
    const u32 kv_head = task / chunks % p.kv_heads, of_chunk = task % chunks * 8, first_head = kv_head * group + of_chunk;
    const u32 heads = min(8u, group - of_chunk), segment = p.step.row_segments[r];
    const SegmentRows& rows = p.step.segments[segment];
    const Sight sight(p, rows, r - rows.first_row);
    const u32 first_part = sight.first / all.span, parts = sight.end > sight.first ? (sight.end - 1) / all.span + 1 - first_part : 1;
    const u32 part = blockIdx.y - first_part;
    // One thread works: the others would wait for it.
    if (threadIdx.x != 0 || part >= parts) {
        return;
    }
    float mine[8 * 260];
    float* of_task = parts == 1 ? mine : all.partial + (u64)blockIdx.x * gridDim.y * 8 * (width + 4);
    for (u32 h = 0; h < heads; ++h) {
        const float* q = p.q + (u64)r * p.q_stride + (u64)(first_head + h) * width;
        attend_to(all, sight, segment, kv_head, q, blockIdx.y * all.span, min((blockIdx.y + 1) * all.span, sight.end), of_task + (part * 8 + h) * (width + 4));
    }
    if (parts > 1) {
        if (atomicAdd(all.arrivals + blockIdx.x, 1) + 1 < parts) {
            return;
        }
        all.arrivals[blockIdx.x] = 0;
    }
    for (u32 h = 0; h < heads; ++h) {
        const float* of_head = of_task + h * (width + 4);
        const u32 next = 8 * (width + 4), head = first_head + h;
        const float sink = p.sinks == nullptr ? -INFINITY : p.sinks[head];
        float largest = sink;
        for (u32 n = 0; n < parts; ++n) {
            largest = fmaxf(largest, of_head[n * next + width + 1]);
        }
        float total = p.sinks == nullptr ? 0.0f : expf(sink - largest);
        for (u32 n = 0; n < parts; ++n) {
            total += of_head[n * next + width] * expf(of_head[n * next + width + 1] - largest);
        }
        for (u32 e = 0; e < width; ++e) {
            float sum = 0.0f;
            for (u32 n = 0; n < parts; ++n) {
                sum = fmaf(of_head[n * next + e], expf(of_head[n * next + width + 1] - largest), sum);
            }
            const float mean = sum / total;
            const u32 k = head * width + e;
            if (all.panels == nullptr) {
                p.y[(u64)r * p.heads * width + k] = mean;
            } else {
                const bool near = fabsf(mean) < 65568.0f;
                ((unsigned short*)panel_piece(all.panels, all.subs, r, k))[k % 8] = float_to_half(near ? fminf(fmaxf(mean, -65504.0f), 65504.0f) : mean);
            }
        }
    }
    if (all.panels != nullptr) {
        if (first_head == 0) {
            all.row_scale[r] = 1.0f;
        }
        if (first_head + heads == p.heads) {
            for (u32 k = p.heads * width; k < all.subs * 64; k += 8) {
                *(Halves8*)panel_piece(all.panels, all.subs, r, k) = {};
            }
        }
    }
}

}  // namespace brasa_emulation

#define BRASA_EMULATED_PARTS(E) \
    KERNEL(attend_parts_##E, PartsParams) { brasa_emulation::attend_part(p, E); }
BRASA_EMULATED_PARTS(32)
BRASA_EMULATED_PARTS(64)
BRASA_EMULATED_PARTS(96)
BRASA_EMULATED_PARTS(128)
BRASA_EMULATED_PARTS(192)
BRASA_EMULATED_PARTS(256)
