// Weights in shared memory as operands of the products with one row, and their scales: bytes for codes.cuh, halves for columns.cuh.
#pragma once
#include "multiply.cuh"

namespace brasa {

// Blocks of a sub that are scaled apart; 1: none is.
__host__ __device__ constexpr int column_blocks(uint32_t format) { return format == F16 || format == BF16 ? 1 : format == Q6_K || format == Q3_K || format == Q2_K ? 4 : 2; }
// Formats whose codes are multiplied as bytes.
__host__ __device__ constexpr bool by_codes(uint32_t format) { return column_blocks(format) > 1; }
// How many times too large a code is read: two bits lie above four others that are not there.
__host__ __device__ constexpr int code_factor(uint32_t format) { return format == Q3_K ? 8 : format == Q2_K ? 16 : 1; }
// What a code reads too much.
__host__ __device__ constexpr int code_bias(uint32_t format) {
    return format == Q8_0 || format == IQ4_XS ? 128 : format == Q6_K || format == Q3_K ? 32 : format == Q4_0 ? 8 : 0;
}
// How much too large the codes of output g + 8 are read.
__host__ __device__ constexpr int upper_codes(uint32_t format) { return format == Q4_0 || format == Q4_K || format == Q4_1 ? 16 : 1; }

// A lane has the products of sub lane % 4 with this output, and with the one eight behind it (codes.cuh).
__host__ __device__ constexpr uint32_t output_of(uint32_t lane) { return lane / 4 ^ lane % 4 * 2; }
// By exclusive or: the lane with the same output, `t` subs away.
__host__ __device__ constexpr uint32_t same_output(uint32_t t) { return t ^ t * 8; }

// Where a sub lies in shared memory, and the unit that it is part of.
struct Spot { uint32_t sub, unit; };

// ---- bytes ----

// Adds bits 4 and 5 of the codes of two steps from their T2 word.
__device__ __forceinline__ void upper_bytes(uint32_t (&a)[4], uint32_t t) {
#pragma unroll
    for (int i = 0; i < 4; i++) a[i] = or_and(moved(t, 4 - int(t2_bit(i / 2, i % 2))), 0x30303030, a[i]);
}

// Weights of a sub as they are stored, and each 32 inputs of them as A: those of a step are registers 0 and 1, those of the next 2 and 3.
template <uint32_t F> struct Codes {
    uint4 w;
    __device__ __forceinline__ void load(uint32_t sub, uint32_t lane) { w = peek<uint4>(sub + lane * 16); }
    template <int B> __device__ __forceinline__ void block(uint32_t (&a)[4]) const {
        const uint32_t even = B ? w.z : w.x, odd = B ? w.w : w.y;
        a[0] = even & 0x0f0f0f0f; a[1] = even & 0xf0f0f0f0;
        a[2] = odd & 0x0f0f0f0f; a[3] = odd & 0xf0f0f0f0;
    }
};
template <> struct Codes<Q8_0> {
    uint4 w[2];
    __device__ __forceinline__ void load(uint32_t sub, uint32_t lane) {
        w[0] = peek<uint4>(sub + lane * 16);
        w[1] = peek<uint4>(sub + 512 + lane * 16);
    }
    template <int B> __device__ __forceinline__ void block(uint32_t (&a)[4]) const {
        a[0] = __byte_perm(w[B].x, w[B].y, 0x5140); a[1] = __byte_perm(w[B].x, w[B].y, 0x7362);
        a[2] = __byte_perm(w[B].z, w[B].w, 0x5140); a[3] = __byte_perm(w[B].z, w[B].w, 0x7362);
    }
};
template <> struct Codes<MLX8> : Codes<Q8_0> {};
template <> struct Codes<Q5_K> {
    uint4 w;
    uint32_t ones;
    __device__ __forceinline__ void load(uint32_t sub, uint32_t lane) {
        w = peek<uint4>(sub + lane * 16);
        ones = peek<uint32_t>(sub + 512 + lane * 4);
    }
    template <int B> __device__ __forceinline__ void block(uint32_t (&a)[4]) const {
        const uint32_t even = B ? w.z : w.x, odd = B ? w.w : w.y;
        constexpr uint32_t NIBBLES = 0x0f0f0f0f, ONES = 0x10101010;
        a[0] = or_and(moved(ones, 4 - int(o1_bit(2 * B, 0))), ONES, even & NIBBLES);
        a[1] = or_and(moved(ones, 4 - int(o1_bit(2 * B, 1))), ONES, even >> 4 & NIBBLES);
        a[2] = or_and(moved(ones, 4 - int(o1_bit(2 * B + 1, 0))), ONES, odd & NIBBLES);
        a[3] = or_and(moved(ones, 4 - int(o1_bit(2 * B + 1, 1))), ONES, odd >> 4 & NIBBLES);
    }
};
template <> struct Codes<IQ4_XS> {
    uint4 w;
    __device__ __forceinline__ void load(uint32_t sub, uint32_t lane) { w = peek<uint4>(sub + lane * 16); }
    template <int B> __device__ __forceinline__ void block(uint32_t (&a)[4]) const {
        iq4_bytes(B ? w.z : w.x, a[0], a[1]);
        iq4_bytes(B ? w.w : w.y, a[2], a[3]);
    }
};

template <> struct Codes<Q6_K> {
    uint4 w;
    uint2 upper;
    __device__ __forceinline__ void load(uint32_t sub, uint32_t lane) {
        w = peek<uint4>(sub + lane * 16);
        upper = peek<uint2>(sub + 512 + lane * 8);
    }
    template <int B> __device__ __forceinline__ void block(uint32_t (&a)[4]) const {
        const uint32_t even = B ? w.z : w.x, odd = B ? w.w : w.y;
        constexpr uint32_t NIBBLES = 0x0f0f0f0f;
        a[0] = even & NIBBLES; a[1] = even >> 4 & NIBBLES;
        a[2] = odd & NIBBLES; a[3] = odd >> 4 & NIBBLES;
        upper_bytes(a, B ? upper.y : upper.x);
    }
};
template <> struct Codes<Q2_K> {
    uint2 w;
    __device__ __forceinline__ void load(uint32_t sub, uint32_t lane) { w = peek<uint2>(sub + lane * 8); }
    template <int B> __device__ __forceinline__ void block(uint32_t (&a)[4]) const {
        a[0] = a[1] = a[2] = a[3] = 0;
        upper_bytes(a, B ? w.y : w.x);
    }
};
template <> struct Codes<Q3_K> : Codes<Q2_K> {
    uint32_t ones;
    __device__ __forceinline__ void load(uint32_t sub, uint32_t lane) {
        Codes<Q2_K>::load(sub, lane);
        ones = peek<uint32_t>(sub + 256 + lane * 4);
    }
    template <int B> __device__ __forceinline__ void block(uint32_t (&a)[4]) const {
        Codes<Q2_K>::block<B>(a);
#pragma unroll
        for (int i = 0; i < 4; i++) a[i] = or_and(moved(ones, 3 - int(o1_bit(2 * B + i / 2, i % 2))), 0x08080808, a[i]);
    }
};

// The scales of a lane's own sub for outputs g and g + 8, and its sums with them. v: those of the blocks of output g, then of output g + 8; sums: Σx of each block.
template <uint32_t F> struct CodeScales {
    uint2 d;
    __device__ __forceinline__ void load(Spot own, uint32_t g) { d = peek<uint2>(own.sub + (F == Q8_0 ? 1024 : 512) + g * 8); }
    __device__ __forceinline__ float2 apply(const float (&v)[4], const float (&)[2]) const {
        const float2 low = unpack_halves(d.x), high = unpack_halves(d.y);
        return make_float2(fmaf(low.y, v[1], __fmul_rn(low.x, v[0])), (1.0f / upper_codes(F)) * fmaf(high.y, v[3], __fmul_rn(high.x, v[2])));
    }
};
// Scales and minima of a super-block, records from `RECORDS` on.
template <uint32_t F, uint32_t RECORDS> struct SuperScales {
    uint2 sm, h;
    __device__ __forceinline__ void load(Spot own, uint32_t g) {
        sm = peek<uint2>(own.sub + RECORDS + g * 8);
        h = peek<uint2>(own.unit + g * 8);
    }
    __device__ __forceinline__ float2 apply(const float (&v)[4], const float (&sums)[2]) const {
        const float2 d = unpack_halves(h.x), dmin = unpack_halves(h.y);
        const float low = fmaf(byte_float<1>(sm.x, 0), v[1], __fmul_rn(byte_float<0>(sm.x, 0), v[0]));
        const float high = fmaf(byte_float<3>(sm.x, 0), v[3], __fmul_rn(byte_float<2>(sm.x, 0), v[2]));
        const float low_min = fmaf(byte_float<1>(sm.y, 0), sums[1], __fmul_rn(byte_float<0>(sm.y, 0), sums[0]));
        const float high_min = fmaf(byte_float<3>(sm.y, 0), sums[1], __fmul_rn(byte_float<2>(sm.y, 0), sums[0]));
        return make_float2(fmaf(d.x, low, -__fmul_rn(dmin.x, low_min)), fmaf((1.0f / upper_codes(F)) * d.y, high, -__fmul_rn(dmin.y, high_min)));
    }
};
template <> struct CodeScales<Q4_K> : SuperScales<Q4_K, 512> {};
template <> struct CodeScales<Q5_K> : SuperScales<Q5_K, 640> {};
// A scale and an offset of each block, records from `RECORDS` on.
template <uint32_t F, uint32_t RECORDS> struct OffsetScales {
    uint4 dm;
    __device__ __forceinline__ void load(Spot own, uint32_t g) { dm = peek<uint4>(own.sub + RECORDS + g * 16); }
    __device__ __forceinline__ float2 apply(const float (&v)[4], const float (&sums)[2]) const {
        const float2 low = unpack_halves(dm.x), high = unpack_halves(dm.y), low_offset = unpack_halves(dm.z), high_offset = unpack_halves(dm.w);
        const float low_sum = fmaf(low.y, v[1], __fmul_rn(low.x, v[0])), high_sum = fmaf(high.y, v[3], __fmul_rn(high.x, v[2]));
        return make_float2(fmaf(low_offset.y, sums[1], fmaf(low_offset.x, sums[0], low_sum)),
                           fmaf(high_offset.y, sums[1], fmaf(high_offset.x, sums[0], __fmul_rn(1.0f / upper_codes(F), high_sum))));
    }
};
template <> struct CodeScales<Q4_1> : OffsetScales<Q4_1, 512> {};
template <> struct CodeScales<MLX8> : OffsetScales<MLX8, 1024> {};
template <> struct CodeScales<IQ4_XS> {
    uint32_t s, d;
    __device__ __forceinline__ void load(Spot own, uint32_t g) {
        s = peek<uint32_t>(own.sub + 512 + g * 4);
        d = peek<uint32_t>(own.unit + g * 4);
    }
    __device__ __forceinline__ float2 apply(const float (&v)[4], const float (&)[2]) const {
        const float2 both = unpack_halves(d);
        const float low = fmaf(byte_float<1>(s, 128), v[1], __fmul_rn(byte_float<0>(s, 128), v[0]));
        const float high = fmaf(byte_float<3>(s, 128), v[3], __fmul_rn(byte_float<2>(s, 128), v[2]));
        return make_float2(both.x * low, both.y * high);
    }
};

// The sum of four numbers times the bytes of a word, less `bias`.
__device__ __forceinline__ float dot_bytes(uint32_t w, float bias, float a, float b, float c, float d) {
    return fmaf(byte_float<3>(w, bias), d, fmaf(byte_float<2>(w, bias), c, fmaf(byte_float<1>(w, bias), b, __fmul_rn(byte_float<0>(w, bias), a))));
}
// Signed scales of blocks of 16, records from `RECORDS` on.
template <uint32_t F, uint32_t RECORDS> struct SignedScales {
    uint2 s;
    uint32_t d;
    __device__ __forceinline__ void load(Spot own, uint32_t g) {
        s = peek<uint2>(own.sub + RECORDS + g * 8);
        d = peek<uint32_t>(own.unit + g * 4);
    }
    __device__ __forceinline__ float2 apply(const float (&v)[8], const float (&)[4]) const {
        const float2 both = unpack_halves(d);
        constexpr float PART = 1.0f / code_factor(F);
        return make_float2(PART * both.x * dot_bytes(s.x, 128, v[0], v[1], v[2], v[3]), PART * both.y * dot_bytes(s.y, 128, v[4], v[5], v[6], v[7]));
    }
};
template <> struct CodeScales<Q6_K> : SignedScales<Q6_K, 768> {};
template <> struct CodeScales<Q3_K> : SignedScales<Q3_K, 384> {};
template <> struct CodeScales<Q2_K> {
    uint2 sm, h;
    __device__ __forceinline__ void load(Spot own, uint32_t g) {
        sm = peek<uint2>(own.sub + 256 + g * 8);
        h = peek<uint2>(own.unit + g * 8);
    }
    __device__ __forceinline__ float2 apply(const float (&v)[8], const float (&sums)[4]) const {
        const float2 d = unpack_halves(h.x), dmin = unpack_halves(h.y);
        constexpr uint32_t NIBBLES = 0x0f0f0f0f;
        constexpr float PART = 1.0f / code_factor(Q2_K);
        const float low = dot_bytes(sm.x & NIBBLES, 0, v[0], v[1], v[2], v[3]), high = dot_bytes(sm.y & NIBBLES, 0, v[4], v[5], v[6], v[7]);
        const float low_min = dot_bytes(sm.x >> 4 & NIBBLES, 0, sums[0], sums[1], sums[2], sums[3]);
        const float high_min = dot_bytes(sm.y >> 4 & NIBBLES, 0, sums[0], sums[1], sums[2], sums[3]);
        return make_float2(fmaf(PART * d.x, low, -__fmul_rn(dmin.x, low_min)), fmaf(PART * d.y, high, -__fmul_rn(dmin.y, high_min)));
    }
};

// ---- halves ----

// Weights of a sub as they are stored, and each step of them as A.
template <uint32_t F> struct Stored;

template <> struct Stored<F16> {
    uint4 w[4];
    __device__ __forceinline__ void load(uint32_t sub, uint32_t lane) {
#pragma unroll
        for (int s = 0; s < 4; s++) w[s] = peek<uint4>(sub + s * 512 + lane * 16);
    }
    template <int S> __device__ __forceinline__ void step(uint32_t (&a)[4], float) const {
        a[0] = w[S].x; a[1] = w[S].y; a[2] = w[S].z; a[3] = w[S].w;
    }
};
template <> struct Stored<BF16> : Stored<F16> {
    template <int S> __device__ __forceinline__ void step(uint32_t (&a)[4], float raise) const {
        Stored<F16>::step<S>(a, raise);
#pragma unroll
        for (int i = 0; i < 4; i++) a[i] = pack_halves(__uint_as_float(a[i] << 16) * raise, __uint_as_float(a[i] & 0xffff0000) * raise);
    }
};
}  // namespace brasa
