// rope: y[R, H, E] = x with the leading rotary_dim elements of each head turned by position · frequency, pair by pair; the rest
// is copied. Angles in f32. Grid: x: one thread a pair of four heads, which turn by the same angle, blocks of up to 256; y: rows.
//
// rotate_keys_<type>: turns the keys of one cache in some pages by given angles, in place. Grid: one thread a pair, blocks of 256.
#include "kv.cuh"

static const u32 HEADS_TOGETHER = 4;

// Turns a pair of each head of a group.
DEVICE void turn(const RopeParams& p, u32 row, u32 group, u32 pair, u32 pairs, u32 places) {
    float sine = 0.0f, cosine = 1.0f;
    if (pair < pairs) {
        const float angle = (float)p.positions[row] * p.frequencies[pair];
        sine = sinf(angle) * p.magnitude;
        cosine = cosf(angle) * p.magnitude;
    }
    const u32 first = p.interleaved ? 2 * pair : pair, second = p.interleaved ? 2 * pair + 1 : pair + pairs;
    const u32 h = group * HEADS_TOGETHER, heads = min(HEADS_TOGETHER, p.heads - h);
    const float* x = p.x + (u64)row * p.x_stride + h * p.head_dim;
    float* y = p.y + (u64)row * p.y_stride + h * p.head_dim;
    if (pair < pairs) {
        // All are asked for before any is written.
        float a[HEADS_TOGETHER], b[HEADS_TOGETHER];
#pragma unroll
        for (u32 n = 0; n < HEADS_TOGETHER; ++n) {
            if (n < heads) {
                a[n] = x[n * p.head_dim + first];
                b[n] = x[n * p.head_dim + second];
            }
        }
#pragma unroll
        for (u32 n = 0; n < HEADS_TOGETHER; ++n) {
            if (n < heads) {
                y[n * p.head_dim + first] = a[n] * cosine - b[n] * sine;
                y[n * p.head_dim + second] = a[n] * sine + b[n] * cosine;
            }
        }
    }
    for (u32 n = 0; n < heads; ++n) {
        for (u32 e = 2 * pairs + pair; e < p.head_dim; e += places) {
            y[n * p.head_dim + e] = x[n * p.head_dim + e];
        }
    }
}

KERNEL(rope, RopeParams) {
    const u32 pairs = p.rotary_dim / 2, places = pairs > 1 ? pairs : 1, groups = (p.heads + HEADS_TOGETHER - 1) / HEADS_TOGETHER;
    const u32 i = (u32)thread_number(), pair = i % places, group = i / places;
    for (u32 row = blockIdx.y; group < groups && row < p.rows; row += gridDim.y) {
        turn(p, row, group, pair, pairs, places);
    }
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
