// Activations between operations: how they are written and how a reader knows that they have come.
//
// Sync::Barrier: plain f32; a barrier of the grid lies between writer and reader.
// Sync::Tagged: eight bytes a value, the f32 and the sequence number of its writer, in one store; a reader loads until the
// number is the expected one. A value then costs one trip through L2 where a barrier costs three.
//
// No tagged value is overwritten before its readers are done: an instruction's inputs depend on all outputs of the one
// before, whose writers had read what is overwritten now.
#pragma once
#include "common.cuh"

namespace brasa {

enum class Sync { Barrier, Tagged };

template <Sync S> struct Values;

template <> struct Values<Sync::Barrier> {
    using Raw4 = float4;
    using Raw = float;
    static __device__ __forceinline__ Raw4 start4(uint64_t base, uint32_t i) {
        return __ldcg(reinterpret_cast<const float4*>(base) + i / 4);
    }
    // Four numbers each from i, i + stride, …; those from `end` on are zero.
    template <int N> static __device__ __forceinline__ void finish4s(Raw4 (&raw)[N], float4 (&x)[N], uint64_t, uint32_t, uint32_t, uint32_t, uint32_t) {
#pragma unroll
        for (int c = 0; c < N; c++) x[c] = raw[c];
    }
    static __device__ __forceinline__ Raw start(uint64_t base, uint32_t i) { return __ldcg(reinterpret_cast<const float*>(base) + i); }
    static __device__ __forceinline__ float finish(Raw raw, uint64_t, uint32_t, uint32_t) { return raw; }
    static __device__ __forceinline__ void store(uint64_t base, uint32_t i, float v, uint32_t) {
        __stcg(reinterpret_cast<float*>(base) + i, v);
    }
};

#ifndef BRASA_BACK_OFF_NS
#define BRASA_BACK_OFF_NS 0
#endif
// Between two tries: after the first few, the others' stores get some peace.
__device__ __forceinline__ void back_off(Watchdog& dog) {
    if (BRASA_BACK_OFF_NS > 0 && dog.turns >= 2) __nanosleep(BRASA_BACK_OFF_NS);
    dog.turn();
}

template <> struct Values<Sync::Tagged> {
    // The first try is started early; what has not come by then is asked for again.
    struct Raw4 { ulonglong2 a, b; };
    using Raw = uint64_t;
    static __device__ __forceinline__ Raw4 start4(uint64_t base, uint32_t i) {
        const uint64_t* p = reinterpret_cast<const uint64_t*>(base) + i;
        return {load_tagged2(p), load_tagged2(p + 2)};
    }
    template <int N>
    static __device__ __forceinline__ void finish4s(Raw4 (&raw)[N], float4 (&x)[N], uint64_t base, uint32_t i, uint32_t stride, uint32_t end, uint32_t tag) {
        Watchdog dog;
        for (;;) {
            bool all = true;
#pragma unroll
            for (int c = 0; c < N; c++) {
                const bool came = ((uint32_t(raw[c].a.x >> 32) ^ tag) | (uint32_t(raw[c].a.y >> 32) ^ tag) | (uint32_t(raw[c].b.x >> 32) ^ tag) |
                                   (uint32_t(raw[c].b.y >> 32) ^ tag)) == 0;
                if (!came && i + c * stride < end) {
                    all = false;
                    raw[c] = start4(base, i + c * stride);
                }
            }
            if (all) break;
            back_off(dog);
        }
#pragma unroll
        for (int c = 0; c < N; c++) {
            x[c] = make_float4(__uint_as_float(uint32_t(raw[c].a.x)), __uint_as_float(uint32_t(raw[c].a.y)), __uint_as_float(uint32_t(raw[c].b.x)),
                               __uint_as_float(uint32_t(raw[c].b.y)));
        }
    }
    static __device__ __forceinline__ Raw start(uint64_t base, uint32_t i) { return load_tagged(reinterpret_cast<const uint64_t*>(base) + i); }
    static __device__ __forceinline__ float finish(Raw raw, uint64_t base, uint32_t i, uint32_t tag) {
        Watchdog dog;
        while (uint32_t(raw >> 32) != tag) { back_off(dog); raw = start(base, i); }
        return __uint_as_float(uint32_t(raw));
    }
    static __device__ __forceinline__ void store(uint64_t base, uint32_t i, float v, uint32_t tag) {
        store_tagged(reinterpret_cast<uint64_t*>(base) + i, v, tag);
    }
};

template <Sync S> __device__ __forceinline__ float load_value(uint64_t base, uint32_t i, uint32_t tag) {
    return Values<S>::finish(Values<S>::start(base, i), base, i, tag);
}

}  // namespace brasa
