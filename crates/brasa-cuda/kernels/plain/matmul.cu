// matmul_<M>_<N>: c[M, N] = factor · (base + a · b) of f32 with any strides, in tiles of M × N, or the sums of parts of K. K in order, so that a product
// in one part has the same bits in whatever tiles.
// Grid: x, y: tiles; z: parts of K. A block of 256 threads. The next 32 columns are on their way while these are multiplied.
//
// matmul_sums: c = factor · (base + the sums of all parts, in order). Grid: one thread an element of c, blocks of 256.
#include "common.cuh"

static const u32 MATMUL_K = 32;

DEVICE float of_base(const MatmulParams& p, u32 i, u32 j) {
    return p.base == nullptr ? 0.0f : p.base[(u64)i * p.base_row + j];
}

// A thread's share of SIZE rows or columns of an operand, times 32 of K.
template <u32 SIZE>
struct MatmulShare {
    static const u32 COUNT = SIZE * MATMUL_K / 256;
    float values[COUNT];

    // Neighbouring threads take neighbouring memory: along K where its elements follow each other.
    static DEVICE void place(u32 number, bool along_k, u32& i, u32& k) {
        const u32 element = number * 256 + threadIdx.x;
        i = along_k ? element / MATMUL_K : element % SIZE;
        k = along_k ? element % MATMUL_K : element / SIZE;
    }
    DEVICE void load(const float* from, u32 stride, u32 k_stride, u32 first, u32 count, u32 k_first, u32 k_end) {
#pragma unroll
        for (u32 n = 0; n < COUNT; ++n) {
            u32 i, k;
            place(n, k_stride == 1, i, k);
            const bool is_there = first + i < count && k_first + k < k_end;
            values[n] = is_there ? from[(u64)(first + i) * stride + (u64)(k_first + k) * k_stride] : 0.0f;
        }
    }
    DEVICE void store(float (*to)[SIZE + 4], bool along_k) const {
#pragma unroll
        for (u32 n = 0; n < COUNT; ++n) {
            u32 i, k;
            place(n, along_k, i, k);
            to[k][i] = values[n];
        }
    }
};

template <u32 M, u32 N>
DEVICE void matmul_tiles(const MatmulTilesParams& t) {
    __shared__ float a[MATMUL_K][M + 4];
    __shared__ float b[MATMUL_K][N + 4];
    const u32 ROWS = M / 16, COLUMNS = N / 16;
    const MatmulParams& p = t.product;
    const u32 ty = threadIdx.x / 16, tx = threadIdx.x % 16, row = blockIdx.x * M, column = blockIdx.y * N;
    const u32 begin = blockIdx.z * t.part, end = t.part < p.k - begin ? begin + t.part : p.k;
    float sums[ROWS][COLUMNS];
#pragma unroll
    for (u32 i = 0; i < ROWS; ++i) {
#pragma unroll
        for (u32 j = 0; j < COLUMNS; ++j) {
            const u32 y = row + ty * ROWS + i, x = column + tx * COLUMNS + j;
            sums[i][j] = t.parts == 1 && y < p.m && x < p.n ? of_base(p, y, x) : 0.0f;
        }
    }
    MatmulShare<M> of_a;
    MatmulShare<N> of_b;
    of_a.load(p.a, p.a_row, p.a_column, row, p.m, begin, end);
    of_b.load(p.b, p.b_column, p.b_row, column, p.n, begin, end);
    for (u32 k = begin; k < end; k += MATMUL_K) {
        __syncthreads();
        of_a.store(a, p.a_column == 1);
        of_b.store(b, p.b_row == 1);
        __syncthreads();
        of_a.load(p.a, p.a_row, p.a_column, row, p.m, k + MATMUL_K, end);
        of_b.load(p.b, p.b_column, p.b_row, column, p.n, k + MATMUL_K, end);
        const u32 count = end - k < MATMUL_K ? end - k : MATMUL_K;
#pragma unroll 4
        for (u32 of_k = 0; of_k < count; ++of_k) {
#pragma unroll
            for (u32 i = 0; i < ROWS; ++i) {
#pragma unroll
                for (u32 j = 0; j < COLUMNS; ++j) {
                    sums[i][j] = fmaf(a[of_k][ty * ROWS + i], b[of_k][tx * COLUMNS + j], sums[i][j]);
                }
            }
        }
    }
    float* to = t.parts == 1 ? p.c : t.partial + (u64)blockIdx.z * p.m * p.n;
#pragma unroll
    for (u32 i = 0; i < ROWS; ++i) {
#pragma unroll
        for (u32 j = 0; j < COLUMNS; ++j) {
            const u32 y = row + ty * ROWS + i, x = column + tx * COLUMNS + j;
            if (y < p.m && x < p.n) {
                to[(u64)y * p.n + x] = t.parts == 1 ? sums[i][j] * p.factor : sums[i][j];
            }
        }
    }
}

KERNEL(matmul_64_64, MatmulTilesParams) { matmul_tiles<64, 64>(p); }
KERNEL(matmul_64_16, MatmulTilesParams) { matmul_tiles<64, 16>(p); }
KERNEL(matmul_16_64, MatmulTilesParams) { matmul_tiles<16, 64>(p); }

KERNEL(matmul_sums, MatmulTilesParams) {
    const u64 i = thread_number(), count = (u64)p.product.m * p.product.n;
    if (i >= count) {
        return;
    }
    float sum = of_base(p.product, (u32)(i / p.product.n), (u32)(i % p.product.n));
    for (u32 part = 0; part < p.parts; ++part) {
        sum += p.partial[part * count + i];
    }
    p.product.c[i] = sum * p.product.factor;
}
