// The online softmax of every attention: the largest score so far, the sum of the weights of scores under it, and what becomes of both and of sums of values when
// a larger score comes, or when parts of the positions are merged.
//
// With scores s_j and values v_j, m' = max(m, s), l' = l·e^(m − m') + Σ e^(s_j − m'), o' = o·e^(m − m') + Σ e^(s_j − m')·v_j; the result is o / l (Milakov &
// Gimelshein 2018, arXiv:1805.02867). A head's sink is a score that has been seen before all others, of no value: m = sink, l = 1, o = 0.
//
// Power: the exponential, `PowersOfE` for scores as they are, or `PowersOfTwo` for scores in units of ln 2, which tensor cores' attention takes.
#pragma once

#ifndef DEVICE
#define DEVICE __device__ __forceinline__
#endif

struct PowersOfE {
    // What a score is multiplied by.
    static constexpr float UNIT = 1.0f;
    static DEVICE float of(float x) { return expf(x); }
};

template <class Power> struct OnlineSoftmax {
    float largest = -INFINITY, total = 0.0f, base = 0.0f;

    // Begins with a sink. Where several threads sum the weights of a query, the sink `counts` for one.
    DEVICE void begin_with(float sink, bool counts = true) {
        largest = sink * Power::UNIT;
        total = counts ? 1.0f : 0.0f;
    }
    // Begins with the sink of a head, if there are sinks.
    DEVICE void begin(const float* sinks, unsigned head) {
        if (sinks != nullptr) {
            begin_with(sinks[head]);
        }
    }
    // The largest score is `higher` from now on, no smaller than before. Returns what sums up to now are multiplied by. Where nothing has been seen yet,
    // the base stays finite: weights are 0 then, or NaN for a score that is none.
    DEVICE float raise(float higher) {
        base = higher == -INFINITY ? 0.0f : higher;
        const float shrink = Power::of(largest - base);
        largest = higher;
        return shrink;
    }
    // Like `raise`, where `higher` is larger than −∞.
    DEVICE float raise_seen(float higher) {
        const float shrink = Power::of(largest - higher);
        largest = base = higher;
        return shrink;
    }
    // The weight of a score that is no larger than the largest.
    DEVICE float weigh(float score) const { return Power::of(score - base); }
    // Adds weights to those up to now, which shrink.
    DEVICE void add(float shrink, float weights) { total = total * shrink + weights; }
};

// The softmax over parts of the positions, of which each has its largest score, its sum of weights, and its sum of values.
template <class Power> struct MergedParts {
    // The largest score of all parts.
    float largest = -INFINITY;

    DEVICE void see(float of_part) { largest = fmaxf(largest, of_part); }
    // False for a part without a score that is a number: it adds no values, but its weights, which are 0 or NaN.
    static DEVICE bool has_values(float of_part) { return of_part != -INFINITY; }
    // What the sums of a part are multiplied by.
    DEVICE float share(float of_part) const { return Power::of(of_part - largest); }
    // The weights of a part.
    DEVICE float weights(float of_part, float total) const { return has_values(of_part) ? total * share(of_part) : total; }
};

// A head's sink in units of `Power`; −∞ where there are no sinks.
template <class Power> DEVICE float sink_of(const float* sinks, unsigned head) { return sinks == nullptr ? -INFINITY : sinks[head] * Power::UNIT; }
