#include "flash.cuh"
#include "parts.cuh"
#include "rows.cuh"
