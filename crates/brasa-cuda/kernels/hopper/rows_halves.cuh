// What stands before and behind the products of rows.cuh, which includes this file: operands rounded to halves, and gradients of keys and values added
// for the query heads that share a KV head.
#pragma once

// The largest magnitude of each block's elements.
ROWS_KERNEL(rows_largest, RowsHalvesParams, 256, 4) {
    __shared__ float scratch[32];
    float largest = 0.0f;
    const u64 pieces = (u64)p.rows * p.widths[3] / 4;
    for (u64 i = thread_number(); i < pieces; i += (u64)gridDim.x * blockDim.x) {
        const Floats4 piece = ((const Floats4*)p.from[3])[i];
        largest = fmaxf(largest, fmaxf(fmaxf(fabsf(piece.at[0]), fabsf(piece.at[1])), fmaxf(fabsf(piece.at[2]), fabsf(piece.at[3]))));
    }
    largest = block_max(largest, scratch);
    if (threadIdx.x == 0) {
        p.largest[blockIdx.x] = largest;
    }
}

// Rounds queries, keys, values and the result's gradient, number blockIdx.y, eight elements a thread. The first thread of all leaves the power of two
// behind the largest magnitudes.
ROWS_KERNEL(rows_halves, RowsHalvesParams, 256, 4) {
    __shared__ float scratch[32];
    const u32 number = blockIdx.y, width = p.widths[number];
    float factor = number == 0 ? p.factor : 1.0f;
    if (number == 3) {
        factor = brasa::raise_of(block_max(threadIdx.x < p.largest_count ? p.largest[threadIdx.x] : 0.0f, scratch));
        if (thread_number() == 0) {
            p.largest[p.largest_count] = factor;
        }
    }
    const u64 pieces = (u64)p.rows * width / 8;
    for (u64 i = thread_number(); i < pieces; i += (u64)gridDim.x * blockDim.x) {
        const u64 row = i / (width / 8), e = i % (width / 8) * 8;
        float v[8];
        load8(p.from[number] + row * p.strides[number] + e, v);
        Halves8 halves;
#pragma unroll
        for (u32 n = 0; n < 4; ++n) {
            halves.at[n] = brasa::pack_halves_within(v[2 * n] * factor, v[2 * n + 1] * factor);
        }
        *(Halves8*)(p.to[number] + (row * width + e) * 2) = halves;
    }
}

// The gradients of keys (blockIdx.y 0) and values (1): sums of those of the query heads that share a KV head, in order. Four elements a thread.
ROWS_KERNEL(rows_sums, RowsSumsParams, 256, 4) {
    const u64 width = p.kv_heads * p.head_dim, pieces = (u64)p.rows * width / 4;
    for (u64 i = thread_number(); i < pieces; i += (u64)gridDim.x * blockDim.x) {
        const u64 at = i * 4, row = at / width, head = at % width / p.head_dim, e = at % p.head_dim;
        const float* from = p.from[blockIdx.y] + (row * p.kv_heads + head) * p.sharing * p.head_dim + e;
        Floats4 sum = *(const Floats4*)from;
        for (u32 n = 1; n < p.sharing; ++n) {
            const Floats4 more = *(const Floats4*)(from + n * p.head_dim);
#pragma unroll
            for (u32 j = 0; j < 4; ++j) {
                sum.at[j] += more.at[j];
            }
        }
        *(Floats4*)(p.to[blockIdx.y] + at) = sum;
    }
}
