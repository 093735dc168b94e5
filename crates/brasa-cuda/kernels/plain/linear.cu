// linear_<format>: y[R, N] = x[R, K] · W[N, K]ᵀ, f32 sums; rows of W that are stored in other formats are left alone. Weights in
// fragment order are multiplied by tiles.cu.
// Grid: x: ceil(N / 4) blocks of 128 threads, a warp an output; y: groups of rows. Any N, K.
// linear_<format> takes one row a group, linear_<format>_wide eight, so that a weight is decoded once for eight rows.
//
// Order of sums: lane l adds elements l, l + 32, … by fused multiply-adds, then the lanes are added in a tree. It depends on K
// alone, so both variants make the same bits.
#include "formats.cuh"

template <class Format, u32 ROWS>
DEVICE void linear_rows(const LinearParams& p) {
    u32 n = blockIdx.x * (blockDim.x / 32) + warp();
    if (n >= p.outputs) {
        return;
    }
    const Part& part = part_of(p.w, n);
    if (part.format != Format::CODE) {
        return;
    }
    u32 row = n - part.first_row, inputs = p.w.row_len;
    for (u32 first = blockIdx.y * ROWS; first < p.rows; first += gridDim.y * ROWS) {
        float sums[ROWS];
        const float* x[ROWS];
        for (u32 r = 0; r < ROWS; ++r) {
            sums[r] = 0.0f;
            // Rows beyond the last repeat it; their sums are dropped.
            x[r] = row_of(p.x, first + r < p.rows ? first + r : p.rows - 1);
        }
        // Weights come several at a time: a warp that waits for each alone is slow where outputs are few.
        const u32 BATCH = ROWS == 1 ? 16 : 4;
        u32 k = lane();
        for (; k + (BATCH - 1) * 32 < inputs; k += BATCH * 32) {
            float w[BATCH], values[ROWS][BATCH];
#pragma unroll
            for (u32 i = 0; i < BATCH; ++i) {
                w[i] = Format::at(part, row, k + i * 32);
#pragma unroll
                for (u32 r = 0; r < ROWS; ++r) {
                    values[r][i] = x[r][k + i * 32];
                }
            }
#pragma unroll
            for (u32 i = 0; i < BATCH; ++i) {
#pragma unroll
                for (u32 r = 0; r < ROWS; ++r) {
                    sums[r] = fmaf(values[r][i], w[i], sums[r]);
                }
            }
        }
        for (; k < inputs; k += 32) {
            float w = Format::at(part, row, k);
#pragma unroll
            for (u32 r = 0; r < ROWS; ++r) {
                sums[r] = fmaf(x[r][k], w, sums[r]);
            }
        }
#pragma unroll
        for (u32 r = 0; r < ROWS; ++r) {
            float sum = warp_sum(sums[r]);
            if (lane() == 0 && first + r < p.rows) {
                p.y[(u64)(first + r) * p.outputs + n] = sum;
            }
        }
    }
}

#define BRASA_LINEAR(name, Format)                                             \
    KERNEL(linear_##name, LinearParams) { linear_rows<Format, 1>(p); }         \
    KERNEL(linear_##name##_wide, LinearParams) { linear_rows<Format, 8>(p); }
ROW_FORMATS(BRASA_LINEAR)

// linear_transposed: x[R, K] = y[R, N] · W[N, K], W in any mix of formats, summed over n in order.
// Grid: one thread an element of x, blocks of 256.
KERNEL(linear_transposed, LinearTransposedParams) {
    u64 i = thread_number();
    u32 inputs = p.w.row_len;
    if (i >= (u64)p.rows * inputs) {
        return;
    }
    u32 k = (u32)(i % inputs);
    const float* y = row_of(p.y, (u32)(i / inputs));
    float sum = 0.0f;
    for (u32 part = 0; part < p.w.parts_count; ++part) {
        const Part& stored = p.w.parts[part];
        for (u32 row = 0; row < stored.rows; ++row) {
            sum = fmaf(y[stored.first_row + row], decode(stored, row, k), sum);
        }
    }
    p.x[i] = sum;
}
