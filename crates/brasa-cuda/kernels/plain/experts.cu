// router_topk: the k largest logits of each row, a NaN behind all numbers, ties to the lowest expert, and their shares by softmax, which are NaN
// where one of the row's logits is.
// Grid: a block of 32 threads a row. Needs at most 1024 experts.
//
// expert_linear_<format>: y[slot, N] = x · W[experts[slot], N, K]ᵀ for each row's chosen experts; sums as in linear.cu.
// Grid: x: ceil(N / 4) blocks of 128 threads, a warp an output; y: slots, that is rows × chosen experts.
#include "formats.cuh"

// True where logit `a` of expert `i` is chosen before `b` of `j`.
DEVICE bool is_before(float a, u32 i, float b, u32 j) {
    return a > b || (b != b ? a == a || i < j : a == b && i < j);
}

KERNEL(router_topk, RouterTopKParams) {
    // Bit i of word l: expert 32·i + l has been chosen. A lane touches its own word only.
    u32 taken = 0;
    const float* logits = row_of(p.logits, blockIdx.x);
    u32 count = p.logits.width;
    u32* experts = p.experts + (u64)blockIdx.x * p.k;
    float* weights = p.weights + (u64)blockIdx.x * p.k;
    float first = 0.0f;
    for (u32 choice = 0; choice < p.k; ++choice) {
        float best = -INFINITY;
        u32 expert = 0xffffffffu;
        for (u32 x = lane(), i = 0; x < count; x += 32, ++i) {
            if ((taken >> i & 1) == 0 && (expert == 0xffffffffu || is_before(logits[x], x, best, expert))) {
                best = logits[x];
                expert = x;
            }
        }
        for (int distance = 16; distance > 0; distance /= 2) {
            float other = __shfl_xor_sync(0xffffffffu, best, distance);
            u32 other_expert = __shfl_xor_sync(0xffffffffu, expert, distance);
            bool none = expert == 0xffffffffu, other_none = other_expert == 0xffffffffu;
            if (!other_none && (none || is_before(other, other_expert, best, expert))) {
                best = other;
                expert = other_expert;
            }
        }
        if (expert % 32 == lane()) {
            taken |= 1u << (expert / 32);
        }
        if (choice == 0) {
            first = best;
        }
        if (lane() == 0) {
            experts[choice] = expert;
            weights[choice] = expf(best - first);
        }
    }
    float all = 0.0f;
    for (u32 x = lane(); x < count; x += 32) {
        all += expf(logits[x] - first);
    }
    all = warp_sum(all);
    if (lane() == 0) {
        float chosen = 0.0f;
        for (u32 choice = 0; choice < p.k; ++choice) {
            chosen += weights[choice];
        }
        float total = p.of_chosen && all == all ? chosen : all;
        for (u32 choice = 0; choice < p.k; ++choice) {
            weights[choice] /= total;
        }
    }
}

template <class Format>
DEVICE void expert_linear(const ExpertLinearParams& p) {
    u32 n = blockIdx.x * (blockDim.x / 32) + warp();
    if (n >= p.outputs) {
        return;
    }
    for (u32 slot = blockIdx.y; slot < p.slots; slot += gridDim.y) {
        u32 expert = checked(p.experts[slot], p.experts_count, p.fault);
        u32 row = expert * p.outputs + n;
        const Part& part = part_of(p.w, row);
        if (part.format != Format::CODE) {
            continue;
        }
        const float* x = row_of(p.x, p.own_rows ? slot : slot / p.chosen);
        float sum = 0.0f;
        for (u32 k = lane(); k < p.w.row_len; k += 32) {
            sum = fmaf(x[k], Format::at(part, row - part.first_row, k), sum);
        }
        sum = warp_sum(sum);
        if (lane() == 0) {
            p.y[(u64)slot * p.outputs + n] = sum;
        }
    }
}

#define BRASA_EXPERTS(name, Format) \
    KERNEL(expert_linear_##name, ExpertLinearParams) { expert_linear<Format>(p); }
FORMATS(BRASA_EXPERTS)
