// One warp of the interpreter multiplies a row by codes (../kernels/hopper/codes.cuh): its lanes run as fibres, over weights that lie in the slots of a ring.
//
// For each format its sums are compared with `weight_at`, and the reads of shared memory are counted: the lanes' addresses of a read, in the order of the program, say in
// how many wavefronts it is served. Prints the counts, and what differs, and fails.

#include "fibres.h"
#include "operands.h"

struct int2 {
    int x, y;
};
struct alignas(16) int4 {
    int x, y, z, w;
};
struct float4 {
    float x, y, z, w;
};
inline int __shfl_xor_sync(unsigned, int x, int distance) { return (int)brasa_emulation::exchange((uint32_t)x, distance); }

namespace brasa {

static uint8_t smem[232448];

// What each lane gives the tensor cores. A warp is alone between its exchanges, which are barriers of its lanes.
struct Fragments {
    uint32_t a[4], b[2];
};
static Fragments of_lanes[32];
inline void warp_barrier() { brasa_emulation::exchange(0, 0); }

// The sum of four products of unsigned and signed bytes.
inline int dot4(uint32_t a, uint32_t b) {
    int sum = 0;
    for (int i = 0; i < 4; ++i) {
        sum += (int)(a >> 8 * i & 255) * (int8_t)(b >> 8 * i & 255);
    }
    return sum;
}

// c += a · b, m16n8k32, or m16n8k16 where registers 2 and 3 of A are zero.
inline void mma(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    const unsigned lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    of_lanes[lane] = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
    warp_barrier();
    for (unsigned i = 0; i < 4; ++i) {
        for (unsigned k = 0; k < 4; ++k) {
            const Fragments &row = of_lanes[g * 4 + k], &column = of_lanes[(2 * t + i % 2) * 4 + k];
            c[i] += dot4(row.a[i / 2], column.b[0]) + dot4(row.a[2 + i / 2], column.b[1]);
        }
    }
    warp_barrier();
}
inline void mma16(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t b) { mma(c, {a0, a1, 0, 0}, b, 0); }

}  // namespace brasa

#include "../kernels/hopper/codes.cuh"
#include "random_tile.h"

#include <stdio.h>

#include <algorithm>
#include <set>

using namespace brasa;

namespace {

const uint32_t SUBS = 64, K = SUBS * SUB_INPUTS;

const char* const NAMES[] = {"F16", "Q8_0", "Q4_0", "Q4_K", "Q6_K", "BF16", "Q5_K", "Q4_1", "MLX8", "Q3_K", "Q2_K", "IQ4_XS"};

// Bytes of a sub's records of scales, which are the last of it.
uint32_t records_bytes(uint32_t format) { return format == Q4_1 || format == MLX8 ? 128 : format == IQ4_XS ? 32 : 64; }
bool in_records(uint32_t format, uint32_t in_unit) {
    const Geometry G = geometry(format);
    return in_unit < G.header_bytes || (in_unit - G.header_bytes) % G.sub_bytes >= G.sub_bytes - records_bytes(format);
}

// Where a sub lies that follows `sub` others, in the ring.
template <uint32_t F> Spot spot(uint32_t sub) {
    const Geometry G = geometry(F);
    const uint32_t slot_subs = SLOT_BYTES / unit_bytes(F) * G.unit_subs, in_slot = sub % slot_subs;
    const uint32_t unit = AT_RING + sub / slot_subs * SLOT_BYTES + in_slot / G.unit_subs * unit_bytes(F);
    return {unit + G.header_bytes + in_slot % G.unit_subs * G.sub_bytes, unit};
}

// A tile of 64 subs, in one piece and in the ring, and x: whole numbers.
std::vector<uint8_t> tile;
float xs[K];
// Powers of two of subs.
float scale_of(uint32_t sub) { return (float)(1 << sub % 3); }

template <uint32_t F> void fill() {
    tile = random_tile(F, SUBS);
    memset(smem, 0xff, sizeof(smem));
    for (uint32_t unit = 0; unit < SUBS / geometry(F).unit_subs; unit++) {
        memcpy(smem + spot<F>(unit * geometry(F).unit_subs).unit, tile.data() + unit * unit_bytes(F), unit_bytes(F));
    }
    for (float& x : xs) x = random_whole();
}

// What the warp is to multiply, and what each lane found.
struct Task {
    uint32_t warp, round;
};
struct Found {
    float four, two, one, pair, single;
};
Found found[32];
struct Read {
    uint32_t at, bytes;
};
std::vector<Read> reads[32];
void note_read(uint32_t at, uint32_t bytes) { reads[threadIdx.x % 32].push_back({at, bytes}); }

// x of the warp's subs 32·round + warp, + 8, + 16, + 24, as `prepare` of linear.cuh leaves it.
template <uint32_t F> void leave_x(uint32_t first, uint32_t lane) {
    const uint32_t lanes = 16 / column_blocks(F);
    for (uint32_t c = 0; c < 2; c++) {
        const uint32_t sub = first + (lane / 16 + 2 * c) * WARPS;
        const float* x = xs + sub * 64 + lane % 16 * 4;
        int sum = leave_whole({x[0], x[1], x[2], x[3]}, 1.0f, sub, lane, true);
        for (uint32_t d = 1; d < lanes; d *= 2) sum += __shfl_xor_sync(~0u, sum, (int)d);
        if (lane % lanes == 0) memcpy(smem + AT_SUMS + sub * 16 + lane % 16 / lanes * 4, &sum, 4);
        const float scale = scale_of(sub);
        if (lane % 16 == 0) memcpy(smem + AT_SCALES + sub * 4, &scale, 4);
    }
    warp_barrier();
}

template <uint32_t F, int N> float round_of(uint32_t first, uint32_t lane) {
    uint32_t at[N];
    for (uint32_t i = 0; i < N; i++) at[i] = spot<F>(first + i * WARPS).sub;
    const Spot own = spot<F>(first + min(lane % 4, N - 1u) * WARPS);
    CodeColumns<F, N> x;
    x.load(first, lane);
    float2 total = {0.0f, 0.0f};
    multiply_columns<F, N>(at, own, x, lane, total, 1.0f);
    return add_lanes<4>(total, lane);
}

// Two tiles of two subs a warp: `first`, + 8, and the same of the next tile, or the first tile twice.
template <uint32_t F> float pair_of(uint32_t first, bool both, uint32_t lane) {
    uint32_t at[4];
    for (uint32_t i = 0; i < 4; i++) at[i] = spot<F>(first + (both ? i : i % 2) * WARPS).sub;
    CodeColumns<F, 4> x;
    x.template load<2>(first, lane);
    float2 total = {0.0f, 0.0f};
    multiply_columns<F, 4>(at, spot<F>(first + (both ? lane % 4 : lane % 2) * WARPS), x, lane, total, 1.0f);
    return add_lanes<2>(total, lane);
}

template <uint32_t F> void multiply_warp(const void* parameters) {
    const Task task = *static_cast<const Task*>(parameters);
    const uint32_t lane = threadIdx.x % 32, first = task.round * 4 * WARPS + task.warp;
    leave_x<F>(first, lane);
    on_read = note_read;
    const float four = round_of<F, 4>(first, lane);
    on_read = nullptr;
    found[lane] = {four, round_of<F, 2>(first, lane), round_of<F, 1>(first, lane), pair_of<F>(first, true, lane), pair_of<F>(first, false, lane)};
}

// Sum over `count` subs, a multiple of WARPS apart, of weights from `weights` on with x from `x` on; adds the sum of magnitudes to `size`.
double exact(uint32_t format, uint32_t n, uint32_t weights, uint32_t x, uint32_t count, double& size) {
    double sum = 0;
    for (uint32_t i = 0; i < count * 64; i++) {
        const uint32_t w = weights + i / 64 * WARPS, from = x + i / 64 * WARPS;
        const double product = (double)weight_at(format, tile.data(), SUBS, n, w * 64 + i % 64) * xs[from * 64 + i % 64] * scale_of(from);
        sum += product;
        size += fabs(product);
    }
    return sum;
}

// How many wavefronts serve read `index` of the lanes: a quarter, half or all of a warp at a time, and of each bank one word of four bytes.
uint32_t wavefronts(uint32_t index) {
    const uint32_t words = reads[0][index].bytes / 4, lanes = 32 / words;
    size_t sum = 0;
    for (uint32_t begin = 0; begin < 32; begin += lanes) {
        std::set<uint32_t> banks[32];
        for (uint32_t i = 0; i < lanes * words; i++) {
            const uint32_t at = reads[begin + i / words][index].at, word = at / 4 + i % words;
            if (at != NOWHERE) banks[word % 32].insert(word);
        }
        size_t most = 0;
        for (const std::set<uint32_t>& bank : banks) most = std::max(most, bank.size());
        sum += most;
    }
    return (uint32_t)sum;
}

// Wavefronts of reads of a kind, and how many there would be if no two words lay in one bank: one for each part of the warp of which a lane asks.
struct Count {
    uint32_t found = 0, least = 0;
    void add(uint32_t index) {
        found += wavefronts(index);
        const uint32_t lanes = 128 / reads[0][index].bytes;
        for (uint32_t begin = 0; begin < 32; begin += lanes) {
            bool asks = false;
            for (uint32_t lane = begin; lane < begin + lanes; lane++) asks |= reads[lane][index].at != NOWHERE;
            least += asks;
        }
    }
};

template <uint32_t F> bool format_differs() {
    fill<F>();
    double worst = 0;
    bool alike = true;
    Count codes, scales, x;
    const uint32_t rounds = SUBS / (4 * WARPS);
    for (uint32_t i = 0; i < rounds * WARPS; i++) {
        const Task task = {i % WARPS, i / WARPS};
        const uint32_t first = task.round * 4 * WARPS + task.warp;
        for (std::vector<Read>& of_lane : reads) of_lane.clear();
        if (!brasa_emulation::launch(multiply_warp<F>, &task, {1, 1, 1}, 32, 0)) return true;
        for (uint32_t lane = 0; lane < 32; lane++) {
            const uint32_t n = output_of(lane) + lane % 2 * 8, second = lane / 2 % 2;
            const struct {
                float found;
                uint32_t weights, count;
            } sums[] = {{found[lane].four, first, 4},
                        {found[lane].two, first, 2},
                        {found[lane].one, first, 1},
                        {found[lane].pair, first + second * 2 * WARPS, 2},
                        {found[lane].single, first, 2}};
            for (const auto& sum : sums) {
                double size = 0;
                const double expected = exact(F, n, sum.weights, first, sum.count, size);
                worst = fmax(worst, fabs(sum.found - expected) / size);
            }
            // Lanes that write the same output write the same bits.
            const Found& other = found[lane ^ same_output(2)];
            alike &= output_of(lane) == output_of(lane ^ same_output(2)) && output_of(lane) == output_of(lane ^ same_output(1));
            alike &= other.four == found[lane].four && other.two == found[lane].two && other.one == found[lane].one && other.single == found[lane].single;
        }
        for (uint32_t index = 0; index < reads[0].size(); index++) {
            const uint32_t at = reads[0][index].at;
            if (at >= AT_X) x.add(index);
            else if (in_records(F, at % SLOT_BYTES % unit_bytes(F))) scales.add(index);
            else codes.add(index);
        }
    }
    const double all = rounds * WARPS;
    printf("%-6s  codes %5.2f (%5.2f)  scales %5.2f (%5.2f)  x %5.2f (%5.2f)\n", NAMES[F], codes.found / all, codes.least / all, scales.found / all, scales.least / all, x.found / all,
           x.least / all);
    bool failed = false;
    if (!(worst < 1e-7)) failed = true, printf("%s: products differ by %g of their size\n", NAMES[F], worst);
    if (!alike) failed = true, printf("%s: lanes of one output differ\n", NAMES[F]);
    if (codes.found > codes.least || scales.found > 2 * scales.least) failed = true, printf("%s: more conflicts than there should be\n", NAMES[F]);
    return failed;
}

template <uint32_t F> bool any_differs() {
    bool failed = false;
    if constexpr (by_codes(F)) failed |= format_differs<F>();
    if constexpr (F + 1 < FORMATS) failed |= any_differs<F + 1>();
    return failed;
}

}  // namespace

int main() {
    shared_memory = smem;
    printf("wavefronts of a round of four subs (and the least):\n");
    return any_differs<0>();
}
