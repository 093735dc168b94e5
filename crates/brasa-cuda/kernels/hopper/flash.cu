#include "flash.cuh"
#include "parts.cuh"
