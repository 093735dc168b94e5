// What a warp writes of a sub in fragment order (../hopper/layout.cuh): planes of codes, and their scales.
#pragma once

#include "formats.cuh"

DEVICE void store_half(u8* to, const u8* from) {
    to[0] = from == nullptr ? 0 : from[0];
    to[1] = from == nullptr ? 0 : from[1];
}

// Where a warp writes, and what it reads: a sub of a tile, rows of outputs g and g + 8.
struct SubWrite {
    u8* unit;
    u8* sub;
    const u8* rows[2];
    u32 numbers[2];  // of the rows
    u32 first;       // its first input
    u32 in_unit;     // its number in its unit
    u32 inputs, g, t, lane;

    DEVICE bool has(u32 half, u32 k) const { return rows[half] != nullptr && k < inputs; }
    // The row's block where it has element `k`, or null.
    DEVICE const u8* block(u32 half, u32 k, u32 len, u32 bytes) const {
        return has(half, k) ? rows[half] + (u64)(k / len) * bytes : nullptr;
    }
    // Input of element `e` of step `s`.
    DEVICE u32 input(u32 s, u32 e) const { return first + s * 16 + 2 * t + e % 2 + e / 4 * 8; }
};

// ---- planes of codes: `code(half, k)` is that of input `k` of output g or g + 8 ----

template <class Code>
DEVICE void write_bytes(const SubWrite& w, Code code) {
    for (u32 s = 0; s < 4; ++s) {
        for (u32 half = 0; half < 2; ++half) {
            u32 word = 0;
            for (u32 j = 0; j < 4; ++j) {
                u32 e = half * 4 + j;
                word |= (code(e / 2 % 2, w.input(s, e)) & 255) << (8 * j);
            }
            *(u32*)(w.sub + s / 2 * 512 + w.lane * 16 + s % 2 * 8 + half * 4) = word;
        }
    }
}

// The lower four bits.
template <class Code>
DEVICE void write_nibbles(const SubWrite& w, Code code) {
    for (u32 s = 0; s < 4; ++s) {
        u32 word = 0;
        for (u32 e = 0; e < 8; ++e) {
            word |= (code(e / 2 % 2, w.input(s, e)) & 15) << (e / 2 * 4 + e % 2 * 16);
        }
        ((u32*)(w.sub + w.lane * 16))[s] = word;
    }
}

// Two bits from `bit` on.
template <class Code>
DEVICE void write_twos(const SubWrite& w, u8* to, u32 bit, Code code) {
    for (u32 pair = 0; pair < 2; ++pair) {
        u32 word = 0;
        for (u32 i = 0; i < 16; ++i) {
            u32 s = i / 8, e = i % 8;
            word |= (code(e / 2 % 2, w.input(pair * 2 + s, e)) >> bit & 3) << (brasa::t2_bit(s, e / 2) + e % 2 * 16);
        }
        *(u32*)(to + w.lane * 8 + pair * 4) = word;
    }
}

// Bit `bit`.
template <class Code>
DEVICE void write_ones(const SubWrite& w, u8* to, u32 bit, Code code) {
    u32 word = 0;
    for (u32 i = 0; i < 32; ++i) {
        u32 s = i / 8, e = i % 8;
        word |= (code(e / 2 % 2, w.input(s, e)) >> bit & 1) << (brasa::o1_bit(s, e / 2) + e % 2 * 16);
    }
    *(u32*)(to + w.lane * 4) = word;
}

// ---- scales; each returns the largest magnitude that a code `reach` away from its bias has ----

// f16 scales of blocks of 32 at the begin of a block: D32.
DEVICE float write_scales(const SubWrite& w, u8* to, u32 bytes, float reach) {
    float largest = 0.0f;
    if (w.t == 0) {
        for (u32 i = 0; i < 4; ++i) {
            const u8* block = w.block(i / 2, w.first + i % 2 * 32, 32, bytes);
            store_half(to + w.g * 8 + i * 2, block);
            largest = fmaxf(largest, block == nullptr ? 0.0f : fabsf(half_at(block)));
        }
    }
    return largest * reach;
}

// f16 scales and offsets of blocks of 32: DM32. `line(half, k)` gives them.
struct ScaleOffset {
    float scale, offset;
};
template <class Line>
DEVICE float write_lines(const SubWrite& w, u8* to, float reach, Line line) {
    float largest = 0.0f;
    if (w.t == 0) {
        for (u32 i = 0; i < 4; ++i) {
            u32 k = w.first + i % 2 * 32;
            ScaleOffset both = {0.0f, 0.0f};
            if (w.has(i / 2, k)) {
                both = line(i / 2, k);
            }
            *(unsigned short*)(to + w.g * 16 + i * 2) = float_to_half(both.scale);
            *(unsigned short*)(to + w.g * 16 + 8 + i * 2) = float_to_half(both.offset);
            largest = fmaxf(largest, fmaxf(fabsf(both.offset), fabsf(both.offset + reach * both.scale)));
        }
    }
    return largest;
}

// f16 scales of a super-block, `d` bytes behind its begin: HD.
DEVICE void write_scale_of_scales(const SubWrite& w, u32 half, const u8* block, u32 d) {
    if (w.in_unit == 0) {
        store_half(w.unit + w.g * 4 + half * 2, block == nullptr ? nullptr : block + d);
    }
}

// f16 scales of scales and of minima, which follow each other: HDM.
DEVICE void write_scales_of_scales(const SubWrite& w, u32 half, const u8* block, u32 d) {
    if (w.in_unit == 0) {
        store_half(w.unit + w.g * 8 + half * 2, block == nullptr ? nullptr : block + d);
        store_half(w.unit + w.g * 8 + 4 + half * 2, block == nullptr ? nullptr : block + d + 2);
    }
}
