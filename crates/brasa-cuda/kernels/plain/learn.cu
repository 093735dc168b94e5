// Updates of learned values: blocks of weights of f32, each a row of p.blocks.
// Grid: x: any number of blocks, y: learned blocks. Sums, means and squares hold the elements of all blocks one after the other.
// Bound by memory: 24 bytes read and 12 written for each element of an update.
#include "common.cuh"

// Element `i` of a learned block in its weight, and in the weight's gradient.
DEVICE u64 place_in(const LearnedRows& rows, u64 i) { return i / rows.columns * rows.stride + i % rows.columns; }

// Adds the gradients, or begins with them.
KERNEL(learn_sum, LearnParams) {
    const LearnedRows& rows = p.blocks[blockIdx.y];
    for (u64 i = thread_number(); i < rows.count; i += (u64)gridDim.x * blockDim.x) {
        float& sum = p.sums[rows.first + i];
        const float gradient = rows.gradients[place_in(rows, i)];
        sum = p.is_first ? gradient : sum + gradient;
    }
}

// The sum of squares of each block's gradients, in f64.
KERNEL(learn_norm, LearnParams) {
    __shared__ double sums[256];
    const LearnedRows& rows = p.blocks[blockIdx.y];
    double sum = 0.0;
    for (u64 i = thread_number(); i < rows.count; i += (u64)gridDim.x * blockDim.x) {
        const double gradient = p.sums[rows.first + i];
        sum += gradient * gradient;
    }
    sums[threadIdx.x] = sum;
    for (u32 half = 128; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) {
            sums[threadIdx.x] += sums[threadIdx.x + half];
        }
    }
    if (threadIdx.x == 0) {
        p.partial[blockIdx.y * gridDim.x + blockIdx.x] = sums[0];
    }
}

// AdamW, each product and sum rounded as the host does.
KERNEL(learn_adam, LearnParams) {
    const LearnedRows& rows = p.blocks[blockIdx.y];
    for (u64 i = thread_number(); i < rows.count; i += (u64)gridDim.x * blockDim.x) {
        const u64 at = rows.first + i;
        float& value = rows.values[place_in(rows, i)];
        const float gradient = __fmul_rn(p.sums[at], p.factor);
        const float mean = __fadd_rn(p.means[at], __fmul_rn(p.new1, __fadd_rn(gradient, -p.means[at])));
        const float square = __fadd_rn(__fmul_rn(p.beta2, p.squares[at]), __fmul_rn(__fmul_rn(p.new2, gradient), gradient));
        p.means[at] = mean;
        p.squares[at] = square;
        const float root = __fadd_rn(sqrtf(square) / p.root, p.eps);
        value = __fadd_rn(__fmul_rn(value, p.kept), -(__fmul_rn(p.rate, mean) / root));
    }
}
