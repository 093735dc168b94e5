// unfold: y[t, c·taps + i] = x[stride·t + i − padding, c] along the rows of each segment, zero-padded.
// mean_pool: y[segment, D] = the mean of its rows. index_add: y = base, with x[r] added to row indices[r], rows in order.
// Grid: one thread an element of y, blocks of 256.
#include "common.cuh"

KERNEL(unfold, UnfoldParams) {
    u64 i = thread_number();
    u32 width = p.channels * p.taps;
    if (i >= (u64)p.out_rows * width) {
        return;
    }
    u32 t = (u32)(i / width), c = (u32)(i % width) / p.taps, tap = (u32)(i % width) % p.taps;
    // The segment whose output rows contain t: segments are whole numbers of strides.
    u32 s = 0;
    while (s + 1 < p.step.segments_count && p.step.segments[s + 1].first_row * p.factor / p.stride <= t) {
        ++s;
    }
    u32 first = p.step.segments[s].first_row * p.factor, rows = p.step.segments[s].rows * p.factor;
    // Row numbers before the first wrap beyond the last: both read zeros.
    u32 row = p.stride * (t - first / p.stride) + tap - p.padding;
    p.y[i] = row < rows ? p.x[(u64)(first + row) * p.channels + c] : 0.0f;
}

KERNEL(mean_pool, MeanPoolParams) {
    u64 i = thread_number();
    if (i >= (u64)p.step.segments_count * p.width) {
        return;
    }
    const SegmentRows& segment = p.step.segments[i / p.width];
    u32 first = segment.first_row * p.factor, rows = segment.rows * p.factor;
    float sum = 0.0f;
    for (u32 row = first; row < first + rows; ++row) {
        sum += p.x[(u64)row * p.width + i % p.width];
    }
    p.y[i] = sum / (float)rows;
}

// Grid: a block of 256 for each row of y.
KERNEL(index_add, IndexAddParams) {
    __shared__ u32 is_added[256];
    const u32 row = blockIdx.x;
    const float* base = p.base + (u64)row * p.width;
    float* y = p.y + (u64)row * p.width;
    for (u32 e = threadIdx.x; e < p.width; e += blockDim.x) {
        y[e] = base[e];
    }
    for (u32 first = 0; first < p.rows; first += blockDim.x) {
        const u32 r = first + threadIdx.x;
        const bool adds = r < p.rows && checked(p.indices[r], p.base_rows, p.fault) == row;
        is_added[threadIdx.x] = adds;
        const u32 last = first + blockDim.x < p.rows ? first + blockDim.x : p.rows;
        const bool any = __syncthreads_count(adds) != 0;
        for (u32 other = first; any && other < last; ++other) {
            if (is_added[other - first]) {
                for (u32 e = threadIdx.x; e < p.width; e += blockDim.x) {
                    y[e] += p.x[(u64)other * p.width + e];
                }
            }
        }
        __syncthreads();
    }
}
