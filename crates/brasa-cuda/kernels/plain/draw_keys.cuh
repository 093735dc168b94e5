// Keys of tokens: the bits of a logit or score in a form that orders as the numbers do, above the complement of the token's id. Of equal numbers the
// lower id has the larger key. No number's key is 0, so 0 stands for no token.
#pragma once

#include "common.cuh"

DEVICE u64 draw_key(float z, u32 id) {
    // Adding 0 makes −0 equal 0.
    u32 bits = __float_as_uint(__fadd_rn(z, 0.0f));
    u32 ordered = bits >> 31 ? ~bits : bits | 0x80000000u;
    return (u64)ordered << 32 | (u32)~id;
}

// The key of a number, 0 of NaN.
DEVICE u64 draw_key_or_none(float z, u32 id) { return z == z ? draw_key(z, id) : 0; }

DEVICE float draw_value(u64 key) {
    u32 ordered = (u32)(key >> 32);
    return __uint_as_float(ordered >> 31 ? ordered & 0x7fffffffu : ~ordered);
}

DEVICE u32 draw_id(u64 key) { return ~(u32)key; }

DEVICE u64 draw_larger(u64 a, u64 b) { return b > a ? b : a; }

// The key that the lane `distance` away gives.
DEVICE u64 draw_exchange(u64 key, u32 distance) {
    u32 high = __shfl_xor_sync(0xffffffffu, (u32)(key >> 32), distance);
    u32 low = __shfl_xor_sync(0xffffffffu, (u32)key, distance);
    return (u64)high << 32 | low;
}

DEVICE u64 draw_largest_of_warp(u64 key) {
    for (u32 distance = 16; distance > 0; distance /= 2) {
        key = draw_larger(key, draw_exchange(key, distance));
    }
    return key;
}

// The largest key of the block's threads. All threads get it; `scratch` holds 32 keys.
DEVICE u64 draw_largest(u64 key, u64* scratch) {
    key = draw_largest_of_warp(key);
    __syncthreads();
    if (lane() == 0) {
        scratch[warp()] = key;
    }
    __syncthreads();
    return draw_largest_of_warp(lane() < blockDim.x / 32 ? scratch[lane()] : 0);
}

// Sorts `count` keys in falling order, a power of two from 32 up to the block's threads: thread i < count gives one and gets the one of rank i.
// Keys pass within a warp by shuffles, and between warps through two buffers in turn, so that one barrier a step is enough. All threads call it.
DEVICE u64 draw_sort(u64 key, u32 count, u64 (*buffers)[DRAW_LISTED]) {
    u32 i = threadIdx.x, turn = 0;
    bool works = i < count;
    for (u32 length = 2; length <= count; length *= 2) {
        for (u32 distance = length / 2; distance > 0; distance /= 2) {
            u64 other = 0;
            if (distance >= 32) {
                u64* buffer = buffers[turn];
                turn ^= 1;
                if (works) {
                    buffer[i] = key;
                }
                __syncthreads();
                if (works) {
                    other = buffer[i ^ distance];
                }
            } else if (works) {
                other = draw_exchange(key, distance);
            }
            bool takes_larger = ((i & length) == 0) == ((i & distance) == 0);
            key = (other > key) == takes_larger ? other : key;
        }
    }
    return key;
}
