// What kernels take from their platform: the CUDA compiler, or the emulation in ../../emulation.
//
// A kernel has one parameter, a structure of params.h, passed by value:
//
//     KERNEL(softmax, SoftmaxParams) { … p.x … }
//
// Blocks have one axis of threads, a multiple of 32. Kernels use block barriers and warp shuffles of whole warps only, so
// that a block's threads can be emulated as fibres.
#pragma once

#ifdef BRASA_EMULATION
#include "emulation.h"
#else

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "../hopper/overlap.cuh"

// BOUNDS: `__launch_bounds__` of threads and of blocks of a multiprocessor, or nothing.
#define KERNEL_WITHIN(BOUNDS, name, Params)                                    \
    __device__ __forceinline__ void name##_body(const Params& p);              \
    extern "C" __global__ void BOUNDS name(const __grid_constant__ Params p) { \
        brasa::let_next_start();                                               \
        brasa::wait_for_last();                                                \
        name##_body(p);                                                        \
    }                                                                          \
    __device__ __forceinline__ void name##_body(const Params& p)
#define KERNEL(name, Params) KERNEL_WITHIN(, name, Params)
// A kernel that asks for weights while the launch in front still runs: its threads call `wait_for_launches` before they touch anything else.
#define KERNEL_AHEAD(BOUNDS, name, Params)                                     \
    __device__ __forceinline__ void name##_body(const Params& p);              \
    extern "C" __global__ void BOUNDS name(const __grid_constant__ Params p) { \
        brasa::let_next_start();                                               \
        name##_body(p);                                                        \
    }                                                                          \
    __device__ __forceinline__ void name##_body(const Params& p)
#define DEVICE __device__ __forceinline__
#define DEVICE_TABLE __device__ const
// Dynamic shared memory of the block.
#define DYNAMIC_SHARED(name) extern __shared__ float name[]

DEVICE void wait_for_launches() { brasa::wait_for_last(); }
// The compiler takes the word for a new one.
DEVICE void keep(unsigned& word) { asm volatile("" : "+r"(word)); }
// Others that see the value see all that the thread has seen.
DEVICE void store_release(unsigned* to, unsigned value) { asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory"); }
DEVICE void fetch_to_l2(const void* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }

// Writes a word that the host reads while kernels run, and that says nothing of other words.
DEVICE void store_to_host(unsigned long long* to, unsigned long long word) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}

// Writes a word, whether or not the address belongs to anything.
DEVICE void write_anywhere(unsigned* at) { *(volatile unsigned*)at = 0; }

DEVICE float half_to_float(unsigned short bits) { return __half2float(__ushort_as_half(bits)); }
DEVICE unsigned short float_to_half(float x) { return __half_as_ushort(__float2half_rn(x)); }
DEVICE unsigned short float_to_bf16(float x) { return __bfloat16_as_ushort(__float2bfloat16_rn(x)); }

// More exact than a half, less than a float.
DEVICE float fast_exp(float x) { return __expf(x); }
DEVICE float fast_divide(float a, float b) { return __fdividef(a, b); }

#endif

// bfloat16 is the upper half of an f32.
DEVICE float bf16_to_float(unsigned short bits) { return __uint_as_float((unsigned)bits << 16); }
