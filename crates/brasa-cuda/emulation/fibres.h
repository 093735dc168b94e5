// The threads of a block as fibres, and the barriers between them.
#pragma once

#include "emulation.h"

#include <stdlib.h>

#include <map>
#include <string>
#include <vector>

namespace brasa_emulation {

__thread OsThread os_thread;

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

// A stack, and some lines of the cache more: else what is on top of all stacks would share the same few sets of it.
const size_t STACK_BYTES = (64 << 10) + 3 * 64;

// Threads that wait for each other: a block, or a warp.
struct Group {
    unsigned running, waiting, generation;
    // Of those that wait, how many count; and how many did when the last wait ended.
    unsigned counting, counted;

    void go_on() {
        waiting = 0;
        ++generation;
        counted = counting;
        counting = 0;
    }
};

struct Fibre {
    Stack stack;
    bool ended;
    // What the thread waits for, or null, and the generation in which it came there.
    const Group* group;
    unsigned generation;

    bool can_run() const { return !ended && (!group || group->generation != generation); }
};

// The block that a thread of the CPU runs.
struct Block {
    unsigned threads = 0, current = 0;
    Entry entry;
    const void* parameters;
    Stack scheduler;
    Group group;
    std::vector<Group> warps;
    std::vector<Fibre> fibres;
    std::vector<char> stacks;
    // What each thread gave in the last two exchanges.
    std::vector<uint32_t> given[2];
};

// Goes on with a thread that can run, first of this warp; with the scheduler if there is none.
static inline void change_fibre(OsThread& os) {
    Block& b = *os.running;
    Fibre* fibres = b.fibres.data();
    Stack& from = fibres[b.current].stack;
    unsigned first = b.current & ~31u;
    for (unsigned scanned = 0; scanned < b.threads; scanned += 32) {
        for (unsigned lane = 1; lane <= 32; ++lane) {
            unsigned t = first + ((b.current + lane) & 31);
            if (fibres[t].can_run()) {
                b.current = t;
                os.thread.x = t;
                fibres[t].group = nullptr;
                Stack::change(from, fibres[t].stack);
                return;
            }
        }
        first = first + 32 == b.threads ? 0 : first + 32;
    }
    Stack::change(from, b.scheduler);
}

static void leave(Group& group) {
    --group.running;
    if (group.running > 0 && group.waiting == group.running) {
        group.go_on();
    }
}

static void run_fibre() {
    Block& b = *os_thread.running;
    b.entry(b.parameters);
    b.fibres[b.current].ended = true;
    leave(b.group);
    leave(b.warps[b.current / 32]);
    change_fibre(os_thread);
}

// Waits until every running thread of the group is here.
static inline void wait(OsThread& os, Group& group) {
    if (++group.waiting == group.running) {
        group.go_on();
        return;
    }
    Fibre& self = os.running->fibres[os.running->current];
    self.group = &group;
    self.generation = group.generation;
    change_fibre(os);
}

void block_barrier() {
    OsThread& os = os_thread;
    wait(os, os.running->group);
}

unsigned block_count(bool counts) {
    OsThread& os = os_thread;
    Group& group = os.running->group;
    group.counting += counts;
    wait(os, group);
    return group.counted;
}

uint32_t exchange(uint32_t value, int distance) {
    OsThread& os = os_thread;
    Block& b = *os.running;
    unsigned self = b.current;
    Group& group = b.warps[self / 32];
    uint32_t* values = b.given[group.generation % 2].data();
    values[self] = value;
    wait(os, group);
    return values[self ^ (unsigned)distance];
}

// Runs every block; false where the threads of one wait for each other in vain.
inline bool launch(Entry kernel, const void* of_kernel, Index grid, unsigned threads, unsigned shared_bytes) {
    static thread_local Block of_this_thread;
    OsThread& os = os_thread;
    Block& b = of_this_thread;
    os.running = &b;
    if (b.fibres.size() < threads) {
        b.fibres.resize(threads);
        b.stacks.resize(threads * STACK_BYTES);
        b.given[0].resize(threads);
        b.given[1].resize(threads);
    }
    std::vector<float> shared(shared_bytes / 4 + 1);
    b.threads = threads;
    b.entry = kernel;
    b.parameters = of_kernel;
    os.dynamic_shared = shared.data();
    os.grid_size = grid;
    os.block_size = {threads, 1, 1};
    for (unsigned yz = 0; yz < grid.y * grid.z; ++yz) {
        for (unsigned x = 0; x < grid.x; ++x) {
            os.block = {x, yz % grid.y, yz / grid.y};
            b.group = {threads, 0, 0, 0, 0};
            b.warps.assign(threads / 32, {32, 0, 0, 0, 0});
            memset(shared.data(), 0xff, shared.size() * 4);
            for (unsigned t = 0; t < threads; ++t) {
                b.fibres[t].ended = false;
                b.fibres[t].group = nullptr;
                b.fibres[t].stack.prepare(b.stacks.data() + t * STACK_BYTES, STACK_BYTES, run_fibre);
            }
            b.current = 0;
            os.thread = {0, 0, 0};
            Stack::change(b.scheduler, b.fibres[0].stack);
            if (b.group.running > 0) {
                return false;
            }
        }
    }
    return true;
}

}  // namespace brasa_emulation
