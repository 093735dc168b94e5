// Attention of single rows in the interpreter, over pages of the cache: norm and rotation of queries and keys, the cache's new entry,
// scores and weighted values on the tensor cores, and the merge of pages.
//
// A multiprocessor has every so many pages of one KV head (`my_pages`), whose keys and values come through the ring: queries are prepared, and warps merged,
// once for all of them. Within a page, positions are dealt to the warps sixteen at a time: S = K·qᵀ with positions as rows and the group's queries (at most eight) as columns,
// then oᵀ += Vᵀ·pᵀ. Warps are merged by their maxima. A row that sees one page is finished there; otherwise each multiprocessor
// leaves (o, maximum, mass) and COMBINE merges them. So the order of sums depends on positions, pages and the number of multiprocessors.
#pragma once
#include "linear.cuh"

namespace brasa {

// One head of a row, in pairs: pair i is lane + 32·j, its elements are first(i) and second(i).
template <Sync S, int E> struct Head {
    static constexpr int PAIRS = E / 64;
    float a[PAIRS], b[PAIRS];
    uint32_t first[PAIRS], second[PAIRS];

    __device__ __forceinline__ void load(const Instr& in, uint32_t at, uint32_t tag, uint64_t norm, bool turn, uint32_t lane) {
        typename Values<S>::Raw ra[PAIRS], rb[PAIRS];
        float wa[PAIRS], wb[PAIRS];
        const uint64_t x = in.x;
        const uint32_t rotary = in.rotary_dim, half = rotary / 2;
        const bool interleaved = in.flags & INTERLEAVED;
#pragma unroll
        for (int j = 0; j < PAIRS; j++) {
            const uint32_t i = lane + 32 * j;
            first[j] = i >= half ? rotary + 2 * (i - half) : interleaved ? 2 * i : i;
            second[j] = first[j] + (i < half && !interleaved ? half : 1);
            ra[j] = Values<S>::start(x, at + first[j]);
            rb[j] = Values<S>::start(x, at + second[j]);
            wa[j] = wb[j] = 1.0f;
        }
        float magnitude = 1.0f;
        float2 angles[PAIRS];
        if (norm) {
#pragma unroll
            for (int j = 0; j < PAIRS; j++) {
                wa[j] = __ldg(reinterpret_cast<const float*>(norm) + first[j]);
                wb[j] = __ldg(reinterpret_cast<const float*>(norm) + second[j]);
            }
        }
        if (turn) magnitude = in.scale;
#pragma unroll
        for (int j = 0; j < PAIRS; j++) {
            const uint32_t i = lane + 32 * j;
            const float2 r = peek<float2>(AT_ROPE + min(i, 127u) * 8);
            angles[j] = turn && i < half ? make_float2(r.x * magnitude, r.y * magnitude) : make_float2(1, 0);
        }
        float squares = 0.0f;
#pragma unroll
        for (int j = 0; j < PAIRS; j++) {
            a[j] = Values<S>::finish(ra[j], x, at + first[j], tag);
            b[j] = Values<S>::finish(rb[j], x, at + second[j], tag);
            squares = fmaf(a[j], a[j], fmaf(b[j], b[j], squares));
        }
        __syncwarp();
        if (norm) {
            const float scale = reciprocal_root(__fadd_rn(__fmul_rn(warp_sum(squares), 1.0f / float(E)), in.eps));
#pragma unroll
            for (int j = 0; j < PAIRS; j++) {
                a[j] *= scale * wa[j];
                b[j] *= scale * wb[j];
            }
        }
#pragma unroll
        for (int j = 0; j < PAIRS; j++) {
            const float p = a[j], q = b[j];
            a[j] = fmaf(p, angles[j].x, -__fmul_rn(q, angles[j].y));
            b[j] = fmaf(p, angles[j].y, __fmul_rn(q, angles[j].x));
        }
    }
};

// Sixteen positions from `index` on: scores, exponentials, weighted values. Masses stay apart in the lanes.
template <int E>
__device__ __forceinline__ void attend(float softcap, uint32_t group, uint32_t keys, uint32_t values, uint32_t index, const Sight& see, uint32_t lane,
                                       float& m0, float& m1, float& l0, float& l1, float (&o)[E / 16][4]) {
    constexpr uint32_t ROW = E * 2;
    const uint32_t g = lane >> 2;
    float s[4] = {0, 0, 0, 0};
    const uint32_t q = shared_address(smem) + AT_QUERIES;
    // Lane l gives the address of row l%16, piece l/16 of a 16×16 block. A slot begins at a multiple of 16 positions.
    const uint32_t r = lane % 16, side = lane / 16;
    constexpr int STEPS = E / 16;
    uint32_t a[STEPS][4];
    uint2 b[STEPS];
#pragma unroll
    for (int e = 0; e < STEPS; e++) {
        load_matrix4(a[e], keys + r * ROW + kv_piece(E, r, 2 * e + side) * 16);
        b[e] = make_uint2(0, 0);
        if (g < group) b[e] = load_shared8(q + e * 256 + lane * 8);
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
    const uint32_t position = lane % 8 + lane / 16 * 8, piece = lane / 8 % 2;
#pragma unroll
    for (int e = 0; e < STEPS; e++) load_matrix4_transposed(a[e], values + position * ROW + kv_piece(E, position, 2 * e + piece) * 16);
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
    n0 = fmaxf(n0, m0); n1 = fmaxf(n1, m1);
    const float f0 = raise_two(m0 - n0), f1 = raise_two(m1 - n1);
    m0 = n0; m1 = n1;
    s[0] = raise_two(s[0] - m0); s[2] = raise_two(s[2] - m0);
    s[1] = raise_two(s[1] - m1); s[3] = raise_two(s[3] - m1);
    l0 = fmaf(l0, f0, s[0] + s[2]); l1 = fmaf(l1, f1, s[1] + s[3]);
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
    Cursor cursor = Cursor::unpack(state & 0x7fffffff);
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
        for (uint32_t role = warp; role < group + (has_last ? 2 : 0); role += WARPS) if (role < group) {  // a query, as a column of the B fragments
            Head<S, E> h;
            h.load(in, x_row + (head * group + role) * E, tag, in.q_norm, true, lane);
            const float scale = in.attention_scale * (softcap > 0.0f ? 1.0f : LOG2E);
#pragma unroll
            for (int j = 0; j < Head<S, E>::PAIRS; j++) {
#pragma unroll
                for (int side = 0; side < 2; side++) {
                    const uint32_t e = side ? h.second[j] : h.first[j], k = e % 16;
                    *reinterpret_cast<__half*>(queries + e / 16 * 256 + (role * 4 + k % 8 / 2) * 8 + k / 8 * 4 + k % 2 * 2) =
                        __float2half_rn((side ? h.b[j] : h.a[j]) * scale);
                }
            }
        } else {  // the new key or value: to the cache, and to a place from which its slot gets it
            const bool is_key = role == group;
            const uint32_t p = index % PAGE_POSITIONS;
            uint8_t* to = page_of(launch, row, in.table, index / PAGE_POSITIONS) +
                          (is_key ? in.keys_offset : in.values_offset) + (uint64_t(head) * PAGE_POSITIONS + p) * ROW;
            Head<S, E> h;
            h.load(in, x_row + in.kv_offset + (is_key ? 0 : kv_heads * E) + head * E, tag, is_key ? in.k_norm : 0, is_key, lane);
            uint8_t* fresh = smem + AT_NEW + (is_key ? 0 : 512);
#pragma unroll
            for (int j = 0; j < Head<S, E>::PAIRS; j++) {
#pragma unroll
                for (int side = 0; side < 2; side++) {
                    const uint32_t e = side ? h.second[j] : h.first[j];
                    const uint32_t byte = kv_piece(E, p, e / 8) * 16 + e % 8 * 2;
                    const __half v = __float2half_rn(side ? h.b[j] : h.a[j]);
                    *reinterpret_cast<__half*>(fresh + byte) = v;
                    *reinterpret_cast<__half*>(to + byte) = v;
                }
            }
        }
        stamp(stamps, 1);
        consumers_sync();
        stamp(stamps, 2);
        // Sixteen positions at a time: group i of the page is warp i % WARPS's.
        float o[E / 16][4];
#pragma unroll
        for (int e = 0; e < E / 16; e++) o[e][0] = o[e][1] = o[e][2] = o[e][3] = 0.0f;
        float m0 = -INFINITY, m1 = -INFINITY, l0 = 0.0f, l1 = 0.0f;
        for (uint32_t place = share.first; place < see.pages; place += share.each) {
            const uint32_t page = see.first + place, begin = page * PAGE_POSITIONS, end = min(see.end - begin, PAGE_POSITIONS);
            const uint32_t low = see.begin > begin ? see.begin - begin : 0;
            const bool last = place + 1 == see.pages;
            const uint32_t rounded = (end + 15) / 16 * 16;
            for (uint32_t p = low / SPAN * SPAN; p < rounded; p += SPAN) {
                const uint32_t stop = min(p + SPAN, end), mine = p + (warp - p / 16) % WARPS * 16;
                // A slot has at most one group of a warp. One without any is let go before it has come; where there are several pages not, since
                // a warp that got a turn of the ring ahead of another would be counted in its place.
                const bool has = mine < stop && mine + 16 > low;
                if (has || pages > 1) cursor.wait();
                if (has) {
                    const uint32_t keys = base + cursor.slot * SLOT_BYTES + (mine - p) * ROW, values = keys + SLOT_BYTES / 2;
                    if (last && index % PAGE_POSITIONS / 16 == mine / 16) {
                        const uint32_t to = index % 16 * ROW;
                        for (uint32_t i = lane; i < E / 4; i += 32) {
                            const uint32_t which = i / (E / 8), piece = i % (E / 8) * 16;
                            const uint4 v = load_shared16(base + AT_NEW + which * 512 + piece);
                            const uint32_t at = (which ? values : keys) + to + piece;
                            store_shared16(at, v);
                        }
                        // The producer fences the slot before a copy is written over this. Behind the last position a page may hold anything; no share of
                        // it is not a number.
                        for (uint32_t i = lane; i < (15 - index % 16) * (ROW / 16); i += 32) {
                            store_shared16(values + to + ROW + i * 16, make_uint4(0, 0, 0, 0));
                        }
                        __syncwarp();
                    }
                    attend<E>(softcap, group, keys, values, begin + mine, see, lane, m0, m1, l0, l1, o);
                }
                cursor.release();
            }
        }
        stamp(stamps, 3);
        // Merge the warps; one that saw nothing has a maximum of −∞ and leaves no sums.
#pragma unroll
        for (int i = 4; i < 32; i *= 2) {
            l0 += __shfl_xor_sync(~0u, l0, i);
            l1 += __shfl_xor_sync(~0u, l1, i);
        }
        if (g == 0) {
            maxima[(2 * t) * WARPS + warp] = m0; maxima[(2 * t + 1) * WARPS + warp] = m1;
            masses[(2 * t) * WARPS + warp] = l0; masses[(2 * t + 1) * WARPS + warp] = l1;
        }
        const bool saw = m0 > -INFINITY;  // alike in the warp
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
            float top = m[0];
#pragma unroll
            for (int w = 1; w < WARPS; w++) top = fmaxf(top, m[w]);
#pragma unroll
            for (int w = 0; w < WARPS; w++) {
                const float f = raise_two(m[w] - top), v = outs[(w * group + q) * E + e];
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
                    Singles<S>::store(launch.partials, at + E, top, sequence);
                    Singles<S>::store(launch.partials, at + E + 1, mass, sequence);
                }
            }
        }
        consumers_sync();
    }
    return cursor.pack() | (state & 0x80000000);
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
    float* outs = reinterpret_cast<float*>(smem + AT_SCRATCH);
    for (uint32_t r = 0; r < launch.rows; r++) {
        const Sight see = sight(the_row(r).index + step, in.window);
        if (see.pages == 1) continue;
        const uint32_t shares = min(see.pages, quotient(gridDim.x, in.kv_heads));
        if (!any) consumers_sync();  // scratch may still be read
        any = true;
        for (uint32_t item = blockIdx.x; item < in.heads * parts; item += gridDim.x) {
            const uint32_t h = item / parts, e = item % parts * 32 + lane;
            float m = -INFINITY, l = 0.0f, o = 0.0f;
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
                    const float top = fmaxf(m, pm), f = raise_two(m - top), pf = raise_two(pm - top);
                    o = fmaf(o, f, __fmul_rn(po, pf));
                    l = fmaf(l, f, __fmul_rn(pl, pf));
                    m = top;
                }
            }
            outs[warp * 96 + lane] = o;
            outs[warp * 96 + 32 + lane] = m;
            outs[warp * 96 + 64 + lane] = l;
            consumers_sync();
            if (warp == 0) {
                const uint32_t warps = min(shares, WARPS);
                float top = -INFINITY, sum = 0.0f, mass = 0.0f;
                for (uint32_t w = 0; w < warps; w++) top = fmaxf(top, outs[w * 96 + 32 + lane]);
                for (uint32_t w = 0; w < warps; w++) {
                    const float f = raise_two(outs[w * 96 + 32 + lane] - top);
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
