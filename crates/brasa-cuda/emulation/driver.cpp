// A CUDA driver without a GPU: the functions of the driver library that brasa-cuda calls, over the kernels of plain.cu.
//
// Device memory is host memory between pages that must not be touched, so that an address beyond an allocation ends the process
// where it is used. Everything runs at once on the calling thread.

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "fibres.h"

#include "../kernels/plain/plain.cu"

#include "../kernels/hopper/flash.cuh"
#include "../kernels/hopper/rows.cuh"

#include "gemm.h"
#include "parts.h"

namespace {

using namespace brasa_emulation;

enum Status { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_FOUND = 500, ILLEGAL_ADDRESS = 700, LAUNCH_FAILED = 719 };

// As much as the tests need; more is out of memory, as it would be on a device.
const size_t MEMORY_BYTES = (size_t)4 << 30;

struct Context {
    bool is_lost = false;
    unsigned users = 0;
};

struct Allocation {
    void* base;
    size_t mapped;
    Context* context;
};

std::mutex everything;
Context primary;
thread_local Context* current = &primary;
std::map<uint64_t, Allocation> allocations;
size_t used_bytes = 0;

// What a call answers whose context is lost.
int alive() { return current->is_lost ? ILLEGAL_ADDRESS : SUCCESS; }

// Frees what belongs to a context.
void clear_context(Context* context) {
    std::lock_guard<std::mutex> lock(everything);
    for (auto each = allocations.begin(); each != allocations.end();) {
        if (each->second.context == context) {
            used_bytes -= each->second.mapped;
            munmap(each->second.base, each->second.mapped);
            each = allocations.erase(each);
        } else {
            ++each;
        }
    }
    context->is_lost = false;
}

size_t page_bytes() { return (size_t)sysconf(_SC_PAGESIZE); }

// `bytes`, ending at most 15 bytes before a page that must not be touched, and beginning after one.
int allocate(uint64_t* address, size_t bytes) {
    std::lock_guard<std::mutex> lock(everything);
    if (bytes == 0 || bytes > MEMORY_BYTES - used_bytes) {
        return bytes == 0 ? INVALID_VALUE : OUT_OF_MEMORY;
    }
    size_t page = page_bytes(), rounded = (bytes + 255) / 256 * 256;
    size_t mapped = (rounded + page - 1) / page * page + 2 * page;
    void* base = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
        return OUT_OF_MEMORY;
    }
    char* first = (char*)base;
    mprotect(first, page, PROT_NONE);
    mprotect(first + mapped - page, page, PROT_NONE);
    uint64_t at = (uint64_t)(first + mapped - page - rounded);
    // Fresh memory holds no numbers: what is read before it is written shows.
    memset((void*)at, 0xff, rounded);
    allocations[at] = {base, mapped, current};
    used_bytes += mapped;
    *address = at;
    return SUCCESS;
}

int release(uint64_t address) {
    std::lock_guard<std::mutex> lock(everything);
    auto found = allocations.find(address);
    if (found == allocations.end()) {
        return INVALID_VALUE;
    }
    used_bytes -= found->second.mapped;
    munmap(found->second.base, found->second.mapped);
    allocations.erase(found);
    return SUCCESS;
}

}  // namespace

void brasa_emulation::lose_context() { current->is_lost = true; }

#define EXPORT extern "C" __attribute__((visibility("default"))) int

EXPORT cuInit(unsigned) { return SUCCESS; }
EXPORT cuDriverGetVersion(int* version) { return *version = 13000, SUCCESS; }
EXPORT cuDeviceGetCount(int* count) { return *count = 1, SUCCESS; }
EXPORT cuDeviceGet(int* device, int ordinal) { return *device = ordinal, SUCCESS; }
EXPORT cuDeviceGetName(char* name, int len, int) { return snprintf(name, (size_t)len, "emulated GPU"), SUCCESS; }
EXPORT cuDeviceTotalMem_v2(size_t* bytes, int) { return *bytes = MEMORY_BYTES, SUCCESS; }
EXPORT cuDevicePrimaryCtxRetain(void** context, int) { return ++primary.users, *context = &primary, SUCCESS; }
EXPORT cuDevicePrimaryCtxRelease_v2(int) {
    if (--primary.users == 0) {
        clear_context(&primary);
    }
    return SUCCESS;
}
EXPORT cuCtxCreate_v2(void** context, unsigned, int) { return *context = current = new Context, SUCCESS; }
EXPORT cuCtxDestroy_v2(void* context) {
    clear_context((Context*)context);
    current = current == context ? &primary : current;
    return delete (Context*)context, SUCCESS;
}
EXPORT cuCtxSetCurrent(void* context) { return current = (Context*)context, SUCCESS; }
EXPORT cuMemGetInfo_v2(size_t* free, size_t* total) {
    *free = MEMORY_BYTES - used_bytes;
    *total = MEMORY_BYTES;
    return alive();
}

EXPORT cuDeviceGetAttribute(int* value, int attribute, int) {
    switch (attribute) {
        case 16: *value = 4; break;           // multiprocessors
        case 38: *value = 1 << 20; break;     // bytes of L2
        case 75: *value = 9; break;           // compute capability
        case 97: *value = 227 << 10; break;   // bytes of shared memory
        default: *value = 0; break;
    }
    return SUCCESS;
}

EXPORT cuMemAlloc_v2(uint64_t* address, size_t bytes) { return current->is_lost ? ILLEGAL_ADDRESS : allocate(address, bytes); }
EXPORT cuMemFree_v2(uint64_t address) { return release(address); }
EXPORT cuMemHostAlloc(void** pointer, size_t bytes, unsigned) { return (*pointer = malloc(bytes)) ? SUCCESS : OUT_OF_MEMORY; }
EXPORT cuMemFreeHost(void* pointer) { return free(pointer), SUCCESS; }
EXPORT cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t n, void*) { return memcpy((void*)to, from, n), alive(); }
EXPORT cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t n, void*) { return memcpy(to, (void*)from, n), alive(); }
EXPORT cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t n, void*) { return memcpy((void*)to, (void*)from, n), alive(); }
EXPORT cuMemsetD8Async(uint64_t at, unsigned char byte, size_t n, void*) { return memset((void*)at, byte, n), alive(); }

EXPORT cuStreamCreate(void** stream, unsigned) { return *stream = &everything, alive(); }
EXPORT cuStreamSynchronize(void*) { return alive(); }
EXPORT cuStreamQuery(void*) { return alive(); }
EXPORT cuStreamDestroy_v2(void*) { return SUCCESS; }
EXPORT cuEventCreate(void** event, unsigned) { return *event = &everything, SUCCESS; }
EXPORT cuEventRecord(void*, void*) { return SUCCESS; }
EXPORT cuEventElapsedTime(float* ms, void*, void*) { return *ms = 0.001f, SUCCESS; }
EXPORT cuEventDestroy_v2(void*) { return SUCCESS; }

EXPORT cuModuleLoadData(void** module, const void*) { return *module = &everything, alive(); }
EXPORT cuModuleUnload(void*) { return SUCCESS; }
// The dynamic shared memory that functions are allowed, in place of 48 KiB.
std::map<void*, unsigned> allowed_shared;
EXPORT cuFuncSetAttribute(void* function, int attribute, int value) {
    std::lock_guard<std::mutex> lock(everything);
    if (attribute == 8) {
        allowed_shared[function] = (unsigned)value;
    }
    return SUCCESS;
}
EXPORT cuModuleGetFunction(void** function, void*, const char* name) {
    auto found = kernels().find(name);
    if (found == kernels().end()) {
        return NOT_FOUND;
    }
    *function = (void*)found->second;
    return SUCCESS;
}

struct LaunchConfig {
    unsigned grid[3], block[3], shared_bytes;
    void* stream;
    const unsigned* attributes;
    unsigned attributes_count;
};

EXPORT cuLaunchKernelEx(const LaunchConfig* config, void* function, void** parameters, void**) {
    const unsigned *grid = config->grid, *block = config->block, threads = block[0];
    // Blocks run one after the other here, so that none can wait for another.
    const bool together = config->attributes_count == 1 && config->attributes[0] == 2;
    unsigned allowed = 48 << 10;
    {
        std::lock_guard<std::mutex> lock(everything);
        auto found = allowed_shared.find(function);
        allowed = found == allowed_shared.end() ? allowed : found->second > allowed ? found->second : allowed;
    }
    if (grid[0] == 0 || grid[1] == 0 || grid[1] > 65535 || grid[2] == 0 || grid[2] > 65535 || threads == 0 || threads > 1024 ||
        threads % 32 != 0 || block[1] != 1 || block[2] != 1 || config->shared_bytes > allowed || allowed > 227 << 10 || together) {
        return INVALID_VALUE;
    }
    if (current->is_lost) {
        return ILLEGAL_ADDRESS;
    }
    bool ended = launch((Entry)function, parameters[0], {grid[0], grid[1], grid[2]}, threads, config->shared_bytes);
    return ended ? SUCCESS : LAUNCH_FAILED;
}

extern "C" __attribute__((visibility("default"))) int cuGetErrorName(int status, const char** name) {
    *name = status == OUT_OF_MEMORY ? "OUT_OF_MEMORY" : status == LAUNCH_FAILED ? "LAUNCH_FAILED" : status == ILLEGAL_ADDRESS ? "ILLEGAL_ADDRESS" : "EMULATED_ERROR";
    return SUCCESS;
}

extern "C" __attribute__((visibility("default"))) int cuGetErrorString(int status, const char** text) {
    *text = status == LAUNCH_FAILED ? "some threads of a block wait where others do not come" : "see emulation/driver.cpp";
    return SUCCESS;
}
