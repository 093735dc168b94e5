// rms_norm: y[r, D] = w · x / sqrt(mean(x²) + eps). layer_norm: y = w · (x − mean) / sqrt(variance + eps) + b.
// Weights may be absent (null). Grid: a block a row; its threads, 32 to 256, depend on D alone, hence so does the order of sums.
#include "common.cuh"

KERNEL(rms_norm, NormParams) {
    __shared__ float scratch[32];
    const float* x = row_of(p.x, blockIdx.x);
    float* y = p.y + (u64)blockIdx.x * p.x.width;
    float squares = 0.0f;
    for (u32 i = threadIdx.x; i < p.x.width; i += blockDim.x) {
        squares = fmaf(x[i], x[i], squares);
    }
    float scale = 1.0f / sqrtf(block_sum(squares, scratch) / (float)p.x.width + p.eps);
    for (u32 i = threadIdx.x; i < p.x.width; i += blockDim.x) {
        y[i] = x[i] * (p.w == nullptr ? scale : scale * p.w[i]);
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
