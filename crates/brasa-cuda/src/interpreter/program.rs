//! The structures of `kernels/hopper/program.cuh`.
//!
//! They are defined there and here. `kernels/hopper/program_layout.h` is written from these definitions and asserts that the
//! compiler of the kernels places every field where Rust does; `BRASA_UPDATE=1 cargo test -p brasa-cuda params` writes it anew.

#[cfg(test)]
use std::fmt::Write as _;

use bytemuck::{Pod, Zeroable};

macro_rules! shared {
    ($($(#[$doc:meta])* struct $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
            #[repr(C)]
            pub(crate) struct $name { $($(#[$field_doc])* pub $field: $type,)* }
        )*

        /// Assertions about every structure, in C.
        #[cfg(test)]
        fn assertions() -> String {
            let mut text = String::new();
            $(
                let name = stringify!($name);
                let _ = writeln!(text, "static_assert(sizeof({name}) == {}, \"\");", size_of::<$name>());
                $(
                    let (field, offset) = (stringify!($field), std::mem::offset_of!($name, $field));
                    let _ = writeln!(text, "static_assert(offsetof({name}, {field}) == {offset}, \"\");");
                )*
            )*
            text
        }
    };
}

shared! {
    /// One instruction of a program. Fields that its operation does not read are zero.
    struct Instr {
        /// Which operation: [`EMBED`] and its kin.
        op: u32,
        /// Storage of the weight.
        format: u32,
        /// [`NORM`] and its kin.
        flags: u32,
        /// The first multiprocessor that gets one of the odd tiles.
        rotation: u32,
        /// Tiles that every multiprocessor gets.
        tiles_each: u32,
        /// Tiles that are left over.
        tiles_odd: u32,
        /// Bytes of a tile.
        tile_bytes: u32,
        /// Bytes of a tile's units that a slot of the ring holds.
        piece_bytes: u32,
        /// The weight, in fragment order.
        weights: u64,
        /// The value to read.
        x: u64,
        /// The value to write.
        y: u64,
        /// The value to add.
        residual: u64,
        /// Weight of the norm, f32; 0 for a norm without a weight.
        norm_weight: u64,
        /// f32; 0 for none.
        bias: u64,
        /// Groups of 64 inputs of a tile.
        subs: u32,
        /// Inputs of the layer.
        inputs: u32,
        /// Outputs of the layer.
        outputs: u32,
        /// Instructions back to the writer of `x`.
        x_back: u32,
        /// Factor of products: that of the weights over `raise`; of an embedding; of cosine and sine.
        scale: f32,
        /// `eps` of the norm.
        eps: f32,
        /// Soft-cap of logits or scores; 0 for none.
        softcap: f32,
        /// Factor of the attention scores.
        attention_scale: f32,
        /// Instructions back to the writer of `residual`.
        residual_back: u32,
        /// Query heads.
        heads: u32,
        /// Key and value heads.
        kv_heads: u32,
        /// Width of a head.
        head_dim: u32,
        /// Elements of a head that turn.
        rotary_dim: u32,
        /// Positions seen; 0 for all.
        window: u32,
        /// The cache's group, whose block table is read.
        table: u32,
        /// Elements from the first query to the first key.
        kv_offset: u32,
        /// Weight of the queries' norm; 0 for none.
        q_norm: u64,
        /// Weight of the keys' norm; 0 for none.
        k_norm: u64,
        /// Bytes of a page before the cache's keys.
        keys_offset: u64,
        /// Bytes of a page before the cache's values.
        values_offset: u64,
        /// The distance from this instruction to the later one whose number marks the result.
        y_ahead: u32,
        /// A power of two that brings the weight into the range of f16.
        raise: f32,
        /// Tiles of an expert's weight.
        expert_tiles: u32,
        /// Experts that a row chooses.
        chosen: u32,
    }
    /// State that a row needs to go on.
    struct Row {
        /// Token to compute.
        token: u32,
        /// Index of the token in the cache.
        index: u32,
        /// Position of the token in its text.
        position: u32,
        /// First entry of the row's block tables.
        table: u32,
    }
    /// One launch: a program, how many tokens to make, and where everything is.
    struct Launch {
        /// Instructions.
        program: u64,
        /// How many are walked.
        count: u32,
        /// Tokens to make at most.
        steps: u32,
        /// Rows.
        rows: u32,
        /// The first instruction that is walked.
        first: u32,
        /// The number before the first instruction's.
        sequence: u32,
        /// 1 where weights stream in ahead of barriers.
        prefetch: u32,
        /// 1 where instructions are ordered by barriers of the grid.
        barriers: u32,
        /// Slots of the ring that are on their way at a time.
        in_flight: u32,
        /// Elements of a head that turn.
        rotary: u32,
        /// 1 where tokens are drawn.
        draws: u32,
        /// Rotary frequencies, f32.
        frequencies: u64,
        /// The barrier's counter of arrivals.
        barrier: u64,
        /// Rows' states.
        states: u64,
        /// Addresses of pages.
        tables: u64,
        /// Each multiprocessor's best logit.
        candidates: u64,
        /// Drawn tokens, in memory that the host reads meanwhile.
        tokens: u64,
        /// Not 0 there: the host wants no more tokens.
        cancel: u64,
        /// Partial results of attention.
        partials: u64,
        /// Entries of a block table.
        max_pages: u32,
        /// Entries of `stops`.
        stop_count: u32,
        /// Ids that end the chain.
        stops: [u32; MAX_STOPS],
        /// Clocks of a build that measures; 0 for none.
        stamps: u64,
    }
}

/// Operations.
pub(crate) const EMBED: u32 = 0;
pub(crate) const LINEAR: u32 = 1;
pub(crate) const ATTENTION: u32 = 2;
pub(crate) const COMBINE: u32 = 3;
pub(crate) const ROUTE: u32 = 4;
pub(crate) const CHOOSE: u32 = 5;
pub(crate) const EXPERTS: u32 = 6;

/// Flags.
pub(crate) const NORM: u32 = 1;
pub(crate) const RESIDUAL: u32 = 2;
pub(crate) const PAIRED: u32 = 4;
pub(crate) const DRAW: u32 = 8;
pub(crate) const LOGITS: u32 = 16;
pub(crate) const INTERLEAVED: u32 = 32;
pub(crate) const GELU_TANH: u32 = 64;
pub(crate) const YIELDS: u32 = 128;
pub(crate) const OF_CHOSEN: u32 = 256;

/// Experts that a row chooses at most.
pub(crate) const MAX_CHOSEN: u32 = 16;

/// Most stop ids that the device checks; the host checks the others.
pub(crate) const MAX_STOPS: usize = 32;
/// A drawn token that is there.
pub(crate) const TOKEN_IS_THERE: u64 = 1 << 32;
/// In place of a token where no logit is the largest finite one.
pub(crate) const NO_TOKEN: u32 = u32::MAX;

/// Threads of a block.
pub(crate) const THREADS: u32 = 384;
/// Bytes of a slot of the ring.
pub(crate) const SLOT_BYTES: u32 = 16_384;
/// Bytes of shared memory that a block has, `SHARED_BYTES` of `smem_layout.cuh`.
pub(crate) const SHARED_BYTES: u32 = 221_568;
/// Slots on their way at a time: enough to saturate memory, and few enough that activations need not queue behind weights.
pub(crate) const IN_FLIGHT: u32 = 3;

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::path::Path;

    use super::*;

    #[test]
    fn params_of_programs_are_current() {
        let mut text = String::from(
            "// Written by `cargo xtask cuda` from src/interpreter/program.rs: where Rust places the fields of program.cuh.\n\
             #pragma once\n#include <stddef.h>\n\nnamespace brasa {\n\n",
        );
        text += &assertions();
        let constants = [
            ("EMBED", EMBED),
            ("LINEAR", LINEAR),
            ("ATTENTION", ATTENTION),
            ("COMBINE", COMBINE),
            ("ROUTE", ROUTE),
            ("CHOOSE", CHOOSE),
            ("EXPERTS", EXPERTS),
            ("NORM", NORM),
            ("RESIDUAL", RESIDUAL),
            ("PAIRED", PAIRED),
            ("DRAW", DRAW),
            ("LOGITS", LOGITS),
            ("INTERLEAVED", INTERLEAVED),
            ("GELU_TANH", GELU_TANH),
            ("YIELDS", YIELDS),
            ("OF_CHOSEN", OF_CHOSEN),
            ("MAX_CHOSEN", MAX_CHOSEN),
            ("NO_TOKEN", NO_TOKEN),
            ("MAX_STOPS", MAX_STOPS as u32),
        ];
        for (name, value) in constants {
            let _ = writeln!(text, "static_assert({name} == {value}u, \"\");");
        }
        let _ = writeln!(text, "static_assert(TOKEN_IS_THERE == {TOKEN_IS_THERE}u, \"\");\n");
        for (name, value) in
            [("THREADS", THREADS), ("SLOT_BYTES", SLOT_BYTES), ("SHARED_BYTES", SHARED_BYTES)]
        {
            let _ = writeln!(text, "constexpr uint32_t HOST_{name} = {value};");
        }
        text += "\n}  // namespace brasa\n";
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/hopper/program_layout.h");
        if std::env::var_os("BRASA_UPDATE").is_some() {
            std::fs::write(&file, &text).expect("the file can be written");
        }
        let found = std::fs::read_to_string(&file).expect("the file is there");
        assert_eq!(found, text, "structures changed: run BRASA_UPDATE=1 cargo test -p brasa-cuda params");
    }
}
