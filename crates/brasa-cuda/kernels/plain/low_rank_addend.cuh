// Low-rank products of few rows, added to sums of warps: d += ranks · Bᵀ on tensor cores. With weights of BF16 a rank is the sum of two such numbers, 2^-18 apart from it;
// otherwise operands are numbers of tf32: a rank is the sum of two of them, a weight of F16 is one, and of F32 two (tensor.cuh).
//
// A warp makes a tile of outputs of up to sixteen rows, in the fragments of mma: d[j][c] is output g + 8·(c/2) of row 8j + 2t + c%2. Sixteen ranks are a *step*, a
// quarter of a tile's sub. Where tiles have zeros but in some subs (a span), others are not read, nor are steps that no row uses where there are many.
//
// Warps of a *crew* take steps together, in batches. Each asks for its own weights of a batch, of the first one before ranks are there; and they share in adding the
// parts of its ranks, which come to all of them through shared memory. So a batch takes as long as one load, which is some five microseconds behind the weights that a
// product asks for in the same multiprocessor.
#pragma once

#include "tensor.cuh"

namespace brasa {

// Most steps of a span that are read without a look at who uses them.
static const u32 FEW_STEPS = 8;
// Most steps of a batch.
static const u32 BATCH_STEPS = 8;

// Warps that add together, each a tile, from `first` on: which of them this is, a barrier of them all, and what waits for ranks, as often as it is called.
template <class Wait, class Ready>
struct Crew {
    u32 warp, warps, first;
    Wait wait;
    Ready ready;
};

// The ranks of eight rows in a batch: floats; or for weights of BF16, of each lane's four ranks of a step, the upper parts and what they leave. What eight lanes read
// together lies in banks of its own.
struct alignas(16) BatchRanks {
    float of_rows[8][BATCH_STEPS * 16 + 16];
};

// Tiles of B that lie together, and their steps that are not all zero.
struct Span {
    u32 first_tile, tiles_end, first, end;

    DEVICE Span(const LowRankSpans& spans, u32 i)
        : first_tile(i > 0 ? spans.tiles_end[i - 1] : 0), tiles_end(spans.tiles_end[i]), first(spans.first[i] * 4), end(spans.end[i] * 4) {}
    DEVICE bool is_short() const { return end - first <= FEW_STEPS; }
};

// The number of the span with a tile.
DEVICE u32 span_of(const LowRankSpans& spans, u32 tile) {
    u32 i = 0;
    while (i + 1 < LOW_RANK_SPANS && tile >= spans.tiles_end[i]) {
        ++i;
    }
    return i;
}

// Pieces of 64 ranks.
struct Pieces {
    u32 first, end;

    DEVICE Pieces with(const Pieces& others) const { return {first < others.first ? first : others.first, end > others.end ? end : others.end}; }
};

// From the first piece to the last that tiles from `tile` on have not all zero: `first` lies behind `end` where there is none.
DEVICE Pieces pieces_of(const LowRankSpans& spans, u32 tile, u32 count) {
    Pieces all = {0xffffffffu, 0};
#pragma unroll
    for (u32 i = 0; i < LOW_RANK_SPANS; ++i) {
        const bool meets = (i == 0 || spans.tiles_end[i - 1] < tile + count) && spans.tiles_end[i] > tile;
        if (meets && spans.first[i] < spans.end[i]) {
            all = all.with({spans.first[i], spans.end[i]});
        }
    }
    return all;
}

// Steps: the first bits of a window that begins with step `begin`.
struct Batch {
    u32 begin, bits, count;

    DEVICE u32 step(u32 n) const {
        u32 left = bits;
        for (; n > 0; --n) {
            left &= left - 1;
        }
        return begin + __ffs((int)left) - 1;
    }
};

// The steps of a span that are taken, a window of up to 32 at a time.
struct Steps {
    u32 begin, left, next, end;

    DEVICE explicit Steps(const Span& span) : begin(span.first), left(0), next(span.first), end(span.end) {
        if (span.is_short()) {
            left = (1u << (end - begin)) - 1;
            next = end;
        }
    }
    // Some more of them; none behind the last.
    template <class Ready>
    DEVICE Batch take(u32 most, const Addend& p, Ready ready) {
        while (left == 0 && next < end) {
            ready();
            begin = next;
            next += 32;
            const u32 step = begin + lane();
            const u32 users = step < end && step * 16 < p.b.inputs ? p.users[step] : 0;
            left = __ballot_sync(0xffffffffu, users != 0);
        }
        Batch batch = {begin, left, 0};
        for (; left != 0 && batch.count < most; ++batch.count) {
            left &= left - 1;
        }
        return batch;
    }
};

// Where a lane finds its 16-bit weights of a step.
DEVICE const Words4* words_of_step(const LowRankMatrix& b, u32 tile, u32 step) {
    return (const Words4*)(b.data + ((u64)tile * b.subs + step / 4) * 2048 + step % 4 * 512) + lane();
}

// A lane's weights of a step: inputs 2t and 2t+1 of outputs g and g + 8, then inputs 2t+8 and 2t+9 of these.
template <u32 FORM>
struct StepWeights {
    static const u32 AT_ONCE = 8;
    Words4 words;

    DEVICE void load(const LowRankMatrix& b, u32 tile, u32 step) { words = *words_of_step(b, tile, step); }
    DEVICE float at(u32 half, u32 pair, u32 i) const { return half_to_float((unsigned short)(words.at[half + 2 * pair] >> i * 16)); }
};
template <>
struct StepWeights<LOW_RANK_F32> {
    static const u32 AT_ONCE = 4;
    Floats2 pairs[2][2];

    DEVICE void load(const LowRankMatrix& b, u32 tile, u32 step) {
#pragma unroll
        for (u32 e = 0; e < 4; ++e) {
            const u32 row = tile * 16 + e / 2 * 8 + lane() / 4, k = step * 16 + e % 2 * 8 + lane() % 4 * 2;
            pairs[e / 2][e % 2] = {{0.0f, 0.0f}};
            if (row < b.rows && k < b.inputs) {
                pairs[e / 2][e % 2] = *(const Floats2*)((const float*)b.data + (u64)row * b.inputs + k);
            }
        }
    }
    DEVICE float at(u32 half, u32 pair, u32 i) const { return pairs[half][pair].at[i]; }
};

// Two numbers of BF16 in a word, and what a number is above the upper half of a word.
DEVICE u32 pack_bf16(float low, float high) { return float_to_bf16(low) | (u32)float_to_bf16(high) << 16; }
DEVICE float rest_of_bf16(float x, u32 word) { return x - __uint_as_float(word & 0xffff0000u); }

// Adds the parts of a batch's ranks of eight rows from `first_row` on, by the warps of a crew. STEPS, MORE: steps, and parts but for the first, of which a lane asks for ranks
// together.
template <u32 FORM, u32 STEPS, u32 MORE>
DEVICE void gather_ranks(BatchRanks& to, const Addend& p, const Batch& batch, u32 first_row, u32 warp, u32 warps) {
    const u32 t = lane() % 4, row = first_row + lane() / 4;
#pragma unroll 1
    for (u32 first = warp; first < batch.count; first += warps * STEPS) {
        u32 inputs[STEPS];
#pragma unroll
        for (u32 j = 0; j < STEPS; ++j) {
            const u32 n = first + j * warps;
            inputs[j] = n < batch.count ? batch.step(n) * 16 + t * 2 : p.b.inputs;
        }
        auto load = [&](Floats2(&ranks)[STEPS][2], u32 part) {
            const float* from = p.ranks + ((u64)part * p.rows + row) * p.b.inputs;
#pragma unroll
            for (u32 e = 0; e < STEPS * 2; ++e) {
                const u32 k = inputs[e / 2] + e % 2 * 8;
                ranks[e / 2][e % 2] = {{0.0f, 0.0f}};
                if (row < p.rows && part < p.parts && k < p.b.inputs) {
                    ranks[e / 2][e % 2] = *(const Floats2*)(from + k);
                }
            }
        };
        Floats2 sums[STEPS][2];
        load(sums, 0);
#pragma unroll 1
        for (u32 part = 1; part < p.parts; part += MORE) {
            Floats2 more[MORE][STEPS][2];
#pragma unroll
            for (u32 i = 0; i < MORE; ++i) {
                load(more[i], part + i);
            }
#pragma unroll
            for (u32 i = 0; i < MORE; ++i) {
#pragma unroll
                for (u32 e = 0; e < STEPS * 4; ++e) {
                    sums[e / 4][e / 2 % 2].at[e % 2] += more[i][e / 4][e / 2 % 2].at[e % 2];
                }
            }
        }
#pragma unroll
        for (u32 j = 0; j < STEPS; ++j) {
            const u32 n = first + j * warps;
            if (n >= batch.count) {
                continue;
            }
            float* there = &to.of_rows[lane() / 4][n * 16];
            const Floats2 lower = sums[j][0], upper = sums[j][1];
            if constexpr (FORM == LOW_RANK_BF16) {
                Words4 words = {{pack_bf16(lower.at[0], lower.at[1]), pack_bf16(upper.at[0], upper.at[1]), 0, 0}};
                words.at[2] = pack_bf16(rest_of_bf16(lower.at[0], words.at[0] << 16), rest_of_bf16(lower.at[1], words.at[0]));
                words.at[3] = pack_bf16(rest_of_bf16(upper.at[0], words.at[1] << 16), rest_of_bf16(upper.at[1], words.at[1]));
                *(Words4*)(there + t * 4) = words;
            } else {
                *(Floats2*)(there + t * 2) = lower;
                *(Floats2*)(there + 8 + t * 2) = upper;
            }
        }
    }
}

// sums[0] += the products of eight rows with a step's weights; sums[1] those of the ranks' second parts. `ranks`: those of the lane's row.
template <u32 FORM>
DEVICE void add_step(float (&sums)[2][4], const StepWeights<FORM>& weights, const float* ranks) {
    const u32 t = lane() % 4;
    if constexpr (FORM == LOW_RANK_BF16) {
        const Words4 b = *(const Words4*)(ranks + t * 4);
        mma_bf16(sums[0], weights.words.at, b.at[0], b.at[1]);
        mma_bf16(sums[1], weights.words.at, b.at[2], b.at[3]);
    } else {
#pragma unroll
        for (u32 pair = 0; pair < 2; ++pair) {
            Parts<4> a;
#pragma unroll
            for (u32 e = 0; e < 4; ++e) {
                a.set(e, weights.at(e % 2, pair, e / 2));
            }
            const Floats2 two = *(const Floats2*)(ranks + pair * 8 + t * 2);
            Parts<2> b;
            b.set(0, two.at[0]);
            b.set(1, two.at[1]);
            if (FORM == LOW_RANK_F32) {
                mma_parts(sums[0], a, b);
            } else {
                mma_tf32(sums[0], a.upper, b.upper[0], b.upper[1]);
                mma_tf32(sums[1], a.upper, b.rest[0], b.rest[1]);
            }
        }
    }
}

template <u32 FORM, u32 GROUPS, class Wait, class Ready>
DEVICE void add_spans(float (&d)[GROUPS][4], const Addend& p, u32 first_row, const Crew<Wait, Ready>& crew, BatchRanks& ranks) {
    const u32 AT_ONCE = StepWeights<FORM>::AT_ONCE, tile = crew.first + crew.warp, tiles = (p.b.rows + 15) / 16;
    const u32 end = crew.first + crew.warps < tiles ? crew.first + crew.warps : tiles;
#pragma unroll 1
    for (u32 i = 0; i < LOW_RANK_SPANS; ++i) {
        const Span span(p.spans, i);
        if (span.first_tile >= end || span.tiles_end <= crew.first) {
            continue;
        }
        const bool is_there = tile >= span.first_tile && tile < span.tiles_end && tile < tiles;
        Steps steps(span);
#pragma unroll 1
        for (Batch batch = steps.take(AT_ONCE, p, crew.ready); batch.count > 0; batch = steps.take(AT_ONCE, p, crew.ready)) {
            StepWeights<FORM> weights[AT_ONCE];
            u32 left = batch.bits, step = 0;
#pragma unroll
            for (u32 j = 0; j < AT_ONCE; ++j) {  // the last again where there are fewer
                if (j < batch.count) {
                    step = batch.begin + __ffs((int)left) - 1;
                    left &= left - 1;
                }
                weights[j].load(p.b, is_there ? tile : span.first_tile, step);
            }
            crew.ready();
#pragma unroll 1
            for (u32 group = 0; group < GROUPS && first_row + 8 * group < p.rows; ++group) {
                crew.wait();  // ranks that were there are used no more
                if (crew.warps < 4) {
                    gather_ranks<FORM, 4, 1>(ranks, p, batch, first_row + 8 * group, crew.warp, crew.warps);
                } else {
                    gather_ranks<FORM, 2, 3>(ranks, p, batch, first_row + 8 * group, crew.warp, crew.warps);
                }
                crew.wait();
                if (!is_there) {
                    continue;
                }
                float sums[2][4] = {};
#pragma unroll
                for (u32 j = 0; j < AT_ONCE; ++j) {
                    if (j < batch.count) {
                        add_step<FORM>(sums, weights[j], &ranks.of_rows[lane() / 4][j * 16]);
                    }
                }
#pragma unroll
                for (u32 e = 0; e < GROUPS * 4; ++e) {
                    d[e / 4][e % 4] += e / 4 == group ? sums[0][e % 4] + sums[1][e % 4] : 0.0f;
                }
            }
        }
    }
}

// d += of the warp's tile, of as many groups of eight rows from `first_row` on, without the scale. By all warps of a crew.
template <u32 GROUPS, class Wait, class Ready>
DEVICE void add_addend(float (&d)[GROUPS][4], const Addend& p, u32 first_row, const Crew<Wait, Ready>& crew, BatchRanks& ranks) {
    if (p.form == LOW_RANK_BF16) {
        add_spans<LOW_RANK_BF16, GROUPS>(d, p, first_row, crew, ranks);
    } else if (p.form == LOW_RANK_F16) {
        add_spans<LOW_RANK_F16, GROUPS>(d, p, first_row, crew, ranks);
    } else {
        add_spans<LOW_RANK_F32, GROUPS>(d, p, first_row, crew, ranks);
    }
}

// Has L2 bring the first steps of weights of a tile.
DEVICE void fetch_ahead(const Addend& p, u32 tile) {
    const Span span(p.spans, span_of(p.spans, tile));
    if (tile * 16 >= p.b.rows || !span.is_short()) {
        return;
    }
#pragma unroll 1
    for (u32 step = span.first; step < span.end; ++step) {
        if (p.form == LOW_RANK_F32) {
            const u32 row = tile * 16 + lane() % 2 * 8 + lane() / 4;
            if (row < p.b.rows && step * 16 < p.b.inputs) {
                fetch_to_l2((const float*)p.b.data + (u64)row * p.b.inputs + step * 16);
            }
        } else {
            fetch_to_l2(words_of_step(p.b, tile, step));
        }
    }
}

}  // namespace brasa
