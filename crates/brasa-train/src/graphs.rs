//! Makes the graphs of training from a model's graph: the loss of an adapted model, and its gradients.

use std::sync::Arc;

use brasa_graph::derivative::{Wrt, vjp};
use brasa_graph::op::CrossEntropy;
use brasa_graph::pass::{attend_to_rows, fuse_cross_entropy};
use brasa_graph::rewrite::extend;
use brasa_graph::{DType, Dim, Graph};

use crate::learned::Learned;
use crate::noise::{self, Source};
use crate::{Objective, Result, TrainError, TrainOptions};

/// The graphs of training.
pub(crate) struct Graphs {
    /// For preferences: graphs that return each learned token's loss times its weight, with the adapter and without it.
    pub losses: Option<[Arc<Graph>; 2]>,
    /// The graph that returns the loss: the sum over the learned tokens of their losses times their weights, `[1]`.
    pub loss: Arc<Graph>,
    /// The graph that returns the loss, and then the gradient of each learned weight. Steps bring the noise after all other
    /// inputs.
    pub gradients: Arc<Graph>,
    /// The inputs of noise.
    pub sources: Vec<Source>,
}

impl Graphs {
    /// Makes the graphs from `model`, whose first output is logits, and from `adapted`, the same model with the learned weights.
    ///
    /// A step brings, for each output row, the id of the token that follows (u32) and the weight of its loss (f32), and then the
    /// inputs that a custom loss declares.
    pub fn new(model: &Graph, adapted: &Graph, learned: &Learned, options: &TrainOptions) -> Result<Self> {
        let TrainOptions { noise, activations, objective, .. } = options;
        let losses = match objective {
            Objective::Likelihood | Objective::LikelihoodByStep | Objective::Own(_) => None,
            Objective::Preference(_) => {
                let of = |graph: &Graph| weighted_losses(graph, objective, false);
                Some([of(adapted)?, of(model)?])
            }
        };
        let loss = weighted_losses(adapted, objective, true)?;
        let (noisy, sources) = noise::add(&loss, learned, noise)?;
        let wrt = Wrt::new(learned.values(&noisy)).recomputing(activations.recomputed(&noisy));
        let gradients = vjp(&noisy, &wrt)?;
        if let Some((_, weight)) =
            gradients.gradients.iter().zip(learned.weights()).find(|(gradient, _)| gradient.is_none())
        {
            let what = format!("the loss does not depend on {}", weight.name);
            return Err(TrainError::setting(what, "leave it out"));
        }
        let losses = losses.map(|losses| losses.map(Arc::new));
        Ok(Self { losses, loss: Arc::new(loss), gradients: Arc::new(gradients.graph), sources })
    }
}

/// The losses of a model's output rows times their weights; their sum if `summed`.
fn weighted_losses(model: &Graph, objective: &Objective, summed: bool) -> Result<Graph> {
    let rows = attend_to_rows(model)?;
    let loss = extend(&rows, |g| {
        let targets = g.given("targets", DType::U32, Dim::OUTS, &[]);
        let weights = g.given("target_weights", DType::F32, Dim::OUTS, &[]);
        let logits = rows.outputs()[0];
        let losses = match objective {
            Objective::Own(loss) => loss.build(g, logits, targets)?,
            _ => g.apply(CrossEntropy, &[logits, targets])[0],
        };
        let weighted = g.mul(losses, weights);
        Ok(vec![if summed { g.sum(weighted, 0) } else { weighted }])
    })?;
    Ok(fuse_cross_entropy(&loss))
}
