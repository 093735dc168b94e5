// The interpreter: one block per multiprocessor walks the program, many steps per launch.
//
// ring.cuh says how weights and pages come, values.cuh how activations pass from block to block, linear.cuh, finish.cuh and attend.cuh what the
// operations do. Every operation is a function of its own, so that each gets the registers it needs and no more.
#pragma once
#include "attend.cuh"
#include "choose.cuh"
#include "finish.cuh"

namespace brasa {

// All blocks have come here; what they wrote before is visible behind it, to loads that pass by L1 (all of ours do).
__device__ __forceinline__ void grid_barrier(uint32_t& arrivals) {
    consumers_sync();
    if (threadIdx.x == 0) {
        uint32_t* barrier = the_launch().barrier;
        arrivals += gridDim.x;
        add_release(barrier, 1);
        Watchdog dog;
        while (int32_t(load_relaxed(barrier) - arrivals) < 0) dog.turn();
    }
    consumers_sync();
}

// The largest candidate, ties to the lowest id: NO_TOKEN where its logit is not finite.
__device__ __noinline__ uint32_t winner(uint32_t tag) {
    float best = -INFINITY;
    uint32_t id = ~0u;
    const uint64_t base = reinterpret_cast<uint64_t>(candidates_of(tag));
    for (uint32_t i = threadIdx.x; i <= gridDim.x; i += CONSUMERS) {
        using V = Singles<Sync::Tagged>;
        const V::Raw logit = V::start(base, 2 * i), number = V::start(base, 2 * i + 1);
        const float v = V::finish(logit, base, 2 * i, tag);
        const uint32_t n = __float_as_uint(V::finish(number, base, 2 * i + 1, tag));
        if (v > best || (v == best && n < id)) { best = v; id = n; }
    }
    const uint2 found = block_best(best, id);
    return fabsf(__uint_as_float(found.x)) < INFINITY ? found.y : NO_TOKEN;
}

// True for a token that no step follows.
__device__ __forceinline__ bool ends_chain(uint32_t token) {
    const Launch& launch = the_launch();
    bool ends = token == NO_TOKEN;
    for (uint32_t i = 0; i < launch.stop_count; i++) ends |= token == launch.stops[i];
    return ends;
}

__device__ __forceinline__ void show(uint32_t step, uint32_t token) {
    if (blockIdx.x == 0 && threadIdx.x == 0) store_host(the_launch().tokens + step, TOKEN_IS_THERE | token);
}

// Cosines and sines of the row's position, for all layers of a step.
__device__ __noinline__ void rotate(uint32_t step) {
    const Launch& launch = the_launch();
    const uint32_t position = the_row(0).position + step;
    float2* rope = reinterpret_cast<float2*>(smem + AT_ROPE);
    for (uint32_t i = threadIdx.x; i < launch.rotary / 2; i += CONSUMERS) {
        float sine, cosine;
        sincosf(float(position) * __ldg(launch.frequencies + i), &sine, &cosine);
        rope[i] = make_float2(cosine, sine);
    }
}

// False where the last token ended the chain, which all blocks see alike: the one that this launch drew, or one that was drawn between
// launches.
template <Sync S> __device__ __noinline__ bool embed(uint32_t step, uint32_t sequence) {
    const Instr& in = instruction(sequence);
    const Launch& launch = the_launch();
    uint32_t token = the_row(0).token;
    // What this multiprocessor wrote to the cache can be read by those that see it come here.
    if (S == Sync::Tagged && threadIdx.x == 0) add_release(launch.barrier, 1);
    if (step > 0) {
        rotate(step);
        token = winner(sequence - 1);
        show(step - 1, token);
        if (ends_chain(token)) return false;
    } else if (token == NO_TOKEN) {
        return false;
    }
    const uint32_t quads = (in.outputs + 3) / 4, each = (quads + gridDim.x - 1) / gridDim.x * 4, first = blockIdx.x * each;
    for (uint32_t i = threadIdx.x; i / 32 * 32 < each; i += CONSUMERS) {
        const uint32_t k = first + i;
        const bool there = i < each && k / 4 < quads;
        float v = 0.0f;
        if (there && k < in.outputs) v = weight_at(in.format, reinterpret_cast<const uint8_t*>(in.weights), in.subs, token, k) * in.scale;
        Values<S>::store(in.y, k, v, sequence, there);
    }
    return true;
}

// What follows an instruction.
enum class After { Next, Barrier, End };

// A linear layer in its format.
template <Sync S, bool MIXED> __device__ __forceinline__ uint32_t multiply(uint32_t format, uint32_t state, uint32_t sequence, uint64_t* stamps) {
    switch (format) {
        case F16: return linear<S, F16, MIXED>(state, sequence, stamps);
        case BF16: return linear<S, BF16, MIXED>(state, sequence, stamps);
        case Q8_0: return linear<S, Q8_0, MIXED>(state, sequence, stamps);
        case Q4_0: return linear<S, Q4_0, MIXED>(state, sequence, stamps);
        case Q4_K: return linear<S, Q4_K, MIXED>(state, sequence, stamps);
        case Q6_K: return linear<S, Q6_K, MIXED>(state, sequence, stamps);
        case Q5_K: return linear<S, Q5_K, MIXED>(state, sequence, stamps);
        case Q4_1: return linear<S, Q4_1, MIXED>(state, sequence, stamps);
        case MLX8: return linear<S, MLX8, MIXED>(state, sequence, stamps);
        case Q3_K: return linear<S, Q3_K, MIXED>(state, sequence, stamps);
        case Q2_K: return linear<S, Q2_K, MIXED>(state, sequence, stamps);
        case IQ4_XS: return linear<S, IQ4_XS, MIXED>(state, sequence, stamps);
        default: __trap();
    }
    return state;
}

// One instruction. `kind`: its operation and format; `state`: see linear.
template <Sync S, bool MIXED> __device__ __forceinline__ After execute(uint2 kind, uint32_t& state, uint32_t step, uint32_t sequence, uint64_t* stamps) {
    constexpr After EACH = S == Sync::Barrier ? After::Barrier : After::Next;
    const Instr& in = instruction(sequence);
    if (MIXED) {
        switch (kind.x) {
            case ROUTE: route<S>(sequence); return EACH;
            case CHOOSE: choose<S>(sequence); return After::Next;
            case EXPERTS: kind.x = LINEAR; break;
        }
    }
    switch (kind.x) {
        case LINEAR: state = multiply<S, MIXED>(kind.y, state, sequence, stamps); return EACH;
        case ATTENTION:
            if (in.head_dim == 64) state = attention<S, 64>(state, step, sequence, stamps);
            else if (in.head_dim == 128) state = attention<S, 128>(state, step, sequence, stamps);
            else __trap();
            return EACH;
        case COMBINE:
            if (nothing_to_combine(in, step)) return After::Next;
            return combine<S>(step, sequence) ? EACH : After::Next;
        default: return embed<S>(step, sequence) ? EACH : After::End;
    }
}

// What lives across an instruction is kept small, and in shared memory where that will do: a register that a call must save
// costs a trip to memory each time.
template <Sync S, bool MIXED> __device__ __forceinline__ void consume() {
    uint32_t arrivals = 0, state = 0, done = 0;
    fetch(0, the_launch().sequence + 1);
    if (threadIdx.x == 0) *reinterpret_cast<Row*>(smem + AT_ROW) = the_launch().states[0];
    consumers_sync();
    rotate(0);
    consumers_sync();
#pragma unroll 1
    for (uint32_t step = 0; step < the_launch().steps; step++) {
#pragma unroll 1
        for (uint32_t i = 0; i < the_launch().count; i++) {
            const Launch& launch = the_launch();
            copies_came();
            __syncwarp();
            const uint32_t sequence = launch.sequence + ++done;
            const uint2 kind = peek<uint2>(instr_at(sequence));
            fetch(i + 1 < launch.count ? i + 1 : 0, sequence + 1);
            uint64_t* stamps = nullptr;
#ifdef BRASA_STAMPS
            if (launch.stamps && step + 1 == launch.steps) stamps = launch.stamps + (uint64_t(blockIdx.x) * launch.count + i) * 8;
#endif
            stamp(stamps, 0);
            const After after = execute<S, MIXED>(kind, state, step, sequence, stamps);
            stamp(stamps, 6);
            if (after == After::End) {  // the finishers wait for sums that will not come
                if (threadIdx.x == 0) tell(AT_STOPPED, 1);
                consumers_sync();
                leave_sums(Turn{state >> 30});
                return;
            }
            if (after == After::Barrier) {
                if (the_launch().barriers) grid_barrier(arrivals);
                else consumers_sync();
            }
            stamp(stamps, 7);
            if (threadIdx.x == 0) tell(AT_PROGRESS, done);
        }
    }
    // The last token. Every block has left its candidate, so none reads the rows' states any more.
    const Launch& launch = the_launch();
    if (blockIdx.x == 0 && launch.draws) {
        const uint32_t token = winner(launch.sequence + done);
        show(launch.steps - 1, token);
        if (threadIdx.x == 0) {
            launch.states[0].token = token;
            launch.states[0].index += launch.steps;
            launch.states[0].position += launch.steps;
        }
    }
}

template <Sync S, bool MIXED> __device__ __forceinline__ void interpret(const Launch& launch) {
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < SLOTS; i++) {
            mbarrier_init(full(i), 1);
            mbarrier_init(empty(i), LEAVERS);
        }
        if (MIXED) mbarrier_init(choice(), CHOOSERS);
        for (Turn turn{0}; turn.n < 2; turn.n++) {
            mbarrier_init(freed(turn), FREERS);
            init_sums(turn);
        }
        for (uint32_t at : {AT_PROGRESS, AT_ENDED, AT_STOPPED}) *reinterpret_cast<uint32_t*>(smem + at) = 0;
        *reinterpret_cast<uint4*>(smem + AT_ZERO) = make_uint4(0, 0, 0, 0);
        *reinterpret_cast<Launch*>(smem + AT_LAUNCH) = launch;
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        fence_proxy_async();
    }
    __syncthreads();
    if (threadIdx.x >= CONSUMERS + 32) {
        asm volatile("griddepcontrol.wait;" ::: "memory");
        finish<S, MIXED>();
    } else if (threadIdx.x >= CONSUMERS) {
        if (threadIdx.x == CONSUMERS) Producer{launch}.run<MIXED>(S == Sync::Tagged);
    } else {
        asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
        asm volatile("griddepcontrol.wait;" ::: "memory");
        consume<S, MIXED>();
        consumers_sync();
        if (threadIdx.x == 0) tell(AT_ENDED, 1);
    }
}

}  // namespace brasa

#ifdef BRASA_BENCH
extern "C" __global__ void __launch_bounds__(brasa::THREADS, 1) interpret_barrier(const __grid_constant__ brasa::Launch launch) {
    brasa::interpret<brasa::Sync::Barrier, false>(launch);
}
#endif
extern "C" __global__ void __launch_bounds__(brasa::THREADS, 1) interpret_tagged(const __grid_constant__ brasa::Launch launch) {
    brasa::interpret<brasa::Sync::Tagged, false>(launch);
}
#ifndef BRASA_BENCH
// Programs with mixtures of experts. A kernel of its own: what mixtures add to the other's code costs dense models 1 to 2 %.
extern "C" __global__ void __launch_bounds__(brasa::THREADS, 1) interpret_mixed(const __grid_constant__ brasa::Launch launch) {
    brasa::interpret<brasa::Sync::Tagged, true>(launch);
}
#endif
