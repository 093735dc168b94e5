//! The instruction sets that a test runs on. A test that finds none says that it is skipped.

use brasa_cpu::Isa;
use brasa_graph::testing::skipped;

/// Tiles in software, which need the vectors of AVX-512.
pub fn emulated_tiles() -> Option<Isa> {
    let tiles = Isa::named("amx-emulated").ok();
    if tiles.is_none() {
        skipped("AVX-512 with VNNI and VBMI");
    }
    tiles
}

/// Sets that round many rows of floats to bf16; tiles in software too.
pub fn rounding_sets() -> Vec<Isa> {
    let sets = Isa::available().into_iter().chain(Isa::named("amx-emulated"));
    found(sets.filter_map(Isa::with_bf16).collect(), "AVX-512 with BF16")
}

/// Sets that round many rows to bf16 in tiles; tiles in software too.
pub fn rounding_tiles() -> Vec<Isa> {
    let sets = rounding_sets().into_iter().filter(|isa| isa.has_tiles());
    found(sets.collect(), "tiles of bf16")
}

fn found(sets: Vec<Isa>, needs: &str) -> Vec<Isa> {
    if sets.is_empty() {
        skipped(needs);
    }
    sets
}
