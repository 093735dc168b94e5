// Grouped products of gemm.cuh: rows sorted by expert, each expert's with its own weights.
//
// The device decides which blocks of rows there are (../plain/mixture.cu), so the host never waits for the router. Pieces go by outputs,
// then by blocks of rows: blocks at work at one time share panels, and those of one expert its weights, in L2.
//
// experts_gated: a block multiplies its rows with gates, then with what they gate, and writes act(gate) · up as halves to the panels of the
// product behind, each row divided by a power of two that was known before (panels.cu). experts: products go to slots.
// Needs: outputs of an expert a multiple of 16; the rows of a block in one panel, or at its begin.
#pragma once
#include "gemm.cuh"
#include "written.cuh"

namespace brasa {

template <class Shape, int ROWS, int FACTORS> struct ExpertProduct {
    static constexpr int WEIGHTS = FACTORS;
    // Which weights are needed is known when the launch in front has ended.
    static constexpr bool AHEAD = false;
    static constexpr bool TAILS = false;
    static constexpr bool ADDS = false;
    // What rows are scaled by; and, of gated products, by which power of two halves are divided, or else the slot of a row.
    static constexpr uint32_t FACTS = 2 * ROWS;
    // Its lanes write their sums.
    static constexpr uint32_t HANDED = 0, ADDENDS = 0;
    const ExpertGemmParams& p;
    uint32_t output_blocks, all;

    __device__ __forceinline__ explicit ExpertProduct(const ExpertGemmParams& p)
        : p(p), output_blocks((p.tiles + Shape::TILES - 1) / Shape::TILES), all(*p.plan.count * output_blocks) {}

    __device__ __forceinline__ Piece piece(uint32_t at) const {
        const uint32_t* block = p.plan.blocks + uint64_t(at / output_blocks) * 3;
        const uint64_t of_expert = uint64_t(block[0]) * p.tiles * tile_bytes(Shape::FORMAT, p.subs);
        Piece w;
#pragma unroll
        for (int i = 0; i < WEIGHTS; i++) {
            w.weights[i] = p.weights[i] + of_expert;
            w.raise[i] = p.raise[i];
        }
        w.first_row = block[1];
        w.rows_end = block[2];
        w.first_tile = at % output_blocks * Shape::TILES;
        w.tiles_end = p.tiles;
        w.first_sub = 0;
        w.subs = p.subs;
        w.number = 0;
        return w;
    }

    __device__ __forceinline__ uint32_t panel_subs() const { return p.subs; }

    __device__ __forceinline__ void ask_facts(float (&facts)[FACTS], const Piece& w, uint32_t thread, uint32_t threads) const {
        const void* others = FACTORS == 2 ? static_cast<const void*>(p.gated_scale) : p.plan.slots;
        for (uint32_t i = thread; i < min(uint32_t(ROWS), w.rows_end - w.first_row); i += threads) {
            copy4(facts + i, p.row_scale + w.first_row + i);
            copy4(facts + ROWS + i, static_cast<const uint32_t*>(others) + w.first_row + i);
        }
    }

    // Products with the experts' only weight.
    __device__ __forceinline__ void write(const float (&d)[1][ROWS / 2], const float (&facts)[FACTS], const Piece& w, uint32_t t, uint32_t tile, uint32_t g) const {
        const PieceRows rows = {facts, p.scale[0], min(uint32_t(ROWS), w.rows_end - w.first_row)};
        auto slot_of = [&](uint32_t row) { return __float_as_uint(facts[ROWS + row]); };
        each_row<ROWS>(rows, d[0], t, slot_of, [&](uint32_t, float lower, float upper, uint32_t slot) {
            float* y = p.y + (uint64_t(slot) * p.tiles + tile) * 16 + g;
            y[0] = lower;
            y[8] = upper;
        });
    }

    // Products with gates and with what they gate.
    __device__ __forceinline__ void write(const float (&d)[2][ROWS / 2], const float (&facts)[FACTS], const Piece& w, uint32_t t, uint32_t tile, uint32_t g) const {
        if (p.function == UNARY_SILU) write_gated(d, facts, w, t, tile, g, fast_silu);
        else if (p.function == UNARY_GELU_TANH) write_gated(d, facts, w, t, tile, g, [](float x) { return 0.5f * x * (1.0f + tanhf(0.7978846f * (x + 0.044715f * x * x * x))); });
        else write_gated(d, facts, w, t, tile, g, [](float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678f)); });
    }

    template <class Act>
    __device__ __forceinline__ void write_gated(const float (&d)[2][ROWS / 2], const float (&facts)[FACTS], const Piece& w, uint32_t t, uint32_t tile, uint32_t g, Act act) const {
#pragma unroll
        for (int i = 0; i < ROWS / 4; i++) {
            const int n = i / 2 * 4 + i % 2;
            const uint32_t of_piece = 8 * (i / 2) + 2 * t + i % 2, row = w.first_row + of_piece;
            if (row >= w.rows_end) continue;
            const float scale = facts[of_piece], down = inverse_power(facts[ROWS + of_piece]);
            const float of_gate = scale * p.scale[0], of_up = scale * p.scale[1] * down;
            uint8_t* panel = p.gated + (uint64_t(row / 64) * p.gated_subs + tile / 4) * 8192 + row % 64 * 128;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float value = act(d[0][n + 2 * half] * of_gate) * (d[1][n + 2 * half] * of_up);
                reinterpret_cast<__half*>(panel + ((tile % 4 * 2 + half) ^ (row % 8)) * 16)[g] = __float2half_rn(value);
            }
        }
    }
};

}  // namespace brasa
