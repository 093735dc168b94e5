// gemm_<format>_<rows>: products of all rows with one weight; gemm_<format>_16_adding: with an addend (dense.cuh).
#include "dense.cuh"

#define BRASA_GEMM(NAME, FORMAT, ROWS, GROUPS, CLUSTER, ADDS)                                                                       \
    extern "C" __global__ void __launch_bounds__(128 * (GROUPS + 1 + ADDS), GROUPS == 1 ? 2 : 1)                                  \
        __cluster_dims__(CLUSTER, 1, 1) NAME(const __grid_constant__ GemmParams p) {                                               \
        using Shape = brasa::GemmShape<brasa::FORMAT, ROWS, GROUPS, CLUSTER>;                                                            \
        brasa::gemm<brasa::FORMAT, ROWS, GROUPS, CLUSTER, brasa::DenseProduct<Shape, ROWS, CLUSTER, ADDS>>(p);                                                                \
    }
#define BRASA_GEMMS(NAME, FORMAT)                               \
    BRASA_GEMM(gemm_##NAME##_16, FORMAT, 16, 1, 1, false)       \
    BRASA_GEMM(gemm_##NAME##_16_adding, FORMAT, 16, 1, 1, true) \
    BRASA_GEMM(gemm_##NAME##_64, FORMAT, 64, 1, 1, false)       \
    BRASA_GEMM(gemm_##NAME##_128, FORMAT, 128, 2, 2, false)     \
    BRASA_GEMM(gemm_##NAME##_256, FORMAT, 256, 2, 2, false)

BRASA_GEMMS(f16, F16)
BRASA_GEMMS(bf16, BF16)
BRASA_GEMMS(q8_0, Q8_0)
BRASA_GEMMS(q4_0, Q4_0)
BRASA_GEMMS(q4_k, Q4_K)
BRASA_GEMMS(q6_k, Q6_K)
BRASA_GEMMS(q5_k, Q5_K)
BRASA_GEMMS(q4_1, Q4_1)
BRASA_GEMMS(mlx8, MLX8)
BRASA_GEMMS(q3_k, Q3_K)
BRASA_GEMMS(q2_k, Q2_K)
BRASA_GEMMS(iq4_xs, IQ4_XS)
