// rms_norm: y[r, D] = w · x / sqrt(mean(x²) + eps). layer_norm: y = w · (x − mean) / sqrt(variance + eps) + b.
// Weights may be absent (null). Grid: a block a row; its threads, 32 to 256, depend on D alone, hence so does the order of sums.
#include "common.cuh"

KERNEL(rms_norm, NormParams) {
    __shared__ float scratch[32];
    u32 width = p.x.width;
    const float* x = row_of(p.x, blockIdx.x);
    float* y = p.y + (u64)blockIdx.x * width;
    bool aligned = width % 4 == 0 && ((u64)x | (u64)y | (u64)p.w) % 16 == 0;
    float squares = 0.0f;
    for (u32 i = threadIdx.x * 4; i < width; i += blockDim.x * 4) {
        const Floats4 values = four(x, i, width, aligned);
#pragma unroll
        for (u32 j = 0; j < 4; ++j) {
            squares = fmaf(values.at[j], values.at[j], squares);
        }
    }
    float scale = 1.0f / sqrtf(block_sum(squares, scratch) / (float)width + p.eps);
    for (u32 i = threadIdx.x * 4; i < width; i += blockDim.x * 4) {
        Floats4 values = four(x, i, width, aligned);
        Floats4 weights = {{1.0f, 1.0f, 1.0f, 1.0f}};
        if (p.w != nullptr) {
            weights = four(p.w, i, width, aligned);
        }
#pragma unroll
        for (u32 j = 0; j < 4; ++j) {
            values.at[j] *= p.w == nullptr ? scale : scale * weights.at[j];
        }
        store_four(y, i, width, aligned, values);
    }
}

KERNEL(layer_norm, NormParams) {
    __shared__ float scratch[32];
    const float* x = row_of(p.x, blockIdx.x);
    float* y = p.y + (u64)blockIdx.x * p.x.width;
    float sum = 0.0f, squares = 0.0f;
    for (u32 i = threadIdx.x; i < p.x.width; i += blockDim.x) {
        sum += x[i];
    }
    float mean = block_sum(sum, scratch) / (float)p.x.width;
    for (u32 i = threadIdx.x; i < p.x.width; i += blockDim.x) {
        squares = fmaf(x[i] - mean, x[i] - mean, squares);
    }
    float scale = 1.0f / sqrtf(block_sum(squares, scratch) / (float)p.x.width + p.eps);
    for (u32 i = threadIdx.x; i < p.x.width; i += blockDim.x) {
        float weight = p.w == nullptr ? 1.0f : p.w[i], bias = p.b == nullptr ? 0.0f : p.b[i];
        y[i] = (x[i] - mean) * scale * weight + bias;
    }
}
