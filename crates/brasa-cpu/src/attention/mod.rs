//! Attention: queries against cached or present keys and values.
//!
//! The work of a step is cut into **items**: a block of a segment's rows and one KV head, whose query heads share
//! every key and value that is read. Threads take items one by one. If there are too few items for the threads and the
//! caches are long (one sequence decoding), items are cut further into pages, whose partial results are merged after a
//! barrier. Either way each page contributes the same numbers, in the same order.
//!
//! If many rows may be rounded to bf16, items of many queries are products of tiles instead (`tiled`), or of vectors if the rows are a
//! whole text.

mod items;
mod page;
#[cfg(target_arch = "x86_64")]
mod panels;
mod plan;
mod rows;
mod run;
mod scratch;
mod source;
#[cfg(target_arch = "x86_64")]
mod tiled;
mod visibility;

pub(crate) use page::{Distances, Scoring};
pub(crate) use plan::{Attention, Keys, Rounding};
pub(crate) use scratch::AttentionScratch;
pub(crate) use visibility::{Over, Sight};
