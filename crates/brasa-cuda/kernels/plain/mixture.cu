// Mixtures of experts whose weights are in tiles (../hopper/layout.cuh). A slot is an expert that a row has chosen.
//
// Few rows read each slot's weights by themselves, sums in f32 in an order that depends on K and the format alone:
//
// expert_gates_<format>: y[slot, F] = act(x · Wg[e]ᵀ) · (x · Wu[e]ᵀ).
// Grid: x: a block of 256 threads for 16 outputs, four warps for the gates and four for what they gate; y: slots.
//
// expert_down_<format>: y[r, D] = residual + Σ_slots share · x[slot] · Wd[e]ᵀ.
// Grid: x: a block of 512 threads for 16 outputs, whose warps share the pieces of all slots of a row; y: rows.
//
// expert_gates_biased_<format>, expert_down_biased_<format>: these for experts with biases, or with clamped units.
//
// Many rows are sorted by expert, on the device, and multiplied by ../hopper/experts.cuh:
//
// expert_plan: positions of slots and blocks of rows, in order of experts. Grid: a block of 256 threads an expert; at most 1024
// experts. Each block counts all slots, so that none waits for another.
//
// expert_panels: rows of x as halves (panels.cu), each at the positions of all its slots; and by which powers of two gated products with them
// are rounded, of whose panels it fills what no product does. Grid: a block a row.
//
// expert_sum: y[r, D] = residual + Σ_slots share · x[slot, D]. Grid: x: a thread an output; y: rows.
#include "formats.cuh"
#include "panels.cuh"
#include "subs.cuh"
#include "unary.cuh"

static const u32 MOST_EXPERTS = 1024;

// The share of slot `slot`, which has chosen `expert`.
DEVICE float share_of(const ExpertShares& p, u32 slot, u32 expert) {
    const float share = p.weights[slot] * p.factor;
    return p.scales == nullptr ? share : share * p.scales[expert];
}

// A number as one of `count` experts: no mistake of a router leads beyond their weights.
DEVICE u32 expert_of(u32 number, u32 count) { return min(number, count - 1); }
DEVICE u32 expert_of(const ExpertShares& p, u32 slot) { return expert_of(p.experts[slot], p.experts_count); }

DEVICE u32 warp_total(u32 x) {
    for (int distance = 16; distance > 0; distance /= 2) {
        x += __shfl_xor_sync(0xffffffffu, x, distance);
    }
    return x;
}

// A tile of an expert, from whose subs lanes load.
template <u32 FORMAT>
DEVICE void load_sub(Sub<FORMAT>& weights, const u8* tile, u32 sub) {
    const brasa::Geometry G = brasa::geometry(FORMAT);
    const u8* unit = tile + (u64)(sub / G.unit_subs) * brasa::unit_bytes(FORMAT);
    weights.load(unit, unit + G.header_bytes + sub % G.unit_subs * G.sub_bytes, lane());
}

// Adds the products of sub number `sub` with a row of `inputs`, read from input 2t on.
template <u32 FORMAT>
DEVICE void multiply_row(const Sub<FORMAT>& weights, const float* row, u32 inputs, u32 sub, float (&sums)[2][1]) {
    const float* const x[1] = {row + lane() % 4 * 2};
    const u32 begin = sub * 64 + lane() % 4 * 2;
    if ((u64)x[0] % 8 == 0 && sub * 64 + 64 <= inputs) {
        multiply_sub<FORMAT, 1, true>(weights, x, sub, 0, sums);
    } else {
        multiply_sub<FORMAT, 1, false>(weights, x, sub, begin < inputs ? inputs - begin : 0, sums);
    }
}

// Adds the sums of the four lanes of each output, and puts them in the warp's place of `to`.
DEVICE void gather_lanes(const float (&sums)[2], float* to) {
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
        float sum = sums[half];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (lane() % 4 == 0) {
            to[half * 8 + lane() / 4] = sum;
        }
    }
}

static const u32 GATE_WARPS = 4, DOWN_WARPS = 16;

template <u32 FORMAT, bool BIASED>
DEVICE void expert_gates(const ExpertGatesParams& p) {
    __shared__ float partial[2 * GATE_WARPS][16];
    const u32 upper = warp() / GATE_WARPS;
    const u64 tile_bytes = brasa::tile_bytes(FORMAT, p.subs);
    for (u32 slot = blockIdx.y; slot < p.slots; slot += gridDim.y) {
        const u32 expert = expert_of(p.experts[slot], p.experts_count);
        const u8* tile = p.weights[upper] + ((u64)expert * p.tiles + blockIdx.x) * tile_bytes;
        const float* x = row_of(p.x, slot / p.chosen);
        float sums[2][1] = {};
        u32 sub = warp() % GATE_WARPS;
        Sub<FORMAT> now, next;
        if (sub < p.subs) {
            load_sub<FORMAT>(now, tile, sub);
        }
        for (; sub < p.subs; sub += GATE_WARPS) {
            load_sub<FORMAT>(next, tile, sub + GATE_WARPS < p.subs ? sub + GATE_WARPS : sub);
            multiply_row<FORMAT>(now, x, p.inputs, sub, sums);
            now = next;
        }
        const float both[2] = {sums[0][0], sums[1][0]};
        __syncthreads();
        gather_lanes(both, partial[warp()]);
        __syncthreads();
        const u32 n = threadIdx.x;
        if (n < 16) {
            float gate = 0.0f, up = 0.0f;
            for (u32 w = 0; w < GATE_WARPS; ++w) {
                gate += partial[w][n];
                up += partial[GATE_WARPS + w][n];
            }
            gate *= p.factors[0];
            up *= p.factors[1];
            if (BIASED) {
                const u64 output = ((u64)expert * p.tiles + blockIdx.x) * 16 + n;
                gate += p.biases[0] == nullptr ? 0.0f : p.biases[0][output];
                up += p.biases[1] == nullptr ? 0.0f : p.biases[1][output];
            }
            const float value = BIASED && p.function == UNIT_CLAMPED ? clamped_unit(gate, up, p.alpha, p.limit)
                                                                     : unary_value(p.function, gate, 0.0f, 0.0f) * up;
            p.y[((u64)slot * p.tiles + blockIdx.x) * 16 + n] = value;
        }
    }
}

template <u32 FORMAT, bool BIASED>
DEVICE void expert_down(const ExpertDownParams& p) {
    __shared__ float partial[DOWN_WARPS][16];
    const ExpertShares& shares = p.shares;
    const u64 tile_bytes = brasa::tile_bytes(FORMAT, p.subs);
    const u32 pieces = shares.chosen * p.subs;
    for (u32 row = blockIdx.y; row < p.rows; row += gridDim.y) {
        float sums[2] = {};
        auto load = [&](Sub<FORMAT>& weights, u32 piece) {
            const u32 expert = expert_of(shares, row * shares.chosen + piece / p.subs);
            load_sub<FORMAT>(weights, p.weights + ((u64)expert * p.tiles + blockIdx.x) * tile_bytes, piece % p.subs);
        };
        u32 piece = warp();
        Sub<FORMAT> now, next;
        if (piece < pieces) {
            load(now, piece);
        }
        for (; piece < pieces; piece += DOWN_WARPS) {
            load(next, piece + DOWN_WARPS < pieces ? piece + DOWN_WARPS : piece);
            const u32 slot = row * shares.chosen + piece / p.subs;
            float of_piece[2][1] = {};
            multiply_row<FORMAT>(now, p.x + (u64)slot * p.inputs, p.inputs, piece % p.subs, of_piece);
            const float share = share_of(shares, slot, expert_of(shares, slot));
            sums[0] = fmaf(share, of_piece[0][0], sums[0]);
            sums[1] = fmaf(share, of_piece[1][0], sums[1]);
            now = next;
        }
        __syncthreads();
        gather_lanes(sums, partial[warp()]);
        __syncthreads();
        if (threadIdx.x < 16) {
            const u32 n = blockIdx.x * 16 + threadIdx.x;
            float sum = 0.0f;
            for (u32 w = 0; w < DOWN_WARPS; ++w) {
                sum += partial[w][threadIdx.x];
            }
            sum *= p.factor;
            for (u32 i = 0; BIASED && p.bias != nullptr && i < shares.chosen; ++i) {
                const u32 slot = row * shares.chosen + i, expert = expert_of(shares, slot);
                sum = fmaf(share_of(shares, slot, expert), p.bias[(u64)expert * p.tiles * 16 + n], sum);
            }
            p.y[(u64)row * p.tiles * 16 + n] = p.residual.data == nullptr ? sum : row_of(p.residual, row)[n] + sum;
        }
    }
}

#define BRASA_MIXTURE(name, Format)                                                              \
    KERNEL(expert_gates_##name, ExpertGatesParams) { expert_gates<Format::FORMAT, false>(p); }    \
    KERNEL(expert_down_##name, ExpertDownParams) { expert_down<Format::FORMAT, false>(p); }       \
    KERNEL(expert_gates_biased_##name, ExpertGatesParams) { expert_gates<Format::FORMAT, true>(p); } \
    KERNEL(expert_down_biased_##name, ExpertDownParams) { expert_down<Format::FORMAT, true>(p); }
TILE_FORMATS(BRASA_MIXTURE)

KERNEL(expert_plan, ExpertPlanParams) {
    __shared__ u32 counts[MOST_EXPERTS], taken;
    const u32 me = blockIdx.x;
    for (u32 i = threadIdx.x; i < p.experts_count; i += blockDim.x) {
        counts[i] = 0;
    }
    if (threadIdx.x == 0) {
        taken = 0;
    }
    __syncthreads();
    for (u32 slot = threadIdx.x; slot < p.slots; slot += blockDim.x) {
        atomicAdd(&counts[expert_of(p.experts[slot], p.experts_count)], 1u);
    }
    __syncthreads();
    u32 at = 0, block = 0;
    for (u32 i = lane(); i < me; i += 32) {
        at += (counts[i] + p.aligned - 1) / p.aligned * p.aligned;
        block += (counts[i] + p.block_rows - 1) / p.block_rows;
    }
    const u32 first = warp_total(at), rows = counts[me], blocks = (rows + p.block_rows - 1) / p.block_rows;
    block = warp_total(block);
    // Which of an expert's rows comes first changes no bit of their products.
    for (u32 slot = threadIdx.x; slot < p.slots; slot += blockDim.x) {
        if (expert_of(p.experts[slot], p.experts_count) == me) {
            const u32 place = first + atomicAdd(&taken, 1u);
            p.plan.places[slot] = place;
            p.plan.slots[place] = slot;
        }
    }
    for (u32 i = threadIdx.x; i < blocks; i += blockDim.x) {
        u32* to = p.plan.blocks + (u64)(block + i) * 3;
        to[0] = me;
        to[1] = first + i * p.block_rows;
        to[2] = first + min(rows, (i + 1) * p.block_rows);
    }
    if (me + 1 == p.experts_count && threadIdx.x == 0) {
        *p.plan.count = block + blocks;
    }
}

KERNEL(expert_panels, ExpertPanelsParams) {
    __shared__ float scratch[32];
    const u32 row = blockIdx.x;
    const float* x = row_of(p.x, row);
    const bool aligned = (u64)x % 16 == 0 && p.inputs % 8 == 0;
    auto load = [&](u32 k, float (&v)[8]) {
        if (aligned && k < p.inputs) {
            load8(x + k, v);
        } else {
#pragma unroll
            for (u32 i = 0; i < 8; ++i) {
                v[i] = k + i < p.inputs ? x[k + i] : 0.0f;
            }
        }
    };
    float largest = 0.0f, squares = 0.0f, v[8];
    for (u32 k = threadIdx.x * 8; k < p.inputs; k += blockDim.x * 8) {
        load(k, v);
#pragma unroll
        for (u32 i = 0; i < 8; ++i) {
            largest = fmaxf(largest, fabsf(v[i]));
            squares = fmaf(v[i], v[i], squares);
        }
    }
    const RowScale scale(block_max(largest, scratch));
    // |act(g)| <= |g|, and no product is larger than the norm of the row times that of a weight's row.
    const RowScale gated(block_sum(squares, scratch) * sqrtf(*p.largest[0] * *p.largest[1]));
    const u32* places = p.places + (u64)row * p.chosen;
    for (u32 i = threadIdx.x; i < p.chosen; i += blockDim.x) {
        p.row_scale[places[i]] = scale.up;
        p.gated_scale[places[i]] = gated.up;
    }
    for (u32 k = threadIdx.x * 8; k < p.subs * 64; k += blockDim.x * 8) {
        load(k, v);
#pragma unroll
        for (u32 i = 0; i < 8; ++i) {
            v[i] *= scale.down;
        }
        for (u32 i = 0; i < p.chosen; ++i) {
            store_halves(panel_piece(p.panels, p.subs, places[i], k), v);
        }
    }
    for (u32 i = 0; i < p.chosen; ++i) {
        fill_panels(p.gated, p.gated_subs, places[i], p.gated_width);
    }
}

KERNEL(expert_sum, ExpertSumParams) {
    const u32 n = (u32)thread_number();
    if (n >= p.width) {
        return;
    }
    const ExpertShares& shares = p.shares;
    for (u32 row = blockIdx.y; row < p.rows; row += gridDim.y) {
        float sum = 0.0f;
        for (u32 i = 0; i < shares.chosen; ++i) {
            const u32 slot = row * shares.chosen + i;
            sum = fmaf(share_of(shares, slot, expert_of(shares, slot)), p.x[(u64)slot * p.width + n], sum);
        }
        p.y[(u64)row * p.width + n] = p.residual.data == nullptr ? sum : row_of(p.residual, row)[n] + sum;
    }
}
