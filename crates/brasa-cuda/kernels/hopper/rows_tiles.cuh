// Rows in tiles of shared memory that wgmma reads, and the softmax over tiles of keys: what attention to pages (flash.cuh) and to the rows of a step (rows.cuh)
// share.
//
// A warp group has 64 rows, and takes 64 keys at a time, whose tiles lie in STAGES places. Warp groups of one block share these tiles but wait for each other. A tile
// of ROWS rows of E halves is blocks of BLOCK<E> columns, each of all rows, whose pieces of 16 bytes are swizzled as wgmma wants them: over 128 bytes, or over 64
// where E is no multiple of 64.
//
// Dao 2023, arXiv:2307.08691; Shah et al. 2024, arXiv:2407.08608.
#pragma once

#include "../plain/common.cuh"
#include "../plain/online.cuh"
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

// Rows of a warp group, and of a tile that it takes at a time.
static const u32 GROUP_ROWS = 64, SPAN = 64;

template <u32 E> constexpr u32 BLOCK = E % 64 == 0 ? 64 : 32;
template <u32 E> constexpr u32 TILE_BYTES = SPAN * E * 2;
// Wide heads have room for two tiles of keys and their values.
template <u32 E> constexpr u32 STAGES = E <= 128 ? 3 : 2;

// Bytes before a piece of a row.
template <u32 E, u32 ROWS> DEVICE u32 tile_piece(u32 row, u32 piece) {
    constexpr u32 PIECES = BLOCK<E> / 8;
    const u32 swizzle = PIECES == 8 ? row % 8 : row / 2 % 4;
    return piece / PIECES * (ROWS * BLOCK<E> * 2) + row * BLOCK<E> * 2 + (piece % PIECES ^ swizzle) * 16;
}

}  // namespace brasa

#ifdef BRASA_EMULATION
#include "../../emulation/rows_products.h"
#else
#include "rows_products.cuh"
#endif

namespace brasa {

// Dynamic shared memory from a multiple of 1,024 on, where the swizzle begins anew.
DEVICE u8* aligned_tiles(float* shared) { return (u8*)shared + (1024 - shared_address(shared) % 1024) % 1024; }

// Copies of the block's threads have come, and products of the tile before the last have ended.
DEVICE void tiles_came() {
    wait_for_groups<0>();
    copies_for_products();
    __syncthreads();
}

// Calls `use` with each tile of rows begin.., behind which lies a second one, as `load` puts them there; the next ones are on their way meanwhile. With three
// stages products of a tile must have ended when those of the tile behind the next begin, with two when those of the next do.
template <u32 E, class Load, class Use> DEVICE void each_tile(u8* tiles, u32 begin, u32 end, Load load, Use use) {
    load(tiles, begin);
    u32 stage = 0;
    for (u32 at = begin; at < end; at += SPAN) {
        tiles_came();
        const SharedAt tile = shared_address(tiles + stage * 2 * TILE_BYTES<E>);
        stage = (stage + 1) % STAGES<E>;
        if (at + SPAN < end) {
            load(tiles + stage * 2 * TILE_BYTES<E>, at + SPAN);
        }
        use(tile, at);
    }
    wait_for_products<0>();
}

template <u32 N> DEVICE void clear(float (&c)[N]) {
#pragma unroll
    for (u32 i = 0; i < N; ++i) {
        c[i] = 0.0f;
    }
}

// Weights of the rows of a tile as A fragments; and changes, which may be more than a half holds.
DEVICE void pack_weights(u32 (&a)[4][4], const float (&c)[32]) {
#pragma unroll
    for (u32 i = 0; i < 16; ++i) {
        a[i / 4][i % 4] = pack_halves(c[2 * i], c[2 * i + 1]);
    }
}
DEVICE void pack_changes(u32 (&a)[4][4], const float (&c)[32]) {
#pragma unroll
    for (u32 i = 0; i < 16; ++i) {
        a[i / 4][i % 4] = pack_halves_within(c[2 * i], c[2 * i + 1]);
    }
}

// Rows of sums, of which this lane has r0 and r1, times factors.
template <u32 E> DEVICE void store_rows(float* to, u64 stride, const float (&sums)[E / 2], u32 r0, u32 r1, u32 rows, float f0, float f1) {
    const u32 t = threadIdx.x % 4;
#pragma unroll
    for (u32 e = 0; e < E / 8; ++e) {
        if (r0 < rows) {
            *(Floats2*)(to + r0 * stride + e * 8 + 2 * t) = {sums[4 * e] * f0, sums[4 * e + 1] * f0};
        }
        if (r1 < rows) {
            *(Floats2*)(to + r1 * stride + e * 8 + 2 * t) = {sums[4 * e + 2] * f1, sums[4 * e + 3] * f1};
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

// Rows from `first` on.
struct RowRange {
    u32 first, count;
    DEVICE bool has(u32 row) const { return row - first < count; }
};

// Which keys a query sees, of `rows` that there are.
struct Seen {
    u32 rows, window;
    bool is_causal;

    DEVICE Seen(u32 rows, u32 window, bool is_causal) : rows(rows), window(window), is_causal(is_causal) {}
    // True if each query from `query` to `last_query` sees each key from `key` to `last_key`.
    DEVICE bool sees_all(u32 query, u32 last_query, u32 key, u32 last_key) const {
        return last_query < rows && last_key < rows && (!is_causal || last_key <= query) &&
               (window == 0 || (is_within(key, last_query) && is_within(query, last_key)));
    }
    // Keys of some queries, and queries of some keys.
    DEVICE u32 first_key(u32 query) const { return first_in_window(query) / SPAN * SPAN; }
    DEVICE u32 end_of_keys(u32 last_query) const {
        return is_causal ? last_query + 1 : window != 0 && rows - last_query > window ? last_query + window : rows;
    }
    DEVICE u32 first_query(u32 key) const { return is_causal ? key / SPAN * SPAN : first_key(key); }
    DEVICE u32 end_of_queries(u32 last_key) const { return window != 0 && rows - last_key > window ? last_key + window : rows; }
    // All keys of a query, and all queries of a key.
    DEVICE RowRange keys_of(u32 query) const { return query < rows ? from(first_in_window(query), end_of_keys(query)) : from(0, 0); }
    DEVICE RowRange queries_of(u32 key) const { return key < rows ? from(is_causal ? key : first_in_window(key), end_of_queries(key)) : from(0, 0); }

private:
    // True if row `b` is not a window or more behind row `a`.
    DEVICE bool is_within(u32 a, u32 b) const { return b < a || b - a < window; }
    DEVICE u32 first_in_window(u32 row) const { return window != 0 && row + 1 > window ? row + 1 - window : 0; }
    DEVICE static RowRange from(u32 first, u32 end) { return {first, end - first}; }
};

static const float LOG2_E = 1.4426950408889634f, LN_2 = 0.6931471805599453f;

// A product becomes a score times log2 e; the slope of the soft-cap there, where it is not hidden.
DEVICE float capped(float softcap, float x) { return softcap * tanhf(x / softcap) * LOG2_E; }
DEVICE float slope_of(float softcap, float score) {
    const float y = score / (softcap * LOG2_E);
    return score == -INFINITY ? 0.0f : 1.0f - y * y;
}

// Scores of this lane that lie outside of its two rows' ranges are −∞; `at` is where the first of its columns belongs.
DEVICE void hide_others(float (&s)[32], const RowRange (&ranges)[2], u32 at) {
#pragma unroll
    for (u32 i = 0; i < 32; ++i) {
        if (!ranges[i % 4 / 2].has(at + i / 4 * 8 + i % 2)) {
            s[i] = -INFINITY;
        }
    }
}

// Makes products scores, of queries, which come first, and of the keys of a tile: of a warp's sixteen queries this lane has q0 and q0 + 8.
DEVICE void finish_scores(bool is_capped, float softcap, const Seen& seen, float (&s)[32], u32 first_query, u32 first_key) {
    if (is_capped) {
#pragma unroll
        for (u32 i = 0; i < 32; ++i) {
            s[i] = capped(softcap, s[i]);
        }
    }
    const u32 lane = threadIdx.x % 32, q0 = first_query + lane / 4, t = lane % 4;
    if (!seen.sees_all(first_query, first_query + 15, first_key, first_key + SPAN - 1)) {
        const RowRange keys[2] = {seen.keys_of(q0), seen.keys_of(q0 + 8)};
        hide_others(s, keys, first_key + 2 * t);
    }
}

// The softmax of each of the lane's two rows, whose weights four lanes sum, and by how much sums up to now shrink.
struct LaneSoftmax {
    OnlineSoftmax<PowersOfTwo> of[2];
    float shrink[2];

    DEVICE void raise(const float (&s)[32]) {
#pragma unroll
        for (u32 side = 0; side < 2; ++side) {
            float higher = of[side].largest;
#pragma unroll
            for (u32 n = 0; n < 8; ++n) {
                higher = fmaxf(higher, fmaxf(s[4 * n + 2 * side], s[4 * n + 2 * side + 1]));
            }
            shrink[side] = of[side].raise(quad_max(higher));
            of[side].total *= shrink[side];
        }
    }
    // The weight of score `i` of the lane, which is added.
    DEVICE float weigh(u32 i, float score) {
        OnlineSoftmax<PowersOfTwo>& softmax = of[i % 4 / 2];
        const float weight = softmax.weigh(score);
        softmax.total += weight;
        return weight;
    }
};

// Values of the keys so far, weighed. The weights of a tile are computed while the values of the tile before are added, but for wide heads.
template <u32 E> struct Attended {
    static constexpr bool OVERLAPS = STAGES<E> == 3;
    float sums[E / 2];
    LaneSoftmax softmax;
    u32 weights[4][4];
    SharedAt values = 0;

    DEVICE Attended() { clear(sums); }
    // Begins with a sink, which one of four lanes counts.
    DEVICE void begin_with(float sink) {
#pragma unroll
        for (u32 side = 0; side < 2; ++side) {
            softmax.of[side].begin_with(sink, threadIdx.x % 4 == 0);
        }
    }
    // Takes the keys of a tile, behind which are its values: `start` starts the products that are its scores, `finish` makes them scores.
    template <class Start, class Finish> DEVICE void take(SharedAt tile, Start start, Finish finish) {
        float s[32];
        start(s);
        products_end_group();
        if (OVERLAPS && values != 0) {
            start_sums<E>(sums, weights, values);
            products_end_group();
            wait_for_products<1>();
        } else {
            wait_for_products<0>();
        }
        values = tile + TILE_BYTES<E>;
        finish(s);
        softmax.raise(s);
#pragma unroll
        for (u32 i = 0; i < 32; ++i) {
            s[i] = softmax.weigh(i, s[i]);
        }
        if (OVERLAPS) {
            wait_for_products<0>();
        }
#pragma unroll
        for (u32 i = 0; i < E / 2; ++i) {
            sums[i] *= softmax.shrink[i % 4 / 2];
        }
        pack_weights(weights, s);
        if (!OVERLAPS) {
            add_last();
        }
    }
    DEVICE void add_last() {
        start_sums<E>(sums, weights, values);
        products_end_group();
        wait_for_products<0>();
    }
    // Behind the last tile: the sum of the weights of each of the lane's rows.
    DEVICE void end(float (&all)[2]) {
        if (OVERLAPS) {
            add_last();
        }
        all[0] = quad_sum(softmax.of[0].total);
        all[1] = quad_sum(softmax.of[1].total);
    }
};

}  // namespace brasa
