// y = residual + (s ∘ x·Aᵀ)·Bᵀ of few rows, each of which uses some ranks: those of its own adapters, of all that a bank has. Ranks with s = 0 count for nothing,
// and weights of ranks that no row uses are not read. A and B are in tiles of 16-bit floats, or dense rows of f32; x is floats, which may be normed, or halves in
// panels (panels.cuh).
//
// ranks_of_rows_<format>: s ∘ x·Aᵀ, in parts of 4,096 inputs. Grid: x: tiles of A for each part; y: rows; blocks of 512 threads, of which each warp has every
// sixteenth sub. A block reads 128 KiB of weights, all of which it asks for before x (256 of f32, and half of them).
// add_ranks_<format>: y. Grid: x: as many tiles of B as a block has warps; y: groups of eight rows. A block brings the ranks of its rows to shared memory; for
// each sixteen of them it knows which rows use some. Bound by what these few bytes wait for, and by memory where there are many tiles.
// chosen_ranks: s ∘ narrow, for many rows, whose products are those of other kernels. Grid: one thread an element, blocks of 256.
//
// A row's sums depend on K and on its own ranks alone.
#include "formats.cuh"
#include "panels.cuh"
#include "subs.cuh"

static const u32 RANK_WARPS = 16;
static const u32 PART_SUBS = 64;
static const u32 ROWS_TOGETHER = 8;

// A lane's 32 weights of a sub: those that Sub says.
template <u32 FORMAT>
struct TiledWeights {
    Sub<FORMAT> sub;

    DEVICE void load(const LowRankMatrix& m, u32 tile, u32 number) {
        const u32 bytes = brasa::geometry(FORMAT).sub_bytes;
        sub.load(nullptr, m.data + ((u64)tile * m.subs + number) * bytes, lane());
    }
    DEVICE void codes(u32 step, float (&w)[2][4]) const { sub.codes(step, w); }
};

struct DenseWeights {
    Floats2 pairs[4][2][2];

    DEVICE void load(const LowRankMatrix& m, u32 tile, u32 number) {
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            const u32 row = tile * 16 + half * 8 + lane() / 4;
#pragma unroll
            for (u32 i = 0; i < 8; ++i) {
                const u32 k = number * 64 + i * 8 + lane() % 4 * 2;
                Floats2& pair = pairs[i / 2][half][i % 2];
                pair = {{0.0f, 0.0f}};
                if (row < m.rows && k < m.inputs) {
                    pair = *(const Floats2*)((const float*)m.data + (u64)row * m.inputs + k);
                }
            }
        }
    }
    DEVICE void codes(u32 step, float (&w)[2][4]) const {
#pragma unroll
        for (u32 i = 0; i < 8; ++i) {
            w[i / 4][i % 4] = pairs[step][i / 4][i % 4 / 2].at[i % 2];
        }
    }
};

// The sum of the four lanes of an output.
DEVICE float sum_of_output(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// The row's inputs of a part, to shared memory; those in panels lack the row's power of two, which is returned.
DEVICE float stage_part(const LowRankRowsParams& p, u32 row, u32 part, float* to, float* scratch) {
    const u32 inputs = p.a.inputs, begin = part * PART_SUBS * 64, i = threadIdx.x * 8, k = begin + i;
    if (p.panels != nullptr) {
        Halves8 halves = {};
        if (k < inputs) {
            halves = *(const Halves8*)panel_piece(p.panels, p.panel_subs, row, k);
        }
#pragma unroll
        for (u32 j = 0; j < 8; ++j) {
            to[i + j] = half_to_float((unsigned short)(halves.at[j / 2] >> j % 2 * 16));
        }
        return p.row_scale[row];
    }
    const float* x = row_of(p.x, row);
    float scale = 1.0f;
    if (p.norm.is_there) {
        const bool aligned = inputs % 4 == 0 && (u64)x % 16 == 0;
        float squares = 0.0f;
        for (u32 j = threadIdx.x * 4; j < inputs; j += blockDim.x * 4) {
            const Floats4 values = four(x, j, inputs, aligned);
#pragma unroll
            for (u32 e = 0; e < 4; ++e) {
                squares = fmaf(values.at[e], values.at[e], squares);
            }
        }
        scale = 1.0f / sqrtf(block_sum(squares, scratch) / (float)inputs + p.norm.eps);
    }
    for (u32 j = threadIdx.x; j < PART_SUBS * 64; j += blockDim.x) {
        float value = begin + j < inputs ? x[begin + j] : 0.0f;
        if (p.norm.is_there && begin + j < inputs) {
            value *= p.norm.weight == nullptr ? scale : scale * p.norm.weight[begin + j];
        }
        to[j] = value;
    }
    return 1.0f;
}

// AT_ONCE: subs of a warp that are asked for together.
template <class Weights, u32 AT_ONCE>
DEVICE void ranks_of_rows(const LowRankRowsParams& p) {
    __shared__ Floats2 staged[PART_SUBS * 32];
    __shared__ float scratch[32], sums[RANK_WARPS][16];
    float* x = (float*)staged;
    const u32 tiles = (p.a.rows + 15) / 16, tile = blockIdx.x % tiles, part = blockIdx.x / tiles, row = blockIdx.y;
    const u32 rank = tile * 16 + lane() % 16;
    const float factor = rank < p.a.rows ? row_of(p.factors, row)[rank] : 0.0f;
    float* result = p.partial + ((u64)part * p.rows + row) * p.a.rows + rank;
    if (warp_max(factor == 0.0f ? 0.0f : 1.0f) == 0.0f) {
        if (threadIdx.x < 16 && rank < p.a.rows) {
            *result = 0.0f;
        }
        return;
    }
    float lower = 0.0f, upper = 0.0f, scale = 1.0f;
    const u32 first = part * PART_SUBS + warp(), last = p.a.subs - 1;
#pragma unroll
    for (u32 begin = 0; begin < PART_SUBS / RANK_WARPS; begin += AT_ONCE) {
        Weights weights[AT_ONCE];
#pragma unroll
        for (u32 j = 0; j < AT_ONCE; ++j) {
            const u32 sub = first + (begin + j) * RANK_WARPS;
            weights[j].load(p.a, tile, sub < last ? sub : last);
        }
        if (begin == 0) {
            scale = stage_part(p, row, part, x, scratch);
            __syncthreads();
        }
#pragma unroll
        for (u32 j = 0; j < AT_ONCE; ++j) {
            const u32 place = warp() + (begin + j) * RANK_WARPS;
            if (part * PART_SUBS + place > last) {
                continue;
            }
#pragma unroll
            for (u32 step = 0; step < 4; ++step) {
                const float* from = x + place * 64 + step * 16 + lane() % 4 * 2;
                const Floats2 a = *(const Floats2*)from, b = *(const Floats2*)(from + 8);
                float w[2][4];
                weights[j].codes(step, w);
                lower = fmaf(b.at[1], w[0][3], fmaf(b.at[0], w[0][2], fmaf(a.at[1], w[0][1], fmaf(a.at[0], w[0][0], lower))));
                upper = fmaf(b.at[1], w[1][3], fmaf(b.at[0], w[1][2], fmaf(a.at[1], w[1][1], fmaf(a.at[0], w[1][0], upper))));
            }
        }
    }
    lower = sum_of_output(lower);
    upper = sum_of_output(upper);
    if (lane() % 4 == 0) {
        sums[warp()][lane() / 4] = lower;
        sums[warp()][8 + lane() / 4] = upper;
    }
    __syncthreads();
    if (threadIdx.x < 16 && rank < p.a.rows) {
        float sum = 0.0f;
        for (u32 w = 0; w < RANK_WARPS; ++w) {
            sum += sums[w][threadIdx.x];
        }
        *result = factor == 0.0f ? 0.0f : sum * (p.a.factor * scale) * factor;
    }
}

// The ranks of eight rows to shared memory, and for each sixteen of a row whether it uses some.
DEVICE void gather_ranks(const LowRankRowsParams& p, u32 first, u32 width, float* products, u8* users) {
    const u32 ranks = p.a.rows, parts = (p.a.subs + PART_SUBS - 1) / PART_SUBS, quads = width / 4, all = ROWS_TOGETHER * quads;
    const u32 AT_ONCE = 4;
    for (u32 begin = threadIdx.x; begin < all; begin += AT_ONCE * blockDim.x) {
        Floats4 sums[AT_ONCE];
#pragma unroll
        for (u32 j = 0; j < AT_ONCE; ++j) {
            const u32 i = begin + j * blockDim.x, row = first + i / quads, rank = i % quads * 4;
            sums[j] = {{0.0f, 0.0f, 0.0f, 0.0f}};
            if (i < all && row < p.rows && rank < ranks) {
                sums[j] = *(const Floats4*)(p.partial + (u64)row * ranks + rank);
            }
        }
        for (u32 part = 1; part < parts; ++part) {
            Floats4 more[AT_ONCE];
#pragma unroll
            for (u32 j = 0; j < AT_ONCE; ++j) {
                const u32 i = begin + j * blockDim.x, row = first + i / quads, rank = i % quads * 4;
                more[j] = {{0.0f, 0.0f, 0.0f, 0.0f}};
                if (i < all && row < p.rows && rank < ranks) {
                    more[j] = *(const Floats4*)(p.partial + ((u64)part * p.rows + row) * ranks + rank);
                }
            }
#pragma unroll
            for (u32 j = 0; j < AT_ONCE; ++j) {
#pragma unroll
                for (u32 e = 0; e < 4; ++e) {
                    sums[j].at[e] += more[j].at[e];
                }
            }
        }
#pragma unroll
        for (u32 j = 0; j < AT_ONCE; ++j) {
            const u32 i = begin + j * blockDim.x;
            // A warp has quads of one row's sixteens: `all` is a multiple of 128.
            if (i >= all) {
                break;
            }
            *(Floats4*)(products + i * 4) = sums[j];
            u32 used = sums[j].at[0] != 0.0f || sums[j].at[1] != 0.0f || sums[j].at[2] != 0.0f || sums[j].at[3] != 0.0f;
            used |= __shfl_xor_sync(0xffffffffu, used, 1);
            used |= __shfl_xor_sync(0xffffffffu, used, 2);
            if (i % 4 == 0) {
                users[i % quads / 4 * ROWS_TOGETHER + i / quads] = (u8)used;
            }
        }
    }
}

template <class Weights>
DEVICE void add_ranks(const LowRankRowsParams& p) {
    DYNAMIC_SHARED(memory);
    const u32 width = p.b.subs * 64, warps = blockDim.x / 32, tile = blockIdx.x * warps + warp(), t = lane() % 4;
    float* products = memory;
    u8* users = (u8*)(memory + ROWS_TOGETHER * width);
    for (u32 first = blockIdx.y * ROWS_TOGETHER; first < p.rows; first += gridDim.y * ROWS_TOGETHER) {
        __syncthreads();
        gather_ranks(p, first, width, products, users);
        __syncthreads();
        if (tile * 16 >= p.b.rows) {
            continue;
        }
        float residual[2][ROWS_TOGETHER], sums[2][ROWS_TOGETHER] = {};
#pragma unroll
        for (u32 r = 0; r < ROWS_TOGETHER; ++r) {
#pragma unroll
            for (u32 half = 0; half < 2; ++half) {
                const u32 output = tile * 16 + half * 8 + lane() / 4, row = first + r;
                residual[half][r] = t == 0 && row < p.rows && output < p.b.rows ? row_of(p.residual, row)[output] : 0.0f;
            }
        }
        auto users_of = [&](u32 step) { return *(const Words2*)(users + step * ROWS_TOGETHER); };
        auto next_used = [&](u32 sub) {
            for (; sub < p.b.subs; ++sub) {
                u32 any = 0;
#pragma unroll
                for (u32 step = 0; step < 4; ++step) {
                    const Words2 words = users_of(sub * 4 + step);
                    any |= words.at[0] | words.at[1];
                }
                if (any != 0) {
                    break;
                }
            }
            return sub;
        };
        Weights now, next;
        u32 sub = next_used(0);
        if (sub < p.b.subs) {
            now.load(p.b, tile, sub);
        }
        while (sub < p.b.subs) {
            const u32 following = next_used(sub + 1);
            next.load(p.b, tile, following < p.b.subs ? following : sub);
#pragma unroll
            for (u32 step = 0; step < 4; ++step) {
                const Words2 of_step = users_of(sub * 4 + step);
                if ((of_step.at[0] | of_step.at[1]) == 0) {
                    continue;
                }
                float w[2][4];
                now.codes(step, w);
#pragma unroll
                for (u32 r = 0; r < ROWS_TOGETHER; ++r) {
                    if (of_step.at[r / 4] >> r % 4 * 8 & 1) {
                        const float* from = products + r * width + sub * 64 + step * 16 + t * 2;
                        const Floats2 a = *(const Floats2*)from, b = *(const Floats2*)(from + 8);
#pragma unroll
                        for (u32 half = 0; half < 2; ++half) {
                            float sum = sums[half][r];
                            sum = fmaf(a.at[0], w[half][0], sum);
                            sum = fmaf(a.at[1], w[half][1], sum);
                            sum = fmaf(b.at[0], w[half][2], sum);
                            sums[half][r] = fmaf(b.at[1], w[half][3], sum);
                        }
                    }
                }
            }
            now = next;
            sub = following;
        }
#pragma unroll
        for (u32 r = 0; r < ROWS_TOGETHER; ++r) {
#pragma unroll
            for (u32 half = 0; half < 2; ++half) {
                const float sum = sum_of_output(sums[half][r]);
                const u32 output = tile * 16 + half * 8 + lane() / 4, row = first + r;
                if (t == 0 && row < p.rows && output < p.b.rows) {
                    p.y[(u64)row * p.b.rows + output] = residual[half][r] + sum * p.b.factor;
                }
            }
        }
    }
}

#define BRASA_LOW_RANK_ROWS(name, Weights, AT_ONCE)                                                                            \
    KERNEL_WITHIN(__launch_bounds__(512), ranks_of_rows_##name, LowRankRowsParams) { ranks_of_rows<Weights, AT_ONCE>(p); } \
    KERNEL_WITHIN(__launch_bounds__(256), add_ranks_##name, LowRankRowsParams) { add_ranks<Weights>(p); }
BRASA_LOW_RANK_ROWS(f32, DenseWeights, 2)
BRASA_LOW_RANK_ROWS(f16, TiledWeights<brasa::F16>, 4)
BRASA_LOW_RANK_ROWS(bf16, TiledWeights<brasa::BF16>, 4)

KERNEL(chosen_ranks, ChosenRanksParams) {
    const u64 i = thread_number();
    const u32 ranks = p.factors.width;
    if (i >= (u64)p.rows * ranks) {
        return;
    }
    const float factor = row_of(p.factors, (u32)(i / ranks))[i % ranks];
    p.y[i] = factor == 0.0f ? 0.0f : p.narrow[i] * factor;
}
