// Products of many rows with F16 weights (gemm_f16_256), in the shapes of a layer of Llama-3.1-8B: with their results written and without, on normal numbers and
// on zeros. So it shows what the loop over inputs reaches, what the end of a block's products costs, and what the power that numbers take costs.
//
//     nvcc -std=c++17 -O3 -gencode arch=compute_90a,code=sm_90a -cudart static products.cu -o products && ./products [SECONDS]
//
// Each line is the median of the second half of so many seconds, and the best of all: a GPU that is warm lowers its clock.
#include <chrono>

#include "../kernels/hopper/dense.cuh"
#include "common.cuh"

using namespace brasa;

constexpr uint32_t ROWS = 256, THREADS = 384, BLOCKS = 132, SHARED_BYTES = 229376;
using Shape = GemmShape<F16, ROWS, 2, 2>;
using Written = DenseProduct<Shape, ROWS, 2, false>;

// A product whose sums are computed and not written.
struct Unwritten : Written {
    static constexpr uint32_t HANDED = 0;
    __device__ explicit Unwritten(const GemmParams& p) : Written(p) {}
    __device__ void write(const float (&d)[1][ROWS / 2], const float (&facts)[FACTS], const Piece& w, uint32_t t, uint32_t tile, uint32_t g) const {
        float sum = 0.0f;
        for (uint32_t i = 0; i < ROWS / 2; i++) sum += d[0][i];
        if (sum == 1.25e30f) Written::write(d, facts, w, t, tile, g);  // never
    }
};

template <class Product> __global__ void __launch_bounds__(THREADS, 1) __cluster_dims__(2, 1, 1) product(const __grid_constant__ GemmParams p) {
    gemm<F16, ROWS, 2, 2, Product>(p);
}

__device__ uint32_t mixed(uint32_t x) {
    x = (x ^ x >> 16) * 0x7feb352d;
    x = (x ^ x >> 15) * 0x846ca68b;
    return x ^ x >> 16;
}

// Normal numbers times `scale`.
__global__ void fill(__half* to, size_t count, uint32_t seed, float scale) {
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count; i += size_t(gridDim.x) * blockDim.x) {
        const float u = (mixed(uint32_t(i) * 2 + seed) + 1.0f) * 2.3283e-10f, v = mixed(uint32_t(i) * 2 + 1 + seed) * 2.3283e-10f;
        to[i] = __float2half(scale * sqrtf(-2.0f * logf(u)) * cospif(2.0f * v));
    }
}

struct Case {
    const char* name;
    uint32_t outputs, inputs;
    bool is_gated, has_residual;
};

// Microseconds of a product, of a launch for each of `copies` weights in turn.
void measure(const char* label, void (*kernel)(GemmParams), GemmParams p, uint32_t copies, double seconds, const Case& c) {
    CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES));
    const uint8_t* first = p.weights;
    const uint64_t weight_bytes = uint64_t(c.outputs) * c.inputs * 2;
    std::vector<double> times;
    cudaEvent_t begin, end;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    const auto start = std::chrono::steady_clock::now();
    while (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < seconds) {
        CHECK(cudaEventRecord(begin));
        for (uint32_t i = 0; i < copies; i++) {
            p.weights = const_cast<uint8_t*>(first) + i * weight_bytes;
            kernel<<<BLOCKS, THREADS, SHARED_BYTES>>>(p);
        }
        CHECK(cudaEventRecord(end));
        CHECK(cudaDeviceSynchronize());
        float ms;
        CHECK(cudaEventElapsedTime(&ms, begin, end));
        times.push_back(ms * 1e3 / copies);
    }
    const double best = *std::min_element(times.begin(), times.end()), median = bench::median({times.begin() + times.size() / 2, times.end()});
    const double flops = 2.0 * p.rows * c.outputs * c.inputs;
    printf("%-8s %5u rows, %-16s: %7.1f us %6.1f TFLOP/s (best %.1f)\n", c.name, p.rows, label, median, flops / median / 1e6, flops / best / 1e6);
}

int main(int argc, char** argv) {
    const double seconds = argc > 1 ? atof(argv[1]) : 0.5;
    const Case cases[] = {{"qkv", 6144, 4096, false, false}, {"o", 4096, 4096, false, true}, {"gate_up", 28672, 4096, true, false}, {"down", 4096, 14336, false, true}};
    for (const Case& c : cases) {
        for (uint32_t rows : {2048u, 4096u}) {
            const size_t elements = size_t(c.outputs) * c.inputs;
            const uint32_t copies = std::max<size_t>(1, (size_t(1) << 29) / elements), width = c.is_gated ? c.outputs / 2 : c.outputs;
            __half *weights = bench::device<__half>(elements * copies), *panels = bench::device<__half>(size_t(rows) * c.inputs), *gated = bench::device<__half>(size_t(rows) * width);
            float *ones = bench::device<float>(rows), *y = bench::device<float>(size_t(rows) * width), *residual = bench::device<float>(size_t(rows) * width);
            bench::fill_floats<<<64, 256>>>(ones, rows, 1.0f, 0.0f, 0);
            bench::fill_floats<<<1024, 256>>>(residual, size_t(rows) * width, 1.0f, 0.0f, 0);
            GemmParams p = {};
            p.weights = reinterpret_cast<uint8_t*>(weights);
            p.panels = reinterpret_cast<uint8_t*>(panels);
            p.row_scale = ones;
            p.rows = rows;
            p.tiles = c.outputs / 16;
            p.subs = p.panel_subs = c.inputs / 64;
            p.splits = 1;
            p.raise = p.scale = 1.0f;
            p.out.y = y;
            p.out.y_width = p.out.count = width;
            p.out.row_scale = ones;
            if (c.has_residual) p.out.residual = {residual, 1, width, width};
            if (c.is_gated) {
                p.out.form = TILES_GATED;
                p.out.function = UNARY_SILU;
                p.out.upper = width;
                p.out.panels = reinterpret_cast<uint8_t*>(gated);
                p.out.subs = width / 64;
            }
            for (bool zeros : {false, true}) {
                fill<<<1024, 256>>>(weights, elements * copies, 1, zeros ? 0.0f : 0.02f);
                fill<<<1024, 256>>>(panels, size_t(rows) * c.inputs, 77, zeros ? 0.0f : 1.0f);
                measure(zeros ? "zeros" : "numbers", product<Written>, p, copies, seconds, c);
                measure(zeros ? "zeros, unwritten" : "unwritten", product<Unwritten>, p, copies, seconds, c);
            }
            for (void* data : {(void*)weights, (void*)panels, (void*)gated, (void*)ones, (void*)y, (void*)residual}) CHECK(cudaFree(data));
        }
    }
}
