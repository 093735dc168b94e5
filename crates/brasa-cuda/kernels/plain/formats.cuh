// Stored formats: element k of a stored row, with the bits that the codecs of brasa-formats decode.
//
// One structure per format. Its `at(part, row, k)` multiplies in the codec's order, and the intrinsics keep the compiler from
// joining a product and a sum into one rounding. Some formats lie in fragment order (../hopper/layout.cuh); of the others names and
// layouts are GGUF's, and MLX keeps codes, scales and biases apart.
#pragma once

#include "common.cuh"

#include "../hopper/element.cuh"

DEVICE float half_at(const u8* at) { return half_to_float((unsigned short)(at[0] | at[1] << 8)); }
DEVICE u32 word_at(const u8* at) { return at[0] | at[1] << 8 | at[2] << 16 | (u32)at[3] << 24; }

// d · q + m, rounded twice.
DEVICE float line(float d, float q, float m) { return __fadd_rn(__fmul_rn(d, q), m); }

// Code `j` of 32 nibbles in 16 bytes: low nibbles first.
DEVICE u32 nibble(const u8* qs, u32 j) { return qs[j % 16] >> (j / 16 * 4) & 15; }

DEVICE_TABLE signed char IQ4_VALUES[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// Formats whose rows are blocks of `LEN` elements in `BYTES` bytes.
template <class Format, u32 FORMAT_CODE, u32 LEN, u32 BYTES>
struct Blocks {
    static const u32 CODE = FORMAT_CODE;

    static DEVICE float at(const Part& part, u32 row, u32 k) {
        const u8* block = part.data + (u64)row * part.row_bytes + (u64)(k / LEN) * BYTES;
        return Format::element(block, k % LEN);
    }
};

struct F32 : Blocks<F32, 0, 1, 4> {
    static DEVICE float element(const u8* b, u32) { return *(const float*)b; }
};

// Formats in fragment order: FRAGMENTS is the layout's number of the format.
template <u32 FORMAT_CODE, u32 FRAGMENTS>
struct Fragments {
    static const u32 CODE = FORMAT_CODE, FORMAT = FRAGMENTS;

    static DEVICE float at(const Part& part, u32 row, u32 k) {
        // A half of paired tiles has eight rows of each tile.
        u32 n = part.place == PLACE_TILES ? row : row / 8 * 16 + row % 8 + (part.place == PLACE_UPPER ? 8 : 0);
        return brasa::weight_at(FORMAT, part.data, part.subs, n, k);
    }
};

struct F16 : Fragments<1, brasa::F16> {};
struct BF16 : Fragments<30, brasa::BF16> {};
struct Q4_0 : Fragments<2, brasa::Q4_0> {};
struct Q8_0 : Fragments<8, brasa::Q8_0> {};
struct Q4_K : Fragments<12, brasa::Q4_K> {};
struct Q6_K : Fragments<14, brasa::Q6_K> {};

struct Q4_1 : Blocks<Q4_1, 3, 32, 20> {
    static DEVICE float element(const u8* b, u32 j) { return line(half_at(b), (float)nibble(b + 4, j), half_at(b + 2)); }
};

struct Q5_0 : Blocks<Q5_0, 6, 32, 22> {
    static DEVICE float element(const u8* b, u32 j) {
        u32 q = nibble(b + 6, j) | (word_at(b + 2) >> j & 1) << 4;
        return half_at(b) * (float)((int)q - 16);
    }
};

struct Q5_1 : Blocks<Q5_1, 7, 32, 24> {
    static DEVICE float element(const u8* b, u32 j) {
        u32 q = nibble(b + 8, j) | (word_at(b + 4) >> j & 1) << 4;
        return line(half_at(b), (float)q, half_at(b + 2));
    }
};

// The two-bit field of element `e` of Q2_K and Q3_K.
DEVICE u32 two_bits(const u8* qs, u32 e) { return qs[e / 128 * 32 + e % 32] >> (e % 128 / 32 * 2) & 3; }

struct Q2_K : Blocks<Q2_K, 10, 256, 84> {
    static DEVICE float element(const u8* b, u32 e) {
        u32 packed = b[e / 16];
        float scale = half_at(b + 80) * (float)(packed & 15), min = half_at(b + 82) * (float)(packed >> 4);
        return line(scale, (float)two_bits(b + 16, e), -min);
    }
};

struct Q3_K : Blocks<Q3_K, 11, 256, 110> {
    static DEVICE float element(const u8* b, u32 e) {
        u32 code = two_bits(b + 32, e) | (b[e % 32] >> (e / 32) & 1) << 2;
        const u8* packed = b + 96;
        u32 s = e / 16;
        u32 scale = (packed[s % 8] >> (s / 8 * 4) & 15) | (packed[8 + s % 4] >> (s / 4 * 2) & 3) << 4;
        return half_at(b + 108) * (float)((int)scale - 32) * (float)((int)code - 4);
    }
};

struct Q5_K : Blocks<Q5_K, 13, 256, 176> {
    static DEVICE float element(const u8* b, u32 e) {
        // Scale and minimum number e / 32 of twelve bytes.
        const u8* packed = b + 4;
        u32 j = e / 32, i = j % 4;
        u32 scale = j < 4 ? packed[i] & 63 : (packed[i + 8] & 15) | packed[i] >> 6 << 4;
        u32 min = j < 4 ? packed[i + 4] & 63 : packed[i + 8] >> 4 | packed[i + 4] >> 6 << 4;
        u32 code = (b[48 + e / 64 * 32 + e % 32] >> (e % 64 / 32 * 4) & 15) | (b[16 + e % 32] >> (e / 32) & 1) << 4;
        return line(half_at(b) * (float)scale, (float)code, -(half_at(b + 2) * (float)min));
    }
};

struct IQ4_NL : Blocks<IQ4_NL, 20, 32, 18> {
    static DEVICE float element(const u8* b, u32 j) { return half_at(b) * (float)IQ4_VALUES[nibble(b + 2, j)]; }
};

struct IQ4_XS : Blocks<IQ4_XS, 23, 256, 136> {
    static DEVICE float element(const u8* b, u32 e) {
        u32 j = e / 32;
        u32 high = (b[2] | b[3] << 8) >> (2 * j) & 3, low = b[4 + j / 2] >> (j % 2 * 4) & 15;
        float scale = half_at(b) * (float)((int)(low | high << 4) - 32);
        return scale * (float)IQ4_VALUES[nibble(b + 8 + 16 * j, e % 32)];
    }
};

struct Mlx {
    static const u32 CODE = 255;

    static DEVICE float at(const Part& part, u32 row, u32 k) {
        const u8* words = part.data + (u64)row * part.row_bytes;
        u64 bit = (u64)k * part.bits;
        u32 shift = (u32)(bit % 8), code = words[bit / 8];
        if (shift + part.bits > 8) {
            code |= (u32)words[bit / 8 + 1] << 8;
        }
        code = code >> shift & ((1u << part.bits) - 1);
        u64 group = (u64)row * part.groups + k / part.group_size;
        return line(stored_float(part.scales, part.scale_format, group), (float)code,
                    stored_float(part.biases, part.scale_format, group));
    }

    static DEVICE float stored_float(const u8* data, u32 format, u64 number) {
        switch (format) {
            case 0: return ((const float*)data)[number];
            case 1: return half_to_float(((const unsigned short*)data)[number]);
            default: return bf16_to_float(((const unsigned short*)data)[number]);
        }
    }
};

// Every format: its name in kernels' names, and its structure.
#define ROW_FORMATS(X)                                                                                  \
    X(f32, F32) X(q4_1, Q4_1) X(q5_0, Q5_0) X(q5_1, Q5_1) X(q2_k, Q2_K) X(q3_k, Q3_K) X(q5_k, Q5_K)         \
    X(iq4_nl, IQ4_NL) X(iq4_xs, IQ4_XS) X(mlx, Mlx)
#define TILE_FORMATS(X) X(f16, F16) X(bf16, BF16) X(q8_0, Q8_0) X(q4_0, Q4_0) X(q4_k, Q4_K) X(q6_k, Q6_K)
#define FORMATS(X) ROW_FORMATS(X) TILE_FORMATS(X)

// Element `k` of row `row` of a part in whatever format.
DEVICE float decode(const Part& part, u32 row, u32 k) {
    switch (part.format) {
#define BRASA_CASE(name, Format) \
    case Format::CODE: return Format::at(part, row, k);
        FORMATS(BRASA_CASE)
#undef BRASA_CASE
    }
    return 0.0f;
}

// The part that holds row `row` of a weight: the last that begins at or before it.
DEVICE const Part& part_of(const StoredWeight& w, u32 row) {
    u32 low = 0, high = w.parts_count;
    while (high - low > 1) {
        u32 middle = (low + high) / 2;
        if (w.parts[middle].first_row <= row) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return w.parts[low];
}
