// Filters on all tokens of a row, for rows whose listed tokens do not tell how many are kept: the smallest key that is kept, by bisection over keys. Each
// step reads all logits anew.
#pragma once

#include "draw_keys.cuh"
#include "draw_shares.cuh"

// A row of logits.
struct DrawWhole {
    const float* z;
    float* sums;  // scratch memory: the sums of blocks of 256
    u32 width;
    float largest;

    // The tree sum of the shares of tokens whose keys are `lowest` or larger. All threads get it.
    DEVICE float sum_from(u64 lowest, float inverse_temperature, float* scratch) const {
        u32 blocks = (width + 255) / 256;
        __syncthreads();
        for (u32 block = warp(); block < blocks; block += blockDim.x / 32) {
            float shares[8];
            for (u32 i = 0; i < 8; ++i) {
                u32 id = block * 256 + 32 * i + lane();
                float value = id < width ? z[id] : -INFINITY;
                bool counts = value == value && draw_key(value, id) >= lowest;
                shares[i] = counts ? draw_share(value, largest, inverse_temperature) : 0.0f;
            }
            float sum = draw_sum_of_block(shares);
            if (lane() == 0) {
                sums[block] = sum;
            }
        }
        return draw_sum_of_all(sums, blocks, scratch);
    }

    // How many tokens have keys of `lowest` or larger. All threads get it.
    DEVICE u32 count_from(u64 lowest, u32* count) const {
        __syncthreads();
        if (threadIdx.x == 0) {
            *count = 0;
        }
        __syncthreads();
        u32 own = 0;
        for (u32 id = threadIdx.x; id < width; id += blockDim.x) {
            float value = z[id];
            own += value == value && draw_key(value, id) >= lowest;
        }
        if (own > 0) {
            atomicAdd(count, own);
        }
        __syncthreads();
        return *count;
    }
};

// The smallest key that the filters keep. All threads get it.
DEVICE u64 draw_lowest(const DrawRow& row, const DrawWhole& tokens, u64 likeliest, float sum_of_all, float* scratch, u32* count) {
    u64 lowest = (u64)0x00800000u << 32;  // above the keys of −∞
    for (u32 filter = 0; filter < row.filters_count; ++filter) {
        float value = row.values[filter], target = 0.0f;
        if (row.kinds[filter] == DRAW_MIN_P) {
            lowest = draw_larger(lowest, draw_key(__fadd_rn(tokens.largest, value), 0xffffffffu));
            continue;
        }
        bool is_top_k = row.kinds[filter] == DRAW_TOP_K;
        if (is_top_k) {
            if (tokens.count_from(lowest, count) < row.most) {
                continue;
            }
        } else {
            float sum = tokens.sum_from(lowest, row.sum_temperature, scratch);
            target = __fmul_rn(value, row.whole ? sum_of_all : sum);
            if (sum < target) {
                continue;
            }
        }
        // Tokens from `lowest` on are enough, those from `high` on too few.
        u64 high = likeliest + 1;
        while (high - lowest > 1) {
            u64 middle = lowest + (high - lowest) / 2;
            bool enough = is_top_k ? tokens.count_from(middle, count) >= row.most
                                   : tokens.sum_from(middle, row.sum_temperature, scratch) >= target;
            if (enough) {
                lowest = middle;
            } else {
                high = middle;
            }
        }
    }
    return lowest;
}
