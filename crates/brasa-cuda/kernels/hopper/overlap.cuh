// How launches overlap (compute capability 9.0; nothing on others): the blocks of a launch may start as soon as all blocks of the one in
// front have, and wait before they touch what it reads or writes. Every kernel waits, so the end of one is the end of all before it.
#pragma once

namespace brasa {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
__device__ __forceinline__ void let_next_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
// Called by every thread that touches anything but weights.
__device__ __forceinline__ void wait_for_last() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
#else
__device__ __forceinline__ void let_next_start() {}
__device__ __forceinline__ void wait_for_last() {}
#endif

}  // namespace brasa
