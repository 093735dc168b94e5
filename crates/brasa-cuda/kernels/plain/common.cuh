// What every plain kernel shares: where rows lie, sums in a fixed order, numbers checked against their table.
#pragma once

#include "platform.cuh"

#include "params.h"

DEVICE u32 lane() { return threadIdx.x % 32; }
DEVICE u32 warp() { return threadIdx.x / 32; }

// The thread's number in the grid, along x.
DEVICE u64 thread_number() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }

// Floats that are loaded in one piece.
struct alignas(16) Floats4 {
    float at[4];
};
struct alignas(8) Floats2 {
    float at[2];
};

// Words that are loaded and stored in one piece.
struct alignas(16) Words4 {
    u32 at[4];
};

// Halves that are stored in one piece, two to a word.
struct alignas(16) Halves8 {
    u32 at[4];
};

struct alignas(8) Halves4 {
    u32 at[2];
};

// Eight floats at an address that is a multiple of 16.
DEVICE void load8(const float* from, float (&v)[8]) {
    const Floats4 a = *(const Floats4*)from, b = *(const Floats4*)(from + 4);
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        v[i] = a.at[i];
        v[4 + i] = b.at[i];
    }
}

DEVICE void store8(float* to, const float (&v)[8]) {
    *(Floats4*)to = {{v[0], v[1], v[2], v[3]}};
    *(Floats4*)(to + 4) = {{v[4], v[5], v[6], v[7]}};
}

// Adds `parts` times eight floats, `stride` floats apart, in order. AT_ONCE of them are asked for together.
template <u32 AT_ONCE>
DEVICE void add_parts(const float* from, u64 stride, u32 parts, float (&v)[8]) {
    for (u32 first = 0; first < parts; first += AT_ONCE) {
        float more[AT_ONCE][8];
#pragma unroll
        for (u32 j = 0; j < AT_ONCE; ++j) {
            if (first + j < parts) {
                load8(from + (first + j) * stride, more[j]);
            }
        }
#pragma unroll
        for (u32 j = 0; j < AT_ONCE; ++j) {
            if (first + j < parts) {
#pragma unroll
                for (u32 i = 0; i < 8; ++i) {
                    v[i] += more[j][i];
                }
            }
        }
    }
}

// Four neighbouring elements of a row from `i` on, in one load where they are aligned; 0 behind the row's end.
DEVICE Floats4 four(const float* row, u32 i, u32 width, bool aligned) {
    if (aligned) {
        return *(const Floats4*)(row + i);
    }
    Floats4 values;
#pragma unroll
    for (u32 j = 0; j < 4; ++j) {
        values.at[j] = i + j < width ? row[i + j] : 0.0f;
    }
    return values;
}

// Stores four elements of a row, without those behind its end.
DEVICE void store_four(float* row, u32 i, u32 width, bool aligned, const Floats4& values) {
    if (aligned) {
        *(Floats4*)(row + i) = values;
        return;
    }
#pragma unroll
    for (u32 j = 0; j < 4; ++j) {
        if (i + j < width) {
            row[i + j] = values.at[j];
        }
    }
}

// Where row `j` begins.
DEVICE const float* row_of(const Rows& rows, u32 j) {
    return rows.data + (u64)(j / rows.per) * rows.stride + (u64)(j % rows.per) * rows.width;
}

// Number of element `i` of `dims` in a value whose axes advance by `strides`.
DEVICE u64 place_of(u32 i, const u32 (&dims)[4], const u32 (&strides)[4]) {
    u64 place = 0;
    for (int axis = 3; axis >= 0; --axis) {
        place += (u64)(i % dims[axis]) * strides[axis];
        i /= dims[axis];
    }
    return place;
}

// The sum of a warp's values, in a tree: lanes 16 apart, then 8, 4, 2, 1. All lanes get the same bits.
DEVICE float warp_sum(float x) {
    for (int distance = 16; distance > 0; distance /= 2) {
        x += __shfl_xor_sync(0xffffffffu, x, distance);
    }
    return x;
}

DEVICE float warp_max(float x) {
    for (int distance = 16; distance > 0; distance /= 2) {
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, distance));
    }
    return x;
}

// The sum of a block's values: within warps by `warp_sum`, then warp after warp. `scratch` holds 32 floats of shared memory.
DEVICE float block_sum(float x, float* scratch) {
    x = warp_sum(x);
    __syncthreads();
    if (lane() == 0) {
        scratch[warp()] = x;
    }
    __syncthreads();
    float total = 0.0f;
    for (u32 w = 0; w < blockDim.x / 32; ++w) {
        total += scratch[w];
    }
    return total;
}

DEVICE float block_max(float x, float* scratch) {
    x = warp_max(x);
    __syncthreads();
    if (lane() == 0) {
        scratch[warp()] = x;
    }
    __syncthreads();
    float largest = scratch[0];
    for (u32 w = 1; w < blockDim.x / 32; ++w) {
        largest = fmaxf(largest, scratch[w]);
    }
    return largest;
}

// The largest element of the block's row, and Σ exp(x − largest).
DEVICE float row_sums(const float* x, u32 width, float* scratch, float& largest) {
    largest = -INFINITY;
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) {
        largest = fmaxf(largest, x[i]);
    }
    largest = block_max(largest, scratch);
    float sum = 0.0f;
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) {
        sum += expf(x[i] - largest);
    }
    return block_sum(sum, scratch);
}

// `number` as an index below `limit`; otherwise the first such mistake of the step is kept, and 0 goes on in its place.
DEVICE u32 checked(u32 number, u32 limit, Fault* fault) {
    if (number < limit) {
        return number;
    }
    if (atomicCAS(&fault->found, 0u, 1u) == 0u) {
        fault->number = number;
        fault->limit = limit;
    }
    return 0;
}
