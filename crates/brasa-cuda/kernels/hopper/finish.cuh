// The end of linear layers: warps of their own add what the multiplying warps leave, and write outputs.
//
// Who multiplies goes on to the next instruction at once, so that what lies in front of its x passes while these outputs are written. Partial sums lie in two
// halves of scratch in turn: a barrier tells that all warps have left theirs, and `freed` that they have been read.
#pragma once
#include "linear.cuh"

namespace brasa {

// The best of all finishers, left by the first.
__device__ __forceinline__ void draw(float best, uint32_t id, uint32_t sequence, uint32_t finisher, uint32_t lane) {
    best_of_warp(best, id);
    uint2* found = reinterpret_cast<uint2*>(smem + AT_FOUND);
    named_barrier(FINISHING, FINISHERS * 32);  // those of the step before have been read
    if (lane == 0) found[finisher] = make_uint2(__float_as_uint(best), id);
    named_barrier(FINISHING, FINISHERS * 32);
    if (finisher > 0) return;
    for (uint32_t i = 1; i < FINISHERS; i++) {
        const float v = __uint_as_float(found[i].x);
        if (v > best || (v == best && found[i].y < id)) { best = v; id = found[i].y; }
    }
    leave_candidate(best, id, sequence, lane);
}

// Writes the outputs of a linear layer as their sums come. False where none will come, since the chain has ended.
template <Sync S, bool MIXED> __device__ __forceinline__ bool finish_layer(uint32_t sequence, Turn& turn) {
    const uint32_t lane = threadIdx.x % 32, finisher = threadIdx.x / 32 - WARPS - 1;
    const Instr& in = instruction(sequence);
    const uint32_t flags = in.flags, all = in.outputs;
    Range mine = my_tiles(in.tiles_each, in.tiles_odd, in.rotation);
    // Experts' gates and ups are tiles of their own; otherwise each is half of a tile.
    const bool adds = flags & RESIDUAL, paired = flags & PAIRED, chosen = MIXED && in.op == EXPERTS, halves = paired && !chosen;
    if (paired && chosen) mine = {2 * mine.first, 2 * mine.count};
    if (mine.count == 0) return true;
    const uint32_t per_tile = paired ? 8 : 16, first_output = mine.first * per_tile, tag = sequence + in.y_ahead;
    // Where the sums of this lane's first output lie, those of the output that gates it, and those of its next output.
    const uint32_t place = finisher * (paired ? 4 : 2) * TILE_FLOATS + (halves ? lane / 8 * TILE_FLOATS + lane % 8 : lane / 16 * (paired ? 2 : 1) * TILE_FLOATS + lane % 16);
    const uint32_t other = halves ? 8 : TILE_FLOATS, stride = FINISHERS * (paired ? 4 : 2) * TILE_FLOATS;
    const uint64_t y = in.y, bias = in.bias, residual = in.residual;
    const float scale = in.scale, eps = in.eps, inverse_inputs = __fdividef(1.0f, float(in.inputs)), softcap = in.softcap;
    float best = -INFINITY;
    uint32_t best_id = ~0u;
    for (uint32_t first = 0; first < mine.count; first += BATCH) {
        const uint32_t outputs = min(BATCH, mine.count - first) * per_tile;
        const float* partial = reinterpret_cast<float*>(smem + AT_SCRATCH) + turn.half() * HALF_FLOATS;
        const float* p = partial + place;
        uint32_t local = finisher * 32 + lane, n = first_output + first * per_tile + local;
        // The residual of the first outputs is on its way meanwhile; behind a barrier of the grid it is there with the sums.
        typename Values<S>::Raw raw{};
        bool there = local < outputs && n < all;
        if (S == Sync::Tagged && adds && there) raw = Values<S>::start(residual, n);
        await_sums(turn);
        if (look(AT_STOPPED) != 0) return false;
        if (S == Sync::Barrier && adds && there) raw = Values<S>::start(residual, n);
        while (local / 32 * 32 < outputs) {
            float factor = scale;
            if (flags & NORM) factor *= reciprocal_root(fmaf(tree(partial + BATCH * TILE_FLOATS, 1), inverse_inputs, eps));
            float v = __fmul_rn(tree(p, 16), factor);
            if (paired) {
                v = gate_activation(v, flags) * (tree(p + other, 16) * factor);
                if (chosen && there) v *= in.attention_scale * peek<float>(AT_SHARES + 4 * (n / in.heads));
            }
            if (adds && there) v = __fadd_rn(v, Values<S>::finish(raw, residual, n, sequence - in.residual_back));
            // What few layers have, out of the way of the others.
            if (__builtin_expect((bias != 0) | (softcap > 0.0f), false)) {
                if (bias && there) v = __fadd_rn(v, __ldg(reinterpret_cast<const float*>(bias) + n));
                if (softcap > 0.0f) v = softcap * tanhf(v / softcap);
            }
            if (flags & DRAW) {
                if (there && (v > best || (v == best && n < best_id))) { best = v; best_id = n; }
                if ((flags & LOGITS) && there) __stcg(reinterpret_cast<float*>(y) + n, v);
            } else {
                Values<S>::store(y, n, there ? v : 0.0f, tag, local < outputs && n / 4 * 4 < all);
            }
            local += FINISHERS * 32;
            n += FINISHERS * 32;
            p += stride;
            there = local < outputs && n < all;
            if (adds && there) raw = Values<S>::start(residual, n);
        }
        __syncwarp();
        free_sums(turn);
        turn.next();
    }
    if (flags & DRAW) draw(best, best_id, sequence, finisher, lane);
    return true;
}

// Asks for the warp's copy of instruction i, which will have this sequence number. No register waits for it: a call would wait for the register.
__device__ __forceinline__ void fetch(uint32_t i, uint32_t sequence) {
    const uint32_t piece = threadIdx.x % 32 * 16;
    if (piece < sizeof(Instr)) copy16(smem + instr_at(sequence) + piece, reinterpret_cast<const uint8_t*>(the_launch().program + the_launch().first + i) + piece);
}

// The finishers walk the program beside the others.
template <Sync S, bool MIXED> __device__ __forceinline__ void finish() {
    uint32_t done = 0;
    Turn turn{0};
    fetch(0, the_launch().sequence + 1);
#pragma unroll 1
    for (uint32_t step = 0; step < the_launch().steps; step++) {
#pragma unroll 1
        for (uint32_t i = 0; i < the_launch().count; i++) {
            copies_came();
            __syncwarp();
            const uint32_t sequence = the_launch().sequence + ++done, op = peek<uint32_t>(instr_at(sequence));
            fetch(i + 1 < the_launch().count ? i + 1 : 0, sequence + 1);
            if ((op == LINEAR || (MIXED && op == EXPERTS)) && !finish_layer<S, MIXED>(sequence, turn)) return;
        }
    }
}

}  // namespace brasa
