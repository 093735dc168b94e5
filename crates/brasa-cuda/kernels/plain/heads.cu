// rotations: cosine and sine, times the magnitude, of position · frequency: [R, pairs, 2]. Angles in f32. Grid: one thread a pair,
// blocks of 256.
//
// heads_<type>: norms of the heads of queries, keys and values where they are there; queries and keys turned by `rotations`; queries
// to y[R, H, E], keys and values to the row's index of its segment's pages. E is a multiple of eight, up to 256. Where the projections left
// parts of their sums, these are added first.
// Grid: `threads` threads, a power of two, for each row and head of queries, keys and values; blocks of 256.
#include "kv.cuh"

// Elements of a thread, and where it puts them, so that threads meet in no bank of shared memory.
static const u32 HEAD_ELEMENTS = 8, HEAD_PLACES = 9;

KERNEL(rotations, RotationsParams) {
    u64 i = thread_number();
    if (i >= (u64)p.rows * p.pairs) {
        return;
    }
    float angle = (float)p.positions[i / p.pairs] * p.frequencies[i % p.pairs];
    p.table[2 * i] = cosf(angle) * p.magnitude;
    p.table[2 * i + 1] = sinf(angle) * p.magnitude;
}

template <class Type>
DEVICE void heads(const HeadsParams& p) {
    __shared__ float shared[256 * HEAD_PLACES];
    const u32 width = p.cache.head_dim, kv_heads = p.cache.kv_heads, all_heads = p.heads + 2 * kv_heads;
    const u32 task = blockIdx.x * (256 / p.threads) + threadIdx.x / p.threads, t = threadIdx.x % p.threads;
    const u32 row = task / all_heads, head = task % all_heads, first = t * HEAD_ELEMENTS;
    const bool is_there = row < p.step.rows && first < width;
    const bool is_query = head < p.heads, is_value = head >= p.heads + kv_heads;
    const u32 of_kind = is_query ? head : is_value ? head - p.heads - kv_heads : head - p.heads;
    float x[HEAD_ELEMENTS] = {};
    if (is_there) {
        const float* from = is_query ? p.q + (u64)row * p.q_stride : is_value ? p.v + (u64)row * p.v_stride : p.k + (u64)row * p.k_stride;
        const float* bias = is_query ? p.q_bias : is_value ? p.v_bias : p.k_bias;
        const u32 place = of_kind * width + first;
        if (p.parts == 0) {
            load8(from + place, x);
        }
        // Sums of parts of K, added as gemm_sums adds them.
        add_parts<4>(from + place, p.part_stride, p.parts, x);
        if (bias != nullptr) {
            float more[HEAD_ELEMENTS];
            load8(bias + place, more);
#pragma unroll
            for (u32 i = 0; i < HEAD_ELEMENTS; ++i) {
                x[i] += more[i];
            }
        }
    }
    float squares = 0.0f;
#pragma unroll
    for (u32 i = 0; i < HEAD_ELEMENTS; ++i) {
        squares = fmaf(x[i], x[i], squares);
    }
    for (u32 distance = p.threads / 2; distance > 0; distance /= 2) {
        squares += __shfl_xor_sync(0xffffffffu, squares, distance);
    }
    const Norm norm = is_query ? p.q_norm : is_value ? p.v_norm : p.k_norm;
    if (norm.is_there && is_there) {
        const float scale = 1.0f / sqrtf(squares / (float)width + norm.eps);
#pragma unroll
        for (u32 i = 0; i < HEAD_ELEMENTS; ++i) {
            x[i] *= norm.weight == nullptr ? scale : scale * norm.weight[first + i];
        }
    }
    const u32 of_head = (threadIdx.x - t) * HEAD_PLACES;
#pragma unroll
    for (u32 i = 0; i < HEAD_ELEMENTS; ++i) {
        shared[threadIdx.x * HEAD_PLACES + i] = x[i];
    }
    __syncthreads();
    if (is_there && !is_value && first < p.rotary_dim) {
        const u32 pairs = p.rotary_dim / 2;
        const float* turns = p.rotations + (u64)row * p.rotary_dim;
#pragma unroll
        for (u32 i = 0; i < HEAD_ELEMENTS; ++i) {
            const u32 e = first + i;
            if (e < p.rotary_dim) {
                const bool second = p.interleaved ? i % 2 == 1 : e >= pairs;
                const u32 pair = p.interleaved ? e / 2 : second ? e - pairs : e;
                const u32 other = p.interleaved ? e ^ 1 : second ? e - pairs : e + pairs;
                const float of_other = shared[of_head + other / HEAD_ELEMENTS * HEAD_PLACES + other % HEAD_ELEMENTS];
                const float cosine = turns[2 * pair], sine = turns[2 * pair + 1];
                x[i] = second ? of_other * sine + x[i] * cosine : x[i] * cosine - of_other * sine;
            }
        }
    }
    float largest = 0.0f;
    if (Type::BLOCK > HEAD_ELEMENTS) {
#pragma unroll
        for (u32 i = 0; i < HEAD_ELEMENTS; ++i) {
            largest = larger_magnitude(largest, x[i]);
        }
        for (u32 distance = 1; distance < Type::BLOCK / HEAD_ELEMENTS && distance < p.threads; distance *= 2) {
            largest = larger_magnitude(largest, __shfl_xor_sync(0xffffffffu, largest, distance));
        }
    }
    if (!is_there) {
        return;
    }
    if (is_query) {
        store8(p.y + ((u64)row * p.heads + head) * width + first, x);
        return;
    }
    const u32 segment = p.step.row_segments[row];
    const SegmentRows& rows = p.step.segments[segment];
    const u32 index = rows.first_index + (row - rows.first_row);
    const u64 place = (u64)(is_value ? kv_heads + of_kind : of_kind) * p.cache.head_bytes;
    Type::put8(cache_of(p.cache, segment, index) + place, index % PAGE_POSITIONS, first, width, x, largest);
}

KERNEL(heads_f32, HeadsParams) { heads<KvF32>(p); }
KERNEL(heads_f16, HeadsParams) { heads<KvF16>(p); }
KERNEL(heads_bf16, HeadsParams) { heads<KvBF16>(p); }
KERNEL(heads_q8, HeadsParams) { heads<KvQ8>(p); }
