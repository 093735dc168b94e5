// Written by `cargo xtask cuda` from src/interpreter/program.rs: where Rust places the fields of program.cuh.
#pragma once
#include <stddef.h>

namespace brasa {

static_assert(sizeof(Instr) == 192, "");
static_assert(offsetof(Instr, op) == 0, "");
static_assert(offsetof(Instr, format) == 4, "");
static_assert(offsetof(Instr, flags) == 8, "");
static_assert(offsetof(Instr, rotation) == 12, "");
static_assert(offsetof(Instr, tiles_each) == 16, "");
static_assert(offsetof(Instr, tiles_odd) == 20, "");
static_assert(offsetof(Instr, tile_bytes) == 24, "");
static_assert(offsetof(Instr, piece_bytes) == 28, "");
static_assert(offsetof(Instr, weights) == 32, "");
static_assert(offsetof(Instr, x) == 40, "");
static_assert(offsetof(Instr, y) == 48, "");
static_assert(offsetof(Instr, residual) == 56, "");
static_assert(offsetof(Instr, norm_weight) == 64, "");
static_assert(offsetof(Instr, bias) == 72, "");
static_assert(offsetof(Instr, subs) == 80, "");
static_assert(offsetof(Instr, inputs) == 84, "");
static_assert(offsetof(Instr, outputs) == 88, "");
static_assert(offsetof(Instr, x_back) == 92, "");
static_assert(offsetof(Instr, scale) == 96, "");
static_assert(offsetof(Instr, eps) == 100, "");
static_assert(offsetof(Instr, softcap) == 104, "");
static_assert(offsetof(Instr, attention_scale) == 108, "");
static_assert(offsetof(Instr, residual_back) == 112, "");
static_assert(offsetof(Instr, heads) == 116, "");
static_assert(offsetof(Instr, kv_heads) == 120, "");
static_assert(offsetof(Instr, head_dim) == 124, "");
static_assert(offsetof(Instr, rotary_dim) == 128, "");
static_assert(offsetof(Instr, window) == 132, "");
static_assert(offsetof(Instr, table) == 136, "");
static_assert(offsetof(Instr, kv_offset) == 140, "");
static_assert(offsetof(Instr, q_norm) == 144, "");
static_assert(offsetof(Instr, k_norm) == 152, "");
static_assert(offsetof(Instr, keys_offset) == 160, "");
static_assert(offsetof(Instr, values_offset) == 168, "");
static_assert(offsetof(Instr, y_ahead) == 176, "");
static_assert(offsetof(Instr, raise) == 180, "");
static_assert(offsetof(Instr, reserved) == 184, "");
static_assert(sizeof(Row) == 16, "");
static_assert(offsetof(Row, token) == 0, "");
static_assert(offsetof(Row, index) == 4, "");
static_assert(offsetof(Row, position) == 8, "");
static_assert(offsetof(Row, table) == 12, "");
static_assert(sizeof(Launch) == 256, "");
static_assert(offsetof(Launch, program) == 0, "");
static_assert(offsetof(Launch, count) == 8, "");
static_assert(offsetof(Launch, steps) == 12, "");
static_assert(offsetof(Launch, rows) == 16, "");
static_assert(offsetof(Launch, first) == 20, "");
static_assert(offsetof(Launch, sequence) == 24, "");
static_assert(offsetof(Launch, prefetch) == 28, "");
static_assert(offsetof(Launch, barriers) == 32, "");
static_assert(offsetof(Launch, in_flight) == 36, "");
static_assert(offsetof(Launch, rotary) == 40, "");
static_assert(offsetof(Launch, draws) == 44, "");
static_assert(offsetof(Launch, frequencies) == 48, "");
static_assert(offsetof(Launch, barrier) == 56, "");
static_assert(offsetof(Launch, states) == 64, "");
static_assert(offsetof(Launch, tables) == 72, "");
static_assert(offsetof(Launch, candidates) == 80, "");
static_assert(offsetof(Launch, tokens) == 88, "");
static_assert(offsetof(Launch, cancel) == 96, "");
static_assert(offsetof(Launch, partials) == 104, "");
static_assert(offsetof(Launch, max_pages) == 112, "");
static_assert(offsetof(Launch, stop_count) == 116, "");
static_assert(offsetof(Launch, stops) == 120, "");
static_assert(offsetof(Launch, stamps) == 248, "");
static_assert(EMBED == 0u, "");
static_assert(LINEAR == 1u, "");
static_assert(ATTENTION == 2u, "");
static_assert(COMBINE == 3u, "");
static_assert(NORM == 1u, "");
static_assert(RESIDUAL == 2u, "");
static_assert(PAIRED == 4u, "");
static_assert(DRAW == 8u, "");
static_assert(LOGITS == 16u, "");
static_assert(INTERLEAVED == 32u, "");
static_assert(GELU_TANH == 64u, "");
static_assert(NO_TOKEN == 4294967295u, "");
static_assert(MAX_STOPS == 32u, "");
static_assert(TOKEN_IS_THERE == 4294967296u, "");

constexpr uint32_t HOST_THREADS = 288;
constexpr uint32_t HOST_SLOT_BYTES = 16384;
constexpr uint32_t HOST_SHARED_BYTES = 219344;

}  // namespace brasa
