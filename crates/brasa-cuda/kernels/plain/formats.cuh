// Stored formats: element k of a stored row, with the bits that the codecs of brasa-formats decode.
//
// One structure per format. Its `at(part, row, k)` multiplies in the codec's order, and the intrinsics keep the compiler from
// joining a product and a sum into one rounding. Most formats lie in fragment order (../hopper/layout.cuh); F32 lies as GGUF has it, and
// MLX, where it is no other format (stored.rs), keeps codes, scales and biases apart.
#pragma once

#include "common.cuh"

#include "../hopper/element.cuh"

DEVICE float half_at(const u8* at) { return half_to_float((unsigned short)(at[0] | at[1] << 8)); }

// d · q + m, rounded twice.
DEVICE float line(float d, float q, float m) { return __fadd_rn(__fmul_rn(d, q), m); }

struct F32 {
    static const u32 CODE = 0;

    static DEVICE float at(const Part& part, u32 row, u32 k) { return ((const float*)(part.data + (u64)row * part.row_bytes))[k]; }
};

// Formats in fragment order: FRAGMENTS is the layout's number of the format.
template <u32 FORMAT_CODE, u32 FRAGMENTS>
struct Fragments {
    static const u32 CODE = FORMAT_CODE, FORMAT = FRAGMENTS;

    static DEVICE float at(const Part& part, u32 row, u32 k) {
        // A half of paired tiles has eight rows of each tile.
        u32 n = part.place == PLACE_TILES ? row : row / 8 * 16 + row % 8 + (part.place == PLACE_UPPER ? 8 : 0);
        return brasa::weight_at(FORMAT, part.data, part.subs, n, k) * part.factor;
    }
};

struct F16 : Fragments<1, brasa::F16> {};
struct BF16 : Fragments<30, brasa::BF16> {};
struct Q4_0 : Fragments<2, brasa::Q4_0> {};
struct Q8_0 : Fragments<8, brasa::Q8_0> {};
struct Q4_K : Fragments<12, brasa::Q4_K> {};
struct Q6_K : Fragments<14, brasa::Q6_K> {};
struct Q4_1 : Fragments<3, brasa::Q4_1> {};
struct Q2_K : Fragments<10, brasa::Q2_K> {};
struct Q3_K : Fragments<11, brasa::Q3_K> {};
struct Q5_K : Fragments<13, brasa::Q5_K> {};
struct IQ4_XS : Fragments<23, brasa::IQ4_XS> {};
struct MLX8 : Fragments<254, brasa::MLX8> {};

// MLX's affine codes, whose scales and biases lie apart.
struct Mlx {
    static const u32 CODE = 255;

    // Code `k` of a row.
    static DEVICE u32 code(const u8* row, u32 bits, u32 k) {
        u64 bit = (u64)k * bits;
        u32 shift = (u32)(bit % 8), code = row[bit / 8];
        if (shift + bits > 8) {
            code |= (u32)row[bit / 8 + 1] << 8;
        }
        return code >> shift & ((1u << bits) - 1);
    }

    static DEVICE float at(const Part& part, u32 row, u32 k) {
        u32 code = Mlx::code(part.data + (u64)row * part.row_bytes, part.bits, k);
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
#define ROW_FORMATS(X) X(f32, F32) X(mlx, Mlx)
#define TILE_FORMATS(X)                                                                                     \
    X(f16, F16) X(bf16, BF16) X(q8_0, Q8_0) X(q4_0, Q4_0) X(q4_k, Q4_K) X(q6_k, Q6_K) X(q5_k, Q5_K)         \
    X(q4_1, Q4_1) X(mlx8, MLX8) X(q3_k, Q3_K) X(q2_k, Q2_K) X(iq4_xs, IQ4_XS)
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
