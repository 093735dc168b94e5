// Products of rows in panels (panels.cuh) with up to 64 numbers each, on tensor cores: low-rank products, and the gradients of the matrices that take part in
// them. Halves are numbers of tf32 as they are, and the other operand is the sum of two (tensor.cuh), so that nothing is rounded but the rows.
//
// Nearly bound by memory: every half is read once. Blocks of 128 threads; a warp takes 32 rows, or 32 columns, times 16 numbers. The next 64 are on their
// way meanwhile.
//
// low_rank_product: sums of parts of K of row · w. Grid: x: 16 columns of w; y: 128 rows; z: parts of K.
//
// low_rank_sums: adds them, in order, and writes y = factor · row · w; also as the tail of the row's panels, divided by the row's power of two and by
// another one, since y may be larger than the row. Grid: one thread an element of y, blocks of 256.
//
// low_rank_gradient: dw[n, j] = Σ_r row[r, n] · v[r, j], or sums of parts of the rows, which `matmul_sums` adds. Grid: x: 128 columns of rows; y: 16 of v;
// z: parts of the rows.
#include "panels.cuh"
#include "tensor.cuh"

static const u32 LOW_RANK_COLUMNS = 16, LOW_RANK_THREADS = 128, LOW_RANK_STAGES = 4, PIECE_BYTES = 8192;

// 64 × 16 numbers of the operand of f32 in shared memory: along K, or along its columns. Lanes that read a fragment meet in no bank.
template <bool ALONG_K>
struct ThinTile {
    static const u32 STRIDE = ALONG_K ? 72 : 20, FLOATS = ALONG_K ? LOW_RANK_COLUMNS * STRIDE : 64 * STRIDE;

    // Asks for columns from `column` on of 64 of K from `k` on, 0 where there is none.
    static DEVICE void fetch(float* to, const float* from, u32 k, u32 k_end, u32 k_stride, u32 column, u32 columns, u32 column_stride) {
        const bool aligned = (u64)from % 16 == 0 && (ALONG_K ? column_stride : k_stride) % 4 == 0;
#pragma unroll
        for (u32 n = 0; n < 64 * LOW_RANK_COLUMNS / 4 / LOW_RANK_THREADS; ++n) {
            const u32 piece = n * LOW_RANK_THREADS + threadIdx.x;
            const u32 i = ALONG_K ? piece / 16 : piece % 4 * 4, j = ALONG_K ? piece % 16 * 4 : piece / 4;
            float* place = to + (ALONG_K ? i * STRIDE + j : j * STRIDE + i);
            const float* source = from + (u64)(k + j) * k_stride + (u64)(column + i) * column_stride;
            const bool is_whole = ALONG_K ? column + i < columns && k + j + 4 <= k_end : column + i + 4 <= columns && k + j < k_end;
            if (aligned && is_whole) {
                brasa::copy16(place, source);
            } else {
                Floats4 values;
#pragma unroll
                for (u32 e = 0; e < 4; ++e) {
                    const bool is_there = column + i + (ALONG_K ? 0 : e) < columns && k + j + (ALONG_K ? e : 0) < k_end;
                    values.at[e] = is_there ? source[(u64)e * (ALONG_K ? k_stride : column_stride)] : 0.0f;
                }
                *(Floats4*)place = values;
            }
        }
    }
    // Numbers `k` and `k + 1` of column `column`.
    static DEVICE Floats2 pair(const float* tile, u32 k, u32 column) {
        if (ALONG_K) {
            return *(const Floats2*)(tile + column * STRIDE + k);
        }
        return {{tile[k * STRIDE + column], tile[(k + 1) * STRIDE + column]}};
    }
};

// Two halves as numbers of tf32.
DEVICE void of_halves(u32 word, u32& lower, u32& upper) {
    lower = __float_as_uint(half_to_float((unsigned short)word));
    upper = __float_as_uint(half_to_float((unsigned short)(word >> 16)));
}

// sums += halves · numbers for 16 of K: of 32 rows (halves[f]: rows 16·f …, as `load_matrix4` gives them) and 16 columns. `pair(k, column)`: see ThinTile.
template <class Pair>
DEVICE void multiply_thin(float (&sums)[2][2][4], const u32 (&halves)[2][4], Pair pair) {
    const u32 g = lane() / 4, t = lane() % 4;
#pragma unroll
    for (u32 side = 0; side < 2; ++side) {
        u32 a[2][4];
#pragma unroll
        for (u32 f = 0; f < 2; ++f) {
            of_halves(halves[f][2 * side], a[f][0], a[f][2]);
            of_halves(halves[f][2 * side + 1], a[f][1], a[f][3]);
        }
#pragma unroll
        for (u32 n = 0; n < 2; ++n) {
            const Floats2 numbers = pair(8 * side + 2 * t, 8 * n + g);
            brasa::Parts<2> b;
            b.set(0, numbers.at[0]);
            b.set(1, numbers.at[1]);
#pragma unroll
            for (u32 f = 0; f < 2; ++f) {
                brasa::mma_tf32(sums[f][n], a[f], b.rest[0], b.rest[1]);
                brasa::mma_tf32(sums[f][n], a[f], b.upper[0], b.upper[1]);
            }
        }
    }
}

// The lane's address of a piece of eight halves in a sub of a panel.
DEVICE const u8* piece_of(const u8* sub, u32 row, u32 piece) { return sub + row * 128 + (piece ^ row % 8) * 16; }

// Calls `multiply(step, stage)` for the steps from `begin` to before `end`, while the next three, which `fetch(step, stage)` asks for, are on their way.
// Stages of STAGE bytes take turns.
template <u32 STAGE, class Fetch, class Multiply>
DEVICE void each_step(u32 begin, u32 end, u8* shared, Fetch fetch, Multiply multiply) {
    auto begin_fetch = [&](u32 step) {
        if (step < end) {
            fetch(step, shared + (step - begin) % LOW_RANK_STAGES * STAGE);
        }
        brasa::copies_end_group();
    };
#pragma unroll
    for (u32 ahead = 0; ahead < LOW_RANK_STAGES - 1; ++ahead) {
        begin_fetch(begin + ahead);
    }
    for (u32 step = begin; step < end; ++step) {
        brasa::wait_for_groups<LOW_RANK_STAGES - 2>();
        __syncthreads();
        // All have left the stage of the last step.
        begin_fetch(step + LOW_RANK_STAGES - 1);
        multiply(step, shared + (step - begin) % LOW_RANK_STAGES * STAGE);
    }
}

// Calls `store(row, column, sum)` for each of the thread's sums, of the block's 128 rows from `row` on and its 16 columns from `column` on.
template <class Store>
DEVICE void each_sum(const float (&sums)[2][2][4], u32 row, u32 column, Store store) {
    const u32 g = lane() / 4, t = lane() % 4;
#pragma unroll
    for (u32 i = 0; i < 16; ++i) {
        const u32 f = i / 8, n = i / 4 % 2, c = i % 4;
        store(row + warp() * 32 + 16 * f + g + c / 2 * 8, column + 8 * n + 2 * t + c % 2, sums[f][n][c]);
    }
}

template <bool ALONG_K>
DEVICE void low_rank_product_along(const LowRankParams& p, u8* shared) {
    typedef ThinTile<ALONG_K> Thin;
    const u32 STAGE = 2 * PIECE_BYTES + Thin::FLOATS * 4;
    const u32 column = blockIdx.x * LOW_RANK_COLUMNS, first_panel = blockIdx.y * 2, panels = (p.rows + 63) / 64;
    const u32 subs = (p.width + 63) / 64, begin = blockIdx.z * p.part, end = min(begin + p.part, subs);
    auto fetch = [&](u32 sub, u8* stage) {
#pragma unroll
        for (u32 n = 0; n < 2 * PIECE_BYTES / 16 / LOW_RANK_THREADS; ++n) {
            const u32 place = (n * LOW_RANK_THREADS + threadIdx.x) * 16, panel = first_panel + place / PIECE_BYTES;
            if (panel < panels) {
                brasa::copy16(stage + place, p.panels + ((u64)panel * p.subs + sub) * PIECE_BYTES + place % PIECE_BYTES);
            }
        }
        Thin::fetch((float*)(stage + 2 * PIECE_BYTES), p.w, sub * 64, p.width, p.w_k, column, p.columns, p.w_column);
    };
    const u32 row = warp() % 2 * 32, within = lane() % 16, upper = lane() / 16;
    float sums[2][2][4] = {};
    each_step<STAGE>(begin, end, shared, fetch, [&](u32, const u8* stage) {
        const u8* halves = stage + warp() / 2 * PIECE_BYTES;
        const float* thin = (const float*)(stage + 2 * PIECE_BYTES);
#pragma unroll
        for (u32 s = 0; s < 4; ++s) {
            u32 of_rows[2][4];
#pragma unroll
            for (u32 f = 0; f < 2; ++f) {
                brasa::load_matrix4(of_rows[f], brasa::shared_address(piece_of(halves, row + 16 * f + within, 2 * s + upper)));
            }
            multiply_thin(sums, of_rows, [&](u32 k, u32 j) { return Thin::pair(thin, 16 * s + k, j); });
        }
    });
    each_sum(sums, first_panel * 64, column, [&](u32 r, u32 j, float sum) {
        if (r < p.rows && j < p.columns) {
            p.partial[((u64)blockIdx.z * p.rows + r) * p.columns + j] = sum;
        }
    });
}

KERNEL_WITHIN(__launch_bounds__(128, 2), low_rank_product, LowRankParams) {
    DYNAMIC_SHARED(shared);
    if (p.w_k == 1) {
        low_rank_product_along<true>(p, (u8*)shared);
    } else {
        low_rank_product_along<false>(p, (u8*)shared);
    }
}

KERNEL(low_rank_sums, LowRankParams) {
    const u64 i = thread_number();
    if (i >= (u64)p.rows * p.columns) {
        return;
    }
    const u32 row = (u32)(i / p.columns), j = (u32)(i % p.columns);
    float sum = 0.0f;
#pragma unroll 8
    for (u32 part = 0; part < p.parts; ++part) {
        sum += p.partial[(u64)part * p.rows * p.columns + i];
    }
    sum *= p.factor;
    p.y[i] = sum * p.row_scale[row];
    if (p.tail_factor > 0.0f) {
        const float half = fminf(fmaxf(sum * p.tail_factor, -65504.0f), 65504.0f);
        *(unsigned short*)(panel_piece(p.panels, p.subs, row, (p.subs - 1) * 64 + j / 8 * 8) + j % 8 * 2) = float_to_half(half);
    }
}

KERNEL_WITHIN(__launch_bounds__(128, 2), low_rank_gradient, LowRankParams) {
    typedef ThinTile<false> Thin;
    const u32 STAGE = 2 * PIECE_BYTES + Thin::FLOATS * 4 + 256;
    static_assert(LOW_RANK_STAGES * STAGE <= LOW_RANK_SHARED, "stages of both kernels fit");
    DYNAMIC_SHARED(shared);
    const u32 first_sub = blockIdx.x * 2, subs = (p.width + 63) / 64, column = blockIdx.y * LOW_RANK_COLUMNS;
    const u32 panels = (p.rows + 63) / 64, begin = blockIdx.z * p.part, end = min(begin + p.part, panels);
    auto fetch = [&](u32 panel, u8* stage) {
#pragma unroll
        for (u32 n = 0; n < 2 * PIECE_BYTES / 16 / LOW_RANK_THREADS; ++n) {
            const u32 place = (n * LOW_RANK_THREADS + threadIdx.x) * 16, sub = first_sub + place / PIECE_BYTES, within = place % PIECE_BYTES;
            if (panel * 64 + within / 128 >= p.rows) {
                // Nothing was rounded to there.
                *(Halves8*)(stage + place) = {};
            } else if (sub < subs) {
                brasa::copy16(stage + place, p.panels + ((u64)panel * p.subs + sub) * PIECE_BYTES + within);
            }
        }
        Thin::fetch((float*)(stage + 2 * PIECE_BYTES), p.w, panel * 64, p.rows, p.w_k, column, p.columns, p.w_column);
        if (threadIdx.x < 16) {
            brasa::copy16(stage + STAGE - 256 + threadIdx.x * 16, p.row_scale + panel * 64 + threadIdx.x * 4);
        }
    };
    const u32 piece = warp() % 2 * 4 + lane() / 8 % 2, within = lane() % 8 + lane() / 16 * 8;
    float sums[2][2][4] = {};
    each_step<STAGE>(begin, end, (u8*)shared, fetch, [&](u32 panel, const u8* stage) {
        const u8* halves = stage + warp() / 2 * PIECE_BYTES;
        const float* thin = (const float*)(stage + 2 * PIECE_BYTES);
        const float* scales = (const float*)(stage + STAGE - 256);
#pragma unroll
        for (u32 s = 0; s < 4; ++s) {
            u32 of_columns[2][4];
#pragma unroll
            for (u32 f = 0; f < 2; ++f) {
                brasa::load_matrix4_transposed(of_columns[f], brasa::shared_address(piece_of(halves, 16 * s + within, piece + 2 * f)));
            }
            multiply_thin(sums, of_columns, [&](u32 k, u32 j) {
                const u32 row = panel * 64 + 16 * s + k;
                const Floats2 scale = *(const Floats2*)(scales + 16 * s + k), numbers = Thin::pair(thin, 16 * s + k, j);
                return Floats2{{row < p.rows ? numbers.at[0] * scale.at[0] : 0.0f, row + 1 < p.rows ? numbers.at[1] * scale.at[1] : 0.0f}};
            });
        }
    });
    float* to = p.parts == 1 ? p.y : p.partial + (u64)blockIdx.z * p.width * p.columns;
    each_sum(sums, blockIdx.x * 128, column, [&](u32 x, u32 j, float sum) {
        if (x < p.width && j < p.columns) {
            to[(u64)x * p.y_row + (u64)j * p.y_column] = sum;
        }
    });
}
