// Attention to the rows of the step, and its gradient, on tensor cores: what attention_tiles and attention_gradient_*_tiles of
// ../plain/attention_tiles.cu compute in f32, of operands rounded to f16, with f32 scores and sums.
//
// rows_largest finds the largest magnitude of the result's gradient; rows_halves rounds queries (times the scale, and log2 e where no soft-cap
// comes between), keys, values and that gradient, which is multiplied by a power of two so that its largest lies in [8, 16): f16 then has its full
// precision over nine decades, which a gradient divided by the number of tokens would leave. Behind them
//   attention_rows: a block makes one head of 64 queries, which take 64 keys at a time;
//   attention_gradient_rows_queries: a block makes one head of 64 or 128 queries: dQ += dS · K, dS = P ∘ (dP − mean), dP = dY · Vᵀ; where attention kept no
//     sums of exponentials, a turn over the keys before finds them and the mean of dP;
//   attention_gradient_rows_keys: a block makes what one head's queries give to 64 or 128 keys, which take 64 queries at a time. Scores are
//     computed keys first, so that Pᵀ and dSᵀ leave the tensor cores as they enter them again: dV += Pᵀ · dY, dK += dSᵀ · Q;
//   rows_sums: adds these of the query heads that share a KV head. A block that took all of these heads would have four times the work of one that
//     makes queries, and the first keys' blocks would still be at work when most multiprocessors have none.
// Sums have a fixed order, so equal steps give equal bits. A row computes the same bits whatever else is in its step, but for the power of two.
// Grid: x: heads, y: blocks of rows of the longest segment, z: segments. Blocks begin in this order: those that take long before the others, of all heads. Without
// draft trees.
#pragma once

#include "rows_tiles.cuh"

namespace brasa {

// Warp groups of a block that makes gradients. Narrow heads leave registers for several blocks on a multiprocessor; wide ones need tiles that are shared.
template <u32 E> constexpr u32 GRADIENT_GROUPS = E <= 64 ? 1 : 2;

// Rows of a segment's halves from `first` on, to a tile of ROWS rows; behind the last, the last again.
template <u32 E, u32 ROWS, u32 THREADS> DEVICE void load_rows(u8* to, const u8* from, u64 stride, u32 first, u32 rows) {
    constexpr u32 PIECES = E / 8, EACH = ROWS * PIECES / THREADS;
    static_assert(EACH * THREADS == ROWS * PIECES, "every thread copies as many pieces");
#pragma unroll
    for (u32 n = 0; n < EACH; ++n) {
        const u32 i = n * THREADS + threadIdx.x, row = i / PIECES, piece = i % PIECES, r = min(first + row, rows - 1);
        copy16(to + tile_piece<E, ROWS>(row, piece), from + r * stride * 2 + piece * 16);
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

// The power of two that brings the largest magnitude to [8, 16), and what undoes it; 1 where there is none.
DEVICE float raise_of(float largest) {
    const int exponent = (int)(__float_as_uint(largest) >> 23 & 0xff) - 127;
    const int raised = 3 - exponent < -100 ? -100 : 3 - exponent > 100 ? 100 : 3 - exponent;
    return exponent == -127 || exponent == 128 ? 1.0f : __uint_as_float((u32)(raised + 127) << 23);
}

// Where a block's rows of queries, keys and values begin among those of a head.
template <u32 E> struct RowsBlock {
    const AttentionRowsParams& p;
    const u32 first_row;
    const Seen seen;
    const u64 q_stride, kv_stride;

    DEVICE RowsBlock(const AttentionRowsParams& p)
        : p(p), first_row(p.step.segments[blockIdx.z].first_row), seen(p.step.segments[blockIdx.z].rows, p.window, p.is_causal != 0),
          q_stride((u64)p.heads * E), kv_stride((u64)p.kv_heads * E) {}
    DEVICE const u8* of_queries(const u8* halves, u32 head) const { return halves + (first_row * q_stride + head * E) * 2; }
    DEVICE const u8* of_keys(const u8* halves, u32 kv_head) const { return halves + (first_row * kv_stride + kv_head * E) * 2; }
};

// A block of queries of a head, and where the keys that they see lie. The last rows see most: they begin first.
template <u32 E, u32 GROUPS> struct QueryBlock : RowsBlock<E> {
    static constexpr u32 ROWS = GROUPS * GROUP_ROWS, THREADS = GROUPS * 128;
    u32 blocks, first, head, last, own, r0, r1, begin, end;
    const u8 *keys, *values;

    DEVICE QueryBlock(const AttentionRowsParams& p) : RowsBlock<E>(p) {
        const u32 lane = threadIdx.x % 32;
        blocks = (this->seen.rows + ROWS - 1) / ROWS;
        head = blockIdx.x;
        first = blockIdx.y < blocks ? (blocks - 1 - blockIdx.y) * ROWS : 0;
        last = min(first + ROWS, this->seen.rows) - 1;
        own = first + threadIdx.x / 32 * 16;
        r0 = own + lane / 4;
        r1 = r0 + 8;
        begin = this->seen.first_key(first);
        end = this->seen.end_of_keys(last);
        const u32 kv_head = head / (p.heads / p.kv_heads);
        keys = this->of_keys(p.k, kv_head);
        values = this->of_keys(p.v, kv_head);
    }
    DEVICE bool is_there() const { return blockIdx.y < blocks; }
    DEVICE void load_queries(u32 (&a)[E / 16][4], const u8* halves) const {
        load_fragments<E>(a, this->of_queries(halves, head), this->q_stride, min(r0, last), min(r1, last));
    }
    // Calls `use` with each tile of keys, behind which are its values, that the warp group's queries see something of, and with its first key.
    template <class Use> DEVICE void each_tile(u8* tiles, Use use) const {
        const auto load = [&](u8* to, u32 at) {
            load_rows<E, SPAN, THREADS>(to, keys, this->kv_stride, at, this->seen.rows);
            load_rows<E, SPAN, THREADS>(to + TILE_BYTES<E>, values, this->kv_stride, at, this->seen.rows);
            copies_end_group();
        };
        const u32 last_of_group = first + threadIdx.x / 128 * GROUP_ROWS + GROUP_ROWS - 1;
        brasa::each_tile<E>(tiles, begin, end, load, [&](SharedAt tile, u32 at) {
            if (GROUPS == 1 || !this->seen.is_causal || at <= last_of_group) {
                use(tile, at);
            }
        });
    }
};

template <u32 E, bool IS_CAPPED> DEVICE void attention_rows(const AttentionRowsParams& p) {
    DYNAMIC_SHARED(shared);
    const QueryBlock<E, 1> block(p);
    if (!block.is_there()) {
        return;
    }
    u32 q[E / 16][4];
    block.load_queries(q, p.q);
    Attended<E> attended;
    block.each_tile(aligned_tiles(shared), [&](SharedAt tile, u32 at) {
        attended.take(
            tile, [&](float (&s)[32]) { start_products<E>(s, q, tile); },
            [&](float (&s)[32]) { finish_scores(IS_CAPPED, p.softcap, block.seen, s, block.own, at); });
    });
    float all[2];
    attended.end(all);
    if (p.kept != nullptr && threadIdx.x % 4 == 0) {
#pragma unroll
        for (u32 side = 0; side < 2; ++side) {
            const u32 r = side == 0 ? block.r0 : block.r1;
            if (r < block.seen.rows) {
                p.kept[(u64)block.head * p.rows + block.first_row + r] = attended.softmax.of[side].base + log2f(all[side]);
            }
        }
    }
    float* y = p.y + block.first_row * block.q_stride + block.head * E;
    store_rows<E>(y, block.q_stride, attended.sums, block.r0, block.r1, block.seen.rows, 1.0f / all[0], 1.0f / all[1]);
}

template <u32 E, bool IS_CAPPED> DEVICE void attention_gradient_rows_queries(const AttentionRowsParams& p) {
    DYNAMIC_SHARED(shared);
    const QueryBlock<E, GRADIENT_GROUPS<E>> block(p);
    if (!block.is_there()) {
        return;
    }
    const Seen& seen = block.seen;
    const u32 head = block.head, last = block.last, r0 = block.r0, r1 = block.r1;
    u8* tiles = aligned_tiles(shared);
    u32 q[E / 16][4], dy[E / 16][4];
    block.load_queries(q, p.q);
    block.load_queries(dy, p.dy);
    float mean[2] = {0.0f, 0.0f}, lse[2];
    // Scores of a tile, and dP, which comes when all products have ended.
    auto products = [&](float (&s)[32], float (&dp)[32], SharedAt tile, u32 at) {
        start_products<E>(s, q, tile);
        products_end_group();
        start_products<E>(dp, dy, tile + TILE_BYTES<E>);
        products_end_group();
        wait_for_products<1>();
        finish_scores(IS_CAPPED, p.softcap, seen, s, block.own, at);
    };
    if (p.kept != nullptr) {
        // What attention kept makes a turn over the keys needless: the mean of dP is the product of the result and its gradient.
        const float* y = p.result + block.first_row * block.q_stride + head * E;
#pragma unroll
        for (u32 side = 0; side < 2; ++side) {
            const u32 r = min(side == 0 ? r0 : r1, last);
            float sum = 0.0f;
#pragma unroll
            for (u32 e = 0; e < E / 16; ++e) {
#pragma unroll
                for (u32 part = 0; part < 2; ++part) {
                    const Floats2 of_y = *(const Floats2*)(y + r * block.q_stride + e * 16 + part * 8 + 2 * (threadIdx.x % 4));
                    const u32 pair = dy[e][part * 2 + side];
                    sum = fmaf(of_y.at[0], half_to_float((unsigned short)pair), sum);
                    sum = fmaf(of_y.at[1], half_to_float((unsigned short)(pair >> 16)), sum);
                }
            }
            mean[side] = quad_sum(sum);
            lse[side] = p.kept[(u64)head * p.rows + block.first_row + r];
        }
    } else {
        LaneSoftmax softmax;
        block.each_tile(tiles, [&](SharedAt tile, u32 at) {
            float s[32], dp[32];
            products(s, dp, tile, at);
            softmax.raise(s);
#pragma unroll
            for (u32 side = 0; side < 2; ++side) {
                mean[side] *= softmax.shrink[side];
            }
            wait_for_products<0>();
#pragma unroll
            for (u32 i = 0; i < 32; ++i) {
                const float weight = softmax.weigh(i, s[i]);
                mean[i % 4 / 2] = fmaf(weight, dp[i], mean[i % 4 / 2]);
            }
        });
#pragma unroll
        for (u32 side = 0; side < 2; ++side) {
            // A query behind the last has seen nothing.
            const float all = quad_sum(softmax.of[side].total), sum = quad_sum(mean[side]);
            mean[side] = all > 0.0f ? sum / all : 0.0f;
            lse[side] = all > 0.0f ? softmax.of[side].base + log2f(all) : 0.0f;
        }
        // The tiles are used anew.
        __syncthreads();
    }
    float dq[E / 2];
    u32 changes[4][4];
    clear(dq);
    block.each_tile(tiles, [&](SharedAt tile, u32 at) {
        float s[32], dp[32], change[32];
        products(s, dp, tile, at);
#pragma unroll
        for (u32 i = 0; i < 32; ++i) {
            const float weight = raise_two(s[i] - lse[i % 4 / 2]);
            change[i] = IS_CAPPED ? weight * slope_of(p.softcap, s[i]) : weight;
        }
        wait_for_products<0>();
#pragma unroll
        for (u32 i = 0; i < 32; ++i) {
            change[i] *= dp[i] - mean[i % 4 / 2];
        }
        pack_changes(changes, change);
        start_sums<E>(dq, changes, tile);
        products_end_group();
    });
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
    constexpr u32 GROUPS = GRADIENT_GROUPS<E>, ROWS = GROUPS * GROUP_ROWS, THREADS = GROUPS * 128, TILE = TILE_BYTES<E>, KEYS = ROWS * E * 2;
    const RowsBlock<E> block(p);
    const Seen& seen = block.seen;
    // The first keys are seen by most: they begin first.
    const u32 first = blockIdx.y * ROWS, head = blockIdx.x, kv_head = head / (p.heads / p.kv_heads);
    if (first >= seen.rows) {
        return;
    }
    const u32 last = min(first + ROWS, seen.rows) - 1, own = first + threadIdx.x / 32 * 16, of_group = GROUPS == 1 ? 0 : threadIdx.x / 128 * GROUP_ROWS;
    const u32 r0 = own + threadIdx.x % 32 / 4, r1 = r0 + 8, t = threadIdx.x % 4;
    const u32 begin = seen.first_query(first), count = (seen.end_of_queries(last) - begin + SPAN - 1) / SPAN;
    u8 *keys = aligned_tiles(shared), *values = keys + KEYS, *stages = values + KEYS, *stages_sums = stages + STAGES<E> * 2 * TILE;
    load_rows<E, ROWS, THREADS>(keys, block.of_keys(p.k, kv_head), block.kv_stride, first, seen.rows);
    load_rows<E, ROWS, THREADS>(values, block.of_keys(p.v, kv_head), block.kv_stride, first, seen.rows);
    auto fetch = [&](u32 number) {
        const u32 at = begin + number * SPAN;
        u8* to = stages + number % STAGES<E> * 2 * TILE;
        load_rows<E, SPAN, THREADS>(to, block.of_queries(p.q, head), block.q_stride, at, seen.rows);
        load_rows<E, SPAN, THREADS>(to + TILE, block.of_queries(p.dy, head), block.q_stride, at, seen.rows);
        const Floats2* sums = (const Floats2*)p.sums + (u64)head * p.rows + block.first_row;
        if (threadIdx.x < SPAN) {
            copy8(stages_sums + (number % STAGES<E> * SPAN + threadIdx.x) * 8, sums + min(at + threadIdx.x, seen.rows - 1));
        }
        copies_end_group();
    };
    fetch(0);
    float dk[E / 2], dv[E / 2];
    u32 weights[4][4], changes[4][4];
    clear(dk);
    clear(dv);
#pragma unroll 1
    for (u32 number = 0; number < count; ++number) {
        tiles_came();
        if (number + 1 < count) {
            fetch(number + 1);
        }
        const u32 at = begin + number * SPAN;
        // Queries in front of all of the warp group's keys see none of them.
        if (GROUPS > 1 && seen.is_causal && at + SPAN <= first + of_group) {
            continue;
        }
        const SharedAt tile = shared_address(stages + number % STAGES<E> * 2 * TILE);
        const Floats2* sums = (const Floats2*)(stages_sums + number % STAGES<E> * SPAN * 8);
        float s[32], dp[32], change[32];
        start_products_of<E, ROWS>(s, shared_address(keys), of_group, tile);
        products_end_group();
        start_products_of<E, ROWS>(dp, shared_address(values), of_group, tile + TILE);
        products_end_group();
        wait_for_products<1>();
#pragma unroll
        for (u32 i = 0; i < 32; ++i) {
            change[i] = IS_CAPPED ? capped(p.softcap, s[i]) : s[i];
        }
        if (!seen.sees_all(at, at + SPAN - 1, own, own + 15)) {
            const RowRange queries[2] = {seen.queries_of(r0), seen.queries_of(r1)};
            hide_others(change, queries, at + 2 * t);
        }
        float slope[2];
#pragma unroll
        for (u32 i = 0; i < 32; ++i) {
            slope[i % 2] = IS_CAPPED ? slope_of(p.softcap, change[i]) : 1.0f;
            change[i] = raise_two(change[i] - sums[i / 4 * 8 + 2 * t + i % 2].at[0]);
            if (i % 2 == 1) {
                weights[i / 8][i % 8 / 2] = pack_halves(change[i - 1], change[i]);
                change[i - 1] *= slope[0];
                change[i] *= slope[1];
            }
        }
        start_sums<E>(dv, weights, tile + TILE);
        products_end_group();
        wait_for_products<1>();
#pragma unroll
        for (u32 i = 0; i < 32; ++i) {
            change[i] *= dp[i] - sums[i / 4 * 8 + 2 * t + i % 2].at[1];
        }
        pack_changes(changes, change);
        start_sums<E>(dk, changes, tile);
        products_end_group();
        // Sums that go on while the loop comes to its next turn would make the compiler wait for each product by itself.
        wait_for_products<0>();
    }
    // Queries were multiplied by the scale, and by log2 e where there is no soft-cap.
    const float lowered = 1.0f / *p.raise, of_keys = IS_CAPPED ? lowered : lowered * LN_2;
    const u64 to = block.first_row * block.q_stride + head * E;
    store_rows<E>(p.dk + to, block.q_stride, dk, r0, r1, seen.rows, of_keys, of_keys);
    store_rows<E>(p.dv + to, block.q_stride, dv, r0, r1, seen.rows, lowered, lowered);
}

}  // namespace brasa

#include "rows_halves.cuh"

// BLOCKS, QUERY_BLOCKS, KEY_BLOCKS: how many are on a multiprocessor.
#define BRASA_ROWS(E, CAP, IS_CAPPED, BLOCKS, QUERY_BLOCKS, KEY_BLOCKS)                                                                            \
    ROWS_KERNEL(attention_rows##CAP##_##E, AttentionRowsParams, 128, BLOCKS) { brasa::attention_rows<E, IS_CAPPED>(p); }                            \
    ROWS_KERNEL(attention_gradient_rows_queries##CAP##_##E, AttentionRowsParams, brasa::GRADIENT_GROUPS<E> * 128, QUERY_BLOCKS) {                    \
        brasa::attention_gradient_rows_queries<E, IS_CAPPED>(p);                                                                                    \
    }                                                                                                                                               \
    ROWS_KERNEL(attention_gradient_rows_keys##CAP##_##E, AttentionRowsParams, brasa::GRADIENT_GROUPS<E> * 128, KEY_BLOCKS) {                         \
        brasa::attention_gradient_rows_keys<E, IS_CAPPED>(p);                                                                                       \
    }
BRASA_ROWS(32, , false, 4, 3, 3)
BRASA_ROWS(64, , false, 4, 2, 3)
BRASA_ROWS(96, , false, 2, 1, 1)
BRASA_ROWS(128, , false, 2, 1, 1)
BRASA_ROWS(32, _capped, true, 3, 2, 2)
BRASA_ROWS(64, _capped, true, 3, 2, 2)
BRASA_ROWS(96, _capped, true, 2, 1, 1)
BRASA_ROWS(128, _capped, true, 2, 1, 1)
