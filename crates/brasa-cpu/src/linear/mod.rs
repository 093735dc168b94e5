//! Weights packed into the order in which kernels stream them, and their products `y = x · Wᵀ`.
//!
//! A [`PackedLinear`] is one logical weight `[N, K]`: a list of row segments, each in its own storage format. Outputs come in
//! **strips** of 16; a thread computes any range of strips for all rows of a step, so the work of
//! one operation is split by strips. The order of every sum depends on K and the storage format alone: not
//! on rows, threads or what else is in the step.
//!
//! | class of a weight | kept as | multiplied with |
//! |---|---|---|
//! | quantised formats | codes at their stored width, outputs interleaved | int8 activations; many rows in bf16 if there are tiles for it |
//! | F16, BF16 | stored precision, outputs interleaved | f32 activations; many rows in bf16 if there are instructions for it |
//! | F32, and weights that score experts | F32, outputs interleaved | f32 activations |
//! | reference precision, formats without kernels | stored bytes | f32 activations, decoded row by row |
//!
//! The other side of a weight, `x = y · W`, is multiplied in bf16 if there are instructions for it, by tiles that are turned a few at
//! a time; otherwise rows become panels of products in f32.
//!
//! Imports point down this list, from what users call to what knows nothing of products:
//!
//! - `packed`, `experts`: weights;
//! - `rows`: rows of one format, which ask `route` for the loop;
//! - `loops`: one file for each route, over strips and rows;
//! - `kernels`: products in registers, for each instruction set;
//! - `some_inputs`: single rows times some columns of packed floats;
//! - `panels_of_rows`: rows in f32, for products with the other side;
//! - `blocks`, `scales`, `planes`: packed codes, block by block;
//! - `pack`, `stored`, `buffer`: how weights come to be packed;
//! - `layout`, `float_layout`, `formats`, `operands`, `ranges`: where things lie.
//!
//! One row of Q4_K goes through `packed`, `rows`, `loops/planes`, `kernels/codes` and an instruction set's file; with AVX-512, 8 rows
//! do so too, and 512 rows go through `loops/panels` instead.
#![allow(
    clippy::inline_always,
    reason = "one source is compiled for several instruction sets, which needs inlining"
)]

mod blocks;
mod buffer;
mod experts;
mod float_layout;
mod formats;
mod kernels;
mod layout;
mod loops;
mod operands;
mod pack;
mod packed;
mod panels_of_rows;
mod planes;
mod ranges;
mod route;
mod rows;
mod scales;
mod some_inputs;
mod stored;

pub use buffer::Packer;
pub use experts::{ExpertGroups, ExpertInput, PackedExperts};
pub use operands::{FloatRows, Input, Output, RowMap, RowPair};
pub use packed::{PackedLinear, STRIP, TURNED_COLUMNS};
pub(crate) use panels_of_rows::OtherSide;
pub(crate) use route::most_few_rows;
pub use route::{Arithmetic, Forms, WeightClass, WeightClasses};
pub use some_inputs::Ahead;
