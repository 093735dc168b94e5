// Layouts that the host and every kernel share: weights, activation panels, KV pages.
//
// This file is the single definition. The kernels of plain/repack.cu write what is described here, all others read it,
// and `weight_at` (element.cuh) decodes one element plainly: the oracle of both.
//
// # Weights: fragment order
//
// A weight [N, K] (N outputs, K inputs) is cut into *tiles* of 16 outputs, a tile into *subs* of 64 inputs, a sub
// into four *steps* of 16 inputs. A step is the A operand of mma.m16n8k16 (and a warp's share of a wgmma with A in
// registers). Lane l of a warp, with g = l/4 and t = l%4, owns eight weights of a step:
//
//   i        0        1          2          3            4          5            6            7
//   output   g        g          g+8        g+8          g          g            g+8          g+8
//   input    2t       2t+1       2t         2t+1         2t+8       2t+9         2t+8         2t+9
//
// Element e = 2p + j of a lane is half j of register a[p]. So a warp reads a step with one wide load per lane and no
// shuffles, for decode (mma.sync from shared memory) and for prefill (wgmma, A from registers) alike.
//
// Subs of a tile follow each other, tiles follow each other: a tile is one contiguous run of bytes, and so is any range
// of tiles: bulk copies stream them in the order in which they are multiplied. K is padded to a multiple of 64 (256 for
// K-quants) and N to a multiple of 16 with weights of value zero.
//
// A *unit* is the repeating piece of a tile: one sub for formats with blocks of 32, four subs behind a common header
// for the formats with super-blocks of 256. Every unit is a multiple of 16 bytes.
//
// ## Code planes of a sub (all formats)
//
//   H   16-bit   2048 B   step*512 + lane*16: the eight halves
//   B8   8-bit   1024 B   (step/2)*512 + lane*16 + (step%2)*8 + i: code + bias as an unsigned byte
//   N4   4-bit    512 B   lane*16 + step*4: a word; element 2p+j at bits 4p + 16j
//   T2   2-bit    256 B   lane*8 + (step/2)*4: a word for two steps; element 2p+j of step s at bits t2_bit(s, p) + 16j
//   O1   1-bit    128 B   lane*4: a word for four steps; element 2p+j of step s at bit o1_bit(s, p) + 16j
//
// A code of 5 bits is N4 + O1 (bit 4), of 6 bits N4 + T2 (bits 4 and 5), of 3 bits T2 (bits 1 and 2) + O1 (bit 0).
//
// ## Scale records of a sub (pair = outputs g and g+8; eight records of a g in order)
//
//   D32    f16 d per 32:            64 B   g*8:  d[g][0] d[g][1] d[g+8][0] d[g+8][1]
//   DM32   f16 d, f16 m per 32:    128 B   g*16: d[g][0] d[g][1] d[g+8][0] d[g+8][1] m[g][0] m[g][1] m[g+8][0] m[g+8][1]
//   S8M8   u8 s, u8 m per 32:       64 B   g*8:  s[g][0] s[g][1] s[g+8][0] s[g+8][1] m[g][0] m[g][1] m[g+8][0] m[g+8][1]
//   S8x16  i8 s per 16:             64 B   g*8:  s[g][0..4] s[g+8][0..4], each stored as s + 128
//   S4M4   u4 s | u4 m << 4 per 16: 64 B   g*8:  sm[g][0..4] sm[g+8][0..4]
//   S8x32  i8 s per 32:             32 B   g*4:  s[g][0] s[g][1] s[g+8][0] s[g+8][1], each stored as s + 128
//
// ## Headers of a unit of four subs
//
//   HD     f16 d:         32 B   g*4: d[g] d[g+8]
//   HDM    f16 d, dmin:   64 B   g*8: d[g] d[g+8] dmin[g] dmin[g+8]
//
// ## Formats: value = scale · (code − bias) + offset
//
//   format   unit (bytes)                                  bias  scale       offset       what is stored so
//   F16      H                              2048            -    -           -            F16
//   BF16     H                              2048            -    -           -            BF16
//   Q8_0     B8 D32                         1088           128    d          -            Q8_0, Q5_0, IQ4_NL (its values as codes)
//   Q4_0     N4 D32                          576             8    d          -            Q4_0
//   Q4_K     HDM 4×(N4 S8M8)                2368             0    d·s        −dmin·m      Q4_K
//   Q6_K     HD  4×(N4 T2 S8x16)            3360            32    d·s        -            Q6_K
//   Q5_K     HDM 4×(N4 O1 S8M8)             2880             0    d·s        −dmin·m      Q5_K
//   Q4_1     N4 DM32                         640             0    d          m            Q4_1, MLX of 2 to 4 bits
//   MLX8     B8 DM32                        1152             0    d          m            Q5_1, MLX of 5 to 8 bits
//   Q3_K     HD  4×(T2 O1 S8x16)            1824             4    d·s        -            Q3_K (scales less 32)
//   Q2_K     HDM 4×(T2 S4M4)                1344             0    d·s        −dmin·m      Q2_K
//   IQ4_XS   HD  4×(N4 S8x32)               2208          (table) d·s        -            IQ4_XS (scales less 32)
//
// What shares a format has the same values, bit for bit: codes become wider, and a group of 64 or 128 repeats its scale and offset. Those of
// MLX, often bf16, become f16 by a power of two of the whole tensor, by which products are divided; where there is none, it stays as it is stored.
//
// F16 and BF16 keep their bits, so that weights of floats can be read back and written exactly. A kernel that multiplies in f16
// turns BF16 into F16 times a power of two of the whole weight (`raise`), and divides products by it; the scales of quantised
// weights are treated alike where they are rounded to f16.
//
// ## Paired tiles
//
// Gate and up projections [F, K], F a multiple of 8, are one weight of F/8 tiles: outputs 0..8 of tile i are gate rows 8i..,
// outputs 8..16 are up rows 8i... A lane then holds both factors of act(gate)·up.
//
// # Activation panels (prefill)
//
// x [M rows, K] in f16 is cut into *panels* of 64 rows × 64 inputs, 8192 B, the shared-memory image of a K-major wgmma
// operand with 128-byte swizzle: the 16-byte piece c (inputs 8c..) of row r lies at r*128 + ((c ^ (r%8)) * 16).
// Panel (m, k) lies at (m * K/64 + k) * 8192. Rows behind M may hold anything. A row's values are divided by the power of two
// 2^e of the row that keeps its largest magnitude below 2^15; products are multiplied by it again.
//
// # KV pages
//
// A page holds 256 positions of every cache of a group. For each cache: keys [G][256][E], then values [G][256][E], f16,
// E a multiple of 16, head-major: one head's 256 positions are one contiguous run, and so is any range of them.
// Within a position, the 16-byte piece c (elements 8c..) lies at piece c ^ (position % S), S = min(8, E/8 rounded down to a
// power of two), so that ldmatrix on eight positions touches every bank once. `kv_piece` is the definition.
#pragma once
#include <stdint.h>

#ifdef __CUDACC__
#define BRASA_BOTH __host__ __device__
#else
#define BRASA_BOTH
#endif

namespace brasa {

constexpr int TILE_OUTPUTS = 16;
constexpr int SUB_INPUTS = 64;
constexpr int PAGE_POSITIONS = 256;

// Storage of a weight on the device. Numbers are shared with the host (src/weights/layout.rs).
enum Format : uint32_t {
    F16 = 0, Q8_0 = 1, Q4_0 = 2, Q4_K = 3, Q6_K = 4, BF16 = 5, Q5_K = 6, Q4_1 = 7, MLX8 = 8, Q3_K = 9, Q2_K = 10, IQ4_XS = 11,
    FORMATS = 12,
};

// Geometry of a format: bytes of the header of a unit, of a sub, and subs of a unit.
struct Geometry { uint32_t header_bytes, sub_bytes, unit_subs; };

BRASA_BOTH constexpr Geometry geometry(uint32_t format) {
    switch (format) {
        case F16: case BF16: return {0, 2048, 1};
        case Q8_0: return {0, 1088, 1};
        case Q4_0: return {0, 576, 1};
        case Q4_K: return {64, 576, 4};
        case Q6_K: return {32, 832, 4};
        case Q5_K: return {64, 704, 4};
        case Q4_1: return {0, 640, 1};
        case MLX8: return {0, 1152, 1};
        case Q3_K: return {32, 448, 4};
        case Q2_K: return {64, 320, 4};
        case IQ4_XS: return {32, 544, 4};
        default: return {0, 0, 1};
    }
}

BRASA_BOTH constexpr uint32_t unit_bytes(uint32_t format) {
    return geometry(format).header_bytes + geometry(format).unit_subs * geometry(format).sub_bytes;
}

// Bytes of a tile of `subs` subs; `subs` is a multiple of the unit's.
BRASA_BOTH constexpr uint64_t tile_bytes(uint32_t format, uint32_t subs) {
    return uint64_t(subs / geometry(format).unit_subs) * unit_bytes(format);
}

// Place of the 16-byte piece `piece` of a position with `head_dim` elements, in pieces from the position's begin.
BRASA_BOTH constexpr uint32_t kv_piece(uint32_t head_dim, uint32_t position, uint32_t piece) {
    uint32_t pieces = head_dim / 8, span = pieces & (0u - pieces);  // largest power of two that divides the pieces
    return piece ^ (position % (span < 8 ? span : 8));
}

// The lane and element that hold input `k` (0..16) of output `n` (0..16) of a step.
struct Place { uint32_t lane, element; };
BRASA_BOTH constexpr Place place(uint32_t n, uint32_t k) {
    return {(n % 8) * 4 + (k % 8) / 2, (k % 2) + 2 * (n / 8) + 4 * (k / 8)};
}

// First bit of element pair p of step s (mod 2) in a T2 word: a shift brings those of a step and an output into the same bits of four bytes.
BRASA_BOTH constexpr uint32_t t2_bit(uint32_t step, uint32_t p) { return 8 * (p / 2) + (step % 2 == 0 ? (p % 2 ? 0 : 4) : (p % 2 ? 2 : 6)); }

// Bit of element pair p of step s in an O1 word: a shift brings those of a step and an output into the same bit of four bytes.
BRASA_BOTH constexpr uint32_t o1_bit(uint32_t step, uint32_t p) { return 8 * (p / 2) + (2 * step + p % 2 + 4) % 8; }

}  // namespace brasa
