// tiles_<format>: y[R, N] = x[R, K] · W[N, K]ᵀ [+ bias] [+ residual], W in fragment order (../hopper/layout.cuh); of paired tiles
// y[R, F] = act(gate) · up, or both factors. tiles_<format> takes one row a group, tiles_<format>_wide eight.
// Grid: x: a block of 256 threads a tile; y: groups of rows. Any N, K, R.
//
// A warp takes every eighth sub of the tile; a lane multiplies its 32 weights of two outputs with 16 inputs, codes as they are,
// and a block's scale is applied to the block's sum. Then the four lanes of an output and the eight warps are added in order. So
// the order of sums depends on K and the format alone, and both variants make the same bits.
// Bound by memory for one row: while a sub is multiplied, the next is on its way. 4 to 6 instructions a weight.
#include "formats.cuh"
#include "outputs.cuh"
#include "subs.cuh"

static const u32 TILE_WARPS = 8;

template <u32 FORMAT, u32 ROWS>
DEVICE void multiply_tiles(const TilesParams& p) {
    __shared__ float partial[TILE_WARPS][ROWS][16];
    const brasa::Geometry G = brasa::geometry(FORMAT);
    u32 g = lane() / 4, t = lane() % 4;
    const u8* tile = p.weights + blockIdx.x * brasa::tile_bytes(FORMAT, p.subs);
    auto load = [&](Sub<FORMAT>& weights, u32 sub) {
        const u8* unit = tile + (u64)(sub / G.unit_subs) * brasa::unit_bytes(FORMAT);
        weights.load(unit, unit + G.header_bytes + sub % G.unit_subs * G.sub_bytes, lane());
    };
    for (u32 first = blockIdx.y * ROWS; first < p.rows; first += gridDim.y * ROWS) {
        float sums[2][ROWS];
        const float* x[ROWS];
        bool aligned = true;
#pragma unroll
        for (u32 r = 0; r < ROWS; ++r) {
            sums[0][r] = sums[1][r] = 0.0f;
            // Rows behind the last repeat it; their sums are dropped.
            x[r] = row_of(p.x, first + r < p.rows ? first + r : p.rows - 1) + 2 * t;
            aligned = aligned && (u64)x[r] % 8 == 0;
        }
        u32 sub = warp();
        Sub<FORMAT> now, next;
        if (sub < p.subs) {
            load(now, sub);
        }
        for (; sub < p.subs; sub += TILE_WARPS) {
            load(next, sub + TILE_WARPS < p.subs ? sub + TILE_WARPS : sub);
            if (aligned && sub * 64 + 64 <= p.inputs) {
                multiply_sub<FORMAT, ROWS, true>(now, x, sub, 0, sums);
            } else {
                u32 begin = sub * 64 + 2 * t;
                multiply_sub<FORMAT, ROWS, false>(now, x, sub, begin < p.inputs ? p.inputs - begin : 0, sums);
            }
            now = next;
        }
        __syncthreads();
        for (u32 r = 0; r < ROWS; ++r) {
            for (u32 half = 0; half < 2; ++half) {
                float sum = sums[half][r];
                sum += __shfl_xor_sync(0xffffffffu, sum, 1);
                sum += __shfl_xor_sync(0xffffffffu, sum, 2);
                if (t == 0) {
                    partial[warp()][r][half * 8 + g] = sum;
                }
            }
        }
        __syncthreads();
        u32 r = threadIdx.x / 8, output = threadIdx.x % 8;
        if (r < ROWS && first + r < p.rows) {
            float lower = 0.0f, upper = 0.0f;
            for (u32 w = 0; w < TILE_WARPS; ++w) {
                lower += partial[w][r][output];
                upper += partial[w][r][8 + output];
            }
            write_outputs(p.out, first + r, blockIdx.x, output, lower * p.factor, upper * p.factor);
        }
    }
}

#define BRASA_TILES(name, Format)                                                             \
    KERNEL(tiles_##name, TilesParams) { multiply_tiles<Format::FORMAT, 1>(p); }                \
    KERNEL(tiles_##name##_wide, TilesParams) { multiply_tiles<Format::FORMAT, 8>(p); }
TILE_FORMATS(BRASA_TILES)
