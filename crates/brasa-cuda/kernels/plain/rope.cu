// rope: y[R, H, E] = x with the leading rotary_dim elements of each head turned by position · frequency, pair by pair; the rest
// is copied. Angles in f32. Grid: one thread an element, blocks of 256.
//
// rotate_keys_<type>: turns the keys of one cache in some pages by given angles, in place. Grid: one thread a pair, blocks of 256.
#include "kv.cuh"

// The pair that element `e` belongs to, and whether it is the pair's second.
DEVICE u32 pair_of(u32 e, u32 rotary_dim, u32 interleaved, bool& second) {
    if (interleaved) {
        second = e % 2 == 1;
        return e / 2;
    }
    second = e >= rotary_dim / 2;
    return e % (rotary_dim / 2);
}

KERNEL(rope, RopeParams) {
    u64 i = thread_number();
    u32 row_elements = p.heads * p.head_dim;
    if (i >= (u64)p.rows * row_elements) {
        return;
    }
    u32 row = (u32)(i / row_elements), within = (u32)(i % row_elements), e = within % p.head_dim;
    const float* head = p.x + (u64)row * p.x_stride + (within - e);
    if (e >= p.rotary_dim) {
        p.y[i] = head[e];
        return;
    }
    bool second;
    u32 pair = pair_of(e, p.rotary_dim, p.interleaved, second);
    float angle = (float)p.positions[row] * p.frequencies[pair];
    float sine = sinf(angle) * p.magnitude, cosine = cosf(angle) * p.magnitude;
    u32 first_place = p.interleaved ? 2 * pair : pair;
    u32 second_place = p.interleaved ? 2 * pair + 1 : pair + p.rotary_dim / 2;
    float a = head[first_place], b = head[second_place];
    p.y[i] = second ? a * sine + b * cosine : a * cosine - b * sine;
}

template <class Type>
DEVICE void rotate_keys(const RotateKeysParams& p) {
    u64 i = thread_number();
    u32 pairs = p.rotary_dim / 2, per_page = p.kv_heads * PAGE_POSITIONS * pairs;
    if (i >= (u64)p.pages_count * per_page) {
        return;
    }
    u32 within = (u32)(i % per_page), pair = within % pairs;
    u32 position = within / pairs % PAGE_POSITIONS, head = within / pairs / PAGE_POSITIONS;
    u8* keys = (u8*)p.pages[i / per_page] + p.offset_bytes + (u64)head * p.head_bytes;
    u32 first = p.interleaved ? 2 * pair : pair, second = p.interleaved ? 2 * pair + 1 : pair + pairs;
    float a = Type::at(keys, position, first, p.head_dim), b = Type::at(keys, position, second, p.head_dim);
    float cosine = p.angles[2 * pair], sine = p.angles[2 * pair + 1];
    Type::put(keys, position, first, p.head_dim, a * cosine - b * sine);
    Type::put(keys, position, second, p.head_dim, a * sine + b * cosine);
}

KERNEL(rotate_keys_f32, RotateKeysParams) { rotate_keys<KvF32>(p); }
KERNEL(rotate_keys_f16, RotateKeysParams) { rotate_keys<KvF16>(p); }
