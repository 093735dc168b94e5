// gemm_panels: rows of x, normed where a norm is there, as halves in the panels that wgmma reads (../hopper/layout.cuh), each row
// divided by a power of two. A tail, which is there without a norm only, is rounded with its row.
// Grid: a block a row, up to 1,024 threads.
//
// Where products with the rows are gated and rounded in turn, both of these kernels say by which power of two: |act(g)| <= |g|, and no
// product is larger than the norm of the row times the largest norm of a weight's row, with a bank's of the low-rank matrix beside it, too. Halves lie 39 powers of two apart from their
// smallest step, so a bound that is a thousand times too large costs nothing that shows.
//
// gemm_sums: adds the sums that blocks made of parts of K, in order, and writes outputs.
// Grid: x: one thread an output of a tile's half, blocks of 256; y: rows.
//
// gemm_sums_panels: both, one after the other, for a whole weight without paired halves: adds parts, bias and residual, writes y, and
// rounds y, normed, for the product behind. As many threads a row as gemm_panels has give the same bits.
// Grid: a block a row; eight outputs a thread and turn, at most two turns. Widths are multiples of eight, operands aligned to 16 bytes.
#include "outputs.cuh"
#include "panels.cuh"

// Facts of a row: the sum of its squares, of those of its elements times the norm's weights, and the largest magnitude of these.
struct RowFacts {
    float squares = 0.0f, weighted = 0.0f, largest = 0.0f;

    DEVICE void add(const float (&v)[8], const float (&of_norm)[8]) {
#pragma unroll
        for (u32 i = 0; i < 8; ++i) {
            const float x = v[i] * of_norm[i];
            squares = fmaf(v[i], v[i], squares);
            weighted = fmaf(x, x, weighted);
            largest = fmaxf(largest, fabsf(x));
        }
    }

    // The block's, by warps and then by one warp's shuffles. `scratch` holds 96 floats of shared memory and is used once.
    DEVICE void gather(float* scratch) {
        squares = warp_sum(squares);
        weighted = warp_sum(weighted);
        largest = warp_max(largest);
        if (lane() == 0) {
            scratch[warp()] = squares;
            scratch[32 + warp()] = weighted;
            scratch[64 + warp()] = largest;
        }
        __syncthreads();
        const bool has_warp = lane() < blockDim.x / 32;
        squares = warp_sum(has_warp ? scratch[lane()] : 0.0f);
        weighted = warp_sum(has_warp ? scratch[32 + lane()] : 0.0f);
        largest = warp_max(has_warp ? scratch[64 + lane()] : 0.0f);
    }

    // By what the row's norm multiplies it.
    DEVICE float scale(const Norm& norm, u32 width) const {
        return norm.is_there ? 1.0f / sqrtf(squares / (float)width + norm.eps) : 1.0f;
    }
};

// The largest squared norm of a row of the low-rank matrix that stands beside a row's gates: (B·diag(s)·A)² <= B² s² A². Of a block's first warp.
DEVICE float low_rank_norm(const Gates& gates, u32 row) {
    if (gates.of_a == nullptr || warp() != 0) {
        return 0.0f;
    }
    const float* factors = row_of(gates.factors, row);
    float squares = 0.0f;
    for (u32 i = lane(); i < gates.factors.width; i += 32) {
        squares = fmaf(factors[i], factors[i], squares);
    }
    return warp_sum(squares) * *gates.of_a * *gates.of_b;
}

// The power of two of the gated products of a row whose squares have the sum `squares`; `beside` as low_rank_norm tells.
DEVICE void scale_gates(const Gates& gates, u32 row, float squares, float beside) {
    if (threadIdx.x == 0 && gates.largest != nullptr) {
        const float norm = sqrtf(*gates.largest) + sqrtf(beside);
        gates.row_scale[row] = RowScale(squares * (beside == 0.0f ? *gates.largest : norm * norm)).up;
    }
}

KERNEL(gemm_panels, PanelsParams) {
    __shared__ float scratch[96];
    u32 row = blockIdx.x;
    const float* x = row_of(p.x, row);
    const float* w = p.norm.weight;
    bool aligned = ((u64)x | (u64)w) % 16 == 0 && p.inputs % 8 == 0;
    auto load = [&](const float* from, u32 k, float (&v)[8]) {
        if (aligned) {
            load8(from + k, v);
        } else {
#pragma unroll
            for (u32 i = 0; i < 8; ++i) {
                v[i] = k + i < p.inputs ? from[k + i] : 0.0f;
            }
        }
    };
    const float beside = low_rank_norm(p.gates, row);
    RowFacts facts;
    for (u32 k = threadIdx.x * 8; k < p.inputs; k += blockDim.x * 8) {
        float v[8], of_norm[8] = {1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f};
        load(x, k, v);
        if (w != nullptr) {
            load(w, k, of_norm);
        }
        facts.add(v, of_norm);
    }
    const float* tail = p.tail.data == nullptr ? nullptr : row_of(p.tail, row);
    const u32 tail_width = tail == nullptr ? 0 : p.tail.width;
    for (u32 k = threadIdx.x; k < tail_width; k += blockDim.x) {
        facts.largest = fmaxf(facts.largest, fabsf(tail[k]));
    }
    facts.gather(scratch);
    const float scale = facts.scale(p.norm, p.inputs);
    const RowScale of_row(facts.largest * scale);
    if (threadIdx.x == 0) {
        p.row_scale[row] = of_row.up;
    }
    scale_gates(p.gates, row, facts.weighted * scale * scale, beside);
    for (u32 k = threadIdx.x * 8; k < p.subs * 64; k += blockDim.x * 8) {
        float v[8] = {}, of_norm[8] = {1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f};
        if (k < p.inputs) {
            load(x, k, v);
            if (w != nullptr) {
                load(w, k, of_norm);
            }
        }
#pragma unroll
        for (u32 i = 0; i < 8; ++i) {
            v[i] = v[i] * (scale * of_norm[i]) * of_row.down;
        }
        const u32 of_tail = k - (p.subs - 1) * 64;
        if (tail != nullptr && of_tail < 64) {
#pragma unroll
            for (u32 i = 0; i < 8; ++i) {
                v[i] = of_tail + i < tail_width ? tail[of_tail + i] * of_row.down : 0.0f;
            }
        }
        store_halves(panel_piece(p.panels, p.subs, row, k), v);
    }
}

KERNEL(gemm_sums, GemmSumParams) {
    u64 i = thread_number();
    if (i >= (u64)p.tiles * 8) {
        return;
    }
    u32 tile = (u32)(i / 8), g = (u32)(i % 8), width = p.tiles * 16;
    for (u32 row = blockIdx.y; row < p.rows; row += gridDim.y) {
        float lower = 0.0f, upper = 0.0f;
        for (u32 split = 0; split < p.splits; ++split) {
            const float* sums = p.partial + ((u64)split * p.rows + row) * width + tile * 16 + g;
            lower += sums[0];
            upper += sums[8];
        }
        write_outputs(p.out, row, tile, g, lower, upper);
    }
}

KERNEL_WITHIN(__launch_bounds__(1024), gemm_sums_panels, GemmSumsPanelsParams) {
    __shared__ float scratch[96];
    const u32 TURNS = 2;
    const GemmSumParams& sums = p.sums;
    const Outputs& out = sums.out;
    const u32 row = blockIdx.x, width = out.count, part_width = sums.tiles * 16, step = blockDim.x * 8, first = threadIdx.x * 8;
    const float* residual = out.residual.data == nullptr ? nullptr : row_of(out.residual, row);
    const float* w = p.norm.weight;
    float v[TURNS][8] = {};
    const float beside = low_rank_norm(p.gates, row);
    RowFacts facts;
#pragma unroll
    for (u32 turn = 0; turn < TURNS; ++turn) {
        const u32 k = turn * step + first;
        if (k < width) {
            // What does not wait for sums is asked for first.
            float before[8], more[8], of_norm[8] = {1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f};
            if (residual != nullptr) {
                load8(residual + k, before);
            }
            if (w != nullptr) {
                load8(w + k, of_norm);
            }
            add_parts<2>(sums.partial + (u64)row * part_width + k, (u64)sums.rows * part_width, sums.splits, v[turn]);
            if (out.bias != nullptr) {
                load8(out.bias + k, more);
#pragma unroll
                for (u32 i = 0; i < 8; ++i) {
                    v[turn][i] += more[i];
                }
            }
            if (residual != nullptr) {
#pragma unroll
                for (u32 i = 0; i < 8; ++i) {
                    v[turn][i] = before[i] + v[turn][i];
                }
            }
            store8(out.y + (u64)row * out.y_width + k, v[turn]);
            facts.add(v[turn], of_norm);
        }
    }
    facts.gather(scratch);
    const float scale = facts.scale(p.norm, width);
    const RowScale of_row(facts.largest * scale);
    if (threadIdx.x == 0) {
        p.row_scale[row] = of_row.up;
    }
    scale_gates(p.gates, row, facts.weighted * scale * scale, beside);
#pragma unroll
    for (u32 turn = 0; turn < TURNS; ++turn) {
        const u32 k = turn * step + first;
        if (k < width) {
            float of_norm[8] = {1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f};
            if (w != nullptr) {
                load8(w + k, of_norm);
            }
#pragma unroll
            for (u32 i = 0; i < 8; ++i) {
                v[turn][i] = v[turn][i] * (scale * of_norm[i]) * of_row.down;
            }
            store_halves(panel_piece(p.panels, p.subs, row, k), v[turn]);
        }
    }
    fill_panels(p.panels, p.subs, row, width);
}
