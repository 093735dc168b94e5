// Keys and values in pages of 256 positions.
//
// A page holds each cache of its group one after the other; a cache holds its keys head by head, then its values head by head,
// unless these are the first elements of the keys; a head holds [256][E] elements and, for q8, [256][ceil(E / 32)] scales behind them. Where E is a multiple of eight, the 16-byte
// pieces of a position's halves are permuted (`kv_piece` of ../hopper/layout.cuh), so that tensor cores read them without conflicts.
#pragma once

#include "common.cuh"

#include "../hopper/layout.cuh"

// The larger of two magnitudes, or the one that is no number: a NaN reaches the scale of its block, and so all of it.
DEVICE float larger_magnitude(float largest, float x) { return fabsf(x) > largest || x != x ? fabsf(x) : largest; }

// Place of element `e` of a position among a head's halves.
DEVICE u32 half_place(u32 position, u32 e, u32 width) {
    return position * width + (width % 8 == 0 ? brasa::kv_piece(width, position, e / 8) * 8 + e % 8 : e);
}

// Element types: `at` reads element `e` of a position of a head of width E, `put` writes it, `put8` writes eight from a multiple of
// eight on, where E is one too. Blocks of BLOCK elements, of which `put8` is told the largest magnitude, share a scale.
struct KvF32 {
    static const u32 BLOCK = 8;
    static DEVICE void put8(u8* head, u32 position, u32 e, u32 width, const float (&x)[8], float) {
        float* to = (float*)head + position * width + e;
        *(Floats4*)to = {{x[0], x[1], x[2], x[3]}};
        *(Floats4*)(to + 4) = {{x[4], x[5], x[6], x[7]}};
    }
    static DEVICE float at(const u8* head, u32 position, u32 e, u32 width) {
        return ((const float*)head)[position * width + e];
    }
    static DEVICE void put(u8* head, u32 position, u32 e, u32 width, float x) {
        ((float*)head)[position * width + e] = x;
    }
};

struct KvF16 {
    static const u32 BLOCK = 8;
    static DEVICE void put8(u8* head, u32 position, u32 e, u32 width, const float (&x)[8], float) {
        Halves8 halves;
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            halves.at[i] = float_to_half(x[2 * i]) | (u32)float_to_half(x[2 * i + 1]) << 16;
        }
        *(Halves8*)((unsigned short*)head + half_place(position, e, width)) = halves;
    }
    static DEVICE float at(const u8* head, u32 position, u32 e, u32 width) {
        return half_to_float(((const unsigned short*)head)[half_place(position, e, width)]);
    }
    static DEVICE void put(u8* head, u32 position, u32 e, u32 width, float x) {
        ((unsigned short*)head)[half_place(position, e, width)] = float_to_half(x);
    }
};

struct KvBF16 {
    static const u32 BLOCK = 8;
    static DEVICE void put8(u8* head, u32 position, u32 e, u32 width, const float (&x)[8], float) {
        Halves8 halves;
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            halves.at[i] = float_to_bf16(x[2 * i]) | (u32)float_to_bf16(x[2 * i + 1]) << 16;
        }
        *(Halves8*)((unsigned short*)head + half_place(position, e, width)) = halves;
    }
    static DEVICE float at(const u8* head, u32 position, u32 e, u32 width) {
        return bf16_to_float(((const unsigned short*)head)[half_place(position, e, width)]);
    }
    static DEVICE void put(u8* head, u32 position, u32 e, u32 width, float x) {
        ((unsigned short*)head)[half_place(position, e, width)] = float_to_bf16(x);
    }
};

struct KvQ8 {
    static const u32 BLOCK = 32;
    static DEVICE void put8(u8* head, u32 position, u32 e, u32 width, const float (&x)[8], float largest) {
        if (e % BLOCK == 0) {
            scales(head, position, width)[e / BLOCK] = float_to_half(largest / 127.0f);
        }
        const float inverse = largest > 0.0f ? 127.0f / largest : 0.0f;
#pragma unroll
        for (u32 i = 0; i < 8; ++i) {
            head[position * width + e + i] = (u8)(signed char)(int)roundf(x[i] * inverse);
        }
    }
    static DEVICE unsigned short* scales(u8* head, u32 position, u32 width) {
        return (unsigned short*)(head + PAGE_POSITIONS * width) + position * ((width + 31) / 32);
    }
    static DEVICE float at(const u8* head, u32 position, u32 e, u32 width) {
        float scale = half_to_float(scales((u8*)head, position, width)[e / 32]);
        return scale * (float)(signed char)head[position * width + e];
    }
};

// A page's part for one cache, for index `index` of segment `segment`.
DEVICE u8* cache_of(const CachePages& cache, u32 segment, u32 index) {
    return (u8*)cache.pages[cache.starts[segment] + index / PAGE_POSITIONS] + cache.offset_bytes;
}
