// Rung 0: what the chip gives. Read bandwidth, launch latency, and the latency of every kind of grid barrier.
#include <cooperative_groups.h>

#include "../kernels/hopper/ring.cuh"
#include "common.cuh"
namespace cg = cooperative_groups;
using namespace bench;

// Reads n 16-byte pieces with plain loads.
__global__ void read_plain(const uint4* p, uint64_t n, uint32_t* out) {
    uint32_t x = 0;
    const uint64_t step = (uint64_t)gridDim.x * blockDim.x;
    uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x;
    for (; i + 3 * step < n; i += 4 * step) {
        uint4 a = __ldcs(p + i), b = __ldcs(p + i + step), c = __ldcs(p + i + 2 * step), d = __ldcs(p + i + 3 * step);
        x ^= a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
    }
    for (; i < n; i += step) { uint4 a = __ldcs(p + i); x ^= a.x ^ a.y ^ a.z ^ a.w; }
    if (x == 0x12345) out[0] = x;
}

// Reads with bulk copies into a ring of slots, one block per multiprocessor, nobody looks at the bytes.
template <uint32_t SLOT, uint32_t SLOTS, bool HINT> __global__ void read_bulk(const uint8_t* p, uint64_t bytes) {
    extern __shared__ __align__(1024) uint8_t shared[];
    __shared__ uint64_t full[SLOTS];
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < SLOTS; i++) mbarrier_init(full + i, 1);
        fence_proxy_async();
        const uint64_t policy = evict_first_policy();
        const uint64_t each = bytes / gridDim.x / SLOT;
        const uint8_t* from = p + each * SLOT * blockIdx.x;
        for (uint64_t i = 0; i < each; i++) {
            const uint32_t s = i % SLOTS;
            if (i >= SLOTS) mbarrier_wait(full + s, (i / SLOTS - 1) & 1);
            mbarrier_expect(full + s, SLOT);
            if (HINT) bulk_load_once(shared + s * SLOT, from + i * SLOT, SLOT, full + s, policy);
            else bulk_load(shared + s * SLOT, from + i * SLOT, SLOT, full + s);
        }
        for (uint64_t i = each < SLOTS ? 0 : each - SLOTS; i < each; i++) mbarrier_wait(full + i % SLOTS, (i / SLOTS) & 1);
    }
}

__global__ void nothing(uint32_t* p) { if (p == nullptr) __trap(); }

__global__ void barrier_cooperative(int n) {
    auto grid = cg::this_grid();
    for (int i = 0; i < n; i++) grid.sync();
}
__global__ void barrier_counter(uint32_t* counter, int n) {
    for (int i = 1; i <= n; i++) {
        __syncthreads();
        if (threadIdx.x == 0) {
            add_release(counter, 1);
            Watchdog dog;
            while (int32_t(load_acquire(counter) - i * gridDim.x) < 0) dog.turn();
        }
        __syncthreads();
    }
}
// Waits with relaxed loads and one fence behind.
__global__ void barrier_counter_relaxed(uint32_t* counter, int n) {
    for (int i = 1; i <= n; i++) {
        __syncthreads();
        if (threadIdx.x == 0) {
            add_release(counter, 1);
            Watchdog dog;
            while (int32_t(load_relaxed(counter) - i * gridDim.x) < 0) dog.turn();
            __threadfence();
        }
        __syncthreads();
    }
}
// A flag per block, 32 bytes apart; thread i of every block watches block i.
__global__ void barrier_flags(uint32_t* flags, int n, uint32_t stride) {
    for (int i = 1; i <= n; i++) {
        __syncthreads();
        if (threadIdx.x == 0) store_release(flags + blockIdx.x * stride, i);
        if (threadIdx.x < gridDim.x) {
            Watchdog dog;
            while (int32_t(load_acquire(flags + threadIdx.x * stride) - i) < 0) dog.turn();
        }
        __syncthreads();
    }
}
// Blocks arrive at one of eight counters, the last of each at the root, everybody watches the root.
__global__ void barrier_tree(uint32_t* counters, int n) {
    const uint32_t leaf = blockIdx.x % 8, members = (gridDim.x - leaf + 7) / 8;
    for (int i = 1; i <= n; i++) {
        __syncthreads();
        if (threadIdx.x == 0) {
            uint32_t before;
            asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counters + 32 + 32 * leaf) : "memory");
            if (before + 1 == members * i) add_release(counters, 1);
            Watchdog dog;
            while (int32_t(load_acquire(counters) - i * 8) < 0) dog.turn();
        }
        __syncthreads();
    }
}
// One round of decode without arithmetic: each block writes its share of `values` f32, a barrier, each reads all.
__global__ void exchange_barrier(uint32_t* counter, float* values, int count, int n, float* out) {
    float sum = 0;
    const int each = (count + gridDim.x - 1) / gridDim.x;
    for (int i = 1; i <= n; i++) {
        float* buffer = values + (i & 1) * count;
        const int mine = blockIdx.x * each + threadIdx.x;
        if (threadIdx.x < each && mine < count) __stcg(buffer + mine, float(i));
        __syncthreads();
        if (threadIdx.x == 0) {
            add_release(counter, 1);
            Watchdog dog;
            while (int32_t(load_acquire(counter) - i * gridDim.x) < 0) dog.turn();
        }
        __syncthreads();
        for (int j = threadIdx.x * 4; j < count; j += blockDim.x * 4) {
            float4 v = __ldcg(reinterpret_cast<const float4*>(buffer + j));
            sum += v.x + v.y + v.z + v.w;
        }
        sum = __syncthreads_or(sum == 12345.0f) ? 0 : sum;  // all values have come before the next round
    }
    atomicAdd(out, sum);
}
// The same with quads and no barrier.
__global__ void exchange_quads(ulonglong2* values, int count, int n, float* out) {
    float sum = 0;
    const int quads = count / 4, each = (quads + gridDim.x - 1) / gridDim.x;
    for (int i = 1; i <= n; i++) {
        ulonglong2* buffer = values + (i & 1) * quads;
        const int mine = blockIdx.x * each + threadIdx.x;
        if (threadIdx.x < each && mine < quads) store_quad(buffer + mine, uint64_t(i), uint64_t(i) << 32);
        for (int j = threadIdx.x; j < quads; j += blockDim.x) {
            ulonglong2 a = load_quad(buffer + j);
            Watchdog dog;
            while (uint32_t(a.y >> 32) != i) {
                dog.turn();
                a = load_quad(buffer + j);
            }
            sum += __uint_as_float(uint32_t(a.x) << 8);
        }
        sum = __syncthreads_or(sum == 12345.0f) ? 0 : sum;
    }
    atomicAdd(out, sum);
}

template <uint32_t SLOT, uint32_t SLOTS, bool HINT> void bulk(const uint8_t* p, uint64_t bytes, int sms) {
    auto* kernel = read_bulk<SLOT, SLOTS, HINT>;
    CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SLOT * SLOTS));
    Timing t = time_it(3, 9, [&] { kernel<<<sms, 32, SLOT * SLOTS>>>(p, bytes); });
    printf("read bulk %3u KiB x %2u hint %d         %8.1f GB/s\n", SLOT / 1024, SLOTS, HINT, bytes / t.median_ms * 1e-6);
}

int main() {
    cudaDeviceProp prop;
    CHECK(cudaGetDeviceProperties(&prop, 0));
    const int sms = prop.multiProcessorCount;
    printf("%s, %d multiprocessors, L2 %d MiB, shared %zu\n", prop.name, sms, prop.l2CacheSize >> 20, prop.sharedMemPerBlockOptin);
    const uint64_t bytes = 4ull << 30;
    uint8_t* p = device<uint8_t>(bytes);
    fill_halves<<<2048, 256>>>(reinterpret_cast<__half*>(p), bytes / 2, 1.0f, 1);
    uint32_t* u = device<uint32_t>(1 << 16);
    float* f = device<float>(1 << 16);
    uint64_t* v = device<uint64_t>(1 << 16);
    for (int blocks : {2, 4, 8, 16}) {
        Timing t = time_it(3, 9, [&] { read_plain<<<sms * blocks, 256>>>(reinterpret_cast<uint4*>(p), bytes / 16, u); });
        printf("read plain %2d blocks x 256              %8.1f GB/s\n", blocks, bytes / t.median_ms * 1e-6);
    }
    bulk<4096, 48, true>(p, bytes, sms);
    bulk<8192, 24, true>(p, bytes, sms);
    bulk<16384, 4, true>(p, bytes, sms);
    bulk<16384, 6, true>(p, bytes, sms);
    bulk<16384, 10, true>(p, bytes, sms);
    bulk<16384, 10, false>(p, bytes, sms);
    bulk<32768, 6, true>(p, bytes, sms);
    // Launches.
    {
        cudaStream_t s;
        CHECK(cudaStreamCreate(&s));
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
        for (int i = 0; i < 200; i++) nothing<<<sms, 512, 0, s>>>(u);
        CHECK(cudaStreamEndCapture(s, &graph));
        CHECK(cudaGraphInstantiate(&exec, graph, 0));
        Timing t = time_it(3, 9, [&] { CHECK(cudaGraphLaunch(exec, s)); }, s);
        printf("empty kernels in a graph                %8.2f us each\n", t.median_ms * 1e3 / 200);
        Timing t2 = time_it(3, 9, [&] { for (int i = 0; i < 200; i++) nothing<<<sms, 512, 0, s>>>(u); }, s);
        printf("empty kernels in a stream               %8.2f us each\n", t2.median_ms * 1e3 / 200);
    }
    const int n = 1000;
    auto report = [&](const char* what, Timing t) { printf("%-39s %8.3f us (least %.3f)\n", what, t.median_ms * 1e3 / n, t.least_ms * 1e3 / n); };
    for (int threads : {256, 512}) {
        printf("-- barriers, %d threads\n", threads);
        int count = n;
        void* args[] = {&count};
        report("cooperative groups", time_it(2, 7, [&] { CHECK(cudaLaunchCooperativeKernel((void*)barrier_cooperative, sms, threads, args)); }));
        auto zero = [&] { CHECK(cudaMemsetAsync(u, 0, 1 << 16)); CHECK(cudaMemsetAsync(v, 0, 1 << 19)); };
        report("one counter, acquire loads", time_it(2, 7, [&] { zero(); barrier_counter<<<sms, threads>>>(u, n); }));
        report("one counter, relaxed loads + fence", time_it(2, 7, [&] { zero(); barrier_counter_relaxed<<<sms, threads>>>(u, n); }));
        report("flag per block, 4 bytes apart", time_it(2, 7, [&] { zero(); barrier_flags<<<sms, threads>>>(u, n, 1); }));
        report("flag per block, 32 bytes apart", time_it(2, 7, [&] { zero(); barrier_flags<<<sms, threads>>>(u, n, 8); }));
        report("tree of 8", time_it(2, 7, [&] { zero(); barrier_tree<<<sms, threads>>>(u, n); }));
        for (int values : {1024, 2048, 4096, 8192}) {
            char what[80];
            snprintf(what, 80, "exchange of %d, counter", values);
            report(what, time_it(2, 7, [&] { zero(); exchange_barrier<<<sms, threads>>>(u, f, values, n, f + 32768); }));
            snprintf(what, 80, "exchange of %d, quads", values);
            report(what, time_it(2, 7, [&] { zero(); exchange_quads<<<sms, threads>>>(reinterpret_cast<ulonglong2*>(v), values, n, f + 32768); }));
        }
    }
    CHECK(cudaDeviceSynchronize());
    return 0;
}
