// Linear layers of heads: y[R, H, N] = x[R, H, K] · W[h, N, K]ᵀ. A vector is the part of a row that belongs to one head.
//
// head_linear_<format>: any weight, rows of W in other formats are left alone; sums as in linear.cu, by K alone.
// Grid: x: ceil(N / 4) blocks of 128 threads, a warp an output; y: heads × groups of rows. head_linear_<format> takes one row a
// group, head_linear_<format>_wide eight.
//
// head_tiles_<format>: weights whose heads have tiles of their own (../hopper/layout.cuh), N a multiple of 16; sums as in tiles.cu,
// but as few warps share a tile as it has subs, so that heads of 128 inputs leave no warp without work. The order of sums depends on
// K and the format alone.
// Grid: x: blocks of 256 threads for 8 / (warps of a tile) tiles; y: heads × groups of rows, of one row or, wide, eight.
// Bound by memory for one row: every weight is read once.
//
// head_panels: vectors as halves in the panels of a grouped product (../hopper/experts.cuh), each divided by a power of two: the rows
// of a head take consecutive positions, a head is an expert, and a vector a slot. It writes the product's plan, too.
// Grid: a warp a vector, blocks of 256.
#include "formats.cuh"
#include "panels.cuh"
#include "subs.cuh"

// The head of a block and its first row. There are `groups` groups of ROWS rows.
struct HeadRows {
    u32 head, first;
};
DEVICE HeadRows head_rows(u32 number, u32 heads, u32 rows) { return {number % heads, number / heads * rows}; }

template <class Format, u32 ROWS>
DEVICE void head_linear(const HeadLinearParams& p) {
    const u32 n = blockIdx.x * (blockDim.x / 32) + warp(), inputs = p.w.row_len;
    if (n >= p.outputs) {
        return;
    }
    for (u32 number = blockIdx.y; number < p.heads * ((p.rows + ROWS - 1) / ROWS); number += gridDim.y) {
        const HeadRows at = head_rows(number, p.heads, ROWS);
        const u32 row = at.head * p.outputs + n;
        const Part& part = part_of(p.w, row);
        if (part.format != Format::CODE) {
            continue;
        }
        float sums[ROWS] = {};
        const float* x[ROWS];
        for (u32 r = 0; r < ROWS; ++r) {
            // Rows behind the last repeat it; their sums are dropped.
            x[r] = row_of(p.x, min(at.first + r, p.rows - 1) * p.heads + at.head);
        }
        for (u32 k = lane(); k < inputs; k += 32) {
            const float w = Format::at(part, row - part.first_row, k);
#pragma unroll
            for (u32 r = 0; r < ROWS; ++r) {
                sums[r] = fmaf(x[r][k], w, sums[r]);
            }
        }
#pragma unroll
        for (u32 r = 0; r < ROWS; ++r) {
            const float sum = warp_sum(sums[r]);
            if (lane() == 0 && at.first + r < p.rows) {
                p.y[((u64)(at.first + r) * p.heads + at.head) * p.outputs + n] = sum;
            }
        }
    }
}

#define BRASA_HEADS(name, Format)                                                   \
    KERNEL(head_linear_##name, HeadLinearParams) { head_linear<Format, 1>(p); }      \
    KERNEL(head_linear_##name##_wide, HeadLinearParams) { head_linear<Format, 8>(p); }
FORMATS(BRASA_HEADS)

static const u32 HEAD_WARPS = 8;

template <u32 FORMAT, u32 ROWS>
DEVICE void head_tiles(const HeadTilesParams& p) {
    __shared__ float partial[HEAD_WARPS][ROWS][16];
    const brasa::Geometry G = brasa::geometry(FORMAT);
    const u32 g = lane() / 4, t = lane() % 4, place = warp() / p.warps, part = warp() % p.warps;
    const u32 tile = blockIdx.x * (HEAD_WARPS / p.warps) + place;
    for (u32 number = blockIdx.y; number < p.heads * ((p.rows + ROWS - 1) / ROWS); number += gridDim.y) {
        const HeadRows at = head_rows(number, p.heads, ROWS);
        const u8* weights = p.weights + ((u64)at.head * p.tiles + tile) * brasa::tile_bytes(FORMAT, p.subs);
        auto load = [&](Sub<FORMAT>& to, u32 sub) {
            const u8* unit = weights + (u64)(sub / G.unit_subs) * brasa::unit_bytes(FORMAT);
            to.load(unit, unit + G.header_bytes + sub % G.unit_subs * G.sub_bytes, lane());
        };
        float sums[2][ROWS] = {};
        const float* x[ROWS];
        bool aligned = true;
#pragma unroll
        for (u32 r = 0; r < ROWS; ++r) {
            // Rows behind the last repeat it; their sums are dropped.
            x[r] = row_of(p.x, min(at.first + r, p.rows - 1) * p.heads + at.head) + 2 * t;
            aligned = aligned && (u64)x[r] % 8 == 0;
        }
        u32 sub = tile < p.tiles ? part : p.subs;
        Sub<FORMAT> now, next;
        if (sub < p.subs) {
            load(now, sub);
        }
        for (; sub < p.subs; sub += p.warps) {
            load(next, sub + p.warps < p.subs ? sub + p.warps : sub);
            if (aligned && sub * 64 + 64 <= p.inputs) {
                multiply_sub<FORMAT, ROWS, true>(now, x, sub, 0, sums);
            } else {
                const u32 begin = sub * 64 + 2 * t;
                multiply_sub<FORMAT, ROWS, false>(now, x, sub, begin < p.inputs ? p.inputs - begin : 0, sums);
            }
            now = next;
        }
        __syncthreads();
#pragma unroll
        for (u32 r = 0; r < ROWS; ++r) {
#pragma unroll
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
        // A thread an output of a tile and a row: the first warp of each tile, and the warps behind it where there are more rows than it has halves.
        for (u32 i = part * 32 + lane(); tile < p.tiles && i < ROWS * 16; i += p.warps * 32) {
            const u32 r = i / 16, output = i % 16;
            if (at.first + r < p.rows) {
                float sum = 0.0f;
                for (u32 w = 0; w < p.warps; ++w) {
                    sum += partial[place * p.warps + w][r][output];
                }
                p.y[(((u64)(at.first + r) * p.heads + at.head) * p.tiles + tile) * 16 + output] = sum * p.factor;
            }
        }
    }
}

#define BRASA_HEAD_TILES(name, Format)                                                      \
    KERNEL(head_tiles_##name, HeadTilesParams) { head_tiles<Format::FORMAT, 1>(p); }          \
    KERNEL(head_tiles_##name##_wide, HeadTilesParams) { head_tiles<Format::FORMAT, 8>(p); }
TILE_FORMATS(BRASA_HEAD_TILES)

KERNEL(head_panels, HeadPanelsParams) {
    const u32 vector = (u32)(thread_number() / 32);
    if (vector >= p.rows * p.heads) {
        return;
    }
    // The rows of a head follow each other, from a multiple of `aligned` on.
    const u32 head = vector % p.heads, row = vector / p.heads;
    const u32 first = head * ((p.rows + p.aligned - 1) / p.aligned * p.aligned), place = first + row;
    const float* x = row_of(p.x, vector);
    const bool aligned = (u64)x % 16 == 0 && p.inputs % 8 == 0;
    auto load = [&](u32 k, float (&v)[8]) {
        if (aligned && k < p.inputs) {
            load8(x + k, v);
        } else {
#pragma unroll
            for (u32 i = 0; i < 8; ++i) {
                v[i] = k + i < p.inputs ? x[k + i] : 0.0f;
            }
        }
    };
    float largest = 0.0f, v[8];
    for (u32 k = lane() * 8; k < p.inputs; k += 256) {
        load(k, v);
#pragma unroll
        for (u32 i = 0; i < 8; ++i) {
            largest = fmaxf(largest, fabsf(v[i]));
        }
    }
    const RowScale scale(warp_max(largest));
    for (u32 k = lane() * 8; k < p.subs * 64; k += 256) {
        load(k, v);
#pragma unroll
        for (u32 i = 0; i < 8; ++i) {
            v[i] *= scale.down;
        }
        store_halves(panel_piece(p.panels, p.subs, place, k), v);
    }
    if (lane() == 0) {
        p.row_scale[place] = scale.up;
        p.plan.slots[place] = vector;
        const u32 blocks = (p.rows + p.block_rows - 1) / p.block_rows;
        if (row % p.block_rows == 0) {
            u32* to = p.plan.blocks + ((u64)head * blocks + row / p.block_rows) * 3;
            to[0] = head;
            to[1] = place;
            to[2] = first + min(p.rows, row + p.block_rows);
        }
        if (vector == 0) {
            *p.plan.count = p.heads * blocks;
        }
    }
}
