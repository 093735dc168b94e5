// The attention of few rows of ../kernels/hopper/parts.cuh on the CPU: the same operands, queries rounded alike, sums in another order.
#pragma once

namespace brasa_emulation {

inline void attend_part(const PagesParams& all, u32 width) {
    const AttentionParams& p = all.attention;
    u32 group = p.heads / p.kv_heads, task = all.first_task + blockIdx.x, r = task / p.kv_heads, kv_head = task % p.kv_heads;
    u32 h = threadIdx.x, segment = p.step.row_segments[r], first = blockIdx.y * 128;
    if (h >= group) {
        return;
    }
    const SegmentRows& rows = p.step.segments[segment];
    const Sight sight(p, rows, r - rows.first_row);
    float* partial = all.partial + ((u64)(blockIdx.x * group + h) * all.pages + blockIdx.y) * (width + 2);
    const float* q = p.q + (u64)r * p.q_stride + (kv_head * group + h) * width;
    float scores[128], largest = -INFINITY, total = 0.0f;
    const PagedHead<KvF16> head(p, segment, first < sight.end ? first : 0, kv_head);
    for (u32 j = 0; j < 128; ++j) {
        float score = -INFINITY;
        if (sight.sees(p, first + j)) {
            score = 0.0f;
            for (u32 e = 0; e < width; ++e) {
                float scaled = half_to_float(float_to_half(q[e] * p.scale));
                score = fmaf(scaled, head.key((first + j) % PAGE_POSITIONS, e, width), score);
            }
            score = p.has_softcap ? p.softcap * tanhf(score / p.softcap) : score;
        }
        scores[j] = score;
        largest = fmaxf(largest, score);
    }
    for (u32 e = 0; e < width; ++e) {
        partial[e] = 0.0f;
    }
    for (u32 j = 0; j < 128; ++j) {
        if (scores[j] == -INFINITY) {
            continue;
        }
        float weight = expf(scores[j] - largest);
        total += weight;
        for (u32 e = 0; e < width; ++e) {
            partial[e] = fmaf(half_to_float(float_to_half(weight)), head.value((first + j) % PAGE_POSITIONS, e, width), partial[e]);
        }
    }
    partial[width] = total;
    partial[width + 1] = largest;
}

}  // namespace brasa_emulation

#define BRASA_EMULATED_PARTS(E) \
    KERNEL(attend_parts_##E, PagesParams) { brasa_emulation::attend_part(p, E); }
BRASA_EMULATED_PARTS(32)
BRASA_EMULATED_PARTS(64)
BRASA_EMULATED_PARTS(96)
BRASA_EMULATED_PARTS(128)
BRASA_EMULATED_PARTS(192)
BRASA_EMULATED_PARTS(256)
