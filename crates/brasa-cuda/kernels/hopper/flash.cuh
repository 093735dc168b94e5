// Attention of many rows over the paged cache (prompts), on wgmma.
//
// A block makes one head of 64 or 128 rows of a segment, which take 64 positions at a time. Rows see j ≤ index and, with a window w, j > index − w; blocks skip
// positions that none of their rows sees. The row's own keys are in the cache already. Segments of fewer than `p.fewest_rows` rows and draft trees are left alone.
// Grid: x: heads, y: blocks of rows of the longest segment, z: segments. Behind a text's end a page may hold anything: tiles have its last position
// there once more, since a weight of 0 does not undo a NaN.
//
// f16 operands, f32 scores and sums. Pages of f16 are copied, pages of q8 decoded to f16.
#pragma once

#include "../plain/kv.cuh"
#include "rows_tiles.cuh"

namespace brasa {

// Warp groups of a block. Heads wider than 128 keep their queries in shared memory, for which one block has a multiprocessor.
template <u32 E> constexpr u32 FLASH_GROUPS = E <= 128 ? 1 : 2;

// Eight elements of a position of a head, to a piece of a tile.
template <u32 E> DEVICE void load_piece(u8* to, const u8* head, u32 position, u32 piece, KvF16) {
    copy16(to, head + (position * E + kv_piece(E, position, piece) * 8) * 2);
}
template <u32 E> DEVICE void load_piece(u8* to, const u8* head, u32 position, u32 piece, KvQ8) {
    const u64 codes = *(const u64*)(head + position * E + piece * 8);
    const float scale = half_to_float(KvQ8::scales((u8*)head, position, E)[piece * 8 / KvQ8::BLOCK]);
    Halves8 halves;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        const float low = (float)(signed char)(codes >> 16 * i), high = (float)(signed char)(codes >> (16 * i + 8));
        halves.at[i] = pack_halves(scale * low, scale * high);
    }
    *(Halves8*)to = halves;
}

template <u32 E, class Kv> DEVICE void flash(const FlashParams& p) {
    DYNAMIC_SHARED(shared);
    constexpr u32 ROWS = FLASH_GROUPS<E> * GROUP_ROWS, THREADS = FLASH_GROUPS<E> * 128, PIECES = E / 8;
    constexpr bool IN_REGISTERS = E <= 128;
    const SegmentRows& segment = p.step.segments[blockIdx.z];
    const u32 blocks = (segment.rows + ROWS - 1) / ROWS;
    if (blockIdx.y >= blocks || segment.rows < p.fewest_rows || segment.has_tree) {
        return;
    }
    // The last rows see most: they begin first, of all heads.
    const u32 first = (blocks - 1 - blockIdx.y) * ROWS, head = blockIdx.x, kv_head = head / (p.heads / p.cache.kv_heads);
    const u32 last = min(first + ROWS, segment.rows) - 1, of_group = threadIdx.x / 128 * GROUP_ROWS, own = first + threadIdx.x / 32 * 16;
    const u32 r0 = own + threadIdx.x % 32 / 4, r1 = r0 + 8, t = threadIdx.x % 4;
    const Seen seen(segment.first_index + segment.rows, p.window, true);
    const u32 begin = seen.first_key(segment.first_index + first), end = segment.first_index + last + 1, end_of_text = segment.first_index + segment.rows;
    u8* tiles = aligned_tiles(shared);
    u8* queries = tiles + STAGES<E> * 2 * TILE_BYTES<E>;
    // Queries times the scale, and log2 e where nothing comes between.
    const float scale = p.softcap > 0.0f ? p.scale : p.scale * LOG2_E;
    const float* q = p.q + (u64)segment.first_row * p.q_stride + head * E;
    u32 fragments[IN_REGISTERS ? E / 16 : 1][4];
    if constexpr (IN_REGISTERS) {
#pragma unroll
        for (u32 e = 0; e < E / 16; ++e) {
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                const float* from = q + (u64)min(i % 2 ? r1 : r0, last) * p.q_stride + e * 16 + 2 * t + i / 2 * 8;
                fragments[e][i] = pack_halves(from[0] * scale, from[1] * scale);
            }
        }
    } else {
        for (u32 i = threadIdx.x; i < ROWS * PIECES; i += THREADS) {
            const u32 row = i / PIECES, piece = i % PIECES;
            const float* from = q + (u64)min(first + row, last) * p.q_stride + piece * 8;
            Halves8 halves;
#pragma unroll
            for (u32 n = 0; n < 4; ++n) {
                halves.at[n] = pack_halves(from[2 * n] * scale, from[2 * n + 1] * scale);
            }
            *(Halves8*)(queries + tile_piece<E, ROWS>(row, piece)) = halves;
        }
    }
    // Keys of the positions from `at` on, which lie in one page, and their values. Where the next page lies is asked for before it is needed.
    const u64* pages = p.cache.pages + p.cache.starts[blockIdx.z];
    u64 page = pages[begin / PAGE_POSITIONS];
    const u64 of_head = p.cache.offset_bytes + (u64)kv_head * p.cache.head_bytes;
    const auto load_tile = [&](u8* to, u32 at, auto position_of) {
        const u8* head_keys = (const u8*)page + of_head;
        const u8* head_values = head_keys + (u64)p.cache.kv_heads * p.cache.head_bytes;
#pragma unroll
        for (u32 n = 0; n < SPAN * PIECES / THREADS; ++n) {
            const u32 i = n * THREADS + threadIdx.x, row = i / PIECES, piece = i % PIECES, position = at % PAGE_POSITIONS + position_of(row);
            u8* piece_to = to + tile_piece<E, SPAN>(row, piece);
            load_piece<E>(piece_to, head_keys, position, piece, Kv());
            load_piece<E>(piece_to + TILE_BYTES<E>, head_values, position, piece, Kv());
        }
    };
    const auto load = [&](u8* to, u32 at) {
        if (at + SPAN <= end_of_text) {
            load_tile(to, at, [](u32 row) { return row; });
        } else {
            load_tile(to, at, [&](u32 row) { return min(row, end_of_text - 1 - at); });
        }
        copies_end_group();
        if ((at + SPAN) % PAGE_POSITIONS == 0 && at + SPAN < end) {
            page = pages[(at + SPAN) / PAGE_POSITIONS];
        }
    };
    Attended<E> attended;
    if (p.sinks != nullptr) {
        attended.begin_with(p.sinks[head]);
    }
    each_tile<E>(tiles, begin, end, load, [&](SharedAt tile, u32 at) {
        // The last positions are hidden from a warp group's rows where another's see them.
        if (FLASH_GROUPS<E> > 1 && at > segment.first_index + first + of_group + GROUP_ROWS - 1) {
            return;
        }
        attended.take(
            tile,
            [&](float (&s)[32]) {
                if constexpr (IN_REGISTERS) {
                    start_products<E>(s, fragments, tile);
                } else {
                    start_products_of<E, ROWS>(s, shared_address(queries), of_group, tile);
                }
            },
            [&](float (&s)[32]) { finish_scores(p.softcap > 0.0f, p.softcap, seen, s, segment.first_index + own, at); });
    });
    float all[2];
    attended.end(all);
    const u64 stride = (u64)p.heads * E;
    store_rows<E>(p.y + segment.first_row * stride + head * E, stride, attended.sums, r0, r1, segment.rows, 1.0f / all[0], 1.0f / all[1]);
}

}  // namespace brasa

#define BRASA_FLASH(E, BLOCKS)                                                                                        \
    ROWS_KERNEL(flash_f16_##E, FlashParams, brasa::FLASH_GROUPS<E> * 128, BLOCKS) { brasa::flash<E, KvF16>(p); }        \
    ROWS_KERNEL(flash_q8_##E, FlashParams, brasa::FLASH_GROUPS<E> * 128, BLOCKS) { brasa::flash<E, KvQ8>(p); }
BRASA_FLASH(32, 4)
BRASA_FLASH(64, 4)
BRASA_FLASH(96, 2)
BRASA_FLASH(128, 2)
BRASA_FLASH(192, 1)
BRASA_FLASH(256, 1)
