// Attention to the rows of the step, and its gradient, in tiles of 64 queries and 64 keys: what attention_step, attention_gradient_queries and
// attention_gradient_keys compute (attention.cu, gradients.cu), f32 throughout, for heads of up to 128, a multiple of four, whose values are as wide. Operands are
// aligned to 16 bytes.
// Grid: x: tiles of queries or keys, those of a segment behind each other; y: heads, of keys KV heads. A block of 256 threads.
// Shared memory: 3 or 4 tiles of 64 · (E + 4) floats, and one or two of 64 · 68.
//
// Thread (ty, tx) of 16 × 16 has the scores of queries 4·ty.. and keys tx, tx + 16, …, so that lanes which read neighbouring keys meet in no bank,
// and of sums of 64 rows the rows 4·ty.. and columns 4·tx.., 64 + 4·tx... Tiles begin where a segment does, so a row computes the same bits whatever
// else is in its step. Bound by multiplications: 64 of them for eight loads of 16 bytes.
#include "gradients.cuh"

static const u32 TILE_ROWS = 64, WEIGHTS_STRIDE = 68;

// The segment and the first row within it of tile `number`; false behind the last.
DEVICE bool find_tile(const StepRows& step, u32 number, u32& segment, u32& first) {
    for (segment = 0; segment < step.segments_count; ++segment) {
        const u32 tiles = (step.segments[segment].rows + TILE_ROWS - 1) / TILE_ROWS;
        if (number < tiles) {
            first = number * TILE_ROWS;
            return true;
        }
        number -= tiles;
    }
    return false;
}

// The first `rows` rows of a tile, at most 64, zeros behind them; several pieces are on their way at a time.
DEVICE void load_tile(float* to, const float* from, u64 stride, u32 rows, u32 width) {
    const u32 pieces = width / 4, BATCH = 8;
    for (u32 first = threadIdx.x; first < TILE_ROWS * pieces; first += BATCH * blockDim.x) {
        Floats4 batch[BATCH];
#pragma unroll
        for (u32 n = 0; n < BATCH; ++n) {
            const u32 i = first + n * blockDim.x, row = i / pieces, e = i % pieces * 4;
            batch[n] = {{0.0f, 0.0f, 0.0f, 0.0f}};
            if (row < rows) {
                batch[n] = *(const Floats4*)(from + row * stride + e);
            }
        }
#pragma unroll
        for (u32 n = 0; n < BATCH; ++n) {
            const u32 i = first + n * blockDim.x, row = i / pieces, e = i % pieces * 4;
            if (row < TILE_ROWS) {
                *(Floats4*)(to + row * (width + 4) + e) = batch[n];
            }
        }
    }
}

// Products of the thread's rows of two tiles.
DEVICE void multiply_rows(const float* a, const float* b, u32 width, float (&products)[4][4]) {
    const u32 ty = threadIdx.x / 16, tx = threadIdx.x % 16, stride = width + 4;
#pragma unroll
    for (u32 i = 0; i < 16; ++i) {
        products[i / 4][i % 4] = 0.0f;
    }
    for (u32 e = 0; e < width; e += 4) {
        Floats4 of_a[4], of_b[4];
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            of_a[i] = *(const Floats4*)(a + (4 * ty + i) * stride + e);
            of_b[i] = *(const Floats4*)(b + (tx + 16 * i) * stride + e);
        }
#pragma unroll
        for (u32 i = 0; i < 64; ++i) {
            const u32 m = i / 16, n = i / 4 % 4, at = i % 4;
            products[m][n] = fmaf(of_a[m].at[at], of_b[n].at[at], products[m][n]);
        }
    }
}

// Sums of 64 rows for each of the thread's rows and columns.
struct TileSums {
    float at[4][8];

    DEVICE void clear() {
#pragma unroll
        for (u32 i = 0; i < 32; ++i) {
            at[i / 8][i % 8] = 0.0f;
        }
    }
    DEVICE void scale(u32 row, float factor) {
#pragma unroll
        for (u32 i = 0; i < 8; ++i) {
            at[row][i] *= factor;
        }
    }
    DEVICE void add(u32 row, u32 part, float weight, const Floats4& values) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            at[row][part * 4 + i] = fmaf(weight, values.at[i], at[row][part * 4 + i]);
        }
    }
    // Adds weights[row][j] · values[j].
    DEVICE void add_by_rows(const float* weights, const float* values, u32 width) {
        const u32 ty = threadIdx.x / 16, tx = threadIdx.x % 16;
        for (u32 j = 0; j < TILE_ROWS; j += 4) {
            Floats4 of_rows[4];
#pragma unroll
            for (u32 row = 0; row < 4; ++row) {
                of_rows[row] = *(const Floats4*)(weights + (4 * ty + row) * WEIGHTS_STRIDE + j);
            }
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
#pragma unroll
                for (u32 part = 0; part < 2; ++part) {
                    const u32 e = 64 * part + 4 * tx;
                    if (e < width) {
                        const Floats4 piece = *(const Floats4*)(values + (j + i) * (width + 4) + e);
#pragma unroll
                        for (u32 row = 0; row < 4; ++row) {
                            add(row, part, of_rows[row].at[i], piece);
                        }
                    }
                }
            }
        }
    }
    // Adds weights[i][row] · values[i].
    DEVICE void add_by_columns(const float* weights, const float* values, u32 width) {
        const u32 ty = threadIdx.x / 16, tx = threadIdx.x % 16;
        for (u32 i = 0; i < TILE_ROWS; ++i) {
            const Floats4 of_rows = *(const Floats4*)(weights + i * WEIGHTS_STRIDE + 4 * ty);
#pragma unroll
            for (u32 part = 0; part < 2; ++part) {
                const u32 e = 64 * part + 4 * tx;
                if (e < width) {
                    const Floats4 piece = *(const Floats4*)(values + i * (width + 4) + e);
#pragma unroll
                    for (u32 row = 0; row < 4; ++row) {
                        add(row, part, of_rows.at[row], piece);
                    }
                }
            }
        }
    }
    // Writes the first `rows` rows, `stride` floats apart.
    DEVICE void store(float* to, u64 stride, u32 rows, u32 width) const {
        const u32 ty = threadIdx.x / 16, tx = threadIdx.x % 16;
#pragma unroll
        for (u32 row = 0; row < 4; ++row) {
#pragma unroll
            for (u32 part = 0; part < 2; ++part) {
                const u32 e = 64 * part + 4 * tx;
                if (4 * ty + row < rows && e < width) {
                    const float* v = at[row] + part * 4;
                    *(Floats4*)(to + (4 * ty + row) * stride + e) = {{v[0], v[1], v[2], v[3]}};
                }
            }
        }
    }
};

// Sums and largest numbers of the 16 threads that share queries.
DEVICE float sum_of_keys(float x) {
    for (int distance = 8; distance > 0; distance /= 2) {
        x += __shfl_xor_sync(0xffffffffu, x, distance);
    }
    return x;
}
DEVICE float max_of_keys(float x) {
    for (int distance = 8; distance > 0; distance /= 2) {
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, distance));
    }
    return x;
}

// Products of queries and keys become scores, −∞ where a query does not see a key; and the slopes of their soft-caps.
DEVICE void score_tile(const AttentionParams& p, const SegmentRows& rows, u32 head, u32 query, u32 key, float (&scores)[4][4], float (&slopes)[4][4]) {
    const u32 ty = threadIdx.x / 16, tx = threadIdx.x % 16;
#pragma unroll
    for (u32 m = 0; m < 4; ++m) {
        const u32 i = query + 4 * ty + m;
        const Sight sight(p, rows, i < rows.rows ? i : 0);
#pragma unroll
        for (u32 n = 0; n < 4; ++n) {
            const u32 j = key + tx + 16 * n;
            const Score score(p, head, sight.place, j, scores[m][n]);
            scores[m][n] = i < rows.rows && sight.sees(p, j) ? score.value : -INFINITY;
            slopes[m][n] = score.slope;
        }
    }
}

// What queries of a tile see: keys from `begin` to before `end`.
struct KeyRange {
    u32 begin, end;

    DEVICE KeyRange(const AttentionParams& p, const SegmentRows& rows, u32 first) {
        const u32 last = first + TILE_ROWS < rows.rows ? first + TILE_ROWS - 1 : rows.rows - 1;
        begin = rows.has_tree ? 0 : Sight(p, rows, first).first / TILE_ROWS * TILE_ROWS;
        end = Sight(p, rows, last).end;
    }
};

DEVICE u32 rows_left(const SegmentRows& rows, u32 first) { return rows.rows - first < TILE_ROWS ? rows.rows - first : TILE_ROWS; }

KERNEL(attention_tiles, AttentionParams) {
    DYNAMIC_SHARED(shared);
    u32 segment, first;
    if (!find_tile(p.step, blockIdx.x, segment, first)) {
        return;
    }
    const u32 width = p.head_dim, size = TILE_ROWS * (width + 4), h = blockIdx.y, g = h / (p.heads / p.kv_heads);
    const u32 ty = threadIdx.x / 16, tx = threadIdx.x % 16;
    float *q = shared, *k = q + size, *v = k + size, *weights = v + size;
    const SegmentRows& rows = p.step.segments[segment];
    const u64 row = rows.first_row + first;
    load_tile(q, p.q + row * p.q_stride + h * width, p.q_stride, rows_left(rows, first), width);
    OnlineSoftmax<PowersOfE> softmax[4];
    TileSums sums;
    sums.clear();
#pragma unroll
    for (u32 m = 0; m < 4; ++m) {
        softmax[m].begin(p.sinks, h);
    }
    const KeyRange range(p, rows, first);
    for (u32 key = range.begin; key < range.end; key += TILE_ROWS) {
        const StepHead head(p, segment, key, g);
        __syncthreads();
        load_tile(k, head.keys, head.k_stride, rows_left(rows, key), width);
        load_tile(v, head.values, head.v_stride, rows_left(rows, key), width);
        __syncthreads();
        float scores[4][4], slopes[4][4];
        multiply_rows(q, k, width, scores);
        score_tile(p, rows, h, first, key, scores, slopes);
#pragma unroll
        for (u32 m = 0; m < 4; ++m) {
            float higher = max_of_keys(fmaxf(fmaxf(scores[m][0], scores[m][1]), fmaxf(scores[m][2], scores[m][3])));
            const float shrink = softmax[m].raise(fmaxf(softmax[m].largest, higher));
            float sum = 0.0f;
#pragma unroll
            for (u32 n = 0; n < 4; ++n) {
                const float weight = softmax[m].weigh(scores[m][n]);
                sum += weight;
                weights[(4 * ty + m) * WEIGHTS_STRIDE + tx + 16 * n] = weight;
            }
            softmax[m].add(shrink, sum_of_keys(sum));
            sums.scale(m, shrink);
        }
        __syncthreads();
        sums.add_by_rows(weights, v, width);
    }
#pragma unroll
    for (u32 m = 0; m < 4; ++m) {
        sums.scale(m, 1.0f / softmax[m].total);
    }
    const u64 to_stride = (u64)p.heads * width;
    sums.store(p.y + row * to_stride + h * width, to_stride, rows_left(rows, first), width);
}

KERNEL(attention_gradient_query_tiles, AttentionGradientParams) {
    DYNAMIC_SHARED(shared);
    const AttentionParams& a = p.attention;
    u32 segment, first;
    if (!find_tile(a.step, blockIdx.x, segment, first)) {
        return;
    }
    const u32 width = a.head_dim, size = TILE_ROWS * (width + 4), h = blockIdx.y, g = h / (a.heads / a.kv_heads);
    const u32 ty = threadIdx.x / 16, tx = threadIdx.x % 16;
    float *q = shared, *dy = q + size, *k = dy + size, *v = k + size, *changes = v + size;
    const SegmentRows& rows = a.step.segments[segment];
    const u64 row = rows.first_row + first, stride = (u64)a.heads * width;
    load_tile(q, a.q + row * a.q_stride + h * width, a.q_stride, rows_left(rows, first), width);
    load_tile(dy, p.dy + row * stride + h * width, stride, rows_left(rows, first), width);
    float largest[4], total[4], mean[4];
    TileSums dq;
    dq.clear();
#pragma unroll
    for (u32 m = 0; m < 4; ++m) {
        largest[m] = a.sinks == nullptr ? -INFINITY : a.sinks[h];
        total[m] = a.sinks == nullptr ? 0.0f : 1.0f;
        mean[m] = 0.0f;
    }
    const KeyRange range(a, rows, first);
    for (u32 pass = 0; pass < 2; ++pass) {
        for (u32 key = range.begin; key < range.end; key += TILE_ROWS) {
            const StepHead head(a, segment, key, g);
            __syncthreads();
            load_tile(k, head.keys, head.k_stride, rows_left(rows, key), width);
            load_tile(v, head.values, head.v_stride, rows_left(rows, key), width);
            __syncthreads();
            float scores[4][4], slopes[4][4], dp[4][4];
            multiply_rows(q, k, width, scores);
            score_tile(a, rows, h, first, key, scores, slopes);
            multiply_rows(dy, v, width, dp);
            if (pass == 0) {
#pragma unroll
                for (u32 m = 0; m < 4; ++m) {
                    float higher = max_of_keys(fmaxf(fmaxf(scores[m][0], scores[m][1]), fmaxf(scores[m][2], scores[m][3])));
                    higher = fmaxf(largest[m], higher);
                    const bool sees = higher != -INFINITY;
                    const float shrink = sees ? expf(largest[m] - higher) : 1.0f;
                    float sum = 0.0f, products = 0.0f;
#pragma unroll
                    for (u32 n = 0; n < 4; ++n) {
                        const float weight = sees ? expf(scores[m][n] - higher) : 0.0f;
                        sum += weight;
                        products = fmaf(weight, dp[m][n], products);
                    }
                    total[m] = total[m] * shrink + sum_of_keys(sum);
                    mean[m] = mean[m] * shrink + sum_of_keys(products);
                    largest[m] = higher;
                }
                continue;
            }
#pragma unroll
            for (u32 m = 0; m < 4; ++m) {
#pragma unroll
                for (u32 n = 0; n < 4; ++n) {
                    const float share = scores[m][n] == -INFINITY ? 0.0f : expf(scores[m][n] - largest[m]) / total[m];
                    changes[(4 * ty + m) * WEIGHTS_STRIDE + tx + 16 * n] = slopes[m][n] * a.scale * share * (dp[m][n] - mean[m]);
                }
            }
            __syncthreads();
            dq.add_by_rows(changes, k, width);
        }
        if (pass == 0) {
#pragma unroll
            for (u32 m = 0; m < 4; ++m) {
                mean[m] /= total[m];
            }
        }
    }
    dq.store(a.y + row * stride + h * width, stride, rows_left(rows, first), width);
#pragma unroll
    for (u32 m = 0; m < 4; ++m) {
        if (tx == 0 && 4 * ty + m < rows_left(rows, first)) {
            float* sums = p.sums + 3 * ((row + 4 * ty + m) * a.heads + h);
            sums[0] = largest[m];
            sums[1] = total[m];
            sums[2] = mean[m];
        }
    }
}

KERNEL(attention_gradient_key_tiles, AttentionGradientParams) {
    DYNAMIC_SHARED(shared);
    const AttentionParams& a = p.attention;
    u32 segment, first;
    if (!find_tile(a.step, blockIdx.x, segment, first)) {
        return;
    }
    const u32 width = a.head_dim, size = TILE_ROWS * (width + 4), g = blockIdx.y, sharing = a.heads / a.kv_heads;
    const u32 ty = threadIdx.x / 16, tx = threadIdx.x % 16;
    float *q = shared, *dy = q + size, *k = dy + size, *v = k + size, *changes = v + size, *weights = changes + TILE_ROWS * WEIGHTS_STRIDE;
    const SegmentRows& rows = a.step.segments[segment];
    const u64 stride = (u64)a.heads * width, kv_stride = (u64)a.kv_heads * width;
    const StepHead head(a, segment, first, g);
    load_tile(k, head.keys, head.k_stride, rows_left(rows, first), width);
    load_tile(v, head.values, head.v_stride, rows_left(rows, first), width);
    TileSums dk, dv;
    dk.clear();
    dv.clear();
    const QueryRange range(a, rows, first, first + rows_left(rows, first) - 1);
    for (u32 h = g * sharing; h < (g + 1) * sharing; ++h) {
        for (u32 query = range.begin / TILE_ROWS * TILE_ROWS; query < range.end; query += TILE_ROWS) {
            const u64 row = rows.first_row + query;
            __syncthreads();
            load_tile(q, a.q + row * a.q_stride + h * width, a.q_stride, rows_left(rows, query), width);
            load_tile(dy, p.dy + row * stride + h * width, stride, rows_left(rows, query), width);
            __syncthreads();
            float scores[4][4], slopes[4][4], dp[4][4];
            multiply_rows(q, k, width, scores);
            score_tile(a, rows, h, query, first, scores, slopes);
            multiply_rows(dy, v, width, dp);
#pragma unroll
            for (u32 m = 0; m < 4; ++m) {
                const u32 i = 4 * ty + m;
                const float* sums = p.sums + 3 * ((row + (i < rows_left(rows, query) ? i : 0)) * a.heads + h);
#pragma unroll
                for (u32 n = 0; n < 4; ++n) {
                    const float share = scores[m][n] == -INFINITY ? 0.0f : expf(scores[m][n] - sums[0]) / sums[1];
                    weights[i * WEIGHTS_STRIDE + tx + 16 * n] = share;
                    changes[i * WEIGHTS_STRIDE + tx + 16 * n] = slopes[m][n] * a.scale * share * (dp[m][n] - sums[2]);
                }
            }
            __syncthreads();
            dv.add_by_columns(weights, dy, width);
            dk.add_by_columns(changes, q, width);
        }
    }
    const u64 to = (rows.first_row + first) * kv_stride + g * width;
    dk.store(p.dk + to, kv_stride, rows_left(rows, first), width);
    dv.store(p.dv + to, kv_stride, rows_left(rows, first), width);
}
