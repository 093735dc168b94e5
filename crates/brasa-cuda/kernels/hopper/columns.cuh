// Products of a tile with one row on halves, for F16, BF16, and formats with blocks of 16. The other formats are in codes.cuh.
//
// mma.m16n8k16 multiplies 16 outputs with eight columns, and one row would fill one. But the products of each block of a weight must be kept apart, since the
// block's scale multiplies their sum. So every block gets a column: B holds the block's inputs in its column and zeros in all others, and the products of
// eight blocks, those of two subs, collect in one accumulator. Lane l, with g = l/4 and t = l%4, then has the sums of columns 2t and 2t + 1 for outputs g and
// g + 8: it reads the scales of its own two blocks of sub t/2 alone, and the four lanes of a g are added once a tile.
//
// F16 and BF16 have no scales. Each of their subs has an accumulator of its own, in which all columns are alike.
//
// Codes become halves without arithmetic (operands.cuh): the constant in them is taken out by the accumulator's first value, −constant · Σx of the block. So
// weights are exact; x is f16, scaled by a power of two for each sub.
#pragma once
#include "codes.cuh"

namespace brasa {

// x of N subs, WARPS apart, in columns: fragments of B, and for the lane's columns Σx and the power of two.
template <uint32_t F, int N> struct HalfColumns {
    static constexpr int BLOCKS = column_blocks(F), PARTS = (N + 1) / 2;
    static_assert(BLOCKS > 1 || N <= 2, "two accumulators for each sub");
    uint32_t b[N][8];
    float sums[PARTS][2], scales[2];

    __device__ __forceinline__ void load(uint32_t first, uint32_t lane) {
        const uint32_t g = lane / 4, t = lane % 4, x = AT_X + first * 128;
#pragma unroll
        for (int i = 0; i < N; i++) {
            const uint32_t sub = i * WARPS * 128;
            if constexpr (BLOCKS == 4) {
#pragma unroll
                for (int s = 0; s < 4; s++) {
                    const uint32_t at = sub + s / 2 * 64 + s % 2 * 8;
                    const uint2 v = peek<uint2>((g == i % 2 * 4 + s ? x + t * 16 : AT_ZERO - at) + at);
                    b[i][2 * s] = v.x; b[i][2 * s + 1] = v.y;
                }
            } else {
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const uint32_t at = sub + half * 64;
                    const uint4 v = peek<uint4>(x + t * 16 + at);
                    b[i][4 * half] = v.x; b[i][4 * half + 1] = v.y; b[i][4 * half + 2] = v.z; b[i][4 * half + 3] = v.w;
                }
            }
        }
        scales[0] = scales[1] = 0.0f;
        if constexpr (BLOCKS == 1) {
#pragma unroll
            for (int i = 0; i < N; i++) scales[i] = peek<float>(AT_SCALES + (first + i * WARPS) * 4);
        } else {
#pragma unroll
            for (int part = 0; part < PARTS; part++) {
                const uint32_t own = part * 2 + t / 2, sub = first + own * WARPS;
                sums[part][0] = sums[part][1] = 0.0f;
                if (own >= N) continue;
                scales[part] = peek<float>(AT_SCALES + sub * 4);
                const float2 v = peek<float2>(AT_SUMS + sub * 16 + t % 2 * 8);
                sums[part][0] = v.x; sums[part][1] = v.y;
            }
        }
    }
};

template <bool, typename A, typename B> struct Either { using Type = A; };
template <typename A, typename B> struct Either<false, A, B> { using Type = B; };
template <uint32_t F, int N> using Columns = typename Either<by_codes(F), CodeColumns<F, N>, HalfColumns<F, N>>::Type;

// total += the lane's share of N subs of a tile. `subs`: where each lies; `own`: where those lie whose scales the lane reads, for each accumulator.
template <uint32_t F, int N>
__device__ __forceinline__ void multiply_columns(const uint32_t (&subs)[N], const Spot (&own)[HalfColumns<F, N>::PARTS], const HalfColumns<F, N>& x, uint32_t lane, float2& total,
                                                 float raise) {
    constexpr int BLOCKS = HalfColumns<F, N>::BLOCKS, PARTS = HalfColumns<F, N>::PARTS;
    Stored<F> w[N];
#pragma unroll
    for (int i = 0; i < N; i++) w[i].load(subs[i], lane);
    // Four chains of products, which overlap; the first of a part begins with what its codes read too much.
    float acc[4][4] = {};
    if constexpr (BLOCKS > 1) {
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            float(&first)[4] = acc[part * 2];
            first[0] = -surplus(F) * x.sums[part][0]; first[1] = -surplus(F) * x.sums[part][1];
            first[2] = -upper_surplus(F) * x.sums[part][0]; first[3] = -upper_surplus(F) * x.sums[part][1];
        }
    }
#pragma unroll
    for (int s = 0; s < 4; s++) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            uint32_t a[4];
            if (s == 0) w[i].template step<0>(a, raise);
            if (s == 1) w[i].template step<1>(a, raise);
            if (s == 2) w[i].template step<2>(a, raise);
            if (s == 3) w[i].template step<3>(a, raise);
            mma(acc[N == 4 ? i : N == 2 ? i * 2 + s % 2 : s], a, x.b[i][2 * s], x.b[i][2 * s + 1]);
        }
    }
#pragma unroll
    for (int c = 0; c < 4; c++) {
        acc[0][c] += acc[1][c];
        acc[2][c] += acc[3][c];
        if (N == 1 || (BLOCKS > 1 && PARTS == 1)) acc[0][c] += acc[2][c];
    }
    if constexpr (BLOCKS == 1) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            total.x = fmaf(x.scales[i], acc[2 * i][0], total.x);
            total.y = fmaf(x.scales[i], acc[2 * i][2], total.y);
        }
    } else {
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            if (part * 2 + lane % 4 / 2 < N) {
                const float2 v = scaled<F>(acc[part * 2], x.sums[part], own[part], lane);
                total.x = fmaf(x.scales[part], v.x, total.x);
                total.y = fmaf(x.scales[part], v.y, total.y);
            }
        }
    }
}

}  // namespace brasa
