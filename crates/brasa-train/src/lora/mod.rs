//! Low-rank adapters that are trained (Hu et al. 2021, arXiv:2106.09685).
//!
//! An adapted layer is `y = x·Wᵀ + scale · (x·Aᵀ)·Bᵀ`. `W` is a constant in any storage format. `A` and `B` are learned in f32,
//! and read unchanged or rounded to [bfloat16](AdapterDtype).
//!
//! With magnitudes (DoRA; Liu et al. 2024, arXiv:2402.09353) it is `y = m / ‖W + scale·B·A‖ ∘ (x·Wᵀ + scale · (x·Aᵀ)·Bᵀ)`: the length of each
//! row is learned apart from its direction. The norms of rows count as constants in gradients, as the paper has it.

mod dtype;
mod layer;
mod norms;
mod places;
mod targets;

use std::sync::Arc;

use brasa_formats::Tensor;
use brasa_graph::pass::{DenseChange, LowRank, row_norms};
use brasa_graph::{Graph, Weight, WeightPart};

pub use dtype::AdapterDtype;
pub use layer::Layer;
pub(crate) use norms::Norms;
pub(crate) use places::Places;
pub(crate) use targets::{Kind, Named};
pub use targets::{Pattern, Targets};

use crate::optimizer::Form;
use crate::{Random, Result, TrainError};

/// Which layers are adapted, and how.
#[derive(Clone, Debug)]
pub struct LoraOptions {
    /// The layers that are adapted.
    pub targets: Targets,
    /// Rank: rows of `A` and columns of `B`.
    pub rank: usize,
    /// α, which determines the scale of the product.
    pub alpha: f32,
    /// The formula of the scale from rank and `alpha`.
    pub scaling: Scaling,
    /// Rank and `alpha` of particular layers. If several entries name a layer, the first entry with a number is used.
    pub own: Vec<Own>,
    /// The element type in which products read `A` and `B`.
    pub dtype: AdapterDtype,
    /// Seed of the initial values of `A`.
    pub seed: u64,
}

/// Rank and α of the layers that a pattern names, if different from the general ones.
#[derive(Clone, Debug)]
pub struct Own {
    /// The layers with this rank and α.
    pub pattern: Pattern,
    /// Rank of these layers; `None` for the general one.
    pub rank: Option<usize>,
    /// α of these layers; `None` for the general one.
    pub alpha: Option<f32>,
}

impl Default for LoraOptions {
    fn default() -> Self {
        let (targets, scaling) = (Targets::default(), Scaling::default());
        let dtype = AdapterDtype::default();
        Self { targets, rank: 8, alpha: 16.0, scaling, own: Vec::new(), dtype, seed: 0 }
    }
}

/// The formula of the scale from rank and α.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scaling {
    /// `α / r`.
    #[default]
    Rank,
    /// `α / √r`: rank-stabilised (Kalajdzievski 2023, arXiv:2312.03732).
    RootOfRank,
}

impl Scaling {
    /// The scale for a rank and an α.
    pub fn scale(self, rank: usize, alpha: f32) -> f32 {
        match self {
            Self::Rank => alpha / rank as f32,
            Self::RootOfRank => (f64::from(alpha) / (rank as f64).sqrt()) as f32,
        }
    }
}

/// An adapter of some layers of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Lora {
    /// A pair of matrices for each layer. Either all have magnitudes or none has.
    pub pairs: Vec<Pair>,
    /// The element type in which products read `A` and `B`, and in which they are written.
    pub dtype: AdapterDtype,
}

/// `A` and `B` of one layer, and its magnitudes if it has any.
#[derive(Clone, Debug, PartialEq)]
pub struct Pair {
    /// The layer.
    pub layer: Layer,
    /// Rank: rows of `A` and columns of `B`.
    pub rank: usize,
    /// Factor of the product.
    pub scale: f32,
    /// The learned values of `A`, `[rank, inputs]`; for experts, the experts' matrices one after the other.
    pub a: Vec<f32>,
    /// The learned values of `B`, `[rows, rank]`, with rows in the order of the graph's weight; for experts, the experts'
    /// matrices one after the other.
    pub b: Vec<f32>,
    /// The learned lengths of the rows, `[rows]` (DoRA); `None` if lengths are not learned.
    pub magnitudes: Option<Vec<f32>>,
}

impl Pair {
    fn arrays(&self) -> impl Iterator<Item = &Vec<f32>> {
        [&self.a, &self.b].into_iter().chain(&self.magnitudes)
    }
}

impl Lora {
    /// Makes an adapter that changes nothing yet: `B` is zero, and `A` uniform within `±1/√inputs`, as in PEFT (Kaiming's rule
    /// with a = √5; He et al. 2015, arXiv:1502.01852).
    ///
    /// # Errors
    ///
    /// [`TrainError::Setting`] if no layer is a target, a pattern names no layer, or rank or α are no positive numbers.
    pub fn new(layers: &[Layer], options: &LoraOptions) -> Result<Self> {
        let chosen = options.targets.choose(layers)?;
        for own in &options.own {
            if !chosen.iter().any(|layer| own.pattern.names(layer)) {
                let what = format!("no adapted layer is named {}", own.pattern);
                return Err(TrainError::setting(what, "give ranks and α of layers that are adapted"));
            }
        }
        let pair = |(number, layer): (usize, &Layer)| {
            let named = || options.own.iter().filter(|own| own.pattern.names(layer));
            let rank = named().find_map(|own| own.rank).unwrap_or(options.rank);
            let alpha = named().find_map(|own| own.alpha).unwrap_or(options.alpha);
            if rank == 0 {
                return Err(TrainError::setting("rank 0", "ranks are whole numbers from 1, 8 for example"));
            }
            if !alpha.is_finite() || alpha <= 0.0 {
                let hint = "α is more than 0, twice the rank for example";
                return Err(TrainError::setting(format!("alpha {alpha}"), hint));
            }
            let most = layer.inputs.min(layer.rows.len());
            if rank > most {
                return Err(TrainError::setting(
                    format!("rank {rank} for {}, whose matrix has rank {most} at most", layer.name),
                    "take a lower rank, or leave the layer out",
                ));
            }
            let mut random = Random::new(options.seed, (1 << 32) + number as u64);
            let bound = 1.0 / (layer.inputs as f32).sqrt();
            let matrices = layer.experts.unwrap_or(1);
            Ok(Pair {
                rank,
                scale: options.scaling.scale(rank, alpha),
                a: (0..matrices * rank * layer.inputs)
                    .map(|_| bound * (2.0 * random.uniform() - 1.0))
                    .collect(),
                b: vec![0.0; matrices * layer.rows.len() * rank],
                magnitudes: None,
                layer: layer.clone(),
            })
        };
        let pairs = chosen.into_iter().enumerate().map(pair).collect::<Result<_>>()?;
        Ok(Self { pairs, dtype: options.dtype })
    }

    /// Adds learned magnitudes to the adapter (DoRA). They begin as the norms of the rows of `W + scale·B·A`, with `W` of `model`,
    /// and `A` and `B` as products read them, so that the adapted model does not change.
    ///
    /// # Errors
    ///
    /// [`TrainError::Device`] if a weight cannot be decoded; [`TrainError::Setting`] for experts.
    pub fn with_magnitudes(mut self, model: &Graph) -> Result<Self> {
        for pair in &mut self.pairs {
            if pair.layer.experts.is_some() {
                let hint = "learn experts without magnitudes (lora, rslora), or leave them out";
                return Err(TrainError::setting(
                    format!("magnitudes of {}, which are experts", pair.layer.name),
                    hint,
                ));
            }
            let [a, b] = [&pair.a, &pair.b].map(|matrix| self.dtype.seen(matrix));
            let change = DenseChange { a: &a, b: &b, scale: pair.scale };
            let weight = model.weight(pair.layer.weight);
            pair.magnitudes = Some(row_norms(weight, pair.layer.rows.clone(), Some(change))?);
        }
        Ok(self)
    }

    /// Number of learned values.
    pub fn parameters(&self) -> usize {
        self.pairs.iter().flat_map(Pair::arrays).map(Vec::len).sum()
    }

    /// Forms of each array of [`arrays`](Self::arrays).
    pub(crate) fn forms(&self) -> impl Iterator<Item = Form> {
        self.pairs.iter().flat_map(|pair| {
            let rows = pair.layer.rows.len();
            let matrices = match pair.layer.experts {
                Some(experts) => [
                    Form::Stack(experts, pair.rank, pair.layer.inputs),
                    Form::Stack(experts, rows, pair.rank),
                ],
                None => [Form::LowRank(pair.rank, pair.layer.inputs), Form::LowRank(rows, pair.rank)],
            };
            matrices.into_iter().chain(pair.magnitudes.as_ref().map(|values| Form::Other(values.len())))
        })
    }

    /// The learned arrays of each pair, in order: `A`, `B` and, if there are any, magnitudes.
    pub fn arrays(&self) -> Vec<Vec<f32>> {
        self.pairs.iter().flat_map(Pair::arrays).cloned().collect()
    }

    /// Sets the learned arrays, in the form that [`arrays`](Self::arrays) returns.
    pub(crate) fn set_arrays(&mut self, arrays: &[Vec<f32>]) {
        let own = self.pairs.iter_mut();
        let own = own.flat_map(|pair| [&mut pair.a, &mut pair.b].into_iter().chain(&mut pair.magnitudes));
        own.zip(arrays).for_each(|(own, array)| own.clone_from(array));
    }

    /// The adapter as low-rank products for a graph, with trainable weights.
    pub(crate) fn low_ranks(&self, graph: &Graph) -> Result<Vec<LowRank>> {
        let low_rank = |pair: &Pair| {
            let name = &graph.weight(pair.layer.weight).name;
            let trained = |part: &str, shape: &[usize], values: &[f32]| {
                let name = format!("{name}.{}.{part}", pair.layer.rows.start);
                let tensor = Tensor::of_floats(name.as_str(), shape.to_vec(), values);
                let weight = Weight::new(name, shape, vec![WeightPart::whole(tensor)])?;
                Ok::<_, TrainError>(Weight { trainable: true, ..weight })
            };
            let of_each = |shape: [usize; 2]| [pair.layer.experts.as_slice(), &shape].concat();
            Ok(LowRank {
                weight: pair.layer.weight,
                rows: pair.layer.rows.clone(),
                a: trained("a", &of_each([pair.rank, pair.layer.inputs]), &pair.a)?,
                b: trained("b", &of_each([pair.layer.rows.len(), pair.rank]), &pair.b)?,
                scale: pair.scale,
                // Magnitudes have the gains' shape; the device is given gains before each update.
                gain: (pair.magnitudes.as_ref())
                    .map(|values| trained("gain", &[values.len()], values))
                    .transpose()?,
            })
        };
        self.pairs.iter().map(low_rank).collect()
    }
}

/// The weight of a graph with this name; `None` if there is none.
pub(crate) fn weight_named(graph: &Graph, name: &str) -> Option<Arc<Weight>> {
    graph.weights().iter().find(|weight| weight.name == name).map(Arc::clone)
}
