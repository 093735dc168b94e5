// matmul_tensor_<M>_<N>: what matmul_<M>_<N> (matmul.cu) computes, on tensor cores (tensor.cuh): sums in another order, as exact. Low-rank products and
// their gradients are nearly bound by memory once they are computed so.
// Grid: x, y: tiles; z: parts of K, which begin at multiples of 32. A block of 256 threads takes 32 of K at a time; the next ones are on their way
// meanwhile. A warp makes 16 rows × 16 columns or more; where a tile has too few for eight warps, two take half of the K of the same ones.
//
// Lanes read two neighbours of an operand at once. Along K these are the two inputs of a fragment's lane; else the two rows, or a column of each of two
// fragments. So the columns of a fragment, its rows and the inputs of its step lie in another order than the instruction names them in.
#include "tensor.cuh"

static const u32 TENSOR_K = 32;

// The thread's share of SIZE rows or columns of an operand, times 32 of K, in pieces of four: along K where elements of K follow each other.
template <u32 SIZE, bool ALONG_K>
struct TensorShare {
    // Numbers between neighbours in shared memory along the other axis, so that lanes that read pairs meet in no bank.
    static const u32 PIECES = SIZE * TENSOR_K / 4, COUNT = PIECES < 256 ? 1 : PIECES / 256, STRIDE = ALONG_K ? TENSOR_K + 8 : SIZE + 4;
    static const u32 FLOATS = SIZE * (TENSOR_K + 8);
    const float* from[COUNT];
    u32 stride, k_stride, first, count;
    bool aligned;

    DEVICE TensorShare(const float* data, u32 stride, u32 k_stride, u32 first, u32 count, u32 k_first)
        : stride(stride), k_stride(k_stride), first(first), count(count),
          aligned((u64)data % 16 == 0 && (ALONG_K ? stride % 4 == 0 : stride == 1 && k_stride % 4 == 0)) {
#pragma unroll
        for (u32 n = 0; n < COUNT; ++n) {
            from[n] = data + (u64)(first + of_size(n)) * stride + (u64)(k_first + of_k(n)) * k_stride;
        }
    }

    // Where piece `n` of the thread begins.
    static DEVICE u32 of_size(u32 n) {
        const u32 piece = n * 256 + threadIdx.x;
        return ALONG_K ? piece / (TENSOR_K / 4) : piece % (SIZE / 4) * 4;
    }
    static DEVICE u32 of_k(u32 n) {
        const u32 piece = n * 256 + threadIdx.x;
        return ALONG_K ? piece % (TENSOR_K / 4) * 4 : piece / (SIZE / 4);
    }

    // Asks for the next 32 of K, which begin at `k_first`; 0 where there is nothing.
    DEVICE void fetch(float* to, u32 k_first, u32 k_end) {
#pragma unroll
        for (u32 n = 0; n < COUNT; ++n) {
            if (PIECES < 256 && threadIdx.x >= PIECES) {
                break;
            }
            const u32 i = of_size(n), k = of_k(n), at = first + i, at_k = k_first + k;
            float* place = to + (ALONG_K ? i * STRIDE + k : k * STRIDE + i);
            const bool is_whole = ALONG_K ? at < count && at_k + 4 <= k_end : at + 4 <= count && at_k < k_end;
            if (aligned && is_whole) {
                brasa::copy16(place, from[n]);
            } else {
                Floats4 values;
#pragma unroll
                for (u32 j = 0; j < 4; ++j) {
                    const bool is_there = at + (ALONG_K ? 0 : j) < count && at_k + (ALONG_K ? j : 0) < k_end;
                    values.at[j] = is_there ? from[n][(u64)j * (ALONG_K ? k_stride : stride)] : 0.0f;
                }
                *(Floats4*)place = values;
            }
            from[n] += (u64)TENSOR_K * k_stride;
        }
    }

    // Elements 2·g and 2·g + 1 of eight of K, or g and g + 8, at inputs 2·t and 2·t + 1: by input, of both elements.
    static DEVICE void pairs(const float* shared, u32 first, u32 k, u32 g, u32 t, float (&values)[2][2]) {
        if (ALONG_K) {
#pragma unroll
            for (u32 side = 0; side < 2; ++side) {
                const Floats2 of_k = *(const Floats2*)(shared + (first + g + 8 * side) * STRIDE + k + 2 * t);
                values[0][side] = of_k.at[0];
                values[1][side] = of_k.at[1];
            }
        } else {
#pragma unroll
            for (u32 j = 0; j < 2; ++j) {
                const Floats2 of_size = *(const Floats2*)(shared + (k + 2 * t + j) * STRIDE + first + 2 * g);
                values[j][0] = of_size.at[0];
                values[j][1] = of_size.at[1];
            }
        }
    }
};

template <u32 M, u32 N, bool ALONG_A, bool ALONG_B, u32 STAGES, u32 STAGE>
DEVICE void matmul_tensor_along(const MatmulTilesParams& p, float* shared) {
    typedef TensorShare<M, ALONG_A> OfA;
    typedef TensorShare<N, ALONG_B> OfB;
    const u32 OF_M = M / 16, OF_K = M == 64 && N == 64 ? 1 : 2, OF_N = 8 / OF_M / OF_K, FRAGMENTS = N / 8 / OF_N, WARPS = 8 / OF_K;
    const MatmulParams& product = p.product;
    const u32 begin = blockIdx.z * p.part, end = p.part < product.k - begin ? begin + p.part : product.k;
    OfA of_a(product.a, product.a_row, product.a_column, blockIdx.x * M, product.m, begin);
    OfB of_b(product.b, product.b_column, product.b_row, blockIdx.y * N, product.n, begin);
    const u32 g = lane() / 4, t = lane() % 4, of_k = warp() / WARPS;
    const u32 row = warp() % WARPS / OF_N * 16, column = warp() % WARPS % OF_N * (FRAGMENTS * 8);
    auto fetch = [&](u32 k, u32 stage) {
        if (k < end) {
            of_a.fetch(shared + stage * STAGE, k, end);
            of_b.fetch(shared + stage * STAGE + OfA::FLOATS, k, end);
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
        const float *a = shared + stage * STAGE, *b = a + OfA::FLOATS;
        stage = stage + 1 == STAGES ? 0 : stage + 1;
#pragma unroll
        for (u32 s = 0; s < TENSOR_K / 8 / OF_K; ++s) {
            const u32 step = (s * OF_K + of_k) * 8;
            float values[2][2];
            OfA::pairs(a, row, step, g, t, values);
            brasa::Parts<4> of_rows;
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                of_rows.set(i, values[i / 2][i % 2]);
            }
#pragma unroll
            for (u32 n = 0; n < FRAGMENTS; n += 2) {
                // The same for all lanes: columns behind the last are not multiplied.
                if (blockIdx.y * N + column + n * 8 >= product.n) {
                    break;
                }
                OfB::pairs(b, column + n * 8, step, g, t, values);
#pragma unroll
                for (u32 side = 0; side < 2; ++side) {
                    brasa::Parts<2> of_columns;
                    of_columns.set(0, values[0][side]);
                    of_columns.set(1, values[1][side]);
                    brasa::mma_parts(sums[n + side], of_rows, of_columns);
                }
            }
        }
    }
    if (OF_K > 1) {
        // What the other half of each K gives. All copies have come.
        __syncthreads();
        float* others = shared + (warp() % WARPS * FRAGMENTS * 4) * 32 + lane();
        if (of_k > 0) {
#pragma unroll
            for (u32 i = 0; i < FRAGMENTS * 4; ++i) {
                others[i * 32] = sums[i / 4][i % 4];
            }
        }
        __syncthreads();
        if (of_k > 0) {
            return;
        }
#pragma unroll
        for (u32 i = 0; i < FRAGMENTS * 4; ++i) {
            sums[i / 4][i % 4] += others[i * 32];
        }
    }
    const bool whole = p.parts == 1;
    float* to = whole ? product.c : p.partial + (u64)blockIdx.z * product.m * product.n;
    const float* base = whole ? product.base : nullptr;
    const float factor = whole ? product.factor : 1.0f;
    const bool pairs = product.n % 2 == 0 && (u64)to % 8 == 0 && (base == nullptr || ((u64)base % 8 == 0 && product.base_row % 2 == 0));
#pragma unroll
    for (u32 n = 0; n < FRAGMENTS; n += 2) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            // Two neighbours: of one fragment along K, else of both.
            const u32 side = i / 2, half = i % 2, y = blockIdx.x * M + row + (ALONG_A ? g + 8 * side : 2 * g + side);
            const u32 x = blockIdx.y * N + column + n * 8 + (ALONG_B ? 8 * half + 2 * t : 4 * t + 2 * half);
            if (y >= product.m || x >= product.n) {
                continue;
            }
            const float first = ALONG_B ? sums[n + half][2 * side] : sums[n][2 * side + half];
            const float second = ALONG_B ? sums[n + half][2 * side + 1] : sums[n + 1][2 * side + half];
            float* place = to + (u64)y * product.n + x;
            const float* below = base == nullptr ? nullptr : base + (u64)y * product.base_row + x;
            if (pairs) {
                Floats2 sum = {{first, second}};
                if (below != nullptr) {
                    const Floats2 before = *(const Floats2*)below;
                    sum.at[0] += before.at[0];
                    sum.at[1] += before.at[1];
                }
                sum.at[0] *= factor;
                sum.at[1] *= factor;
                *(Floats2*)place = sum;
                continue;
            }
            place[0] = ((below == nullptr ? 0.0f : below[0]) + first) * factor;
            if (x + 1 < product.n) {
                place[1] = ((below == nullptr ? 0.0f : below[1]) + second) * factor;
            }
        }
    }
}

template <u32 M, u32 N>
DEVICE void matmul_tensor(const MatmulTilesParams& p) {
    const u32 STAGES = M == 64 && N == 64 ? 2 : 3, STAGE = TensorShare<M, true>::FLOATS + TensorShare<N, true>::FLOATS;
    __shared__ Floats4 stages[STAGES * STAGE / 4];
    float* shared = (float*)stages;
    if (p.product.a_column == 1) {
        if (p.product.b_row == 1) {
            matmul_tensor_along<M, N, true, true, STAGES, STAGE>(p, shared);
        } else {
            matmul_tensor_along<M, N, true, false, STAGES, STAGE>(p, shared);
        }
    } else if (p.product.b_row == 1) {
        matmul_tensor_along<M, N, false, true, STAGES, STAGE>(p, shared);
    } else {
        matmul_tensor_along<M, N, false, false, STAGES, STAGE>(p, shared);
    }
}

KERNEL(matmul_tensor_64_64, MatmulTilesParams) { matmul_tensor<64, 64>(p); }
// Four of them on a multiprocessor: as many as parts of K are cut for.
KERNEL_WITHIN(__launch_bounds__(256, 4), matmul_tensor_64_16, MatmulTilesParams) { matmul_tensor<64, 16>(p); }
KERNEL_WITHIN(__launch_bounds__(256, 4), matmul_tensor_16_64, MatmulTilesParams) { matmul_tensor<16, 64>(p); }
