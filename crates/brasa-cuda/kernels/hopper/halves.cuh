// Weights of a sub as halves, times a power of two: what products of many rows multiply.
#pragma once
#include "multiply.cuh"

namespace brasa {

__device__ __forceinline__ uint32_t add2(uint32_t a, uint32_t b) {
    __half2 r = __hadd2(*reinterpret_cast<__half2*>(&a), *reinterpret_cast<__half2*>(&b));
    return *reinterpret_cast<uint32_t*>(&r);
}
__device__ __forceinline__ uint32_t mul2(uint32_t a, uint32_t b) {
    __half2 r = __hmul2(*reinterpret_cast<__half2*>(&a), *reinterpret_cast<__half2*>(&b));
    return *reinterpret_cast<uint32_t*>(&r);
}
__device__ __forceinline__ uint32_t fma2(uint32_t a, uint32_t b, uint32_t c) {
    __half2 r = __hfma2(*reinterpret_cast<__half2*>(&a), *reinterpret_cast<__half2*>(&b), *reinterpret_cast<__half2*>(&c));
    return *reinterpret_cast<uint32_t*>(&r);
}
// A number twice; `half_bits` of exact constants.
__device__ __forceinline__ uint32_t twice(float v) { return pack_halves(v, v); }

// The four A fragments of a sub as halves. `header`: shared-memory address of the unit's header.
template <uint32_t F> __device__ __forceinline__ void decode_sub(uint32_t (&a)[4][4], uint32_t header, uint32_t sub, uint32_t lane, float raise) {
    const uint32_t g = lane >> 2;
    constexpr uint32_t SIXTEENTH = 0x2c002c00;  // 1/16 twice
    if constexpr (F == F16) {
#pragma unroll
        for (int s = 0; s < 4; s++) {
            const uint4 w = load_shared16(sub + s * 512 + lane * 16);
            a[s][0] = w.x; a[s][1] = w.y; a[s][2] = w.z; a[s][3] = w.w;
        }
    } else if constexpr (F == BF16) {
#pragma unroll
        for (int s = 0; s < 4; s++) {
            const uint4 v = load_shared16(sub + s * 512 + lane * 16);
            const uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int p = 0; p < 4; p++) a[s][p] = pack_halves(__uint_as_float(w[p] << 16) * raise, __uint_as_float(w[p] & 0xffff0000) * raise);
        }
    } else if constexpr (F == Q8_0) {
        const uint4 w0 = load_shared16(sub + lane * 16), w1 = load_shared16(sub + 512 + lane * 16);
        const uint2 d = load_shared8(sub + 1024 + g * 8);
        const float2 dg = unpack_halves(d.x), dh = unpack_halves(d.y);
        const uint32_t w[8] = {w0.x, w0.y, w0.z, w0.w, w1.x, w1.y, w1.z, w1.w};
        const uint32_t sg[2] = {twice(dg.x * raise), twice(dg.y * raise)}, sh[2] = {twice(dh.x * raise), twice(dh.y * raise)};
        const uint32_t minus = 0xe480e480;  // −1152
#pragma unroll
        for (int s = 0; s < 4; s++) {
            bytes(a[s], w[2 * s], w[2 * s + 1]);
#pragma unroll
            for (int p = 0; p < 4; p++) a[s][p] = mul2(add2(a[s][p], minus), p % 2 ? sh[s / 2] : sg[s / 2]);
        }
    } else if constexpr (F == Q4_0) {
        const uint4 v = load_shared16(sub + lane * 16);
        const uint2 d = load_shared8(sub + 512 + g * 8);
        const float2 dg = unpack_halves(d.x), dh = unpack_halves(d.y);
        const uint32_t w[4] = {v.x, v.y, v.z, v.w};
        const uint32_t sg[2] = {twice(dg.x * raise), twice(dg.y * raise)}, sh[2] = {twice(dh.x * raise), twice(dh.y * raise)};
        const uint32_t minus = 0xe408e408, minus_high = 0xd480d480;  // −1032, −72
#pragma unroll
        for (int s = 0; s < 4; s++) {
            nibbles(a[s], w[s]);
#pragma unroll
            for (int p = 0; p < 4; p++) {
                const uint32_t q = p % 2 ? fma2(a[s][p], SIXTEENTH, minus_high) : add2(a[s][p], minus);
                a[s][p] = mul2(q, p % 2 ? sh[s / 2] : sg[s / 2]);
            }
        }
    } else if constexpr (F == Q4_K || F == Q5_K) {
        const uint4 v = load_shared16(sub + lane * 16);
        const uint2 sm = load_shared8(sub + (F == Q4_K ? 512 : 640) + g * 8), h = load_shared8(header + g * 8);
        const uint32_t ones = F == Q5_K ? load_shared4(sub + 512 + lane * 4) : 0;
        float2 d = unpack_halves(h.x), dmin = unpack_halves(h.y);
        d.x *= raise; d.y *= raise; dmin.x *= -raise; dmin.y *= -raise;
        const uint32_t w[4] = {v.x, v.y, v.z, v.w};
        // Codes count from the middle: what a block's scale and offset are rounded by is then a part of small numbers.
        constexpr float MIDDLE = F == Q4_K ? 8 : 16;
        const float fg[2] = {d.x * byte_float<0>(sm.x, 0), d.x * byte_float<1>(sm.x, 0)};
        const float fh[2] = {d.y * byte_float<2>(sm.x, 0), d.y * byte_float<3>(sm.x, 0)};
        const uint32_t sg[2] = {twice(fg[0]), twice(fg[1])}, sh[2] = {twice(fh[0]), twice(fh[1])};
        const uint32_t mg[2] = {twice(fmaf(MIDDLE, fg[0], dmin.x * byte_float<0>(sm.y, 0))), twice(fmaf(MIDDLE, fg[1], dmin.x * byte_float<1>(sm.y, 0)))};
        const uint32_t mh[2] = {twice(fmaf(MIDDLE, fh[0], dmin.y * byte_float<2>(sm.y, 0))), twice(fmaf(MIDDLE, fh[1], dmin.y * byte_float<3>(sm.y, 0)))};
        const uint32_t minus = F == Q4_K ? 0xe408e408 : 0xe410e410, minus_high = F == Q4_K ? 0xd480d480 : 0xd500d500;  // −1032, −72 or −1040, −80
#pragma unroll
        for (int s = 0; s < 4; s++) {
            nibbles(a[s], w[s]);
            if (F == Q5_K) add_ones<4, 8>(a[s], ones, s);
#pragma unroll
            for (int p = 0; p < 4; p++) {
                const uint32_t q = p % 2 ? fma2(a[s][p], SIXTEENTH, minus_high) : add2(a[s][p], minus);
                a[s][p] = p % 2 ? fma2(q, sh[s / 2], mh[s / 2]) : fma2(q, sg[s / 2], mg[s / 2]);
            }
        }
    } else if constexpr (F == Q6_K) {
        const uint4 v = load_shared16(sub + lane * 16);
        const uint2 t = load_shared8(sub + 512 + lane * 8), sc = load_shared8(sub + 768 + g * 8);
        float2 d = unpack_halves(load_shared4(header + g * 4));
        d.x *= raise; d.y *= raise;
        const uint32_t w[4] = {v.x, v.y, v.z, v.w};
        const float fg[4] = {byte_float<0>(sc.x, 128), byte_float<1>(sc.x, 128), byte_float<2>(sc.x, 128), byte_float<3>(sc.x, 128)};
        const float fh[4] = {byte_float<0>(sc.y, 128), byte_float<1>(sc.y, 128), byte_float<2>(sc.y, 128), byte_float<3>(sc.y, 128)};
        const uint32_t minus = 0xe420e420, minus_high = 0xd600d600;  // −1056, −96
#pragma unroll
        for (int s = 0; s < 4; s++) {
            nibbles(a[s], w[s]);
            upper_bits(a[s], s < 2 ? t.x : t.y, s);
            const uint32_t sg = twice(d.x * fg[s]), sh = twice(d.y * fh[s]);
#pragma unroll
            for (int p = 0; p < 4; p++) {
                const uint32_t q = p % 2 ? fma2(a[s][p], SIXTEENTH, minus_high) : add2(a[s][p], minus);
                a[s][p] = mul2(q, p % 2 ? sh : sg);
            }
        }
    } else if constexpr (F == Q4_1 || F == MLX8) {
        // Scales and offsets are numbers of f16 and stay so times a power of two: only their sum is rounded.
        const uint4 v0 = load_shared16(sub + lane * 16), v1 = F == MLX8 ? load_shared16(sub + 512 + lane * 16) : v0;
        const uint4 dm = load_shared16(sub + (F == Q4_1 ? 512 : 1024) + g * 16);
        const uint32_t w[8] = {v0.x, v0.y, v0.z, v0.w, v1.x, v1.y, v1.z, v1.w};
        const float2 dg = unpack_halves(dm.x), dh = unpack_halves(dm.y), mg = unpack_halves(dm.z), mh = unpack_halves(dm.w);
        const float d[2][2] = {{dg.x, dg.y}, {dh.x, dh.y}}, m[2][2] = {{mg.x, mg.y}, {mh.x, mh.y}};
        uint32_t scale[2][2], offset[2][2];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            scale[i / 2][i % 2] = twice(d[i / 2][i % 2] * raise);
            offset[i / 2][i % 2] = twice(m[i / 2][i % 2] * raise);
        }
        const uint32_t minus = 0xe400e400, minus_high = 0xd400d400;  // −1024, −64
#pragma unroll
        for (int s = 0; s < 4; s++) {
            if (F == Q4_1) nibbles(a[s], w[s]); else bytes(a[s], w[2 * s], w[2 * s + 1]);
#pragma unroll
            for (int p = 0; p < 4; p++) {
                const uint32_t q = F == Q4_1 && p % 2 ? fma2(a[s][p], SIXTEENTH, minus_high) : add2(a[s][p], minus);
                a[s][p] = fma2(q, scale[p % 2][s / 2], offset[p % 2][s / 2]);
            }
        }
    } else if constexpr (F == Q3_K || F == Q2_K) {
        const uint2 t = load_shared8(sub + lane * 8), records = load_shared8(sub + (F == Q3_K ? 384 : 256) + g * 8);
        const uint32_t ones = F == Q3_K ? load_shared4(sub + 256 + lane * 4) : 0;
        const uint2 h = F == Q3_K ? make_uint2(load_shared4(header + g * 4), 0) : load_shared8(header + g * 8);
        float2 d = unpack_halves(h.x), dmin = unpack_halves(h.y);
        d.x *= raise; d.y *= raise; dmin.x *= -raise; dmin.y *= -raise;
        // Scales, and minima if there are some, of a block of 16 each.
        const uint32_t scales[2] = {F == Q3_K ? records.x : records.x & 0x0f0f0f0f, F == Q3_K ? records.y : records.y & 0x0f0f0f0f};
        const uint32_t mins[2] = {records.x >> 4 & 0x0f0f0f0f, records.y >> 4 & 0x0f0f0f0f};
        constexpr float BIAS = F == Q3_K ? 128 : 0;
        const float fg[4] = {byte_float<0>(scales[0], BIAS), byte_float<1>(scales[0], BIAS), byte_float<2>(scales[0], BIAS), byte_float<3>(scales[0], BIAS)};
        const float fh[4] = {byte_float<0>(scales[1], BIAS), byte_float<1>(scales[1], BIAS), byte_float<2>(scales[1], BIAS), byte_float<3>(scales[1], BIAS)};
        const float mg[4] = {byte_float<0>(mins[0], 0), byte_float<1>(mins[0], 0), byte_float<2>(mins[0], 0), byte_float<3>(mins[0], 0)};
        const float mh[4] = {byte_float<0>(mins[1], 0), byte_float<1>(mins[1], 0), byte_float<2>(mins[1], 0), byte_float<3>(mins[1], 0)};
        // Codes stand 8 and 128 times too large beside 1024 (Q3_K), or 16 and 256 times. Those with minima count from the middle, 1.5.
        const uint32_t part = F == Q3_K ? 0x30003000 : SIXTEENTH, part_high = F == Q3_K ? 0x20002000 : 0x1c001c00;      // 1/8, 1/128 or 1/16, 1/256
        const uint32_t minus = F == Q3_K ? 0xd820d820 : 0xd418d418, minus_high = F == Q3_K ? 0xca00ca00 : 0xc580c580;  // −132, −12 or −65.5, −5.5
#pragma unroll
        for (int s = 0; s < 4; s++) {
            twos(a[s], s < 2 ? t.x : t.y, s);
            if (F == Q3_K) add_ones<3, 7>(a[s], ones, s);
            const uint32_t sg = twice(d.x * fg[s]), sh = twice(d.y * fh[s]);
            const uint32_t og = twice(fmaf(1.5f, d.x * fg[s], dmin.x * mg[s])), oh = twice(fmaf(1.5f, d.y * fh[s], dmin.y * mh[s]));
#pragma unroll
            for (int p = 0; p < 4; p++) {
                const uint32_t q = p % 2 ? fma2(a[s][p], part_high, minus_high) : fma2(a[s][p], part, minus);
                a[s][p] = F == Q3_K ? mul2(q, p % 2 ? sh : sg) : p % 2 ? fma2(q, sh, oh) : fma2(q, sg, og);
            }
        }
    } else if constexpr (F == IQ4_XS) {
        const uint4 v = load_shared16(sub + lane * 16);
        const uint32_t scales = load_shared4(sub + 512 + g * 4);
        float2 d = unpack_halves(load_shared4(header + g * 4));
        d.x *= raise; d.y *= raise;
        const uint32_t w[4] = {v.x, v.y, v.z, v.w};
        const uint32_t sg[2] = {twice(d.x * byte_float<0>(scales, 128)), twice(d.x * byte_float<1>(scales, 128))};
        const uint32_t sh[2] = {twice(d.y * byte_float<2>(scales, 128)), twice(d.y * byte_float<3>(scales, 128))};
        const uint32_t minus = 0xe480e480;  // −1152
#pragma unroll
        for (int s = 0; s < 4; s++) {
            uint32_t low, high;
            iq4_bytes(w[s], low, high);
            a[s][0] = __byte_perm(low, 0x64646464, 0x4240);
            a[s][1] = __byte_perm(high, 0x64646464, 0x4240);
            a[s][2] = __byte_perm(low, 0x64646464, 0x4341);
            a[s][3] = __byte_perm(high, 0x64646464, 0x4341);
#pragma unroll
            for (int p = 0; p < 4; p++) a[s][p] = mul2(add2(a[s][p], minus), p % 2 ? sh[s / 2] : sg[s / 2]);
        }
    }
}

}  // namespace brasa
