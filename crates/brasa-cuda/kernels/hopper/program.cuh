// The compiled program as the device reads it: instructions, rows, launch parameters. The host writes these structs;
// all fields are little-endian and naturally aligned, pointers are device addresses.
//
// A program is a list of instructions; one *step* walks the list once and makes one token of every row. Instruction i of
// step s has the *sequence number* base + s·count + i + 1, which also tags what it writes (see `Sync`).
#pragma once
#include <stdint.h>

namespace brasa {

enum OpCode : uint32_t {
    // h = embedding row of the token: the row's given token in the first step, then the winner of the candidates that the
    // last step's Linear with DRAW left. Begins with an arrival: KV written in earlier steps can be read by who has seen all arrive (the rungs with
    // barriers end it with one instead).
    // A winner that ends the chain (a stop id, a logit that is not finite, a cancelled chain) ends the launch instead.
    EMBED = 0,
    // y = act(norm(x) · Wᵀ + bias) + residual.
    LINEAR = 1,
    // Norms and turns queries and keys, writes keys and values to the cache, attends page by page.
    ATTENTION = 2,
    // Merges the pages' partial results; nothing to do where every row sees one page.
    COMBINE = 3,
    // y = norm(x) · Wᵀ with a weight of dense f32: the logits of a router.
    ROUTE = 4,
    // Each multiprocessor that has tiles of the two layers behind chooses the experts of a row by itself, and leaves them and their shares in its memory.
    CHOOSE = 5,
    // LINEAR with the weights of the chosen experts: with PAIRED gates and ups of each, tile by tile, and otherwise inputs of all, side by side.
    EXPERTS = 6,
};

enum Flags : uint32_t {
    NORM = 1,             // x is RMS-normed first (norm_weight may be null: scale one)
    RESIDUAL = 2,         // y += residual
    PAIRED = 4,           // tiles are paired: y = act(gate) · up, `outputs` counts products
    DRAW = 8,             // each multiprocessor leaves its best logit and id in `candidates`
    LOGITS = 16,          // y is written (always, but with DRAW)
    INTERLEAVED = 32,     // rotary pairs (2i, 2i+1); otherwise (i, i + rotary/2)
    GELU_TANH = 64,       // of PAIRED: gelu in place of silu
    YIELDS = 128,         // of weights: while the ring is not hungry, a slot less of them is on its way
    OF_CHOSEN = 256,      // of CHOOSE: shares among the chosen experts alone
};

struct Instr {
    uint32_t op, format, flags, rotation;          // rotation: see my_tiles
    uint32_t tiles_each, tiles_odd, tile_bytes, piece_bytes;  // tiles / sms, tiles % sms; bytes of a tile, of a slot's share
    uint64_t weights, x;
    uint64_t y, residual;
    uint64_t norm_weight, bias;
    uint32_t subs, inputs, outputs, x_back;        // K/64 (padded), K, N; sequence numbers back to the writer of x
    float scale, eps, softcap, attention_scale;    // 2^-e of the weight (of rope: its magnitude); of the norm; 0: none; of scores
    uint32_t residual_back, heads, kv_heads, head_dim;
    uint32_t rotary_dim, window, table, kv_offset; // window 0: all; table: the cache's group; kv_offset: elements from q's first to k's in x; v follows k
    uint64_t q_norm, k_norm;                       // null: no norm. Of EXPERTS with PAIRED, q_norm: where ups begin; of CHOOSE, k_norm: a scale of each expert, or null
    uint64_t keys_offset, values_offset;           // of this cache within a page
    uint32_t y_ahead;                              // of LINEAR: what it writes has the sequence number of the instruction so many behind it
    float raise;                                   // 2^e of the weight
    uint32_t expert_tiles, chosen;                 // tiles of an expert's weight; experts of a row
};
static_assert(sizeof(Instr) == 192 && sizeof(Instr) % 16 == 0, "shared with the host; one warp loads it, eight bytes a lane");

// What a row needs to go on. The kernel counts index and position on.
struct Row { uint32_t token, index, position, table; };  // table: first entry of its block tables, max_pages for each group

// How CHOOSE and the layers behind it use fields of others.
//   CHOOSE: inputs: experts. Tiles of the first layer behind: tiles_each, tiles_odd, rotation; of the second: heads, kv_heads, head_dim. scale: of all shares.
//   EXPERTS: heads: with PAIRED, outputs of an expert, and otherwise bytes of an expert's tile. attention_scale: of ups, over that of gates.
constexpr uint32_t MAX_CHOSEN = 16;
constexpr uint32_t MAX_STOPS = 32;
// Drawn token of step s, as the host sees it: TOKEN_IS_THERE | id. NO_TOKEN where no logit is the largest finite one.
constexpr uint64_t TOKEN_IS_THERE = 1ull << 32;
constexpr uint32_t NO_TOKEN = ~0u;

struct Launch {
    const Instr* program;
    uint32_t count, steps, rows, first;           // first, count: the range of instructions that is walked
    uint32_t sequence;                            // base of the sequence numbers
    uint32_t prefetch;                            // 1: weights of later instructions stream in ahead of barriers
    uint32_t barriers;                            // 0 for a launch of one instruction
    uint32_t in_flight;                           // slots that the producer asks for ahead of the last that came
    uint32_t rotary;                              // elements of a head that turn: entries of `frequencies` times two
    uint32_t draws;                               // 1: the last instruction draws, the token and the rows' states are written
    const float* frequencies;                     // [rotary / 2]
    uint32_t* barrier;                            // counts arrivals, of EMBED in each step where values are tagged; zero at the launch
    Row* states;
    const uint64_t* tables;                       // addresses of pages
    uint64_t* candidates;                         // of two steps in turn, [sms + 1][2] tagged: logit, id; the last is the host's, +inf in a cancelled chain
    uint64_t* tokens;                             // [steps] drawn tokens, in memory that the host reads meanwhile
    const uint32_t* cancel;                       // not 0: the host wants no more tokens; null for none
    uint64_t partials;                            // [rows][heads][max_pages][head_dim + 2]: o, m, l of each share of the pages (tagged where Sync is)
    uint32_t max_pages, stop_count;               // entries of a block table; of `stops`
    uint32_t stops[MAX_STOPS];                    // ids that end the chain
    uint64_t* stamps;                             // [sms][count][8] clocks of the last step; null for none
};

}  // namespace brasa

#include "program_layout.h"
