//! From a model's graph to the graphs of training: the loss of an adapted model, and its gradients.

use std::sync::Arc;

use brasa_graph::derivative::{Wrt, vjp};
use brasa_graph::op::CrossEntropy;
use brasa_graph::pass::{add_low_rank, attend_to_rows, fuse_cross_entropy};
use brasa_graph::rewrite::extend;
use brasa_graph::{DType, Dim, Graph};

use crate::lora::{Lora, Places};
use crate::noise::{self, Noise, Source};
use crate::recompute::{Activations, between_residuals};
use crate::{Result, TrainError};

/// The graphs of training an adapter.
pub(crate) struct Graphs {
    /// Returns the loss: the sum over the learned tokens of their losses times their weights, `[1]`.
    pub loss: Arc<Graph>,
    /// Returns the loss, and then the gradient of each weight of `places`. Its steps bring noise behind all else.
    pub gradients: Arc<Graph>,
    /// The noise.
    pub sources: Vec<Source>,
    pub places: Places,
}

impl Graphs {
    /// The graphs of `model`, whose first output are logits, with `lora`.
    ///
    /// A step brings, for each output row, the id of the token that follows (u32) and the weight of its loss (f32).
    pub fn new(model: &Graph, lora: &Lora, noise: &Noise, activations: Activations) -> Result<Self> {
        let adapted = add_low_rank(model, &lora.low_ranks(model)?)?;
        let places = Places::new(&adapted, lora)?;
        let rows = attend_to_rows(&adapted)?;
        let loss = extend(&rows, |g| {
            let targets = g.given("targets", DType::U32, Dim::OUTS, &[]);
            let weights = g.given("target_weights", DType::F32, Dim::OUTS, &[]);
            let losses = g.apply(CrossEntropy, &[rows.outputs()[0], targets])[0];
            let weighted = g.mul(losses, weights);
            Ok(vec![g.sum(weighted, 0)])
        })?;
        let loss = fuse_cross_entropy(&loss);
        let (noisy, sources) = noise::add(&loss, &places, noise)?;
        let mut wrt = Wrt::new(places.values(&noisy));
        if activations == Activations::Recomputed {
            wrt = wrt.recomputing(between_residuals(&noisy));
        }
        let gradients = vjp(&noisy, &wrt)?;
        if let Some((_, weight)) =
            gradients.gradients.iter().zip(places.weights()).find(|(gradient, _)| gradient.is_none())
        {
            let what = format!("the loss does not depend on {}", weight.name);
            return Err(TrainError::setting(what, "leave its layer out of the targets"));
        }
        Ok(Self { loss: Arc::new(loss), gradients: Arc::new(gradients.graph), sources, places })
    }
}
