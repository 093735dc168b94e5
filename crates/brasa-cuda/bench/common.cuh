// What the measuring programs share: checked calls, random weights in device layouts, timing.
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "../kernels/hopper/layout.cuh"
#include "../kernels/hopper/multiply.cuh"

#define CHECK(call)                                                                                  \
    do {                                                                                             \
        cudaError_t e_ = (call);                                                                     \
        if (e_ != cudaSuccess) {                                                                     \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(e_));   \
            exit(2);                                                                                 \
        }                                                                                            \
    } while (0)

namespace bench {

using namespace brasa;

__host__ __device__ inline uint32_t mix(uint64_t x) {
    x ^= x >> 33; x *= 0xff51afd7ed558ccdull; x ^= x >> 33; x *= 0xc4ceb9fe1a85ec53ull; x ^= x >> 33;
    return uint32_t(x);
}
__host__ __device__ inline float uniform(uint64_t seed, uint64_t i) { return float(mix(seed * 0x9E3779B97F4A7C15ull + i)) / 4294967296.0f; }
__host__ __device__ inline float signed_uniform(uint64_t seed, uint64_t i) { return 2.0f * uniform(seed, i) - 1.0f; }

inline const char* name(uint32_t format) {
    static const char* names[] = {"F16", "Q8_0", "Q4_0", "Q4_K", "Q6_K", "BF16", "Q5_K", "Q4_1", "MLX8", "Q3_K", "Q2_K", "IQ4_XS"};
    return names[format];
}

// Random weights in fragment order, of a standard deviation near 1/sqrt(K): two bytes a thread.
__global__ void fill_weights(uint8_t* to, uint64_t bytes, uint32_t format, float deviation, uint64_t seed) {
    const Geometry G = geometry(format);
    const uint32_t unit = unit_bytes(format);
    for (uint64_t i = (blockIdx.x * (uint64_t)blockDim.x + threadIdx.x) * 2; i < bytes; i += (uint64_t)gridDim.x * blockDim.x * 2) {
        const uint32_t at = i % unit, in_sub = at < G.header_bytes ? ~0u : (at - G.header_bytes) % G.sub_bytes;
        const float r = uniform(seed, i);
        const uint32_t bits = mix(seed * 77 + i);
        uint16_t v = uint16_t(bits >> 8);
        auto half = [&](float f) { return __half_as_ushort(__float2half_rn(f)); };
        switch (format) {
            case F16: v = half((2.0f * r - 1.0f) * 1.732f * deviation); break;
            case Q8_0: if (in_sub >= 1024) v = half(deviation * (0.5f + r) / 74.0f); break;
            case Q4_0: if (in_sub >= 512) v = half(deviation * (0.5f + r) / 4.6f); break;
            case Q4_K:
                if (at < 64) v = half(deviation * (0.5f + r) / (32.0f * 4.6f) * (at % 8 < 4 ? 1.0f : 7.5f));
                else if (in_sub >= 512) v = uint16_t((bits & 0x3f) | ((bits >> 8 & 0x3f) << 8));
                break;
            case Q6_K:
                if (at < 32) v = half(deviation * (0.5f + r) / (18.0f * 18.0f));
                else if (in_sub >= 768) v = uint16_t((96 + (bits & 63)) | ((96 + (bits >> 8 & 63)) << 8));
                break;
        }
        *reinterpret_cast<uint16_t*>(to + i) = v;
    }
}
__global__ void fill_halves(__half* to, uint64_t n, float scale, uint64_t seed) {
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < n; i += (uint64_t)gridDim.x * blockDim.x) {
        to[i] = __float2half_rn(signed_uniform(seed, i) * scale);
    }
}
__global__ void fill_floats(float* to, uint64_t n, float center, float spread, uint64_t seed) {
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < n; i += (uint64_t)gridDim.x * blockDim.x) {
        to[i] = center + signed_uniform(seed, i) * spread;
    }
}

template <typename T> T* device(uint64_t n) {
    void* p;
    CHECK(cudaMalloc(&p, std::max<uint64_t>(n * sizeof(T), 256)));
    CHECK(cudaMemset(p, 0, std::max<uint64_t>(n * sizeof(T), 256)));
    return static_cast<T*>(p);
}

struct Weight { uint32_t format, n, k, subs; uint8_t* data; uint64_t bytes; };
inline Weight weight(uint32_t format, uint32_t n, uint32_t k, uint64_t seed) {
    const uint32_t round = geometry(format).unit_subs;
    Weight w{format, n, k, ((k + 63) / 64 + round - 1) / round * round, nullptr, 0};
    w.bytes = uint64_t((n + 15) / 16) * tile_bytes(format, w.subs);
    w.data = device<uint8_t>(w.bytes);
    fill_weights<<<1024, 256>>>(w.data, w.bytes, format, 1.0f / sqrtf(float(k)), seed);
    CHECK(cudaGetLastError());
    return w;
}

inline double median(std::vector<double> v) {
    std::sort(v.begin(), v.end());
    return v[v.size() / 2];
}

// Median and least milliseconds of `runs` calls, each between two events; `before` is not timed.
struct Timing { double median_ms, least_ms; };
inline Timing time_it(int warm, int runs, const std::function<void()>& f, cudaStream_t stream = 0, const std::function<void()>& before = [] {}) {
    cudaEvent_t a, b;
    CHECK(cudaEventCreate(&a));
    CHECK(cudaEventCreate(&b));
    for (int i = 0; i < warm; i++) { before(); f(); }
    std::vector<double> ms;
    for (int i = 0; i < runs; i++) {
        before();
        CHECK(cudaEventRecord(a, stream));
        f();
        CHECK(cudaEventRecord(b, stream));
        CHECK(cudaEventSynchronize(b));
        float t;
        CHECK(cudaEventElapsedTime(&t, a, b));
        ms.push_back(t);
    }
    CHECK(cudaGetLastError());
    return {median(ms), *std::min_element(ms.begin(), ms.end())};
}

}  // namespace bench
