// Codes of weights as halves and floats, for products on the tensor cores.
//
// A code placed in the mantissa of 1024.0 reads 1024 + code (or 1024 + 16·code in the upper nibble, always output g + 8): no arithmetic. Who multiplies takes
// the constant out again.
#pragma once
#include "common.cuh"
#include "element.cuh"
#include "layout.cuh"
#include "smem.cuh"

namespace brasa {

constexpr uint32_t HALF_1024 = 0x64006400;

// Bytes i of a word as f32, without an integer conversion.
template <int I> __device__ __forceinline__ float byte_float(uint32_t w, float bias) {
    return __uint_as_float(__byte_perm(w, 0x4B000000, 0x7540 | I)) - (8388608.0f + bias);
}

// Four nibble registers of a step: 1024 + q for output g, 1024 + 16q for g+8.
__device__ __forceinline__ void nibbles(uint32_t (&a)[4], uint32_t w) {
    a[0] = or_and(w, 0x000f000f, HALF_1024);
    a[1] = or_and(w, 0x00f000f0, HALF_1024);
    w >>= 8;
    a[2] = or_and(w, 0x000f000f, HALF_1024);
    a[3] = or_and(w, 0x00f000f0, HALF_1024);
}
__device__ __forceinline__ void bytes(uint32_t (&a)[4], uint32_t w0, uint32_t w1) {
    a[0] = __byte_perm(w0, 0x64646464, 0x4140);
    a[1] = __byte_perm(w0, 0x64646464, 0x4342);
    a[2] = __byte_perm(w1, 0x64646464, 0x4140);
    a[3] = __byte_perm(w1, 0x64646464, 0x4342);
}
// Adds bits 4 and 5 of the codes of step S (mod 2).
template <int S> __device__ __forceinline__ void upper_bits(uint32_t (&a)[4], uint32_t h) {
    if (S == 0) {
        a[0] = or_and(h, 0x00300030, a[0]);
        a[1] = or_and(h, 0x03000300, a[1]);
        h >>= 2;
        a[2] = or_and(h, 0x00300030, a[2]);
        a[3] = or_and(h, 0x03000300, a[3]);
    } else {
        a[0] = or_and(h << 4, 0x00300030, a[0]);
        a[1] = or_and(h >> 4, 0x03000300, a[1]);
        a[2] = or_and(h << 2, 0x00300030, a[2]);
        a[3] = or_and(h >> 6, 0x03000300, a[3]);
    }
}

}  // namespace brasa
