// A token for each row of logits, by the rules of brasa-graph's `sampling`: filters keep the first tokens in order of logit and id, and of these the one
// with the largest score is drawn. Every operation is rounded by itself.
//
// draw_adjust: adds penalties and biases, and makes forbidden logits −∞. Grid: 1 × rows, 256 threads.
// draw_find: makes logits −∞ that the mask forbids, and finds the largest of each part of DRAW_PART. Grid: parts × rows, 256 threads.
// draw_weigh: without filters, finds the best score of each part; with filters, adds shares in blocks of 256 and counts the tokens of each bin.
//   Grid: parts × rows, 256 threads.
// draw_list: lists the likeliest tokens, at most DRAW_LISTED, in no order. Grid: parts × rows, 256 threads.
// draw_cut: ends a run of filters that penalties follow: makes logits −∞ that are not kept, and multiplies the others by the inverse temperature.
//   Grid: 1 × rows, 1024 threads.
// draw_close: like draw_cut, for phases that may end with a stage that needs sums over the tokens that are left. Grid: 1 × rows, 1024 threads.
// draw_take: draws the token, and hands it to the interpreter if one waits for it. Grid: 1 × rows, 1024 threads.
#include "draw_bins.cuh"
#include "draw_closing.cuh"
#include "draw_keys.cuh"
#include "draw_listed.cuh"
#include "draw_scores.cuh"
#include "draw_shares.cuh"
#include "draw_whole.cuh"

// Leaves the largest key of the block's threads as that of this part of a row.
DEVICE void draw_of_part(u64* keys, u64 best, u64* scratch) {
    best = draw_largest(best, scratch);
    if (threadIdx.x == 0) {
        keys[blockIdx.y * gridDim.x + blockIdx.x] = best;
    }
}

// The largest of the keys that `draw_of_part` left for the parts of this row. All threads get it.
DEVICE u64 draw_of_parts(const u64* keys, u32 parts, u64* scratch) {
    keys += blockIdx.y * parts;
    u64 best = 0;
    for (u32 i = threadIdx.x; i < parts; i += blockDim.x) {
        best = draw_larger(best, keys[i]);
    }
    return draw_largest(best, scratch);
}

// A thread's logits of a part of a row, 256 apart, −∞ behind the row's end. All loads are on their way before the first value is used.
#define DRAW_EACH (DRAW_PART / 256)
struct DrawPart {
    float at[DRAW_EACH];

    DEVICE DrawPart(const float* z, u32 first, u32 width) {
#pragma unroll
        for (u32 i = 0; i < DRAW_EACH; ++i) {
            u32 id = first + 256 * i + threadIdx.x;
            at[i] = id < width ? z[id] : -INFINITY;
        }
    }
};

// Subtracts the penalties of DRY. Each id is there once. All threads call it.
DEVICE void draw_repel(const DrawRow& row, float* z, u32 width) {
    for (u32 i = threadIdx.x; i < row.repeats_count; i += blockDim.x) {
        u32 id = row.repeats[2 * i];
        if (id < width) {
            z[id] = __fadd_rn(z[id], -__uint_as_float(row.repeats[2 * i + 1]));
        }
    }
    __syncthreads();
}

KERNEL(draw_adjust, DrawParams) {
    const DrawRow& row = p.rows[blockIdx.y];
    float* z = const_cast<float*>(row_of(p.x, blockIdx.y));
    u32 width = p.x.width;
    if (row.repeats_first) {
        draw_repel(row, z, width);
    }
    for (u32 i = threadIdx.x; i < row.occurrences_count; i += blockDim.x) {
        u32 id = row.occurrences[2 * i], count = row.occurrences[2 * i + 1];
        if (id < width) {
            float old = z[id];
            float scaled = old > 0.0f ? old / row.repeat : __fmul_rn(old, row.repeat);
            z[id] = __fadd_rn(scaled, -__fadd_rn(__fmul_rn((float)count, row.frequency), row.presence));
        }
    }
    __syncthreads();
    if (!row.repeats_first) {
        draw_repel(row, z, width);
    }
    // Biases of one id lie together; the thread of the first adds all of them.
    for (u32 i = threadIdx.x; i < row.biases_count; i += blockDim.x) {
        u32 id = row.biases[2 * i];
        if (id < width && (i == 0 || row.biases[2 * i - 2] != id)) {
            float sum = z[id];
            for (u32 j = i; j < row.biases_count && row.biases[2 * j] == id; ++j) {
                sum = __fadd_rn(sum, __uint_as_float(row.biases[2 * j + 1]));
            }
            z[id] = sum;
        }
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < row.forbidden_count; i += blockDim.x) {
        if (row.forbidden[i] < width) {
            z[row.forbidden[i]] = -INFINITY;
        }
    }
}

KERNEL(draw_find, DrawParams) {
    __shared__ u64 scratch[32];
    float* z = const_cast<float*>(row_of(p.x, blockIdx.y));
    const u32* mask = p.rows[blockIdx.y].mask;
    u32 first = blockIdx.x * DRAW_PART;
    DrawPart part(z, first, p.x.width);
    u64 best = 0;
#pragma unroll
    for (u32 i = 0; i < DRAW_EACH; ++i) {
        u32 id = first + 256 * i + threadIdx.x;
        if (mask && id < p.x.width && !(mask[id / 32] >> id % 32 & 1)) {
            part.at[i] = z[id] = -INFINITY;
        }
        best = draw_larger(best, id < p.x.width ? draw_key_or_none(part.at[i], id) : 0);
    }
    draw_of_part(p.largest, best, scratch);
    // The next launches count from 0.
    if (blockIdx.x == 0 && threadIdx.x <= DRAW_BINS) {
        p.counts[blockIdx.y * (DRAW_BINS + 1) + threadIdx.x] = 0;
    }
}

// Finds the best score of this block's part of a row.
DEVICE void draw_score_part(const DrawParams& p, const DrawRow& row, const float* z, float largest, u64* scratch) {
    u32 width = p.x.width, first = blockIdx.x * DRAW_PART;
    u64 best = 0;
    for (u32 id = first + 4 * threadIdx.x; id < min(width, first + DRAW_PART); id += 4 * blockDim.x) {
        DrawWords words = draw_words(row, id / 4);
        for (u32 i = 0; i < 4 && id + i < width; ++i) {
            float score = draw_score(row, z[id + i], largest, words.at[i]);
            best = draw_larger(best, draw_key_or_none(score, id + i));
        }
    }
    draw_of_part(p.scores, best, scratch);
}

KERNEL(draw_weigh, DrawParams) {
    __shared__ u64 scratch[32];
    __shared__ u32 bins[DRAW_BINS];
    const DrawRow& row = p.rows[blockIdx.y];
    const float* z = row_of(p.x, blockIdx.y);
    u32 width = p.x.width, first = blockIdx.x * DRAW_PART;
    float largest = draw_value(draw_of_parts(p.largest, gridDim.x, scratch));
    if (row.is_greedy || !(fabsf(largest) < INFINITY)) {
        return;
    }
    if (row.filters_count == 0) {
        draw_score_part(p, row, z, largest, scratch);
        return;
    }
    if (threadIdx.x < DRAW_BINS) {
        bins[threadIdx.x] = 0;
    }
    __syncthreads();
    for (u32 block = first / 256 + warp(); block * 256 < min(width, first + DRAW_PART); block += blockDim.x / 32) {
        float values[8], shares[8];
#pragma unroll
        for (u32 i = 0; i < 8; ++i) {
            u32 id = block * 256 + 32 * i + lane();
            values[i] = id < width ? z[id] : -INFINITY;
        }
#pragma unroll
        for (u32 i = 0; i < 8; ++i) {
            if (values[i] > -INFINITY) {
                atomicAdd(&bins[draw_bin(values[i], largest)], 1u);
            }
            shares[i] = row.sums ? draw_share(values[i], largest, row.sum_temperature) : 0.0f;
        }
        if (row.sums) {
            float sum = draw_sum_of_block(shares);
            if (lane() == 0) {
                p.sums[blockIdx.y * ((width + 255) / 256) + block] = sum;
            }
        }
    }
    __syncthreads();
    if (threadIdx.x < DRAW_BINS && bins[threadIdx.x] > 0) {
        atomicAdd(&p.counts[blockIdx.y * (DRAW_BINS + 1) + threadIdx.x], bins[threadIdx.x]);
    }
}

KERNEL(draw_list, DrawParams) {
    __shared__ u64 scratch[32];
    const DrawRow& row = p.rows[blockIdx.y];
    if (row.filters_count == 0 || row.is_greedy) {
        return;
    }
    const float* z = row_of(p.x, blockIdx.y);
    u32* counts = p.counts + blockIdx.y * (DRAW_BINS + 1);
    u32 first = blockIdx.x * DRAW_PART;
    DrawPart part(z, first, p.x.width);
    float largest = draw_value(draw_of_parts(p.largest, gridDim.x, scratch));
    const DrawBins listed(row, counts);
    if (!(fabsf(largest) < INFINITY)) {
        return;
    }
#pragma unroll
    for (u32 i = 0; i < DRAW_EACH; ++i) {
        float value = part.at[i];
        if (value > -INFINITY && draw_bin(value, largest) < listed.bins) {
            u32 place = atomicAdd(&counts[DRAW_BINS], 1u);
            if (place < DRAW_LISTED) {
                p.listed[blockIdx.y * DRAW_LISTED + place] = draw_key(value, first + 256 * i + threadIdx.x);
            }
        }
    }
}

// Hands the token that follows a step of the interpreter to its next step, and shows it to the host. One thread calls it.
DEVICE void draw_hand_on(const HandOn& to, u32 token, u32 cancel) {
    u32* row = to.state + 4;  // token, index, position; the barrier's counter lies in front
    // Behind the end of a chain nothing was computed.
    token = row[0] == DRAW_NO_TOKEN ? DRAW_NO_TOKEN : token;
    bool ends = cancel != 0;
    for (u32 i = 0; i < to.stops_count; ++i) {
        ends = ends || to.stops[i] == token;
    }
    store_to_host(to.shown, (u64)1 << 32 | token);
    to.state[0] = 0;
    row[0] = ends ? DRAW_NO_TOKEN : token;
    row[1] += 1;
    row[2] += 1;
}

// The smallest key that the filters of a phase keep, which penalties or other stages follow. All threads get it.
DEVICE u64 draw_lowest_kept(const DrawParams& p, const DrawRow& row, u64 likeliest, DrawMemory& memory) {
    u32 blocks = (p.x.width + 255) / 256;
    float largest = draw_value(likeliest);
    if (row.filters_count == 0) {
        return (u64)0x00800000u << 32;  // above the keys of −∞
    }
    DrawListed tokens = draw_listed(p, row, largest, memory);
    float sum_of_all = row.sums ? draw_sum_of_all(p.sums + blockIdx.y * blocks, blocks, memory.groups) : 0.0f;
    u32 kept = tokens.count == 0 ? 0 : draw_kept(row, tokens, sum_of_all);
    if (kept == 0) {
        DrawWhole whole = {row_of(p.x, blockIdx.y), p.sums + blockIdx.y * blocks, p.x.width, largest};
        return draw_lowest(row, whole, likeliest, sum_of_all, memory.groups, &memory.number);
    }
    __syncthreads();
    if (threadIdx.x == kept - 1) {
        memory.scratch[0] = tokens.key;
    }
    __syncthreads();
    return memory.scratch[0];
}

KERNEL(draw_cut, DrawParams) {
    __shared__ DrawMemory memory;
    const DrawRow& row = p.rows[blockIdx.y];
    u32 parts = (p.x.width + DRAW_PART - 1) / DRAW_PART;
    u64 likeliest = draw_of_parts(p.largest, parts, memory.scratch);
    float largest = draw_value(likeliest);
    // Greedy is a row whose filters all come later.
    if (row.is_greedy || !(fabsf(largest) < INFINITY)) {
        return;
    }
    u64 lowest = likeliest;
    float scale = row.inverse_temperature;
    if (fabsf(__fmul_rn(largest, scale)) < INFINITY) {
        lowest = draw_lowest_kept(p, row, likeliest, memory);
    } else {
        scale = 1.0f;
    }
    float* z = const_cast<float*>(row_of(p.x, blockIdx.y));
    for (u32 id = threadIdx.x; id < p.x.width; id += blockDim.x) {
        z[id] = draw_key_or_none(z[id], id) >= lowest ? __fmul_rn(z[id], scale) : -INFINITY;
    }
}

KERNEL(draw_close, DrawParams) {
    __shared__ DrawMemory memory;
    __shared__ u32 present[256];  // bits of up to 8192 blocks
    const DrawRow& row = p.rows[blockIdx.y];
    u32 parts = (p.x.width + DRAW_PART - 1) / DRAW_PART, blocks = (p.x.width + 255) / 256;
    u64 likeliest = draw_of_parts(p.largest, parts, memory.scratch);
    float largest = draw_value(likeliest);
    // Greedy is a row whose filters all come later.
    if (row.is_greedy || !(fabsf(largest) < INFINITY)) {
        return;
    }
    float* z = const_cast<float*>(row_of(p.x, blockIdx.y));
    DrawLeft left = {likeliest, likeliest, 1.0f};
    if (fabsf(__fmul_rn(largest, row.inverse_temperature)) < INFINITY) {
        u64 lowest = draw_lowest_kept(p, row, likeliest, memory);
        const DrawWhole tokens = {z, p.sums + blockIdx.y * blocks, p.x.width, largest};
        left = DrawClosing{row, tokens, lowest, row.inverse_temperature, memory, present}.left();
        // A dynamic temperature may be as small as the others.
        if (!(fabsf(__fmul_rn(largest, left.scale)) < INFINITY)) {
            left = {likeliest, likeliest, 1.0f};
        }
    }
    __syncthreads();
    for (u32 id = threadIdx.x; id < p.x.width; id += blockDim.x) {
        u64 key = draw_key_or_none(z[id], id);
        z[id] = key >= left.lowest && key <= left.highest ? __fmul_rn(z[id], left.scale) : -INFINITY;
    }
}

KERNEL(draw_take, DrawParams) {
    __shared__ DrawMemory memory;
    const DrawRow& row = p.rows[blockIdx.y];
    // The host's word takes long to come, so it is asked for first.
    bool hands_on = threadIdx.x == 0 && p.hand_on.state;
    u32 cancel = hands_on ? *p.hand_on.cancel : 0;
    u32 parts = (p.x.width + DRAW_PART - 1) / DRAW_PART, blocks = (p.x.width + 255) / 256;
    u64 likeliest = draw_of_parts(p.largest, parts, memory.scratch);
    float largest = draw_value(likeliest);
    u32 token;
    if (!(fabsf(largest) < INFINITY)) {
        token = DRAW_NO_TOKEN;
    } else if (row.is_greedy) {
        token = draw_id(likeliest);
    } else if (row.filters_count == 0) {
        token = draw_id(draw_of_parts(p.scores, parts, memory.scratch));
    } else {
        DrawListed tokens = draw_listed(p, row, largest, memory);
        float sum_of_all = row.sums ? draw_sum_of_all(p.sums + blockIdx.y * blocks, blocks, memory.groups) : 0.0f;
        u32 kept = tokens.count == 0 ? 0 : draw_kept(row, tokens, sum_of_all);
        u64 best = 0;
        if (threadIdx.x < kept) {
            u32 id = draw_id(tokens.key);
            best = draw_key(draw_score(row, draw_value(tokens.key), largest, draw_words(row, id / 4).at[id % 4]), id);
        }
        // The listed tokens do not tell.
        if (kept == 0) {
            DrawWhole whole = {row_of(p.x, blockIdx.y), p.sums + blockIdx.y * blocks, p.x.width, largest};
            u64 lowest = draw_lowest(row, whole, likeliest, sum_of_all, memory.groups, &memory.number);
            for (u32 id = threadIdx.x; id < p.x.width; id += blockDim.x) {
                float value = whole.z[id];
                if (value == value && draw_key(value, id) >= lowest) {
                    u64 key = draw_key(draw_score(row, value, largest, draw_words(row, id / 4).at[id % 4]), id);
                    best = draw_larger(best, key);
                }
            }
        }
        token = kept == 1 ? draw_id(likeliest) : draw_id(draw_largest(best, memory.scratch));
    }
    if (threadIdx.x == 0) {
        p.y[blockIdx.y] = token;
    }
    if (hands_on) {
        draw_hand_on(p.hand_on, token, cancel);
    }
}
