// Operations that only derivatives use, one kernel each; the formulas stand with the operations in brasa-graph. Sums have a fixed order.
#include "formats.cuh"
#include "gradients.cuh"
#include "panels.cuh"
#include "unary.cuh"

// Grid: one thread an element, blocks of 256.
KERNEL(unary_gradient, UnaryGradientParams) {
    u64 i = thread_number();
    if (i < p.count) {
        float x = p.x.data[place_of((u32)i, p.dims, p.x.strides)];
        p.y[i] = unary_slope(p.function, x, p.a, p.b) * p.t.data[place_of((u32)i, p.dims, p.t.strides)];
    }
}

// The change is multiplied by the norm's weights before, and what it is added to is added behind; a row that goes to panels is read again for them, by the
// threads that wrote it. Grid: a block a row, 32 to 256 threads that
// depend on its width alone.
KERNEL(norm_gradient, NormGradientParams) {
    __shared__ float scratch[32];
    const u32 width = p.x.width;
    const float* x = row_of(p.x, blockIdx.x);
    const float* t = row_of(p.t, blockIdx.x);
    const float* residual = p.residual.data == nullptr ? nullptr : row_of(p.residual, blockIdx.x);
    float* y = p.y + (u64)blockIdx.x * width;
    const bool aligned = width % 4 == 0 && ((u64)x | (u64)t | (u64)y | (u64)p.w | (u64)residual) % 16 == 0;
    auto change = [&](u32 i) {
        Floats4 values = four(t, i, width, aligned);
        if (p.w != nullptr) {
            const Floats4 weights = four(p.w, i, width, aligned);
#pragma unroll
            for (u32 j = 0; j < 4; ++j) {
                values.at[j] = __fmul_rn(values.at[j], weights.at[j]);
            }
        }
        return values;
    };
    float mean = 0.0f, t_mean = 0.0f;
    if (p.is_layer) {
        float sum = 0.0f, t_sum = 0.0f;
        for (u32 i = threadIdx.x * 4; i < width; i += blockDim.x * 4) {
            const Floats4 values = four(x, i, width, aligned), changes = change(i);
#pragma unroll
            for (u32 j = 0; j < 4; ++j) {
                sum += values.at[j];
                t_sum += changes.at[j];
            }
        }
        mean = block_sum(sum, scratch) / (float)width;
        t_mean = block_sum(t_sum, scratch) / (float)width;
    }
    float squares = 0.0f, products = 0.0f;
    for (u32 i = threadIdx.x * 4; i < width; i += blockDim.x * 4) {
        const Floats4 values = four(x, i, width, aligned), changes = change(i);
#pragma unroll
        for (u32 j = 0; j < 4; ++j) {
            if (i + j < width) {
                squares = fmaf(values.at[j] - mean, values.at[j] - mean, squares);
                products = fmaf(values.at[j] - mean, changes.at[j] - t_mean, products);
            }
        }
    }
    const float scale = 1.0f / sqrtf(block_sum(squares, scratch) / (float)width + p.eps);
    const float along = block_sum(products, scratch) * scale / (float)width;
    float largest = 0.0f;
    for (u32 i = threadIdx.x * 4; i < width; i += blockDim.x * 4) {
        const Floats4 values = four(x, i, width, aligned), changes = change(i);
        Floats4 sums = {{0.0f, 0.0f, 0.0f, 0.0f}};
        if (residual != nullptr) {
            sums = four(residual, i, width, aligned);
        }
#pragma unroll
        for (u32 j = 0; j < 4; ++j) {
            sums.at[j] += scale * (changes.at[j] - t_mean - (values.at[j] - mean) * scale * along);
        }
#pragma unroll
        for (u32 j = 0; j < 4; ++j) {
            largest = fmaxf(largest, fabsf(sums.at[j]));
        }
        store_four(y, i, width, aligned, sums);
    }
    if (p.panels == nullptr) {
        return;
    }
    const RowScale of_row(block_max(largest, scratch));
    if (threadIdx.x == 0) {
        p.row_scale[blockIdx.x] = of_row.up;
    }
    for (u32 i = threadIdx.x * 4; i < width; i += blockDim.x * 4) {
        const Floats4 sums = four(y, i, width, aligned);
        store_four_halves(panel_piece(p.panels, p.subs, blockIdx.x, i) + i % 8 * 2, sums, of_row.down);
    }
    fill_panels(p.panels, p.subs, blockIdx.x, width);
}

// Grid: one thread an element of x, blocks of 256.
KERNEL(expert_linear_transposed, ExpertTransposedParams) {
    u64 i = thread_number();
    const u32 inputs = p.w.row_len;
    if (i >= (u64)p.slots * inputs) {
        return;
    }
    const u32 slot = (u32)(i / inputs), k = (u32)(i % inputs);
    const u32 first = checked(p.experts[slot], p.experts_count, p.fault) * p.outputs;
    float sum = 0.0f;
    for (u32 n = 0; n < p.outputs; ++n) {
        const Part& part = part_of(p.w, first + n);
        sum = fmaf(p.y[(u64)slot * p.outputs + n], decode(part, first + n - part.first_row, k), sum);
    }
    p.x[i] = sum;
}

// Grid: one thread an element of dw, blocks of 256.
KERNEL(expert_linear_gradient, ExpertGradientParams) {
    u64 i = thread_number();
    if (i >= (u64)p.experts_count * p.outputs * p.inputs) {
        return;
    }
    const u32 k = (u32)(i % p.inputs), n = (u32)(i / p.inputs % p.outputs), expert = (u32)(i / p.inputs / p.outputs);
    float sum = 0.0f;
    for (u32 slot = 0; slot < p.slots; ++slot) {
        if (checked(p.experts[slot], p.experts_count, p.fault) == expert) {
            u64 row = p.own_rows ? slot : slot / p.chosen;
            sum = fmaf(p.dy[(u64)slot * p.outputs + n], p.x[row * p.inputs + k], sum);
        }
    }
    p.dw[i] = sum;
}

DEVICE float dot(const float* a, const float* b, u32 width) {
    float sum = 0.0f;
    for (u32 e = 0; e < width; ++e) {
        sum = fmaf(a[e], b[e], sum);
    }
    return sum;
}

// What a block of 256 threads adds up over what a query sees: the largest score, the sum of exponentials over it, and the mean of changes.
struct Softmax {
    float largest = -INFINITY, total = 0.0f, mean = 0.0f;

    DEVICE Softmax() {}
    // Begins with a head's sink, if there are sinks; `change` is how the sink changes.
    DEVICE Softmax(const float* sinks, u32 head, float change) {
        if (sinks != nullptr) {
            largest = sinks[head];
            total = 1.0f;
            mean = change;
        }
    }
    // Takes each thread's score and change; −∞ for a thread without a score.
    DEVICE void add(float score, float change, float* scratch) {
        float higher = fmaxf(largest, block_max(score, scratch));
        if (higher == -INFINITY) {
            return;
        }
        float shrink = expf(largest - higher), weight = expf(score - higher);
        total = total * shrink + block_sum(weight, scratch);
        mean = mean * shrink + block_sum(weight * change, scratch);
        largest = higher;
    }
    DEVICE void finish() { mean /= total; }
    DEVICE float probability(float score) const { return expf(score - largest) / total; }
};

// Grid: x: rows, y: heads; a block of 256 threads. Shared memory: 2·E + V + 544 floats.
KERNEL(attention_tangent, AttentionTangentParams) {
    DYNAMIC_SHARED(shared);
    const AttentionParams& a = p.attention;
    const u32 width = a.head_dim, of_values = a.value_dim, t = threadIdx.x;
    float *q = shared, *tq = q + width, *sums = tq + width, *changes = sums + of_values, *weights = changes + PAGE_POSITIONS,
          *scratch = weights + PAGE_POSITIONS;
    const u32 r = blockIdx.x, h = blockIdx.y, g = h / (a.heads / a.kv_heads), segment = a.step.row_segments[r];
    const SegmentRows& rows = a.step.segments[segment];
    const Sight sight(a, rows, r - rows.first_row);
    const u64 head = (u64)r * a.heads + h, first_key = (u64)rows.first_row * a.kv_heads + g;
    const float *tk = p.tk + first_key * width, *tv = p.tv + first_key * of_values;
    const u64 stride = (u64)a.kv_heads * width, value_stride = (u64)a.kv_heads * of_values;
    for (u32 e = t; e < width; e += blockDim.x) {
        q[e] = a.q[(u64)r * a.q_stride + h * width + e];
        tq[e] = p.tq[head * width + e];
    }
    for (u32 e = t; e < of_values; e += blockDim.x) {
        sums[e] = 0.0f;
    }
    __syncthreads();
    const StepHead keys(a, segment, 0, g);
    auto change = [&](u32 j, float& score) {
        const float* k = keys.keys + (u64)j * keys.k_stride;
        const Score of(a, h, sight.place, j, dot(q, k, width));
        score = of.value;
        return of.slope * a.scale * (dot(tq, k, width) + dot(q, tk + j * stride, width));
    };
    Softmax softmax(a.sinks, h, a.sinks == nullptr ? 0.0f : p.t_sinks[h]);
    const u32 first = sight.first / PAGE_POSITIONS * PAGE_POSITIONS;
    for (u32 page = first; page < sight.end; page += PAGE_POSITIONS) {
        float score = -INFINITY, ts = 0.0f;
        if (sight.sees(a, page + t)) {
            ts = change(page + t, score);
        }
        softmax.add(score, ts, scratch);
    }
    softmax.finish();
    for (u32 page = first; page < sight.end; page += PAGE_POSITIONS) {
        float weight = 0.0f, ts = 0.0f;
        if (sight.sees(a, page + t)) {
            float score;
            ts = change(page + t, score);
            weight = softmax.probability(score);
        }
        __syncthreads();
        weights[t] = weight;
        changes[t] = weight * (ts - softmax.mean);
        __syncthreads();
        const u32 count = sight.end - page < PAGE_POSITIONS ? sight.end - page : PAGE_POSITIONS;
        for (u32 e = t; e < of_values; e += blockDim.x) {
            for (u32 j = sight.first > page ? sight.first - page : 0; j < count; ++j) {
                sums[e] = fmaf(changes[j], keys.value(page + j, e), sums[e]);
                sums[e] = fmaf(weights[j], tv[(page + j) * value_stride + e], sums[e]);
            }
        }
    }
    for (u32 e = t; e < of_values; e += blockDim.x) {
        a.y[head * of_values + e] = sums[e];
    }
}

// The queries' gradients, and the sums of each row and head.
// Grid: x: rows, y: heads; a block of 256 threads. Shared memory: 2·E + V + 288 floats.
KERNEL(attention_gradient_queries, AttentionGradientParams) {
    DYNAMIC_SHARED(shared);
    const AttentionParams& a = p.attention;
    const u32 width = a.head_dim, of_values = a.value_dim, t = threadIdx.x;
    float *q = shared, *dy = q + width, *dq = dy + of_values, *changes = dq + width, *scratch = changes + PAGE_POSITIONS;
    const u32 r = blockIdx.x, h = blockIdx.y, g = h / (a.heads / a.kv_heads), segment = a.step.row_segments[r];
    const SegmentRows& rows = a.step.segments[segment];
    const Sight sight(a, rows, r - rows.first_row);
    const u64 head = (u64)r * a.heads + h;
    for (u32 e = t; e < width; e += blockDim.x) {
        q[e] = a.q[(u64)r * a.q_stride + h * width + e];
        dq[e] = 0.0f;
    }
    for (u32 e = t; e < of_values; e += blockDim.x) {
        dy[e] = p.dy[head * of_values + e];
    }
    __syncthreads();
    const StepHead keys(a, segment, 0, g);
    const u32 first = sight.first / PAGE_POSITIONS * PAGE_POSITIONS;
    Softmax softmax(a.sinks, h, 0.0f);
    for (u32 page = first; page < sight.end; page += PAGE_POSITIONS) {
        float score = -INFINITY, dp = 0.0f;
        if (const u32 j = page + t; sight.sees(a, j)) {
            score = Score(a, h, sight.place, j, dot(q, keys.keys + (u64)j * keys.k_stride, width)).value;
            dp = dot(dy, keys.values + (u64)j * keys.v_stride, of_values);
        }
        softmax.add(score, dp, scratch);
    }
    softmax.finish();
    for (u32 page = first; page < sight.end; page += PAGE_POSITIONS) {
        float ds = 0.0f;
        if (const u32 j = page + t; sight.sees(a, j)) {
            const Score score(a, h, sight.place, j, dot(q, keys.keys + (u64)j * keys.k_stride, width));
            const float dp = dot(dy, keys.values + (u64)j * keys.v_stride, of_values);
            ds = score.slope * a.scale * softmax.probability(score.value) * (dp - softmax.mean);
        }
        __syncthreads();
        changes[t] = ds;
        __syncthreads();
        const u32 count = sight.end - page < PAGE_POSITIONS ? sight.end - page : PAGE_POSITIONS;
        for (u32 e = t; e < width; e += blockDim.x) {
            for (u32 j = sight.first > page ? sight.first - page : 0; j < count; ++j) {
                dq[e] = fmaf(changes[j], keys.key(page + j, e, width), dq[e]);
            }
        }
    }
    for (u32 e = t; e < width; e += blockDim.x) {
        a.y[head * width + e] = dq[e];
    }
    if (t == 0) {
        p.sums[3 * head] = softmax.largest;
        p.sums[3 * head + 1] = softmax.total;
        p.sums[3 * head + 2] = softmax.mean;
    }
}

// The gradients of keys and values: heads in order, of each the queries in order. Runs behind attention_gradient_queries.
// Grid: x: rows, y: KV heads; a block of 256 threads. Shared memory: 2·E + 2·V + 512 floats.
KERNEL(attention_gradient_keys, AttentionGradientParams) {
    DYNAMIC_SHARED(shared);
    const AttentionParams& a = p.attention;
    const u32 width = a.head_dim, of_values = a.value_dim, t = threadIdx.x;
    float *k = shared, *v = k + width, *dk = v + of_values, *dv = dk + width, *changes = dv + of_values, *weights = changes + PAGE_POSITIONS;
    const u32 r = blockIdx.x, g = blockIdx.y, sharing = a.heads / a.kv_heads, segment = a.step.row_segments[r];
    const SegmentRows& rows = a.step.segments[segment];
    const u32 j = r - rows.first_row;
    const StepHead own(a, segment, j, g);
    for (u32 e = t; e < width; e += blockDim.x) {
        k[e] = own.key(0, e, width);
        dk[e] = 0.0f;
    }
    for (u32 e = t; e < of_values; e += blockDim.x) {
        v[e] = own.value(0, e);
        dv[e] = 0.0f;
    }
    __syncthreads();
    const auto [begin, end] = QueryRange(a, rows, j, j);
    for (u32 h = g * sharing; h < (g + 1) * sharing; ++h) {
        for (u32 base = begin; base < end; base += PAGE_POSITIONS) {
            float weight = 0.0f, ds = 0.0f;
            if (const u32 i = base + t; i < end) {
                const Sight sight(a, rows, i);
                if (sight.sees(a, j)) {
                    const u64 row = rows.first_row + i, head = row * a.heads + h;
                    const Score score(a, h, sight.place, j, dot(a.q + row * a.q_stride + h * width, k, width));
                    const float* sums = p.sums + 3 * head;
                    weight = expf(score.value - sums[0]) / sums[1];
                    ds = score.slope * a.scale * weight * (dot(p.dy + head * of_values, v, of_values) - sums[2]);
                }
            }
            __syncthreads();
            weights[t] = weight;
            changes[t] = ds;
            __syncthreads();
            const u32 count = end - base < PAGE_POSITIONS ? end - base : PAGE_POSITIONS;
            for (u32 e = t; e < width; e += blockDim.x) {
                for (u32 i = 0; i < count; ++i) {
                    const u64 row = rows.first_row + base + i;
                    dk[e] = fmaf(changes[i], a.q[row * a.q_stride + h * width + e], dk[e]);
                }
            }
            for (u32 e = t; e < of_values; e += blockDim.x) {
                for (u32 i = 0; i < count; ++i) {
                    const u64 row = rows.first_row + base + i;
                    dv[e] = fmaf(weights[i], p.dy[(row * a.heads + h) * of_values + e], dv[e]);
                }
            }
        }
    }
    for (u32 e = t; e < width; e += blockDim.x) {
        p.dk[((u64)r * a.kv_heads + g) * width + e] = dk[e];
    }
    for (u32 e = t; e < of_values; e += blockDim.x) {
        p.dv[((u64)r * a.kv_heads + g) * of_values + e] = dv[e];
    }
}

// The gradients of sinks, from the sums of each row and head. Runs behind attention_gradient_queries or its tiles.
// Grid: heads; a block of 256 threads, of which each takes every 256th row.
KERNEL(attention_gradient_sinks, SinkGradientParams) {
    __shared__ float scratch[32];
    const u32 h = blockIdx.x;
    float sum = 0.0f;
    for (u32 row = threadIdx.x; row < p.rows; row += blockDim.x) {
        const float* sums = p.sums + 3 * ((u64)row * p.heads + h);
        sum = fmaf(-expf(p.sinks[h] - sums[0]) / sums[1], sums[2], sum);
    }
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) {
        p.d_sinks[h] = sum;
    }
}

// Grid: one thread an element of y, blocks of 256.
KERNEL(pick, PickParams) {
    u64 i = thread_number();
    if (i < p.count) {
        p.y[i] = row_of(p.x, (u32)i / p.each)[checked(p.indices[i], p.x.width, p.fault)];
    }
}

// Grid: one thread an element of y, blocks of 256.
KERNEL(place, PlaceParams) {
    u64 i = thread_number();
    if (i >= p.count) {
        return;
    }
    const u64 row = i / p.width;
    float sum = 0.0f;
    for (u64 slot = row * p.each; slot < (row + 1) * p.each; ++slot) {
        if (checked(p.indices[slot], p.width, p.fault) == i % p.width) {
            sum += p.x[slot];
        }
    }
    p.y[i] = sum;
}

// Grid: one thread an element of x, blocks of 256; taps in order of the rows that have them.
KERNEL(fold, FoldParams) {
    u64 i = thread_number();
    if (i >= (u64)p.rows * p.channels) {
        return;
    }
    const u32 row = (u32)(i / p.channels), c = (u32)(i % p.channels);
    const SegmentRows& segment = p.step.segments[p.step.row_segments[row / p.factor]];
    const u32 first = segment.first_row * p.factor, count = segment.rows * p.factor / p.stride;
    const u32 at = row - first + p.padding;
    float sum = 0.0f;
    for (u32 t = at < p.taps ? 0 : (at - p.taps) / p.stride + 1; t < count && t * p.stride <= at; ++t) {
        sum += p.y[((u64)(first / p.stride + t) * p.channels + c) * p.taps + (at - t * p.stride)];
    }
    p.x[i] = sum;
}

// Grid: one thread an element of x, blocks of 256.
KERNEL(spread_mean, SpreadMeanParams) {
    u64 i = thread_number();
    if (i < (u64)p.rows * p.width) {
        const u32 segment = p.step.row_segments[i / p.width / p.factor];
        const u32 rows = p.step.segments[segment].rows * p.factor;
        p.x[i] = p.y[(u64)segment * p.width + i % p.width] / (float)rows;
    }
}
