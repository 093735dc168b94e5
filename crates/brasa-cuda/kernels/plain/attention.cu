// attention_<type>: y[R, H, V] = softmax(cap(scale · q·k)) · v over the positions that a row sees, of a paged cache or memory whose
// heads pages.cu cannot hold; attention_step: of the rows of its segment. GQA: head h reads KV head h / (H / G).
// Grid: x: rows, y: heads; a block of 256 threads. Shared memory: E + V + 288 floats.
//
// Positions are taken 256 at a time, a page, in order: a thread scores one position, then a thread sums one element of the
// values (online.cuh). The order of sums depends on the positions alone, so a
// row computes the same bits whatever else is in its step; positions that a draft tree hides weigh exactly 0. Of SOURCE_STEP_ALIBI
// scores fall with distance.
#include "sight.cuh"

template <class Head>
DEVICE void attention(const AttentionParams& p) {
    DYNAMIC_SHARED(shared);
    const u32 width = p.head_dim, of_values = p.value_dim, t = threadIdx.x;
    float* q = shared;
    float* sums = q + width;
    float* weights = sums + of_values;
    float* scratch = weights + PAGE_POSITIONS;

    u32 r = blockIdx.x, h = blockIdx.y, g = h / (p.heads / p.kv_heads);
    u32 segment = p.step.row_segments[r];
    const SegmentRows& rows = p.step.segments[segment];
    Sight sight(p, rows, r - rows.first_row);
    const float slope = p.source == SOURCE_STEP_ALIBI ? alibi_slope(p.heads, h) : 0.0f;
    for (u32 e = t; e < width; e += blockDim.x) {
        q[e] = p.q[(u64)r * p.q_stride + h * width + e];
    }
    for (u32 e = t; e < of_values; e += blockDim.x) {
        sums[e] = 0.0f;
    }
    __syncthreads();

    OnlineSoftmax<PowersOfE> softmax;
    softmax.begin(p.sinks, h);
    for (u32 page = sight.first / PAGE_POSITIONS * PAGE_POSITIONS; page < sight.end; page += PAGE_POSITIONS) {
        Head head(p, segment, page, g);
        float score = -INFINITY;
        if (sight.sees(p, page + t)) {
            float dot = 0.0f;
            for (u32 e = 0; e < width; ++e) {
                dot = fmaf(q[e], head.key(t, e, width), dot);
            }
            score = p.scale * dot;
            if (p.has_softcap) {
                score = p.softcap * tanhf(score / p.softcap);
            }
            const u32 j = page + t;
            score = fmaf(-slope, (float)(j > sight.place ? j - sight.place : sight.place - j), score);
        }
        const float shrink = softmax.raise(fmaxf(softmax.largest, block_max(score, scratch))), weight = softmax.weigh(score);
        weights[t] = weight;
        // The barrier within makes the weights visible to all.
        softmax.add(shrink, block_sum(weight, scratch));
        u32 begin = sight.first > page ? sight.first - page : 0;
        u32 end = sight.end - page < PAGE_POSITIONS ? sight.end - page : PAGE_POSITIONS;
        for (u32 e = t; e < of_values; e += blockDim.x) {
            float sum = sums[e] * shrink;
            for (u32 j = begin; j < end; ++j) {
                sum = fmaf(weights[j], head.value(j, e), sum);
            }
            sums[e] = sum;
        }
        __syncthreads();
    }
    for (u32 e = t; e < of_values; e += blockDim.x) {
        p.y[((u64)r * p.heads + h) * of_values + e] = sums[e] / softmax.total;
    }
}

KERNEL(attention_f32, AttentionParams) { attention<PagedHead<KvF32>>(p); }
KERNEL(attention_f16, AttentionParams) { attention<PagedHead<KvF16>>(p); }
KERNEL(attention_bf16, AttentionParams) { attention<PagedHead<KvBF16>>(p); }
KERNEL(attention_q8, AttentionParams) { attention<PagedHead<KvQ8>>(p); }
KERNEL(attention_step, AttentionParams) { attention<StepHead>(p); }
