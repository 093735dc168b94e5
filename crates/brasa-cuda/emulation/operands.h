// What the decoding of weights in registers (../kernels/hopper/{multiply,halves,operands}.cuh) needs of CUDA, on the CPU.
#pragma once

#include "emulation.h"

#define __device__
#define __host__
#define __forceinline__ inline

struct uint2 {
    uint32_t x, y;
};
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};
struct float2 {
    float x, y;
};
struct __half2 {
    _Float16 x, y;
};

inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline __half2 __hadd2(__half2 a, __half2 b) { return {(_Float16)(a.x + b.x), (_Float16)(a.y + b.y)}; }
inline __half2 __hmul2(__half2 a, __half2 b) { return {(_Float16)(a.x * b.x), (_Float16)(a.y * b.y)}; }
inline _Float16 fused(_Float16 a, _Float16 b, _Float16 c) { return (_Float16)((double)a * (double)b + (double)c); }
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) { return {fused(a.x, b.x, c.x), fused(a.y, b.y, c.y)}; }

// Bytes of `x` and `y` that the nibbles of `selectors` choose.
inline uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t selectors) {
    uint64_t both = (uint64_t)y << 32 | x;
    uint32_t result = 0;
    for (int i = 0; i < 4; ++i) {
        result |= (uint32_t)(both >> (selectors >> (4 * i) & 7) * 8 & 255) << (8 * i);
    }
    return result;
}

namespace brasa {

// Memory that addresses of shared memory count from.
inline const uint8_t* shared_memory = nullptr;

// Is told of each read, where it is set; of one that a lane does not ask for, it is told the address NOWHERE.
const uint32_t NOWHERE = ~0u;
inline void (*on_read)(uint32_t at, uint32_t bytes) = nullptr;

template <typename T> inline T peek(uint32_t at) {
    if (on_read) {
        on_read(at, sizeof(T));
    }
    T value;
    memcpy(&value, shared_memory + at, sizeof(T));
    return value;
}
inline uint4 peek16_if(bool asks, uint32_t at) {
    if (asks) {
        return peek<uint4>(at);
    }
    if (on_read) {
        on_read(NOWHERE, sizeof(uint4));
    }
    return {0, 0, 0, 0};
}
inline uint4 load_shared16(uint32_t at) { return peek<uint4>(at); }
inline uint2 load_shared8(uint32_t at) { return peek<uint2>(at); }
inline uint32_t load_shared4(uint32_t at) { return peek<uint32_t>(at); }
inline uint32_t or_and(uint32_t a, uint32_t mask, uint32_t bits) { return (a & mask) | bits; }
inline uint32_t pack_halves(float low, float high) { return float_to_half(low) | (uint32_t)float_to_half(high) << 16; }
inline float2 unpack_halves(uint32_t h) { return {half_to_float((unsigned short)h), half_to_float((unsigned short)(h >> 16))}; }

}  // namespace brasa
