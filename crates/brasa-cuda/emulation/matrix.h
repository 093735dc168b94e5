// Matrix fragments and asynchronous copies of ../kernels/hopper/common.cuh on the CPU, for kernels whose threads run as fibres.
#pragma once

#include "emulation.h"

namespace brasa {

typedef uintptr_t SharedAt;
inline SharedAt shared_address(const void* p) { return (SharedAt)p; }

inline void copy16(void* to, const void* from) { memcpy(to, from, 16); }
inline void copy8(void* to, const void* from) { memcpy(to, from, 8); }
inline void copies_end_group() {}
template <unsigned N> inline void wait_for_groups() {}

inline float raise_two(float x) { return exp2f(x); }
struct PowersOfTwo {
    static constexpr float UNIT = 1.4426950408889634f;
    static float of(float x) { return raise_two(x); }
};
inline uint32_t pack_halves(float low, float high) { return float_to_half(low) | (uint32_t)float_to_half(high) << 16; }
inline float within_half(float x) { return x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x; }
inline uint32_t pack_halves_within(float low, float high) { return pack_halves(within_half(low), within_half(high)); }
inline float half_of(uint32_t word, unsigned side) { return half_to_float((unsigned short)(side ? word >> 16 : word)); }

// What each lane of a warp gives the others. A warp is alone between its exchanges, which are barriers of its lanes.
template <class T> inline T* of_warp() {
    static __thread T lanes[32][32];
    return lanes[threadIdx.x / 32];
}
inline void warp_barrier() { brasa_emulation::exchange(0, 0); }

struct Fragments {
    uint32_t a[4], b[2];
};

// c += a · b, m16n8k16, of numbers that `of_word` takes from a half of a word.
template <class OfWord> inline void mma_16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, OfWord of_word) {
    Fragments* lanes = of_warp<Fragments>();
    const unsigned lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    lanes[lane] = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
    warp_barrier();
    for (unsigned k = 0; k < 16; ++k) {
        const unsigned other = k % 8 / 2, upper = k / 8;
        for (unsigned i = 0; i < 4; ++i) {
            const float x = of_word(lanes[g * 4 + other].a[upper * 2 + i / 2], k % 2);
            const float y = of_word(lanes[(2 * t + i % 2) * 4 + other].b[upper], k % 2);
            c[i] = fmaf(x, y, c[i]);
        }
    }
    warp_barrier();
}

inline void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) { mma_16(c, a, b0, b1, half_of); }
inline void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    mma_16(c, a, b0, b1, [](uint32_t word, unsigned side) { return __uint_as_float(side ? word & 0xffff0000u : word << 16); });
}

// c += a · b, m16n8k8, of tf32.
inline void mma_tf32(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    Fragments* lanes = of_warp<Fragments>();
    const unsigned lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint32_t bits = 0xffffe000u;
    lanes[lane] = {{a[0] & bits, a[1] & bits, a[2] & bits, a[3] & bits}, {b0 & bits, b1 & bits}};
    warp_barrier();
    for (unsigned k = 0; k < 8; ++k) {
        for (unsigned i = 0; i < 4; ++i) {
            const float x = __uint_as_float(lanes[g * 4 + k % 4].a[k / 4 * 2 + i / 2]);
            const float y = __uint_as_float(lanes[(2 * t + i % 2) * 4 + k % 4].b[k / 4]);
            c[i] = fmaf(x, y, c[i]);
        }
    }
    warp_barrier();
}

// Four matrices of eight rows of 16 bytes; lane n has the address of row n % 8 of matrix n / 8.
inline void load_matrix4(uint32_t (&r)[4], SharedAt address) {
    SharedAt* lanes = of_warp<SharedAt>();
    const unsigned lane = threadIdx.x % 32;
    lanes[lane] = address;
    warp_barrier();
    for (unsigned i = 0; i < 4; ++i) {
        memcpy(&r[i], (const char*)lanes[i * 8 + lane / 4] + lane % 4 * 4, 4);
    }
    warp_barrier();
}
inline void load_matrix4_transposed(uint32_t (&r)[4], SharedAt address) {
    SharedAt* lanes = of_warp<SharedAt>();
    const unsigned lane = threadIdx.x % 32;
    lanes[lane] = address;
    warp_barrier();
    for (unsigned i = 0; i < 4; ++i) {
        unsigned short pair[2];
        for (unsigned n = 0; n < 2; ++n) {
            memcpy(&pair[n], (const char*)lanes[i * 8 + lane % 4 * 2 + n] + lane / 4 * 2, 2);
        }
        r[i] = pair[0] | (uint32_t)pair[1] << 16;
    }
    warp_barrier();
}

}  // namespace brasa
