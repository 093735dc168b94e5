// Products of gemm.cuh of all rows with one weight, and low-rank products beside it.
//
// A *tail* is a product of more inputs, those of low-rank adapters: it has panels of its own, and weights that the warps read from memory while products run.
// Of an adapter that learns it has up to 64 inputs, whose weights are halves; each tile of them has its own power of two, to which the sums are brought and
// brought back. Of a bank of adapters it has the pieces of 64 that the tiles of a cluster have not all zero, its weights are B as it is stored, and each row of it has
// a power of two of its own.
//
// Kernels of 16 rows with an *addend* add low-rank products of a bank of adapters (../plain/low_rank_addend.cuh), which so come before whatever follows the
// product. A warpgroup of their own computes them beside the products, and those that multiply add them to the sums of the first part of K. (Loads of few bytes
// take several microseconds where the ring asks for all that memory gives: warps that multiply would wait for each.)
#pragma once
#include "../plain/low_rank_addend.cuh"
#include "gemm.cuh"
#include "written.cuh"

namespace brasa {

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
    // Pieces of the tail. Parts of K but the last have none.
    __device__ __forceinline__ Pieces tail(const Piece& w) const {
        if (!p.tail.panels || w.number + 1 != p.splits) return {0, 0};
        if (p.tail.tiles) return {0, 1};
        const uint32_t tiles = min(Shape::TILES * CLUSTER, w.tiles_end - w.first_tile);
        if (!is_apart()) return pieces_of(p.addend.spans, p.out.lower / 16 + w.first_tile, tiles);
        const Pieces lower = pieces_of(p.addend.spans, p.out.lower / 16 + w.first_tile / 2, (tiles + 1) / 2);
        return lower.with(pieces_of(p.addend.spans, p.out.upper / 16 + w.first_tile / 2, (tiles + 1) / 2));
    }
    // Where a row's panels of the tail begin, `first_row` being a multiple of 64.
    __device__ __forceinline__ const uint8_t* tail_panels(uint32_t first_row) const { return p.tail.panels + uint64_t(first_row / 64) * p.tail.subs * 8192; }
    // Brings sums to the scale of the tail's products, or back.
    template <bool BACK> __device__ __forceinline__ void scale_for_tail(float (&d)[ROWS / 2], const Piece& w, uint32_t tile, uint32_t t) const {
        if (p.tail.tiles) {
            const float factor = p.tail.factors[tile], by = BACK ? 1.0f / factor : factor;
#pragma unroll
            for (int i = 0; i < ROWS / 2; i++) d[i] *= by;
            return;
        }
        // A lane has a ratio of every 32 rows: a load for each of its own would take more registers than there are.
        const float by = BACK ? 1.0f / p.tail.factor : p.tail.factor;
        float own[ROWS / 32];
#pragma unroll
        for (int i = 0; i < ROWS / 32; i++) {
            const float ratio = p.tail.ratios[w.first_row + 32 * i + threadIdx.x % 32];
            own[i] = by * (BACK ? inverse_power(ratio) : ratio);
        }
#pragma unroll
        for (int i = 0; i < ROWS / 4; i++) {
            const float of_row = __shfl_sync(0xffffffffu, own[i / 8], 8 * (i / 2 % 4) + 2 * t + i % 2);
            d[i / 2 * 4 + i % 2] *= of_row;
            d[i / 2 * 4 + i % 2 + 2] *= of_row;
        }
    }
    // The weights of a piece of the tail, for a tile.
    __device__ __forceinline__ void load_tail(uint32_t (&a)[4][4], uint32_t tile, uint32_t piece, uint32_t lane) const {
        if (p.tail.tiles) {
#pragma unroll
            for (int s = 0; s < 4; s++) {
                const uint4 w = *reinterpret_cast<const uint4*>(p.tail.tiles + uint64_t(tile) * 2048 + s * 512 + lane * 16);
                a[s][0] = w.x; a[s][1] = w.y; a[s][2] = w.z; a[s][3] = w.w;
            }
            return;
        }
        // Where outputs g and g + 8 of the tile lie: tiles of B, and which halves of these.
        const LowRankMatrix& b = p.addend.b;
        const bool apart = is_apart();
        const uint32_t of_tile = apart ? tile / 2 : tile, tiles[2] = {p.out.lower / 16 + of_tile, (apart ? p.out.upper : p.out.lower) / 16 + of_tile};
        const uint32_t halves[2] = {apart ? tile % 2 : 0, apart ? tile % 2 : 1};
        const float raise = p.tail.raise;
        if (p.addend.form == LOW_RANK_F32) {
#pragma unroll
            for (int i = 0; i < 16; i++) {
                const uint32_t row = tiles[i % 2] * 16 + halves[i % 2] * 8 + lane / 4, k = piece * 64 + i / 4 * 16 + i % 4 / 2 * 8 + lane % 4 * 2;
                float2 v = make_float2(0.0f, 0.0f);
                if (row < b.rows && k < b.inputs) v = *reinterpret_cast<const float2*>(reinterpret_cast<const float*>(b.data) + uint64_t(row) * b.inputs + k);
                a[i / 4][i % 4] = pack_halves(v.x * raise, v.y * raise);
            }
            return;
        }
#pragma unroll
        for (int i = 0; i < 16; i++) {
            const uint8_t* of_lane = b.data + (uint64_t(tiles[i % 2]) * b.subs + piece) * 2048 + i / 4 * 512 + lane * 16;
            a[i / 4][i % 4] = reinterpret_cast<const uint32_t*>(of_lane)[halves[i % 2] + i % 4 / 2 * 2];
        }
        if (p.addend.form == LOW_RANK_BF16) {
#pragma unroll
            for (int i = 0; i < 16; i++) {
                const uint32_t w = a[i / 4][i % 4];
                a[i / 4][i % 4] = pack_halves(__uint_as_float(w << 16) * raise, __uint_as_float(w & 0xffff0000) * raise);
            }
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

}  // namespace brasa
