// One element of a weight in fragment order (layout.cuh), decoded plainly with the bits of the format's codec.
#pragma once
#include <string.h>

#ifdef __CUDACC__
#include <cuda_fp16.h>
#endif

#include "layout.cuh"

namespace brasa {

BRASA_BOTH inline float half_value(const uint8_t* p) {
    const uint16_t bits = uint16_t(p[0] | (p[1] << 8));
#ifdef __CUDACC__
    return __half2float(__ushort_as_half(bits));
#else
    return half_to_float(bits);
#endif
}
BRASA_BOTH inline float bf16_value(const uint8_t* p) {
    const uint32_t bits = (uint32_t(p[0]) | (uint32_t(p[1]) << 8)) << 16;
#ifdef __CUDA_ARCH__
    return __uint_as_float(bits);
#else
    float value;
    memcpy(&value, &bits, 4);
    return value;
#endif
}
// Rounded apart, as the codecs of the formats do: a · b − c · d.
BRASA_BOTH inline float scaled_less(float a, float b, float c, float d) {
#ifdef __CUDA_ARCH__
    return __fsub_rn(__fmul_rn(a, b), __fmul_rn(c, d));
#else
    const float x = a * b, y = c * d;
    return x - y;
#endif
}

// Rounded apart: a · b + c.
BRASA_BOTH inline float scaled_and(float a, float b, float c) { return scaled_less(a, b, -c, 1.0f); }

// What the codes of IQ4_XS and IQ4_NL stand for, each 128 too large: code c is byte c % 4 of the word that is named after its first.
constexpr uint32_t IQ4_0 = 0x3f2d1801, IQ4_4 = 0x766a5d4f, IQ4_8 = 0xa6998d81, IQ4_12 = 0xf1d9c5b5;
BRASA_BOTH inline uint32_t iq4_byte(uint32_t code) {
    const uint32_t word = code < 8 ? (code < 4 ? IQ4_0 : IQ4_4) : (code < 12 ? IQ4_8 : IQ4_12);
    return word >> (code % 4 * 8) & 255;
}

// Element (n, k) of a weight with `subs` subs a tile.
BRASA_BOTH inline float weight_at(uint32_t format, const uint8_t* weights, uint32_t subs, uint32_t n, uint32_t k) {
    const Geometry G = geometry(format);
    const uint32_t row = n % 16, g = row % 8, high = row / 8, sub = k / 64, step = k % 64 / 16, block = k % 64 / 32;
    const Place at = place(row, k % 16);
    const uint32_t p = at.element / 2, j = at.element % 2;
    const uint8_t* unit = weights + (uint64_t)(n / 16) * tile_bytes(format, subs) + (uint64_t)(sub / G.unit_subs) * unit_bytes(format);
    const uint8_t* s = unit + G.header_bytes + (sub % G.unit_subs) * G.sub_bytes;
    // Bits of N4, T2 and O1 words.
    auto four = [&]() -> uint32_t { return (s[at.lane * 16 + step * 4 + p / 2 + 2 * j] >> (4 * (p % 2))) & 15; };
    auto two = [&](const uint8_t* words) {
        const uint8_t* t = words + at.lane * 8 + step / 2 * 4 + 2 * j;
        return ((t[0] | (t[1] << 8)) >> t2_bit(step, p)) & 3u;
    };
    auto one = [&](const uint8_t* words) {
        const uint8_t* o = words + at.lane * 4 + 2 * j;
        return ((o[0] | (o[1] << 8)) >> o1_bit(step, p)) & 1u;
    };
    switch (format) {
        case F16: return half_value(s + step * 512 + at.lane * 16 + at.element * 2);
        case BF16: return bf16_value(s + step * 512 + at.lane * 16 + at.element * 2);
        case Q8_0: {
            const int code = int(s[step / 2 * 512 + at.lane * 16 + step % 2 * 8 + at.element]) - 128;
            return half_value(s + 1024 + g * 8 + high * 4 + block * 2) * float(code);
        }
        case Q4_0: return half_value(s + 512 + g * 8 + high * 4 + block * 2) * float(int(four()) - 8);
        case Q4_K: case Q5_K: {
            const float d = half_value(unit + g * 8 + high * 2), m = half_value(unit + g * 8 + 4 + high * 2);
            const uint8_t* sm = s + (format == Q4_K ? 512 : 640) + g * 8 + high * 2 + block;
            const uint32_t code = format == Q4_K ? four() : four() + 16 * one(s + 512);
            return scaled_less(d * float(sm[0]), float(code), m, float(sm[4]));
        }
        case Q6_K: {
            const float d = half_value(unit + g * 4 + high * 2);
            return d * float(int(s[768 + g * 8 + high * 4 + step]) - 128) * float(int(four() + 16 * two(s + 512)) - 32);
        }
        case Q4_1: case MLX8: {
            const uint8_t* dm = s + (format == Q4_1 ? 512 : 1024) + g * 16 + high * 4 + block * 2;
            const uint32_t code = format == Q4_1 ? four() : s[step / 2 * 512 + at.lane * 16 + step % 2 * 8 + at.element];
            return scaled_and(half_value(dm), float(code), half_value(dm + 8));
        }
        case Q3_K: {
            const float d = half_value(unit + g * 4 + high * 2);
            return d * float(int(s[384 + g * 8 + high * 4 + step]) - 128) * float(int(2 * two(s) + one(s + 256)) - 4);
        }
        case Q2_K: {
            const float d = half_value(unit + g * 8 + high * 2), m = half_value(unit + g * 8 + 4 + high * 2);
            const uint32_t sm = s[256 + g * 8 + high * 4 + step];
            return scaled_less(d * float(sm & 15), float(two(s)), m, float(sm >> 4));
        }
        case IQ4_XS: {
            const float scale = half_value(unit + g * 4 + high * 2) * float(int(s[512 + g * 4 + high * 2 + block]) - 128);
            return scale * float(int(iq4_byte(four())) - 128);
        }
        default: return 0.0f / 0.0f;
    }
}

}  // namespace brasa
