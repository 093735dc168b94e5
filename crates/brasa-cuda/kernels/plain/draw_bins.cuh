// Bins of logits by their distance to the largest, nearest first. Counts of bins tell which tokens are the likeliest before any are sorted.
#pragma once

#include "common.cuh"

// The bin of a logit that is a number; a larger logit never falls into a later bin. Each power of two of the distance has eight bins, from 2⁻⁸ on, so
// that both flat and steep logits are told apart.
DEVICE u32 draw_bin(float z, float largest) {
    const u32 first = (127 - 8) << 3;
    u32 bin = __float_as_uint(__fadd_rn(largest, -z)) >> 20;
    return min(bin > first ? bin - first : 0, DRAW_BINS - 1);
}

// The first bins of a row, whose tokens are listed: as few as hold `most` tokens, and none beyond DRAW_LISTED tokens.
struct DrawBins {
    u32 bins;
    u32 listed;  // tokens in these bins
    u32 all;     // tokens in all bins

    // Each warp finds out by itself: a lane has four bins.
    DEVICE DrawBins(const DrawRow& row, const u32* counts) {
        static_assert(DRAW_BINS == 4 * 32, "a lane has four bins");
        u32 own[4], before = 0;
        all = 0;
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            own[i] = counts[4 * lane() + i];
            all += own[i];
        }
        for (u32 distance = 1; distance < 32; distance *= 2) {
            u32 other = __shfl_xor_sync(0xffffffffu, all, distance);
            before += lane() & distance ? other : 0;
            all += other;
        }
        // The number of tokens before a bin never falls from bin to bin, so listed bins are the first ones. Both sums fit into a word.
        u32 found = 0;
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            if (before < row.most && before + own[i] <= DRAW_LISTED) {
                found += 1 << 16 | own[i];
            }
            before += own[i];
        }
        for (u32 distance = 1; distance < 32; distance *= 2) {
            found += __shfl_xor_sync(0xffffffffu, found, distance);
        }
        bins = found >> 16;
        listed = found & 0xffff;
    }
};
