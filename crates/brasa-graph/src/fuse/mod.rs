//! Fused operations: one file per pattern, each defined by the primitives it replaces.
//!
//! A pattern is found from one of its nodes, its *anchor*, by walking to the makers and users of values. Views (slice, reshape)
//! in between are walked through and belong to the match. A match is a proposal: [`Schedule::new`](crate::Schedule::new) refuses
//! it if a value inside is needed outside, if a node is already taken, or if the nodes cannot run one after the other. So a
//! pattern only says which nodes belong together.

mod finder;
mod gate_up_activation;
mod gate_up_low_rank_rows;
mod linear_activation;
mod linear_low_rank_rows;
mod linear_residual;
mod low_rank_rows;
mod norm_linear;
mod qk_norm_rope_cache_write;
mod router_experts;

pub(crate) use finder::{Finder, Match};
pub use finder::{Norm, Projection};
pub use gate_up_activation::GateUpActivation;
pub use gate_up_low_rank_rows::GateUpLowRankRows;
pub use linear_activation::LinearActivation;
pub use linear_low_rank_rows::LinearLowRankRows;
pub use linear_residual::LinearResidual;
pub use low_rank_rows::LowRankRows;
pub use norm_linear::NormLinear;
pub use qk_norm_rope_cache_write::QkNormRopeCacheWrite;
pub use router_experts::RouterExperts;

use crate::NodeId;

macro_rules! patterns {
    ($($name:ident = $label:literal),* $(,)?) => {
        /// Names of fused operations. A device lists the ones that it runs.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs)]
        pub enum Pattern { $($name),* }

        /// A fused operation: its pattern, with the values and parameters of each part.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(missing_docs)]
        pub enum Fusion { $($name($name)),* }

        impl Pattern {
            /// All patterns, in a search order that leaves nodes for each of them to match.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// Name of the pattern in printed schedules.
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => $label),* }
            }

            /// The match anchored at `node`, if there is one.
            pub(crate) fn find(self, finder: &Finder, node: NodeId) -> Option<Match> {
                match self { $(Self::$name => $name::find(finder, node)),* }
            }
        }

        impl Fusion {
            /// The pattern of the fused operation.
            pub fn pattern(&self) -> Pattern {
                match self { $(Self::$name(_) => Pattern::$name),* }
            }
        }

        $(impl From<$name> for Fusion {
            fn from(fusion: $name) -> Self { Self::$name(fusion) }
        })*
    };
}

patterns! {
    RouterExperts = "router_experts",
    GateUpLowRankRows = "gate_up_low_rank_rows",
    LinearLowRankRows = "linear_low_rank_rows",
    LowRankRows = "low_rank_rows",
    GateUpActivation = "gate_up_activation",
    QkNormRopeCacheWrite = "qk_norm_rope_cache_write",
    LinearResidual = "linear_residual",
    NormLinear = "norm_linear",
    LinearActivation = "linear_activation",
}
