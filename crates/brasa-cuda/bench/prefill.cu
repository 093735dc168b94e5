// Prompts: matrix products and attention of many rows, checked against plain kernels and timed.
#include "../kernels/hopper/flash.cuh"
#include "../kernels/hopper/gemm.cuh"
#include "common.cuh"
using namespace bench;

// One output of one row, in f64.
__global__ void plain_product(const uint8_t* w, uint32_t format, uint32_t subs, uint32_t K, const float* x, const float* norm_weight, float eps,
                              uint32_t rows, uint32_t N, uint32_t stride_rows, uint32_t stride_outputs, double* y) {
    const uint32_t n = (blockIdx.x * blockDim.x + threadIdx.x) * stride_outputs, row = blockIdx.y * stride_rows;
    if (n >= N || row >= rows) return;
    double squares = 0;
    for (uint32_t k = 0; k < K; k++) squares += double(x[uint64_t(row) * K + k]) * x[uint64_t(row) * K + k];
    double sum = 0;
    for (uint32_t k = 0; k < K; k++) sum += double(weight_at(format, w, subs, n, k)) * x[uint64_t(row) * K + k] * (norm_weight ? norm_weight[k] : 1.0f);
    y[uint64_t(blockIdx.y) * ((N + stride_outputs - 1) / stride_outputs) + blockIdx.x * blockDim.x + threadIdx.x] = sum * (eps > 0 ? 1.0 / sqrt(squares / K + eps) : 1.0);
}

// One head of one row, in f64: a warp.
__global__ void plain_attention(Flash p, uint32_t E, uint32_t stride_rows, double* y) {
    const FlashSegment s = p.segments[blockIdx.z];
    const uint32_t r = blockIdx.x * stride_rows, head = blockIdx.y, kv = head / (p.heads / p.kv_heads), index = s.first_index + r;
    if (r >= s.rows) return;
    const uint32_t begin = p.window && index + 1 > p.window ? index + 1 - p.window : 0;
    auto at = [&](uint64_t offset, uint32_t j, uint32_t e) {
        const uint8_t* page = p.pool + p.tables[s.table + j / 256] * p.page_bytes + offset;
        return double(half_value(page + (uint64_t(kv) * 256 + j % 256) * E * 2 + kv_piece(E, j % 256, e / 8) * 16 + e % 8 * 2));
    };
    const __half* q = p.q + (uint64_t(s.first_row + r) * p.heads + head) * E;
    double top = -1e300, mass = 0, out[8] = {};
    for (uint32_t j = begin; j <= index; j++) {
        double dot = 0;
        for (uint32_t e = threadIdx.x; e < E; e += 32) dot += double(__half2float(q[e])) * at(p.keys_offset, j, e);
        for (int i = 16; i > 0; i /= 2) dot += __shfl_xor_sync(~0u, dot, i);
        if (p.softcap > 0) dot = p.softcap * tanh(dot / p.softcap) * 1.4426950408889634;
        const double n = fmax(top, dot), f = exp2(top - n), w = exp2(dot - n);
        mass = mass * f + w;
        for (uint32_t i = 0; i * 32 < E; i++) out[i] = out[i] * f + w * at(p.values_offset, j, i * 32 + threadIdx.x);
        top = n;
    }
    for (uint32_t i = 0; i * 32 < E; i++) y[(uint64_t(blockIdx.x) * p.heads + head) * E + i * 32 + threadIdx.x] = out[i] / mass;
}

using Kernel = void (*)(Gemm);
struct Variant { Kernel kernel; uint32_t rows, outputs, threads, shared; int cluster; };
template <uint32_t F> Variant variant(Kernel k, int rows) {
    if (rows == 64) { using T = GemmShape<F, 64, 1, 1>; return {k, 64, T::OUTPUTS, T::THREADS, T::SHARED, 1}; }
    if (rows == 128) { using T = GemmShape<F, 128, 2, 2>; return {k, 128, T::OUTPUTS, T::THREADS, T::SHARED, 2}; }
    using T = GemmShape<F, 256, 2, 2>;
    return {k, 256, T::OUTPUTS, T::THREADS, T::SHARED, 2};
}
std::vector<Variant> variants(uint32_t format) {
    switch (format) {
        case F16: return {variant<F16>(gemm_f16_64, 64), variant<F16>(gemm_f16_128, 128), variant<F16>(gemm_f16_256, 256)};
        case Q8_0: return {variant<Q8_0>(gemm_q8_0_64, 64), variant<Q8_0>(gemm_q8_0_128, 128), variant<Q8_0>(gemm_q8_0_256, 256)};
        case Q4_0: return {variant<Q4_0>(gemm_q4_0_64, 64), variant<Q4_0>(gemm_q4_0_128, 128), variant<Q4_0>(gemm_q4_0_256, 256)};
        case Q4_K: return {variant<Q4_K>(gemm_q4_k_64, 64), variant<Q4_K>(gemm_q4_k_128, 128), variant<Q4_K>(gemm_q4_k_256, 256)};
        default: return {variant<Q6_K>(gemm_q6_k_64, 64), variant<Q6_K>(gemm_q6_k_128, 128), variant<Q6_K>(gemm_q6_k_256, 256)};
    }
}

int sms;
void launch(const Variant& v, const Gemm& g) {
    const uint32_t blocks = (g.rows + v.rows - 1) / v.rows * ((g.tiles * 16 + v.outputs * v.cluster - 1) / (v.outputs * v.cluster)) * v.cluster;
    const uint32_t most = v.rows == 64 ? sms * 2 : sms / v.cluster * v.cluster;
    CHECK(cudaFuncSetAttribute(v.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, v.shared));
    v.kernel<<<std::min(blocks, most), v.threads, v.shared>>>(g);
    CHECK(cudaGetLastError());
}

struct Problem {
    Weight w;
    float *x, *y, *norm, *scale;
    uint8_t* panels;
    Gemm g;
    uint32_t rows;
    Problem(uint32_t format, uint32_t N, uint32_t K, uint32_t M, uint32_t flags, uint64_t seed) : rows(M) {
        w = weight(format, N, K, seed);
        x = device<float>(uint64_t(M) * K);
        fill_floats<<<1024, 256>>>(x, uint64_t(M) * K, 0.0f, 2.0f, seed + 1);
        norm = device<float>(K);
        fill_floats<<<64, 256>>>(norm, K, 1.0f, 0.5f, seed + 2);
        const uint32_t outputs = flags & PAIRED ? N / 2 : N;
        y = device<float>(uint64_t(M) * outputs);
        CHECK(cudaMemset(y, 0xff, uint64_t(M) * outputs * 4));
        scale = device<float>(M);
        panels = device<uint8_t>(uint64_t((M + 63) / 64) * w.subs * 8192);
        const float raise = format == F16 ? 1.0f : 64.0f;
        g = Gemm{w.data, panels, scale, nullptr, nullptr, y, M, (N + 15) / 16, w.subs, outputs, flags, raise, 1.0f / raise};
    }
    void prepare() {
        gemm_panels<<<(rows + 63) / 64 * 64, 256>>>(x, norm, 1e-5f, rows, w.k, w.subs, panels, scale);
        CHECK(cudaGetLastError());
    }
    ~Problem() { for (void* p : {(void*)w.data, (void*)x, (void*)y, (void*)norm, (void*)scale, (void*)panels}) CHECK(cudaFree(p)); }
};

int check_gemm() {
    int failures = 0;
    for (uint32_t format : {F16, Q8_0, Q4_0, Q4_K, Q6_K}) {
        for (auto [N, K, M] : {std::array<uint32_t, 3>{1024, 768, 300}, {592, 512, 17}, {2064, 1280, 513}, {256, 256, 64}}) {
            for (uint32_t flags : {0u, uint32_t(PAIRED)}) {
                Problem p(format, N, K, M, flags, 7);
                p.prepare();
                double* expected = device<double>(uint64_t(M) * N);
                plain_product<<<dim3((N + 63) / 64, M), 64>>>(p.w.data, format, p.w.subs, K, p.x, p.norm, 1e-5f, M, N, 1, 1, expected);
                std::vector<double> e(uint64_t(M) * N);
                CHECK(cudaMemcpy(e.data(), expected, e.size() * 8, cudaMemcpyDeviceToHost));
                for (auto& v : variants(format)) {
                    CHECK(cudaMemset(p.y, 0xff, uint64_t(M) * p.g.outputs * 4));
                    launch(v, p.g);
                    CHECK(cudaDeviceSynchronize());
                    std::vector<float> y(uint64_t(M) * p.g.outputs);
                    CHECK(cudaMemcpy(y.data(), p.y, y.size() * 4, cudaMemcpyDeviceToHost));
                    double num = 0, den = 0;
                    for (uint32_t m = 0; m < M; m++) {
                        for (uint32_t n = 0; n < p.g.outputs; n++) {
                            double want = e[uint64_t(m) * N + n];
                            if (flags & PAIRED) {
                                const double gate = e[uint64_t(m) * N + n / 8 * 16 + n % 8], up = e[uint64_t(m) * N + n / 8 * 16 + 8 + n % 8];
                                want = gate / (1 + exp(-gate)) * up;
                            }
                            const double found = y[uint64_t(m) * p.g.outputs + n], d = std::isfinite(found) ? found - want : 1e30;
                            num += d * d;
                            den += want * want;
                        }
                    }
                    const double relative = sqrt(num / den);
                    const bool good = relative < 2e-3;
                    failures += !good;
                    if (!good || (M == 513 && v.rows == 256)) printf("gemm %-5s N %u K %u M %u paired %d rows %u: relative %.2e %s\n", name(format), N, K, M, flags != 0, v.rows, relative, good ? "ok" : "WRONG");
                }
                CHECK(cudaFree(expected));
            }
        }
    }
    return failures;
}

struct AttentionProblem {
    Flash p{};
    uint32_t E, rows;
    __half* q;
    AttentionProblem(uint32_t E_, uint32_t heads, uint32_t kv_heads, uint32_t first, uint32_t rows_, uint32_t window, float softcap) : E(E_), rows(rows_) {
        const uint32_t pages = (first + rows + 255) / 256;
        const uint64_t cache = uint64_t(kv_heads) * 256 * E * 2;
        q = device<__half>(uint64_t(rows) * heads * E);
        fill_halves<<<1024, 256>>>(q, uint64_t(rows) * heads * E, 0.5f, 3);
        uint8_t* pool = device<uint8_t>(2 * cache * (pages + 1));
        fill_halves<<<1024, 256>>>(reinterpret_cast<__half*>(pool), cache * (pages + 1), 1.0f, 4);
        std::vector<uint32_t> t(pages);
        for (uint32_t i = 0; i < pages; i++) t[i] = pages - i;
        uint32_t* tables = device<uint32_t>(pages);
        CHECK(cudaMemcpy(tables, t.data(), pages * 4, cudaMemcpyHostToDevice));
        FlashSegment s{0, rows, first, 0};
        FlashSegment* segments = device<FlashSegment>(1);
        CHECK(cudaMemcpy(segments, &s, sizeof s, cudaMemcpyHostToDevice));
        float* y = device<float>(uint64_t(rows) * heads * E);
        CHECK(cudaMemset(y, 0xff, uint64_t(rows) * heads * E * 4));
        p = Flash{q, y, pool, tables, segments, 2 * cache, 0, cache, heads, kv_heads, window, softcap};
    }
    void run() {
        const dim3 grid((rows + 127) / 128, p.heads, 1);
        auto go = [&](auto kernel, uint32_t shared) {
            CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
            kernel<<<grid, 256, shared>>>(p);
        };
        if (E == 64) go(flash_64, FlashShape<64>::SHARED);
        else if (E == 128) go(flash_128, FlashShape<128>::SHARED);
        else go(flash_256, FlashShape<256>::SHARED);
        CHECK(cudaGetLastError());
    }
    ~AttentionProblem() { for (const void* a : {(const void*)q, (const void*)p.y, (const void*)p.pool, (const void*)p.tables, (const void*)p.segments}) CHECK(cudaFree((void*)a)); }
};

int check_flash() {
    int failures = 0;
    struct Case { uint32_t E, heads, kv, first, rows, window; float softcap; };
    for (auto c : {Case{64, 8, 2, 0, 300, 0, 0}, {128, 4, 4, 0, 257, 0, 0}, {128, 8, 2, 700, 130, 0, 0}, {64, 4, 1, 100, 500, 150, 0}, {256, 4, 2, 30, 200, 0, 20.0f}, {128, 2, 1, 1000, 1, 0, 0}, {64, 2, 2, 5, 17, 4, 0}}) {
        AttentionProblem a(c.E, c.heads, c.kv, c.first, c.rows, c.window, c.softcap);
        a.run();
        double* expected = device<double>(uint64_t(c.rows) * c.heads * c.E);
        plain_attention<<<dim3(c.rows, c.heads, 1), 32>>>(a.p, c.E, 1, expected);
        CHECK(cudaDeviceSynchronize());
        std::vector<double> e(uint64_t(c.rows) * c.heads * c.E);
        std::vector<float> y(e.size());
        CHECK(cudaMemcpy(e.data(), expected, e.size() * 8, cudaMemcpyDeviceToHost));
        CHECK(cudaMemcpy(y.data(), a.p.y, y.size() * 4, cudaMemcpyDeviceToHost));
        double num = 0, den = 0;
        for (size_t i = 0; i < e.size(); i++) {
            const double d = std::isfinite(y[i]) ? y[i] - e[i] : 1e30;
            num += d * d;
            den += e[i] * e[i];
        }
        const bool good = sqrt(num / den) < 2e-3;
        failures += !good;
        printf("flash E %u heads %u/%u first %u rows %u window %u cap %g: relative %.2e %s\n", c.E, c.heads, c.kv, c.first, c.rows, c.window, c.softcap, sqrt(num / den), good ? "ok" : "WRONG");
        CHECK(cudaFree(expected));
    }
    return failures;
}

int main(int argc, char** argv) {
    cudaDeviceProp prop;
    CHECK(cudaGetDeviceProperties(&prop, 0));
    sms = prop.multiProcessorCount;
    const int failures = argc > 1 && !strcmp(argv[1], "gemm") ? check_gemm() : argc > 1 && !strcmp(argv[1], "flash") ? check_flash() : check_flash() + check_gemm();
    printf("prefill check: %d failures\n", failures);
    fflush(stdout);
    struct Shape { const char* name; uint32_t N, K, flags; };
    const Shape shapes[] = {{"8B qkv", 6144, 4096, 0}, {"8B o", 4096, 4096, 0}, {"8B gate_up", 28672, 4096, PAIRED}, {"8B down", 4096, 14336, 0},
                            {"1B qkv", 3072, 2048, 0}, {"1B gate_up", 16384, 2048, PAIRED}, {"1B down", 2048, 8192, 0}};
    if (argc <= 1 || !strcmp(argv[1], "gemm")) {
        for (uint32_t M : {17u, 32u, 64u, 128u, 256u, 512u, 4096u}) {
            for (auto& s : shapes) {
                if (s.name[0] == '1' && M != 512 && M != 4096) continue;
                for (uint32_t format : {F16, Q8_0, Q4_0, Q4_K, Q6_K}) {
                    if (s.name[0] == '1' && format != F16 && format != Q4_K) continue;
                    Problem p(format, s.N, s.K, M, s.flags, 11);
                    p.prepare();
                    Timing panels = time_it(2, 5, [&] { p.prepare(); });
                    printf("%-10s %-5s M %4u panels %6.1f us |", s.name, name(format), M, panels.median_ms * 1e3);
                    for (auto& v : variants(format)) {
                        if ((M <= 64 && v.rows == 256) || (M >= 512 && v.rows == 64)) continue;
                        Timing t = time_it(2, 7, [&] { launch(v, p.g); });
                        printf("  rows %3u %8.1f us %6.1f TFLOP/s %6.0f GB/s", v.rows, t.median_ms * 1e3, 2.0 * M * s.N * s.K / t.median_ms * 1e-9, p.w.bytes / t.median_ms * 1e-6);
                    }
                    printf("\n");
                }
                fflush(stdout);
            }
        }
    }
    if (argc <= 1 || !strcmp(argv[1], "flash")) {
        for (auto [E, heads, kv] : {std::array<uint32_t, 3>{64, 32, 8}, {128, 32, 8}, {128, 16, 8}}) {
            for (uint32_t rows : {512u, 4096u, 16384u}) {
                AttentionProblem a(E, heads, kv, 0, rows, 0, 0);
                Timing t = time_it(2, 5, [&] { a.run(); });
                printf("flash E %3u heads %u/%u rows %5u  %9.1f us  %6.1f TFLOP/s (causal half counted)\n", E, heads, kv, rows, t.median_ms * 1e3, 4.0 * heads * E * (double(rows) * rows / 2) / t.median_ms * 1e-9);
            }
        }
    }
    return failures != 0;
}
