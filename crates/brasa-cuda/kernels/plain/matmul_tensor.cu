// matmul_tensor_<M>_<N>: what matmul_<M>_<N> (matmul.cu) computes, on tensor cores (tensor.cuh): sums in another order, as exact. Low-rank products and
// their gradients are bound by memory once they are computed so.
// Grid: x, y: tiles; z: parts of K, which begin at multiples of 32. A block of 256 threads, eight warps of sixteen rows, takes 32 of K at a time; the
// next ones are on their way meanwhile.
#include "tensor.cuh"

static const u32 TENSOR_K = 32;

// SIZE rows or columns of an operand, times 32 of K, in pieces of four.
template <u32 SIZE>
struct TensorShare {
    static const u32 PIECES = SIZE * TENSOR_K / 4, COUNT = PIECES < 256 ? 1 : PIECES / 256, ALONG_K = TENSOR_K + 4, ACROSS_K = SIZE + 8;
    static const u32 FLOATS = SIZE * ALONG_K > TENSOR_K * ACROSS_K ? SIZE * ALONG_K : TENSOR_K * ACROSS_K;
    const float* from;
    u32 stride, k_stride, first, count;
    bool along_k, aligned;

    DEVICE TensorShare(const float* from, u32 stride, u32 k_stride, u32 first, u32 count)
        : from(from), stride(stride), k_stride(k_stride), first(first), count(count), along_k(k_stride == 1),
          aligned((u64)from % 16 == 0 && (k_stride == 1 ? stride % 4 == 0 : stride == 1 && k_stride % 4 == 0)) {}

    // The thread's share, to shared memory; 0 where there is nothing. Neighbouring threads take neighbouring memory: along K where its elements
    // follow each other.
    DEVICE void fetch(float* to, u32 k_first, u32 k_end) const {
#pragma unroll
        for (u32 n = 0; n < COUNT; ++n) {
            const u32 piece = n * 256 + threadIdx.x;
            if (PIECES < 256 && piece >= PIECES) {
                break;
            }
            const u32 i = along_k ? piece / (TENSOR_K / 4) : piece % (SIZE / 4) * 4, k = along_k ? piece % (TENSOR_K / 4) * 4 : piece / (SIZE / 4);
            const u32 of_i = first + i, of_k = k_first + k;
            float* place = to + (along_k ? i * ALONG_K + k : k * ACROSS_K + i);
            const bool is_whole = along_k ? of_i < count && of_k + 4 <= k_end : of_i + 4 <= count && of_k < k_end;
            if (aligned && is_whole) {
                brasa::copy16(place, from + (u64)of_i * stride + (u64)of_k * k_stride);
                continue;
            }
            Floats4 values;
#pragma unroll
            for (u32 j = 0; j < 4; ++j) {
                const u32 i_j = of_i + (along_k ? 0 : j), k_j = of_k + (along_k ? j : 0);
                values.at[j] = i_j < count && k_j < k_end ? from[(u64)i_j * stride + (u64)k_j * k_stride] : 0.0f;
            }
            *(Floats4*)place = values;
        }
    }
    // Numbers between neighbours in shared memory. Both are chosen so that the lanes of a fragment meet in no bank.
    DEVICE u32 step() const { return along_k ? ALONG_K : 1; }
    DEVICE u32 k_step() const { return along_k ? 1 : ACROSS_K; }
};

template <u32 M, u32 N>
DEVICE void matmul_tensor(const MatmulTilesParams& p) {
    const u32 OF_M = M / 16, OF_N = 8 / OF_M, FRAGMENTS = N / 8 / OF_N, STAGES = M == 64 && N == 64 ? 2 : 3;
    const u32 A = TensorShare<M>::FLOATS, STAGE = A + TensorShare<N>::FLOATS;
    __shared__ Floats4 stages[STAGES * STAGE / 4];
    float* shared = (float*)stages;
    const MatmulParams& product = p.product;
    const u32 begin = blockIdx.z * p.part, end = p.part < product.k - begin ? begin + p.part : product.k;
    const TensorShare<M> of_a(product.a, product.a_row, product.a_column, blockIdx.x * M, product.m);
    const TensorShare<N> of_b(product.b, product.b_column, product.b_row, blockIdx.y * N, product.n);
    const u32 g = lane() / 4, t = lane() % 4, row = warp() / OF_N * 16 + g, column = warp() % OF_N * (FRAGMENTS * 8);
    const u32 a_step = of_a.step(), a_k = of_a.k_step(), b_step = of_b.step(), b_k = of_b.k_step();
    auto fetch = [&](u32 k, u32 stage) {
        if (k < end) {
            of_a.fetch(shared + stage * STAGE, k, end);
            of_b.fetch(shared + stage * STAGE + A, k, end);
        }
        brasa::copies_end_group();
    };
    float sums[FRAGMENTS][4] = {};
    for (u32 stage = 0; stage + 1 < STAGES; ++stage) {
        fetch(begin + stage * TENSOR_K, stage);
    }
    u32 stage = 0;
    for (u32 k = begin; k < end; k += TENSOR_K) {
        brasa::wait_for_groups<STAGES - 2>();
        __syncthreads();
        fetch(k + (STAGES - 1) * TENSOR_K, stage == 0 ? STAGES - 1 : stage - 1);
        const float *a = shared + stage * STAGE, *b = a + A;
        stage = stage + 1 == STAGES ? 0 : stage + 1;
#pragma unroll
        for (u32 s = 0; s < TENSOR_K / 8; ++s) {
            const float* of_row = a + row * a_step + (s * 8 + t) * a_k;
            brasa::Parts<4> of_rows;
            of_rows.set(0, of_row[0]);
            of_rows.set(1, of_row[8 * a_step]);
            of_rows.set(2, of_row[4 * a_k]);
            of_rows.set(3, of_row[8 * a_step + 4 * a_k]);
#pragma unroll
            for (u32 n = 0; n < FRAGMENTS; ++n) {
                // The same for all lanes: columns behind the last are not multiplied.
                if (blockIdx.y * N + column + n * 8 >= product.n) {
                    break;
                }
                const float* of_column = b + (column + n * 8 + g) * b_step + (s * 8 + t) * b_k;
                brasa::Parts<2> of_columns;
                of_columns.set(0, of_column[0]);
                of_columns.set(1, of_column[4 * b_k]);
                brasa::mma_parts(sums[n], of_rows, of_columns);
            }
        }
    }
    const bool whole = p.parts == 1;
    float* to = whole ? product.c : p.partial + (u64)blockIdx.z * product.m * product.n;
    const float* base = whole ? product.base : nullptr;
    const bool pairs = product.n % 2 == 0 && (u64)to % 8 == 0 && (base == nullptr || ((u64)base % 8 == 0 && product.base_row % 2 == 0));
#pragma unroll
    for (u32 n = 0; n < FRAGMENTS; ++n) {
#pragma unroll
        for (u32 side = 0; side < 2; ++side) {
            const u32 y = blockIdx.x * M + row + 8 * side, x = blockIdx.y * N + column + n * 8 + 2 * t;
            if (y >= product.m || x >= product.n) {
                continue;
            }
            float* place = to + (u64)y * product.n + x;
            const float* below = base == nullptr ? nullptr : base + (u64)y * product.base_row + x;
            if (pairs) {
                Floats2 sum = {{sums[n][2 * side], sums[n][2 * side + 1]}};
                if (below != nullptr) {
                    const Floats2 before = *(const Floats2*)below;
                    sum.at[0] += before.at[0];
                    sum.at[1] += before.at[1];
                }
                *(Floats2*)place = sum;
                continue;
            }
#pragma unroll
            for (u32 j = 0; j < 2; ++j) {
                if (x + j < product.n) {
                    place[j] = (below == nullptr ? 0.0f : below[j]) + sums[n][2 * side + j];
                }
            }
        }
    }
}

KERNEL(matmul_tensor_64_64, MatmulTilesParams) { matmul_tensor<64, 64>(p); }
KERNEL(matmul_tensor_64_16, MatmulTilesParams) { matmul_tensor<64, 16>(p); }
KERNEL(matmul_tensor_16_64, MatmulTilesParams) { matmul_tensor<16, 64>(p); }
