// router_topk: the k largest logits of each row, a NaN behind all numbers, ties to the lowest expert, and their shares by softmax, which are NaN
// where one of the row's logits is.
// Grid: a block of 32 threads a row. Needs at most 1024 experts.
//
// router_scores: the same by any gating (RouterScoresParams): scores of logits, with a selection bias, in groups of which the best ones are kept,
// weights divided by their sum and multiplied by a factor.
// Grid: a block of 32 threads a row. Needs at most 1024 experts.
//
// expert_linear_<format>: y[slot, N] = x · W[experts[slot], N, K]ᵀ, plus the expert's bias, for each row's chosen experts; sums as in linear.cu.
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

static const u32 MOST_SCORES = 1024, NO_SCORE = 0xffffffffu;

// The first of the largest of `count` scores that are not taken. Bit i of `taken` of lane l stands for score 32·i + l. All lanes get it.
DEVICE u32 first_of(const float* scores, u32 count, u32 taken) {
    float best = -INFINITY;
    u32 place = NO_SCORE;
    for (u32 x = lane(), i = 0; x < count; x += 32, ++i) {
        if ((taken >> i & 1) == 0 && (place == NO_SCORE || is_before(scores[x], x, best, place))) {
            best = scores[x];
            place = x;
        }
    }
    for (int distance = 16; distance > 0; distance /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, best, distance);
        const u32 other_place = __shfl_xor_sync(0xffffffffu, place, distance);
        if (other_place != NO_SCORE && (place == NO_SCORE || is_before(other, other_place, best, place))) {
            best = other;
            place = other_place;
        }
    }
    return place;
}

// The score of a group: the largest of its scores, or the sum of the first two.
DEVICE float score_of_group(const float* scores, u32 count, bool top_two) {
    float first = scores[0], second = 0.0f;
    for (u32 x = 1; x < count; ++x) {
        const float score = scores[x];
        if (is_before(score, 1, first, 0)) {
            second = first;
            first = score;
        } else if (x == 1 || is_before(score, 1, second, 0)) {
            second = score;
        }
    }
    return top_two && count > 1 ? first + second : first;
}

KERNEL(router_scores, RouterScoresParams) {
    __shared__ float scores[MOST_SCORES], compared[MOST_SCORES], of_groups[MOST_SCORES];
    const float* logits = row_of(p.logits, blockIdx.x);
    const u32 count = p.logits.width;
    u32* experts = p.experts + (u64)blockIdx.x * p.k;
    float* weights = p.weights + (u64)blockIdx.x * p.k;
    float largest = -INFINITY, odd = 0.0f, all = 0.0f;
    for (u32 x = lane(); x < count; x += 32) {
        largest = fmaxf(largest, logits[x]);
        odd = logits[x] == logits[x] ? odd : 1.0f;
    }
    largest = warp_max(largest);
    odd = warp_max(odd);
    if (p.scores == SCORES_SOFTMAX_ALL) {
        for (u32 x = lane(); x < count; x += 32) {
            all += expf(logits[x] - largest);
        }
        all = warp_sum(all);
    }
    for (u32 x = lane(); x < count; x += 32) {
        const float logit = logits[x];
        float score = logit;
        if (p.scores == SCORES_SOFTMAX_ALL) {
            score = expf(logit - largest) / all;
        } else if (p.scores == SCORES_SIGMOID) {
            score = 1.0f / (1.0f + expf(-logit));
        }
        scores[x] = score;
        const float base = p.compares_scores ? score : logit;
        compared[x] = p.bias == nullptr ? base : base + p.bias[x];
    }
    __syncthreads();
    // Bit i of lane l: expert 32·i + l is out, or has been chosen.
    u32 taken = 0;
    if (p.groups > 0) {
        const u32 each = count / p.groups;
        for (u32 group = lane(); group < p.groups; group += 32) {
            of_groups[group] = score_of_group(compared + group * each, each, p.top_two);
        }
        __syncthreads();
        u32 kept = 0;
        for (u32 i = 0; i < p.kept; ++i) {
            const u32 group = first_of(of_groups, p.groups, kept);
            kept |= group % 32 == lane() ? 1u << (group / 32) : 0;
        }
        __syncthreads();
        for (u32 group = lane(), i = 0; group < p.groups; group += 32, ++i) {
            of_groups[group] = kept >> i & 1 ? 1.0f : 0.0f;
        }
        __syncthreads();
        for (u32 x = lane(), i = 0; x < count; x += 32, ++i) {
            taken |= of_groups[x / each] == 0.0f ? 1u << i : 0;
        }
    }
    float best_logit = -INFINITY;
    for (u32 choice = 0; choice < p.k; ++choice) {
        const u32 expert = first_of(compared, count, taken);
        taken |= expert % 32 == lane() ? 1u << (expert / 32) : 0;
        best_logit = fmaxf(best_logit, scores[expert]);
        if (lane() == 0) {
            experts[choice] = expert;
            weights[choice] = scores[expert];
        }
    }
    if (lane() == 0) {
        float divisor = 0.0f;
        if (p.scores == SCORES_SOFTMAX_CHOSEN) {
            for (u32 choice = 0; choice < p.k; ++choice) {
                weights[choice] = expf(weights[choice] - best_logit);
                divisor += weights[choice];
            }
            for (u32 choice = 0; choice < p.k; ++choice) {
                weights[choice] /= divisor;
            }
        }
        float total = 0.0f;
        for (u32 choice = 0; choice < p.k; ++choice) {
            total += weights[choice];
        }
        for (u32 choice = 0; choice < p.k; ++choice) {
            const float weight = p.normalises ? weights[choice] / (total + p.eps) : weights[choice];
            weights[choice] = odd > 0.0f ? __uint_as_float(0x7fc00000u) : weight * p.scale;
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
            p.y[(u64)slot * p.outputs + n] = p.bias == nullptr ? sum : sum + p.bias[(u64)expert * p.outputs + n];
        }
    }
}

#define BRASA_EXPERTS(name, Format) \
    KERNEL(expert_linear_##name, ExpertLinearParams) { expert_linear<Format>(p); }
FORMATS(BRASA_EXPERTS)
