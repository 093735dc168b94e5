// The flash attention of ../kernels/hopper/flash.cuh on the CPU: the same operands, queries rounded alike, sums in another order.
#pragma once

namespace brasa_emulation {

inline void flash(const FlashParams& p, u32 width) {
    u32 segment = blockIdx.z, head = blockIdx.y, kv_head = head / (p.heads / p.cache.kv_heads);
    const SegmentRows& rows = p.step.segments[segment];
    u32 i = blockIdx.x * 128 + threadIdx.x;
    if (threadIdx.x >= 128 || i >= rows.rows || rows.rows < p.fewest_rows || rows.has_tree) {
        return;
    }
    u32 row = rows.first_row + i, index = rows.first_index + i;
    const float* q = p.q + (u64)row * p.q_stride + head * width;
    float* y = p.y + ((u64)row * p.heads + head) * width;
    float largest = -INFINITY, total = 0.0f, sums[256] = {};
    for (u32 j = p.window != 0 && index + 1 > p.window ? index + 1 - p.window : 0; j <= index; ++j) {
        const u8* keys = cache_of(p.cache, segment, j) + (u64)kv_head * p.cache.head_bytes;
        const u8* values = keys + (u64)p.cache.kv_heads * p.cache.head_bytes;
        float score = 0.0f;
        for (u32 e = 0; e < width; ++e) {
            float scaled = half_to_float(float_to_half(q[e] * p.scale));
            score = fmaf(scaled, KvF16::at(keys, j % PAGE_POSITIONS, e, width), score);
        }
        if (p.softcap > 0.0f) {
            score = p.softcap * tanhf(score / p.softcap);
        }
        float higher = fmaxf(largest, score), shrink = expf(largest - higher), weight = expf(score - higher);
        total = total * shrink + weight;
        largest = higher;
        for (u32 e = 0; e < width; ++e) {
            sums[e] = fmaf(half_to_float(float_to_half(weight)), KvF16::at(values, j % PAGE_POSITIONS, e, width), sums[e] * shrink);
        }
    }
    for (u32 e = 0; e < width; ++e) {
        y[e] = sums[e] / total;
    }
}

}  // namespace brasa_emulation

#define BRASA_EMULATED_FLASH(E) \
    KERNEL(flash_##E, FlashParams) { brasa_emulation::flash(p, E); }
BRASA_EMULATED_FLASH(32)
BRASA_EMULATED_FLASH(64)
BRASA_EMULATED_FLASH(96)
BRASA_EMULATED_FLASH(128)
BRASA_EMULATED_FLASH(192)
BRASA_EMULATED_FLASH(256)
