//! Examples: from files to token ids, and from these to steps.
//!
//! A row of a file is a conversation, a prompt with its completion, a text, or token ids; [`Dataset::read`] makes
//! [documents](Document) of rows. [`Batches`] packs documents into steps without padding, in an order that a seed decides.
//! Nothing is cut or left out silently: the [`Report`] counts it, and names the first line.

mod as_mlx;
mod batches;
mod cache;
mod csv;
mod dataset;
mod document;
mod encode;
mod lines;
mod mersenne;
mod other_forms;
mod pack;
mod report;
mod row;

pub use as_mlx::{MlxBatches, MlxPurpose};
pub use batches::{Batches, Place};
pub use cache::TokenCache;
pub use dataset::{Dataset, Files};
pub use document::{Document, Span};
pub use encode::{DataOptions, Examples, Learned, Long, Padding, Turns};
pub use pack::pack;
pub use report::{Counted, Lengths, Report};
