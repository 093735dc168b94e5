// Products of a tile with one row on integers, for quantised formats: up to four subs in the columns of a few matrix products.
//
// x of a sub is whole numbers of 15 bits and a sign, times a power of two. Each is 256·high + low, both signed bytes. mma.m16n8k32 multiplies 16 outputs and
// one block of 32 codes with eight columns, mma.m16n8k16 one block of 16. Sub i has columns 2i, its high bytes, and 2i + 1, its low bytes; B holds zeros in
// all others. The first blocks of the four subs collect in one accumulator, the second blocks in another, and so on. Lane l, with g = l/4 and t = l%4, then
// has the high and the low sums of all blocks of sub t, for two outputs: it puts them together, scales them, and the four lanes of an output are added once
// a tile.
//
// Rows of A need not be the outputs in order, nor in the same order for each sub: row g of sub i is output g ^ 2i, and row g + 8 the one eight behind it, so
// lane l reads the codes of lane l ^ 8i. The subs of a round lie a multiple of 128 bytes apart in most formats: in order, the scales of an output would lie in the
// same banks for all four. This way records of eight bytes are read in four wavefronts and not in eight, those of sixteen in four and not in sixteen.
//
// Codes are bytes (operands.cuh), those of output g + 8 in an upper nibble 16 times too large. Sums are exact: 32 · 255 · 2^14 lies below 2^31. What a
// code reads too much is taken out by the accumulator's first value, −bias · Σx of the block.
//
// The inputs of a block are counted as a lane has them: byte i of the lane's word of a step is input 2t, 2t + 8, 2t + 1, 2t + 9 of the step.
#pragma once
#include "operands.cuh"
#include "smem_layout.cuh"

namespace brasa {

// What added to |v| < 2^22 leaves v + 128, rounded, in the lower bits: byte 1 is the high byte of v, byte 0 the low one with its sign turned.
constexpr float WHOLE = 12582912.0f + 128.0f;
constexpr uint32_t WHOLE_BITS = 0x4B400080;

#ifdef __CUDACC__
// c += a · b, m16n8k32, unsigned and signed bytes.
__device__ __forceinline__ void mma(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm(
        "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// c += a · b, m16n8k16: registers 0 and 1 of A, or 2 and 3.
__device__ __forceinline__ void mma16(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t b) {
    asm(
        "mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(b));
}
#endif

// Four inputs of a lane, sixteen lanes a sub, in the order of `ask`: their bytes to shared memory. Returns their sum.
__device__ __forceinline__ int leave_whole(float4 x, float down, uint32_t sub, uint32_t lane, bool there) {
    const uint32_t v[4] = {__float_as_uint(fmaf(x.x, down, WHOLE)), __float_as_uint(fmaf(x.y, down, WHOLE)), __float_as_uint(fmaf(x.z, down, WHOLE)),
                           __float_as_uint(fmaf(x.w, down, WHOLE))};
    const uint32_t p = __byte_perm(v[0], v[1], 0x5410), q = __byte_perm(v[2], v[3], 0x5410);
    const uint32_t high = __byte_perm(p, q, 0x7531), low = __byte_perm(p, q, 0x6420) ^ 0x80808080;
    // The lane with inputs 0..8 of a step leaves the high bytes of both, its partner the low ones.
    const bool second = lane & 2;
    const uint32_t got = __shfl_xor_sync(~0u, second ? high : low, 2);
    const uint32_t first8 = second ? got : high, last8 = second ? low : got;
    if (there) {
        uint8_t* at = smem + AT_X + sub * 128 + (second ? 64 : 0) + lane % 2 * 32 + lane % 16 / 4 * 4;
        *reinterpret_cast<uint32_t*>(at) = __byte_perm(first8, last8, 0x5140);
        *reinterpret_cast<uint32_t*>(at + 16) = __byte_perm(first8, last8, 0x7362);
    }
    return int(v[0] + v[1] + (v[2] + v[3]) - 4 * WHOLE_BITS);
}

// x of N subs, WARPS apart, in columns: fragments of B, zeros but for the lanes of the sub's columns, and for the lane's own sub what its accumulators begin with, Σx of its blocks and the power of two.
template <uint32_t F, int N> struct CodeColumns {
    static constexpr int BLOCKS = column_blocks(F);
    static_assert(N <= 4, "eight columns");
    uint32_t b[N][4];
    int first[BLOCKS];
    float sums[BLOCKS], scale;

    // Sub i is the i % EACH-th: where EACH is less than N, x comes again for another tile.
    template <int EACH = N> __device__ __forceinline__ void load(uint32_t from, uint32_t lane) {
        const uint32_t g = lane / 4, t = lane % 4;
#pragma unroll
        for (int i = 0; i < N; i++) {
            const uint4 v = peek16_if(g / 2 == uint32_t(i), AT_X + (from + i % EACH * WARPS) * 128 + g % 2 * 64 + t * 16);
            b[i][0] = v.x; b[i][1] = v.y; b[i][2] = v.z; b[i][3] = v.w;
        }
        scale = 0.0f;
#pragma unroll
        for (int k = 0; k < BLOCKS; k++) { sums[k] = 0.0f; first[k] = 0; }
        if (t >= N) return;
        const uint32_t sub = from + t % EACH * WARPS;
        int sum[4];
        if constexpr (BLOCKS == 2) {
            const int2 v = peek<int2>(AT_SUMS + sub * 16);
            sum[0] = v.x; sum[1] = v.y;
        } else {
            const int4 v = peek<int4>(AT_SUMS + sub * 16);
            sum[0] = v.x; sum[1] = v.y; sum[2] = v.z; sum[3] = v.w;
        }
        scale = peek<float>(AT_SCALES + sub * 4);
#pragma unroll
        for (int k = 0; k < BLOCKS; k++) { sums[k] = float(sum[k]); first[k] = -code_bias(F) * sum[k]; }
    }
};

// total += the lane's share of N subs of a tile. `subs`: where each lies; `own`: where the lane's own lies.
template <uint32_t F, int N>
__device__ __forceinline__ void multiply_columns(const uint32_t (&subs)[N], Spot own, const CodeColumns<F, N>& x, uint32_t lane, float2& total, float) {
    constexpr int BLOCKS = column_blocks(F);
    Codes<F> w[N];
    CodeScales<F> scales;
#pragma unroll
    for (int i = 0; i < N; i++) w[i].load(subs[i], lane ^ i * 8);
    scales.load(own, output_of(lane));
    int acc[BLOCKS][4] = {};
#pragma unroll
    for (int k = 0; k < BLOCKS; k++) { acc[k][1] = x.first[k]; acc[k][3] = upper_codes(F) * x.first[k]; }
#pragma unroll
    for (int i = 0; i < N; i++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t a[4];
            if (half == 0) w[i].template block<0>(a); else w[i].template block<1>(a);
            if constexpr (BLOCKS == 2) {
                mma(acc[half], a, x.b[i][2 * half], x.b[i][2 * half + 1]);
            } else {
                mma16(acc[2 * half], a[0], a[1], x.b[i][2 * half]);
                mma16(acc[2 * half + 1], a[2], a[3], x.b[i][2 * half + 1]);
            }
        }
    }
    float v[2 * BLOCKS];
#pragma unroll
    for (int k = 0; k < BLOCKS; k++) {
        v[k] = float(acc[k][0] * 256 + acc[k][1]);
        v[BLOCKS + k] = float(acc[k][2] * 256 + acc[k][3]);
    }
    const float2 share = scales.apply(v, x.sums);
    // A lane without a sub has read what is not its own.
    if (N == 4 || lane % 4 < N) {
        total.x = fmaf(x.scale, share.x, total.x);
        total.y = fmaf(x.scale, share.y, total.y);
    }
}

// The sum of a lane's outputs over LANES lanes: even ones get that of output_of, odd ones that of the output eight behind it.
template <int LANES> __device__ __forceinline__ float add_lanes(float2 total, uint32_t lane) {
    const bool upper = lane & 1;
    float v = upper ? total.y : total.x;
    v += __shfl_xor_sync(~0u, upper ? total.x : total.y, same_output(1));
    if (LANES == 4) v += __shfl_xor_sync(~0u, v, same_output(2));
    return v;
}

}  // namespace brasa
