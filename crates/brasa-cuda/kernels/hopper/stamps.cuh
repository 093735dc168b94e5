// Clocks of an instruction's phases, in builds that measure (BRASA_STAMPS).
#pragma once
#include <stdint.h>

namespace brasa {

__device__ __forceinline__ void stamp(uint64_t* stamps, int phase) {
#ifdef BRASA_STAMPS
    if (threadIdx.x == 0 && stamps) stamps[phase] = clock64();
#endif
}

}  // namespace brasa
