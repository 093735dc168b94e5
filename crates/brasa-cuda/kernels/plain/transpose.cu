// transpose_<format>: a stretch of tiles of W[N, K] as part of tiles of Wᵀ[K, N] of halves, times a power of two (../hopper/layout.cuh).
// Grid: a warp a sub of the stretch, blocks of 256. Bound by memory: every weight is read once and written once.
#include "subs.cuh"

static const u32 TRANSPOSE_WARPS = 8;
// Halves between the rows of a sub in shared memory: lanes that read eight inputs of two outputs meet in no bank.
static const u32 TRANSPOSE_STRIDE = 72;

// Bytes before the half of input n and output g, or g + 8 where `of_k`, in the tile of these outputs.
DEVICE u32 transposed_place(u32 n, u32 g, u32 of_k) {
    const u32 at = n % 16, lane = g * 4 + at % 8 / 2, element = at % 2 + 2 * of_k + at / 8 * 4;
    return n / 64 * 2048 + n % 64 / 16 * 512 + lane * 16 + element * 2;
}

template <u32 FORMAT>
DEVICE void transpose_tiles(const TransposeParams& p) {
    __shared__ unsigned short shared[TRANSPOSE_WARPS][16 * TRANSPOSE_STRIDE];
    const brasa::Geometry G = brasa::geometry(FORMAT);
    const u32 number = blockIdx.x * TRANSPOSE_WARPS + warp(), tile = number / p.subs, sub = number % p.subs;
    const u32 g = lane() / 4, t = lane() % 4;
    unsigned short* values = shared[warp()];
    if (tile < p.tiles) {
        const u8* unit = p.weights + tile * brasa::tile_bytes(FORMAT, p.subs) + (u64)(sub / G.unit_subs) * brasa::unit_bytes(FORMAT);
        Sub<FORMAT> weights;
        weights.load(unit, unit + G.header_bytes + sub % G.unit_subs * G.sub_bytes, lane());
#pragma unroll
        for (u32 s = 0; s < 4; ++s) {
            float w[2][4];
            weights.codes(s, w);
#pragma unroll
            for (u32 half = 0; half < 2; ++half) {
                const u32 b = s / Sub<FORMAT>::SPAN;
                const float scale = weights.scale(half, b), min = Sub<FORMAT>::MINS ? weights.min(half, b) : 0.0f;
#pragma unroll
                for (u32 e = 0; e < 4; ++e) {
                    const u32 k = s * 16 + 2 * t + e % 2 + e / 2 * 8;
                    values[(g + 8 * half) * TRANSPOSE_STRIDE + k] = float_to_half(fmaf(scale, w[half][e], -min) * p.raise);
                }
            }
        }
    }
    __syncthreads();
    if (tile >= p.tiles) {
        return;
    }
    // Outputs 8·half.. of the tile are inputs first.. of the transposed weight; in turn g is an output of it, t a pair of inputs.
    for (u32 half = 0; half < 2; ++half) {
        u32 first, end;
        if (p.is_paired) {
            first = (half == 0 ? p.lower : p.upper) + 8 * tile;
            end = first + 8;
        } else {
            first = p.lower + 16 * tile + 8 * half;
            end = p.lower + p.rows;
        }
        for (u32 j = 0; j < 4; ++j) {
            const u32 k_tile = sub * 4 + j;
            if (k_tile * 16 >= p.inputs) {
                break;
            }
            // Halves of the lane's place in a step: inputs n and n + 1 of output k, then of output k + 8.
            const unsigned short* from = values + (8 * half + 2 * t) * TRANSPOSE_STRIDE + j * 16 + g;
            u8* tile_of_k = p.to + (u64)k_tile * p.to_subs * 2048;
            if (first % 8 == 0 && first + 8 <= end) {
                const u32 n = first + 2 * t;
                Words2 words;
#pragma unroll
                for (u32 of_k = 0; of_k < 2; ++of_k) {
                    words.at[of_k] = from[8 * of_k] | (u32)from[TRANSPOSE_STRIDE + 8 * of_k] << 16;
                }
                *(Words2*)(tile_of_k + transposed_place(n, g, 0)) = words;
                continue;
            }
            for (u32 i = 0; i < 4; ++i) {
                const u32 of_k = i / 2, n = first + 2 * t + i % 2;
                if (n < end) {
                    *(unsigned short*)(tile_of_k + transposed_place(n, g, of_k)) = from[i % 2 * TRANSPOSE_STRIDE + 8 * of_k];
                }
            }
        }
    }
}

#define BRASA_TRANSPOSE(name, Format) \
    KERNEL(transpose_##name, TransposeParams) { transpose_tiles<Format::FORMAT>(p); }
TILE_FORMATS(BRASA_TRANSPOSE)
