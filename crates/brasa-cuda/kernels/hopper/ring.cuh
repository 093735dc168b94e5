// The ring: weights and KV pages on their way to the multiprocessor that multiplies them.
//
// One warp (the producer) walks the program ahead of the others and copies, in the order of use, everything that this
// multiprocessor will read: its tiles of every linear layer, its pages of every attention. It waits for free slots, never for
// the grid: when a barrier opens, the next operation's weights are already in shared memory. Eight warps (consumers) take
// the slots in the same order. A slot is full when its bytes have come, empty when all eight have let it go. Three more warps write what they leave
// (finish.cuh).
//
// The ring is deep, to last over a barrier, but only a few slots are asked for at a time (`Launch::in_flight`): more bytes in
// flight than latency × bandwidth only lengthen the queue in which the activations' loads wait, too. While half of the ring waits to be taken, it
// is activations that are waited for: then one slot less is asked for of weights that YIELD.
#pragma once
#include "common.cuh"
#include "layout.cuh"
#include "smem.cuh"
#include "smem_layout.cuh"

namespace brasa {

__device__ __forceinline__ uint64_t* full(uint32_t slot) { return reinterpret_cast<uint64_t*>(smem + AT_FULL) + slot; }
__device__ __forceinline__ uint64_t* empty(uint32_t slot) { return reinterpret_cast<uint64_t*>(smem + AT_EMPTY) + slot; }
__device__ __forceinline__ uint64_t* choice() { return reinterpret_cast<uint64_t*>(smem + AT_CHOICE); }
__device__ __forceinline__ const Launch& the_launch() { return *reinterpret_cast<const Launch*>(smem + AT_LAUNCH); }

// Barriers of a block: of the consumers, of the finishers, and of both halves of scratch, whose partial sums are there.
constexpr uint32_t CONSUMING = 1, FINISHING = 2, SUMS = 3;
constexpr uint32_t SUMMERS = CONSUMERS + 32 * FINISHERS;

// How often scratch was filled, as far as it says which half is next, and the parity of that half's turn.
struct Turn {
    uint32_t n;
    __device__ __forceinline__ uint32_t half() const { return n & 1; }
    __device__ __forceinline__ uint32_t parity() const { return n >> 1 & 1; }
    __device__ __forceinline__ void next() { n = (n + 1) & 3; }
};
__device__ __forceinline__ uint64_t* freed(Turn turn) { return reinterpret_cast<uint64_t*>(smem + AT_FREED) + turn.half(); }

// The warp's copy of the instruction with this sequence number.
__device__ __forceinline__ uint32_t instr_at(uint32_t sequence) { return AT_INSTR + sequence % 2 * INSTR_BYTES + threadIdx.x / 32 * 256; }
__device__ __forceinline__ const Instr& instruction(uint32_t sequence) { return *reinterpret_cast<const Instr*>(smem + instr_at(sequence)); }

// A row as the launch begins. The first lies in shared memory: every attention needs it at once.
__device__ __forceinline__ Row the_row(uint32_t r) {
    if (r > 0) return the_launch().states[r];
    const uint4 v = peek<uint4>(AT_ROW);
    return {v.x, v.y, v.z, v.w};
}

// A warp lets a slot go, or leaves its sums, behind __syncwarp. Consumers tell the producer how far they are by words at which it looks.
//
// racecheck knows what a thread does by itself, and not what a lane does for its warp; and a word that is written while another thread reads it is a hazard to it
// unless both accesses are atomic, which costs one row 1 to 3 %; nor does it follow what `bar.arrive` tells others. For it, BRASA_EACH_LANE compiles waits and arrivals of
// each lane, atomic accesses, and mbarriers.
#ifdef BRASA_EACH_LANE
constexpr uint32_t LEAVERS = CONSUMERS, CHOOSERS = CONSUMERS, FREERS = FINISHERS * 32;
__device__ __forceinline__ void arrive(uint64_t* bar) { mbarrier_arrive(bar); }
__device__ __forceinline__ uint64_t* left(Turn turn) { return reinterpret_cast<uint64_t*>(smem + AT_LEFT) + turn.half(); }
__device__ __forceinline__ void init_sums(Turn turn) { mbarrier_init(left(turn), CONSUMERS); }
__device__ __forceinline__ void await_sums(Turn turn) { mbarrier_wait(left(turn), turn.parity()); }
__device__ __forceinline__ void leave_sums(Turn turn) { mbarrier_arrive(left(turn)); }
__device__ __forceinline__ void tell(uint32_t at, uint32_t v) { atomicExch(reinterpret_cast<uint32_t*>(smem + at), v); }
__device__ __forceinline__ uint32_t look(uint32_t at) { return atomicOr(reinterpret_cast<uint32_t*>(smem + at), 0); }
#else
constexpr uint32_t LEAVERS = WARPS, CHOOSERS = 1, FREERS = FINISHERS;
__device__ __forceinline__ void init_sums(Turn) {}
__device__ __forceinline__ void await_sums(Turn turn) { named_barrier(SUMS + turn.half(), SUMMERS); }
__device__ __forceinline__ void leave_sums(Turn turn) { named_arrive(SUMS + turn.half(), SUMMERS); }
__device__ __forceinline__ void arrive(uint64_t* bar) {
    if (threadIdx.x % 32 == 0) mbarrier_arrive(bar);
}
__device__ __forceinline__ void tell(uint32_t at, uint32_t v) { *reinterpret_cast<volatile uint32_t*>(smem + at) = v; }
__device__ __forceinline__ uint32_t look(uint32_t at) { return *reinterpret_cast<volatile uint32_t*>(smem + at); }
#endif

// Behind __syncwarp: a slot is let go; partial sums have been read.
__device__ __forceinline__ void let_go(uint32_t slot) { arrive(empty(slot)); }
__device__ __forceinline__ void free_sums(Turn turn) { arrive(freed(turn)); }

// Bits of a consumer's state that hold its cursor.
constexpr uint32_t CURSOR = 0x3fffffff;

// The place of one side in the ring: a slot and the parity of its turn.
struct Cursor {
    uint32_t slot, parity;
    __device__ __forceinline__ void next() {
        if (++slot == SLOTS) { slot = 0; parity ^= 1; }
    }
    __device__ __forceinline__ void skip(uint32_t slots) {  // at most a turn
        slot += slots;
        if (slot >= SLOTS) { slot -= SLOTS; parity ^= 1; }
    }
    __device__ __forceinline__ uint32_t pack() const { return slot | parity << 16; }
    static __device__ __forceinline__ Cursor unpack(uint32_t v) { return {v & 0xffff, v >> 16}; }
    // Consumers: waits for the slot's bytes; lets the slot go.
    __device__ __forceinline__ void wait() const { mbarrier_wait(full(slot), parity); }
    __device__ __forceinline__ bool came(bool asks) const { return mbarrier_test(full(slot), parity, asks); }
    // The next n slots, at most a turn of the ring; `when_come`: not before their bytes have come.
    __device__ __forceinline__ void release(uint32_t n, bool when_come) {
        __syncwarp();
#ifdef BRASA_EACH_LANE
        for (uint32_t i = 0; i < n; i++) {
            if (when_come) wait();
            let_go(slot);
            next();
        }
#else
        const uint32_t lane = threadIdx.x % 32;
        if (lane < n) {
            Cursor mine = *this;
            mine.skip(lane);
            if (when_come) mine.wait();
            mbarrier_arrive(empty(mine.slot));
        }
        skip(n);
#endif
    }
};

// The tiles of a linear layer that this multiprocessor makes. The lower half of `rotation` turns the first one to the first that gets an odd tile; the upper half says
// how many, at the end of the turned row, make none.
struct Range { uint32_t first, count; };
__device__ __forceinline__ Range my_tiles(uint32_t each, uint32_t odd, uint32_t rotation) {
    uint32_t r = blockIdx.x + (rotation & 0xffff);
    if (r >= gridDim.x) r -= gridDim.x;
    return {r * each + min(r, odd), r + (rotation >> 16) < gridDim.x ? each + (r < odd) : 0};
}

// Positions of a slot of keys and values: keys in its lower half, values in its upper.
__host__ __device__ constexpr uint32_t slot_positions(uint32_t head_dim) { return SLOT_BYTES / 4 / head_dim / 16 * 16; }

// What a row sees: indices begin .. end, in pages first .. first + pages.
struct Sight { uint32_t begin, end, first, pages; };
__device__ __forceinline__ Sight sight(uint32_t index, uint32_t window) {
    Sight s;
    s.end = index + 1;
    s.begin = window && s.end > window ? s.end - window : 0;
    s.first = s.begin / PAGE_POSITIONS;
    s.pages = index / PAGE_POSITIONS - s.first + 1;
    return s;
}

// The pages that a multiprocessor attends to: of one KV head, every `each`-th of those that a row sees, from `first` on; beyond all for one that has none.
struct Share { uint32_t head, first, each; };
__device__ __forceinline__ Share my_pages(uint32_t kv_heads) {
    Share s;
    s.each = quotient(gridDim.x, kv_heads);
    s.first = quotient(blockIdx.x, kv_heads);
    s.head = blockIdx.x - s.first * kv_heads;
    if (s.first >= s.each) s.first = ~0u;
    return s;
}

// Where page `page` of a row lies, among those of group `group`.
__device__ __forceinline__ uint8_t* page_of(const Launch& launch, const Row& row, uint32_t group, uint32_t page) {
    return reinterpret_cast<uint8_t*>(__ldg(launch.tables + row.table + group * launch.max_pages + page));
}


// ---- the producer: one thread ----

struct Producer {
    const Launch& launch;
    Cursor at{0, 1};          // all slots are empty at first
    Cursor came{0, 0};        // the oldest slot that was asked for and not seen to come
    uint32_t outstanding = 0;
    uint64_t policy;
    Row first_row;            // as the launch begins
    uint32_t choices = 0;     // those that were waited for
    bool knows = false;       // the experts of the mixture that is streamed
    uint32_t seen = 0;        // the step whose cache can be read

    // Behind every wait: false where the consumers have left, who wait for nothing any more.
    __device__ __forceinline__ bool ended() const { return look(AT_ENDED) != 0; }
    __device__ __forceinline__ bool await(uint32_t least) {
        Watchdog dog;
        while (look(AT_PROGRESS) < least) {
            if (ended()) return false;
            dog.turn();
        }
        __threadfence_block();
        return true;
    }
    // What steps before `step` wrote to the cache can be read: all multiprocessors have come to its first instruction (or to `least` instructions).
    __device__ __forceinline__ bool await_entries(uint32_t step, uint32_t least, bool by_arrivals) {
        if (seen >= step) return true;
        seen = step;
        if (by_arrivals) {
            const uint32_t all = (step + 1) * gridDim.x;
            Watchdog dog;
            while (int32_t(load_acquire(launch.barrier) - all) < 0) {
                if (ended()) return false;
                dog.turn();
            }
        } else if (!await(least)) {
            return false;
        }
        fence_proxy_async();
        return true;
    }
    __device__ __forceinline__ void settle() {
        came.wait();
        came.next();
        outstanding--;
    }
    // A free slot, with room in flight for it. `yields`: fewer are in flight where the ring is not hungry.
    __device__ __forceinline__ bool acquire(uint32_t bytes, bool yields) {
        uint32_t most = launch.in_flight;
        if (yields) {
            Cursor last = at;
            last.skip(HUNGRY_SLOTS - 1);
            if (!mbarrier_test(empty(last.slot), last.parity)) most = max(1u, most - 1);
        }
        while (outstanding >= most) settle();
        Watchdog dog;
        while (!mbarrier_try(empty(at.slot), at.parity)) {
            if (ended()) return false;
            dog.turn();
        }
        mbarrier_expect(full(at.slot), bytes);
        outstanding++;
        return true;
    }
    __device__ __forceinline__ bool tiles(uint32_t each, uint32_t odd, uint32_t rotation, uint32_t tile, uint32_t piece, uint64_t weights, bool yields) {
        const Range mine = my_tiles(each, odd, rotation);
        const uint8_t* from = reinterpret_cast<const uint8_t*>(weights) + uint64_t(mine.first) * tile;
        uint64_t left = uint64_t(mine.count) * tile;
        while (left > 0) {
            const uint32_t bytes = left < piece ? uint32_t(left) : piece;
            if (!acquire(bytes, yields)) return false;
            bulk_load_once(smem + at.slot * SLOT_BYTES, from, bytes, full(at.slot), policy);
            from += bytes;
            left -= bytes;
            at.next();
        }
        return true;
    }
    // Tiles of chosen experts. A segment is what lies in one piece: a tile of a gate or of an up, or an expert's share of a tile.
    __device__ __forceinline__ bool chosen_tiles(const Instr& in) {
        const uint32_t flags = __ldg(&in.flags), piece = __ldg(&in.piece_bytes), tile = __ldg(&in.tile_bytes), width = __ldg(&in.heads);
        const uint32_t each = __ldg(&in.expert_tiles), chosen = __ldg(&in.chosen);
        const uint8_t* gates = reinterpret_cast<const uint8_t*>(__ldg(&in.weights));
        const uint8_t* ups = reinterpret_cast<const uint8_t*>(__ldg(&in.q_norm));
        const Range mine = my_tiles(__ldg(&in.tiles_each), __ldg(&in.tiles_odd), __ldg(&in.rotation));
        const bool paired = flags & PAIRED, yields = flags & YIELDS;
        // The first of a mixture's two layers that has tiles here waits for the choice.
        if (paired) knows = false;
        if (mine.count == 0) return true;
        if (!knows) {
            Watchdog dog;
            while (!mbarrier_test(choice(), choices & 1)) {
                if (ended()) return false;
                dog.turn();
            }
            choices++;
            knows = true;
        }
        const uint32_t segment_bytes = paired ? tile : width;
        uint64_t left = uint64_t(mine.count) * tile * (paired ? 2 : 1);
        const uint8_t* from = nullptr;
        uint32_t segment = 0, rest = 0;
        while (left > 0) {
            const uint32_t bytes = left < piece ? uint32_t(left) : piece;
            if (!acquire(bytes, yields)) return false;
            for (uint32_t filled = 0; filled < bytes;) {
                if (rest == 0) {
                    const uint32_t v = paired ? mine.first + segment / 2 : segment % chosen, slot = paired ? v / each : v;
                    const uint32_t t = paired ? v - slot * each : mine.first + segment / chosen;
                    from = (paired && segment % 2 ? ups : gates) + (uint64_t(peek<uint32_t>(AT_CHOSEN + 4 * slot)) * each + t) * segment_bytes;
                    rest = segment_bytes;
                    segment++;
                }
                const uint32_t now = min(rest, bytes - filled);
                bulk_load_once(smem + at.slot * SLOT_BYTES + filled, from, now, full(at.slot), policy);
                from += now;
                rest -= now;
                filled += now;
            }
            left -= bytes;
            at.next();
        }
        return true;
    }
    __device__ __forceinline__ bool pages(const Instr& in, uint32_t step, uint32_t count, bool by_arrivals) {
        // kv_heads and head_dim; window and table: most multiprocessors need no more.
        const uint4 shape = __ldg(reinterpret_cast<const uint4*>(&in.residual_back)), more = __ldg(reinterpret_cast<const uint4*>(&in.rotary_dim));
        const uint32_t kv_heads = shape.z, E = shape.w, window = more.y, table = more.z, span = slot_positions(E), row_bytes = E * 2;
        const Share share = my_pages(kv_heads);
        for (uint32_t r = 0; r < launch.rows; r++) {
            const Row row = r == 0 ? first_row : launch.states[r];
            const Sight see = sight(row.index + step, window);
            // Multiprocessors without a page go on to weights.
            if (share.first < see.pages && !await_entries(step, step * count, by_arrivals)) return false;
            for (uint32_t place = share.first; place < see.pages; place += share.each) {
                const uint32_t page = see.first + place;
                const uint32_t begin = page * PAGE_POSITIONS, end = min(see.end - begin, PAGE_POSITIONS);
                const uint32_t low = see.begin > begin ? see.begin - begin : 0;
                const uint8_t* at_page = page_of(launch, row, table, page);
                const uint64_t head_bytes = uint64_t(PAGE_POSITIONS) * row_bytes;
                const uint8_t* keys = at_page + in.keys_offset + share.head * head_bytes;
                const uint8_t* values = at_page + in.values_offset + share.head * head_bytes;
                const uint32_t rounded = (end + 15) / 16 * 16;
                for (uint32_t p = low / span * span; p < rounded; p += span) {
                    const uint32_t bytes = min(span, rounded - p) * row_bytes;
                    if (!acquire(2 * bytes, false)) return false;
                    uint8_t* to = smem + at.slot * SLOT_BYTES;
                    bulk_load(to, keys + p * row_bytes, bytes, full(at.slot));
                    bulk_load(to + SLOT_BYTES / 2, values + p * row_bytes, bytes, full(at.slot));
                    at.next();
                }
            }
        }
        return true;
    }
    // MIXED: some layers are mixtures of experts. `by_arrivals`: EMBED counts arrivals and waits for none.
    template <bool MIXED> __device__ void run(bool by_arrivals) {
        policy = evict_first_policy();
        first_row = launch.states[0];
        const uint32_t count = launch.count;
        const uint4* from = reinterpret_cast<const uint4*>(launch.program + launch.first);
        constexpr uint32_t STRIDE = sizeof(Instr) / 16;
        // The next instruction is loaded while this one is streamed.
        uint4 a = __ldg(from), b = __ldg(from + 1), c = __ldg(from + 2);
        bool on = true;
        for (uint32_t step = 0; step < launch.steps && on; step++) {
            for (uint32_t i = 0; i < count && on; i++) {
                const uint4 n = a, m = b, w = c;
                const uint4* next = from + (i + 1 < count ? i + 1 : 0) * STRIDE;
                a = __ldg(next); b = __ldg(next + 1); c = __ldg(next + 2);
                if (!launch.prefetch) on = await(step * count + i);
                if (n.x == LINEAR) on = on && tiles(m.x, m.y, n.w, m.z, m.w, uint64_t(w.x) | uint64_t(w.y) << 32, n.z & YIELDS);
                else if (MIXED && n.x == EXPERTS) on = on && chosen_tiles(launch.program[launch.first + i]);
                else if (n.x == ATTENTION) on = on && pages(launch.program[launch.first + i], step, count, by_arrivals);
            }
        }
        // Copies that nobody takes must have landed before the block gives its shared memory back.
        while (outstanding > 0) settle();
    }
};

}  // namespace brasa
