// tiles_<format>: y[R, N] = x[R, K] · W[N, K]ᵀ [+ bias] [+ residual], W in fragment order (../hopper/layout.cuh); of paired tiles
// y[R, F] = act(gate) · up, or both factors. tiles_<format> takes one row a group, tiles_<format>_wide eight.
// Grid: x: a block of 256 threads a tile; y: groups of rows. Any N, K, R.
//
// A warp takes every eighth sub of the tile; a lane multiplies its 32 weights of two outputs with 16 inputs, codes as they are,
// and a block's scale is applied to the block's sum. Then the four lanes of an output and the eight warps are added in order. So
// the order of sums depends on K and the format alone, and both variants make the same bits.
// Bound by memory for one row: while a sub is multiplied, the next is on its way. 4 to 6 instructions a weight.
#include "formats.cuh"
#include "outputs.cuh"

static const u32 TILE_WARPS = 8;

// Memory that is loaded in one piece.
struct alignas(16) Words4 {
    u32 at[4];
};
struct alignas(8) Words2 {
    u32 at[2];
};
struct alignas(8) Floats2 {
    float at[2];
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

template <>
struct Sub<brasa::Q8_0> {
    static const u32 SPAN = 2;
    static const bool MINS = false;
    Words4 words[2];
    Words2 d;

    DEVICE void load(const u8*, const u8* sub, u32 lane) {
        words[0] = *(const Words4*)(sub + lane * 16);
        words[1] = *(const Words4*)(sub + 512 + lane * 16);
        d = *(const Words2*)(sub + 1024 + lane / 4 * 8);
    }
    DEVICE void codes(u32 s, float (&w)[2][4]) const {
#pragma unroll
        for (u32 e = 0; e < 8; ++e) {
            w[e / 2 % 2][e / 4 * 2 + e % 2] = code_float(words[s / 2].at[s % 2 * 2 + e / 4], e % 4 * 8, 255, 128.0f);
        }
    }
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

template <>
struct Sub<brasa::Q4_K> : NibblesSub {
    static const u32 SPAN = 2;
    static const bool MINS = true;
    Words2 records, d;

    DEVICE void load(const u8* unit, const u8* sub, u32 lane) {
        load_nibbles(sub, lane);
        records = *(const Words2*)(sub + 512 + lane / 4 * 8);
        d = *(const Words2*)(unit + lane / 4 * 8);
    }
    DEVICE void codes(u32 s, float (&w)[2][4]) const { nibbles(s, w, 0.0f); }
    DEVICE float product(u32 record, u32 half, u32 b) const {
        return half_to_float((unsigned short)(d.at[record] >> (16 * half))) * code_float(records.at[record], half * 16 + b * 8, 255, 0.0f);
    }
    DEVICE float scale(u32 half, u32 b) const { return product(0, half, b); }
    DEVICE float min(u32 half, u32 b) const { return product(1, half, b); }
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

template <u32 FORMAT, u32 ROWS>
DEVICE void multiply_tiles(const TilesParams& p) {
    __shared__ float partial[TILE_WARPS][ROWS][16];
    const brasa::Geometry G = brasa::geometry(FORMAT);
    u32 g = lane() / 4, t = lane() % 4;
    const u8* tile = p.weights + blockIdx.x * brasa::tile_bytes(FORMAT, p.subs);
    auto load = [&](Sub<FORMAT>& weights, u32 sub) {
        const u8* unit = tile + (u64)(sub / G.unit_subs) * brasa::unit_bytes(FORMAT);
        weights.load(unit, unit + G.header_bytes + sub % G.unit_subs * G.sub_bytes, lane());
    };
    for (u32 first = blockIdx.y * ROWS; first < p.rows; first += gridDim.y * ROWS) {
        float sums[2][ROWS];
        const float* x[ROWS];
        bool aligned = true;
#pragma unroll
        for (u32 r = 0; r < ROWS; ++r) {
            sums[0][r] = sums[1][r] = 0.0f;
            // Rows behind the last repeat it; their sums are dropped.
            x[r] = row_of(p.x, first + r < p.rows ? first + r : p.rows - 1) + 2 * t;
            aligned = aligned && (u64)x[r] % 8 == 0;
        }
        u32 sub = warp();
        Sub<FORMAT> now, next;
        if (sub < p.subs) {
            load(now, sub);
        }
        for (; sub < p.subs; sub += TILE_WARPS) {
            load(next, sub + TILE_WARPS < p.subs ? sub + TILE_WARPS : sub);
            if (aligned && sub * 64 + 64 <= p.inputs) {
                multiply_sub<FORMAT, ROWS, true>(now, x, sub, 0, sums);
            } else {
                u32 begin = sub * 64 + 2 * t;
                multiply_sub<FORMAT, ROWS, false>(now, x, sub, begin < p.inputs ? p.inputs - begin : 0, sums);
            }
            now = next;
        }
        __syncthreads();
        for (u32 r = 0; r < ROWS; ++r) {
            for (u32 half = 0; half < 2; ++half) {
                float sum = sums[half][r];
                sum += __shfl_xor_sync(0xffffffffu, sum, 1);
                sum += __shfl_xor_sync(0xffffffffu, sum, 2);
                if (t == 0) {
                    partial[warp()][r][half * 8 + g] = sum;
                }
            }
        }
        __syncthreads();
        u32 r = threadIdx.x / 8, output = threadIdx.x % 8;
        if (r < ROWS && first + r < p.rows) {
            float lower = 0.0f, upper = 0.0f;
            for (u32 w = 0; w < TILE_WARPS; ++w) {
                lower += partial[w][r][output];
                upper += partial[w][r][8 + output];
            }
            write_outputs(p.out, first + r, blockIdx.x, output, lower, upper);
        }
    }
}

#define BRASA_TILES(name, Format)                                                             \
    KERNEL(tiles_##name, TilesParams) { multiply_tiles<Format::FORMAT, 1>(p); }                \
    KERNEL(tiles_##name##_wide, TilesParams) { multiply_tiles<Format::FORMAT, 8>(p); }
TILE_FORMATS(BRASA_TILES)
