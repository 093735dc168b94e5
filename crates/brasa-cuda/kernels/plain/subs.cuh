// A lane's part of a sub in fragment order (../hopper/layout.cuh), of each format: codes as floats, and their scales.
#pragma once

#include "formats.cuh"

// Memory that is loaded in one piece.
struct alignas(8) Words2 {
    u32 at[2];
};

// Byte or nibble `shift` of a word less `bias`, as a float, without a conversion: 2^23 + code has the code as its last bits.
DEVICE float code_float(u32 word, u32 shift, u32 mask, float bias) {
    return __uint_as_float((word >> shift & mask) | 0x4b000000u) - (8388608.0f + bias);
}

// A lane's part of a sub: `load` asks memory for it, `codes` gives the codes of step `s`: inputs 2t, 2t+1, 2t+8, 2t+9 of outputs g
// and g + 8. `SPAN` steps share a scale; `scale` and `min` are those of block `b` of output g (`half` 0) or g + 8.
template <u32 FORMAT>
struct Sub;

struct HalvesSub {
    static const u32 SPAN = 4;
    static const bool MINS = false;
    Words4 words[4];

    DEVICE void load(const u8*, const u8* sub, u32 lane) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            words[i] = *(const Words4*)(sub + i * 512 + lane * 16);
        }
    }
    DEVICE float scale(u32, u32) const { return 1.0f; }
    DEVICE float min(u32, u32) const { return 0.0f; }
};

template <>
struct Sub<brasa::F16> : HalvesSub {
    DEVICE void codes(u32 s, float (&w)[2][4]) const {
#pragma unroll
        for (u32 p = 0; p < 4; ++p) {
            u32 word = words[s].at[p];
            w[p % 2][p / 2 * 2] = half_to_float((unsigned short)word);
            w[p % 2][p / 2 * 2 + 1] = half_to_float((unsigned short)(word >> 16));
        }
    }
};

template <>
struct Sub<brasa::BF16> : HalvesSub {
    DEVICE void codes(u32 s, float (&w)[2][4]) const {
#pragma unroll
        for (u32 p = 0; p < 4; ++p) {
            u32 word = words[s].at[p];
            w[p % 2][p / 2 * 2] = __uint_as_float(word << 16);
            w[p % 2][p / 2 * 2 + 1] = __uint_as_float(word & 0xffff0000u);
        }
    }
};

struct BytesSub {
    Words4 words[2];

    DEVICE void load_bytes(const u8* sub, u32 lane) {
        words[0] = *(const Words4*)(sub + lane * 16);
        words[1] = *(const Words4*)(sub + 512 + lane * 16);
    }
    DEVICE void bytes(u32 s, float (&w)[2][4], float bias) const {
#pragma unroll
        for (u32 e = 0; e < 8; ++e) {
            w[e / 2 % 2][e / 4 * 2 + e % 2] = code_float(words[s / 2].at[s % 2 * 2 + e / 4], e % 4 * 8, 255, bias);
        }
    }
};

template <>
struct Sub<brasa::Q8_0> : BytesSub {
    static const u32 SPAN = 2;
    static const bool MINS = false;
    Words2 d;

    DEVICE void load(const u8*, const u8* sub, u32 lane) {
        load_bytes(sub, lane);
        d = *(const Words2*)(sub + 1024 + lane / 4 * 8);
    }
    DEVICE void codes(u32 s, float (&w)[2][4]) const { bytes(s, w, 128.0f); }
    DEVICE float scale(u32 half, u32 b) const { return half_to_float((unsigned short)(d.at[half] >> (16 * b))); }
    DEVICE float min(u32, u32) const { return 0.0f; }
};

struct NibblesSub {
    Words4 words;

    DEVICE void load_nibbles(const u8* sub, u32 lane) { words = *(const Words4*)(sub + lane * 16); }
    DEVICE void nibbles(u32 s, float (&w)[2][4], float bias) const {
#pragma unroll
        for (u32 e = 0; e < 8; ++e) {
            w[e / 2 % 2][e / 4 * 2 + e % 2] = code_float(words.at[s], e / 2 * 4 + e % 2 * 16, 15, bias);
        }
    }
};

template <>
struct Sub<brasa::Q4_0> : NibblesSub {
    static const u32 SPAN = 2;
    static const bool MINS = false;
    Words2 d;

    DEVICE void load(const u8*, const u8* sub, u32 lane) {
        load_nibbles(sub, lane);
        d = *(const Words2*)(sub + 512 + lane / 4 * 8);
    }
    DEVICE void codes(u32 s, float (&w)[2][4]) const { nibbles(s, w, 8.0f); }
    DEVICE float scale(u32 half, u32 b) const { return half_to_float((unsigned short)(d.at[half] >> (16 * b))); }
    DEVICE float min(u32, u32) const { return 0.0f; }
};

// Scales and minima of super-blocks, records from RECORDS on.
template <u32 RECORDS>
struct SuperSub : NibblesSub {
    static const u32 SPAN = 2;
    static const bool MINS = true;
    Words2 records, d;

    DEVICE void load(const u8* unit, const u8* sub, u32 lane) {
        load_nibbles(sub, lane);
        records = *(const Words2*)(sub + RECORDS + lane / 4 * 8);
        d = *(const Words2*)(unit + lane / 4 * 8);
    }
    DEVICE float product(u32 record, u32 half, u32 b) const {
        return half_to_float((unsigned short)(d.at[record] >> (16 * half))) * code_float(records.at[record], half * 16 + b * 8, 255, 0.0f);
    }
    DEVICE float scale(u32 half, u32 b) const { return product(0, half, b); }
    DEVICE float min(u32 half, u32 b) const { return product(1, half, b); }
};

template <>
struct Sub<brasa::Q4_K> : SuperSub<512> {
    DEVICE void codes(u32 s, float (&w)[2][4]) const { nibbles(s, w, 0.0f); }
};

template <>
struct Sub<brasa::Q5_K> : SuperSub<640> {
    u32 ones;

    DEVICE void load(const u8* unit, const u8* sub, u32 lane) {
        SuperSub<640>::load(unit, sub, lane);
        ones = *(const u32*)(sub + 512 + lane * 4);
    }
    DEVICE void codes(u32 s, float (&w)[2][4]) const {
#pragma unroll
        for (u32 e = 0; e < 8; ++e) {
            u32 low = words.at[s] >> (e / 2 * 4 + e % 2 * 16) & 15, high = ones >> (brasa::o1_bit(s, e / 2) + e % 2 * 16) & 1;
            w[e / 2 % 2][e / 4 * 2 + e % 2] = __uint_as_float(low | high << 4 | 0x4b000000u) - 8388608.0f;
        }
    }
};

// A scale and an offset of each block.
struct OffsetScales {
    static const u32 SPAN = 2;
    static const bool MINS = true;
    Words4 dm;

    DEVICE void load_scales(const u8* records, u32 lane) { dm = *(const Words4*)(records + lane / 4 * 16); }
    DEVICE float scale(u32 half, u32 b) const { return half_to_float((unsigned short)(dm.at[half] >> (16 * b))); }
    DEVICE float min(u32 half, u32 b) const { return -half_to_float((unsigned short)(dm.at[2 + half] >> (16 * b))); }
};

template <>
struct Sub<brasa::Q4_1> : NibblesSub, OffsetScales {
    DEVICE void load(const u8*, const u8* sub, u32 lane) {
        load_nibbles(sub, lane);
        load_scales(sub + 512, lane);
    }
    DEVICE void codes(u32 s, float (&w)[2][4]) const { nibbles(s, w, 0.0f); }
};

template <>
struct Sub<brasa::MLX8> : BytesSub, OffsetScales {
    DEVICE void load(const u8*, const u8* sub, u32 lane) {
        load_bytes(sub, lane);
        load_scales(sub + 1024, lane);
    }
    DEVICE void codes(u32 s, float (&w)[2][4]) const { bytes(s, w, 0.0f); }
};

template <>
struct Sub<brasa::Q6_K> : NibblesSub {
    static const u32 SPAN = 1;
    static const bool MINS = false;
    Words2 upper, records;
    u32 d;

    DEVICE void load(const u8* unit, const u8* sub, u32 lane) {
        load_nibbles(sub, lane);
        upper = *(const Words2*)(sub + 512 + lane * 8);
        records = *(const Words2*)(sub + 768 + lane / 4 * 8);
        d = *(const u32*)(unit + lane / 4 * 4);
    }
    DEVICE void codes(u32 s, float (&w)[2][4]) const {
#pragma unroll
        for (u32 e = 0; e < 8; ++e) {
            u32 low = words.at[s] >> (e / 2 * 4 + e % 2 * 16) & 15;
            u32 high = upper.at[s / 2] >> (brasa::t2_bit(s % 2, e / 2) + e % 2 * 16) & 3;
            w[e / 2 % 2][e / 4 * 2 + e % 2] = __uint_as_float(low | high << 4 | 0x4b000000u) - (8388608.0f + 32.0f);
        }
    }
    DEVICE float scale(u32 half, u32 b) const {
        return half_to_float((unsigned short)(d >> (16 * half))) * code_float(records.at[half], b * 8, 255, 128.0f);
    }
    DEVICE float min(u32, u32) const { return 0.0f; }
};

struct TwosSub {
    static const u32 SPAN = 1;
    Words2 words;

    DEVICE u32 two(u32 s, u32 e) const { return words.at[s / 2] >> (brasa::t2_bit(s % 2, e / 2) + e % 2 * 16) & 3; }
};

template <>
struct Sub<brasa::Q3_K> : TwosSub {
    static const bool MINS = false;
    Words2 records;
    u32 ones, d;

    DEVICE void load(const u8* unit, const u8* sub, u32 lane) {
        words = *(const Words2*)(sub + lane * 8);
        ones = *(const u32*)(sub + 256 + lane * 4);
        records = *(const Words2*)(sub + 384 + lane / 4 * 8);
        d = *(const u32*)(unit + lane / 4 * 4);
    }
    DEVICE void codes(u32 s, float (&w)[2][4]) const {
#pragma unroll
        for (u32 e = 0; e < 8; ++e) {
            u32 low = ones >> (brasa::o1_bit(s, e / 2) + e % 2 * 16) & 1;
            w[e / 2 % 2][e / 4 * 2 + e % 2] = __uint_as_float(low | two(s, e) << 1 | 0x4b000000u) - (8388608.0f + 4.0f);
        }
    }
    DEVICE float scale(u32 half, u32 b) const {
        return half_to_float((unsigned short)(d >> (16 * half))) * code_float(records.at[half], b * 8, 255, 128.0f);
    }
    DEVICE float min(u32, u32) const { return 0.0f; }
};

template <>
struct Sub<brasa::Q2_K> : TwosSub {
    static const bool MINS = true;
    Words2 records, d;

    DEVICE void load(const u8* unit, const u8* sub, u32 lane) {
        words = *(const Words2*)(sub + lane * 8);
        records = *(const Words2*)(sub + 256 + lane / 4 * 8);
        d = *(const Words2*)(unit + lane / 4 * 8);
    }
    DEVICE void codes(u32 s, float (&w)[2][4]) const {
#pragma unroll
        for (u32 e = 0; e < 8; ++e) {
            w[e / 2 % 2][e / 4 * 2 + e % 2] = __uint_as_float(two(s, e) | 0x4b000000u) - 8388608.0f;
        }
    }
    DEVICE float product(u32 record, u32 half, u32 b) const {
        return half_to_float((unsigned short)(d.at[record] >> (16 * half))) * code_float(records.at[half], b * 8 + record * 4, 15, 0.0f);
    }
    DEVICE float scale(u32 half, u32 b) const { return product(0, half, b); }
    DEVICE float min(u32 half, u32 b) const { return product(1, half, b); }
};

template <>
struct Sub<brasa::IQ4_XS> : NibblesSub {
    static const u32 SPAN = 2;
    static const bool MINS = false;
    u32 records, d;

    DEVICE void load(const u8* unit, const u8* sub, u32 lane) {
        load_nibbles(sub, lane);
        records = *(const u32*)(sub + 512 + lane / 4 * 4);
        d = *(const u32*)(unit + lane / 4 * 4);
    }
    DEVICE void codes(u32 s, float (&w)[2][4]) const {
#pragma unroll
        for (u32 e = 0; e < 8; ++e) {
            u32 code = words.at[s] >> (e / 2 * 4 + e % 2 * 16) & 15;
            w[e / 2 % 2][e / 4 * 2 + e % 2] = code_float(brasa::iq4_byte(code), 0, 255, 128.0f);
        }
    }
    DEVICE float scale(u32 half, u32 b) const {
        return half_to_float((unsigned short)(d >> (16 * half))) * code_float(records, half * 16 + b * 8, 255, 128.0f);
    }
    DEVICE float min(u32, u32) const { return 0.0f; }
};

// Adds the products of sub number `sub` with `ROWS` rows, `x` from input 2t on. FAST: the sub is whole, and pairs of inputs are aligned.
template <u32 FORMAT, u32 ROWS, bool FAST>
DEVICE void multiply_sub(const Sub<FORMAT>& weights, const float* const (&x)[ROWS], u32 sub, u32 left, float (&sums)[2][ROWS]) {
    const u32 SPAN = Sub<FORMAT>::SPAN;
    const bool MINS = Sub<FORMAT>::MINS;
#pragma unroll
    for (u32 b = 0; b < 4 / SPAN; ++b) {
        float block[2][ROWS] = {}, inputs[ROWS] = {};
#pragma unroll
        for (u32 s = b * SPAN; s < (b + 1) * SPAN; ++s) {
            float w[2][4];
            weights.codes(s, w);
#pragma unroll
            for (u32 r = 0; r < ROWS; ++r) {
                float values[4];
#pragma unroll
                for (u32 e = 0; e < 4; e += 2) {
                    u32 k = s * 16 + e * 4;
                    const float* at = x[r] + sub * 64 + k;
                    if (FAST) {
                        const Floats2 both = *(const Floats2*)at;
                        values[e] = both.at[0];
                        values[e + 1] = both.at[1];
                    } else {
                        values[e] = k < left ? at[0] : 0.0f;
                        values[e + 1] = k + 1 < left ? at[1] : 0.0f;
                    }
                }
#pragma unroll
                for (u32 e = 0; e < 4; ++e) {
                    block[0][r] = fmaf(w[0][e], values[e], block[0][r]);
                    block[1][r] = fmaf(w[1][e], values[e], block[1][r]);
                    if (MINS) {
                        inputs[r] = __fadd_rn(inputs[r], values[e]);
                    }
                }
            }
        }
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            float scale = weights.scale(half, b), min = weights.min(half, b);
#pragma unroll
            for (u32 r = 0; r < ROWS; ++r) {
                sums[half][r] = fmaf(scale, block[half][r], sums[half][r]);
                if (MINS) {
                    sums[half][r] = fmaf(-min, inputs[r], sums[half][r]);
                }
            }
        }
    }
}
