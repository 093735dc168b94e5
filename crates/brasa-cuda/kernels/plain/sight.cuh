// What attention reads: a head's part of a page, or of the step's rows, and the positions that a row sees.
#pragma once

#include "kv.cuh"
#include "online.cuh"

// Keys and values of a head in a page.
template <class Type>
struct PagedHead {
    const u8* keys;
    const u8* values;
    u32 value_row;

    DEVICE PagedHead(const AttentionParams& p, u32 segment, u32 first, u32 head) {
        const u8* cache = cache_of(p.cache, segment, first);
        keys = cache + (u64)head * p.cache.head_bytes;
        values = cache + p.cache.values_bytes + (u64)head * p.cache.value_bytes;
        value_row = p.cache.value_row;
    }
    DEVICE float key(u32 position, u32 e, u32 width) const { return Type::at(keys, position, e, width); }
    DEVICE float value(u32 position, u32 e) const { return Type::at(values, position, e, value_row); }
};

// Keys and values of a head in 256 rows of the step.
struct StepHead {
    const float* keys;
    const float* values;
    u32 k_stride, v_stride;

    DEVICE StepHead(const AttentionParams& p, u32 segment, u32 first, u32 head) {
        u64 row = p.step.segments[segment].first_row + first;
        k_stride = p.k_stride;
        v_stride = p.v_stride;
        keys = p.k + row * k_stride + head * p.head_dim;
        values = p.v + row * v_stride + head * p.value_dim;
    }
    DEVICE float key(u32 position, u32 e, u32) const { return keys[(u64)position * k_stride + e]; }
    DEVICE float value(u32 position, u32 e) const { return values[(u64)position * v_stride + e]; }
};

// By how much scores of head `head` fall with each position of distance: those of 2^n heads are a geometric sequence that ends at 2^-8; further
// heads take every other one of the sequence of 2^(n+1).
DEVICE float alibi_slope(u32 heads, u32 head) {
    u32 power = 1;
    while (power * 2 <= heads) {
        power *= 2;
    }
    return exp2f(head < power ? -8.0f * (head + 1) / power : -4.0f * (2 * (head - power) + 1) / power);
}

// What a row sees.
struct Sight {
    // Positions from `first` to before `end`; of a segment's own, which begin at `own`, those that the tree lets through.
    u32 first, end, own;
    // Where plain text would have the row.
    u32 place;
    const TreeRow* row;
    const TreeRow* tree;

    DEVICE Sight(const AttentionParams& p, const SegmentRows& segment, u32 i) {
        first = 0;
        own = p.source == SOURCE_CACHE ? segment.first_index : 0;
        tree = row = nullptr;
        if (p.source == SOURCE_MEMORY) {
            end = segment.memory_rows;
            place = 0;
            return;
        }
        if (p.source == SOURCE_STEP_BOTH_WAYS || p.source == SOURCE_STEP_ALIBI) {
            end = segment.rows;
            place = i;
            if (p.has_window && end - place > p.window) {
                end = place + p.window;
            }
        } else {
            end = own + i + 1;
            place = own + i;
            if (segment.has_tree) {
                tree = p.step.tree_rows + segment.first_tree_row;
                row = tree + i;
                place = own + row->depth;
            }
        }
        if (p.has_window && place + 1 > p.window) {
            first = place + 1 - p.window;
        }
    }

    DEVICE bool sees(const AttentionParams& p, u32 j) const {
        if (j < first || j >= end) {
            return false;
        }
        if (tree == nullptr || j < own) {
            return true;
        }
        u32 other = j - own;
        if ((row->seen[other / 64] >> (other % 64) & 1) == 0) {
            return false;
        }
        const u32 depth = tree[other].depth;
        return !p.has_window || depth >= row->depth || row->depth - depth < p.window;
    }
};
