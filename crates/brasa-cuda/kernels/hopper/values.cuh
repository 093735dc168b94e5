// Activations between operations: how they are written and how a reader knows that they have come.
//
// Sync::Barrier: plain f32; a barrier of the grid lies between writer and reader.
// Sync::Tagged: a *quad* is sixteen bytes, read and written in one piece: four values and the sequence number of their writer. A reader
// loads until the number is the expected one. A value then costs one trip through L2 where a barrier costs three.
//
//   bits     0..24    24..48    48..72    72..96    96..128
//            value 0  value 1   value 2   value 3   number
//
// A value in a quad is an f32 rounded to 16 bits of mantissa (15 stored): eight times finer than f16, as which it is multiplied, in four bytes in place
// of eight. Numbers that must stay exact, and stand alone, are *singles*: eight bytes, the f32 and the number.
//
// No quad is overwritten before its readers are done: an instruction's inputs depend on all outputs of the one before, whose writers had
// read what is overwritten now.
#pragma once
#include "common.cuh"

namespace brasa {

enum class Sync { Barrier, Tagged };
// What is asked for again while values have not come: all that are missing, or the first alone until it has.
enum class Ask { All, First };

#ifndef BRASA_BACK_OFF_NS
#define BRASA_BACK_OFF_NS 0
#endif
// Between two tries: after the first few, the others' stores get some peace.
__device__ __forceinline__ void back_off(Watchdog& dog) {
    if (BRASA_BACK_OFF_NS > 0 && dog.turns >= 2) __nanosleep(BRASA_BACK_OFF_NS);
    dog.turn();
}

// Activations: value i of a vector that begins at `base`. A warp stores together, its lanes with consecutive values from a multiple of four on;
// `there` is alike in the four lanes of a quad: false for one that is not stored.
template <Sync S> struct Values;

template <> struct Values<Sync::Barrier> {
    using Raw4 = float4;
    using Raw = float;
    static __device__ __forceinline__ Raw4 start4(uint64_t base, uint32_t i) {
        return __ldcg(reinterpret_cast<const float4*>(base) + i / 4);
    }
    // Four numbers each from i, i + stride, …; those from `end` on are zero.
    template <int N, Ask ASK> static __device__ __forceinline__ void finish4s(Raw4 (&raw)[N], float4 (&x)[N], uint64_t, uint32_t, uint32_t, uint32_t, uint32_t) {
#pragma unroll
        for (int c = 0; c < N; c++) x[c] = raw[c];
    }
    static __device__ __forceinline__ Raw start(uint64_t base, uint32_t i) { return __ldcg(reinterpret_cast<const float*>(base) + i); }
    static __device__ __forceinline__ float finish(Raw raw, uint64_t, uint32_t, uint32_t) { return raw; }
    static __device__ __forceinline__ void store(uint64_t base, uint32_t i, float v, uint32_t, bool there) {
        if (there) __stcg(reinterpret_cast<float*>(base) + i, v);
    }
};

// The upper 24 bits of an f32, rounded half up; numbers that are none stay such.
__device__ __forceinline__ uint32_t shorten(float v) {
    const uint32_t bits = __float_as_uint(v);
    return (bits + ((bits & 0x7f800000) == 0x7f800000 ? 0 : 0x80)) >> 8;
}

template <> struct Values<Sync::Tagged> {
    // The first try is started early; what has not come by then is asked for again.
    using Raw4 = ulonglong2;
    using Raw = ulonglong2;
    static __device__ __forceinline__ bool came(Raw raw, uint32_t tag) { return uint32_t(raw.y >> 32) == tag; }
    static __device__ __forceinline__ float4 values(Raw raw) {
        const uint32_t a = uint32_t(raw.x), b = uint32_t(raw.x >> 32), c = uint32_t(raw.y);
        return make_float4(__uint_as_float(a << 8), __uint_as_float(__funnelshift_l(a, b, 16) & 0xffffff00), __uint_as_float(__funnelshift_l(b, c, 24) & 0xffffff00),
                           __uint_as_float(c & 0xffffff00));
    }
    static __device__ __forceinline__ Raw4 start4(uint64_t base, uint32_t i) { return load_quad(reinterpret_cast<const ulonglong2*>(base) + i / 4); }
    template <int N, Ask ASK>
    static __device__ __forceinline__ void finish4s(Raw4 (&raw)[N], float4 (&x)[N], uint64_t base, uint32_t i, uint32_t stride, uint32_t end, uint32_t tag) {
        Watchdog dog;
        // A first quad that has not come says that others are not there either: until then it alone is asked for, which leaves L2 to the weights.
        while (ASK == Ask::First) {
            const bool first = came(raw[0], tag) || i >= end;
            if (__all_sync(~0u, first)) break;
            if (!first) raw[0] = start4(base, i);
            back_off(dog);
        }
        for (;;) {
            bool all = true;
#pragma unroll
            for (int c = 0; c < N; c++) {
                if (!came(raw[c], tag) && i + c * stride < end) {
                    all = false;
                    raw[c] = start4(base, i + c * stride);
                }
            }
            if (__all_sync(~0u, all)) break;  // the warp stays together
            back_off(dog);
        }
#pragma unroll
        for (int c = 0; c < N; c++) x[c] = values(raw[c]);
    }
    static __device__ __forceinline__ Raw start(uint64_t base, uint32_t i) { return start4(base, i); }
    static __device__ __forceinline__ float finish(Raw raw, uint64_t base, uint32_t i, uint32_t tag) {
        Watchdog dog;
        while (!came(raw, tag)) { back_off(dog); raw = start(base, i); }
        const float4 v = values(raw);
        const float low = i & 1 ? v.y : v.x, high = i & 1 ? v.w : v.z;
        return i & 2 ? high : low;
    }
    static __device__ __forceinline__ void store(uint64_t base, uint32_t i, float v, uint32_t tag, bool there) {
        const uint32_t mine = shorten(v);
        const uint32_t second = __shfl_down_sync(~0u, mine, 1), third = __shfl_down_sync(~0u, mine, 2), fourth = __shfl_down_sync(~0u, mine, 3);
        if (there && threadIdx.x % 4 == 0) {
            store_quad(reinterpret_cast<ulonglong2*>(base) + i / 4, uint64_t(mine) | uint64_t(second) << 24 | uint64_t(third) << 48,
                       uint64_t(third >> 16 | fourth << 8) | uint64_t(tag) << 32);
        }
    }
};

// Numbers that stand alone.
template <Sync S> struct Singles;

template <> struct Singles<Sync::Barrier> {
    using Raw = float;
    static __device__ __forceinline__ Raw start(uint64_t base, uint32_t i) { return __ldcg(reinterpret_cast<const float*>(base) + i); }
    static __device__ __forceinline__ float finish(Raw raw, uint64_t, uint32_t, uint32_t) { return raw; }
    static __device__ __forceinline__ void store(uint64_t base, uint32_t i, float v, uint32_t) { __stcg(reinterpret_cast<float*>(base) + i, v); }
};

template <> struct Singles<Sync::Tagged> {
    using Raw = uint64_t;
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

// Value i of a vector, number i of singles.
template <typename V> __device__ __forceinline__ float load_value(uint64_t base, uint32_t i, uint32_t tag) {
    return V::finish(V::start(base, i), base, i, tag);
}

}  // namespace brasa
