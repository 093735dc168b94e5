// One sub (16 outputs × 64 inputs) of a weight times up to eight rows: total += W · x, on the tensor cores.
//
// Codes become halves without arithmetic: a code placed in the mantissa of 1024.0 reads 1024 + code (or 1024 + 16·code in the
// upper nibble, always output g+8). The constant is taken out by the accumulator's first value, −constant · Σx, and
// the block's scale is applied to the accumulator in f32. So weights are exact; x is f16, scaled by a power of two per row.
//
// b[2s], b[2s+1]: the B fragment of step s. sum[2s], sum[2s+1]: Σ of x over step s, of the lane's columns 2t and 2t+1.
// ONE: only column 0 is used, lanes with t = 0 hold it. `raise`: a power of two that brings BF16 weights into the range of f16.
#pragma once
#include "common.cuh"
#include "element.cuh"
#include "layout.cuh"
#include "smem.cuh"

namespace brasa {

constexpr uint32_t HALF_1024 = 0x64006400;

// Bytes i of a word as f32, without an integer conversion.
template <int I> __device__ __forceinline__ float byte_float(uint32_t w, float bias) {
    return __uint_as_float(__byte_perm(w, 0x4B000000, 0x7540 | I)) - (8388608.0f + bias);
}

template <bool ONE> __device__ __forceinline__ void begin(float (&acc)[4], float low, float high, float s0, float s1) {
    acc[0] = low * s0; acc[2] = high * s0;
    acc[1] = ONE ? 0.0f : low * s1; acc[3] = ONE ? 0.0f : high * s1;
}
template <bool ONE> __device__ __forceinline__ void scaled_add(float (&total)[4], const float (&acc)[4], float dg, float dh) {
    total[0] = fmaf(dg, acc[0], total[0]); total[2] = fmaf(dh, acc[2], total[2]);
    if (!ONE) { total[1] = fmaf(dg, acc[1], total[1]); total[3] = fmaf(dh, acc[3], total[3]); }
}
template <bool ONE> __device__ __forceinline__ void subtract_min(float (&total)[4], float mg, float mh, float s0, float s1) {
    total[0] = fmaf(-mg, s0, total[0]); total[2] = fmaf(-mh, s0, total[2]);
    if (!ONE) { total[1] = fmaf(-mg, s1, total[1]); total[3] = fmaf(-mh, s1, total[3]); }
}

// Four nibble registers of a step: 1024 + q for output g, 1024 + 16q for g+8.
__device__ __forceinline__ void nibbles(uint32_t (&a)[4], uint32_t w) {
    a[0] = or_and(w, 0x000f000f, HALF_1024);
    a[1] = or_and(w, 0x00f000f0, HALF_1024);
    w >>= 8;
    a[2] = or_and(w, 0x000f000f, HALF_1024);
    a[3] = or_and(w, 0x00f000f0, HALF_1024);
}
__device__ __forceinline__ void bytes(uint32_t (&a)[4], uint32_t w0, uint32_t w1) {
    a[0] = __byte_perm(w0, 0x64646464, 0x4140);
    a[1] = __byte_perm(w0, 0x64646464, 0x4342);
    a[2] = __byte_perm(w1, 0x64646464, 0x4140);
    a[3] = __byte_perm(w1, 0x64646464, 0x4342);
}
// Adds bits 4 and 5 of the codes of step S (mod 2).
template <int S> __device__ __forceinline__ void upper_bits(uint32_t (&a)[4], uint32_t h) {
    if (S == 0) {
        a[0] = or_and(h, 0x00300030, a[0]);
        a[1] = or_and(h, 0x03000300, a[1]);
        h >>= 2;
        a[2] = or_and(h, 0x00300030, a[2]);
        a[3] = or_and(h, 0x03000300, a[3]);
    } else {
        a[0] = or_and(h << 4, 0x00300030, a[0]);
        a[1] = or_and(h >> 4, 0x03000300, a[1]);
        a[2] = or_and(h << 2, 0x00300030, a[2]);
        a[3] = or_and(h >> 6, 0x03000300, a[3]);
    }
}

// `unit`: where the unit lies in shared memory. Loads and products of several subs in one block of code overlap.
template <uint32_t F, bool ONE>
__device__ __forceinline__ void multiply_sub(uint32_t unit, uint32_t j, uint32_t lane, const uint32_t (&b)[8],
                                             const float (&sum)[8], float (&total)[4], float raise) {
    constexpr Geometry G = geometry(F);
    const uint32_t sub = unit + G.header_bytes + j * G.sub_bytes, g = lane >> 2;
    if constexpr (F == F16) {
        uint4 w[4];
#pragma unroll
        for (int s = 0; s < 4; s++) w[s] = peek<uint4>(sub + s * 512 + lane * 16);
#pragma unroll
        for (int s = 0; s < 4; s++) {
            uint32_t a[4] = {w[s].x, w[s].y, w[s].z, w[s].w};
            mma(total, a, b[2 * s], b[2 * s + 1]);
        }
    } else if constexpr (F == BF16) {
        uint4 w[4];
#pragma unroll
        for (int s = 0; s < 4; s++) w[s] = peek<uint4>(sub + s * 512 + lane * 16);
#pragma unroll
        for (int s = 0; s < 4; s++) {
            uint32_t a[4] = {w[s].x, w[s].y, w[s].z, w[s].w};
#pragma unroll
            for (int i = 0; i < 4; i++) a[i] = pack_halves(__uint_as_float(a[i] << 16) * raise, __uint_as_float(a[i] & 0xffff0000) * raise);
            mma(total, a, b[2 * s], b[2 * s + 1]);
        }
    } else if constexpr (F == Q8_0) {
        const uint4 w0 = peek<uint4>(sub + lane * 16), w1 = peek<uint4>(sub + 512 + lane * 16);
        const uint2 d = peek<uint2>(sub + 1024 + g * 8);
        const float2 dg = unpack_halves(d.x), dh = unpack_halves(d.y);
        const uint32_t w[8] = {w0.x, w0.y, w0.z, w0.w, w1.x, w1.y, w1.z, w1.w};
#pragma unroll
        for (int block = 0; block < 2; block++) {
            float acc[4];
            begin<ONE>(acc, -1152.0f, -1152.0f, sum[4 * block] + sum[4 * block + 2], sum[4 * block + 1] + sum[4 * block + 3]);
#pragma unroll
            for (int s = 2 * block; s < 2 * block + 2; s++) {
                uint32_t a[4];
                bytes(a, w[2 * s], w[2 * s + 1]);
                mma(acc, a, b[2 * s], b[2 * s + 1]);
            }
            scaled_add<ONE>(total, acc, block ? dg.y : dg.x, block ? dh.y : dh.x);
        }
    } else if constexpr (F == Q4_0) {
        const uint4 v = peek<uint4>(sub + lane * 16);
        const uint2 d = peek<uint2>(sub + 512 + g * 8);
        const float2 dg = unpack_halves(d.x), dh = unpack_halves(d.y);
        const uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int block = 0; block < 2; block++) {
            float acc[4];
            begin<ONE>(acc, -1032.0f, -1152.0f, sum[4 * block] + sum[4 * block + 2], sum[4 * block + 1] + sum[4 * block + 3]);
#pragma unroll
            for (int s = 2 * block; s < 2 * block + 2; s++) {
                uint32_t a[4];
                nibbles(a, w[s]);
                mma(acc, a, b[2 * s], b[2 * s + 1]);
            }
            scaled_add<ONE>(total, acc, block ? dg.y : dg.x, 0.0625f * (block ? dh.y : dh.x));
        }
    } else if constexpr (F == Q4_K) {
        const uint4 v = peek<uint4>(sub + lane * 16);
        const uint2 sm = peek<uint2>(sub + 512 + g * 8), h = peek<uint2>(unit + g * 8);
        const float2 d = unpack_halves(h.x), dmin = unpack_halves(h.y);
        const uint32_t w[4] = {v.x, v.y, v.z, v.w};
        const float sg[2] = {d.x * byte_float<0>(sm.x, 0), d.x * byte_float<1>(sm.x, 0)};
        const float sh[2] = {d.y * byte_float<2>(sm.x, 0), d.y * byte_float<3>(sm.x, 0)};
        const float mg[2] = {dmin.x * byte_float<0>(sm.y, 0), dmin.x * byte_float<1>(sm.y, 0)};
        const float mh[2] = {dmin.y * byte_float<2>(sm.y, 0), dmin.y * byte_float<3>(sm.y, 0)};
#pragma unroll
        for (int block = 0; block < 2; block++) {
            const float s0 = sum[4 * block] + sum[4 * block + 2], s1 = sum[4 * block + 1] + sum[4 * block + 3];
            float acc[4];
            begin<ONE>(acc, -1024.0f, -1024.0f, s0, s1);
#pragma unroll
            for (int s = 2 * block; s < 2 * block + 2; s++) {
                uint32_t a[4];
                nibbles(a, w[s]);
                mma(acc, a, b[2 * s], b[2 * s + 1]);
            }
            scaled_add<ONE>(total, acc, sg[block], 0.0625f * sh[block]);
            subtract_min<ONE>(total, mg[block], mh[block], s0, s1);
        }
    } else if constexpr (F == Q6_K) {
        const uint4 v = peek<uint4>(sub + lane * 16);
        const uint2 t = peek<uint2>(sub + 512 + lane * 8), sc = peek<uint2>(sub + 768 + g * 8);
        const float2 d = unpack_halves(peek<uint32_t>(unit + g * 4));
        const uint32_t w[4] = {v.x, v.y, v.z, v.w};
        const float sg[4] = {byte_float<0>(sc.x, 128), byte_float<1>(sc.x, 128), byte_float<2>(sc.x, 128), byte_float<3>(sc.x, 128)};
        const float sh[4] = {byte_float<0>(sc.y, 128), byte_float<1>(sc.y, 128), byte_float<2>(sc.y, 128), byte_float<3>(sc.y, 128)};
        const float dg = d.x, dh = 0.0625f * d.y;
#pragma unroll
        for (int s = 0; s < 4; s++) {
            float acc[4];
            begin<ONE>(acc, -1056.0f, -1536.0f, sum[2 * s], sum[2 * s + 1]);
            uint32_t a[4];
            nibbles(a, w[s]);
            if (s % 2 == 0) upper_bits<0>(a, s < 2 ? t.x : t.y); else upper_bits<1>(a, s < 2 ? t.x : t.y);
            mma(acc, a, b[2 * s], b[2 * s + 1]);
            scaled_add<ONE>(total, acc, dg * sg[s], dh * sh[s]);
        }
    }
}

}  // namespace brasa
