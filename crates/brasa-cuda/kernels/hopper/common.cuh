// Small wrappers: clocks and watchdogs, mbarriers, bulk copies, matrix fragments, ordered loads and stores.
#pragma once
#include <cuda_fp16.h>
#include <stdint.h>

namespace brasa {

// A spin loop that lasts longer than this is a bug or a dead peer: the kernel traps, the context reports the fault.
#ifndef BRASA_WATCHDOG_NS
#define BRASA_WATCHDOG_NS 2000000000ull
#endif
constexpr uint64_t WATCHDOG_NS = BRASA_WATCHDOG_NS;

__device__ __forceinline__ uint64_t now_ns() {
    uint64_t t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

// Counts turns of a spin loop and traps when it has lasted too long. The clock is read every 1024 turns.
struct Watchdog {
    uint32_t turns = 0;
    uint64_t begin = 0;
    __device__ __forceinline__ void turn() {
        if ((++turns & 1023) == 0) {
            uint64_t t = now_ns();
            if (begin == 0) begin = t;
            else if (t - begin > WATCHDOG_NS) __trap();
        }
    }
};

// An address in shared memory.
typedef uint32_t SharedAt;

__device__ __forceinline__ uint32_t shared_address(const void* p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// ---- ordered accesses of global memory ----

__device__ __forceinline__ void add_release(uint32_t* p, uint32_t v) {
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
__device__ __forceinline__ uint32_t load_acquire(const uint32_t* p) {
    uint32_t v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ uint32_t load_relaxed(const uint32_t* p) {
    uint32_t v;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
// Accesses of memory that the host reads and writes meanwhile.
__device__ __forceinline__ uint32_t load_host(const uint32_t* p) {
    uint32_t v;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ void store_host(uint64_t* p, uint64_t v) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
__device__ __forceinline__ void store_tagged(uint64_t* p, float v, uint32_t tag) {
    uint64_t both = (uint64_t(tag) << 32) | __float_as_uint(v);
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(both) : "memory");
}
__device__ __forceinline__ uint64_t load_tagged(const uint64_t* p) {
    uint64_t v;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
// Sixteen bytes, read and written in one piece; aligned to sixteen.
__device__ __forceinline__ ulonglong2 load_quad(const ulonglong2* p) {
    ulonglong2 v;
    asm volatile("{\n .reg .b128 q;\n ld.relaxed.gpu.global.b128 q, [%2];\n mov.b128 {%0, %1}, q;\n}" : "=l"(v.x), "=l"(v.y) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ void store_quad(ulonglong2* p, uint64_t low, uint64_t high) {
    asm volatile("{\n .reg .b128 q;\n mov.b128 q, {%1, %2};\n st.relaxed.gpu.global.b128 [%0], q;\n}" ::"l"(p), "l"(low), "l"(high) : "memory");
}

// ---- copies to shared memory (sm_80) ----

// Sixteen bytes, both addresses multiples of 16; copies_came waits for all that the thread asked for.
__device__ __forceinline__ void copy16(void* to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
// Eight bytes, both addresses multiples of 8.
__device__ __forceinline__ void copy8(void* to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
// Four bytes, both addresses multiples of 4.
__device__ __forceinline__ void copy4(void* to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
// The thread's copies since the last group are a group; wait_for_groups waits for all of its groups but the last N.
__device__ __forceinline__ void copies_end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <uint32_t N> __device__ __forceinline__ void wait_for_groups() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }
__device__ __forceinline__ void copies_came() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// ---- mbarriers and bulk copies (sm_90) ----

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
__device__ __forceinline__ void mbarrier_init(uint64_t* bar, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(bar)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void mbarrier_expect(uint64_t* bar, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(bar)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive(uint64_t* bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(bar)) : "memory");
}
__device__ __forceinline__ bool mbarrier_try(uint64_t* bar, uint32_t parity) {
    uint32_t done;
    asm volatile(
        "{\n .reg .pred p;\n"
        " mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        " selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done) : "r"(shared_address(bar)), "r"(parity) : "memory");
    return done;
}
// Looks and does not wait. Who does not ask is told false; lanes that do and lanes that do not stay together.
__device__ __forceinline__ bool mbarrier_test(uint64_t* bar, uint32_t parity, bool asks = true) {
    uint32_t done;
    asm volatile(
        "{\n .reg .pred p, q;\n"
        " setp.ne.u32 q, %3, 0;\n"
        " setp.ne.u32 p, 0, 0;\n"
        " @q mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        " selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done) : "r"(shared_address(bar)), "r"(parity), "r"(uint32_t(asks)) : "memory");
    return done;
}
__device__ __forceinline__ void mbarrier_wait(uint64_t* bar, uint32_t parity) {
    if (mbarrier_try(bar, parity)) return;
    Watchdog dog;
    while (!mbarrier_try(bar, parity)) dog.turn();
}
// Both addresses and the size are multiples of 16.
__device__ __forceinline__ void bulk_load(void* to, const void* from, uint32_t bytes, uint64_t* bar) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
        ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(bar)) : "memory");
}
__device__ __forceinline__ uint64_t evict_first_policy() {
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
// A bulk load of what is read once: it leaves L2 first.
__device__ __forceinline__ void bulk_load_once(void* to, const void* from, uint32_t bytes, uint64_t* bar, uint64_t policy) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
        ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(bar)), "l"(policy) : "memory");
}
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async;" ::: "memory"); }
#endif

// A barrier of the first `threads` threads that name it.
__device__ __forceinline__ void named_barrier(uint32_t name, uint32_t threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}
// Counts as a warp that came, and does not wait.
__device__ __forceinline__ void named_arrive(uint32_t name, uint32_t threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(name), "r"(threads) : "memory");
}
// Some warps tell others, which wait, what they have left in shared memory or have read of it. Of `THREADS`, those that wait and those that tell. Not the aligned form of
// the barrier, which both would have to reach by one instruction. racecheck does not follow arrivals: for it (BRASA_EACH_LANE), an mbarrier at which `tellers` arrive.
#ifdef BRASA_EACH_LANE
template <uint32_t NAME, uint32_t THREADS> struct Handover {
    uint64_t* bar;
    uint32_t parity;
    __device__ __forceinline__ explicit Handover(uint64_t* bar) : bar(bar), parity(0) {}
    __device__ __forceinline__ void init(uint32_t tellers) const { mbarrier_init(bar, tellers); }
    __device__ __forceinline__ void tell() const { mbarrier_arrive(bar); }
    __device__ __forceinline__ void await() {
        mbarrier_wait(bar, parity);
        parity ^= 1;
    }
};
#else
template <uint32_t NAME, uint32_t THREADS> struct Handover {
    __device__ __forceinline__ explicit Handover(uint64_t*) {}
    __device__ __forceinline__ void init(uint32_t) const {}
    __device__ __forceinline__ void tell() const { asm volatile("barrier.arrive %0, %1;" ::"n"(NAME), "n"(THREADS) : "memory"); }
    __device__ __forceinline__ void await() const { asm volatile("barrier.sync %0, %1;" ::"n"(NAME), "n"(THREADS) : "memory"); }
};
#endif

// ---- matrix fragments ----

// c += a · b, m16n8k16, bf16 in, f32 out.
__device__ __forceinline__ void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// c += a · b, m16n8k16, f16 in, f32 out.
__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// c += a · b, m16n8k8, tf32 in, f32 out: of the operands' bits the lowest thirteen do not count.
__device__ __forceinline__ void mma_tf32(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void load_matrix4(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
__device__ __forceinline__ void load_matrix4_transposed(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
__device__ __forceinline__ uint32_t transpose_matrix(uint32_t a) {
    uint32_t b;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(b) : "r"(a));
    return b;
}
__device__ __forceinline__ uint32_t pack_halves(float low, float high) {
    __half2 h = __floats2half2_rn(low, high);
    return *reinterpret_cast<uint32_t*>(&h);
}
// What is larger than the largest half becomes that one; what is no number stays none.
__device__ __forceinline__ uint32_t pack_halves_within(float low, float high) {
    uint32_t r;
    asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
__device__ __forceinline__ float2 unpack_halves(uint32_t h) { return __half22float2(*reinterpret_cast<__half2*>(&h)); }
__device__ __forceinline__ uint32_t or_and(uint32_t a, uint32_t mask, uint32_t bits) {  // (a & mask) | bits
    uint32_t r;
    asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(r) : "r"(a), "r"(mask), "r"(bits));
    return r;
}
__device__ __forceinline__ uint4 load_shared16(uint32_t address) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address));
    return v;
}
__device__ __forceinline__ void store_shared16(uint32_t address, uint4 v) {
    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
__device__ __forceinline__ uint2 load_shared8(uint32_t address) {
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address));
    return v;
}
__device__ __forceinline__ uint32_t load_shared4(uint32_t address) {
    uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address));
    return v;
}

// 2^e for −126 ≤ e ≤ 127.
__device__ __forceinline__ float power_of_two(int e) { return __uint_as_float(uint32_t(e + 127) << 23); }

// The exponent e for which |x| · 2^-e lies in [2^14, 2^15) where x = `largest`; 0 for 0. Kept within ±100.
__device__ __forceinline__ int row_exponent(float largest) {
    int e = int(__float_as_uint(largest) >> 23) - 127 - 14;
    return largest == 0.0f ? 0 : min(100, max(-100, e));
}

// Of one instruction each, where a number that is too small for a normal float counts as zero.
__device__ __forceinline__ float raise_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// Of the online softmax of scores in units of ln 2 (../plain/online.cuh).
struct PowersOfTwo {
    static constexpr float UNIT = 1.4426950408889634f;
    static __device__ __forceinline__ float of(float x) { return raise_two(x); }
};
__device__ __forceinline__ float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float reciprocal_root(float x) {
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// a / b, exact for numbers as small as those of a program; shorter than a division.
__device__ __forceinline__ uint32_t quotient(uint32_t a, uint32_t b) { return uint32_t((float(a) + 0.5f) * reciprocal(float(b))); }

__device__ __forceinline__ float warp_sum(float v) {
    for (int i = 16; i > 0; i /= 2) v += __shfl_xor_sync(~0u, v, i);
    return v;
}
__device__ __forceinline__ float warp_max(float v) {
    for (int i = 16; i > 0; i /= 2) v = fmaxf(v, __shfl_xor_sync(~0u, v, i));
    return v;
}

}  // namespace brasa
