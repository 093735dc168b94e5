// Weights that kernels decode in registers, against `weight_at`: for each format random tiles, as halves of products of many rows, and
// multiplied with one row by their codes. Prints what differs, and fails.

#include "random_tile.h"

#include "../kernels/hopper/halves.cuh"

#include <stdio.h>

using namespace brasa;

namespace {

const uint32_t SUBS = 8, INPUTS = SUBS * SUB_INPUTS;

Spot spot(uint32_t format, uint32_t sub) {
    const Geometry G = geometry(format);
    const uint32_t unit = sub / G.unit_subs * unit_bytes(format);
    return {unit + G.header_bytes + sub % G.unit_subs * G.sub_bytes, unit};
}

// Input of element pair p, half j, of step s in lane t.
uint32_t input(uint32_t s, uint32_t p, uint32_t j, uint32_t t) { return s * 16 + 2 * t + j + p / 2 * 8; }

bool differ(const char* what, uint32_t format, double worst, double bound) {
    if (worst <= bound) return false;
    printf("format %u: %s differ by %g of the largest\n", format, what, worst);
    return true;
}

// A sub as halves.
template <uint32_t F> bool halves_differ(const std::vector<uint8_t>& tile) {
    // Random scales of super-blocks reach far.
    const float raise = F == F16 || geometry(F).header_bytes > 0 ? 1.0f : 1024.0f;
    double worst = 0, largest = 0;
    for (uint32_t sub = 0; sub < SUBS; sub++) {
        for (uint32_t lane = 0; lane < 32; lane++) {
            uint32_t a[4][4];
            const Spot at = spot(F, sub);
            decode_sub<F>(a, at.unit, at.sub, lane, raise);
            for (uint32_t i = 0; i < 32; i++) {
                const uint32_t s = i / 8, p = i / 2 % 4, j = i % 2;
                const float found = half_to_float((uint16_t)(a[s][p] >> (16 * j))) / raise;
                const float expected = weight_at(F, tile.data(), SUBS, lane / 4 + p % 2 * 8, sub * 64 + input(s, p, j, lane % 4));
                worst = fmax(worst, fabs(found - expected));
                largest = fmax(largest, fabs(expected));
            }
        }
    }
    return differ("halves", F, worst / largest, 1e-3);
}

// x of a sub: whole numbers, and their sums over blocks.
struct Whole {
    float x[INPUTS];
    Whole() {
        for (float& v : x) v = random_whole();
    }
    float sum(uint32_t first, uint32_t count) const {
        double s = 0;
        for (uint32_t k = first; k < first + count; k++) s += x[k];
        return (float)s;
    }
};

double exact(uint32_t format, const std::vector<uint8_t>& tile, const Whole& x, uint32_t n, double& size) {
    double sum = 0;
    for (uint32_t k = 0; k < INPUTS; k++) {
        const double product = (double)weight_at(format, tile.data(), SUBS, n, k) * x.x[k];
        sum += product;
        size += fabs(product);
    }
    return sum;
}

// One row with codes as bytes: what mma adds over the four lanes of g, each lane's bytes in order of their inputs.
template <uint32_t F> void multiply_row(const Whole& x, uint32_t g, double (&sums)[2]) {
    constexpr uint32_t BLOCKS = column_blocks(F), BLOCK = 64 / BLOCKS;
    for (uint32_t sub = 0; sub < SUBS; sub++) {
        const Spot at = spot(F, sub);
        float blocks[BLOCKS];
        for (uint32_t k = 0; k < BLOCKS; k++) blocks[k] = x.sum(sub * 64 + k * BLOCK, BLOCK);
        int64_t v[2 * BLOCKS] = {};
        for (uint32_t t = 0; t < 4; t++) {
            Codes<F> w;
            w.load(at.sub, g * 4 + t);
            for (uint32_t half = 0; half < 2; half++) {
                uint32_t a[4];
                if (half == 0) w.template block<0>(a); else w.template block<1>(a);
                for (uint32_t i = 0; i < 16; i++) {
                    // Register r holds step 2·half + r/2 of output g + 8·(r%2); its bytes are inputs 2t, 2t + 8, 2t + 1, 2t + 9.
                    const uint32_t r = i / 4, byte = i % 4, k = (2 * half + r / 2) * 16 + 2 * t + byte / 2 + byte % 2 * 8;
                    v[r % 2 * BLOCKS + k / BLOCK] += (int64_t)(a[r] >> (8 * byte) & 255) * (int64_t)x.x[sub * 64 + k];
                }
            }
        }
        CodeScales<F> scales;
        scales.load(at, g);
        float f[2 * BLOCKS];
        for (uint32_t i = 0; i < 2 * BLOCKS; i++) f[i] = (float)(v[i] - (i / BLOCKS ? upper_codes(F) : 1) * code_bias(F) * (int64_t)blocks[i % BLOCKS]);
        const float2 share = scales.apply(f, blocks);
        sums[0] += share.x;
        sums[1] += share.y;
    }
}

// The tile with codes of five bits where it has bytes, as those of Q5_1: far from the middle of a byte.
std::vector<uint8_t> with_small_codes(std::vector<uint8_t> tile) {
    for (uint32_t at = 0; at < tile.size(); at++) {
        if (!is_half(MLX8, at % geometry(MLX8).sub_bytes)) tile[at] &= 31;
    }
    return tile;
}

template <uint32_t F> bool format_differs() {
    const std::vector<uint8_t> tile = random_tile(F, SUBS);
    bool failed = false;
    if constexpr (F == MLX8) {
        const std::vector<uint8_t> small = with_small_codes(tile);
        shared_memory = small.data();
        failed |= halves_differ<F>(small);
    }
    shared_memory = tile.data();
    failed |= halves_differ<F>(tile);
    if constexpr (by_codes(F)) {
        const Whole x;
        double worst = 0;
        for (uint32_t g = 0; g < 8; g++) {
            double found[2] = {};
            multiply_row<F>(x, g, found);
            for (uint32_t high = 0; high < 2; high++) {
                double size = 0;
                const double expected = exact(F, tile, x, g + 8 * high, size);
                worst = fmax(worst, fabs(found[high] - expected) / size);
            }
        }
        failed |= differ("products", F, worst, 1e-7);
    }
    return failed;
}

template <uint32_t F> bool any_differs() {
    bool failed = format_differs<F>();
    if constexpr (F + 1 < FORMATS) failed |= any_differs<F + 1>();
    return failed;
}

}  // namespace

int main() { return any_differs<0>(); }
