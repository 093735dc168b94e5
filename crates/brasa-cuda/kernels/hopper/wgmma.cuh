// wgmma: d += a · b, m64nNk16, f16 in, f32 out. A is in registers but for wgmma_shared; B is in shared memory, K-major but for wgmma_turned, where it is N-major.
#pragma once
#include <stdint.h>

namespace brasa {

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> __device__ __forceinline__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }

// Descriptor of K-major rows of 128 bytes, swizzled: groups of eight rows 1024 bytes apart.
__device__ __forceinline__ uint64_t wgmma_descriptor(uint32_t address) {
    return uint64_t((address & 0x3ffff) >> 4) | uint64_t(1) << 16 | uint64_t(64) << 32 | uint64_t(1) << 62;
}

// Names of the operands that are sums, sixteen at a time, and these operands.
#define BRASA_D0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define BRASA_D1 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define BRASA_D2 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define BRASA_D3 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define BRASA_D4 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define BRASA_D5 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define BRASA_D6 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define BRASA_D7 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define BRASA_SUMS8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define BRASA_SUMS16(i) BRASA_SUMS8(i), BRASA_SUMS8(i + 8)
#define BRASA_SUMS32(i) BRASA_SUMS16(i), BRASA_SUMS16(i + 16)

// The instruction for N outputs. Operands behind the sums: A's four registers, B, whether there are sums already, and whether B is N-major.
template <int N> struct Wgmma;
#define BRASA_WGMMA(N, NAMES, A, B, ADDS, TURNED, ...)                                                                                \
    template <> struct Wgmma<N> {                                                                                                     \
        template <int IS_TURNED>                                                                                                      \
        static __device__ __forceinline__ void multiply(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, int accumulate) {      \
            asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, " ADDS ", 0;\n wgmma.mma_async.sync.aligned.m64n" #N                     \
                         "k16.f32.f16.f16 {" NAMES "}, {" A "}, " B ", p, 1, 1, " TURNED ";\n}"                                       \
                         : __VA_ARGS__                                                                                                \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(IS_TURNED));                      \
        }                                                                                                                             \
    };
BRASA_WGMMA(16, "%0, %1, %2, %3, %4, %5, %6, %7", "%8, %9, %10, %11", "%12", "%13", "%14", BRASA_SUMS8(0))
BRASA_WGMMA(32, BRASA_D0, "%16, %17, %18, %19", "%20", "%21", "%22", BRASA_SUMS16(0))
BRASA_WGMMA(64, BRASA_D0 ", " BRASA_D1, "%32, %33, %34, %35", "%36", "%37", "%38", BRASA_SUMS32(0))
BRASA_WGMMA(96, BRASA_D0 ", " BRASA_D1 ", " BRASA_D2, "%48, %49, %50, %51", "%52", "%53", "%54", BRASA_SUMS32(0), BRASA_SUMS16(32))
BRASA_WGMMA(128, BRASA_D0 ", " BRASA_D1 ", " BRASA_D2 ", " BRASA_D3, "%64, %65, %66, %67", "%68", "%69", "%70", BRASA_SUMS32(0), BRASA_SUMS32(32))
BRASA_WGMMA(192, BRASA_D0 ", " BRASA_D1 ", " BRASA_D2 ", " BRASA_D3 ", " BRASA_D4 ", " BRASA_D5, "%96, %97, %98, %99", "%100", "%101", "%102", BRASA_SUMS32(0), BRASA_SUMS32(32), BRASA_SUMS32(64))
BRASA_WGMMA(256, BRASA_D0 ", " BRASA_D1 ", " BRASA_D2 ", " BRASA_D3 ", " BRASA_D4 ", " BRASA_D5 ", " BRASA_D6 ", " BRASA_D7, "%128, %129, %130, %131", "%132", "%133", "%134", BRASA_SUMS32(0), BRASA_SUMS32(32), BRASA_SUMS32(64), BRASA_SUMS32(96))

template <int N> __device__ __forceinline__ void wgmma(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, int accumulate) {
    Wgmma<N>::template multiply<0>(d, a, b, accumulate);
}
template <int N> __device__ __forceinline__ void wgmma_turned(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, int accumulate) {
    Wgmma<N>::template multiply<1>(d, a, b, accumulate);
}
// 64 outputs; both operands in shared memory, K-major.
__device__ __forceinline__ void wgmma_shared(float (&d)[32], uint64_t a, uint64_t b, int accumulate) {
    asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %34, 0;\n wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" BRASA_D0 ", " BRASA_D1
                 "}, %32, %33, p, 1, 1, 0, 0;\n}"
                 : BRASA_SUMS32(0)
                 : "l"(a), "l"(b), "r"(accumulate));
}

}  // namespace brasa
