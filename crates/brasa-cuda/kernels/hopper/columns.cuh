// Products of a tile with one row on halves, for F16, BF16 and Q6_K. The other formats are in codes.cuh.
//
// mma.m16n8k16 multiplies 16 outputs with eight columns, and one row would fill one. But the products of each block of a weight must be kept apart, since the
// block's scale multiplies their sum. So every block of Q6_K gets a column: B holds the block's inputs in its column and zeros in all others, and the products of
// eight blocks, those of two subs, collect in one accumulator. Lane l, with g = l/4 and t = l%4, then has the sums of columns 2t and 2t + 1 for outputs g and
// g + 8: it reads the scales of its own two blocks of sub t/2 alone, and the four lanes of a g are added once a tile.
//
// F16 and BF16 have no scales. Each of their subs has an accumulator of its own, in which all columns are alike.
//
// Codes become halves without arithmetic (multiply.cuh): the constant in them is taken out by the accumulator's first value, −constant · Σx of the block. So
// weights are exact; x is f16, scaled by a power of two for each sub.
#pragma once
#include "codes.cuh"

namespace brasa {

// Blocks of a sub that are scaled apart.
__host__ __device__ constexpr int column_blocks(uint32_t format) { return format == F16 || format == BF16 ? 1 : format == Q6_K ? 4 : 2; }
// What a code of Q6_K reads more than it is as a half, for output g, and for g + 8 where it is a nibble's upper half.
constexpr float SURPLUS = 1056, UPPER_SURPLUS = 1536;

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

// The lane's sums of one accumulator of Q6_K, each times its scale, for outputs g and g + 8. `spot`: the lane's own sub.
__device__ __forceinline__ float2 scaled(const float (&acc)[4], Spot spot, uint32_t lane) {
    const uint32_t g = lane / 4;
    uint2 sc = peek<uint2>(spot.sub + 768 + g * 8);
    const float2 d = unpack_halves(peek<uint32_t>(spot.unit + g * 4));
    sc.x >>= lane % 2 * 16; sc.y >>= lane % 2 * 16;
    const float low = fmaf(byte_float<1>(sc.x, 128), acc[1], __fmul_rn(byte_float<0>(sc.x, 128), acc[0]));
    const float high = fmaf(byte_float<1>(sc.y, 128), acc[3], __fmul_rn(byte_float<0>(sc.y, 128), acc[2]));
    return make_float2(d.x * low, 0.0625f * d.y * high);
}

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
            first[0] = -SURPLUS * x.sums[part][0]; first[1] = -SURPLUS * x.sums[part][1];
            first[2] = -UPPER_SURPLUS * x.sums[part][0]; first[3] = -UPPER_SURPLUS * x.sums[part][1];
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
                const float2 v = scaled(acc[part * 2], own[part], lane);
                total.x = fmaf(x.scales[part], v.x, total.x);
                total.y = fmaf(x.scales[part], v.y, total.y);
            }
        }
    }
}

}  // namespace brasa
