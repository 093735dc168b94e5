// Matrix products of many rows: y[M, N] = x[M, K] · W[N, K]ᵀ, f16 on the tensor cores, f32 sums.
//
// Weights are operand A of wgmma, from registers: a warp reads its 16 × 64 piece in fragment order (layout.cuh) from shared memory,
// decodes it in registers whatever its format, and multiplies it with panels of x (operand B, in shared memory). So one
// kernel serves every format, and quantised weights never exist as 16-bit values in memory.
//
// A block makes 64·GROUPS outputs × ROWS rows: GROUPS warpgroups multiply, another copies. Blocks in pairs (a cluster)
// share their rows of x: each copies half of a panel stage to both. K goes by in stages of 64 through a ring; while the tensor cores
// multiply stage k, the warps decode stage k+1.
//
// A *tail* is a product of up to 64 more inputs, those of a low-rank adapter: the panels have a piece more, and its weights are halves of their own,
// which the warps read from memory while the products of the last stage run. Each tile of them has its own power of two, to which the sums are brought
// and brought back.
//
// Kernels of 16 rows with an *addend* add low-rank products of a bank of adapters (../plain/low_rank_addend.cuh), which so come before whatever follows the
// product. A warpgroup of their own computes them beside the products, and those that multiply add them to the sums of the first part of K. (Loads of few bytes
// take several microseconds where the ring asks for all that memory gives: warps that multiply would wait for each.)
//
// Blocks stay and take tiles in turn, rows fastest, so that blocks at work at one time share weights and panels in L2. Where there are
// few tiles, parts of K are tiles of their own, whose sums are added by another kernel.
// Large blocks hand their sums over in shared memory, 32 rows at a time, so that rows are written in whole lines. A lane's own outputs are eight neighbours of a
// row; all blocks write at the same time, and in pieces of 32 bytes products of 4,096 inputs take a tenth longer, those of 2,048 a fifth.
// What rows are scaled by is copied to shared memory when a piece begins: at its end loads wait behind weights that the next launch asks for.
// Needs: K a multiple of 64 (256 for K-quants), N a multiple of 64·GROUPS·CLUSTER or masked at the store. Panels may hold
// anything behind M: products of those rows are dropped.
#pragma once
#include "../plain/low_rank_addend.cuh"
#include "halves.cuh"
#include "overlap.cuh"
#include "wgmma.cuh"

namespace brasa {

__device__ __forceinline__ uint32_t cluster_rank() {
    uint32_t r;
    asm volatile("mov.u32 %0, %cluster_ctarank;" : "=r"(r));
    return r;
}
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\n barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Arrives at the barrier of the same place in block `rank` of the cluster. Nothing was written that others read; with
// `.release.cluster` the compiler puts a fence of all memory before it, which takes longer than the products of a stage.
__device__ __forceinline__ void mbarrier_arrive_at(uint64_t* bar, uint32_t rank) {
    asm volatile("{\n .reg .b32 r;\n mapa.shared::cluster.u32 r, %0, %1;\n mbarrier.arrive.shared::cluster.b64 _, [r];\n}"
                 ::"r"(shared_address(bar)), "r"(rank) : "memory");
}
__device__ __forceinline__ void bulk_load_both(void* to, const void* from, uint32_t bytes, uint64_t* bar) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;"
                 ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(bar)), "h"(uint16_t(3)) : "memory");
}

// Threads of a warpgroup that let a stage go: one, behind products that all of them have waited for. BRASA_EACH_LANE: ring.cuh.
#ifdef BRASA_EACH_LANE
constexpr uint32_t STAGE_LEAVERS = 128;
#else
constexpr uint32_t STAGE_LEAVERS = 1;
#endif

// Barriers of the warpgroup that makes addends, of both it and the one that adds them, and of two warps of the former.
constexpr uint32_t MAKING_ADDENDS = 3, ADDENDS_THERE = 4, ADDENDS_USED = 5, MAKING_HALVES = 6;

template <uint32_t F, int ROWS, int GROUPS, int CLUSTER> struct GemmShape {
    static constexpr uint32_t FORMAT = F;
    static constexpr Geometry G = geometry(F);
    static constexpr uint32_t OUTPUTS = 64 * GROUPS, TILES = OUTPUTS / 16;
    static constexpr uint32_t PIECE = (G.header_bytes + G.sub_bytes + 127) / 128 * 128;  // a tile's header and sub
    static constexpr uint32_t A_BYTES = (TILES * PIECE + 1023) / 1024 * 1024, B_BYTES = ROWS * 128;
    static constexpr uint32_t STAGE = (A_BYTES + B_BYTES + 1023) / 1024 * 1024;
    // Stages that fit beside so many bytes.
    BRASA_BOTH static constexpr uint32_t stages(uint32_t beside) {
        const uint32_t fit = ((GROUPS == 1 ? 112640 : ROWS == 256 ? 228352 : 229376) - beside) / STAGE, most = ROWS == 16 ? 16 : 8;
        return fit > most ? most : fit;
    }
    static constexpr uint32_t PANELS = ROWS < 64 ? 1 : ROWS / 64;  // of a stage, all or a part of one
    static constexpr uint32_t THREADS = 128 * (GROUPS + 1);
};

// The rows of a piece: how many there are, and what their products are multiplied by.
struct PieceRows { const float* scale; float of_all; uint32_t count; };

// Calls `write(row, lower, upper, read(row))` for each of the lane's rows, numbered within the piece, its products scaled. What some rows need
// is read before any of them is written, so that their loads are on their way together.
template <int ROWS, class Read, class Write>
__device__ __forceinline__ void each_row(const PieceRows& rows, const float (&d)[ROWS / 2], uint32_t t, Read read, Write write) {
    constexpr int TOGETHER = ROWS / 4 < 8 ? ROWS / 4 : 8;
#pragma unroll
    for (int begin = 0; begin < ROWS / 4; begin += TOGETHER) {
        if (begin * 4 >= rows.count) return;
        float scale[TOGETHER];
        decltype(read(0u)) before[TOGETHER];
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            const uint32_t row = min(8 * ((begin + i) / 2) + 2 * t + i % 2, rows.count - 1);
            scale[i] = rows.scale[row];
            before[i] = read(row);
        }
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            const int n = (begin + i) / 2 * 4 + i % 2;
            const uint32_t row = 8 * ((begin + i) / 2) + 2 * t + i % 2;
            if (row < rows.count) write(row, d[n] * (scale[i] * rows.of_all), d[n + 2] * (scale[i] * rows.of_all), before[i]);
        }
    }
}

// x · sigmoid(x), as exact as the half that it becomes.
__device__ __forceinline__ float fast_silu(float x) { return x * reciprocal(1.0f + __expf(-x)); }
// 1 / x for a power of two.
__device__ __forceinline__ float inverse_power(float x) { return __uint_as_float((254u << 23) - __float_as_uint(x)); }

// Outputs g and g + 8 of a tile, or parts of their sums. d[4j + c]: output g + 8·(c/2), row 8j + 2t + c%2. `first_row` is a multiple of 64 where
// there are more rows; `gates_scale`: powers of two of the rows' gated products.
template <int ROWS>
__device__ __forceinline__ void write_products(const GemmParams& p, const float (&d)[ROWS / 2], const PieceRows& rows, const float* gates_scale,
                                               uint32_t first_row, uint32_t t, uint32_t tile, uint32_t g, uint32_t split) {
    const Outputs& out = p.out;
    auto nothing = [](uint32_t) { return make_float2(0.0f, 0.0f); };
    if (p.splits > 1) {
        const uint32_t width = p.tiles * 16;
        float* to = p.partial + (uint64_t(split) * p.rows + first_row) * width + tile * 16 + g;
        each_row<ROWS>(rows, d, t, nothing, [&](uint32_t row, float lower, float upper, float2) {
            to[row * width] = lower;
            to[row * width + 8] = upper;
        });
        return;
    }
    const bool dense = out.form == TILES_DENSE;
    const uint32_t i = tile * (dense ? 16 : 8) + g, n = out.lower + i, m = out.upper + i;
    const bool has_lower = i < out.count, has_upper = dense ? i + 8 < out.count : has_lower;
    const float low_bias = out.bias && has_lower ? out.bias[n] : 0.0f, high_bias = out.bias && has_upper ? out.bias[m] : 0.0f;
    if (out.form == TILES_GATED) {
        if (!has_lower) return;
        auto gated = [&](auto act) {
            if (!out.panels) {
                float* y = out.y + uint64_t(first_row) * out.y_width + i;
                each_row<ROWS>(rows, d, t, nothing, [&](uint32_t row, float lower, float upper, float2) {
                    y[row * out.y_width] = act(lower + low_bias) * (upper + high_bias);
                });
                return;
            }
            // Halves for the product behind, where eight outputs are one piece of a row's panel.
            uint8_t* panel = out.panels + (uint64_t(first_row / 64) * out.subs + i / 64) * 8192 + first_row % 64 * 128 + i % 8 * 2;
            auto down = [&](uint32_t row) { return make_float2(inverse_power(gates_scale[row]), 0.0f); };
            each_row<ROWS>(rows, d, t, down, [&](uint32_t row, float lower, float upper, float2 scale) {
                const float value = act(lower + low_bias) * (upper + high_bias) * scale.x;
                *reinterpret_cast<__half*>(panel + row / 64 * (out.subs * 8192) + row % 64 * 128 + ((i % 64 / 8) ^ (row % 8)) * 16) = __float2half_rn(value);
            });
        };
        if (out.function == UNARY_SILU) gated(fast_silu);
        else if (out.function == UNARY_GELU_TANH) gated([](float x) { return 0.5f * x * (1.0f + tanhf(0.7978846f * (x + 0.044715f * x * x * x))); });
        else gated([](float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678f)); });
        return;
    }
    auto residual = [&](uint32_t row) {
        const Rows& r = out.residual;
        if (!r.data) return make_float2(0.0f, 0.0f);
        row += first_row;
        const float* from = r.data + uint64_t(row / r.per) * r.stride + uint64_t(row % r.per) * r.width;
        return make_float2(has_lower ? from[n] : 0.0f, has_upper ? from[m] : 0.0f);
    };
    each_row<ROWS>(rows, d, t, residual, [&](uint32_t row, float lower, float upper, float2 before) {
        float* y = out.y + uint64_t(first_row + row) * out.y_width;
        if (has_lower) y[n] = before.x + (lower + low_bias);
        if (has_upper) y[m] = before.y + (upper + high_bias);
    });
}

// Rows that a group hands over together, and floats between them: a warp's lanes meet in no bank.
constexpr uint32_t HANDED_ROWS = 32, HANDED_STRIDE = 68, HANDED_FLOATS = HANDED_ROWS * HANDED_STRIDE;

// True where outputs are written, and what is added to them is read, in pieces of four.
__device__ __forceinline__ bool hands_over(const GemmParams& p) {
    const Outputs& out = p.out;
    const uint64_t addresses = uint64_t(out.y) | uint64_t(out.bias) | uint64_t(out.residual.data);
    const uint32_t places = out.y_width | out.lower | out.count | (out.form == TILES_SPLIT ? out.upper : 0) | out.residual.stride;
    return p.splits > 1 || (out.form != TILES_GATED && addresses % 16 == 0 && places % 4 == 0 && (!out.residual.data || out.residual.per == 1));
}

// Like write_products, for a group's four tiles from `first_tile` on, by all of its threads.
template <int ROWS>
__device__ __forceinline__ void hand_over(const GemmParams& p, const float (&d)[ROWS / 2], const PieceRows& rows, float* handed, uint32_t first_row, uint32_t first_tile,
                                          uint32_t split, uint32_t group) {
    const Outputs& out = p.out;
    const bool is_part = p.splits > 1, is_split = !is_part && out.form == TILES_SPLIT;
    const uint32_t thread = threadIdx.x % 128, warp = thread / 32, g = thread % 32 / 4, t = thread % 4;
    // What the thread hands over: columns of the lower and of the upper outputs. What it writes: four columns of every eighth row.
    const uint32_t lower = is_split ? 8 * warp + g : 16 * warp + g, upper = lower + (is_split ? 32 : 8), quad = thread % 16 * 4, row_of_eight = thread / 16;
    const uint32_t i = is_split ? first_tile * 8 + quad % 32 : first_tile * 16 + quad, count = is_part ? p.tiles * 16 : out.count;
    const uint32_t n = is_part ? i : i + (is_split && quad >= 32 ? out.upper : out.lower), width = is_part ? p.tiles * 16 : out.y_width;
    float* y = (is_part ? p.partial + uint64_t(split) * p.rows * width : out.y) + uint64_t(first_row) * width + n;
    const float* residual = is_part || !out.residual.data ? nullptr : out.residual.data + uint64_t(first_row) * out.residual.stride + n;
    const bool is_there = i < count;
    float4 bias = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (!is_part && out.bias && is_there) bias = *reinterpret_cast<const float4*>(out.bias + n);
    // What is added is asked for a pass ahead.
    float4 added[2][HANDED_ROWS / 8];
    auto ask = [&](uint32_t pass) {
#pragma unroll
        for (uint32_t e = 0; e < HANDED_ROWS / 8; e++) {
            const uint32_t row = pass * HANDED_ROWS + e * 8 + row_of_eight;
            added[pass % 2][e] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (residual && is_there && row < rows.count) added[pass % 2][e] = *reinterpret_cast<const float4*>(residual + uint64_t(row) * out.residual.stride);
        }
    };
    ask(0);
#pragma unroll
    for (uint32_t pass = 0; pass < ROWS / HANDED_ROWS; pass++) {
        if (pass * HANDED_ROWS >= rows.count) return;
        if (pass + 1 < ROWS / HANDED_ROWS) ask(pass + 1);
        const float4(&before)[HANDED_ROWS / 8] = added[pass % 2];
#pragma unroll
        for (uint32_t j = 0; j < HANDED_ROWS / 8; j++) {
#pragma unroll
            for (uint32_t c = 0; c < 2; c++) {
                const uint32_t row = j * 8 + 2 * t + c, at = (pass * HANDED_ROWS / 8 + j) * 4 + c;
                const float scale = rows.scale[pass * HANDED_ROWS + row] * rows.of_all;
                handed[row * HANDED_STRIDE + lower] = d[at] * scale;
                handed[row * HANDED_STRIDE + upper] = d[at + 2] * scale;
            }
        }
        named_barrier(2 + group, 128);
#pragma unroll
        for (uint32_t e = 0; e < HANDED_ROWS / 8; e++) {
            const uint32_t row = e * 8 + row_of_eight, at = pass * HANDED_ROWS + row;
            const float4 v = *reinterpret_cast<const float4*>(handed + row * HANDED_STRIDE + quad);
            if (is_there && at < rows.count) {
                *reinterpret_cast<float4*>(y + uint64_t(at) * width) =
                    make_float4(before[e].x + (v.x + bias.x), before[e].y + (v.y + bias.y), before[e].z + (v.z + bias.z), before[e].w + (v.w + bias.w));
            }
        }
        named_barrier(2 + group, 128);
    }
}

// A piece of the product, which one cluster makes: rows from `first_row` to `rows_end` or as many as a block has, tiles from `first_tile` to
// `tiles_end` of `weights` or as many as the cluster has, inputs of `subs` subs from `first_sub` on. The second weight is there where
// products with two are multiplied with each other.
struct Piece {
    const uint8_t* weights[2];
    float raise[2];
    uint32_t first_row, rows_end, first_tile, tiles_end, first_sub, subs, number;
};

// The product of a weight with all rows. Pieces go by rows, then by outputs, then by parts of K.
template <class Shape, int ROWS, int CLUSTER, bool ADDS_MORE> struct DenseProduct {
    // Weights that a piece is multiplied with.
    static constexpr int WEIGHTS = 1;
    // True where weights may be asked for while the launch in front still makes x.
    static constexpr bool AHEAD = true;
    // True where products may have tails. Kernels of few rows have none: their products would no longer run beside the decoding of weights.
    static constexpr bool TAILS = ROWS >= 128;
    // True where there is an addend.
    static constexpr bool ADDS = ADDS_MORE;
    // Floats of what rows are scaled by: of their products, and of the halves that gated products become.
    static constexpr uint32_t FACTS = 2 * ROWS;
    // Floats in which a group hands its sums over.
    static constexpr uint32_t HANDED = ROWS >= 128 ? HANDED_FLOATS : 0;
    // Bytes of a block's addends, which take the place of the ranks that they are made of.
    static constexpr uint32_t ADDENDS = ADDS ? 2 * uint32_t(sizeof(BatchRanks)) : 0;
    static_assert(!ADDS || ADDENDS >= ROWS * Shape::OUTPUTS * 4, "");
    const GemmParams& p;
    uint32_t row_blocks, output_blocks, units, all;

    __device__ __forceinline__ explicit DenseProduct(const GemmParams& p)
        : p(p), row_blocks((p.rows + ROWS - 1) / ROWS), output_blocks((p.tiles + Shape::TILES * CLUSTER - 1) / (Shape::TILES * CLUSTER)),
          units(p.subs / Shape::G.unit_subs), all(row_blocks * output_blocks * p.splits) {}

    __device__ __forceinline__ Piece piece(uint32_t at) const {
        Piece w;
        w.weights[0] = p.weights;
        w.raise[0] = p.raise;
        w.first_row = at % row_blocks * ROWS;
        w.rows_end = p.rows;
        w.first_tile = at / row_blocks % output_blocks * (Shape::TILES * CLUSTER);
        w.tiles_end = p.tiles;
        w.number = at / row_blocks / output_blocks;
        const uint32_t first = w.number * units / p.splits;
        w.first_sub = first * Shape::G.unit_subs;
        w.subs = ((w.number + 1) * units / p.splits - first) * Shape::G.unit_subs;
        return w;
    }

    __device__ __forceinline__ uint32_t panel_subs() const { return p.panel_subs; }
    // Parts of K but the last have no tail.
    __device__ __forceinline__ bool has_tail(const Piece& w) const { return p.tail && w.number + 1 == p.splits; }
    __device__ __forceinline__ void load_tail(uint32_t (&a)[4][4], uint32_t tile, uint32_t lane, float& factor) const {
        factor = p.tail_factors[tile];
#pragma unroll
        for (int s = 0; s < 4; s++) {
            const uint4 w = *reinterpret_cast<const uint4*>(p.tail + uint64_t(tile) * 2048 + s * 512 + lane * 16);
            a[s][0] = w.x; a[s][1] = w.y; a[s][2] = w.z; a[s][3] = w.w;
        }
    }

    // Where the launch in front makes ranks: two words, of which the first is set when x is there. Null where that is known by the end of that launch.
    __device__ __forceinline__ uint32_t* x_ready() const { return p.addend.x_ready; }
    // Waits for x, by one thread of the block, and tells the others.
    __device__ __forceinline__ void await_x(uint32_t* words, uint64_t* came) const {
        Watchdog dog;
        while (load_acquire(words) == 0) dog.turn();
        mbarrier_arrive(came);
        // The last block that has seen it clears the words. Launches behind begin when all have, so those that look at the same words find them clear.
        if (atomicAdd(words + 1, 1) == gridDim.x - 1) {
            words[1] = 0;
            store_release(words, 0);
        }
        let_next_start();
    }
    // Only the first part of K has an addend.
    __device__ __forceinline__ bool has_addend(const Piece& w) const { return ADDS && w.number == 0; }
    // Each of four warps makes the addend of a tile of B. Where lower and upper outputs lie apart, the first two have lower ones and the others upper ones.
    __device__ __forceinline__ bool is_apart() const { return p.out.form != TILES_DENSE; }
    __device__ __forceinline__ uint32_t first_tile_of_b(const Piece& w, uint32_t warp) const {
        if (!is_apart()) return p.out.lower / 16 + w.first_tile;
        return (warp < 2 ? p.out.lower : p.out.upper) / 16 + w.first_tile / 2;
    }
    __device__ __forceinline__ void fetch_addend(const Piece& w, uint32_t warp) const {
        fetch_ahead(p.addend, first_tile_of_b(w, warp) + (is_apart() ? warp % 2 : warp));
    }
    // Makes what is added to the sums of a piece, without scales: for each thread that multiplies four floats of every eight rows, which are 128 such fours apart. Ranks of
    // which it is made lie in the same place before.
    __device__ __forceinline__ void make_addend(float4* addends, const Piece& w, uint32_t warp, uint32_t lane) const {
        auto ready = [] { wait_for_last(); };
        const bool apart = is_apart();
        auto wait = [=] {  // numbers of barriers are constants: racecheck knows no others
            __syncwarp();
            if (!apart) named_barrier(MAKING_ADDENDS, 128);
            else if (warp < 2) named_barrier(MAKING_HALVES, 64);
            else named_barrier(MAKING_HALVES + 1, 64);
        };
        const Crew<decltype(wait), decltype(ready)> crew = {apart ? warp % 2 : warp, apart ? 2u : 4u, first_tile_of_b(w, warp), wait, ready};
        float d[ROWS / 8][4] = {};
        add_addend<ROWS / 8>(d, p.addend, w.first_row, crew, reinterpret_cast<BatchRanks*>(addends)[apart ? warp / 2 : 0]);
        __syncwarp();
        named_barrier(MAKING_ADDENDS, 128);
        // A warp's outputs g and g + 8 are lower and upper ones of one other warp, or lower ones (or upper ones) of two.
#pragma unroll
        for (int i = 0; i < ROWS / 4; i++) {
            const uint32_t half = i % 2, to = apart ? warp % 2 * 2 + half : warp;
            reinterpret_cast<float2*>(addends + i / 2 * 128 + to * 32 + lane)[apart ? warp / 2 : half] = make_float2(d[i / 2][half * 2], d[i / 2][half * 2 + 1]);
        }
    }
    // Adds it, as much larger as x and weights are that were multiplied, to the thread's sums.
    __device__ __forceinline__ void take_addend(float (&d)[ROWS / 2], const float4* addends, const float (&facts)[FACTS], uint32_t t) const {
#pragma unroll
        for (int j = 0; j < ROWS / 8; j++) {
            const float4 v = addends[j * 128 + threadIdx.x];
            const float scale[2] = {inverse_power(facts[8 * j + 2 * t]) * p.addend.scale, inverse_power(facts[8 * j + 2 * t + 1]) * p.addend.scale};
            d[4 * j] += v.x * scale[0];
            d[4 * j + 1] += v.y * scale[1];
            d[4 * j + 2] += v.z * scale[0];
            d[4 * j + 3] += v.w * scale[1];
        }
    }

    // Queues copies of what rows are scaled by: at the end of a piece these loads would wait behind weights that are asked for ahead.
    __device__ __forceinline__ void ask_facts(float (&facts)[FACTS], const Piece& w, uint32_t thread, uint32_t threads) const {
        const float* gates_scale = p.splits == 1 && p.out.panels ? p.out.row_scale : nullptr;
        for (uint32_t i = thread; i < min(uint32_t(ROWS), w.rows_end - w.first_row); i += threads) {
            copy4(facts + i, p.row_scale + w.first_row + i);
            if (gates_scale) copy4(facts + ROWS + i, gates_scale + w.first_row + i);
        }
    }

    __device__ __forceinline__ PieceRows rows(const float (&facts)[FACTS], const Piece& w) const { return {facts, p.scale, min(uint32_t(ROWS), w.rows_end - w.first_row)}; }
    __device__ __forceinline__ void write(const float (&d)[1][ROWS / 2], const float (&facts)[FACTS], const Piece& w, uint32_t t, uint32_t tile, uint32_t g) const {
        write_products<ROWS>(p, d[0], rows(facts, w), facts + ROWS, w.first_row, t, tile, g, w.number);
    }
    // A group's sums, where they are handed over; false where its lanes write them.
    __device__ __forceinline__ bool write_handed(const float (&d)[1][ROWS / 2], const float (&facts)[FACTS], const Piece& w, float* handed, uint32_t first_tile, uint32_t group) const {
        if (!hands_over(p)) return false;
        hand_over<ROWS>(p, d[0], rows(facts, w), handed + group * HANDED, w.first_row, first_tile, w.number, group);
        return true;
    }
};

// `Product` says which pieces there are, and where their products go.
template <uint32_t F, int ROWS, int GROUPS, int CLUSTER, class Product, class Params> __device__ __forceinline__ void gemm(const Params& p) {
    using T = GemmShape<F, ROWS, GROUPS, CLUSTER>;
    constexpr Geometry G = T::G;
    constexpr uint32_t STAGES = T::stages(Product::HANDED * GROUPS * 4 + Product::ADDENDS);
    extern __shared__ __align__(1024) uint8_t gemm_shared[];
    __shared__ uint64_t full[STAGES], empty[STAGES];
    __shared__ float facts[Product::FACTS];
    __shared__ uint64_t x_came;
    if (!Product::ADDS) let_next_start();
    uint8_t* stages = gemm_shared + ((1024 - (shared_address(gemm_shared) & 1023)) & 1023);
    const uint32_t rank = CLUSTER > 1 ? cluster_rank() : 0;
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < STAGES; i++) {
            mbarrier_init(full + i, 1);
            mbarrier_init(empty + i, GROUPS * CLUSTER * STAGE_LEAVERS);
        }
        if (Product::ADDS) mbarrier_init(&x_came, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if (CLUSTER > 1) cluster_sync(); else __syncthreads();
    if (!Product::AHEAD) wait_for_last();
    const Product product(p);
    const uint32_t all = product.all;
    uint32_t* x_ready = nullptr;
    if constexpr (Product::ADDS) x_ready = product.x_ready();
    if (Product::ADDS && !x_ready) let_next_start();
    auto wait_for_x = [&] {
        if (!x_ready) return wait_for_last();
        mbarrier_wait(&x_came, 0);
        __syncwarp();
        fence_proxy_async();
    };
    const uint64_t tile = tile_bytes(F, p.subs);
    const uint32_t group = threadIdx.x / 128;
    uint32_t stage = 0, parity = 0;
    uint8_t* behind_stages = stages + STAGES * T::STAGE;
    float4* addends = reinterpret_cast<float4*>(behind_stages);
    if (group == GROUPS) {
        if (Product::ADDS) asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
        else asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
        // A stage is PANELS panels and a piece of every tile, each a copy of its own. Copies of one warp are issued one after the
        // other (UBLKCP takes its operands from uniform registers), so they are dealt to the four warps: copy i to lane i/4 of warp i%4.
        const uint32_t copy = threadIdx.x % 32 * 4 + threadIdx.x % 128 / 32;
        for (uint32_t at = blockIdx.x / CLUSTER; at < all; at += gridDim.x / CLUSTER) {
            const Piece w = product.piece(at);
            const uint32_t first_tile = w.first_tile + rank * T::TILES;
            const uint32_t my_tiles = first_tile < w.tiles_end ? min(T::TILES, w.tiles_end - first_tile) : 0;
            const uint32_t first_panel = w.first_row / 64, my_panels = min(T::PANELS, (w.rows_end + 63) / 64 - first_panel);
            // Of a block's panels, the rows that are there, in eights; products of others are dropped. Blocks of a pair share whole panels.
            const uint32_t rows = min(uint32_t(ROWS), w.rows_end - w.first_row);
            const uint32_t panel_rows = T::PANELS == 1 ? rows : min(64u, rows - min(rows, copy * 64));
            const uint32_t panel_bytes = CLUSTER == 1 ? (panel_rows + 7) / 8 * 1024 : 8192;
            const uint32_t bytes_of_panels = CLUSTER == 1 ? (rows + 7) / 8 * 1024 : my_panels * 8192;
            const uint32_t bytes = my_tiles * (G.header_bytes + G.sub_bytes) + bytes_of_panels;
            const bool panel = copy < my_panels, weight = copy >= T::PANELS && copy - T::PANELS < my_tiles;
            const uint32_t i = copy - T::PANELS;  // of the tiles
            const uint8_t* from = nullptr;
            auto begin = [&](int number) {
                from = p.panels + (uint64_t(first_panel + copy) * product.panel_subs() + w.first_sub) * 8192 + w.first_row % 64 * 128 + (CLUSTER > 1 ? rank * 4096 : 0);
                if (weight) from = w.weights[number] + (first_tile + i) * tile + uint64_t(w.first_sub / G.unit_subs) * unit_bytes(F);
            };
            begin(0);
            const uint32_t to = weight ? i * T::PIECE : T::A_BYTES + copy * 8192 + (CLUSTER > 1 ? rank * 4096 : 0);
            auto ask_panel = [&](uint32_t s) {
                uint8_t* there = stages + s * T::STAGE + to;
                if (CLUSTER > 1) bulk_load_both(there, from, 4096, full + s);
                else bulk_load(there, from, panel_bytes, full + s);
                from += 8192;
            };
            auto ask_weight = [&](uint32_t s, uint32_t k) {
                uint8_t* there = stages + s * T::STAGE + to;
                if (G.header_bytes) bulk_load(there, from, G.header_bytes, full + s);
                bulk_load(there + G.header_bytes, from + G.header_bytes + k % G.unit_subs * G.sub_bytes, G.sub_bytes, full + s);
                if (k % G.unit_subs == G.unit_subs - 1) from += unit_bytes(F);
            };
            uint32_t k = 0;
            if (Product::AHEAD && at == blockIdx.x / CLUSTER) {
                // Weights fill the ring while the launch in front still makes x.
                const uint32_t first = min(STAGES, w.subs);
                for (; k < first; k++) {
                    if (copy == 0) mbarrier_expect(full + k, bytes);
                    __syncwarp();
                    if (weight) ask_weight(k, k);
                }
                wait_for_x();
                for (uint32_t s = 0; s < first; s++) {
                    if (panel) ask_panel(s);
                }
                stage = first == STAGES ? 0 : first;
                parity = first == STAGES;
            }
#pragma unroll
            for (int number = 0; number < Product::WEIGHTS; number++) {
                if (number > 0) begin(number);
                for (; k < w.subs; k++) {
                    mbarrier_wait(empty + stage, parity ^ 1);
                    if (copy == 0) mbarrier_expect(full + stage, bytes);
                    __syncwarp();
                    if (panel) ask_panel(stage);
                    else if (weight) ask_weight(stage, k);
                    if (++stage == STAGES) { stage = 0; parity ^= 1; }
                }
                k = 0;
            }
            if constexpr (Product::TAILS) {
                if (product.has_tail(w)) {
                    mbarrier_wait(empty + stage, parity ^ 1);
                    if (copy == 0) mbarrier_expect(full + stage, bytes_of_panels);
                    __syncwarp();
                    if (panel) ask_panel(stage);
                    if (++stage == STAGES) { stage = 0; parity ^= 1; }
                }
            }
        }
    } else if (Product::ADDS && group > GROUPS) {
        if constexpr (Product::ADDS) {
            asm volatile("setmaxnreg.inc.sync.aligned.u32 112;");
            const uint32_t warp = threadIdx.x % 128 / 32;
            auto fetch = [&](uint32_t at) {
                if (at < all && product.has_addend(product.piece(at))) product.fetch_addend(product.piece(at), warp);
            };
            for (uint32_t at = blockIdx.x; at < all; at += gridDim.x) {
                const Piece w = product.piece(at);
                if (!product.has_addend(w)) continue;
                product.make_addend(addends, w, warp, threadIdx.x % 32);
                tell_others<ADDENDS_THERE, 256>();
                fetch(at + gridDim.x);
                await_others<ADDENDS_USED, 256>();
            }
            wait_for_last();
        }
    } else {
        if (GROUPS == 2) asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
        if (Product::ADDS) asm volatile("setmaxnreg.inc.sync.aligned.u32 96;");
        if constexpr (Product::ADDS) {
            if (x_ready && threadIdx.x == 0) product.await_x(x_ready, &x_came);
        }
        wait_for_x();
        const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32, g = lane >> 2, t = lane & 3;
        const uint32_t my_piece = (group * 4 + warp) * T::PIECE;
        const uint32_t base = shared_address(stages);
        auto release = [&](uint32_t s) {
            if (threadIdx.x % 128 < STAGE_LEAVERS) {
                if (CLUSTER > 1) {
                    mbarrier_arrive_at(empty + s, 0);
                    mbarrier_arrive_at(empty + s, 1);
                } else mbarrier_arrive(empty + s);
            }
        };
        for (uint32_t at = blockIdx.x / CLUSTER; at < all; at += gridDim.x / CLUSTER) {
            const Piece w = product.piece(at);
            named_barrier(1, 128 * GROUPS);  // the facts of the piece before are used no more
            product.ask_facts(facts, w, threadIdx.x, 128 * GROUPS);
            const uint32_t first_tile = w.first_tile + rank * T::TILES, subs = w.subs;
            float all_d[Product::WEIGHTS][ROWS / 2];
            uint32_t a[2][4][4];
#pragma unroll
            for (int number = 0; number < Product::WEIGHTS; number++) {
                float(&d)[ROWS / 2] = all_d[number];
                auto fetch = [&](uint32_t (&to)[4][4]) {  // decodes this stage's weights
                    mbarrier_wait(full + stage, parity);
                    const uint32_t unit = base + stage * T::STAGE + my_piece;
                    decode_sub<F>(to, unit, unit + G.header_bytes, lane, w.raise[number]);
                };
                auto multiply = [&](uint32_t (&from)[4][4], uint32_t k) {
                    wgmma_fence();
                    const uint64_t b = wgmma_descriptor(base + stage * T::STAGE + T::A_BYTES);
#pragma unroll
                    for (int s = 0; s < 4; s++) wgmma<ROWS>(d, from[s], b + 2 * s, k > 0 || s > 0);
                    wgmma_commit();
                };
                uint32_t last = 0;
                // Starts products of stage k, then decodes stage k+1 once those of stage k-1, whose registers it takes, have ended: the
                // tensor cores always have work queued.
                auto step = [&](uint32_t (&mine)[4][4], uint32_t (&next)[4][4], uint32_t k) {
                    multiply(mine, k);
                    if (k > 0) {
                        wgmma_wait<1>();
                        release(last);
                    }
                    last = stage;
                    if (++stage == STAGES) { stage = 0; parity ^= 1; }
                    if (k + 1 < subs) fetch(next);
                };
                fetch(a[0]);
                for (uint32_t k = 0; k < subs; k += 2) {
                    step(a[0], a[1], k);
                    if (k + 1 < subs) step(a[1], a[0], k + 1);
                }
                if constexpr (Product::TAILS) {
                    if (product.has_tail(w)) {
                        uint32_t tail[4][4];
                        float factor;
                        product.load_tail(tail, min(first_tile + group * 4 + warp, w.tiles_end - 1), lane, factor);
                        mbarrier_wait(full + stage, parity);
                        wgmma_wait<0>();
                        release(last);
#pragma unroll
                        for (int i = 0; i < ROWS / 2; i++) d[i] *= factor;
                        multiply(tail, 1);
                        last = stage;
                        if (++stage == STAGES) { stage = 0; parity ^= 1; }
                        wgmma_wait<0>();
#pragma unroll
                        for (int i = 0; i < ROWS / 2; i++) d[i] *= 1.0f / factor;
                    }
                }
                wgmma_wait<0>();
                release(last);
            }
            copies_came();
            named_barrier(1, 128 * GROUPS);
            if constexpr (Product::ADDS) {
                if (product.has_addend(w)) {
                    await_others<ADDENDS_THERE, 256>();
                    product.take_addend(all_d[0], addends, facts, t);
                    tell_others<ADDENDS_USED, 256>();
                }
            }
            const uint32_t my_tile = first_tile + group * 4 + warp;
            if constexpr (Product::HANDED > 0) {
                if (product.write_handed(all_d, facts, w, reinterpret_cast<float*>(behind_stages), first_tile + group * 4, group)) continue;
            }
            if (my_tile < w.tiles_end) product.write(all_d, facts, w, t, my_tile, g);
        }
    }
    __syncwarp();
    if (CLUSTER > 1) cluster_sync();  // no block leaves while another may still arrive at its barriers
}

}  // namespace brasa
