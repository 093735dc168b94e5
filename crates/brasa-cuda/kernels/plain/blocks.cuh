// Blocks as GGUF stores them: the codes of elements, and the scales and minima of what a super-block divides into.
#pragma once

#include "formats.cuh"

// Code `j` of 32 nibbles in 16 bytes: low nibbles first.
DEVICE u32 nibble(const u8* qs, u32 j) { return qs[j % 16] >> (j / 16 * 4) & 15; }

// Bit `j` of 32 in 4 bytes.
DEVICE u32 bit(const u8* bits, u32 j) { return bits[j / 8] >> (j % 8) & 1; }

// The two-bit field of element `e` of Q2_K and Q3_K.
DEVICE u32 two_bits(const u8* qs, u32 e) { return qs[e / 128 * 32 + e % 32] >> (e % 128 / 32 * 2) & 3; }

// Nibble of element `e` of Q4_K and Q5_K.
DEVICE u32 super_nibble(const u8* qs, u32 e) { return qs[e / 64 * 32 + e % 32] >> (e % 64 / 32 * 4) & 15; }

// Scale and minimum number `j` of the twelve bytes of Q4_K and Q5_K.
DEVICE void scale_and_min(const u8* packed, u32 j, u32& scale, u32& min) {
    u32 c = j % 4;
    scale = j < 4 ? packed[c] & 63 : (packed[c + 8] & 15) | packed[c] >> 6 << 4;
    min = j < 4 ? packed[c + 4] & 63 : packed[c + 8] >> 4 | packed[c + 4] >> 6 << 4;
}

// Scale number `s` of the twelve bytes of Q3_K, 32 too large.
DEVICE u32 scale_of_q3(const u8* packed, u32 s) {
    return (packed[s % 8] >> (s / 8 * 4) & 15) | (packed[8 + s % 4] >> (s / 4 * 2) & 3) << 4;
}

// Scale number `j` of a block of IQ4_XS, 32 too large.
DEVICE u32 scale_of_iq4(const u8* b, u32 j) { return (b[4 + j / 2] >> (j % 2 * 4) & 15) | ((b[2] | b[3] << 8) >> (2 * j) & 3) << 4; }
