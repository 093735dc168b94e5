//! A linear layer with a low-rank product of an adapter bank, in which every row uses some of the ranks.

use super::{Finder, Fusion, LinearResidual, LowRankRows, Match, Projection};
use crate::{NodeId, ValueId};

/// `y = [residual +] x·Wᵀ [+ bias] + (s ∘ x·Aᵀ)·Bᵀ`: a linear layer and a [`LowRankRows`] of the same operand, added to each
/// other or both to a residual.
///
/// A device may add the low-rank product within the layer's kernel, so that operations after it stay in the same kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct LinearLowRankRows {
    /// The layer: all rows of its weight.
    pub layer: Projection,
    /// The low-rank product. Its residual is the pattern's residual, or else the layer's result.
    pub low: LowRankRows,
    /// The value that both products are added to, `[R, N]`: first the low-rank product, then the layer's result.
    pub residual: Option<ValueId>,
    /// The sum, `[R, N]`.
    pub y: ValueId,
}

impl LinearLowRankRows {
    /// Finds the pattern from the last addition.
    pub(super) fn find(finder: &Finder, anchor: NodeId) -> Option<Match> {
        Self::beside(finder, anchor).or_else(|| Self::behind(finder, anchor))
    }

    /// Finds the pattern in which the low-rank product is added to the layer's result.
    fn beside(finder: &Finder, anchor: NodeId) -> Option<Match> {
        let mut found = LowRankRows::find(finder, anchor)?;
        let Fusion::LowRankRows(low) = found.fusion else { return None };
        let (x, layer) = finder.projection(low.residual, &mut found.nodes)?;
        let is_whole = finder.graph().view(low.residual).root == low.residual
            && finder.graph().value(low.residual).shape.row_elements() == Some(layer.rows.len());
        let (residual, y) = (None, low.y);
        let is_it = x == low.x && is_whole;
        is_it.then(|| Match { fusion: Self { layer, low, residual, y }.into(), ..found })
    }

    /// Finds the pattern in which the layer's result is added to the sum of a residual and the low-rank product.
    fn behind(finder: &Finder, anchor: NodeId) -> Option<Match> {
        let mut found = LinearResidual::find(finder, anchor)?;
        let Fusion::LinearResidual(LinearResidual { x, layer, residual: sum, y }) = found.fusion else {
            return None;
        };
        let of_sum = LowRankRows::find(finder, finder.maker(sum)?.0)?;
        let Fusion::LowRankRows(low) = of_sum.fusion else { return None };
        found.nodes.extend(of_sum.nodes);
        let residual = Some(low.residual);
        (x == low.x).then(|| Match { fusion: Self { layer, low, residual, y }.into(), ..found })
    }
}
