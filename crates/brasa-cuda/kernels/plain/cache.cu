// cache_write_<type>: writes each row's keys [R, G, E] and values [R, G, V] at the row's index of its segment's pages.
// Grid: x: one thread an element (q8: a block of 32 elements), blocks of 256; y: keys, and values that are not parts of keys.
#include "kv.cuh"

// Head `head` of the row's keys or values: where it comes from, where it goes to, and at which position of its page.
struct HeadWrite {
    const float* from;
    u8* to;
    u32 position;
};

// Elements of a head of what is written.
DEVICE u32 width_of(const CacheWriteParams& p) { return blockIdx.y == 1 ? p.cache.value_row : p.cache.head_dim; }

DEVICE HeadWrite head_write(const CacheWriteParams& p, u32 row, u32 head) {
    u32 segment = p.step.row_segments[row];
    const SegmentRows& rows = p.step.segments[segment];
    u32 index = rows.first_index + (row - rows.first_row);
    bool values = blockIdx.y == 1;
    const float* from = values ? p.v + (u64)row * p.v_stride : p.k + (u64)row * p.k_stride;
    u64 place = values ? p.cache.values_bytes + (u64)head * p.cache.value_bytes : (u64)head * p.cache.head_bytes;
    return {from + head * width_of(p), cache_of(p.cache, segment, index) + place, index % PAGE_POSITIONS};
}

template <class Type>
DEVICE void cache_write(const CacheWriteParams& p) {
    u64 i = thread_number();
    u32 width = width_of(p), row_elements = p.cache.kv_heads * width;
    if (i >= (u64)p.step.rows * row_elements) {
        return;
    }
    u32 row = (u32)(i / row_elements), within = (u32)(i % row_elements), e = within % width;
    HeadWrite write = head_write(p, row, within / width);
    Type::put(write.to, write.position, e, width, write.from[e]);
}

KERNEL(cache_write_f32, CacheWriteParams) { cache_write<KvF32>(p); }
KERNEL(cache_write_f16, CacheWriteParams) { cache_write<KvF16>(p); }
KERNEL(cache_write_bf16, CacheWriteParams) { cache_write<KvBF16>(p); }

// Codes round(x · 127 / max|x|), half away from zero, and the scale max|x| / 127 as f16.
KERNEL(cache_write_q8, CacheWriteParams) {
    u64 i = thread_number();
    u32 width = width_of(p), blocks = (width + 31) / 32, row_blocks = p.cache.kv_heads * blocks;
    if (i >= (u64)p.step.rows * row_blocks) {
        return;
    }
    u32 row = (u32)(i / row_blocks), within = (u32)(i % row_blocks), block = within % blocks;
    HeadWrite write = head_write(p, row, within / blocks);
    u32 first = block * 32, end = first + 32 < width ? first + 32 : width;
    float largest = 0.0f;
    for (u32 e = first; e < end; ++e) {
        largest = larger_magnitude(largest, write.from[e]);
    }
    KvQ8::scales(write.to, write.position, width)[block] = float_to_half(largest / 127.0f);
    float inverse = largest > 0.0f ? 127.0f / largest : 0.0f;
    for (u32 e = first; e < end; ++e) {
        write.to[write.position * width + e] = (u8)(signed char)(int)roundf(write.from[e] * inverse);
    }
}
