// What the gradients of attention to the rows of a step share.
#pragma once

#include "sight.cuh"

// A score of attention to the rows of the step, and the slope of its soft-cap.
struct Score {
    float value, slope;

    // Of a query at `place` and the key of position `j`, whose product is `dot`.
    DEVICE Score(const AttentionParams& p, u32 head, u32 place, u32 j, float dot) {
        value = p.scale * dot;
        slope = 1.0f;
        if (p.has_softcap) {
            float y = tanhf(value / p.softcap);
            value = p.softcap * y;
            slope = 1.0f - y * y;
        }
        if (p.source == SOURCE_STEP_ALIBI) {
            value = fmaf(-alibi_slope(p.heads, head), (float)(j > place ? j - place : place - j), value);
        }
    }
};

// Queries that may see keys `first` to `last` of a segment: those from `begin` to before `end`.
struct QueryRange {
    u32 begin, end;

    DEVICE QueryRange(const AttentionParams& p, const SegmentRows& rows, u32 first, u32 last) {
        const bool is_window = p.has_window && !rows.has_tree;
        begin = p.source == SOURCE_STEP_CAUSAL && !rows.has_tree ? first : is_window && first + 1 > p.window ? first + 1 - p.window : 0;
        end = is_window && rows.rows - last > p.window ? last + p.window : rows.rows;
    }
};
