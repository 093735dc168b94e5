// reduce: sum, mean, largest or logsumexp along the middle axis of x[outer, len, inner], dense.
// Grid: a warp an output, blocks of 128; lane l takes elements l, l + 32, …, then the lanes are added in a tree.
//
// softmax, argmax, cross_entropy: along rows. Grid: a block a row, 32 to 256 threads that depend on its width alone.
#include "common.cuh"

KERNEL(reduce, ReduceParams) {
    u32 i = blockIdx.x * (blockDim.x / 32) + warp();
    if (i >= p.outputs) {
        return;
    }
    const float* x = p.x + (u64)(i / p.inner) * p.len * p.inner + i % p.inner;
    float largest = -INFINITY, sum = 0.0f;
    if (p.function == REDUCE_MAX || p.function == REDUCE_LOGSUMEXP) {
        for (u32 j = lane(); j < p.len; j += 32) {
            largest = fmaxf(largest, x[(u64)j * p.inner]);
        }
        largest = warp_max(largest);
    }
    if (p.function != REDUCE_MAX) {
        for (u32 j = lane(); j < p.len; j += 32) {
            float element = x[(u64)j * p.inner];
            sum += p.function == REDUCE_LOGSUMEXP ? expf(element - largest) : element;
        }
        sum = warp_sum(sum);
    }
    if (lane() == 0) {
        float y;
        switch (p.function) {
            case REDUCE_SUM: y = sum; break;
            case REDUCE_MEAN: y = sum / (float)p.len; break;
            case REDUCE_MAX: y = largest; break;
            default: y = isinf(largest) ? largest : largest + logf(sum); break;
        }
        p.y[i] = y;
    }
}

KERNEL(softmax, SoftmaxParams) {
    __shared__ float scratch[32];
    const float* x = row_of(p.x, blockIdx.x);
    float largest, sum = row_sums(x, p.x.width, scratch, largest);
    for (u32 i = threadIdx.x; i < p.x.width; i += blockDim.x) {
        p.y[(u64)blockIdx.x * p.x.width + i] = expf(x[i] - largest) / sum;
    }
}

KERNEL(argmax, ArgmaxParams) {
    __shared__ float values[256];
    __shared__ u32 places[256];
    const float* x = row_of(p.x, blockIdx.x);
    float best = -INFINITY;
    u32 place = 0;
    for (u32 i = threadIdx.x; i < p.x.width; i += blockDim.x) {
        if (x[i] > best) {
            best = x[i];
            place = i;
        }
    }
    values[threadIdx.x] = best;
    places[threadIdx.x] = place;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (u32 t = 1; t < blockDim.x; ++t) {
            if (values[t] > best || (values[t] == best && places[t] < place)) {
                best = values[t];
                place = places[t];
            }
        }
        p.y[blockIdx.x] = place;
    }
}

// The id of the largest finite number of a row, ties to the lowest; 0xffffffff where the largest is infinite or no number is there.
// Grid: a block of up to 1024 threads a row.
KERNEL(largest, ArgmaxParams) {
    __shared__ float values[32];
    __shared__ u32 places[32];
    const float* x = row_of(p.x, blockIdx.x);
    float best = -INFINITY;
    u32 place = 0xffffffffu;
    auto better = [&](float value, u32 at) {
        if (value > best || (value == best && at < place)) {
            best = value;
            place = at;
        }
    };
#pragma unroll 8
    for (u32 i = threadIdx.x; i < p.x.width; i += blockDim.x) {
        better(x[i], i);
    }
    auto of_warp = [&]() {
        for (int distance = 16; distance > 0; distance /= 2) {
            float value = __shfl_xor_sync(0xffffffffu, best, distance);
            better(value, __shfl_xor_sync(0xffffffffu, place, distance));
        }
    };
    of_warp();
    if (lane() == 0) {
        values[warp()] = best;
        places[warp()] = place;
    }
    __syncthreads();
    bool is_there = lane() < blockDim.x / 32;
    best = is_there ? values[lane()] : -INFINITY;
    place = is_there ? places[lane()] : 0xffffffffu;
    of_warp();
    if (threadIdx.x == 0) {
        p.y[blockIdx.x] = fabsf(best) < INFINITY ? place : 0xffffffffu;
    }
}

KERNEL(cross_entropy, CrossEntropyParams) {
    __shared__ float scratch[32];
    const float* x = row_of(p.x, blockIdx.x);
    float largest, sum = row_sums(x, p.x.width, scratch, largest);
    if (threadIdx.x == 0) {
        float all = isinf(largest) ? largest : largest + logf(sum);
        p.y[blockIdx.x] = all - x[checked(p.targets[blockIdx.x], p.x.width, p.fault)];
    }
}
