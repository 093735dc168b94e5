// The interpreter's block: its warps, and where things lie in its shared memory.
#pragma once
#include "program.cuh"

namespace brasa {

#ifndef BRASA_CONSUMERS
#define BRASA_CONSUMERS 256
#endif
constexpr uint32_t CONSUMERS = BRASA_CONSUMERS;  // threads
constexpr uint32_t WARPS = CONSUMERS / 32;
constexpr uint32_t FINISHERS = 3;                // warps: registers are given to four at a time, and the producer is one
constexpr uint32_t THREADS = CONSUMERS + 32 * (1 + FINISHERS);
constexpr uint32_t SLOT_BYTES = 16384;
constexpr uint32_t SLOTS = 10;
constexpr uint32_t HUNGRY_SLOTS = 5;  // free slots of a ring that may have as many in flight as there can be

// Where things lie in shared memory, in bytes.
constexpr uint32_t BATCH = 8;                               // tiles whose partial sums lie in scratch together
constexpr uint32_t TILE_FLOATS = WARPS * 16 + 16;           // padded: two tiles' sums in other banks
constexpr uint32_t HALF_FLOATS = BATCH * TILE_FLOATS + 32;  // and a sum of squares a warp
constexpr uint32_t AT_RING = 0;
constexpr uint32_t AT_X = SLOTS * SLOT_BYTES;               // each warp's own share of x: fragments
constexpr uint32_t MAX_SUBS = 235;                          // K up to 15040
constexpr uint32_t AT_SUMS = AT_X + MAX_SUBS * 128;         // of a sub: four sums
constexpr uint32_t AT_SCALES = AT_SUMS + MAX_SUBS * 16;     // of a sub: a power of two
constexpr uint32_t AT_SCRATCH = (AT_SCALES + MAX_SUBS * 4 + 127) / 128 * 128;  // partial sums, twice; attention's merge
constexpr uint32_t AT_LEFT = AT_SCRATCH - 16;               // mbarriers of both halves of scratch: partial sums are there (BRASA_EACH_LANE, ring.cuh)
constexpr uint32_t SCRATCH_BYTES = 2 * HALF_FLOATS * 4;
constexpr uint32_t AT_QUERIES = AT_SCRATCH + SCRATCH_BYTES; // [E/16][8][4] 8 bytes
constexpr uint32_t AT_MAXIMA = AT_QUERIES + 4096;           // [8][warps]
constexpr uint32_t AT_MASSES = AT_MAXIMA + WARPS * 32;
constexpr uint32_t AT_NEW = AT_MASSES + WARPS * 32;         // key and value of the new position, 512 bytes each
constexpr uint32_t AT_ROPE = AT_NEW + 1024;                 // [rotary/2] cosine, sine
constexpr uint32_t AT_INSTR = AT_ROPE + 1024;               // each warp's copies of two instructions, 256 bytes each: this one and the next, by their sequence numbers' parity
constexpr uint32_t INSTR_BYTES = THREADS / 32 * 256;
constexpr uint32_t AT_LAUNCH = AT_INSTR + 2 * INSTR_BYTES;
constexpr uint32_t AT_FULL = AT_LAUNCH + sizeof(Launch);
constexpr uint32_t AT_EMPTY = AT_FULL + 8 * SLOTS;
constexpr uint32_t AT_PROGRESS = AT_EMPTY + 8 * SLOTS;      // instructions that the consumers have finished
constexpr uint32_t AT_ENDED = AT_PROGRESS + 4;              // not 0: the consumers have left
constexpr uint32_t AT_STOPPED = AT_ENDED + 4;               // not 0: the chain ended before its last step
constexpr uint32_t AT_ZERO = (AT_STOPPED + 4 + 15) / 16 * 16;  // sixteen bytes of zeros
constexpr uint32_t AT_ROW = AT_ZERO + 16;                   // the first row, as the launch begins
constexpr uint32_t AT_CHOSEN = AT_ROW + 16;                 // the experts of a row
constexpr uint32_t AT_SHARES = AT_CHOSEN + 4 * MAX_CHOSEN;  // and their shares
constexpr uint32_t AT_CHOICE = AT_SHARES + 4 * MAX_CHOSEN;  // an mbarrier: a choice was made
constexpr uint32_t AT_FREED = AT_CHOICE + 8;                // mbarriers of both halves of scratch: partial sums have been read
constexpr uint32_t AT_FOUND = AT_FREED + 16;                // each finisher's best logit and id
constexpr uint32_t SHARED_BYTES = (AT_FOUND + 8 * FINISHERS + 15) / 16 * 16;
static_assert(AT_SCALES + MAX_SUBS * 4 <= AT_LEFT, "room in front of scratch");
static_assert(SHARED_BYTES <= 232448, "shared memory of a block");
static_assert(CONSUMERS != 256 || (THREADS == HOST_THREADS && SLOT_BYTES == HOST_SLOT_BYTES && SHARED_BYTES == HOST_SHARED_BYTES), "shared with the host");
static_assert(AT_QUERIES % 16 == 0 && AT_SUMS % 16 == 0, "alignment");

}  // namespace brasa
