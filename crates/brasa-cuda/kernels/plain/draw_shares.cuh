// Shares of tokens, exp((z − largest) / T), and their tree sums. Tokens lie at the places of their ids, and blocks of 256 are folded in half until one
// number is left; the sums of blocks are folded in the same way.
#pragma once

#include "common.cuh"

// exp(x) for x <= 0, as `exp_nonpositive` of brasa-graph defines it.
DEVICE float draw_exp(float x) {
    float clamped = fmaxf(x, -87.0f);
    float rounded = __fadd_rn(__fmul_rn(clamped, 1.44269504088896340736f), 12582912.0f);
    float n = __fadd_rn(rounded, -12582912.0f);
    float r = __fadd_rn(__fadd_rn(clamped, -__fmul_rn(n, 0.69314575f)), -__fmul_rn(n, 1.4286068e-6f));
    float sum = 1.0f / 5040.0f;
    sum = __fadd_rn(__fmul_rn(sum, r), 1.0f / 720.0f);
    sum = __fadd_rn(__fmul_rn(sum, r), 1.0f / 120.0f);
    sum = __fadd_rn(__fmul_rn(sum, r), 1.0f / 24.0f);
    sum = __fadd_rn(__fmul_rn(sum, r), 1.0f / 6.0f);
    sum = __fadd_rn(__fmul_rn(sum, r), 0.5f);
    sum = __fadd_rn(__fmul_rn(sum, r), 1.0f);
    sum = __fadd_rn(__fmul_rn(sum, r), 1.0f);
    float power = __uint_as_float((__float_as_uint(rounded) + 127) << 23);
    return x >= -87.0f ? __fmul_rn(sum, power) : 0.0f;
}

DEVICE float draw_share(float z, float largest, float inverse_temperature) {
    return draw_exp(__fmul_rn(__fadd_rn(z, -largest), inverse_temperature));
}

// The tree sum of a block of 256 numbers, of which lane l has numbers l, l + 32, …: folds by 128, by 64 and by 32 stay within a lane. All lanes get it.
DEVICE float draw_sum_of_block(const float (&at)[8]) {
    float even = __fadd_rn(__fadd_rn(at[0], at[4]), __fadd_rn(at[2], at[6]));
    float odd = __fadd_rn(__fadd_rn(at[1], at[5]), __fadd_rn(at[3], at[7]));
    return warp_sum(__fadd_rn(even, odd));
}

// The tree sum of the sums of a row's blocks, at most 32 · 256 of them. All threads get it; `scratch` holds 32 floats.
DEVICE float draw_sum_of_all(const float* sums, u32 blocks, float* scratch) {
    u32 groups = (blocks + 255) / 256;
    __syncthreads();
    for (u32 group = warp(); group < 32; group += blockDim.x / 32) {
        float at[8];
        for (u32 i = 0; i < 8; ++i) {
            u32 block = group * 256 + 32 * i + lane();
            at[i] = group < groups && block < blocks ? sums[block] : 0.0f;
        }
        float sum = draw_sum_of_block(at);
        if (lane() == 0) {
            scratch[group] = sum;
        }
    }
    __syncthreads();
    return warp_sum(scratch[lane()]);
}
