// What becomes of the scores of a language model's head, soft-capped already: one row a block. The row's own gradient, of a loss that counts once, is
// (softmax − one at the target) · slope of the soft-cap, between −1 and 1.
#include "panels.cuh"

// The slope of the soft-cap at a capped score.
DEVICE float cap_slope(float score, float softcap) {
    const float capped = score / softcap;
    return softcap == 0.0f ? 1.0f : 1.0f - capped * capped;
}

// Scores become the gradient of cross-entropy times the row's factor by what was soft-capped. Grid: a block of 256 threads a row.
KERNEL(scores_gradient, ScoresGradientParams) {
    __shared__ float scratch[32];
    float* row = p.scores + (u64)blockIdx.x * p.width;
    float largest, sum = row_sums(row, p.width, scratch, largest);
    const u32 target = checked(p.targets[blockIdx.x], p.width, p.fault);
    const float d = p.d[blockIdx.x];
    for (u32 i = threadIdx.x; i < p.width; i += blockDim.x) {
        const float slope = cap_slope(row[i], p.softcap);
        row[i] = d * (expf(row[i] - largest) / sum - (i == target ? 1.0f : 0.0f)) * slope;
    }
}

// The row's loss, and its own gradient: rounded to panels, times 2^14, or in the scores' place where there are no panels.
// Grid: a block of 1,024 threads a row. Bound by memory: scores are read twice.
KERNEL(scores_loss, ScoresLossParams) {
    __shared__ float scratch[32];
    float* row = p.scores + (u64)blockIdx.x * p.width;
    const bool aligned = p.width % 4 == 0 && (u64)row % 16 == 0;
    float largest = -INFINITY, sum = 0.0f;
    for (u32 i = threadIdx.x * 4; i < p.width; i += blockDim.x * 4) {
        const Floats4 values = four(row, i, p.width, aligned);
        float higher = largest;
#pragma unroll
        for (u32 j = 0; j < 4; ++j) {
            higher = fmaxf(higher, i + j < p.width ? values.at[j] : -INFINITY);
        }
        // A thread that has seen nothing but −∞ has a sum of 0.
        if (higher > largest) {
            sum *= expf(largest - higher);
            largest = higher;
        }
#pragma unroll
        for (u32 j = 0; j < 4; ++j) {
            sum += i + j < p.width && values.at[j] > -INFINITY ? expf(values.at[j] - largest) : 0.0f;
        }
    }
    const float all = block_max(largest, scratch);
    sum = block_sum(largest > -INFINITY ? sum * expf(largest - all) : 0.0f, scratch);
    const u32 target = checked(p.targets[blockIdx.x], p.width, p.fault);
    if (threadIdx.x == 0) {
        p.y[blockIdx.x] = (isinf(all) ? all : all + logf(sum)) - row[target];
    }
    __syncthreads();
    if (p.panels == nullptr) {
        for (u32 i = threadIdx.x; i < p.width; i += blockDim.x) {
            row[i] = (expf(row[i] - all) / sum - (i == target ? 1.0f : 0.0f)) * cap_slope(row[i], p.softcap);
        }
        return;
    }
    if (threadIdx.x == 0) {
        p.row_scale[blockIdx.x] = 1.0f / 16384.0f;
    }
    const float per_sum = 16384.0f / sum;
    for (u32 k = threadIdx.x * 8; k < p.subs * 64; k += blockDim.x * 8) {
        float v[8];
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            const Floats4 values = four(row, k + 4 * half, p.width, aligned && k + 4 * half < p.width);
#pragma unroll
            for (u32 j = 0; j < 4; ++j) {
                const u32 i = k + 4 * half + j;
                const float gradient = expf(values.at[j] - all) * per_sum - (i == target ? 16384.0f : 0.0f);
                v[4 * half + j] = i < p.width ? gradient * cap_slope(values.at[j], p.softcap) : 0.0f;
            }
        }
        store_halves(panel_piece(p.panels, p.subs, blockIdx.x, k), v);
    }
}
