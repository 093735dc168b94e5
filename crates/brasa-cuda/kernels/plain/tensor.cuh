// Products of f32 on tensor cores, by three products of tf32 (ten bits behind the point, the range of f32): each operand is the sum of its upper bits
// and of what these leave, and of the four products of such parts the smallest, 2^-22 of the whole, is left out.
#pragma once

#include "common.cuh"

#ifdef BRASA_EMULATION
#include "../../emulation/matrix.h"
#else
#include "../hopper/common.cuh"
#endif

namespace brasa {

// N numbers in two parts.
template <u32 N> struct Parts {
    u32 upper[N], rest[N];

    DEVICE void set(u32 i, float x) {
        upper[i] = __float_as_uint(x) & 0xffffe000u;
        rest[i] = __float_as_uint(x - __uint_as_float(upper[i]));
    }
};

// c += a · b, m16n8k8.
DEVICE void mma_parts(float (&c)[4], const Parts<4>& a, const Parts<2>& b) {
    mma_tf32(c, a.rest, b.upper[0], b.upper[1]);
    mma_tf32(c, a.upper, b.rest[0], b.rest[1]);
    mma_tf32(c, a.upper, b.upper[0], b.upper[1]);
}

}  // namespace brasa
