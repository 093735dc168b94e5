// A token for each row of logits, drawn by the rules of brasa-graph's `sampling`: filters keep the first tokens in order of logit and
// id, the largest score x + g among those that are kept wins, and every operation is rounded by itself.
//
// draw_adjust: penalties, bias and forbidden ids, in place. Grid: 1 × rows, 256 threads.
// draw_find: what a mask leaves out, in place, and the largest logit of each part of DRAW_PART. Grid: parts × rows, 256 threads.
// draw_weigh: sums of shares, how many tokens lie how far below the largest, and the best score of each part where all tokens are
//   kept. Grid: parts × rows, 256 threads.
// draw_list: the likeliest tokens, at most 1024, in no order. Grid: parts × rows, 256 threads.
// draw_take: the token, which is handed to the interpreter where there is one that waits for it. Grid: 1 × rows, 1024 threads.
//
// A token is compared by its key: the bits of its logit or score in an order-preserving form above its id's complement, so that of
// equal ones the lower id has the larger key. No key of a number is 0.
#include "common.cuh"

DEVICE u64 draw_key(float z, u32 id) {
    // Adding 0 makes −0 equal 0.
    u32 bits = __float_as_uint(__fadd_rn(z, 0.0f));
    u32 ordered = bits >> 31 ? ~bits : bits | 0x80000000u;
    return (u64)ordered << 32 | (u32)~id;
}

DEVICE float draw_value(u64 key) {
    u32 ordered = (u32)(key >> 32);
    return __uint_as_float(ordered >> 31 ? ordered & 0x7fffffffu : ~ordered);
}

DEVICE u32 draw_id(u64 key) { return ~(u32)key; }

// The key that the lane `distance` away gives.
DEVICE u64 draw_exchange(u64 key, u32 distance) {
    u32 high = __shfl_xor_sync(0xffffffffu, (u32)(key >> 32), distance);
    u32 low = __shfl_xor_sync(0xffffffffu, (u32)key, distance);
    return (u64)high << 32 | low;
}

DEVICE u64 draw_largest_of_warp(u64 key) {
    for (u32 distance = 16; distance > 0; distance /= 2) {
        u64 other = draw_exchange(key, distance);
        key = other > key ? other : key;
    }
    return key;
}

// The largest key of a block. All threads get it; `scratch` holds 32 keys.
DEVICE u64 draw_largest(u64 key, u64* scratch) {
    key = draw_largest_of_warp(key);
    __syncthreads();
    if (lane() == 0) {
        scratch[warp()] = key;
    }
    __syncthreads();
    return draw_largest_of_warp(lane() < blockDim.x / 32 ? scratch[lane()] : 0);
}

// The largest of the keys that the parts of a row left.
DEVICE u64 draw_of_parts(const u64* keys, u32 parts, u64* scratch) {
    u64 best = 0;
    for (u32 i = threadIdx.x; i < parts; i += blockDim.x) {
        best = keys[i] > best ? keys[i] : best;
    }
    return draw_largest(best, scratch);
}

// exp(x) for x <= 0, as `exp_nonpositive` defines it.
DEVICE float draw_exp(float x) {
    float clamped = fmaxf(x, -87.0f);
    float rounded = __fadd_rn(__fmul_rn(clamped, 1.44269504088896340736f), 12582912.0f);
    float n = __fadd_rn(rounded, -12582912.0f);
    float r = __fadd_rn(__fadd_rn(clamped, -__fmul_rn(n, 0.69314575f)), -__fmul_rn(n, 1.4286068e-6f));
    float sum = 1.0f / 5040.0f;
    sum = __fadd_rn(__fmul_rn(sum, r), 1.0f / 720.0f);
    sum = __fadd_rn(__fmul_rn(sum, r), 1.0f / 120.0f);
    sum = __fadd_rn(__fmul_rn(sum, r), 1.0f / 24.0f);
    sum = __fadd_rn(__fmul_rn(sum, r), 1.0f / 6.0f);
    sum = __fadd_rn(__fmul_rn(sum, r), 0.5f);
    sum = __fadd_rn(__fmul_rn(sum, r), 1.0f);
    sum = __fadd_rn(__fmul_rn(sum, r), 1.0f);
    float power = __uint_as_float((__float_as_uint(rounded) + 127) << 23);
    return x >= -87.0f ? __fmul_rn(sum, power) : 0.0f;
}

DEVICE float draw_share(float z, float largest, float inverse_temperature) {
    return draw_exp(__fmul_rn(__fadd_rn(z, -largest), inverse_temperature));
}

// The sum of a block of 256 shares, of which lane l has those at l, l + 32, …: 128, 64 and 32 apart in the lane, then the lanes in a tree.
DEVICE float draw_sum_of_block(const float (&at)[8]) {
    float even = __fadd_rn(__fadd_rn(at[0], at[4]), __fadd_rn(at[2], at[6]));
    float odd = __fadd_rn(__fadd_rn(at[1], at[5]), __fadd_rn(at[3], at[7]));
    return warp_sum(__fadd_rn(even, odd));
}

struct DrawWords {
    u32 at[4];
};

// Philox4x32-10: the random words of tokens 4·quad to 4·quad + 3.
DEVICE DrawWords draw_words(const DrawRow& row, u32 quad) {
    u32 c0 = quad, c1 = row.position, c2 = 0, c3 = 0, k0 = row.seed_low, k1 = row.seed_high;
    for (int round = 0; round < 10; ++round) {
        u64 a = (u64)0xd2511f53u * c0, b = (u64)0xcd9e8d57u * c2;
        c0 = (u32)(b >> 32) ^ c1 ^ k0;
        c2 = (u32)(a >> 32) ^ c3 ^ k1;
        c1 = (u32)b;
        c3 = (u32)a;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    return {{c0, c1, c2, c3}};
}

// x + g: the token with the largest is drawn.
DEVICE float draw_score(const DrawRow& row, float z, float largest, u32 word) {
    float u = fminf(__fmul_rn(__fadd_rn((float)word, 0.5f), 1.0f / 4294967296.0f), 0.99999994f);
    float noise = -logf(-log1pf(-u));
    float exponent = z >= largest ? 0.0f : __fmul_rn(__fadd_rn(z, -largest), row.inverse_temperature);
    return __fadd_rn(exponent, noise);
}

// Which of DRAW_BINS a logit that is a number falls into; a larger one never falls into a later bin. Eight bins for each power of two of the
// distance to the largest, from 2⁻⁸ on: flat logits and steep ones are both told apart.
DEVICE u32 draw_bin(float z, float largest) {
    const u32 first = (127 - 8) << 3;
    u32 bin = __float_as_uint(__fadd_rn(largest, -z)) >> 20;
    return min(bin > first ? bin - first : 0, DRAW_BINS - 1);
}

// A part of a row, of which each thread of 256 has the tokens 256 apart: all are asked for before the first is looked at. −∞ behind the row's end.
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

KERNEL(draw_adjust, DrawParams) {
    const DrawRow& row = p.rows[blockIdx.y];
    float* z = const_cast<float*>(row_of(p.x, blockIdx.y));
    u32 width = p.x.width;
    for (u32 i = threadIdx.x; i < row.occurrences_count; i += blockDim.x) {
        u32 id = row.occurrences[2 * i], count = row.occurrences[2 * i + 1];
        if (id < width) {
            float old = z[id];
            float scaled = old > 0.0f ? old / row.repeat : __fmul_rn(old, row.repeat);
            z[id] = __fadd_rn(scaled, -__fadd_rn(__fmul_rn((float)count, row.frequency), row.presence));
        }
    }
    __syncthreads();
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
        u64 key = id < p.x.width && part.at[i] == part.at[i] ? draw_key(part.at[i], id) : 0;
        best = key > best ? key : best;
    }
    best = draw_largest(best, scratch);
    if (threadIdx.x == 0) {
        p.largest[blockIdx.y * gridDim.x + blockIdx.x] = best;
    }
    // What the launches behind this one count.
    if (blockIdx.x == 0 && threadIdx.x <= DRAW_BINS) {
        p.counts[blockIdx.y * (DRAW_BINS + 1) + threadIdx.x] = 0;
    }
}

KERNEL(draw_weigh, DrawParams) {
    __shared__ u64 scratch[32];
    __shared__ u32 bins[DRAW_BINS];
    const DrawRow& row = p.rows[blockIdx.y];
    const float* z = row_of(p.x, blockIdx.y);
    u32 width = p.x.width, first = blockIdx.x * DRAW_PART;
    float largest = draw_value(draw_of_parts(p.largest + blockIdx.y * gridDim.x, gridDim.x, scratch));
    if (row.is_greedy || !(fabsf(largest) < INFINITY)) {
        return;
    }
    if (row.filters_count == 0) {
        u64 best = 0;
        for (u32 id = first + 4 * threadIdx.x; id < min(width, first + DRAW_PART); id += 4 * blockDim.x) {
            DrawWords words = draw_words(row, id / 4);
            for (u32 i = 0; i < 4 && id + i < width; ++i) {
                float score = draw_score(row, z[id + i], largest, words.at[i]);
                u64 key = score == score ? draw_key(score, id + i) : 0;
                best = key > best ? key : best;
            }
        }
        best = draw_largest(best, scratch);
        if (threadIdx.x == 0) {
            p.scores[blockIdx.y * gridDim.x + blockIdx.x] = best;
        }
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

// Bins of a row whose tokens are listed: enough of them for the row if that is at most DRAW_LISTED tokens, otherwise as many as are.
// `listed` is the number of their tokens, `all` that of all bins'. Each warp finds out by itself: a lane has four bins.
static_assert(DRAW_BINS == 4 * 32, "a lane has four bins");
DEVICE u32 draw_bins(const DrawRow& row, const u32* counts, u32& listed, u32& all) {
    u32 own[4], before = 0;
    all = 0;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        own[i] = counts[4 * lane() + i];
        all += own[i];
    }
    for (u32 distance = 1; distance < 32; distance *= 2) {
        u32 other = __shfl_xor_sync(0xffffffffu, all, distance);
        before += lane() & distance ? other : 0;
        all += other;
    }
    // What is before a bin never falls from bin to bin, so those that are listed are the first. Both numbers fit into a word.
    u32 found = 0;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        if (before < row.most && before + own[i] <= DRAW_LISTED) {
            found += 1 << 16 | own[i];
        }
        before += own[i];
    }
    for (u32 distance = 1; distance < 32; distance *= 2) {
        found += __shfl_xor_sync(0xffffffffu, found, distance);
    }
    listed = found & 0xffff;
    return found >> 16;
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
    float largest = draw_value(draw_of_parts(p.largest + blockIdx.y * gridDim.x, gridDim.x, scratch));
    u32 listed, all, bins = draw_bins(row, counts, listed, all);
    if (!(fabsf(largest) < INFINITY)) {
        return;
    }
#pragma unroll
    for (u32 i = 0; i < DRAW_EACH; ++i) {
        float value = part.at[i];
        if (value > -INFINITY && draw_bin(value, largest) < bins) {
            u32 place = atomicAdd(&counts[DRAW_BINS], 1u);
            if (place < DRAW_LISTED) {
                p.listed[blockIdx.y * DRAW_LISTED + place] = draw_key(value, first + 256 * i + threadIdx.x);
            }
        }
    }
}

// Sorts `count` keys in falling order, a power of two from 32 up to the block's threads: thread i < count gives one and gets that of rank i.
// Keys pass within a warp by shuffles, and between warps through two buffers in turn, so that one barrier a step is enough. All threads come here.
DEVICE u64 draw_sort(u64 key, u32 count, u64 (*buffers)[DRAW_LISTED]) {
    u32 i = threadIdx.x, turn = 0;
    bool works = i < count;
    for (u32 length = 2; length <= count; length *= 2) {
        for (u32 distance = length / 2; distance > 0; distance /= 2) {
            u64 other = 0;
            if (distance >= 32) {
                u64* buffer = buffers[turn];
                turn ^= 1;
                if (works) {
                    buffer[i] = key;
                }
                __syncthreads();
                if (works) {
                    other = buffer[i ^ distance];
                }
            } else if (works) {
                other = draw_exchange(key, distance);
            }
            bool takes_larger = ((i & length) == 0) == ((i & distance) == 0);
            key = (other > key) == takes_larger ? other : key;
        }
    }
    return key;
}

// Where the tree of sums has a token: places that are joined first differ in the lowest bits.
DEVICE u32 draw_place(u32 id) {
    u32 place = 0;
    for (u32 bit = 0; bit < 8; ++bit) {
        place |= (id >> bit & 0x01010101u) << (7 - bit);
    }
    return place;
}

// What draw_take keeps in shared memory.
struct DrawMemory {
    u64 scratch[32];
    u64 buffers[2][DRAW_LISTED];
    u64 keys[DRAW_LISTED];       // falling
    u64 places[DRAW_LISTED];     // falling, each a token's place above its rank
    float prefixes[DRAW_LISTED]; // about the sum of the shares of the first 1, 2, … tokens
    float sums[DRAW_LISTED];
    float totals[32];            // of the warps
    float groups[32];            // of 256 blocks each
    u32 next[DRAW_LISTED];
    u32 number;
};

// How far a sum in another order than the tree's may lie from it, as a part of it, and more: neither rounds more than 64 times by 2⁻²⁴.
#define DRAW_DOUBT (1.0f / 65536.0f)

// The first tokens of a row in order; thread i < count has the key of rank i.
struct DrawListed {
    DrawMemory& memory;
    u64 key;
    u32 count, padded;
    float largest, inverse_temperature;
    bool has_prefixes = false, has_places = false;

    DEVICE float share() const {
        return threadIdx.x < count ? draw_share(draw_value(key), largest, inverse_temperature) : 0.0f;
    }

    // Adds the shares in order of rank.
    DEVICE void prepare_prefixes() {
        if (has_prefixes) {
            return;
        }
        has_prefixes = true;
        u32 i = threadIdx.x;
        float total = share(), prefix = total;
        if (i < padded) {
            for (u32 distance = 1; distance < 32; distance *= 2) {
                float other = __shfl_xor_sync(0xffffffffu, total, distance);
                prefix = lane() & distance ? __fadd_rn(prefix, other) : prefix;
                total = __fadd_rn(total, other);
            }
            if (lane() == 0) {
                memory.totals[warp()] = total;
            }
        }
        __syncthreads();
        if (i < count) {
            float before = 0.0f;
            for (u32 w = 0; w < warp(); ++w) {
                before = __fadd_rn(before, memory.totals[w]);
            }
            memory.prefixes[i] = __fadd_rn(before, prefix);
        }
        __syncthreads();
    }

    // Brings the tokens into the order in which the tree has them.
    DEVICE void prepare_places() {
        if (has_places) {
            return;
        }
        has_places = true;
        u32 i = threadIdx.x;
        u64 place = i < count ? (u64)draw_place(draw_id(key)) << 32 | i : 0;
        if (i < count) {
            memory.keys[i] = key;
        }
        place = draw_sort(place, padded, memory.buffers);
        if (i < count) {
            memory.places[i] = place;
        }
    }

    // The tree sum of the shares of the first `few`. All threads get it.
    DEVICE float sum_of_first(u32 few) {
        prepare_places();
        u32 i = threadIdx.x, place = 0;
        __syncthreads();
        if (i < count) {
            u32 rank = (u32)memory.places[i];
            place = (u32)(memory.places[i] >> 32);
            memory.sums[i] = rank < few ? draw_share(draw_value(memory.keys[rank]), largest, inverse_temperature) : 0.0f;
            memory.next[i] = i + 1;
        }
        for (u32 bit = 0; bit < 24; ++bit) {
            __syncthreads();
            // The higher of two places stands first and takes the lower one in.
            if (i < count && (place >> bit & 1) == 1 && memory.next[i] > 0) {
                u32 other = memory.next[i];
                if (other < count && (u32)(memory.places[other] >> 32) >> (bit + 1) == place >> (bit + 1)) {
                    memory.sums[i] = __fadd_rn(memory.sums[i], memory.sums[other]);
                    memory.next[i] = memory.next[other];
                    memory.next[other] = 0;
                }
            }
        }
        __syncthreads();
        return memory.sums[0];
    }

    // The fewest of the first `end` tokens the tree sum of whose shares is at least `value` times that of all, or of the first `few`;
    // end + 1 where that of all `end` is less. Sums never fall as tokens are added. A sum in order of rank tells which side of the target
    // each tree sum lies on, unless it lies beside it; then tree sums are made.
    DEVICE u32 reach(u32 end, float value, bool of_all, float sum_of_all, u32 few) {
        prepare_prefixes();
        u32 i = threadIdx.x;
        float near = __fmul_rn(value, of_all ? sum_of_all : memory.prefixes[few - 1]);
        float prefix = memory.prefixes[i < end ? i : 0];
        u32 short_of = (u32)__syncthreads_count(i < end && prefix < __fmul_rn(near, 1.0f - DRAW_DOUBT));
        if (short_of == (u32)__syncthreads_count(i < end && prefix < __fmul_rn(near, 1.0f + DRAW_DOUBT))) {
            return short_of + 1;
        }
        float target = __fmul_rn(value, of_all ? sum_of_all : sum_of_first(few));
        if (sum_of_first(end) < target) {
            return end + 1;
        }
        u32 low = 0, high = end;
        while (low + 1 < high) {
            u32 middle = (low + high) / 2;
            if (sum_of_first(middle) >= target) {
                high = middle;
            } else {
                low = middle;
            }
        }
        return high;
    }
};

// The tree sum of the sums of a row's blocks, at most 32 · 256 of them. All threads get it.
DEVICE float draw_sum_of_all(const float* sums, u32 blocks, float* scratch) {
    u32 groups = (blocks + 255) / 256;
    __syncthreads();
    for (u32 group = warp(); group < 32; group += blockDim.x / 32) {
        float at[8];
        for (u32 i = 0; i < 8; ++i) {
            u32 block = group * 256 + 32 * i + lane();
            at[i] = group < groups && block < blocks ? sums[block] : 0.0f;
        }
        float sum = draw_sum_of_block(at);
        if (lane() == 0) {
            scratch[group] = sum;
        }
    }
    __syncthreads();
    return warp_sum(scratch[lane()]);
}

// How many tokens are kept; 0 where the tokens that are listed do not tell, and `draw_lowest` has to.
DEVICE u32 draw_kept(const DrawRow& row, DrawListed& tokens, bool is_complete, float sum_of_all) {
    u32 count = tokens.count, kept = 0xffffffffu;
    for (u32 filter = 0; filter < row.filters_count; ++filter) {
        u32 most = min(row.most, kept);
        float value = row.values[filter];
        if (row.kinds[filter] == DRAW_TOP_K) {
            kept = most;
            continue;
        }
        // Of more tokens than there are, those that there are.
        if (is_complete) {
            most = min(most, count);
        }
        u32 end = min(most, count);
        if (row.kinds[filter] == DRAW_MIN_P) {
            float least = __fadd_rn(tokens.largest, value);
            u32 likely = (u32)__syncthreads_count(threadIdx.x < end && draw_value(tokens.key) >= least);
            if (likely == end && end < most) {
                return 0;
            }
            kept = max(likely, 1u);
            continue;
        }
        // Top-p: the fewest whose sum reaches the target.
        if (kept != 0xffffffffu && !row.whole && min(kept, most) > count) {
            return 0;
        }
        u32 reached = tokens.reach(end, value, kept == 0xffffffffu || row.whole, sum_of_all, min(kept, end));
        if (reached > end) {
            if (end < most) {
                return 0;
            }
            reached = most;
        }
        kept = reached;
    }
    if (is_complete) {
        kept = min(kept, count);
    }
    return kept <= count ? kept : 0;
}

// A row of logits, all of which are read anew for each number that is asked for.
struct DrawWhole {
    const float* z;
    float* sums;  // of blocks of 256, written here
    u32 width;
    float largest;

    // The tree sum of the shares of tokens whose keys are `lowest` or larger. All threads get it.
    DEVICE float sum_from(u64 lowest, float inverse_temperature, float* scratch) const {
        u32 blocks = (width + 255) / 256;
        __syncthreads();
        for (u32 block = warp(); block < blocks; block += blockDim.x / 32) {
            float shares[8];
            for (u32 i = 0; i < 8; ++i) {
                u32 id = block * 256 + 32 * i + lane();
                float value = id < width ? z[id] : -INFINITY;
                bool counts = value == value && draw_key(value, id) >= lowest;
                shares[i] = counts ? draw_share(value, largest, inverse_temperature) : 0.0f;
            }
            float sum = draw_sum_of_block(shares);
            if (lane() == 0) {
                sums[block] = sum;
            }
        }
        return draw_sum_of_all(sums, blocks, scratch);
    }

    // How many tokens have keys of `lowest` or larger. All threads get it.
    DEVICE u32 count_from(u64 lowest, u32* count) const {
        __syncthreads();
        if (threadIdx.x == 0) {
            *count = 0;
        }
        __syncthreads();
        u32 own = 0;
        for (u32 id = threadIdx.x; id < width; id += blockDim.x) {
            float value = z[id];
            own += value == value && draw_key(value, id) >= lowest;
        }
        if (own > 0) {
            atomicAdd(count, own);
        }
        __syncthreads();
        return *count;
    }
};

// The smallest key of those that are kept, found by bisection over keys.
DEVICE u64 draw_lowest(const DrawRow& row, const DrawWhole& tokens, u64 likeliest, float sum_of_all, float* scratch, u32* count) {
    u64 lowest = (u64)0x00800000u << 32;  // above the keys of −∞
    for (u32 filter = 0; filter < row.filters_count; ++filter) {
        float value = row.values[filter], target = 0.0f;
        if (row.kinds[filter] == DRAW_MIN_P) {
            u64 least = draw_key(__fadd_rn(tokens.largest, value), 0xffffffffu);
            lowest = least > lowest ? least : lowest;
            continue;
        }
        bool is_top_k = row.kinds[filter] == DRAW_TOP_K;
        if (is_top_k) {
            if (tokens.count_from(lowest, count) < row.most) {
                continue;
            }
        } else {
            float sum = tokens.sum_from(lowest, row.sum_temperature, scratch);
            target = __fmul_rn(value, row.whole ? sum_of_all : sum);
            if (sum < target) {
                continue;
            }
        }
        // From `lowest` on they are enough, from `high` on too few.
        u64 high = likeliest + 1;
        while (high - lowest > 1) {
            u64 middle = lowest + (high - lowest) / 2;
            bool enough = is_top_k ? tokens.count_from(middle, count) >= row.most
                                   : tokens.sum_from(middle, row.sum_temperature, scratch) >= target;
            if (enough) {
                lowest = middle;
            } else {
                high = middle;
            }
        }
    }
    return lowest;
}

// Hands the token that was drawn behind a step of the interpreter to the next step, and shows it to the host. One thread comes here.
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

KERNEL(draw_take, DrawParams) {
    __shared__ DrawMemory memory;
    const DrawRow& row = p.rows[blockIdx.y];
    // The host's word takes long to come, and is asked for first.
    bool hands_on = threadIdx.x == 0 && p.hand_on.state;
    u32 cancel = hands_on ? *p.hand_on.cancel : 0;
    u32 parts = (p.x.width + DRAW_PART - 1) / DRAW_PART, blocks = (p.x.width + 255) / 256;
    u64 likeliest = draw_of_parts(p.largest + blockIdx.y * parts, parts, memory.scratch);
    float largest = draw_value(likeliest);
    u32 token;
    if (!(fabsf(largest) < INFINITY)) {
        token = DRAW_NO_TOKEN;
    } else if (row.is_greedy) {
        token = draw_id(likeliest);
    } else if (row.filters_count == 0) {
        token = draw_id(draw_of_parts(p.scores + blockIdx.y * parts, parts, memory.scratch));
    } else {
        u32 count, all;
        draw_bins(row, p.counts + blockIdx.y * (DRAW_BINS + 1), count, all);
        u32 padded = 32;
        while (padded < count) {
            padded *= 2;
        }
        u32 i = threadIdx.x;
        u64 key = draw_sort(i < count ? p.listed[blockIdx.y * DRAW_LISTED + i] : 0, padded, memory.buffers);
        // No filter asks for more than top-k leaves.
        bool is_complete = count == all;
        count = min(count, row.most);
        while (padded > 32 && padded / 2 >= count) {
            padded /= 2;
        }
        DrawListed tokens = {memory, key, count, padded, largest, row.sum_temperature};
        float mass = row.sums ? draw_sum_of_all(p.sums + blockIdx.y * blocks, blocks, memory.groups) : 0.0f;
        u32 kept = count == 0 ? 0 : draw_kept(row, tokens, is_complete, mass);
        u64 best = 0;
        if (kept > 0 && i < kept) {
            u32 id = draw_id(key);
            best = draw_key(draw_score(row, draw_value(key), largest, draw_words(row, id / 4).at[id % 4]), id);
        }
        if (kept == 0) {
            DrawWhole whole = {row_of(p.x, blockIdx.y), p.sums + blockIdx.y * blocks, p.x.width, largest};
            u64 lowest = draw_lowest(row, whole, likeliest, mass, memory.groups, &memory.number);
            for (u32 id = i; id < p.x.width; id += blockDim.x) {
                float value = whole.z[id];
                if (value == value && draw_key(value, id) >= lowest) {
                    u64 key = draw_key(draw_score(row, value, largest, draw_words(row, id / 4).at[id % 4]), id);
                    best = key > best ? key : best;
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
