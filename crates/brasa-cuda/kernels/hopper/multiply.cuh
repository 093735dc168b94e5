// Codes of weights as halves and floats, for products on the tensor cores.
//
// A code placed in the mantissa of 1024.0 reads 1024 + code (or 1024 + 16·code in the upper nibble, always output g + 8): no arithmetic. Who multiplies takes
// the constant out again.
#pragma once
#include "element.cuh"
#include "layout.cuh"
#ifdef __CUDACC__
#include "common.cuh"
#include "smem.cuh"
#endif

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
// Shifts bits to the left, or to the right where the number is negative; known when compiled.
__device__ __forceinline__ uint32_t moved(uint32_t w, int left) { return left >= 0 ? w << left : w >> -left; }
// Adds bits 4 and 5 of the codes of a step from its T2 word.
__device__ __forceinline__ void upper_bits(uint32_t (&a)[4], uint32_t h, int step) {
#pragma unroll
    for (int p = 0; p < 4; p++) a[p] = or_and(moved(h, (p % 2 ? 8 : 4) - int(t2_bit(step, p))), p % 2 ? 0x03000300 : 0x00300030, a[p]);
}
// Codes of two bits of a step: 1024 + 16q for output g, 1024 + 256q for g + 8.
__device__ __forceinline__ void twos(uint32_t (&a)[4], uint32_t h, int step) {
    a[0] = a[1] = a[2] = a[3] = HALF_1024;
    upper_bits(a, h, step);
}
// Sets bit LOW of the codes of output g, and bit HIGH of those of g + 8, from an O1 word.
template <int LOW, int HIGH> __device__ __forceinline__ void add_ones(uint32_t (&a)[4], uint32_t ones, int step) {
#pragma unroll
    for (int p = 0; p < 4; p++) {
        const int bit = p % 2 ? HIGH : LOW;
        a[p] = or_and(moved(ones, bit - int(o1_bit(step, p))), 0x00010001u << bit, a[p]);
    }
}
// What eight codes of IQ4 stand for, 128 too large: those of output g in one word, those of g + 8 in another, in the order of the nibbles.
__device__ __forceinline__ void iq4_bytes(uint32_t w, uint32_t& low, uint32_t& high) {
    // Of each four codes both halves of the table are looked up by their lower bits; then their upper bits choose.
    const uint32_t choice = or_and(w >> 1, 0x44444444, 0x32103210), codes = w & 0x77777777;
    const uint32_t first = __byte_perm(__byte_perm(IQ4_0, IQ4_4, codes), __byte_perm(IQ4_8, IQ4_12, codes), choice);
    const uint32_t last = __byte_perm(__byte_perm(IQ4_0, IQ4_4, codes >> 16), __byte_perm(IQ4_8, IQ4_12, codes >> 16), choice >> 16);
    low = __byte_perm(first, last, 0x6420);
    high = __byte_perm(first, last, 0x7531);
}

}  // namespace brasa
