// experts_<format>_<rows> and experts_gated_<format>_<rows>: products of rows sorted by expert with their experts' weights (experts.cuh).
#include "experts.cuh"

#define BRASA_EXPERTS(NAME, FORMAT, ROWS, GROUPS, WEIGHTS)                                                                                  \
    extern "C" __global__ void __launch_bounds__(brasa::GemmShape<brasa::FORMAT, ROWS, GROUPS, 1>::THREADS, GROUPS == 1 ? 2 : 1)            \
        NAME(const __grid_constant__ ExpertGemmParams p) {                                                                                 \
        using Shape = brasa::GemmShape<brasa::FORMAT, ROWS, GROUPS, 1>;                                                                    \
        brasa::gemm<brasa::FORMAT, ROWS, GROUPS, 1, brasa::ExpertProduct<Shape, ROWS, WEIGHTS>>(p);                                        \
    }
#define BRASA_EXPERT_SIZES(NAME, FORMAT)                     \
    BRASA_EXPERTS(experts_##NAME##_16, FORMAT, 16, 1, 1)       \
    BRASA_EXPERTS(experts_##NAME##_64, FORMAT, 64, 1, 1)       \
    BRASA_EXPERTS(experts_##NAME##_128, FORMAT, 128, 2, 1)     \
    BRASA_EXPERTS(experts_gated_##NAME##_16, FORMAT, 16, 1, 2) \
    BRASA_EXPERTS(experts_gated_##NAME##_64, FORMAT, 64, 1, 2) \
    BRASA_EXPERTS(experts_gated_##NAME##_128, FORMAT, 128, 2, 2)

BRASA_EXPERT_SIZES(f16, F16)
BRASA_EXPERT_SIZES(bf16, BF16)
BRASA_EXPERT_SIZES(q8_0, Q8_0)
BRASA_EXPERT_SIZES(q4_0, Q4_0)
BRASA_EXPERT_SIZES(q4_k, Q4_K)
BRASA_EXPERT_SIZES(q6_k, Q6_K)
BRASA_EXPERT_SIZES(q5_k, Q5_K)
BRASA_EXPERT_SIZES(q4_1, Q4_1)
BRASA_EXPERT_SIZES(mlx8, MLX8)
BRASA_EXPERT_SIZES(q3_k, Q3_K)
BRASA_EXPERT_SIZES(q2_k, Q2_K)
BRASA_EXPERT_SIZES(iq4_xs, IQ4_XS)
