// How a product of few rows is dealt to blocks in equal shares, and how parts of its sums are added ("stream-K").
//
// A piece is 64 outputs × the rows of a block. The units of K of all pieces, one piece behind the other, are cut into a stretch for each block, so
// that every multiprocessor reads as many weights as the others. A block makes whole pieces and, at the ends of its stretch, parts of two others. A
// part's sums go to memory. The block that brings the last part of a piece adds all of them in the order of K and writes the outputs: no launch
// follows that adds. The order of sums depends on the shapes and the number of blocks, never on who comes last.
//
// Osama et al. 2023, arXiv:2301.03598.
#pragma once
#include "../plain/params.h"
#include "../plain/platform.cuh"

namespace brasa {

// Threads that hold a block's sums.
constexpr u32 STREAM_THREADS = 128;

struct Stream {
    u32 pieces, units, blocks;  // units of a piece
    DEVICE u64 all() const { return u64(pieces) * units; }
    // The first unit of a block's stretch, which ends where the next block's begins.
    DEVICE u32 begin(u32 block) const { return u32(block * all() / blocks); }
    // The block whose stretch has this unit.
    DEVICE u32 owner(u32 unit) const { return u32(((u64(unit) + 1) * blocks - 1) / all()); }
};

// Brings this block's part of a piece: N sums of each of the first STREAM_THREADS threads, which all come here. True where `d` holds the sums of all
// parts now: this block writes the outputs. `wait`: a barrier of these threads; `is_last`: a word of shared memory.
template <int N, class Wait> DEVICE bool join(const GemmParams& p, const Stream& stream, u32 piece, float (&d)[N], u32& is_last, Wait wait) {
    const u32 first = stream.owner(piece * stream.units), last = stream.owner((piece + 1) * stream.units - 1), thread = threadIdx.x;
    if (first == last) return true;
    // A block has at most two parts: of the piece that its stretch begins in, and of the one that it ends in.
    auto part = [&](u32 block) { return p.partial + (u64(block) * 2 + (block == first)) * (N * STREAM_THREADS) + thread; };
    float* mine = part(blockIdx.x);
#pragma unroll
    for (int n = 0; n < N; n++) __stcg(mine + n * STREAM_THREADS, d[n]);
    __threadfence();
    wait();
    if (thread == 0) is_last = atomicAdd(p.arrivals + piece, 1u) == last - first;
    wait();
    if (!is_last) return false;
    __threadfence();
#pragma unroll
    for (int n = 0; n < N; n++) d[n] = 0.0f;
    for (u32 block = first; block <= last; block++) {
        const float* from = part(block);
#pragma unroll
        for (int n = 0; n < N; n++) d[n] += __ldcg(from + n * STREAM_THREADS);
    }
    // As the next launch expects it.
    if (thread == 0) p.arrivals[piece] = 0;
    return true;
}

}  // namespace brasa
