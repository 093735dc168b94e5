//! Passes: graphs made from graphs by [`rewrite`](crate::rewrite()).

mod attend_to_rows;
mod fuse_cross_entropy;
mod low_rank;
mod prune;
mod row_norms;

pub use attend_to_rows::attend_to_rows;
pub use fuse_cross_entropy::fuse_cross_entropy;
pub use low_rank::{LowRank, add_low_rank, add_low_rank_bank};
pub use prune::prune;
pub use row_norms::{DenseChange, row_norms};
