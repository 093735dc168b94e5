// Weights of random bits whose scales are small: what tests of decoding begin with.
#pragma once

#include "operands.h"

#include "../kernels/hopper/operands.cuh"

#include <vector>

namespace brasa {

inline uint64_t noise_state = 1;
inline uint32_t noise() {
    noise_state ^= noise_state << 13;
    noise_state ^= noise_state >> 7;
    noise_state ^= noise_state << 17;
    return (uint32_t)(noise_state >> 32);
}
// A scale or an offset.
inline uint16_t random_half() { return float_to_half(((int)(noise() % 2001) - 1000) * 2e-5f); }
// An element of x: a whole number of 15 bits and a sign.
inline float random_whole() { return (float)((int)(noise() % 32767) - 16383); }

// Where the halves of a format begin and end: in a unit's header, or in a sub.
inline bool is_half(uint32_t format, uint32_t in_sub) {
    switch (format) {
        case F16: case BF16: return true;
        case Q8_0: case MLX8: return in_sub >= 1024;
        case Q4_0: case Q4_1: return in_sub >= 512;
        default: return false;
    }
}

inline std::vector<uint8_t> random_tile(uint32_t format, uint32_t subs) {
    const Geometry G = geometry(format);
    std::vector<uint8_t> tile(tile_bytes(format, subs));
    for (uint32_t at = 0; at < tile.size(); at += 2) {
        const uint32_t in_unit = at % unit_bytes(format);
        const bool header = in_unit < G.header_bytes;
        uint16_t v = (uint16_t)noise();
        if (header || is_half(format, (in_unit - G.header_bytes) % G.sub_bytes)) v = format == BF16 ? float_to_bf16(half_to_float(random_half())) : random_half();
        memcpy(tile.data() + at, &v, 2);
    }
    return tile;
}

}  // namespace brasa
