// y = residual + (s ∘ x·Aᵀ)·Bᵀ of few rows, each of which uses some ranks: those of its own adapters, of all that a bank has. Ranks with s = 0 count for
// nothing. A and B are in tiles of 16-bit floats, or dense rows of f32; x is floats, which may be normed, or halves in panels (panels.cuh).
//
// ranks_of_rows_<format>: s ∘ x·Aᵀ, in parts of 2,048 inputs, of up to 32 rows; and which rows use some of each sixteen ranks. Grid: tiles of A for each part;
// blocks of 512 threads, of which each warp has every sixteenth sub. A block reads 64 KiB of weights (128 of f32) once for all rows, and multiplies those rows
// that use some of its ranks. Of a small bank it asks for them while the launch in front still makes x; of a large one where it has seen that a row uses some.
// add_ranks: y, of the ranks. Grid: x: as many tiles of B as a block has warps; y: groups of eight rows. Products of up to sixteen rows add the ranks'
// themselves (low_rank_addend.cuh).
// chosen_ranks: s ∘ narrow, for many rows, whose products are those of other kernels. Grid: one thread an element, blocks of 256.
// rank_panels: the same as halves in panels, of which products of many rows read their tails (../hopper/dense.cuh). Each row is divided by a power of two of its own; by
// what power of two that of its x is larger goes to `ratios`, within bounds that keep sums finite. Grid: a block a row, eight ranks a thread and turn.
//
// A row's sums depend on K and on its own ranks alone.
#include "formats.cuh"
#include "low_rank_addend.cuh"
#include "panels.cuh"
#include "subs.cuh"

static const u32 RANK_WARPS = 16;
static const u32 PART_SUBS = 32;
static const u32 ROWS_TOGETHER = 8;
static const u32 MOST_ROWS = 32;

// A lane's 32 weights of a sub: those that Sub says.
template <u32 FORMAT>
struct TiledWeights {
    Sub<FORMAT> sub;

    DEVICE void load(const LowRankMatrix& m, u32 tile, u32 number) {
        const u32 bytes = brasa::geometry(FORMAT).sub_bytes;
        sub.load(nullptr, m.data + ((u64)tile * m.subs + number) * bytes, lane());
    }
    DEVICE void codes(u32 step, float (&w)[2][4]) const { sub.codes(step, w); }
    // Keeps the compiler from decoding all codes ahead, which takes more registers than there are.
    DEVICE void stay() {
#pragma unroll
        for (u32 i = 0; i < 16; ++i) {
            keep(sub.words[i / 4].at[i % 4]);
        }
    }
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
    DEVICE void stay() {}
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

// What the norm multiplies the row by, by all threads of a block.
DEVICE float scale_of_norm(const LowRankRowsParams& p, u32 row, float* scratch) {
    const float* x = row_of(p.x, row);
    float squares = 0.0f;
    for (u32 k = threadIdx.x; k < p.a.inputs; k += blockDim.x) {
        squares = fmaf(x[k], x[k], squares);
    }
    return 1.0f / sqrtf(block_sum(squares, scratch) / (float)p.a.inputs + p.norm.eps);
}

// The factors of a tile's ranks for all rows.
struct TileFactors {
    float of[MOST_ROWS][16];
    u32 of_warps[RANK_WARPS];

    // Reads them by the block's 512 threads. Returns a bit for each row that uses some.
    DEVICE u32 gather(const LowRankRowsParams& p, u32 tile) {
        const u32 row = threadIdx.x / 16, rank = tile * 16 + threadIdx.x % 16;
        const float factor = row < p.addend.rows && rank < p.a.rows ? row_of(p.factors, row)[rank] : 0.0f;
        of[row][threadIdx.x % 16] = factor;
        const u32 used = __ballot_sync(0xffffffffu, factor != 0.0f);
        if (lane() == 0) {
            of_warps[warp()] = (u32)((used & 0xffffu) != 0) | (u32)(used >> 16 != 0) << 1;
        }
        __syncthreads();
        u32 users = 0;
        for (u32 w = 0; w < RANK_WARPS; ++w) {
            users |= of_warps[w] << 2 * w;
        }
        return users;
    }
};

// A warp's products of a sub with a row, of which `pair` gives inputs k and k + 1: of outputs g and g + 8.
template <class Weights, class Pair>
DEVICE void add_products(const Weights& weights, u32 sub, Pair pair, float& lower, float& upper) {
    Floats2 x[4][2];
#pragma unroll
    for (u32 step = 0; step < 4; ++step) {
        const u32 k = sub * 64 + step * 16 + lane() % 4 * 2;
        x[step][0] = pair(k);
        x[step][1] = pair(k + 8);
    }
#pragma unroll
    for (u32 step = 0; step < 4; ++step) {
        const Floats2 a = x[step][0], b = x[step][1];
        float w[2][4];
        weights.codes(step, w);
        lower = fmaf(b.at[1], w[0][3], fmaf(b.at[0], w[0][2], fmaf(a.at[1], w[0][1], fmaf(a.at[0], w[0][0], lower))));
        upper = fmaf(b.at[1], w[1][3], fmaf(b.at[0], w[1][2], fmaf(a.at[1], w[1][1], fmaf(a.at[0], w[1][0], upper))));
    }
}

template <class Weights>
DEVICE void ranks_of_rows(const LowRankRowsParams& p) {
    __shared__ TileFactors factors;
    __shared__ float scratch[32], sums[ROWS_TOGETHER][RANK_WARPS][16], scales[ROWS_TOGETHER];
    const u32 OWN = PART_SUBS / RANK_WARPS;
    const u32 tiles = (p.a.rows + 15) / 16, tile = blockIdx.x % tiles, part = blockIdx.x / tiles, last = p.a.subs - 1;
    auto sub_of = [&](u32 number) { return part * PART_SUBS + number * RANK_WARPS + warp(); };
    Weights weights[OWN];
    auto load = [&] {
#pragma unroll
        for (u32 j = 0; j < OWN; ++j) {
            const u32 sub = sub_of(j);
            weights[j].load(p.a, tile, sub < last ? sub : last);
        }
    };
    if (p.is_small) {
        load();
    }
    wait_for_launches();
    if (p.addend.x_ready != nullptr && blockIdx.x == 0 && threadIdx.x == 0) {
        store_release(p.addend.x_ready, 1);
    }
    const u32 users = factors.gather(p, tile);
    if (part == 0 && threadIdx.x == 0) {
        p.addend.users[tile] = users;
    }
    if (!p.is_small && users != 0) {
        load();
    }
    for (u32 first = 0; first < p.addend.rows; first += ROWS_TOGETHER) {
#pragma unroll 1
        for (u32 r = 0; r < ROWS_TOGETHER; ++r) {
            const u32 row = first + r;
            if ((users >> row & 1) == 0) {
                continue;
            }
            float lower = 0.0f, upper = 0.0f;
            float scale = p.panels != nullptr ? p.row_scale[row] : 1.0f;  // asked for ahead
            const float* x = row_of(p.x, row);
            const float* of_norm = p.norm.is_there ? p.norm.weight : nullptr;
#pragma unroll
            for (u32 j = 0; j < OWN; ++j) {
                const u32 sub = sub_of(j);
                if (sub > last) {
                    continue;
                }
                weights[j].stay();
                if (p.panels != nullptr) {
                    auto pair = [&](u32 k) {
                        const u32 two = *(const u32*)(panel_piece(p.panels, p.panel_subs, row, k) + k % 8 * 2);
                        return Floats2{{half_to_float((unsigned short)two), half_to_float((unsigned short)(two >> 16))}};
                    };
                    add_products(weights[j], sub, pair, lower, upper);
                } else {
                    auto pair = [&](u32 k) {
                        Floats2 two = {{0.0f, 0.0f}};
                        if (k < p.a.inputs) {
                            two = {{x[k], x[k + 1]}};
                            if (of_norm != nullptr) {
                                two = {{two.at[0] * of_norm[k], two.at[1] * of_norm[k + 1]}};
                            }
                        }
                        return two;
                    };
                    add_products(weights[j], sub, pair, lower, upper);
                }
            }
            lower = sum_of_output(lower);
            upper = sum_of_output(upper);
            if (lane() % 4 == 0) {
                sums[r][warp()][lane() / 4] = lower;
                sums[r][warp()][8 + lane() / 4] = upper;
            }
            if (p.panels == nullptr && p.norm.is_there) {
                scale = scale_of_norm(p, row, scratch);
            }
            if (threadIdx.x == 0) {
                scales[r] = scale;
            }
        }
        __syncthreads();
        const u32 r = threadIdx.x / 16, row = first + r, place = threadIdx.x % 16, rank = tile * 16 + place;
        if (r < ROWS_TOGETHER && row < p.addend.rows && rank < p.a.rows) {
            const float factor = factors.of[row][place];
            float sum = 0.0f;
            if (factor != 0.0f) {
#pragma unroll
                for (u32 w = 0; w < RANK_WARPS; ++w) {
                    sum += sums[r][w][place];
                }
                sum = sum * (p.a.factor * scales[r]) * factor;
            }
            p.addend.ranks[((u64)part * p.addend.rows + row) * p.a.rows + rank] = sum;
        }
        __syncthreads();
    }
}

// A multiprocessor keeps room for a block of the product behind, which asks for its own weights meanwhile; but for A in f32, of which a lane has twice as much.
#define BRASA_RANKS_OF_ROWS(name, Weights, BLOCKS) \
    KERNEL_AHEAD(__launch_bounds__(512, BLOCKS), ranks_of_rows_##name, LowRankRowsParams) { ranks_of_rows<Weights>(p); }
BRASA_RANKS_OF_ROWS(f32, DenseWeights, 1)
BRASA_RANKS_OF_ROWS(f16, TiledWeights<brasa::F16>, 2)
BRASA_RANKS_OF_ROWS(bf16, TiledWeights<brasa::BF16>, 2)

KERNEL_AHEAD(__launch_bounds__(256, 2), add_ranks, LowRankRowsParams) {
    __shared__ brasa::BatchRanks ranks;
    const u32 warps = blockDim.x / 32, first_tile = blockIdx.x * warps, tile = first_tile + warp();
    auto wait = [] { __syncthreads(); };
    auto ready = [] { wait_for_launches(); };
    const brasa::Crew<decltype(wait), decltype(ready)> crew = {warp(), warps, first_tile, wait, ready};
    for (u32 first = blockIdx.y * ROWS_TOGETHER; first < p.addend.rows; first += gridDim.y * ROWS_TOGETHER) {
        float sums[1][4] = {};
        brasa::add_addend<1>(sums, p.addend, first, crew, ranks);
        ready();
#pragma unroll
        for (u32 c = 0; c < 4; ++c) {
            const u32 output = tile * 16 + c / 2 * 8 + lane() / 4, row = first + lane() % 4 * 2 + c % 2;
            if (row < p.addend.rows && output < p.addend.b.rows) {
                p.y[(u64)row * p.addend.b.rows + output] = row_of(p.residual, row)[output] + sums[0][c] * p.addend.scale;
            }
        }
    }
}

KERNEL(chosen_ranks, ChosenRanksParams) {
    const u64 i = thread_number();
    const u32 ranks = p.factors.width;
    if (i >= (u64)p.rows * ranks) {
        return;
    }
    const float factor = row_of(p.factors, (u32)(i / ranks))[i % ranks];
    p.y[i] = factor == 0.0f ? 0.0f : p.narrow[i] * factor;
}

KERNEL(rank_panels, RankPanelsParams) {
    __shared__ float scratch[32];
    const u32 row = blockIdx.x, ranks = p.factors.width;
    const float* factors = row_of(p.factors, row);
    const float* narrow = p.narrow + (u64)row * ranks;
    auto load = [&](u32 first, float (&v)[8]) {
#pragma unroll
        for (u32 i = 0; i < 8; ++i) {
            const float factor = first + i < ranks ? factors[first + i] : 0.0f;
            v[i] = factor == 0.0f ? 0.0f : narrow[first + i] * factor;
        }
    };
    float largest = 0.0f, v[8];
    for (u32 k = threadIdx.x * 8; k < ranks; k += blockDim.x * 8) {
        load(k, v);
#pragma unroll
        for (u32 i = 0; i < 8; ++i) {
            largest = fmaxf(largest, fabsf(v[i]));
        }
    }
    largest = block_max(largest, scratch);
    const float of_x = p.row_scale[row], up = largest == 0.0f ? of_x : fminf(fmaxf(RowScale(largest).up, of_x * power_of_two(-24)), of_x * power_of_two(60));
    if (threadIdx.x == 0) {
        p.ratios[row] = of_x / up;
    }
    for (u32 k = threadIdx.x * 8; k < p.subs * 64; k += blockDim.x * 8) {
        load(k, v);
#pragma unroll
        for (u32 i = 0; i < 8; ++i) {
            v[i] *= 1.0f / up;
        }
        store_halves(panel_piece(p.panels, p.subs, row, k), v);
    }
}
