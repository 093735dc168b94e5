// attend_pages_<type>: attention of rows to one page of a cache or memory: for each head the sum of values weighted by
// exp(score - largest score of the page), the sum of weights, and that largest score, [V + 2] floats.
// Grid: x: tasks, a KV head of a row each; y: pages; a block of 256 threads. Keys of up to 576 and values of up to 512. Shared memory:
// 4·(E + 256 + 8·V) floats where both are at most 256; 4·(E + 256) + 8·V for wider ones, whose warps are added head by head.
//
// attend_merge: y[R, H, V] from the pages' sums, in order of pages, and from the heads' sinks. Grid: x: heads of tasks; a block of 128 threads.
//
// A warp scores 32 positions, one after the other, for four heads that share keys; then it sums the values of its positions. The
// order of sums depends on positions alone, so a row has the same bits whatever else is in its step.
#include "sight.cuh"

static const u32 PAGE_WARPS = 8, HEADS_AT_ONCE = 4;

// LANE_ELEMENTS, LANE_VALUES: elements of a key and of a value that a lane takes. Wide heads take fewer keys at a time, for want of registers, and add
// the warps' sums of one head at a time, for want of shared memory.
template <class Type, u32 LANE_ELEMENTS, u32 LANE_VALUES>
DEVICE void attend_page(const PagesParams& all) {
    DYNAMIC_SHARED(shared);
    constexpr bool IS_WIDE = LANE_ELEMENTS > 8;
    constexpr u32 POSITIONS_AT_ONCE = IS_WIDE ? 4 : 8, HEADS_ADDED = IS_WIDE ? 1 : HEADS_AT_ONCE;
    const AttentionParams& p = all.attention;
    const u32 width = p.head_dim, of_values = p.value_dim, group = p.heads / p.kv_heads, t = threadIdx.x;
    float* q = shared;
    float* weights = q + HEADS_AT_ONCE * width;
    float* sums = weights + HEADS_AT_ONCE * PAGE_POSITIONS;
    const u32 task = all.first_task + blockIdx.x, r = task / p.kv_heads, g = task % p.kv_heads, first = blockIdx.y * PAGE_POSITIONS;
    const u32 segment = p.step.row_segments[r];
    const SegmentRows& rows = p.step.segments[segment];
    const Sight sight(p, rows, r - rows.first_row);
    float* partial = all.partial + ((u64)blockIdx.x * group * all.pages + blockIdx.y) * (of_values + 2);
    const u64 next_head = (u64)all.pages * (of_values + 2);
    if (first >= sight.end || first + PAGE_POSITIONS <= sight.first) {
        for (u32 h = t; h < group; h += blockDim.x) {
            partial[h * next_head + of_values] = 0.0f;
            partial[h * next_head + of_values + 1] = -INFINITY;
        }
        return;
    }
    const PagedHead<Type> head(p, segment, first, g);
    // The warp's positions that are in sight.
    u32 begin = first + warp() * 32, end = begin + 32;
    begin = begin > sight.first ? begin : sight.first;
    end = end < sight.end ? end : sight.end;
    for (u32 h = 0; h < group; h += HEADS_AT_ONCE) {
        const u32 heads = group - h < HEADS_AT_ONCE ? group - h : HEADS_AT_ONCE;
        for (u32 i = t; i < HEADS_AT_ONCE * width; i += blockDim.x) {
            // Heads behind the last repeat it; their sums are dropped.
            const u32 mine = i / width < heads ? i / width : heads - 1;
            q[i] = p.q[(u64)r * p.q_stride + (g * group + h + mine) * width + i % width];
        }
        for (u32 i = t; i < HEADS_AT_ONCE * PAGE_POSITIONS; i += blockDim.x) {
            weights[i] = -INFINITY;
        }
        __syncthreads();
        for (u32 j = begin; j < end; j += POSITIONS_AT_ONCE) {
            // All keys are asked for before one is used. Positions behind the last repeat it.
            float keys[POSITIONS_AT_ONCE][LANE_ELEMENTS];
#pragma unroll
            for (u32 n = 0; n < POSITIONS_AT_ONCE; ++n) {
                const u32 position = (j + n < end ? j + n : end - 1) - first;
#pragma unroll
                for (u32 i = 0; i < LANE_ELEMENTS; ++i) {
                    const u32 e = i * 32 + lane();
                    keys[n][i] = e < width ? head.key(position, e, width) : 0.0f;
                }
            }
            float dots[POSITIONS_AT_ONCE][HEADS_AT_ONCE] = {};
#pragma unroll
            for (u32 i = 0; i < LANE_ELEMENTS; ++i) {
                const u32 e = i * 32 + lane();
#pragma unroll
                for (u32 k = 0; k < HEADS_AT_ONCE; ++k) {
                    const float of_query = e < width ? q[k * width + e] : 0.0f;
#pragma unroll
                    for (u32 n = 0; n < POSITIONS_AT_ONCE; ++n) {
                        dots[n][k] = fmaf(of_query, keys[n][i], dots[n][k]);
                    }
                }
            }
            // Lane n · HEADS_AT_ONCE + k keeps the sum of position n and head k.
            float mine = 0.0f;
#pragma unroll
            for (u32 n = 0; n < POSITIONS_AT_ONCE; ++n) {
#pragma unroll
                for (u32 k = 0; k < HEADS_AT_ONCE; ++k) {
                    const float dot = warp_sum(dots[n][k]);
                    mine = lane() == n * HEADS_AT_ONCE + k ? dot : mine;
                }
            }
            const u32 n = lane() / HEADS_AT_ONCE, k = lane() % HEADS_AT_ONCE;
            if (n < POSITIONS_AT_ONCE && j + n < end) {
                float score = p.scale * mine;
                if (p.has_softcap) {
                    score = p.softcap * tanhf(score / p.softcap);
                }
                weights[k * PAGE_POSITIONS + j + n - first] = sight.sees(p, j + n) ? score : -INFINITY;
            }
        }
        __syncthreads();
        if (warp() < heads) {
            float* of_head = weights + warp() * PAGE_POSITIONS;
            float largest = -INFINITY, total = 0.0f;
            for (u32 i = lane(); i < PAGE_POSITIONS; i += 32) {
                largest = fmaxf(largest, of_head[i]);
            }
            OnlineSoftmax<PowersOfE> softmax;
            softmax.raise(warp_max(largest));
            for (u32 i = lane(); i < PAGE_POSITIONS; i += 32) {
                const float weight = softmax.weigh(of_head[i]);
                of_head[i] = weight;
                total += weight;
            }
            total = warp_sum(total);
            if (lane() == 0) {
                partial[(h + warp()) * next_head + of_values] = total;
                partial[(h + warp()) * next_head + of_values + 1] = softmax.largest;
            }
        }
        __syncthreads();
        float values[HEADS_AT_ONCE][LANE_VALUES] = {};
#pragma unroll 8
        for (u32 j = begin; j < end; ++j) {
#pragma unroll
            for (u32 i = 0; i < LANE_VALUES; ++i) {
                const u32 e = i * 32 + lane();
                if (e < of_values) {
                    const float value = head.value(j - first, e);
#pragma unroll
                    for (u32 k = 0; k < HEADS_AT_ONCE; ++k) {
                        values[k][i] = fmaf(weights[k * PAGE_POSITIONS + j - first], value, values[k][i]);
                    }
                }
            }
        }
#pragma unroll
        for (u32 added = 0; added < HEADS_AT_ONCE; added += HEADS_ADDED) {
#pragma unroll
            for (u32 k = 0; k < HEADS_ADDED; ++k) {
#pragma unroll
                for (u32 i = 0; i < LANE_VALUES; ++i) {
                    const u32 e = i * 32 + lane();
                    if (e < of_values) {
                        sums[(warp() * HEADS_ADDED + k) * of_values + e] = values[added + k][i];
                    }
                }
            }
            __syncthreads();
            for (u32 i = t; i < HEADS_ADDED * of_values && added + i / of_values < heads; i += blockDim.x) {
                float sum = 0.0f;
                for (u32 w = 0; w < PAGE_WARPS; ++w) {
                    sum += sums[w * HEADS_ADDED * of_values + i];
                }
                partial[(h + added + i / of_values) * next_head + i % of_values] = sum;
            }
            __syncthreads();
        }
    }
}

template <class Type>
DEVICE void attend_pages(const PagesParams& p) {
    const u32 width = p.attention.head_dim > p.attention.value_dim ? p.attention.head_dim : p.attention.value_dim;
    if (width <= 32) {
        attend_page<Type, 1, 1>(p);
    } else if (width <= 64) {
        attend_page<Type, 2, 2>(p);
    } else if (width <= 128) {
        attend_page<Type, 4, 4>(p);
    } else {
        attend_page<Type, 8, 8>(p);
    }
}

KERNEL(attend_pages_f32, PagesParams) { attend_pages<KvF32>(p); }
KERNEL(attend_pages_f16, PagesParams) { attend_pages<KvF16>(p); }
KERNEL(attend_pages_bf16, PagesParams) { attend_pages<KvBF16>(p); }
KERNEL(attend_pages_q8, PagesParams) { attend_pages<KvQ8>(p); }

KERNEL(attend_wide_pages_f32, PagesParams) { attend_page<KvF32, 18, 16>(p); }
KERNEL(attend_wide_pages_f16, PagesParams) { attend_page<KvF16, 18, 16>(p); }
KERNEL(attend_wide_pages_bf16, PagesParams) { attend_page<KvBF16, 18, 16>(p); }
KERNEL(attend_wide_pages_q8, PagesParams) { attend_page<KvQ8, 18, 16>(p); }

// A head of a task, and the pages' sums of it.
struct Merging {
    u32 row, head, width, pages;
    const float* partial;
    MergedParts<PowersOfE> merged;
    float total;

    DEVICE Merging(const PagesParams& p) {
        const AttentionParams& a = p.attention;
        const u32 group = a.heads / a.kv_heads, task = p.first_task + blockIdx.x / group;
        row = task / a.kv_heads;
        head = task % a.kv_heads * group + blockIdx.x % group;
        width = a.value_dim;
        pages = p.pages;
        partial = p.partial + (u64)blockIdx.x * p.pages * (width + 2);
        const float sink = sink_of<PowersOfE>(a.sinks, head);
        merged.see(sink);
        for (u32 page = 0; page < pages; ++page) {
            merged.see(partial[page * (width + 2) + width + 1]);
        }
        total = a.sinks == nullptr ? 0.0f : merged.share(sink);
        for (u32 page = 0; page < pages; ++page) {
            const float* of_page = partial + page * (width + 2) + width;
            total += merged.weights(of_page[1], of_page[0]);
        }
    }

    DEVICE float value(u32 e) const {
        float sum = 0.0f;
        for (u32 page = 0; page < pages; ++page) {
            const float* of_page = partial + page * (width + 2);
            if (merged.has_values(of_page[width + 1])) {
                sum = fmaf(of_page[e], merged.share(of_page[width + 1]), sum);
            }
        }
        return sum / total;
    }
};

KERNEL(attend_merge, PagesParams) {
    const Merging merging(p);
    float* y = p.attention.y + ((u64)merging.row * p.attention.heads + merging.head) * merging.width;
    for (u32 e = threadIdx.x; e < merging.width; e += blockDim.x) {
        y[e] = merging.value(e);
    }
}
