// Functions of one number and their slopes, by the number that params.rs gives them.
#pragma once

#include "common.cuh"

DEVICE float unary_value(u32 function, float x, float a, float b) {
    switch (function) {
        case UNARY_SCALE: return a * x;
        case UNARY_CLAMP: return fminf(fmaxf(x, a), b);
        case UNARY_SOFTCAP: return a * tanhf(x / a);
        case UNARY_EXP: return expf(x);
        case UNARY_LOG: return logf(x);
        case UNARY_RSQRT: return 1.0f / sqrtf(x);
        case UNARY_TANH: return tanhf(x);
        case UNARY_SIGMOID: return 1.0f / (1.0f + expf(-x));
        case UNARY_SILU: return x / (1.0f + expf(-x));
        case UNARY_GELU_TANH: return 0.5f * x * (1.0f + tanhf(0.7978846f * (x + 0.044715f * x * x * x)));
        case UNARY_SQUARED_RELU: return x < 0.0f ? 0.0f : x * x;
        case UNARY_SOFTPLUS: return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)));
        default: return 0.5f * x * (1.0f + erff(x * 0.70710678f));
    }
}

// The slope of a function of one number, by the number that params.rs gives it.
DEVICE float unary_slope(u32 function, float x, float a, float b) {
    switch (function) {
        case UNARY_SCALE: return a;
        case UNARY_CLAMP: return x >= a && x <= b ? 1.0f : 0.0f;
        case UNARY_SOFTCAP: {
            float y = tanhf(x / a);
            return 1.0f - y * y;
        }
        case UNARY_EXP: return expf(x);
        case UNARY_LOG: return 1.0f / x;
        case UNARY_RSQRT: return -0.5f / (x * sqrtf(x));
        case UNARY_TANH: {
            float y = tanhf(x);
            return 1.0f - y * y;
        }
        case UNARY_SIGMOID: {
            float y = 1.0f / (1.0f + expf(-x));
            return y * (1.0f - y);
        }
        case UNARY_SILU: {
            float gate = 1.0f / (1.0f + expf(-x));
            return gate * (1.0f + x * (1.0f - gate));
        }
        case UNARY_GELU_TANH: {
            float y = tanhf(0.7978846f * (x + 0.044715f * x * x * x));
            float inner = 0.7978846f * (1.0f + 3.0f * 0.044715f * x * x);
            return 0.5f * (1.0f + y) + 0.5f * x * (1.0f - y * y) * inner;
        }
        case UNARY_SQUARED_RELU: return x < 0.0f ? 0.0f : 2.0f * x;
        case UNARY_SOFTPLUS: return 1.0f / (1.0f + expf(-x));
        default: return 0.5f * (1.0f + erff(x * 0.70710678f)) + x * 0.39894228f * expf(-0.5f * x * x);
    }
}

// (u + 1) · g · σ(α·g) of a gate and an up that are clamped; NaN stays.
DEVICE float clamped_unit(float gate, float up, float alpha, float limit) {
    gate = gate > limit ? limit : gate;
    up = up > limit ? limit : up;
    up = up < -limit ? -limit : up;
    return (up + 1.0f) * (gate / (1.0f + expf(-(alpha * gate))));
}
