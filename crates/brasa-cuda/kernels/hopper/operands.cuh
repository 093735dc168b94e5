// Weights in shared memory as operands of the products with one row, and their scales: bytes for codes.cuh, halves for columns.cuh.
#pragma once
#include "multiply.cuh"

namespace brasa {

// Formats whose codes are multiplied as bytes: those with blocks of 32.
__host__ __device__ constexpr bool by_codes(uint32_t format) {
    return format == Q8_0 || format == Q4_0 || format == Q4_K || format == Q5_K || format == Q4_1 || format == MLX8 || format == IQ4_XS;
}
// What a code reads too much.
__host__ __device__ constexpr int code_bias(uint32_t format) { return format == Q8_0 || format == IQ4_XS ? 128 : format == Q4_0 ? 8 : 0; }
// How much too large the codes of output g + 8 are read.
__host__ __device__ constexpr int upper_codes(uint32_t format) { return format == Q4_0 || format == Q4_K || format == Q4_1 ? 16 : 1; }

// Blocks of a sub that are scaled apart.
__host__ __device__ constexpr int column_blocks(uint32_t format) { return format == F16 || format == BF16 ? 1 : format == Q6_K || format == Q3_K || format == Q2_K ? 4 : 2; }
// How much too large codes of blocks of 16 read as halves, for output g and for g + 8.
__host__ __device__ constexpr float factor(uint32_t format) { return format == Q6_K ? 1.0f : format == Q3_K ? 8.0f : 16.0f; }
__host__ __device__ constexpr float upper_factor(uint32_t format) { return format == Q6_K ? 16.0f : format == Q3_K ? 128.0f : 256.0f; }
// What they read more than that, their bias with it.
__host__ __device__ constexpr float surplus(uint32_t format) { return 1024.0f + factor(format) * (format == Q6_K ? 32.0f : format == Q3_K ? 4.0f : 0.0f); }
__host__ __device__ constexpr float upper_surplus(uint32_t format) { return 1024.0f + upper_factor(format) * (format == Q6_K ? 32.0f : format == Q3_K ? 4.0f : 0.0f); }

// Where a sub lies in shared memory, and the unit that it is part of.
struct Spot { uint32_t sub, unit; };

// ---- bytes ----

// Weights of a sub as they are stored, and each block of them as A.
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

// The scales of a lane's own sub, and its sums with them. v: of output g the first and the second block, of output g + 8 the same; sums: Σx of both.
template <uint32_t F> struct CodeScales {
    uint2 d;
    __device__ __forceinline__ void load(Spot own, uint32_t lane) { d = peek<uint2>(own.sub + (F == Q8_0 ? 1024 : 512) + lane / 4 * 8); }
    __device__ __forceinline__ float2 apply(const float (&v)[4], const float (&)[2]) const {
        const float2 low = unpack_halves(d.x), high = unpack_halves(d.y);
        return make_float2(fmaf(low.y, v[1], __fmul_rn(low.x, v[0])), (1.0f / upper_codes(F)) * fmaf(high.y, v[3], __fmul_rn(high.x, v[2])));
    }
};
// Scales and minima of a super-block, records from `RECORDS` on.
template <uint32_t F, uint32_t RECORDS> struct SuperScales {
    uint2 sm, h;
    __device__ __forceinline__ void load(Spot own, uint32_t lane) {
        sm = peek<uint2>(own.sub + RECORDS + lane / 4 * 8);
        h = peek<uint2>(own.unit + lane / 4 * 8);
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
    __device__ __forceinline__ void load(Spot own, uint32_t lane) { dm = peek<uint4>(own.sub + RECORDS + lane / 4 * 16); }
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
    __device__ __forceinline__ void load(Spot own, uint32_t lane) {
        s = peek<uint32_t>(own.sub + 512 + lane / 4 * 4);
        d = peek<uint32_t>(own.unit + lane / 4 * 4);
    }
    __device__ __forceinline__ float2 apply(const float (&v)[4], const float (&)[2]) const {
        const float2 both = unpack_halves(d);
        const float low = fmaf(byte_float<1>(s, 128), v[1], __fmul_rn(byte_float<0>(s, 128), v[0]));
        const float high = fmaf(byte_float<3>(s, 128), v[3], __fmul_rn(byte_float<2>(s, 128), v[2]));
        return make_float2(both.x * low, both.y * high);
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
template <> struct Stored<Q6_K> {
    uint4 w;
    uint2 upper;
    __device__ __forceinline__ void load(uint32_t sub, uint32_t lane) {
        w = peek<uint4>(sub + lane * 16);
        upper = peek<uint2>(sub + 512 + lane * 8);
    }
    template <int S> __device__ __forceinline__ void step(uint32_t (&a)[4], float) const {
        nibbles(a, S == 0 ? w.x : S == 1 ? w.y : S == 2 ? w.z : w.w);
        upper_bits<S % 2>(a, S < 2 ? upper.x : upper.y);
    }
};
template <> struct Stored<Q2_K> {
    uint2 w;
    __device__ __forceinline__ void load(uint32_t sub, uint32_t lane) { w = peek<uint2>(sub + lane * 8); }
    template <int S> __device__ __forceinline__ void step(uint32_t (&a)[4], float) const { twos(a, S < 2 ? w.x : w.y, S); }
};
template <> struct Stored<Q3_K> : Stored<Q2_K> {
    uint32_t ones;
    __device__ __forceinline__ void load(uint32_t sub, uint32_t lane) {
        Stored<Q2_K>::load(sub, lane);
        ones = peek<uint32_t>(sub + 256 + lane * 4);
    }
    template <int S> __device__ __forceinline__ void step(uint32_t (&a)[4], float raise) const {
        Stored<Q2_K>::step<S>(a, raise);
        add_ones<3, 7>(a, ones, S);
    }
};

// The lane's sums of one accumulator, each times its scale, for outputs g and g + 8. `sums`: Σx of its two blocks; `spot`: its own sub.
template <uint32_t F> __device__ __forceinline__ float2 scaled(const float (&acc)[4], const float (&sums)[2], Spot spot, uint32_t lane) {
    const uint32_t g = lane / 4;
    if constexpr (F == Q2_K) {
        uint2 sm = peek<uint2>(spot.sub + 256 + g * 8);
        const uint2 h = peek<uint2>(spot.unit + g * 8);
        const float2 d = unpack_halves(h.x), dmin = unpack_halves(h.y);
        sm.x >>= lane % 2 * 16; sm.y >>= lane % 2 * 16;
        const uint32_t s[2] = {sm.x & 0x0f0f0f0f, sm.y & 0x0f0f0f0f}, m[2] = {sm.x >> 4 & 0x0f0f0f0f, sm.y >> 4 & 0x0f0f0f0f};
        const float low = fmaf(byte_float<1>(s[0], 0), acc[1], __fmul_rn(byte_float<0>(s[0], 0), acc[0]));
        const float high = fmaf(byte_float<1>(s[1], 0), acc[3], __fmul_rn(byte_float<0>(s[1], 0), acc[2]));
        const float low_min = fmaf(byte_float<1>(m[0], 0), sums[1], __fmul_rn(byte_float<0>(m[0], 0), sums[0]));
        const float high_min = fmaf(byte_float<1>(m[1], 0), sums[1], __fmul_rn(byte_float<0>(m[1], 0), sums[0]));
        return make_float2(fmaf((1.0f / factor(F)) * d.x, low, -__fmul_rn(dmin.x, low_min)), fmaf((1.0f / upper_factor(F)) * d.y, high, -__fmul_rn(dmin.y, high_min)));
    } else {
        uint2 sc = peek<uint2>(spot.sub + (F == Q6_K ? 768 : 384) + g * 8);
        const float2 d = unpack_halves(peek<uint32_t>(spot.unit + g * 4));
        sc.x >>= lane % 2 * 16; sc.y >>= lane % 2 * 16;
        const float low = fmaf(byte_float<1>(sc.x, 128), acc[1], __fmul_rn(byte_float<0>(sc.x, 128), acc[0]));
        const float high = fmaf(byte_float<1>(sc.y, 128), acc[3], __fmul_rn(byte_float<0>(sc.y, 128), acc[2]));
        return make_float2((1.0f / factor(F)) * d.x * low, (1.0f / upper_factor(F)) * d.y * high);
    }
}

}  // namespace brasa
