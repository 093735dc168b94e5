// Filters on the listed tokens of a row, the likeliest ones, sorted: how many tokens are kept.
#pragma once

#include "draw_bins.cuh"
#include "draw_keys.cuh"
#include "draw_shares.cuh"

// More than a sum in order of rank can differ from the tree sum, relative to it: neither rounds more than 64 times by 2⁻²⁴.
#define DRAW_DOUBT (1.0f / 65536.0f)

// Where the tree of sums has a token: places that are joined first differ in the lowest bits.
DEVICE u32 draw_place(u32 id) {
    u32 place = 0;
    for (u32 bit = 0; bit < 8; ++bit) {
        place |= (id >> bit & 0x01010101u) << (7 - bit);
    }
    return place;
}

// Shared memory of a block that draws a token.
struct DrawMemory {
    u64 scratch[32];
    u64 buffers[2][DRAW_LISTED];
    u64 keys[DRAW_LISTED];        // falling
    u64 places[DRAW_LISTED];      // falling, each a token's place above its rank
    float prefixes[DRAW_LISTED];  // sums of the first 1, 2, … shares in order of rank
    float sums[DRAW_LISTED];      // of tokens that are joined so far, in order of places
    float totals[32];             // of warps
    float groups[32];             // of 256 blocks each
    u32 next[DRAW_LISTED];        // the sum that follows; 0 if this one was joined to another
    u32 number;                   // of tokens with keys from some key on
};

// The likeliest tokens of a row, at most as many as top-k keeps; thread i < count has the key of rank i.
struct DrawListed {
    DrawMemory& memory;
    u64 key;
    u32 count;
    u32 padded;        // `count` or more, a power of two
    bool is_complete;  // all tokens of the row were listed, except those of −∞
    float largest, inverse_temperature;
    bool has_prefixes = false, has_places = false;

    DEVICE float share(u64 key) const { return draw_share(draw_value(key), largest, inverse_temperature); }

    // Fills `prefixes`.
    DEVICE void prepare_prefixes() {
        if (has_prefixes) {
            return;
        }
        has_prefixes = true;
        u32 i = threadIdx.x;
        float total = i < count ? share(key) : 0.0f, prefix = total;
        if (i < padded) {
            for (u32 distance = 1; distance < 32; distance *= 2) {
                float other = __shfl_xor_sync(0xffffffffu, total, distance);
                prefix = lane() & distance ? __fadd_rn(prefix, other) : prefix;
                total = __fadd_rn(total, other);
            }
            if (lane() == 0) {
                memory.totals[warp()] = total;
            }
        }
        __syncthreads();
        if (i < count) {
            float before = 0.0f;
            for (u32 w = 0; w < warp(); ++w) {
                before = __fadd_rn(before, memory.totals[w]);
            }
            memory.prefixes[i] = __fadd_rn(before, prefix);
        }
        __syncthreads();
    }

    // Fills `places`: the tokens in the order of the tree.
    DEVICE void prepare_places() {
        if (has_places) {
            return;
        }
        has_places = true;
        u32 i = threadIdx.x;
        u64 place = i < count ? (u64)draw_place(draw_id(key)) << 32 | i : 0;
        if (i < count) {
            memory.keys[i] = key;
        }
        place = draw_sort(place, padded, memory.buffers);
        if (i < count) {
            memory.places[i] = place;
        }
    }

    // The tree sum of the shares of the first `few` tokens. All threads get it.
    DEVICE float sum_of_first(u32 few) {
        prepare_places();
        u32 i = threadIdx.x, place = 0;
        __syncthreads();
        if (i < count) {
            u32 rank = (u32)memory.places[i];
            place = (u32)(memory.places[i] >> 32);
            memory.sums[i] = rank < few ? share(memory.keys[rank]) : 0.0f;
            memory.next[i] = i + 1;
        }
        for (u32 bit = 0; bit < 24; ++bit) {
            __syncthreads();
            // The higher of two places stands first and takes the lower one in.
            if (i < count && (place >> bit & 1) == 1 && memory.next[i] > 0) {
                u32 other = memory.next[i];
                if (other < count && (u32)(memory.places[other] >> 32) >> (bit + 1) == place >> (bit + 1)) {
                    memory.sums[i] = __fadd_rn(memory.sums[i], memory.sums[other]);
                    memory.next[i] = memory.next[other];
                    memory.next[other] = 0;
                }
            }
        }
        __syncthreads();
        return memory.sums[0];
    }

    // The smallest n <= `end` for which the tree sum of the first n shares is at least `value` times `sum_of_all`, or, unless `of_all`, times the tree sum
    // of the first `few`; end + 1 if no n is large enough.
    //
    // Tree sums never fall as tokens are added. Sums in order of rank tell on which side of the target tree sums lie, unless they are close to the target;
    // then tree sums are made.
    DEVICE u32 reach(u32 end, float value, bool of_all, float sum_of_all, u32 few) {
        prepare_prefixes();
        u32 i = threadIdx.x;
        float near = __fmul_rn(value, of_all ? sum_of_all : memory.prefixes[few - 1]);
        float prefix = memory.prefixes[i < end ? i : 0];
        u32 short_of = (u32)__syncthreads_count(i < end && prefix < __fmul_rn(near, 1.0f - DRAW_DOUBT));
        if (short_of == (u32)__syncthreads_count(i < end && prefix < __fmul_rn(near, 1.0f + DRAW_DOUBT))) {
            return short_of + 1;
        }
        float target = __fmul_rn(value, of_all ? sum_of_all : sum_of_first(few));
        if (sum_of_first(end) < target) {
            return end + 1;
        }
        u32 low = 0, high = end;
        while (low + 1 < high) {
            u32 middle = (low + high) / 2;
            if (sum_of_first(middle) >= target) {
                high = middle;
            } else {
                low = middle;
            }
        }
        return high;
    }
};

// Sorts the tokens that `draw_list` has listed.
DEVICE DrawListed draw_listed(const DrawParams& p, const DrawRow& row, float largest, DrawMemory& memory) {
    const DrawBins bins(row, p.counts + blockIdx.y * (DRAW_BINS + 1));
    u32 i = threadIdx.x, count = bins.listed, padded = 32;
    while (padded < count) {
        padded *= 2;
    }
    u64 key = draw_sort(i < count ? p.listed[blockIdx.y * DRAW_LISTED + i] : 0, padded, memory.buffers);
    const bool is_complete = count == bins.all;
    // No filter asks for more tokens than top-k leaves.
    count = min(count, row.most);
    while (padded > 32 && padded / 2 >= count) {
        padded /= 2;
    }
    return {memory, key, count, padded, is_complete, largest, row.sum_temperature};
}

// How many tokens the filters keep; 0 if the listed tokens do not tell, and `draw_lowest` has to.
DEVICE u32 draw_kept(const DrawRow& row, DrawListed& tokens, float sum_of_all) {
    const u32 ALL = 0xffffffffu;
    u32 count = tokens.count, kept = ALL;
    for (u32 filter = 0; filter < row.filters_count; ++filter) {
        u32 most = min(row.most, kept);
        float value = row.values[filter];
        if (row.kinds[filter] == DRAW_TOP_K) {
            kept = most;
            continue;
        }
        if (tokens.is_complete) {
            most = min(most, count);
        }
        u32 end = min(most, count);
        if (row.kinds[filter] == DRAW_MIN_P) {
            float least = __fadd_rn(tokens.largest, value);
            u32 likely = (u32)__syncthreads_count(threadIdx.x < end && draw_value(tokens.key) >= least);
            if (likely == end && end < most) {
                return 0;
            }
            kept = max(likely, 1u);
            continue;
        }
        // Top-p.
        if (kept != ALL && !row.whole && min(kept, most) > count) {
            return 0;
        }
        u32 reached = tokens.reach(end, value, kept == ALL || row.whole, sum_of_all, min(kept, end));
        if (reached > end) {
            if (end < most) {
                return 0;
            }
            reached = most;
        }
        kept = reached;
    }
    if (tokens.is_complete) {
        kept = min(kept, count);
    }
    return kept <= count ? kept : 0;
}
