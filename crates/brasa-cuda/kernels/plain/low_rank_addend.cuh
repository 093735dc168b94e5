// Low-rank products of few rows, added to sums of a warp: d += ranks · Bᵀ on tensor cores, in numbers of tf32. A rank is the sum of two of them, a weight of 16 bits
// is one, and of f32 two (tensor.cuh).
//
// A warp makes two eights of outputs of up to sixteen rows, in the fragments of wgmma and of mma: d[j][c] is output g + 8·(c/2) of row 8j + 2t + c%2. Sixteen ranks are
// a *step*, a quarter of a tile's sub. Where an eight has zeros but in some subs (its span), others are not read, nor are steps that no row uses where there are many.
#pragma once

#include "tensor.cuh"

namespace brasa {

// Steps that a lane asks for together.
static const u32 STEPS_TOGETHER = 4;
// Most steps of a tile that are read without a look at who uses them.
static const u32 FEW_STEPS = 8;

// A lane's weights of a step: inputs 2t, 2t+1, 2t+8 and 2t+9 of outputs g and g + 8 of a tile.
template <u32 FORM>
struct StepWeights {
    Words4 words;

    static DEVICE const u8* place(const LowRankMatrix& b, u32 tile, u32 step) {
        return b.data + ((u64)tile * b.subs + step / 4) * 2048 + step % 4 * 512 + lane() * 16;
    }
    DEVICE void load(const LowRankMatrix& b, u32 tile, u32 step) { words = *(const Words4*)place(b, tile, step); }
    DEVICE float at(u32 half, u32 i) const {
        const u32 word = words.at[half + i / 2 * 2];
        if (FORM == LOW_RANK_BF16) {
            return __uint_as_float(i % 2 ? word & 0xffff0000u : word << 16);
        }
        return half_to_float((unsigned short)(i % 2 ? word >> 16 : word));
    }
};
template <>
struct StepWeights<LOW_RANK_F32> {
    Floats2 pairs[2][2];

    DEVICE void load(const LowRankMatrix& b, u32 tile, u32 step) {
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
#pragma unroll
            for (u32 i = 0; i < 2; ++i) {
                const u32 row = tile * 16 + half * 8 + lane() / 4, k = step * 16 + i * 8 + lane() % 4 * 2;
                pairs[half][i] = {{0.0f, 0.0f}};
                if (row < b.rows && k < b.inputs) {
                    pairs[half][i] = *(const Floats2*)((const float*)b.data + (u64)row * b.inputs + k);
                }
            }
        }
    }
    DEVICE float at(u32 half, u32 i) const { return pairs[half][i / 2].at[i % 2]; }
};

// The steps of a tile of B that are not all zero: from the first to one behind the last.
struct Steps {
    u32 first, end;

    DEVICE Steps(const LowRankSpans& spans, u32 tile) {
        u32 i = 0;
        while (i + 1 < LOW_RANK_SPANS && tile >= spans.tiles_end[i]) {
            ++i;
        }
        first = spans.first[i] * 4;
        end = spans.end[i] * 4;
    }
};

// Which half of a tile's outputs is the lower and the upper eight of d; NO_HALF where neither is.
static const u32 NO_HALF = 2;
struct Halves {
    u32 lower, upper;
};

// d += of the steps of a tile.
template <u32 FORM, u32 GROUPS>
DEVICE void add_tile(float (&d)[GROUPS][4], const Addend& p, u32 tile, Halves halves, u32 first_row) {
    const u32 AT_ONCE = STEPS_TOGETHER, PARTS = 2;
    const Steps steps(p.spans, tile);
    const u32 t = lane() % 4;
    for (u32 begin = steps.first; begin < steps.end; begin += 32) {
        const u32 count = steps.end - begin < 32 ? steps.end - begin : 32;
        u32 left = count == 32 ? 0xffffffffu : (1u << count) - 1;
        if (steps.end - steps.first > FEW_STEPS) {
            const u32 users = lane() < count && (begin + lane()) * 16 < p.b.inputs ? p.users[begin + lane()] : 0;
            left = __ballot_sync(0xffffffffu, users != 0);
        }
        while (left != 0) {
            u32 numbers[AT_ONCE];
            StepWeights<FORM> weights[AT_ONCE];
            u32 found = 0;
#pragma unroll
            for (u32 j = 0; j < AT_ONCE; ++j) {
                numbers[j] = begin + __ffs((int)left) - 1;
                if (left != 0) {
                    weights[j].load(p.b, tile, numbers[j]);
                    left &= left - 1;
                    ++found;
                }
            }
#pragma unroll
            for (u32 group = 0; group < GROUPS; ++group) {
                if (first_row + 8 * group >= p.rows) {
                    continue;
                }
                const u32 row = first_row + 8 * group + lane() / 4;
                Floats2 ranks[AT_ONCE][2] = {};
#pragma unroll 1
                for (u32 first_part = 0; first_part < p.parts; first_part += PARTS) {
                    Floats2 more[PARTS][AT_ONCE][2] = {};
#pragma unroll
                    for (u32 part = 0; part < PARTS; ++part) {
                        const float* from = p.ranks + ((u64)(first_part + part) * p.rows + row) * p.b.inputs + t * 2;
                        const bool is_there = row < p.rows && first_part + part < p.parts;
#pragma unroll
                        for (u32 j = 0; j < AT_ONCE; ++j) {
#pragma unroll
                            for (u32 i = 0; i < 2; ++i) {
                                const u32 k = numbers[j] * 16 + i * 8;
                                if (is_there && j < found && k + t * 2 < p.b.inputs) {
                                    more[part][j][i] = *(const Floats2*)(from + k);
                                }
                            }
                        }
                    }
#pragma unroll
                    for (u32 j = 0; j < AT_ONCE; ++j) {
#pragma unroll
                        for (u32 e = 0; e < 4; ++e) {
                            ranks[j][e / 2].at[e % 2] += more[0][j][e / 2].at[e % 2] + more[1][j][e / 2].at[e % 2];
                        }
                    }
                }
#pragma unroll
                for (u32 j = 0; j < AT_ONCE; ++j) {
                    if (j >= found) {
                        continue;
                    }
#pragma unroll
                    for (u32 i = 0; i < 2; ++i) {
                        Parts<4> a;
#pragma unroll
                        for (u32 e = 0; e < 4; ++e) {
                            const u32 half = e % 2 == 0 ? halves.lower : halves.upper, k = i * 2 + e / 2;
                            const float w = half == 0 ? weights[j].at(0, k) : weights[j].at(1, k);
                            a.set(e, half == NO_HALF ? 0.0f : w);
                        }
                        Parts<2> b;
                        b.set(0, ranks[j][i].at[0]);
                        b.set(1, ranks[j][i].at[1]);
                        if (FORM == LOW_RANK_F32) {
                            mma_parts(d[group], a, b);
                        } else {
                            mma_tf32(d[group], a.upper, b.rest[0], b.rest[1]);
                            mma_tf32(d[group], a.upper, b.upper[0], b.upper[1]);
                        }
                    }
                }
            }
        }
    }
}

// d += of outputs from `lower` on, and of those from `upper` on, eight each, multiples of eight; of as many groups of eight rows.
template <u32 FORM, u32 GROUPS>
DEVICE void add_eights(float (&d)[GROUPS][4], const Addend& p, u32 lower, u32 upper, u32 first_row) {
    const u32 tile = lower / 16;
    if (lower % 16 == 0 && upper == lower + 8) {
        if (lower < p.b.rows) {
            add_tile<FORM, GROUPS>(d, p, tile, {0, 1}, first_row);
        }
        return;
    }
#pragma unroll 1
    for (u32 side = 0; side < 2; ++side) {
        const u32 output = side == 0 ? lower : upper, half = output / 8 % 2;
        if (output < p.b.rows) {
            add_tile<FORM, GROUPS>(d, p, output / 16, side == 0 ? Halves{half, NO_HALF} : Halves{NO_HALF, half}, first_row);
        }
    }
}

// Without the scale.
template <u32 GROUPS>
DEVICE void add_addend(float (&d)[GROUPS][4], const Addend& p, u32 lower, u32 upper, u32 first_row) {
    if (p.form == LOW_RANK_BF16) {
        add_eights<LOW_RANK_BF16, GROUPS>(d, p, lower, upper, first_row);
    } else if (p.form == LOW_RANK_F16) {
        add_eights<LOW_RANK_F16, GROUPS>(d, p, lower, upper, first_row);
    } else {
        add_eights<LOW_RANK_F32, GROUPS>(d, p, lower, upper, first_row);
    }
}

// Has L2 bring the first steps of weights of a tile with these outputs, while launches in front still make ranks.
DEVICE void fetch_ahead(const Addend& p, u32 output) {
    if (output >= p.b.rows) {
        return;
    }
    const Steps steps(p.spans, output / 16);
    if (steps.end - steps.first > FEW_STEPS) {
        return;
    }
    for (u32 step = steps.first; step < steps.end; ++step) {
        if (p.form == LOW_RANK_F32) {
            const u32 half = lane() % 2, row = output / 16 * 16 + half * 8 + lane() / 4;
            if (row < p.b.rows && step * 16 < p.b.inputs) {
                fetch_to_l2((const float*)p.b.data + (u64)row * p.b.inputs + step * 16);
            }
        } else {
            fetch_to_l2(StepWeights<LOW_RANK_BF16>::place(p.b, output / 16, step));
        }
    }
}

}  // namespace brasa
