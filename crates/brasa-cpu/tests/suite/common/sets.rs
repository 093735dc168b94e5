//! The instruction sets that a test runs on. A test that finds none says that it is skipped.

use brasa_cpu::Isa;
use brasa_fuzz::{skipped, sweeps};

/// Every set of this machine; in long sweeps also tiles in software.
pub fn instruction_sets() -> Vec<Isa> {
    Isa::available().into_iter().chain(swept_tiles()).collect()
}

/// Tiles in software, which need the vectors of AVX-512.
pub fn emulated_tiles() -> Option<Isa> {
    let tiles = Isa::named("amx-emulated").ok();
    if tiles.is_none() {
        skipped("tiles in software", "this processor lacks AVX-512 with VNNI and VBMI");
    }
    tiles
}

/// Tiles in software for tests that run on each set: slow, and no other code than that of tiles in hardware.
pub fn swept_tiles() -> Option<Isa> {
    if sweeps("products and attention on tiles in software") { emulated_tiles() } else { None }
}

/// Sets that round many rows of floats to bf16.
pub fn rounding_sets() -> Vec<Isa> {
    let sets = instruction_sets().into_iter().filter_map(Isa::with_bf16);
    found(sets.collect(), "products of bf16", "this processor lacks AVX-512 with BF16")
}

/// Sets that round many rows to bf16 in tiles.
pub fn rounding_tiles() -> Vec<Isa> {
    let sets = instruction_sets().into_iter().filter_map(Isa::with_bf16).filter(|isa| isa.has_tiles());
    found(sets.collect(), "attention and quantised weights on tiles of bf16", "this processor lacks AMX")
}

fn found(sets: Vec<Isa>, what: &str, why: &str) -> Vec<Isa> {
    if sets.is_empty() {
        skipped(what, why);
    }
    sets
}
