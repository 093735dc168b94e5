// Scores of tokens, x + g: the exponent and Gumbel noise, which depends on seed, position and token id alone. The token with the largest score is drawn.
#pragma once

#include "draw_keys.cuh"

struct DrawWords {
    u32 at[4];
};

// Philox4x32-10: the random words of tokens 4·quad to 4·quad + 3.
DEVICE DrawWords draw_words(const DrawRow& row, u32 quad) {
    u32 c0 = quad, c1 = row.position, c2 = 0, c3 = 0, k0 = row.seed_low, k1 = row.seed_high;
    for (int round = 0; round < 10; ++round) {
        u64 a = (u64)0xd2511f53u * c0, b = (u64)0xcd9e8d57u * c2;
        c0 = (u32)(b >> 32) ^ c1 ^ k0;
        c2 = (u32)(a >> 32) ^ c3 ^ k1;
        c1 = (u32)b;
        c3 = (u32)a;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    return {{c0, c1, c2, c3}};
}

// The score of a token whose logit is `z` and whose random word is `word`.
DEVICE float draw_score(const DrawRow& row, float z, float largest, u32 word) {
    float u = fminf(__fmul_rn(__fadd_rn((float)word, 0.5f), 1.0f / 4294967296.0f), 0.99999994f);
    float noise = -logf(-log1pf(-u));
    float exponent = z >= largest ? 0.0f : __fmul_rn(__fadd_rn(z, -largest), row.inverse_temperature);
    return __fadd_rn(exponent, noise);
}
