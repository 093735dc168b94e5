//! Custom losses.

use std::fmt;
use std::sync::Arc;

use brasa_graph::op::CrossEntropy;
use brasa_graph::step::{GivenValues, Step};
use brasa_graph::{Builder, Dim, GraphError, Shape, ValueId};

use crate::data::{Batches, Document};

type Build = dyn Fn(&mut Builder, &LearnedTokens) -> ValueId + Send + Sync;
type Bring = dyn Fn(usize, &Document) -> Vec<GivenValues> + Send + Sync;

/// A custom loss: a number for each learned token, computed from its logits by operations of a graph.
///
/// An update lowers the mean of these numbers over the learned tokens, weighted by the tokens' weights. Evaluations report the
/// same mean. The gradient follows from the rules of the operations ([`brasa_graph::derivative`]), and the graph runs on every
/// device that has them.
///
/// Label smoothing (Szegedy et al. 2015, arXiv:1512.00567), in which a tenth of the probability is spread over all tokens:
///
/// ```
/// use brasa_graph::op::{Binary, Reduce, ReduceFn};
/// use brasa_train::{Objective, TokenLoss};
///
/// let smoothed = TokenLoss::new("labels smoothed by 0.1", |g, at| {
///     let reduced = |function| Reduce { function, axis: 1 };
///     let all = g.apply(reduced(ReduceFn::LogSumExp), &[at.logits])[0];
///     let mean = g.apply(reduced(ReduceFn::Mean), &[at.logits])[0];
///     let spread = g.apply(Binary::Sub, &[all, mean])[0];
///     let (own, spread) = (g.scale(at.cross_entropies, 0.9), g.scale(spread, 0.1));
///     g.add(own, spread)
/// });
/// let objective = Objective::Own(smoothed);
/// # assert_eq!(format!("{objective:?}"), "Own(TokenLoss(\"labels smoothed by 0.1\"))");
/// ```
#[derive(Clone)]
pub struct TokenLoss {
    name: Arc<str>,
    build: Arc<Build>,
    bring: Option<Arc<Bring>>,
}

/// The values from which a [`TokenLoss`] is computed. R is the number of learned tokens of a step, V the size of the vocabulary.
#[derive(Clone, Copy, Debug)]
pub struct LearnedTokens {
    /// The model's logits before each learned token, f32 `[R, V]`.
    pub logits: ValueId,
    /// The ids of the learned tokens, u32 `[R]`.
    pub tokens: ValueId,
    /// −ln of the probability that the model gives each learned token, f32 `[R]`. A loss that reads these values and not the
    /// logits needs no memory for logits.
    pub cross_entropies: ValueId,
    /// The size of the vocabulary, V.
    pub vocab_size: usize,
}

impl TokenLoss {
    /// A loss computed by the nodes that `build` adds, f32 `[R]`. `name` identifies the loss: a run does not resume from a
    /// checkpoint of a loss with another name. So the name should include the loss's settings.
    pub fn new(
        name: impl Into<Arc<str>>,
        build: impl Fn(&mut Builder, &LearnedTokens) -> ValueId + Send + Sync + 'static,
    ) -> Self {
        Self { name: name.into(), build: Arc::new(build), bring: None }
    }

    /// Adds inputs that each document brings, such as a teacher's probabilities, advantages, or log-probabilities of an older
    /// model.
    ///
    /// `bring` gets a document's index in [`Batches::documents`] and the document, and returns the values of each input that the
    /// loss declares by [`Builder::given`], in the order of their declarations: a row for each [learned token](Document::targets)
    /// of an input of [`Dim::OUTS`] rows, a row for each of the document's [rows](Document::rows) of one of [`Dim::ROWS`]. It is
    /// called each time the document is in a step.
    #[must_use]
    pub fn bringing(
        self,
        bring: impl Fn(usize, &Document) -> Vec<GivenValues> + Send + Sync + 'static,
    ) -> Self {
        Self { bring: Some(Arc::new(bring)), ..self }
    }

    /// Name of the loss.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Builds the loss of each row of `logits`.
    pub(crate) fn build(
        &self,
        g: &mut Builder,
        logits: ValueId,
        tokens: ValueId,
    ) -> Result<ValueId, GraphError> {
        let vocab_size = g.shape(logits).and_then(Shape::width).unwrap_or_default();
        let cross_entropies = g.apply(CrossEntropy, &[logits, tokens])[0];
        let losses = (self.build)(g, &LearnedTokens { logits, tokens, cross_entropies, vocab_size });
        g.check()?;
        match g.shape(losses) {
            Some(shape) if *shape != Shape(vec![Dim::OUTS]) => Err(GraphError::Operands {
                op: "loss",
                what: format!("`{}` makes no number for each learned token", self.name),
                operands: format!("{shape}, expected {}", Shape(vec![Dim::OUTS])),
            }),
            _ => Ok(losses),
        }
    }

    /// Adds the inputs that each document brings to the step of `documents`.
    pub(crate) fn bring(&self, step: &mut Step, batches: &Batches, documents: &[u32]) {
        let Some(bring) = &self.bring else { return };
        for segment in &mut step.segments {
            let number = documents[segment.sequence.0 as usize] as usize;
            segment.given.extend(bring(number, &batches.documents()[number]));
        }
    }
}

/// Two losses are equal if they have the same name and one is a clone of the other.
impl PartialEq for TokenLoss {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && Arc::ptr_eq(&self.build, &other.build)
    }
}

impl fmt::Debug for TokenLoss {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("TokenLoss").field(&self.name).finish()
    }
}
