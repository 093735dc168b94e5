// Functions of one number, by the number that params.rs gives them.
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
        default: return 0.5f * x * (1.0f + erff(x * 0.70710678f));
    }
}
