#include "flash.cuh"
