// CUDA for kernels of ../kernels/plain, on the CPU: g++ compiles them, and their threads run as fibres.
//
// Blocks run one after the other; the threads of a block run one after the other too, each until it waits at a barrier or a
// shuffle or ends. So races do not show here, but barriers that not all threads reach do: they end the launch with an error.
// Static shared memory is a static variable of the OS thread, since one block of it runs at a time.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#define DEVICE inline
#define DEVICE_TABLE static const
#define __shared__ static __thread
#define DYNAMIC_SHARED(name) float* name = brasa_emulation::os_thread.dynamic_shared

namespace brasa_emulation {

struct Index {
    unsigned x, y, z;
};

// What a thread of the CPU runs: one variable, since each costs a call to find.
struct OsThread {
    Index thread, block, block_size, grid_size;
    float* dynamic_shared;
    struct Block* running;
};

extern __thread OsThread os_thread;

typedef void (*Entry)(const void* parameters);

// A kernel's name, its function, and the size of its parameters.
struct Registration {
    Registration(const char* name, Entry entry);
};

void block_barrier();
// A barrier; returns how many threads came with `counts`.
unsigned block_count(bool counts);
// The device fails, as a real one does behind a write to memory that is nobody's.
void lose_context();
// Gives `value` to the warp, and takes what the lane `distance` away (by exclusive or) gave.
uint32_t exchange(uint32_t value, int distance);

}  // namespace brasa_emulation

#define threadIdx brasa_emulation::os_thread.thread
#define blockIdx brasa_emulation::os_thread.block
#define blockDim brasa_emulation::os_thread.block_size
#define gridDim brasa_emulation::os_thread.grid_size

#define KERNEL(name, Params)                                                              \
    static void name(const Params& p);                                                    \
    static brasa_emulation::Registration name##_registration(                             \
        #name, [](const void* parameters) { name(*static_cast<const Params*>(parameters)); }); \
    static void name(const Params& p)
#define KERNEL_WITHIN(bounds, name, Params) KERNEL(name, Params)
#define KERNEL_AHEAD(bounds, name, Params) KERNEL(name, Params)

inline void wait_for_launches() {}
inline void keep(uint32_t&) {}
inline void store_release(unsigned* to, unsigned value) { *to = value; }
inline void fetch_to_l2(const void*) {}
inline void write_anywhere(unsigned*) { brasa_emulation::lose_context(); }

inline unsigned __ballot_sync(unsigned, int holds) {
    uint32_t bits = (uint32_t)(holds != 0) << threadIdx.x % 32;
    for (int distance = 1; distance < 32; distance *= 2) {
        bits |= brasa_emulation::exchange(bits, distance);
    }
    return bits;
}
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline void __syncthreads() { brasa_emulation::block_barrier(); }
inline int __syncthreads_count(int counts) { return (int)brasa_emulation::block_count(counts != 0); }

inline uint32_t __float_as_uint(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

inline float __uint_as_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

inline float __shfl_xor_sync(unsigned, float x, int distance) {
    return __uint_as_float(brasa_emulation::exchange(__float_as_uint(x), distance));
}

inline unsigned __shfl_xor_sync(unsigned, unsigned x, int distance) {
    return brasa_emulation::exchange(x, distance);
}

inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }

inline unsigned __float2uint_rn(float x) {
    if (!(x > 0.0f)) {
        return 0;
    }
    return x >= 4294967296.0f ? 0xffffffffu : (unsigned)rintf(x);
}

inline unsigned atomicCAS(unsigned* at, unsigned expected, unsigned value) {
    unsigned found = *at;
    if (found == expected) {
        *at = value;
    }
    return found;
}

inline float fast_exp(float x) { return expf(x); }
inline float fast_divide(float a, float b) { return a / b; }

inline void store_to_host(unsigned long long* to, unsigned long long word) { *to = word; }

inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }

inline unsigned atomicAdd(unsigned* at, unsigned value) {
    unsigned found = *at;
    *at += value;
    return found;
}

inline unsigned atomicMax(unsigned* at, unsigned value) {
    unsigned found = *at;
    *at = found > value ? found : value;
    return found;
}

inline float half_to_float(unsigned short bits) {
    _Float16 half;
    memcpy(&half, &bits, 2);
    return (float)half;
}

inline unsigned short float_to_half(float x) {
    _Float16 half = (_Float16)x;
    unsigned short bits;
    memcpy(&bits, &half, 2);
    return bits;
}

inline unsigned short float_to_bf16(float x) {
    uint32_t bits = __float_as_uint(x);
    if (x != x) {
        return 0x7fff;
    }
    return (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
