// Stages that end a phase: they need sums over all tokens that the filters have left, and leave a range of keys. Each sum reads the blocks of 256 logits
// that hold such a token: few after top-k, nearly all without a filter.
#pragma once

#include "draw_keys.cuh"
#include "draw_listed.cuh"
#include "draw_shares.cuh"
#include "draw_whole.cuh"

// ln(x) of a normal x > 0, as `ln_positive` of brasa-graph defines it.
DEVICE float draw_ln(float x) {
    u32 above = __float_as_uint(x) - 0x3f3504f3u;
    float k = (float)((int)above >> 23);
    float f = __uint_as_float((above & 0x007fffffu) + 0x3f3504f3u);
    float s = __fadd_rn(f, -1.0f) / __fadd_rn(f, 1.0f), q = __fmul_rn(s, s);
    float sum = 2.0f / 9.0f;
    sum = __fadd_rn(__fmul_rn(sum, q), 2.0f / 7.0f);
    sum = __fadd_rn(__fmul_rn(sum, q), 2.0f / 5.0f);
    sum = __fadd_rn(__fmul_rn(sum, q), 2.0f / 3.0f);
    sum = __fadd_rn(__fmul_rn(sum, q), 2.0f);
    return __fadd_rn(__fmul_rn(k, 0.69314575f), __fadd_rn(__fmul_rn(k, 1.4286068e-6f), __fmul_rn(s, sum)));
}

// 1/T, a normal number.
DEVICE float draw_inverse(float temperature) { return fminf(fmaxf(1.0f / temperature, 1.17549435e-38f), 3.40282347e38f); }

// What a phase leaves: tokens with keys from `lowest` to `highest`, whose logits are multiplied by `scale`.
struct DrawLeft {
    u64 lowest, highest;
    float scale;
};

// A row and the tokens that its filters have left.
struct DrawClosing {
    const DrawRow& row;
    const DrawWhole& tokens;
    u64 lowest;
    float scale;  // 1/T
    DrawMemory& memory;
    u32* present;  // bits of blocks of 256 that hold one of the tokens

    // Fills `present`, and sets the sums of all other blocks to 0.
    DEVICE void find_blocks() const {
        u32 blocks = (tokens.width + 255) / 256;
        __syncthreads();
        for (u32 first = 32 * warp(); first < blocks; first += blockDim.x) {
            u32 bits = 0;
            for (u32 block = first; block < min(blocks, first + 32); ++block) {
                bool has = false;
                for (u32 i = 0; i < 8; ++i) {
                    u32 id = block * 256 + 32 * i + lane();
                    has = has || (id < tokens.width && draw_key_or_none(tokens.z[id], id) >= lowest);
                }
                bits |= __ballot_sync(0xffffffffu, has) ? 1u << (block - first) : 0;
                if (lane() == 0) {
                    tokens.sums[block] = 0.0f;
                }
            }
            if (lane() == 0) {
                present[first / 32] = bits;
            }
        }
        __syncthreads();
    }

    DEVICE bool is_present(u32 block) const { return present[block / 32] >> block % 32 & 1; }

    DEVICE float exponent(float z) const { return z >= tokens.largest ? 0.0f : __fmul_rn(__fadd_rn(z, -tokens.largest), scale); }
    DEVICE float share(float z) const { return draw_share(z, tokens.largest, scale); }

    // The tree sum of `value(logit, key)` of the tokens. All threads get it.
    template <class Value>
    DEVICE float sum(const Value& value) const {
        u32 blocks = (tokens.width + 255) / 256;
        __syncthreads();
        for (u32 block = warp(); block < blocks; block += blockDim.x / 32) {
            if (!is_present(block)) {
                continue;
            }
            float at[8];
            for (u32 i = 0; i < 8; ++i) {
                u32 id = block * 256 + 32 * i + lane();
                float z = id < tokens.width ? tokens.z[id] : -INFINITY;
                u64 key = draw_key_or_none(z, id);
                at[i] = key >= lowest ? value(z, key) : 0.0f;
            }
            float sum = draw_sum_of_block(at);
            if (lane() == 0) {
                tokens.sums[block] = sum;
            }
        }
        return draw_sum_of_all(tokens.sums, blocks, memory.groups);
    }

    // The largest of `value(logit, key)` of the tokens, each a key or the complement of one. All threads get it.
    template <class Value>
    DEVICE u64 largest_of(const Value& value) const {
        u64 best = 0;
        for (u32 id = threadIdx.x; id < tokens.width; id += blockDim.x) {
            if (!is_present(id / 256)) {
                continue;
            }
            float z = tokens.z[id];
            u64 key = draw_key_or_none(z, id);
            best = key >= lowest ? draw_larger(best, value(z, key)) : best;
        }
        return draw_largest(best, memory.scratch);
    }

    DEVICE float mass() const {
        return sum([this](float z, u64) { return share(z); });
    }

    // The sum of exponents, each times its share.
    DEVICE float weighted() const {
        return sum([this](float z, u64) {
            float own = share(z);
            return own > 0.0f ? __fmul_rn(own, exponent(z)) : 0.0f;
        });
    }

    DEVICE DrawLeft top_n_sigma() const {
        float count = (float)tokens.count_from(lowest, &memory.number), largest = tokens.largest;
        float mean = sum([largest](float z, u64) { return __fadd_rn(z, -largest); }) / count;
        float squares = sum([largest, mean](float z, u64) {
            float distance = __fadd_rn(__fadd_rn(z, -largest), -mean);
            return __fmul_rn(distance, distance);
        });
        float least = __fadd_rn(largest, -__fmul_rn(row.closing_values[0], sqrtf(squares / count)));
        return {draw_larger(lowest, draw_key_or_none(least, 0xffffffffu)), ~(u64)0, scale};
    }

    DEVICE DrawLeft xtc() const {
        float target = __fmul_rn(row.closing_values[0], mass());
        u64 last = ~largest_of([this, target](float z, u64 key) { return share(z) >= target ? ~key : 0; });
        return {lowest, last, scale};
    }

    DEVICE DrawLeft dynamic_temperature() const {
        float temperature = 1.0f;
        u32 count = tokens.count_from(lowest, &memory.number);
        if (count > 1) {
            float own = mass(), entropy = __fadd_rn(draw_ln(own), -(weighted() / own));
            float relative = fminf(fmaxf(entropy / draw_ln((float)count), 0.0f), 1.0f), power = 1.0f;
            if (row.closing_values[2] > 0.0f) {
                power = relative > 0.0f ? draw_exp(__fmul_rn(row.closing_values[2], draw_ln(relative))) : 0.0f;
            }
            temperature = __fadd_rn(row.closing_values[0], __fmul_rn(row.closing_values[1], power));
        }
        return {lowest, ~(u64)0, draw_inverse(temperature)};
    }

    // The tokens that are nearest to the mean exponent: those with a distance below `distance`, and of those at this distance the ones above the mean with
    // keys up to `above` and the ones below the mean with keys from `below` on.
    struct Nearest {
        float mean;
        u32 distance;
        u64 above, below;
    };

    DEVICE u32 distance(float z, float mean) const { return __float_as_uint(fabsf(__fadd_rn(exponent(z), -mean))); }

    DEVICE bool is_nearest(const Nearest& to, float z, u64 key) const {
        u32 own = distance(z, to.mean);
        return own < to.distance || (own == to.distance && (exponent(z) >= to.mean ? key <= to.above : key >= to.below));
    }

    // True if the sum of the nearest tokens' shares is more than `target`. All threads agree.
    DEVICE bool exceeds(const Nearest& to, float target) const {
        return sum([this, &to](float z, u64 key) { return is_nearest(to, z, key) ? share(z) : 0.0f; }) > target;
    }

    // The key of the token behind which no token at the distance is needed. It lies above the mean if `is_above`.
    DEVICE u64 last_at(const Nearest& to, float target, bool is_above) const {
        u64 most = largest_of([this, &to, is_above](float z, u64 key) {
            return distance(z, to.mean) == to.distance && (exponent(z) >= to.mean) == is_above ? key : 0;
        });
        u64 least = ~largest_of([this, &to, is_above](float z, u64 key) {
            return distance(z, to.mean) == to.distance && (exponent(z) >= to.mean) == is_above ? ~key : 0;
        });
        while (least < most) {
            u64 middle = least + (most - least) / 2 + (is_above ? 0 : 1);
            Nearest fewer = to;
            (is_above ? fewer.above : fewer.below) = middle;
            bool enough = exceeds(fewer, target);
            if (is_above) {
                (enough ? most : least) = enough ? middle : middle + 1;
            } else {
                (enough ? least : most) = enough ? middle : middle - 1;
            }
        }
        return least;
    }

    DEVICE DrawLeft typical() const {
        float own = mass(), mean = weighted() / own, target = __fmul_rn(row.closing_values[0], own);
        if (!(own > target)) {
            return {lowest, ~(u64)0, scale};
        }
        // The smallest distance whose tokens are enough.
        u32 low = 0, high = 0x7f800000u;
        while (low < high) {
            u32 middle = (low + high) / 2;
            if (exceeds({mean, middle, ~(u64)0, 0}, target)) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        Nearest kept = {mean, low, ~(u64)0, ~(u64)0};
        if (exceeds(kept, target)) {
            kept.above = last_at(kept, target, true);
        } else {
            kept.below = last_at(kept, target, false);
        }
        u64 first = largest_of([this, &kept](float z, u64 key) { return is_nearest(kept, z, key) ? key : 0; });
        u64 last = ~largest_of([this, &kept](float z, u64 key) { return is_nearest(kept, z, key) ? ~key : 0; });
        return {last, first, scale};
    }

    DEVICE DrawLeft left() const {
        find_blocks();
        switch (row.closing) {
            case DRAW_TOP_N_SIGMA: return top_n_sigma();
            case DRAW_TYPICAL_P: return typical();
            case DRAW_XTC: return xtc();
            case DRAW_DYNAMIC: return dynamic_temperature();
            default: return {lowest, ~(u64)0, scale};
        }
    }
};
