// Where products with a weight in tiles go.
#pragma once

#include "panels.cuh"
#include "unary.cuh"

// Outputs g of both halves of a tile, in one row.
DEVICE void write_outputs(const Outputs& p, u32 row, u32 tile, u32 g, float lower, float upper) {
    bool dense = p.form == TILES_DENSE;
    u32 i = tile * (dense ? 16 : 8) + g, n = p.lower + i, m = p.upper + i;
    bool has_lower = i < p.count, has_upper = dense ? i + 8 < p.count : has_lower;
    if (p.bias != nullptr) {
        lower += has_lower ? p.bias[n] : 0.0f;
        upper += has_upper ? p.bias[m] : 0.0f;
    }
    float* y = p.y + (u64)row * p.y_width;
    if (p.form == TILES_GATED) {
        if (!has_lower) {
            return;
        }
        const float gated = unary_value(p.function, lower, 0.0f, 0.0f) * upper;
        if (p.panels == nullptr) {
            y[i] = gated;
        } else {
            u8* piece = panel_piece(p.panels, p.subs, row, i);
            ((unsigned short*)piece)[i % 8] = float_to_half(gated * (1.0f / p.row_scale[row]));
        }
        return;
    }
    const float* residual = p.residual.data == nullptr ? nullptr : row_of(p.residual, row);
    if (has_lower) {
        y[n] = residual == nullptr ? lower : residual[n] + lower;
    }
    if (has_upper) {
        y[m] = residual == nullptr ? upper : residual[m] + upper;
    }
}
