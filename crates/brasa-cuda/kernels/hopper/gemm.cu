#include "gemm.cuh"
