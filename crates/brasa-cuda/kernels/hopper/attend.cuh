// Attention of single rows in the interpreter, over pages of the cache: norm and rotation of queries and keys, the cache's new entry,
// scores and weighted values on the tensor cores, and the merge of pages.
//
// A multiprocessor has every so many pages of one KV head (`my_pages`), whose keys and values come through the ring: queries are prepared, and warps merged,
// once for all of them. Within a page, positions are dealt to the warps sixteen at a time: S = K·qᵀ with positions as rows and the group's queries (at most eight) as columns,
// then oᵀ += Vᵀ·pᵀ. Warps are merged by their maxima. A row that sees one page is finished there; otherwise each multiprocessor
// leaves (o, maximum, mass) and COMBINE merges them. So the order of sums depends on positions, pages and the number of multiprocessors.
#pragma once
#include "../plain/online.cuh"
#include "linear.cuh"

namespace brasa {

// One head of a row, four elements a lane; where a head has 64, lanes 16 apart have the same ones.
template <Sync S, int E> struct Head {
    static constexpr uint32_t LANES = E / 4;
    float v[4];

    static __device__ __forceinline__ uint32_t first(uint32_t lane) { return lane % LANES * 4; }

    __device__ __forceinline__ void load(const Instr& in, uint32_t at, uint32_t tag, uint64_t norm, bool turn, uint32_t lane) {
        const uint64_t x = in.x;
        const uint32_t e = first(lane), rotary = in.rotary_dim, half = rotary / 2;
        typename Values<S>::Raw4 raw[1] = {Values<S>::start4(x, at + e)};
        const bool interleaved = in.flags & INTERLEAVED, lower = e < half;
        float4 w = make_float4(1, 1, 1, 1), came[1];
        if (norm) w = __ldg(reinterpret_cast<const float4*>(norm) + lane % LANES);
        // Pairs are two neighbours, or an element and the one half behind it.
        const uint32_t pairs = AT_ROPE + (interleaved ? e / 2 : lower ? e : e - half) * 8;
        const float4 r = peek<float4>(pairs), more = peek<float4>(pairs + 16);
        const float magnitude = in.scale;
        Values<S>::template finish4s<1, Ask::All>(raw, came, x, at + e, 0, ~0u, tag);
        v[0] = came[0].x; v[1] = came[0].y; v[2] = came[0].z; v[3] = came[0].w;
        if (norm) {
            float squares = fmaf(v[0], v[0], fmaf(v[1], v[1], fmaf(v[2], v[2], __fmul_rn(v[3], v[3]))));
#pragma unroll
            for (uint32_t d = 1; d < LANES; d *= 2) squares += __shfl_xor_sync(~0u, squares, d);
            const float scale = reciprocal_root(fmaf(squares, 1.0f / float(E), in.eps));
            v[0] *= scale * w.x; v[1] *= scale * w.y; v[2] *= scale * w.z; v[3] *= scale * w.w;
        }
        if (!turn) return;
        const float cosines[4] = {r.x * magnitude, r.z * magnitude, more.x * magnitude, more.z * magnitude};
        const float sines[4] = {r.y * magnitude, r.w * magnitude, more.y * magnitude, more.w * magnitude};
        float turned[4];
        if (interleaved) {
#pragma unroll
            for (int c = 0; c < 4; c += 2) {
                turned[c] = fmaf(v[c], cosines[c / 2], -__fmul_rn(v[c + 1], sines[c / 2]));
                turned[c + 1] = fmaf(v[c], sines[c / 2], __fmul_rn(v[c + 1], cosines[c / 2]));
            }
        } else {
            const uint32_t other = lower ? lane + half / 4 : lane - half / 4;
#pragma unroll
            for (int c = 0; c < 4; c++) {
                const float p = __shfl_sync(~0u, v[c], other);
                turned[c] = lower ? fmaf(v[c], cosines[c], -__fmul_rn(p, sines[c])) : fmaf(p, sines[c], __fmul_rn(v[c], cosines[c]));
            }
        }
        if (e < rotary) {
#pragma unroll
            for (int c = 0; c < 4; c++) v[c] = turned[c];
        }
    }
};

// Sixteen positions from `index` on: scores, exponentials, weighted values. Masses stay apart in the lanes. Row `fresh` of them is the new position, which is read
// from where it was left; the values behind it are zeros, since a page may hold anything there, and no share of it is not a number.
template <int E>
__device__ __forceinline__ void attend(float softcap, uint32_t keys, uint32_t values, uint32_t fresh, uint32_t index, const Sight& see, uint32_t lane,
                                       OnlineSoftmax<PowersOfTwo> (&softmax)[2], float (&o)[E / 16][4]) {
    constexpr uint32_t ROW = E * 2;
    const uint32_t g = lane >> 2;
    float s[4] = {0, 0, 0, 0};
    const uint32_t base = shared_address(smem), q = base + AT_QUERIES + lane * 8;
    // Lane l gives the address of row l%16, piece l/16 of a 16×16 block. A slot begins at a multiple of 16 positions.
    const uint32_t r = lane % 16, side = lane / 16, row = r == fresh ? base + AT_NEW : keys + r * ROW;
    constexpr int STEPS = E / 16;
    uint32_t a[STEPS][4];
    uint2 b[STEPS];
    // Columns without a query hold anything, and nobody looks at what comes of them.
#pragma unroll
    for (int e = 0; e < STEPS; e++) {
        load_matrix4(a[e], row + kv_piece(E, r, 2 * e + side) * 16);
        b[e] = load_shared8(q + e * 256);
    }
    float s2[4] = {0, 0, 0, 0};
#pragma unroll
    for (int e = 0; e < STEPS; e += 2) {
        mma(s, a[e], b[e].x, b[e].y);
        mma(s2, a[e + 1], b[e + 1].x, b[e + 1].y);
    }
#pragma unroll
    for (int c = 0; c < 4; c++) s[c] += s2[c];
    // A = Vᵀ: rows are elements, columns positions. Matrix i of ldmatrix.trans: elements 8·(i%2).., positions 8·(i/2)..
    const uint32_t position = lane % 8 + lane / 16 * 8, piece = lane / 8 % 2, mask = position > fresh ? 0 : ~0u;
    const uint32_t from = position > fresh ? base + AT_ZERO : position == fresh ? base + AT_NEW + 512 : values + position * ROW;
#pragma unroll
    for (int e = 0; e < STEPS; e++) load_matrix4_transposed(a[e], from + (kv_piece(E, position, 2 * e + piece) * 16 & mask));
    if (__builtin_expect(softcap > 0.0f, false)) {
#pragma unroll
        for (int c = 0; c < 4; c++) s[c] = softcap * tanhf(s[c] / softcap) * LOG2E;
    }
#pragma unroll
    for (int c = 0; c < 4; c++) {
        const uint32_t j = index + g + c / 2 * 8;
        if (j < see.begin || j >= see.end) s[c] = -INFINITY;
    }
    float n0 = fmaxf(s[0], s[2]), n1 = fmaxf(s[1], s[3]);
#pragma unroll
    for (int i = 4; i < 32; i *= 2) {
        n0 = fmaxf(n0, __shfl_xor_sync(~0u, n0, i));
        n1 = fmaxf(n1, __shfl_xor_sync(~0u, n1, i));
    }
    const float f0 = softmax[0].raise_seen(fmaxf(n0, softmax[0].largest)), f1 = softmax[1].raise_seen(fmaxf(n1, softmax[1].largest));
    s[0] = softmax[0].weigh(s[0]); s[2] = softmax[0].weigh(s[2]);
    s[1] = softmax[1].weigh(s[1]); s[3] = softmax[1].weigh(s[3]);
    softmax[0].add(f0, s[0] + s[2]); softmax[1].add(f1, s[1] + s[3]);
    const uint32_t p0 = transpose_matrix(pack_halves(s[0], s[1])), p1 = transpose_matrix(pack_halves(s[2], s[3]));
#pragma unroll
    for (int e = 0; e < STEPS; e++) {
        o[e][0] *= f0; o[e][1] *= f1; o[e][2] *= f0; o[e][3] *= f1;
        mma(o[e], a[e], p0, p1);
    }
}

template <Sync S, int E> __device__ __noinline__ uint32_t attention(uint32_t state, uint32_t step, uint32_t sequence, uint64_t* stamps) {
    constexpr uint32_t SPAN = slot_positions(E), ROW = E * 2;
    const uint32_t thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    const Instr& in = instruction(sequence);
    const Launch& launch = the_launch();
    const uint32_t tag = sequence - in.x_back, kv_heads = in.kv_heads, group = quotient(in.heads, kv_heads);
    const uint32_t g = lane >> 2, t = lane & 3, base = shared_address(smem);
    const float softcap = in.softcap;
    uint8_t* queries = smem + AT_QUERIES;
    float* maxima = reinterpret_cast<float*>(smem + AT_MAXIMA);
    float* masses = reinterpret_cast<float*>(smem + AT_MASSES);
    float* outs = reinterpret_cast<float*>(smem + AT_X);  // [warps][group][E], where linear layers have x
    static_assert(WARPS * 8 * 128 * 4 <= AT_SCRATCH - AT_X, "eight queries a key head");
    Cursor cursor = Cursor::unpack(state & CURSOR);
    const Share share = my_pages(kv_heads);
    const uint32_t head = share.head;
    for (uint32_t r = 0; r < launch.rows; r++) {
        const Row row = the_row(r);
        const uint32_t index = row.index + step;
        const Sight see = sight(index, in.window);
        if (share.first >= see.pages) continue;
        const uint32_t x_row = r * (in.heads + 2 * kv_heads) * E;
        const uint32_t pages = quotient(see.pages - 1 - share.first, share.each) + 1;  // of this multiprocessor
        const bool has_last = share.first + (pages - 1) * share.each == see.pages - 1;
        const uint32_t e = Head<S, E>::first(lane);
        for (uint32_t role = warp; role < group + (has_last ? 2 : 0); role += WARPS) if (role < group) {  // a query, as a column of the B fragments
            Head<S, E> h;
            h.load(in, x_row + (head * group + role) * E, tag, in.q_norm, true, lane);
            const float scale = in.attention_scale * (softcap > 0.0f ? 1.0f : LOG2E);
            uint8_t* to = queries + e / 16 * 256 + (role * 4 + e % 8 / 2) * 8 + e % 16 / 8 * 4;
            if (lane < Head<S, E>::LANES) {
                *reinterpret_cast<uint32_t*>(to) = pack_halves(h.v[0] * scale, h.v[1] * scale);
                *reinterpret_cast<uint32_t*>(to + 8) = pack_halves(h.v[2] * scale, h.v[3] * scale);
            }
        } else {  // the new key or value: to the cache, and to a place where it is read now
            const bool is_key = role == group;
            const uint32_t p = index % PAGE_POSITIONS, byte = kv_piece(E, p, e / 8) * 16 + e % 8 * 2;
            uint8_t* to = page_of(launch, row, in.table, index / PAGE_POSITIONS) +
                          (is_key ? in.keys_offset : in.values_offset) + (uint64_t(head) * PAGE_POSITIONS + p) * ROW;
            Head<S, E> h;
            h.load(in, x_row + in.kv_offset + (is_key ? 0 : kv_heads * E) + head * E, tag, is_key ? in.k_norm : 0, is_key, lane);
            if (lane < Head<S, E>::LANES) {
                const uint2 both = make_uint2(pack_halves(h.v[0], h.v[1]), pack_halves(h.v[2], h.v[3]));
                *reinterpret_cast<uint2*>(smem + AT_NEW + (is_key ? 0 : 512) + byte) = both;
                *reinterpret_cast<uint2*>(to + byte) = both;
            }
        }
        stamp(stamps, 1);
        consumers_sync();
        stamp(stamps, 2);
        // Sixteen positions at a time: group i of the page is warp i % WARPS's.
        float o[E / 16][4];
#pragma unroll
        for (int e = 0; e < E / 16; e++) o[e][0] = o[e][1] = o[e][2] = o[e][3] = 0.0f;
        OnlineSoftmax<PowersOfTwo> softmax[2];  // of columns 2t and 2t + 1
        for (uint32_t place = share.first; place < see.pages; place += share.each) {
            const uint32_t page = see.first + place, begin = page * PAGE_POSITIONS, end = min(see.end - begin, PAGE_POSITIONS);
            const uint32_t low = see.begin > begin ? see.begin - begin : 0;
            const bool last = place + 1 == see.pages;
            // A warp lets slots go that it has no group of before they have come; where there are several pages not, since a warp that got a turn of the ring
            // ahead of another would be counted in its place.
            uint32_t p = low / SPAN * SPAN, mine = warp * 16;
            while (mine + 16 <= low) mine += WARPS * 16;
            for (; mine < end; mine += WARPS * 16) {
                const uint32_t others = (mine - p) / SPAN;
                cursor.release(others, pages > 1);
                p += others * SPAN;
                cursor.wait();
                const uint32_t keys = base + cursor.slot * SLOT_BYTES + (mine - p) * ROW;
                const uint32_t fresh = last && index % PAGE_POSITIONS / 16 == mine / 16 ? index % 16 : 16;
                attend<E>(softcap, keys, keys + SLOT_BYTES / 2, fresh, begin + mine, see, lane, softmax, o);
            }
            cursor.release((end - p + SPAN - 1) / SPAN, pages > 1);
        }
        stamp(stamps, 3);
        // Merge the warps; one that saw nothing has a maximum of −∞ and leaves no sums.
#pragma unroll
        for (int i = 4; i < 32; i *= 2) {
            softmax[0].total += __shfl_xor_sync(~0u, softmax[0].total, i);
            softmax[1].total += __shfl_xor_sync(~0u, softmax[1].total, i);
        }
        if (g == 0) {
            maxima[(2 * t) * WARPS + warp] = softmax[0].largest; maxima[(2 * t + 1) * WARPS + warp] = softmax[1].largest;
            masses[(2 * t) * WARPS + warp] = softmax[0].total; masses[(2 * t + 1) * WARPS + warp] = softmax[1].total;
        }
        const bool saw = softmax[0].largest > -INFINITY;  // alike in the warp
        if (saw) {
#pragma unroll
            for (int mt = 0; mt < E / 16; mt++) {
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    const uint32_t q = 2 * t + c % 2, e = mt * 16 + g + c / 2 * 8;
                    if (q < group) outs[(warp * group + q) * E + e] = o[mt][c];
                }
            }
        }
        consumers_sync();
        for (uint32_t i = thread; i / 32 * 32 < group * E; i += CONSUMERS) {
            const bool there = i < group * E;
            const uint32_t q = there ? i / E : 0, e = i % E;
            float m[WARPS], sum = 0.0f, mass = 0.0f;
#pragma unroll
            for (int w = 0; w < WARPS; w++) m[w] = maxima[q * WARPS + w];
            MergedParts<PowersOfTwo> merged;
            merged.largest = m[0];
#pragma unroll
            for (int w = 1; w < WARPS; w++) merged.see(m[w]);
#pragma unroll
            for (int w = 0; w < WARPS; w++) {
                const float f = merged.share(m[w]), v = outs[(w * group + q) * E + e];
                mass = fmaf(f, masses[q * WARPS + w], mass);
                sum = f > 0.0f ? fmaf(f, v, sum) : sum;
            }
            const uint32_t h = head * group + q;
            if (see.pages == 1) {
                Values<S>::store(in.y, (r * in.heads + h) * E + e, sum * reciprocal(mass), sequence + 1, there);
            } else if (there) {
                const uint32_t at = ((r * in.heads + h) * launch.max_pages + share.first) * (E + 2);
                Singles<S>::store(launch.partials, at + e, sum, sequence);
                if (e == 0) {
                    Singles<S>::store(launch.partials, at + E, merged.largest, sequence);
                    Singles<S>::store(launch.partials, at + E + 1, mass, sequence);
                }
            }
        }
        consumers_sync();
    }
    return cursor.pack() | (state & ~CURSOR);
}

// A single row on its first page has nothing to merge.
__device__ __forceinline__ bool nothing_to_combine(const Instr& in, uint32_t step) {
    return the_launch().rows == 1 && in.window == 0 && the_row(0).index + step < PAGE_POSITIONS;
}

// What multiprocessors left of a row's pages, merged: 32 elements of a head by one block, a warp takes every eighth. False where there was nothing to do.
template <Sync S> __device__ __noinline__ bool combine(uint32_t step, uint32_t sequence) {
    const uint32_t thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    const Instr& in = instruction(sequence);
    const Launch& launch = the_launch();
    bool any = false;
    const uint32_t E = in.head_dim, parts = E / 32;
    float* outs = reinterpret_cast<float*>(smem + AT_X);
    for (uint32_t r = 0; r < launch.rows; r++) {
        const Sight see = sight(the_row(r).index + step, in.window);
        if (see.pages == 1) continue;
        const uint32_t shares = min(see.pages, quotient(gridDim.x, in.kv_heads));
        if (!any) consumers_sync();  // x may still be read
        any = true;
        for (uint32_t item = blockIdx.x; item < in.heads * parts; item += gridDim.x) {
            const uint32_t h = item / parts, e = item % parts * 32 + lane;
            OnlineSoftmax<PowersOfTwo> softmax;
            float o = 0.0f;
            for (uint32_t p = warp; p < shares; p += 2 * WARPS) {
                const uint64_t from = launch.partials;
                typename Singles<S>::Raw raw[2][3] = {};
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    const uint32_t at = ((r * in.heads + h) * launch.max_pages + p + c * WARPS) * (E + 2);
                    if (p + c * WARPS >= shares) continue;
                    raw[c][0] = Singles<S>::start(from, at + E);
                    raw[c][1] = Singles<S>::start(from, at + E + 1);
                    raw[c][2] = Singles<S>::start(from, at + e);
                }
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    const uint32_t at = ((r * in.heads + h) * launch.max_pages + p + c * WARPS) * (E + 2);
                    if (p + c * WARPS >= shares) continue;
                    const float pm = Singles<S>::finish(raw[c][0], from, at + E, sequence - 1);
                    const float pl = Singles<S>::finish(raw[c][1], from, at + E + 1, sequence - 1);
                    const float po = Singles<S>::finish(raw[c][2], from, at + e, sequence - 1);
                    const float f = softmax.raise_seen(fmaxf(softmax.largest, pm)), pf = softmax.weigh(pm);
                    o = fmaf(o, f, __fmul_rn(po, pf));
                    softmax.total = fmaf(softmax.total, f, __fmul_rn(pl, pf));
                }
            }
            outs[warp * 96 + lane] = o;
            outs[warp * 96 + 32 + lane] = softmax.largest;
            outs[warp * 96 + 64 + lane] = softmax.total;
            consumers_sync();
            if (warp == 0) {
                const uint32_t warps = min(shares, WARPS);
                float sum = 0.0f, mass = 0.0f;
                MergedParts<PowersOfTwo> merged;
                for (uint32_t w = 0; w < warps; w++) merged.see(outs[w * 96 + 32 + lane]);
                for (uint32_t w = 0; w < warps; w++) {
                    const float f = merged.share(outs[w * 96 + 32 + lane]);
                    sum = fmaf(f, outs[w * 96 + lane], sum);
                    mass = fmaf(f, outs[w * 96 + 64 + lane], mass);
                }
                Values<S>::store(in.y, (r * in.heads + h) * E + e, sum / mass, sequence, true);
            }
            consumers_sync();
        }
    }
    return any;
}

}  // namespace brasa
