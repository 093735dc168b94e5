// Products of the tiles of rows_tiles.cuh on wgmma: a warp group has 64 rows, of which each of its warps has sixteen. Sums lie in a thread as those of m16n8k16 do:
// element 4n + i of `c` is that of column 8n + 2 · (lane % 4) + i % 2 in row lane / 4 + 8 · (i / 2) of the warp.
//
// A tile is read by its rows, for products with rows, and by its columns, for sums of rows.
// Products are asynchronous: start_… queues them, products_end_group closes a group, wait_for_products<N> waits for all groups but the last N. Until then their
// sums, fragments and tiles must be left alone.
#pragma once

#include "wgmma.cuh"

namespace brasa {

// Descriptor of a tile: groups of eight rows follow each other, blocks of columns lie ROWS rows apart.
template <u32 E, u32 ROWS> __device__ __forceinline__ uint64_t tile_descriptor(SharedAt address) {
    constexpr uint64_t GROUP = BLOCK<E>, BLOCKS = ROWS * BLOCK<E> / 8, SWIZZLE = BLOCK<E> == 64 ? 1 : 2;
    return uint64_t((address & 0x3ffff) >> 4) | BLOCKS << 16 | GROUP << 32 | SWIZZLE << 62;
}
// Sixteen columns from 16 · e on, in units of a descriptor's address.
template <u32 E, u32 ROWS> __device__ __forceinline__ uint64_t tile_columns(u32 e) {
    constexpr u32 STEPS = BLOCK<E> / 16;
    return e / STEPS * (ROWS * BLOCK<E> / 8) + e % STEPS * 2;
}

// c = a · tileᵀ: sixteen rows of fragments with 64 rows of a tile.
template <u32 E> DEVICE void start_products(float (&c)[32], const u32 (&a)[E / 16][4], SharedAt tile) {
    wgmma_fence();
#pragma unroll
    for (u32 e = 0; e < E / 16; ++e) {
        wgmma<64>(c, a[e], tile_descriptor<E, 64>(tile) + tile_columns<E, 64>(e), e > 0);
    }
}
// The same of the 64 rows of a tile of ROWS rows from row `first` on.
template <u32 E, u32 ROWS> DEVICE void start_products_of(float (&c)[32], SharedAt rows, u32 first, SharedAt tile) {
    const uint64_t a = tile_descriptor<E, ROWS>(rows + first * BLOCK<E> * 2), b = tile_descriptor<E, 64>(tile);
    wgmma_fence();
#pragma unroll
    for (u32 e = 0; e < E / 16; ++e) {
        wgmma_shared(c, a + tile_columns<E, ROWS>(e), b + tile_columns<E, 64>(e), e > 0);
    }
}
// sums += a · tile: the rows of a tile of 64, weighed.
template <u32 E> DEVICE void start_sums(float (&sums)[E / 2], const u32 (&a)[4][4], SharedAt tile) {
    wgmma_fence();
#pragma unroll
    for (u32 n = 0; n < 4; ++n) {
        wgmma_turned<E>(sums, a[n], tile_descriptor<E, 64>(tile + n * 16 * BLOCK<E> * 2), 1);
    }
}
DEVICE void products_end_group() { wgmma_commit(); }
template <u32 N> DEVICE void wait_for_products() { wgmma_wait<N>(); }
// Copies of this thread are there for products of any thread behind the next barrier. A fence that did not name shared memory would wait for all memory
// (MEMBAR.ALL.GPU), longer than a tile's products take.
DEVICE void copies_for_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

}  // namespace brasa
