// The block's dynamic shared memory, by offset.
#pragma once
#include <stdint.h>

namespace brasa {

#ifdef __CUDACC__
extern __shared__ __align__(1024) uint8_t smem[];

// An ordinary load, which the compiler may move among others but not across a wait.
template <typename T> __device__ __forceinline__ T peek(uint32_t at) { return *reinterpret_cast<const T*>(smem + at); }
// Sixteen bytes, or zeros for lanes that do not ask: banks serve the others alone.
__device__ __forceinline__ uint4 peek16_if(bool asks, uint32_t at) {
    uint4 v = make_uint4(0, 0, 0, 0);
    if (asks) v = peek<uint4>(at);
    return v;
}
#endif

}  // namespace brasa
