// Products of a tile with one row on halves, for F16 and BF16. The other formats are in codes.cuh.
//
// mma.m16n8k16 multiplies 16 outputs with eight columns, all of which are x. Each sub has an accumulator of its own: x is f16, scaled by a power of two for
// each sub, and weights are exact, or BF16 times the weight's `raise`.
#pragma once
#include "codes.cuh"

namespace brasa {

// x of N subs, WARPS apart: fragments of B, and the powers of two.
template <uint32_t F, int N> struct HalfColumns {
    static_assert(by_codes(F) || N <= 2, "two accumulators for each sub");
    uint32_t b[N][8];
    float scales[N];

    __device__ __forceinline__ void load(uint32_t first, uint32_t lane) {
        const uint32_t x = AT_X + first * 128 + lane % 4 * 16;
#pragma unroll
        for (int i = 0; i < N; i++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const uint4 v = peek<uint4>(x + i * WARPS * 128 + half * 64);
                b[i][4 * half] = v.x; b[i][4 * half + 1] = v.y; b[i][4 * half + 2] = v.z; b[i][4 * half + 3] = v.w;
            }
            scales[i] = peek<float>(AT_SCALES + (first + i * WARPS) * 4);
        }
    }
};

template <bool, typename A, typename B> struct Either { using Type = A; };
template <typename A, typename B> struct Either<false, A, B> { using Type = B; };
template <uint32_t F, int N> using Columns = typename Either<by_codes(F), CodeColumns<F, N>, HalfColumns<F, N>>::Type;

// total += the lane's share of N subs of a tile. `subs`: where each lies.
template <uint32_t F, int N>
__device__ __forceinline__ void multiply_columns(const uint32_t (&subs)[N], Spot, const HalfColumns<F, N>& x, uint32_t lane, float2& total, float raise) {
    Stored<F> w[N];
#pragma unroll
    for (int i = 0; i < N; i++) w[i].load(subs[i], lane);
    // Four chains of products, which overlap.
    float acc[4][4] = {};
#pragma unroll
    for (int s = 0; s < 4; s++) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            uint32_t a[4];
            if (s == 0) w[i].template step<0>(a, raise);
            if (s == 1) w[i].template step<1>(a, raise);
            if (s == 2) w[i].template step<2>(a, raise);
            if (s == 3) w[i].template step<3>(a, raise);
            mma(acc[N == 2 ? i * 2 + s % 2 : s], a, x.b[i][2 * s], x.b[i][2 * s + 1]);
        }
    }
#pragma unroll
    for (int c = 0; c < 4; c++) {
        acc[0][c] += acc[1][c];
        acc[2][c] += acc[3][c];
        if (N == 1) acc[0][c] += acc[2][c];
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        total.x = fmaf(x.scales[i], acc[2 * i][0], total.x);
        total.y = fmaf(x.scales[i], acc[2 * i][2], total.y);
    }
}

}  // namespace brasa
