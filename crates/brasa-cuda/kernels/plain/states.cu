// short_conv: y[r, c] = f(Σ_j w[c, j] · x[r − K + 1 + j, c]); rows before the segment's first are those of a state [K − 1, C].
// state_scan_<rule>_<E>: S ← decay · S + k ⊗ u, y = Sᵀ q, row after row of a segment; S is a state [E, V] for each head, E at most the
// kernel's. Rule delta: u = beta · (v − decay · Sᵀ k); rule add: u = v.
// A state is read from one page, zeros where there is none, and written to the pages of the rows that keep theirs. In a draft tree a
// row goes on from the state of its parent.
// Grids: short_conv: a thread an element of y. state_scan: x: blocks of 128 threads for 32 columns, y: heads, z: segments.
// A column is four lanes' for all rows: lane g has the elements 16 j + 4 g + t. Sums go over j for each t, then over t, then over lanes,
// so that they depend on E alone. Keys and queries of a row lie in shared memory; those of the next are on their way meanwhile.
#include "unary.cuh"

static const u32 NO_ROW = 0xffffffffu;

// The row of the segment that row `row` goes on from; NO_ROW for the state before the segment.
DEVICE u32 row_before(const TreeRow* tree, u32 row) {
    if (tree == nullptr) {
        return row - 1;
    }
    for (u32 other = row; other-- > 0;) {
        if (tree[row].seen[other / 64] >> (other % 64) & 1) {
            return other;
        }
    }
    return NO_ROW;
}

DEVICE const TreeRow* tree_of(const StepRows& step, const SegmentRows& segment) {
    return segment.has_tree ? step.tree_rows + segment.first_tree_row : nullptr;
}

// The state's elements in a page; null for none.
DEVICE float* state_at(const StatePlaces& places, const u64* addresses, u32 i) {
    const u64 page = addresses == nullptr ? 0 : addresses[i];
    return page == 0 ? nullptr : (float*)(page + places.offset_bytes);
}

// The element of channel `c` that lies `back` rows before row `row` of a segment.
DEVICE float element_before(const ShortConvParams& p, const SegmentRows& segment, const TreeRow* tree, const float* from, u32 row, u32 back, u32 c) {
    u32 at = row;
    while (back > 0 && at != NO_ROW) {
        at = row_before(tree, at);
        --back;
    }
    if (at != NO_ROW) {
        return p.x[(u64)(segment.first_row + at) * p.x_stride + c];
    }
    return from == nullptr ? 0.0f : from[(u64)(p.taps - 2 - back) * p.channels + c];
}

KERNEL(short_conv, ShortConvParams) {
    const u64 i = thread_number();
    if (i >= (u64)p.step.rows * p.channels) {
        return;
    }
    const u32 step_row = (u32)(i / p.channels), c = (u32)(i % p.channels), s = p.step.row_segments[step_row];
    const SegmentRows& segment = p.step.segments[s];
    const TreeRow* tree = tree_of(p.step, segment);
    const float* from = state_at(p.places, p.places.from, s);
    float* to = state_at(p.places, p.places.to, step_row);
    const u32 row = step_row - segment.first_row;
    float sum = 0.0f;
    for (u32 j = 0; j < p.taps; ++j) {
        const float x = element_before(p, segment, tree, from, row, p.taps - 1 - j, c);
        sum = fmaf(p.w[(u64)c * p.taps + j], x, sum);
        if (to != nullptr && j > 0) {
            to[(u64)(j - 1) * p.channels + c] = x;
        }
    }
    p.y[i] = p.activates ? unary_value(p.function, sum, 0.0f, 0.0f) : sum;
}

// A thread's elements of a column, and the row that it goes on with.
template <u32 OWN>
struct ScanColumn {
    float state[OWN];
    float v, decay, beta;
};

// A float of each of the four lanes of a column, added.
DEVICE float column_sum(const float (&sums)[4]) {
    float sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    sum += __shfl_xor_sync(0xffffffffu, sum, 8);
    sum += __shfl_xor_sync(0xffffffffu, sum, 16);
    return sum;
}

// Changes the column by a row with these keys and queries of shared memory; returns y.
template <bool DELTA, u32 OWN>
DEVICE float scan_row(ScanColumn<OWN>& column, const float* keys, const float* queries) {
    const u32 group = lane() / 8;
    float added = column.v;
    if (DELTA) {
        float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (u32 j = 0; j < OWN / 4; ++j) {
            const Floats4 k = *(const Floats4*)(keys + 16 * j + 4 * group);
#pragma unroll
            for (u32 t = 0; t < 4; ++t) {
                sums[t] = fmaf(column.state[4 * j + t], k.at[t], sums[t]);
            }
        }
        added = column.beta * fmaf(-column.decay, column_sum(sums), column.v);
    }
    float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (u32 j = 0; j < OWN / 4; ++j) {
        const Floats4 k = *(const Floats4*)(keys + 16 * j + 4 * group);
        const Floats4 q = *(const Floats4*)(queries + 16 * j + 4 * group);
#pragma unroll
        for (u32 t = 0; t < 4; ++t) {
            float& state = column.state[4 * j + t];
            state = fmaf(k.at[t], added, column.decay * state);
            sums[t] = fmaf(state, q.at[t], sums[t]);
        }
    }
    return column_sum(sums);
}

template <bool DELTA, u32 OWN>
DEVICE void state_scan(const StateScanParams& p) {
    // Elements of a key, with zeros behind the last, and how many of them a thread fetches.
    const u32 WIDTH = 4 * OWN, FETCHED = (WIDTH + 127) / 128;
    __shared__ Floats4 staged[3][2][OWN];
    const SegmentRows& segment = p.step.segments[blockIdx.z];
    const TreeRow* tree = tree_of(p.step, segment);
    const u32 head = blockIdx.y, group = lane() / 8;
    const u32 column_number = blockIdx.x * 32 + warp() * 8 + lane() % 8;
    const bool is_there = column_number < p.value_dim;
    const u32 share = p.heads / p.key_heads, key_head = p.is_tiled ? head % p.key_heads : head / share;
    const u64 matrix = (u64)head * p.key_dim * p.value_dim + column_number;

    ScanColumn<OWN> column;
    auto load = [&](const float* from) {
#pragma unroll
        for (u32 i = 0; i < OWN; ++i) {
            const u32 e = 16 * (i / 4) + 4 * group + i % 4;
            column.state[i] =
                from != nullptr && is_there && e < p.key_dim ? from[matrix + (u64)e * p.value_dim] : 0.0f;
        }
    };
    // Of a row's key (0) or query (1), element `n · 128 + thread`.
    auto element = [&](u32 row, u32 which, u32 n) {
        const u32 e = n * 128 + threadIdx.x;
        const float* x = which == 0 ? p.k + (u64)row * p.k_stride : p.q + (u64)row * p.q_stride;
        return e < p.key_dim ? x[key_head * p.key_dim + e] : 0.0f;
    };
    auto factors = [&](u32 row, float& v, float& decay, float& beta) {
        v = is_there ? p.v[(u64)row * p.v_stride + head * p.value_dim + column_number] : 0.0f;
        decay = p.decay[(u64)row * p.decay_stride + head];
        beta = DELTA ? p.beta[(u64)row * p.beta_stride + head] : 0.0f;
    };

    float fetched[2][FETCHED], v, decay, beta;
    auto fetch = [&](u32 row) {
#pragma unroll
        for (u32 n = 0; n < FETCHED; ++n) {
            fetched[0][n] = element(row, 0, n);
            fetched[1][n] = element(row, 1, n);
        }
        factors(row, v, decay, beta);
    };
    fetch(segment.first_row);
    for (u32 row = 0; row < segment.rows; ++row) {
        const u32 at = segment.first_row + row, before = row_before(tree, row);
        if (row == 0 || before != row - 1) {
            const float* from = before == NO_ROW ? state_at(p.places, p.places.from, blockIdx.z)
                                                 : state_at(p.places, p.places.to, segment.first_row + before);
            load(from);
            if (before != NO_ROW && from == nullptr) {
                // A text that keeps no states: its rows before this one run again.
                for (u32 other = 0; other < row; ++other) {
                    if (!(tree[row].seen[other / 64] >> (other % 64) & 1)) {
                        continue;
                    }
                    float *keys = (float*)staged[2][0], *queries = (float*)staged[2][1];
                    __syncthreads();
                    for (u32 n = 0; n < FETCHED; ++n) {
                        const u32 e = n * 128 + threadIdx.x;
                        if (e < WIDTH) {
                            keys[e] = element(segment.first_row + other, 0, n);
                            queries[e] = element(segment.first_row + other, 1, n);
                        }
                    }
                    factors(segment.first_row + other, column.v, column.decay, column.beta);
                    __syncthreads();
                    scan_row<DELTA>(column, keys, queries);
                }
            }
        }
        // The buffer was last read two rows ago, before the barrier of the row between.
        float *keys = (float*)staged[row % 2][0], *queries = (float*)staged[row % 2][1];
#pragma unroll
        for (u32 n = 0; n < FETCHED; ++n) {
            const u32 e = n * 128 + threadIdx.x;
            if (e < WIDTH) {
                keys[e] = fetched[0][n];
                queries[e] = fetched[1][n];
            }
        }
        column.v = v, column.decay = decay, column.beta = beta;
        __syncthreads();
        if (row + 1 < segment.rows) {
            fetch(at + 1);
        }
        const float y = scan_row<DELTA>(column, keys, queries);
        if (is_there && group == 0) {
            p.y[((u64)at * p.heads + head) * p.value_dim + column_number] = y;
        }
        float* to = state_at(p.places, p.places.to, at);
        if (to != nullptr && is_there) {
#pragma unroll
            for (u32 i = 0; i < OWN; ++i) {
                const u32 e = 16 * (i / 4) + 4 * group + i % 4;
                if (e < p.key_dim) {
                    to[matrix + (u64)e * p.value_dim] = column.state[i];
                }
            }
        }
    }
}

KERNEL(state_scan_add_32, StateScanParams) { state_scan<false, 8>(p); }
KERNEL(state_scan_add_64, StateScanParams) { state_scan<false, 16>(p); }
KERNEL(state_scan_add_128, StateScanParams) { state_scan<false, 32>(p); }
KERNEL(state_scan_add_256, StateScanParams) { state_scan<false, 64>(p); }
KERNEL(state_scan_delta_32, StateScanParams) { state_scan<true, 8>(p); }
KERNEL(state_scan_delta_64, StateScanParams) { state_scan<true, 16>(p); }
KERNEL(state_scan_delta_128, StateScanParams) { state_scan<true, 32>(p); }
KERNEL(state_scan_delta_256, StateScanParams) { state_scan<true, 64>(p); }
