// A linear layer of one row in the interpreter: y = act(norm(x) · Wᵀ + bias) + residual.
//
// K is dealt to the warps by subs of 64 inputs (sub s to warp s % WARPS), so that each warp reads, scales and rounds only its own
// share of x and starts to multiply without waiting for the others, and leaves its sums without waiting either: other warps add them (finish.cuh). The norm's factor
// is a number of the whole row; it multiplies the sums at the end.
//
// x becomes f16, or whole numbers where codes are multiplied (codes.cuh), with a power of two for each two subs of a warp that brings their largest magnitude
// into [2^14, 2^15), or [2^13, 2^14).
//
// Order of sums: a warp's subs four at a time (columns.cuh), then the four lanes of an output, then the warps as a tree. It depends on K and the format alone.
// Products whose sum could be contracted are written with __fmul_rn or fmaf, so that both kinds of Sync make the same bits.
#pragma once
#include "columns.cuh"
#include "ring.cuh"
#include "stamps.cuh"
#include "values.cuh"

namespace brasa {

constexpr float LOG2E = 1.4426950408889634f;

// Warps may come here with lanes apart, behind a wait for values; bar.sync wants them together.
__device__ __forceinline__ void consumers_sync() {
    __syncwarp();
    named_barrier(CONSUMING, CONSUMERS);
}

__device__ __forceinline__ float gate_activation(float x, uint32_t flags) {
    if (__builtin_expect(flags & GELU_TANH, false)) return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
    return x * reciprocal(1.0f + raise_two(-1.4426950408889634f * x));
}

// The sum of the warps' numbers, `stride` apart, as a tree.
__device__ __forceinline__ float tree(const float* p, uint32_t stride) {
    float v[WARPS];
#pragma unroll
    for (int i = 0; i < WARPS; i++) v[i] = p[i * stride];
#pragma unroll
    for (int n = WARPS / 2; n > 0; n /= 2) {
#pragma unroll
        for (int i = 0; i < n; i++) v[i] += v[i + n];
    }
    return v[0];
}

// The largest of the warp's magnitudes; one that is no number is larger than all others.
__device__ __forceinline__ float largest_of(float magnitude) { return __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(magnitude))); }

// Asks for two subs of x for each c < N, sixteen lanes a sub, from sub `first` of the warp on.
template <Sync S, int N> __device__ __forceinline__ void ask(typename Values<S>::Raw4 (&raw)[N], uint64_t from, uint32_t K, uint32_t first, uint32_t lane) {
#pragma unroll
    for (int c = 0; c < N; c++) {
        const uint32_t i = (first + lane / 16 * WARPS + c * 2 * WARPS) * 64 + lane % 16 * 4;
        raw[c] = {};
        if (i < K) raw[c] = Values<S>::start4(from, i);
    }
}

// The subs that were asked for, as products read them. Returns the warp's sum of squares. The N chains of instructions overlap.
template <Sync S, uint32_t F, int N>
__device__ __forceinline__ float prepare(typename Values<S>::Raw4 (&raw)[N], uint64_t from, const float4* norm, uint32_t K, uint32_t subs, uint32_t first, uint32_t lane, uint32_t tag) {
    using V = Values<S>;
    const uint32_t mine = first + lane / 16 * WARPS;  // sub of this lane
    float4 x[N], w[N];
#pragma unroll
    for (int c = 0; c < N; c++) {
        const uint32_t i = (mine + c * 2 * WARPS) * 64 + lane % 16 * 4;
        w[c] = make_float4(1, 1, 1, 1);
        if (norm && i < K) w[c] = __ldg(norm + i / 4);
    }
    V::template finish4s<N, (by_codes(F) && N > 2) ? Ask::First : Ask::All>(raw, x, from, mine * 64 + lane % 16 * 4, 2 * WARPS * 64, K, tag);
    float squares = 0.0f, largest[N];
#pragma unroll
    for (int c = 0; c < N; c++) {
        squares = fmaf(x[c].x, x[c].x, fmaf(x[c].y, x[c].y, fmaf(x[c].z, x[c].z, fmaf(x[c].w, x[c].w, squares))));
        x[c].x *= w[c].x; x[c].y *= w[c].y; x[c].z *= w[c].z; x[c].w *= w[c].w;
        largest[c] = fmaxf(fmaxf(fabsf(x[c].x), fabsf(x[c].y)), fmaxf(fabsf(x[c].z), fabsf(x[c].w)));
    }
#pragma unroll
    for (int c = 0; c < N; c++) largest[c] = largest_of(largest[c]);
    if constexpr (by_codes(F)) {
        int sum[N];
        float up[N];
#pragma unroll
        for (int c = 0; c < N; c++) {
            const int e = row_exponent(largest[c]) + 1;
            const uint32_t sub = mine + c * 2 * WARPS;
            // Whole numbers cannot be infinite or none, the power of two can.
            up[c] = largest[c] < INFINITY ? power_of_two(e) : NAN;
            sum[c] = leave_whole(x[c], power_of_two(-e), sub, lane, sub < subs);
        }
        constexpr int LANES = 16 / column_blocks(F);  // of a block
#pragma unroll
        for (int d = 1; d < LANES; d *= 2) {
            squares += __shfl_xor_sync(~0u, squares, d);
#pragma unroll
            for (int c = 0; c < N; c++) sum[c] += __shfl_xor_sync(~0u, sum[c], d);
        }
#pragma unroll
        for (int d = LANES; d < 32; d *= 2) squares += __shfl_xor_sync(~0u, squares, d);
#pragma unroll
        for (int c = 0; c < N; c++) {
            const uint32_t sub = mine + c * 2 * WARPS;
            if (lane % LANES == 0 && sub < subs) reinterpret_cast<int*>(smem + AT_SUMS)[sub * 4 + lane % 16 / LANES] = sum[c];
            if (lane % 16 == 0 && sub < subs) reinterpret_cast<float*>(smem + AT_SCALES)[sub] = up[c];
        }
    } else {
        __half2 a[N], b[N];
        float up[N];
#pragma unroll
        for (int c = 0; c < N; c++) {
            const int e = row_exponent(largest[c]);
            const float down = power_of_two(-e);
            up[c] = power_of_two(e);
            a[c] = __floats2half2_rn(x[c].x * down, x[c].y * down);
            b[c] = __floats2half2_rn(x[c].z * down, x[c].w * down);
        }
#pragma unroll
        for (int d = 1; d < 32; d *= 2) squares += __shfl_xor_sync(~0u, squares, d);
        const uint32_t q = lane % 16, step = q / 4, k = q % 4 * 4;
        const uint32_t place = step / 2 * 64 + (k % 8 / 2) * 16 + step % 2 * 8 + k / 8 * 4;
#pragma unroll
        for (int c = 0; c < N; c++) {
            const uint32_t sub = mine + c * 2 * WARPS;
            if (sub < subs) {
                uint8_t* at = smem + AT_X + sub * 128 + place;
                *reinterpret_cast<__half2*>(at) = a[c];
                *reinterpret_cast<__half2*>(at + 16) = b[c];
                if (q == 0) reinterpret_cast<float*>(smem + AT_SCALES)[sub] = up[c];
            }
        }
    }
    return squares;
}

// The warp's share of x, whose first four quads a lane have been asked for. Returns its sum of squares.
template <Sync S, uint32_t F>
__device__ __forceinline__ float prepare(const Instr& in, typename Values<S>::Raw4 (&raw)[4], uint32_t warp, uint32_t lane, uint32_t tag) {
    using Raw4 = typename Values<S>::Raw4;
    const uint64_t from = in.x;
    const float4* norm = in.flags & NORM ? reinterpret_cast<const float4*>(in.norm_weight) : nullptr;
    const uint32_t subs = in.subs, K = in.inputs;
    float squares = 0.0f;
    uint32_t first = warp;
    if (first + 4 * WARPS < subs) {
        Raw4 following[4];
        do {
            // The next ones are on their way meanwhile.
            ask<S, 4>(following, from, K, first + 8 * WARPS, lane);
            squares += prepare<S, F, 4>(raw, from, norm, K, subs, first, lane, tag);
            first += 8 * WARPS;
#pragma unroll
            for (int c = 0; c < 4; c++) raw[c] = following[c];
        } while (first < subs);
    } else if (first + 2 * WARPS < subs) {
        Raw4 two[2] = {raw[0], raw[1]};
        squares = prepare<S, F, 2>(two, from, norm, K, subs, first, lane, tag);
    } else if (first < subs) {
        Raw4 one[1] = {raw[0]};
        squares = prepare<S, F, 1>(one, from, norm, K, subs, first, lane, tag);
    }
    __syncwarp();
    return squares;
}

// The larger logit of the warp's, ties to the lower id.
__device__ __forceinline__ void best_of_warp(float& best, uint32_t& id) {
#pragma unroll
    for (int i = 16; i > 0; i /= 2) {
        const float v = __shfl_xor_sync(~0u, best, i);
        const uint32_t n = __shfl_xor_sync(~0u, id, i);
        if (v > best || (v == best && n < id)) { best = v; id = n; }
    }
}

// The larger logit of two, ties to the lower id; all threads get the block's.
__device__ __noinline__ uint2 block_best(float best, uint32_t id) {
    best_of_warp(best, id);
    float* values = reinterpret_cast<float*>(smem + AT_MAXIMA);
    uint32_t* ids = reinterpret_cast<uint32_t*>(smem + AT_MASSES);
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    consumers_sync();
    if (lane == 0) { values[warp] = best; ids[warp] = id; }
    consumers_sync();
    best = values[lane % WARPS]; id = ids[lane % WARPS];
    for (int i = WARPS / 2; i > 0; i /= 2) {
        const float v = __shfl_xor_sync(~0u, best, i);
        const uint32_t n = __shfl_xor_sync(~0u, id, i);
        if (v > best || (v == best && n < id)) { best = v; id = n; }
    }
    return make_uint2(__float_as_uint(best), id);
}

// Where the candidates of a step lie, by the number of its last instruction. Two steps' in turn: who leaves one has seen all to have read those of the step before the last.
__device__ __forceinline__ uint64_t* candidates_of(uint32_t tag) {
    const Launch& launch = the_launch();
    return launch.candidates + (quotient(tag - launch.sequence - 1, launch.count) & 1) * 2 * (gridDim.x + 1);
}

// The block's best, and of the first block the host's: by the first four threads.
__device__ __forceinline__ void leave_candidate(float best, uint32_t id, uint32_t sequence, uint32_t thread) {
    const Launch& launch = the_launch();
    uint64_t* candidates = candidates_of(sequence);
    if (thread < 2) store_tagged(candidates + 2 * blockIdx.x + thread, thread ? __uint_as_float(id) : best, sequence);
    if (blockIdx.x == 0 && thread / 2 == 1) {
        const float host = launch.cancel && load_host(launch.cancel) != 0 ? INFINITY : -INFINITY;
        store_tagged(candidates + 2 * gridDim.x + thread % 2, thread % 2 ? __uint_as_float(NO_TOKEN) : host, sequence);
    }
}

// The slots of a linear layer as one warp sees them: those that it knows to have come and not yet let go.
template <uint32_t F> struct Window {
    static constexpr Geometry G = geometry(F);
    static constexpr uint32_t SLOT_SUBS = SLOT_BYTES / unit_bytes(F) * G.unit_subs;
    Cursor oldest;             // the first slot that is held
    Cursor next;               // the first slot that is not known to have come
    uint32_t last;             // first sub behind the layer's last slot
    uint32_t begin = 0;        // first sub of `oldest`
    uint32_t end = 0;          // first sub behind the held slots

    __device__ __forceinline__ Window(Cursor from, uint32_t subs) : oldest(from), next(from), last((subs + SLOT_SUBS - 1) / SLOT_SUBS * SLOT_SUBS) {}
    // Holds the slot of `sub`. Each lane looks at one slot of the ring, so that a ring that is full is looked at once.
    __device__ __forceinline__ void reach(uint32_t sub) {
        while (sub >= end) {
            const uint32_t lane = threadIdx.x % 32;
            Cursor mine = next;
            mine.skip(lane % SLOTS);
            const bool there = mine.came(lane < SLOTS);
            uint32_t found = __ffs(~__ballot_sync(~0u, there)) - 1;
            __syncwarp();  // what one lane saw to have come may be read by all
            if (found == 0) {
                next.wait();
                found = 1;
            }
            found = min(found, (last - end) / SLOT_SUBS);
#ifdef BRASA_EACH_LANE
            // For racecheck, which knows what a lane saw by itself and not what a vote tells it.
            for (uint32_t i = 0; i < found; i++) { next.wait(); next.next(); }
#else
            next.skip(found);
#endif
            end += found * SLOT_SUBS;
        }
    }
    // Lets go the held slots that lie before `sub`.
    __device__ __forceinline__ void leave(uint32_t sub) { drop(min(sub, end)); }
    __device__ __forceinline__ void drop(uint32_t sub) {
        const uint32_t slots = (sub - begin) / SLOT_SUBS;
        oldest.release(slots, false);
        begin += slots * SLOT_SUBS;
    }
};

// Where the warp's subs lie in the ring, 32 in order of their use: lane l knows the l-th.
template <uint32_t F> struct Places {
    uint32_t start;            // slot of the layer's first sub
    uint32_t subs, each;       // subs of a tile; those of the warp
    uint32_t used = 32;        // lanes whose subs were used
    Spot spot;

    // The next N subs begin with number `k` of tile `tile`.
    template <int N> __device__ __forceinline__ void need(uint32_t tile, uint32_t k, uint32_t warp, uint32_t lane) {
        if (used + N <= 32) return;
        used = 0;
        k += lane;
        if (each * WARPS == subs) return place(tile * subs + k * WARPS + warp);
        const uint32_t tiles = quotient(k, each);
        place((tile + tiles) * subs + (k - tiles * each) * WARPS + warp);
    }
    // Where every warp has as many subs of a tile, those of the tile that begins with sub `first` and of the next.
    __device__ __forceinline__ void begin(uint32_t first, uint32_t warp, uint32_t lane) { place(first + lane * WARPS + warp); }
    __device__ __forceinline__ void place(uint32_t sub) {
        constexpr Geometry G = geometry(F);
        constexpr uint32_t SLOT_SUBS = SLOT_BYTES / unit_bytes(F) * G.unit_subs;
        const uint32_t in_slot = sub % SLOT_SUBS;
        spot.unit = AT_RING + (start + sub / SLOT_SUBS) % SLOTS * SLOT_BYTES + in_slot / G.unit_subs * unit_bytes(F);
        spot.sub = spot.unit + G.header_bytes + in_slot % G.unit_subs * G.sub_bytes;
    }
    __device__ __forceinline__ uint32_t sub(uint32_t i) const { return __shfl_sync(~0u, spot.sub, i); }
    __device__ __forceinline__ Spot of(uint32_t i) const { return {sub(i), geometry(F).header_bytes > 0 ? __shfl_sync(~0u, spot.unit, i) : 0}; }
};

// total += N subs of the warp with their x: those that lane `from` and the next know. `last`: the last of them.
template <uint32_t F, int N>
__device__ __forceinline__ void multiply_round(Window<F>& window, const Places<F>& places, uint32_t from, uint32_t last, const Columns<F, N>& x, uint32_t lane, float2& total, float raise) {
    uint32_t at[N];
#pragma unroll
    for (int i = 0; i < N; i++) at[i] = places.sub(from + i);
    // Lanes without a sub of their own read the last one's scales, and drop them.
    const Spot own = by_codes(F) ? places.of(from + min(lane % 4, N - 1u)) : Spot{};
    window.reach(last);
    multiply_columns<F, N>(at, own, x, lane, total, raise);
}

// total += the warp's subs of a tile from `s` on, N at a time. Returns the first that is left.
template <uint32_t F, int N>
__device__ __forceinline__ uint32_t multiply_rounds(Window<F>& window, Places<F>& places, uint32_t tile, uint32_t s, uint32_t warp, uint32_t lane, float2& total, float raise) {
    for (; s + (N - 1) * WARPS < places.subs; s += N * WARPS) {
        Columns<F, N> x;
        x.load(s, lane);
        places.template need<N>(tile, s / WARPS, warp, lane);
        multiply_round<F, N>(window, places, places.used, tile * places.subs + s + (N - 1) * WARPS, x, lane, total, raise);
        places.used += N;
        window.leave(tile * places.subs + s);
    }
    return s;
}

// Where a lane leaves its sum of a tile, from the tile's sums on.
template <uint32_t F> __device__ __forceinline__ uint32_t sum_place(uint32_t warp, uint32_t lane) { return warp * 16 + (by_codes(F) ? output_of(lane) : lane / 4) + lane % 2 * 8; }
// The warp's sums of a tile, left for the block. Lanes that have the same sum all write it: a branch costs more. Of halves all columns are alike.
template <uint32_t F> __device__ __forceinline__ void leave_total(float* to, uint32_t lane, float2 total) {
    if constexpr (by_codes(F)) *to = add_lanes<4>(total, lane);
    else *to = lane % 2 ? total.y : total.x;
}

// Tiles of which every warp has N subs: x stays in registers. Where the next tile's subs lie is known before they are wanted.
template <uint32_t F, int N>
__device__ __forceinline__ void multiply_tiles(Window<F>& window, Places<F>& places, uint32_t first, uint32_t batch, float* partial, uint32_t warp, uint32_t lane, float raise) {
    Columns<F, N> x;
    x.load(warp, lane);
    float* to = partial + sum_place<F>(warp, lane);
    uint32_t end = first * places.subs;
    for (uint32_t tile = 0; tile < batch; tile++) {
        end += places.subs;
        float2 total = make_float2(0.0f, 0.0f);
        multiply_round<F, N>(window, places, 0, end - WARPS + warp, x, lane, total, raise);
        places.begin(end, warp, lane);
        leave_total<F>(to, lane, total);
        to += TILE_FLOATS;
        window.leave(end);
    }
}

// Tiles of codes of which every warp has two subs: two tiles at a time. In the last round of an odd number one is multiplied twice.
template <uint32_t F>
__device__ __forceinline__ void multiply_pairs(Window<F>& window, Places<F>& places, uint32_t first, uint32_t batch, float* partial, uint32_t warp, uint32_t lane) {
    Columns<F, 4> x;
    x.template load<2>(warp, lane);
    float* to = partial + sum_place<F>(warp, lane);
    uint32_t end = first * places.subs;
    for (uint32_t tile = 0; tile < batch; tile += 2) {
        const bool both = tile + 1 < batch;
        end += both ? 2 * places.subs : places.subs;
        uint32_t at[4] = {places.sub(0), places.sub(1), places.sub(2), places.sub(3)};
        const Spot own = places.of(both ? lane % 4 : lane % 2);
        if (!both) { at[2] = at[0]; at[3] = at[1]; }
        window.reach(end - 1);
        float2 total = make_float2(0.0f, 0.0f);
        multiply_columns<F, 4>(at, own, x, lane, total, 1.0f);
        places.begin(end, warp, lane);
        to[both && lane & 2 ? TILE_FLOATS : 0] = add_lanes<2>(total, lane);
        to += 2 * TILE_FLOATS;
        window.leave(end);
    }
}

// Tiles of codes of which every warp has eight subs, whose products overlap.
template <uint32_t F>
__device__ __forceinline__ void multiply_octets(Window<F>& window, Places<F>& places, uint32_t first, uint32_t batch, float* partial, uint32_t warp, uint32_t lane) {
    Columns<F, 4> x[2];
#pragma unroll
    for (uint32_t r = 0; r < 2; r++) x[r].load(warp + 4 * r * WARPS, lane);
    float* to = partial + sum_place<F>(warp, lane);
    uint32_t end = first * places.subs;
    for (uint32_t tile = 0; tile < batch; tile++) {
        end += places.subs;
        uint32_t at[2][4];
        Spot own[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
#pragma unroll
            for (int i = 0; i < 4; i++) at[r][i] = places.sub(4 * r + i);
            own[r] = places.of(4 * r + lane % 4);
        }
        window.reach(end - WARPS + warp);
        float2 total = make_float2(0.0f, 0.0f);
#pragma unroll
        for (int r = 0; r < 2; r++) multiply_columns<F, 4>(at[r], own[r], x[r], lane, total, 1.0f);
        places.begin(end, warp, lane);
        leave_total<F>(to, lane, total);
        to += TILE_FLOATS;
        window.leave(end);
    }
}

// Tiles of any number of subs.
template <uint32_t F>
__device__ __forceinline__ void multiply_any(Window<F>& window, Places<F>& places, uint32_t first, uint32_t batch, float* partial, uint32_t warp, uint32_t lane, float raise) {
    float* to = partial + sum_place<F>(warp, lane);
    for (uint32_t tile = first; tile < first + batch; tile++) {
        float2 total = make_float2(0.0f, 0.0f);
        uint32_t s = warp;
        if constexpr (by_codes(F)) s = multiply_rounds<F, 4>(window, places, tile, s, warp, lane, total, raise);
        s = multiply_rounds<F, 2>(window, places, tile, s, warp, lane, total, raise);
        multiply_rounds<F, 1>(window, places, tile, s, warp, lane, total, raise);
        leave_total<F>(to, lane, total);
        to += TILE_FLOATS;
        window.leave((tile + 1) * places.subs);
    }
}

// MIXED: perhaps with the weights of experts. `state`: the cursor (see Cursor::pack), and from bit 30 on the turn of scratch. Returns it moved on.
template <Sync S, uint32_t F, bool MIXED> __device__ __noinline__ uint32_t linear(uint32_t state, uint32_t sequence, uint64_t* stamps) {
    const uint32_t thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    const Instr& in = instruction(sequence);
    Range mine = my_tiles(in.tiles_each, in.tiles_odd, in.rotation);
    const uint32_t flags = in.flags, subs = in.subs;
    // Both in one function: another instance would not lie in the instructions' cache beside this.
    const bool chosen = MIXED && in.op == EXPERTS;
    if (chosen && flags & PAIRED) mine = {2 * mine.first, 2 * mine.count};
    if (mine.count == 0) {
        if (flags & DRAW) leave_candidate(-INFINITY, ~0u, sequence, thread);
        return state;
    }
    // What is in front of it costs those the most who come last, and find x there.
    typename Values<S>::Raw4 asked[4];
    ask<S, 4>(asked, in.x, in.inputs, warp, lane);
    Window<F> window(Cursor::unpack(state & CURSOR), mine.count * subs);
    Turn turn{state >> 30};
    // Weights of halves are long: four subs would hold more slots of the ring than their overlap is worth.
    constexpr int ROUND = by_codes(F) ? 4 : 2;
    Places<F> places{window.next.slot, subs, max(1u, (subs + WARPS - 1 - warp) / WARPS)};
    // Where the first weights lie, that they have come, and that scratch is free, is seen to before x has.
    places.template need<1>(0, 0, warp, lane);
    window.reach(min(warp + (ROUND - 1) * WARPS, mine.count * subs - 1));
    mbarrier_wait(freed(turn), turn.parity() ^ 1);
    float squares = prepare<S, F>(in, asked, warp, lane, sequence - in.x_back);
    stamp(stamps, 1);
    const float raise = F == BF16 ? in.raise : 1.0f;
    for (uint32_t first = 0; first < mine.count; first += BATCH) {
        if (first > 0) mbarrier_wait(freed(turn), turn.parity() ^ 1);
        float* partial = reinterpret_cast<float*>(smem + AT_SCRATCH) + turn.half() * HALF_FLOATS;
        const uint32_t batch = min(BATCH, mine.count - first);
        if (subs == ROUND * WARPS) {
            multiply_tiles<F, ROUND>(window, places, first, batch, partial, warp, lane, raise);
        } else if (ROUND == 4 && subs == 2 * WARPS) {
            if constexpr (by_codes(F)) multiply_pairs<F>(window, places, first, batch, partial, warp, lane);
        } else if (ROUND == 4 && subs == 8 * WARPS) {
            if constexpr (by_codes(F)) multiply_octets<F>(window, places, first, batch, partial, warp, lane);
        } else {
            multiply_any<F>(window, places, first, batch, partial, warp, lane, raise);
        }
        if ((flags & NORM) && lane == 0) partial[BATCH * TILE_FLOATS + warp] = squares;
        __syncwarp();
        leave_sums(turn);
        stamp(stamps, 3);
        turn.next();
    }
    // The others' subs of the last slot may still be on their way.
    window.reach(mine.count * subs - 1);
    window.drop(window.last);
    // Where a barrier of the grid is next, outputs have been written.
    Turn last{(turn.n + 3) & 3};
    if (S == Sync::Barrier) mbarrier_wait(freed(last), last.parity());
    return window.oldest.pack() | turn.n << 30;
}

}  // namespace brasa
