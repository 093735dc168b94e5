// The threads of a block as fibres, and the barriers between them.
#pragma once

#include "emulation.h"

#include <stdlib.h>

#include <map>
#include <string>
#include <vector>

namespace brasa_emulation {

Index thread, block, block_size, grid_size;
float* dynamic_shared;

// Kernels by name.
inline std::map<std::string, Entry>& kernels() {
    static std::map<std::string, Entry> all;
    return all;
}

inline Registration::Registration(const char* name, Entry entry) { kernels()[name] = entry; }

#if defined(__x86_64__)
// Saves what the calling convention keeps, stores the stack pointer in `from`, and goes on where `to` was saved.
extern "C" void brasa_switch(void** from, void* to);
__asm__(
    ".text\n.globl brasa_switch\n.hidden brasa_switch\nbrasa_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n");

struct Stack {
    void* pointer;
    void prepare(char* memory, size_t bytes, void (*start)()) {
        uintptr_t top = ((uintptr_t)memory + bytes) & ~(uintptr_t)63;
        void** at = (void**)(top - 16);
        *at = (void*)start;
        pointer = at - 6;
        memset(pointer, 0, 6 * sizeof(void*));
    }
    static void change(Stack& from, Stack& to) { brasa_switch(&from.pointer, to.pointer); }
};
#else
#include <ucontext.h>

struct Stack {
    ucontext_t context;
    void prepare(char* memory, size_t bytes, void (*start)()) {
        getcontext(&context);
        context.uc_stack.ss_sp = memory;
        context.uc_stack.ss_size = bytes;
        context.uc_link = nullptr;
        makecontext(&context, start, 0);
    }
    static void change(Stack& from, Stack& to) { swapcontext(&from.context, &to.context); }
};
#endif

const size_t STACK_BYTES = 64 << 10;

// Threads that wait for each other: a block, or a warp.
struct Group {
    unsigned running, waiting, generation;
};

struct Fibre {
    Stack stack;
    char* memory;
    bool ended;
};

static std::vector<Fibre> fibres;
static Stack scheduler;
static unsigned current;
static Entry entry;
static const void* parameters;
static Group block_group;
static std::vector<Group> warps;
// What each thread gave in the last two exchanges.
static std::vector<uint32_t> given[2];
// True when a thread has come on since the scheduler last asked.
static bool progress;

static void leave(Group& group) {
    --group.running;
    if (group.running > 0 && group.waiting == group.running) {
        group.waiting = 0;
        ++group.generation;
    }
}

static void run_fibre() {
    for (;;) {
        entry(parameters);
        fibres[current].ended = true;
        progress = true;
        leave(block_group);
        leave(warps[current / 32]);
        Stack::change(fibres[current].stack, scheduler);
    }
}

// Waits until every running thread of the group is here.
static void wait(Group& group) {
    progress = true;
    unsigned generation = group.generation, self = current;
    if (++group.waiting == group.running) {
        group.waiting = 0;
        ++group.generation;
        return;
    }
    while (group.generation == generation) {
        Stack::change(fibres[self].stack, scheduler);
    }
    progress = true;
}

void block_barrier() { wait(block_group); }

uint32_t exchange(uint32_t value, int distance) {
    Group& group = warps[current / 32];
    std::vector<uint32_t>& values = given[group.generation % 2];
    values[current] = value;
    wait(group);
    return values[current ^ (unsigned)distance];
}

// Runs every block; false where the threads of one wait for each other in vain.
inline bool launch(Entry kernel, const void* of_kernel, Index grid, unsigned threads, unsigned shared_bytes) {
    while (fibres.size() < threads) {
        fibres.push_back({{}, (char*)malloc(STACK_BYTES), false});
        given[0].resize(fibres.size());
        given[1].resize(fibres.size());
    }
    std::vector<float> shared(shared_bytes / 4 + 1);
    entry = kernel;
    parameters = of_kernel;
    dynamic_shared = shared.data();
    grid_size = grid;
    block_size = {threads, 1, 1};
    for (unsigned yz = 0; yz < grid.y * grid.z; ++yz) {
        for (unsigned x = 0; x < grid.x; ++x) {
            block = {x, yz % grid.y, yz / grid.y};
            block_group = {threads, 0, 0};
            warps.assign(threads / 32, {32, 0, 0});
            memset(shared.data(), 0xff, shared.size() * 4);
            for (unsigned t = 0; t < threads; ++t) {
                fibres[t].ended = false;
                fibres[t].stack.prepare(fibres[t].memory, STACK_BYTES, run_fibre);
            }
            for (unsigned left = threads; left > 0;) {
                progress = false;
                for (unsigned t = 0; t < threads; ++t) {
                    if (!fibres[t].ended) {
                        current = t;
                        thread = {t, 0, 0};
                        Stack::change(scheduler, fibres[t].stack);
                        left -= fibres[t].ended;
                    }
                }
                if (!progress) {
                    return false;
                }
            }
        }
    }
    return true;
}

}  // namespace brasa_emulation
