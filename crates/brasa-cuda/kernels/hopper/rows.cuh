// Attention to the rows of the step, and its gradient, on tensor cores: what attention_tiles and attention_gradient_*_tiles of
// ../plain/attention_tiles.cu compute in f32, of operands rounded to f16, with f32 scores and sums.
//
// rows_largest finds the largest magnitude of the result's gradient; rows_halves rounds queries (times the scale, and log2 e where no soft-cap
// comes between), keys, values and that gradient, which is multiplied by a power of two so that its largest lies in [8, 16): f16 then has its full
// precision over nine decades, which a gradient divided by the number of tokens would leave. Behind them
//   attention_rows: a block makes one head of 128 queries: eight warps of sixteen, which take 64 keys at a time;
//   attention_gradient_rows_queries: the same for dQ += dS · K, dS = P ∘ (dP − mean), dP = dY · Vᵀ; where attention kept no sums of exponentials, a turn
//     over the keys before finds them and the mean of dP;
//   attention_gradient_rows_keys: a block makes what one head's queries give to 64 keys: four warps of sixteen, which take 64 queries at a time. Scores are
//     computed keys first, so that Pᵀ and dSᵀ leave the tensor cores as they enter them again: dV += Pᵀ · dY, dK += dSᵀ · Q;
//   rows_sums: adds these of the query heads that share a KV head. A block that took all of these heads would have four times the work of one that
//     makes queries, and the first keys' blocks would still be at work when most multiprocessors have none.
// Sums have a fixed order, so equal steps give equal bits. A row computes the same bits whatever else is in its step, but for the power of two.
// Grid: x: blocks of rows of the longest segment, y: heads, z: segments. Shared memory: RowsShape. Without draft trees.
//
// Dao 2023, arXiv:2307.08691.
#pragma once

#include "../plain/common.cuh"
#include "layout.cuh"
#ifdef BRASA_EMULATION
#include "../../emulation/matrix.h"
#define ROWS_KERNEL(name, Params, THREADS, BLOCKS) KERNEL(name, Params)
#else
#include "common.cuh"
#define ROWS_KERNEL(name, Params, THREADS, BLOCKS)                                                                    \
    __device__ __forceinline__ void name##_body(const Params& p);                                                    \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) name(const __grid_constant__ Params p) {            \
        brasa::let_next_start();                                                                                     \
        brasa::wait_for_last();                                                                                      \
        name##_body(p);                                                                                              \
    }                                                                                                                \
    __device__ __forceinline__ void name##_body(const Params& p)
#endif

namespace brasa {

// Rows of a block, rows that it takes at a time, threads of its warps.
static const u32 ROWS_QUERIES = 128, ROWS_KEYS = 64, ROWS_SPAN = 64;
static const u32 QUERY_THREADS = ROWS_QUERIES * 2, KEY_THREADS = ROWS_KEYS * 2;

// Rows that gradients of heads of E elements take at a time: fewer leave registers for more blocks on a multiprocessor, whose warps wait most of the time.
template <u32 E> constexpr u32 STEP = E <= 64 ? 32 : 64;

struct alignas(8) Floats2 {
    float x, y;
};

// Rows of a segment's halves from `first` on, to a tile of ROWS rows; behind the last, the last again.
template <u32 E, u32 ROWS> DEVICE void load_rows(u8* to, const u8* from, u64 stride, u32 first, u32 rows) {
    constexpr u32 PIECES = E / 8;
    for (u32 i = threadIdx.x; i < ROWS * PIECES; i += blockDim.x) {
        const u32 row = i / PIECES, piece = i % PIECES, r = min(first + row, rows - 1);
        copy16(to + row * E * 2 + kv_piece(E, row, piece) * 16, from + r * stride * 2 + piece * 16);
    }
}

// Sixteen rows of halves as A fragments, from memory: rows r0 and r1 of this lane.
template <u32 E> DEVICE void load_fragments(u32 (&a)[E / 16][4], const u8* from, u64 stride, u32 r0, u32 r1) {
    const u32 t = threadIdx.x % 4;
#pragma unroll
    for (u32 e = 0; e < E / 16; ++e) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            a[e][i] = *(const u32*)(from + (i % 2 ? r1 : r0) * stride * 2 + (e * 16 + 2 * t + i / 2 * 8) * 2);
        }
    }
}

// Products of sixteen rows with 8·N rows of a tile.
template <u32 E, u32 N> DEVICE void multiply_step(float (&c)[N][4], const u32 (&a)[4], SharedAt tile, u32 e) {
    const u32 lane = threadIdx.x % 32, row = lane % 8 + lane / 16 * 8, piece = lane / 8 % 2;
#pragma unroll
    for (u32 n = 0; n < N / 2; ++n) {
        u32 b[4];
        load_matrix4(b, tile + (n * 16 + row) * E * 2 + kv_piece(E, row, 2 * e + piece) * 16);
        mma(c[2 * n], a, b[0], b[1]);
        mma(c[2 * n + 1], a, b[2], b[3]);
    }
}
template <u32 N> DEVICE void clear(float (&c)[N][4]) {
#pragma unroll
    for (u32 n = 0; n < N; ++n) {
        c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0.0f;
    }
}
template <u32 E, u32 N> DEVICE void multiply_rows(float (&c)[N][4], const u32 (&a)[E / 16][4], SharedAt tile) {
    clear(c);
#pragma unroll
    for (u32 e = 0; e < E / 16; ++e) {
        multiply_step<E>(c, a[e], tile, e);
    }
}
// The same of sixteen rows in shared memory, from row `first` of a tile on.
template <u32 E, u32 N> DEVICE void multiply_shared(float (&c)[N][4], SharedAt rows, u32 first, SharedAt tile) {
    const u32 lane = threadIdx.x % 32, row = first + lane % 16, side = lane / 16;
    clear(c);
#pragma unroll
    for (u32 e = 0; e < E / 16; ++e) {
        u32 a[4];
        load_matrix4(a, rows + row * E * 2 + kv_piece(E, row, 2 * e + side) * 16);
        multiply_step<E>(c, a, tile, e);
    }
}

// Weights of the rows of a tile as A fragments.
template <u32 N> DEVICE void pack_weights(u32 (&a)[N][4], const float (&c)[2 * N][4]) {
#pragma unroll
    for (u32 n = 0; n < N; ++n) {
        a[n][0] = pack_halves(c[2 * n][0], c[2 * n][1]);
        a[n][1] = pack_halves(c[2 * n][2], c[2 * n][3]);
        a[n][2] = pack_halves(c[2 * n + 1][0], c[2 * n + 1][1]);
        a[n][3] = pack_halves(c[2 * n + 1][2], c[2 * n + 1][3]);
    }
}
// Adds the rows of a tile, weighed.
template <u32 E, u32 N> DEVICE void add_rows(float (&sums)[E / 8][4], const u32 (&a)[N][4], SharedAt tile) {
    const u32 lane = threadIdx.x % 32, row = lane % 16, side = lane / 16;
#pragma unroll
    for (u32 n = 0; n < N; ++n) {
#pragma unroll
        for (u32 e = 0; e < E / 16; ++e) {
            u32 b[4];
            load_matrix4_transposed(b, tile + (n * 16 + row) * E * 2 + kv_piece(E, row, 2 * e + side) * 16);
            mma(sums[2 * e], a[n], b[0], b[1]);
            mma(sums[2 * e + 1], a[n], b[2], b[3]);
        }
    }
}

// Rows of sums, of which this lane has r0 and r1, times factors.
template <u32 E> DEVICE void store_rows(float* to, u64 stride, const float (&sums)[E / 8][4], u32 r0, u32 r1, u32 rows, float f0, float f1) {
    const u32 t = threadIdx.x % 4;
#pragma unroll
    for (u32 e = 0; e < E / 8; ++e) {
        if (r0 < rows) {
            *(Floats2*)(to + r0 * stride + e * 8 + 2 * t) = {sums[e][0] * f0, sums[e][1] * f0};
        }
        if (r1 < rows) {
            *(Floats2*)(to + r1 * stride + e * 8 + 2 * t) = {sums[e][2] * f1, sums[e][3] * f1};
        }
    }
}

// Sums and largest numbers of the four lanes that share rows.
DEVICE float quad_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}
DEVICE float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

// Which keys a query of a segment sees.
struct Seen {
    u32 rows, window;
    bool is_causal;

    DEVICE Seen(const AttentionRowsParams& p, u32 segment)
        : rows(p.step.segments[segment].rows), window(p.window), is_causal(p.is_causal != 0) {}
    DEVICE bool sees(u32 query, u32 key) const {
        return query < rows && key < rows && (!is_causal || key <= query) && (window == 0 || (key + window > query && query + window > key));
    }
    // True if each query from `query` to `last_query` sees each key from `key` to `last_key`.
    DEVICE bool sees_all(u32 query, u32 last_query, u32 key, u32 last_key) const {
        return last_query < rows && last_key < rows && (!is_causal || last_key <= query) &&
               (window == 0 || (key + window > last_query && query + window > last_key));
    }
    // Keys of some queries, and queries of some keys.
    DEVICE u32 first_key(u32 query) const { return (window != 0 && query + 1 > window ? query + 1 - window : 0) / ROWS_SPAN * ROWS_SPAN; }
    DEVICE u32 end_of_keys(u32 last_query) const {
        return is_causal ? last_query + 1 : window != 0 && rows - last_query > window ? last_query + window : rows;
    }
    DEVICE u32 first_query(u32 key) const { return is_causal ? key / ROWS_SPAN * ROWS_SPAN : first_key(key); }
    DEVICE u32 end_of_queries(u32 last_key) const { return window != 0 && rows - last_key > window ? last_key + window : rows; }
};

static const float LOG2_E = 1.4426950408889634f, LN_2 = 0.6931471805599453f;

// A product becomes a score times log2 e. `slope` is that of the soft-cap.
DEVICE float capped(const AttentionRowsParams& p, float x, float& slope) {
    const float y = tanhf(x / p.softcap);
    slope = 1.0f - y * y;
    return p.softcap * y * LOG2_E;
}

// The power of two that brings the largest magnitude to [8, 16), and what undoes it; 1 where there is none.
DEVICE float raise_of(float largest) {
    const int exponent = (int)(__float_as_uint(largest) >> 23 & 0xff) - 127;
    const int raised = 3 - exponent < -100 ? -100 : 3 - exponent > 100 ? 100 : 3 - exponent;
    return exponent == -127 || exponent == 128 ? 1.0f : __uint_as_float((u32)(raised + 127) << 23);
}

// A half is at most 65,504; what is no number stays none.
DEVICE float within_half(float x) { return x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x; }

// Where a block's rows of queries, keys and values begin among those of a head.
template <u32 E> struct RowsBlock {
    const AttentionRowsParams& p;
    const u32 first_row;
    const Seen seen;
    const u64 q_stride, kv_stride;

    DEVICE RowsBlock(const AttentionRowsParams& p)
        : p(p), first_row(p.step.segments[blockIdx.z].first_row), seen(p, blockIdx.z), q_stride((u64)p.heads * E), kv_stride((u64)p.kv_heads * E) {}
    DEVICE const u8* of_queries(const u8* halves, u32 head) const { return halves + (first_row * q_stride + head * E) * 2; }
    DEVICE const u8* of_keys(const u8* halves, u32 kv_head) const { return halves + (first_row * kv_stride + kv_head * E) * 2; }
};

// A block of ROWS_QUERIES queries of a head, and where the keys that they see lie. The last rows see most: they begin first.
template <u32 E> struct QueryBlock : RowsBlock<E> {
    u32 blocks, first, head, last, own, r0, r1, begin, end;
    const u8 *keys, *values;

    DEVICE QueryBlock(const AttentionRowsParams& p) : RowsBlock<E>(p) {
        const u32 lane = threadIdx.x % 32;
        blocks = (this->seen.rows + ROWS_QUERIES - 1) / ROWS_QUERIES;
        head = blockIdx.y;
        first = blockIdx.x < blocks ? (blocks - 1 - blockIdx.x) * ROWS_QUERIES : 0;
        last = min(first + ROWS_QUERIES, this->seen.rows) - 1;
        own = first + threadIdx.x / 32 * 16;
        r0 = own + lane / 4;
        r1 = r0 + 8;
        begin = this->seen.first_key(first);
        end = this->seen.end_of_keys(last);
        const u32 kv_head = head / (p.heads / p.kv_heads);
        keys = this->of_keys(p.k, kv_head);
        values = this->of_keys(p.v, kv_head);
    }
    DEVICE bool is_there() const { return blockIdx.x < blocks; }
    DEVICE void load_queries(u32 (&a)[E / 16][4], const u8* halves) const {
        load_fragments<E>(a, this->of_queries(halves, head), this->q_stride, min(r0, last), min(r1, last));
    }
    // Keys from `at` on, and their values behind them.
    DEVICE void load_keys(u8* to, u32 at) const {
        load_rows<E, ROWS_SPAN>(to, keys, this->kv_stride, at, this->seen.rows);
        load_rows<E, ROWS_SPAN>(to + ROWS_SPAN * E * 2, values, this->kv_stride, at, this->seen.rows);
        copies_end_group();
    }
};

// Scores of queries, which come first, and of keys: of a warp's sixteen queries of which this lane has q0 and q0 + 8.
template <bool IS_CAPPED, u32 N> DEVICE void finish_scores(const AttentionRowsParams& p, const Seen& seen, float (&s)[N][4], float (&slopes)[N][4], u32 first_query, u32 first_key) {
    const u32 lane = threadIdx.x % 32, q0 = first_query + lane / 4, t = lane % 4;
    if (IS_CAPPED) {
#pragma unroll
        for (u32 n = 0; n < N; ++n) {
#pragma unroll
            for (u32 c = 0; c < 4; ++c) {
                s[n][c] = capped(p, s[n][c], slopes[n][c]);
            }
        }
    }
    if (!seen.sees_all(first_query, first_query + 15, first_key, first_key + 8 * N - 1)) {
#pragma unroll
        for (u32 n = 0; n < N; ++n) {
#pragma unroll
            for (u32 c = 0; c < 4; ++c) {
                if (!seen.sees(q0 + c / 2 * 8, first_key + n * 8 + 2 * t + c % 2)) {
                    s[n][c] = -INFINITY;
                }
            }
        }
    }
}

// The largest score so far of each of the lane's rows, and by how much sums up to now shrink.
struct Largest {
    float at[2], base[2], shrink[2];

    DEVICE Largest() { at[0] = at[1] = -INFINITY; }
    template <u32 N> DEVICE void raise(const float (&s)[N][4]) {
#pragma unroll
        for (u32 side = 0; side < 2; ++side) {
            float higher = at[side];
#pragma unroll
            for (u32 n = 0; n < N; ++n) {
                higher = fmaxf(higher, fmaxf(s[n][2 * side], s[n][2 * side + 1]));
            }
            higher = quad_max(higher);
            // A row that has seen nothing yet keeps a finite base.
            base[side] = higher == -INFINITY ? 0.0f : higher;
            shrink[side] = raise_two(at[side] - base[side]);
            at[side] = higher;
        }
    }
};

template <u32 E, bool IS_CAPPED> DEVICE void attention_rows(const AttentionRowsParams& p) {
    DYNAMIC_SHARED(shared);
    constexpr u32 TILE = ROWS_SPAN * E * 2;
    const QueryBlock<E> block(p);
    if (!block.is_there()) {
        return;
    }
    const Seen& seen = block.seen;
    const u32 head = block.head, own = block.own, r0 = block.r0, r1 = block.r1, begin = block.begin, end = block.end;
    u8* tiles = (u8*)shared;
    u32 q[E / 16][4];
    block.load_queries(q, p.q);
    float o[E / 8][4], total[2] = {0.0f, 0.0f};
    clear(o);
    Largest largest;
    block.load_keys(tiles, begin);
    u32 stage = 0;
    for (u32 at = begin; at < end; at += ROWS_SPAN, stage ^= 1) {
        if (at + ROWS_SPAN < end) {
            block.load_keys(tiles + (stage ^ 1) * 2 * TILE, at + ROWS_SPAN);
            wait_for_groups<1>();
        } else {
            wait_for_groups<0>();
        }
        __syncthreads();
        const SharedAt tile = shared_address(tiles + stage * 2 * TILE);
        float s[ROWS_SPAN / 8][4], slopes[ROWS_SPAN / 8][4];
        multiply_rows<E>(s, q, tile);
        finish_scores<IS_CAPPED>(p, seen, s, slopes, own, at);
        largest.raise(s);
#pragma unroll
        for (u32 side = 0; side < 2; ++side) {
            total[side] *= largest.shrink[side];
#pragma unroll
            for (u32 e = 0; e < E / 8; ++e) {
                o[e][2 * side] *= largest.shrink[side];
                o[e][2 * side + 1] *= largest.shrink[side];
            }
        }
#pragma unroll
        for (u32 n = 0; n < ROWS_SPAN / 8; ++n) {
#pragma unroll
            for (u32 c = 0; c < 4; ++c) {
                s[n][c] = raise_two(s[n][c] - largest.base[c / 2]);
                total[c / 2] += s[n][c];
            }
        }
        u32 weights[ROWS_SPAN / 16][4];
        pack_weights(weights, s);
        add_rows<E>(o, weights, tile + TILE);
        __syncthreads();
    }
    const float all[2] = {quad_sum(total[0]), quad_sum(total[1])}, f0 = 1.0f / all[0], f1 = 1.0f / all[1];
    if (p.kept != nullptr && threadIdx.x % 4 == 0) {
#pragma unroll
        for (u32 side = 0; side < 2; ++side) {
            const u32 r = r0 + side * 8;
            if (r < seen.rows) {
                p.kept[(u64)head * p.rows + block.first_row + r] = largest.base[side] + log2f(all[side]);
            }
        }
    }
    store_rows<E>(p.y + block.first_row * block.q_stride + head * E, block.q_stride, o, r0, r1, seen.rows, f0, f1);
}

template <u32 E, bool IS_CAPPED> DEVICE void attention_gradient_rows_queries(const AttentionRowsParams& p) {
    DYNAMIC_SHARED(shared);
    constexpr u32 TILE = ROWS_SPAN * E * 2;
    const QueryBlock<E> block(p);
    if (!block.is_there()) {
        return;
    }
    const Seen& seen = block.seen;
    const u32 head = block.head, last = block.last, own = block.own, r0 = block.r0, r1 = block.r1, begin = block.begin;
    const u32 count = (block.end - begin + ROWS_SPAN - 1) / ROWS_SPAN;
    u8* tiles = (u8*)shared;
    u32 q[E / 16][4], dy[E / 16][4];
    block.load_queries(q, p.q);
    block.load_queries(dy, p.dy);
    float dq[E / 8][4], total[2] = {0.0f, 0.0f}, mean[2] = {0.0f, 0.0f}, lse[2] = {0.0f, 0.0f};
    clear(dq);
    Largest largest;
    // What attention kept makes the first turn over the keys needless: the mean of dP is the product of the result and its gradient.
    const u32 first_number = p.kept != nullptr ? count : 0;
    if (p.kept != nullptr) {
        const float* y = p.result + block.first_row * block.q_stride + head * E;
#pragma unroll
        for (u32 side = 0; side < 2; ++side) {
            const u32 r = min(side == 0 ? r0 : r1, last);
            float products = 0.0f;
#pragma unroll
            for (u32 e = 0; e < E / 16; ++e) {
#pragma unroll
                for (u32 part = 0; part < 2; ++part) {
                    const Floats2 of_y = *(const Floats2*)(y + r * block.q_stride + e * 16 + part * 8 + 2 * (threadIdx.x % 4));
                    const u32 pair = dy[e][part * 2 + side];
                    products = fmaf(of_y.x, half_to_float((unsigned short)pair), products);
                    products = fmaf(of_y.y, half_to_float((unsigned short)(pair >> 16)), products);
                }
            }
            mean[side] = quad_sum(products);
            lse[side] = p.kept[(u64)head * p.rows + block.first_row + r];
        }
    }
    block.load_keys(tiles + first_number % 2 * 2 * TILE, begin);
    for (u32 number = first_number; number < 2 * count; ++number) {
        const u32 at = begin + number % count * ROWS_SPAN;
        if (number + 1 < 2 * count) {
            block.load_keys(tiles + (number + 1) % 2 * 2 * TILE, begin + (number + 1) % count * ROWS_SPAN);
            wait_for_groups<1>();
        } else {
            wait_for_groups<0>();
        }
        __syncthreads();
        const SharedAt whole = shared_address(tiles + number % 2 * 2 * TILE);
#pragma unroll 1
        for (u32 part = 0; part < ROWS_SPAN / STEP<E>; ++part) {
            const SharedAt tile = whole + part * STEP<E> * E * 2;
            float s[STEP<E> / 8][4], slopes[STEP<E> / 8][4], dp[STEP<E> / 8][4];
            multiply_rows<E>(s, q, tile);
            finish_scores<IS_CAPPED>(p, seen, s, slopes, own, at + part * STEP<E>);
            multiply_rows<E>(dp, dy, tile + TILE);
            if (number < count) {
                largest.raise(s);
#pragma unroll
                for (u32 side = 0; side < 2; ++side) {
                    total[side] *= largest.shrink[side];
                    mean[side] *= largest.shrink[side];
                }
#pragma unroll
                for (u32 n = 0; n < STEP<E> / 8; ++n) {
#pragma unroll
                    for (u32 c = 0; c < 4; ++c) {
                        const float weight = raise_two(s[n][c] - largest.base[c / 2]);
                        total[c / 2] += weight;
                        mean[c / 2] = fmaf(weight, dp[n][c], mean[c / 2]);
                    }
                }
                if (number + 1 == count && part + 1 == ROWS_SPAN / STEP<E>) {
#pragma unroll
                    for (u32 side = 0; side < 2; ++side) {
                        // A query behind the last has seen nothing.
                        const float all = quad_sum(total[side]), products = quad_sum(mean[side]);
                        mean[side] = all > 0.0f ? products / all : 0.0f;
                        lse[side] = all > 0.0f ? largest.base[side] + log2f(all) : 0.0f;
                    }
                }
            } else {
#pragma unroll
                for (u32 n = 0; n < STEP<E> / 8; ++n) {
#pragma unroll
                    for (u32 c = 0; c < 4; ++c) {
                        float change = raise_two(s[n][c] - lse[c / 2]) * (dp[n][c] - mean[c / 2]);
                        if (IS_CAPPED) {
                            change *= slopes[n][c];
                        }
                        s[n][c] = within_half(change);
                    }
                }
                u32 changes[STEP<E> / 16][4];
                pack_weights(changes, s);
                add_rows<E>(dq, changes, tile);
            }
        }
        __syncthreads();
    }
    const float factor = p.scale / *p.raise;
    store_rows<E>(p.y + block.first_row * block.q_stride + head * E, block.q_stride, dq, r0, r1, seen.rows, factor, factor);
    if (threadIdx.x % 4 == 0) {
        Floats2* sums = (Floats2*)p.sums + (u64)head * p.rows + block.first_row;
        if (r0 < seen.rows) {
            sums[r0] = {lse[0], mean[0]};
        }
        if (r1 < seen.rows) {
            sums[r1] = {lse[1], mean[1]};
        }
    }
}

template <u32 E, bool IS_CAPPED> DEVICE void attention_gradient_rows_keys(const AttentionRowsParams& p) {
    DYNAMIC_SHARED(shared);
    constexpr u32 TILE = ROWS_SPAN * E * 2, STAGE = 2 * TILE + ROWS_SPAN * 8;
    const RowsBlock<E> block(p);
    const Seen& seen = block.seen;
    // The first keys are seen by most: they begin first.
    const u32 first = blockIdx.x * ROWS_KEYS, head = blockIdx.y, kv_head = head / (p.heads / p.kv_heads);
    if (first >= seen.rows) {
        return;
    }
    const u32 last = min(first + ROWS_KEYS, seen.rows) - 1, in_block = threadIdx.x / 32 * 16, own = first + in_block;
    const u32 r0 = own + threadIdx.x % 32 / 4, r1 = r0 + 8, t = threadIdx.x % 4;
    const u32 begin = seen.first_query(first), count = (seen.end_of_queries(last) - begin + ROWS_SPAN - 1) / ROWS_SPAN;
    u8 *keys = (u8*)shared, *values = keys + TILE, *stages = values + TILE;
    load_rows<E, ROWS_KEYS>(keys, block.of_keys(p.k, kv_head), block.kv_stride, first, seen.rows);
    load_rows<E, ROWS_KEYS>(values, block.of_keys(p.v, kv_head), block.kv_stride, first, seen.rows);
    auto fetch = [&](u32 number) {
        const u32 at = begin + number * ROWS_SPAN;
        u8* to = stages + number % 2 * STAGE;
        load_rows<E, ROWS_SPAN>(to, block.of_queries(p.q, head), block.q_stride, at, seen.rows);
        load_rows<E, ROWS_SPAN>(to + TILE, block.of_queries(p.dy, head), block.q_stride, at, seen.rows);
        const Floats2* sums = (const Floats2*)p.sums + (u64)head * p.rows + block.first_row;
        if (threadIdx.x < ROWS_SPAN) {
            copy8(to + 2 * TILE + threadIdx.x * 8, sums + min(at + threadIdx.x, seen.rows - 1));
        }
        copies_end_group();
    };
    fetch(0);
    float dk[E / 8][4], dv[E / 8][4];
    clear(dk);
    clear(dv);
    for (u32 number = 0; number < count; ++number) {
        if (number + 1 < count) {
            fetch(number + 1);
            wait_for_groups<1>();
        } else {
            wait_for_groups<0>();
        }
        __syncthreads();
        const u8* stage = stages + number % 2 * STAGE;
#pragma unroll 1
        for (u32 part = 0; part < ROWS_SPAN / STEP<E>; ++part) {
            const SharedAt tile = shared_address(stage) + part * STEP<E> * E * 2;
            const Floats2* sums = (const Floats2*)(stage + 2 * TILE) + part * STEP<E>;
            const u32 at = begin + number * ROWS_SPAN + part * STEP<E>;
            const bool all = seen.sees_all(at, at + STEP<E> - 1, own, own + 15);
            float s[STEP<E> / 8][4], slopes[STEP<E> / 8][4], dp[STEP<E> / 8][4];
            multiply_shared<E>(s, shared_address(keys), in_block, tile);
#pragma unroll
            for (u32 n = 0; n < STEP<E> / 8; ++n) {
#pragma unroll
                for (u32 c = 0; c < 4; ++c) {
                    const u32 i = n * 8 + 2 * t + c % 2;
                    const float score = IS_CAPPED ? capped(p, s[n][c], slopes[n][c]) : s[n][c];
                    s[n][c] = all || seen.sees(at + i, c < 2 ? r0 : r1) ? raise_two(score - sums[i].x) : 0.0f;
                }
            }
            u32 weights[STEP<E> / 16][4];
            pack_weights(weights, s);
            add_rows<E>(dv, weights, tile + TILE);
            multiply_shared<E>(dp, shared_address(values), in_block, tile + TILE);
#pragma unroll
            for (u32 n = 0; n < STEP<E> / 8; ++n) {
#pragma unroll
                for (u32 c = 0; c < 4; ++c) {
                    float change = s[n][c] * (dp[n][c] - sums[n * 8 + 2 * t + c % 2].y);
                    if (IS_CAPPED) {
                        change *= slopes[n][c];
                    }
                    s[n][c] = within_half(change);
                }
            }
            pack_weights(weights, s);
            add_rows<E>(dk, weights, tile);
        }
        __syncthreads();
    }
    // Queries were multiplied by the scale, and by log2 e where there is no soft-cap.
    const float lowered = 1.0f / *p.raise, of_keys = IS_CAPPED ? lowered : lowered * LN_2;
    const u64 to = block.first_row * block.q_stride + head * E;
    store_rows<E>(p.dk + to, block.q_stride, dk, r0, r1, seen.rows, of_keys, of_keys);
    store_rows<E>(p.dv + to, block.q_stride, dv, r0, r1, seen.rows, lowered, lowered);
}

}  // namespace brasa

#include "rows_halves.cuh"

#define BRASA_ROWS(E, CAP, IS_CAPPED, BLOCKS, QUERY_BLOCKS, KEY_BLOCKS)                                                                                           \
    ROWS_KERNEL(attention_rows##CAP##_##E, AttentionRowsParams, 256, BLOCKS) { brasa::attention_rows<E, IS_CAPPED>(p); }                                           \
    ROWS_KERNEL(attention_gradient_rows_queries##CAP##_##E, AttentionRowsParams, 256, QUERY_BLOCKS) { brasa::attention_gradient_rows_queries<E, IS_CAPPED>(p); } \
    ROWS_KERNEL(attention_gradient_rows_keys##CAP##_##E, AttentionRowsParams, 128, KEY_BLOCKS) { brasa::attention_gradient_rows_keys<E, IS_CAPPED>(p); }
BRASA_ROWS(32, , false, 2, 2, 4)
BRASA_ROWS(64, , false, 2, 2, 3)
BRASA_ROWS(96, , false, 1, 1, 2)
BRASA_ROWS(128, , false, 1, 1, 2)
BRASA_ROWS(32, _capped, true, 2, 1, 2)
BRASA_ROWS(64, _capped, true, 1, 1, 2)
BRASA_ROWS(96, _capped, true, 1, 1, 2)
BRASA_ROWS(128, _capped, true, 1, 1, 2)
