//! Passes: graphs made from graphs by [`rewrite`](crate::rewrite()).

mod low_rank;
mod prune;

pub use low_rank::{LowRank, add_low_rank};
pub use prune::prune;
