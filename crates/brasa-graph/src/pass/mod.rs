//! Passes: graphs made from graphs by [`rewrite`](crate::rewrite()).

mod attend_to_rows;
mod low_rank;
mod prune;

pub use attend_to_rows::attend_to_rows;
pub use low_rank::{LowRank, add_low_rank};
pub use prune::prune;
