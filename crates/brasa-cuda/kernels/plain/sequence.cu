// conv1d: y[t, N] = b + Σ w[N, C, taps] · x[stride·t + tap − padding, C] along the rows of each segment, zero-padded.
// mean_pool: y[segment, D] = the mean of its rows. index_add: y = base, with x[r] added to row indices[r], rows in order.
// Grid: one thread an element of y, blocks of 256.
#include "common.cuh"

KERNEL(conv1d, Conv1dParams) {
    u64 i = thread_number();
    if (i >= (u64)p.out_rows * p.outputs) {
        return;
    }
    u32 t = (u32)(i / p.outputs), n = (u32)(i % p.outputs);
    // The segment whose output rows contain t: segments are whole numbers of strides.
    u32 s = 0;
    while (s + 1 < p.step.segments_count && p.step.segments[s + 1].first_row * p.factor / p.stride <= t) {
        ++s;
    }
    u32 first = p.step.segments[s].first_row * p.factor, rows = p.step.segments[s].rows * p.factor;
    u32 local = t - first / p.stride;
    float sum = p.b[n];
    for (u32 tap = 0; tap < p.taps; ++tap) {
        // Row numbers before the first wrap beyond the last: both read zeros.
        u32 row = p.stride * local + tap - p.padding;
        if (row < rows) {
            const float* x = p.x + (u64)(first + row) * p.channels;
            for (u32 c = 0; c < p.channels; ++c) {
                sum = fmaf(p.w[((u64)n * p.channels + c) * p.taps + tap], x[c], sum);
            }
        }
    }
    p.y[i] = sum;
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

KERNEL(index_add, IndexAddParams) {
    u64 i = thread_number();
    if (i >= (u64)p.base_rows * p.width) {
        return;
    }
    u32 row = (u32)(i / p.width);
    float sum = p.base[i];
    for (u32 r = 0; r < p.rows; ++r) {
        if (checked(p.indices[r], p.base_rows, p.fault) == row) {
            sum += p.x[(u64)r * p.width + i % p.width];
        }
    }
    p.y[i] = sum;
}
