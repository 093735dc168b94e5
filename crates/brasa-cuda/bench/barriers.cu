// What racecheck makes of barriers between two groups of warps. One group writes shared memory, the other reads it, and so on in turn; every form below orders them.
//
//     nvcc -std=c++17 -O3 -arch=sm_90a barriers.cu -o barriers
//     for form in $(./barriers); do compute-sanitizer --tool racecheck ./barriers $form; done
//
// Without an argument it prints the forms. It fails where a sum is wrong.
#include <cstdint>
#include <cstdio>
#include <cstring>

enum Form { SAME_PLACE, TWO_PLACES, TWO_PLACES_ALIGNED, ARRIVE, FUNCTION, MBARRIER, WHOLE_BLOCK };

__device__ __forceinline__ uint32_t shared_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }
__device__ __forceinline__ void arrive(uint64_t* bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(bar)) : "memory");
}
__device__ __forceinline__ void wait(uint64_t* bar, uint32_t parity) {
    uint32_t done = 0;
    while (!done)
        asm volatile("{\n .reg .pred p;\n mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, p;\n}" : "=r"(done) : "r"(shared_address(bar)), "r"(parity) : "memory");
}
__device__ __noinline__ void meet() { asm volatile("barrier.sync 1, 256;" ::: "memory"); }
__device__ __noinline__ void meet_back() { asm volatile("barrier.sync 2, 256;" ::: "memory"); }

// The second of the two groups of 128 threads has number SECOND of three.
template <int FORM, int SECOND> __global__ void __launch_bounds__(384) hand_over(float* sums) {
    __shared__ float shared[128];
    __shared__ uint64_t there, back;
    const uint32_t group = threadIdx.x / 128, t = threadIdx.x % 128;
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 128;" ::"r"(shared_address(&there)) : "memory");
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 128;" ::"r"(shared_address(&back)) : "memory");
    }
    __syncthreads();
    if (FORM == SAME_PLACE) {
        if (group != 0 && group != SECOND) return;
        float sum = 0.0f;
        for (uint32_t i = 0; i < 4; i++) {
            if (group == 0) shared[t] = float(i + t);
            asm volatile("bar.sync 1, 256;" ::: "memory");
            if (group == SECOND) sum += shared[(t + 37) % 128];
            asm volatile("bar.sync 2, 256;" ::: "memory");
        }
        if (group == SECOND) sums[t] = sum;
    } else if (group == 0) {
        for (uint32_t i = 0; i < 4; i++) {
            shared[t] = float(i + t);
            if (FORM == TWO_PLACES) asm volatile("barrier.sync 1, 256;" ::: "memory");
            if (FORM == TWO_PLACES_ALIGNED) asm volatile("bar.sync 1, 256;" ::: "memory");
            if (FORM == WHOLE_BLOCK) asm volatile("barrier.sync 1, 384;" ::: "memory");
            if (FORM == ARRIVE) asm volatile("barrier.arrive 1, 256;" ::: "memory");
            if (FORM == FUNCTION) meet();
            if (FORM == MBARRIER) arrive(&there);
            if (FORM == TWO_PLACES || FORM == ARRIVE) asm volatile("barrier.sync 2, 256;" ::: "memory");
            if (FORM == TWO_PLACES_ALIGNED) asm volatile("bar.sync 2, 256;" ::: "memory");
            if (FORM == WHOLE_BLOCK) asm volatile("barrier.sync 2, 384;" ::: "memory");
            if (FORM == FUNCTION) meet_back();
            if (FORM == MBARRIER) wait(&back, i % 2);
        }
    } else if (group == SECOND || FORM == WHOLE_BLOCK) {
        float sum = 0.0f;
        for (uint32_t i = 0; i < 4; i++) {
            if (FORM == TWO_PLACES || FORM == ARRIVE) asm volatile("barrier.sync 1, 256;" ::: "memory");
            if (FORM == TWO_PLACES_ALIGNED) asm volatile("bar.sync 1, 256;" ::: "memory");
            if (FORM == WHOLE_BLOCK) asm volatile("barrier.sync 1, 384;" ::: "memory");
            if (FORM == FUNCTION) meet();
            if (FORM == MBARRIER) wait(&there, i % 2);
            sum += shared[(t + 37) % 128];
            if (FORM == TWO_PLACES) asm volatile("barrier.sync 2, 256;" ::: "memory");
            if (FORM == TWO_PLACES_ALIGNED) asm volatile("bar.sync 2, 256;" ::: "memory");
            if (FORM == WHOLE_BLOCK) asm volatile("barrier.sync 2, 384;" ::: "memory");
            if (FORM == ARRIVE) asm volatile("barrier.arrive 2, 256;" ::: "memory");
            if (FORM == FUNCTION) meet_back();
            if (FORM == MBARRIER) arrive(&back);
        }
        if (group == SECOND) sums[t] = sum;
    }
}

struct Case { const char* name; void (*kernel)(float*); };
#define BOTH(name, FORM) {name "-beside", hand_over<FORM, 1>}, {name "-apart", hand_over<FORM, 2>}
static const Case CASES[] = {
    BOTH("bar.sync-one-instruction", SAME_PLACE), BOTH("barrier.sync-two-instructions", TWO_PLACES), BOTH("bar.sync-two-instructions", TWO_PLACES_ALIGNED),
    BOTH("arrive-and-sync", ARRIVE), BOTH("barrier.sync-in-a-function", FUNCTION), BOTH("mbarrier", MBARRIER), BOTH("barrier.sync-of-all-warps", WHOLE_BLOCK),
};

int main(int arguments, char** argument) {
    for (const Case& of : CASES) {
        if (arguments < 2) puts(of.name);
        else if (!strcmp(argument[1], of.name)) {
            float *on_device, sums[128];
            cudaMalloc(&on_device, sizeof sums);
            of.kernel<<<1, 384>>>(on_device);
            if (cudaMemcpy(sums, on_device, sizeof sums, cudaMemcpyDeviceToHost) != cudaSuccess) return 1;
            for (int t = 0; t < 128; t++)
                if (sums[t] != 6.0f + 4 * ((t + 37) % 128)) return printf("%s: sum %d is %g\n", of.name, t, sums[t]), 1;
        }
    }
}
