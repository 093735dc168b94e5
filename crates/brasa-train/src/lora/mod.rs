//! Low-rank adapters that are learned (Hu et al. 2021, arXiv:2106.09685).
//!
//! An adapted layer is `y = x·Wᵀ + scale · (x·Aᵀ)·Bᵀ`. `W` is a constant in whatever format it is stored; `A` and `B` are f32.

mod layer;
mod places;
mod targets;

use std::sync::Arc;

use brasa_formats::Tensor;
use brasa_graph::pass::LowRank;
use brasa_graph::{Graph, Weight, WeightPart};

pub use layer::Layer;
pub(crate) use places::Places;
pub use targets::{Pattern, Targets};

use crate::{Random, Result, TrainError};

/// Which layers are adapted, and how.
#[derive(Clone, Debug)]
pub struct LoraOptions {
    /// The layers.
    pub targets: Targets,
    /// Rows of `A`, columns of `B`.
    pub rank: usize,
    /// Sets the scale.
    pub alpha: f32,
    /// How rank and `alpha` make the scale.
    pub scaling: Scaling,
    /// Decides what `A` begins as.
    pub seed: u64,
}

impl Default for LoraOptions {
    fn default() -> Self {
        Self { targets: Targets::default(), rank: 8, alpha: 16.0, scaling: Scaling::default(), seed: 0 }
    }
}

/// How rank and α make the scale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scaling {
    /// `α / r`.
    #[default]
    Rank,
    /// `α / √r`: rank-stabilised (Kalajdzievski 2023, arXiv:2312.03732).
    RootOfRank,
}

impl Scaling {
    /// The scale.
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
    /// A pair of matrices for each layer.
    pub pairs: Vec<Pair>,
}

/// `A` and `B` of one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Pair {
    /// The layer.
    pub layer: Layer,
    /// Rows of `A`, columns of `B`.
    pub rank: usize,
    /// Factor of the product.
    pub scale: f32,
    /// `[rank, inputs]`.
    pub a: Vec<f32>,
    /// `[rows, rank]`, rows in the order of the graph's weight.
    pub b: Vec<f32>,
}

impl Lora {
    /// An adapter that changes nothing yet: `B` is zero, `A` uniform within `±1/√inputs`, as PEFT has it (Kaiming's rule with
    /// a = √5; He et al. 2015, arXiv:1502.01852).
    ///
    /// # Errors
    ///
    /// [`TrainError::Setting`] if no layer is a target, a pattern names none, or rank or α are no positive numbers.
    pub fn new(layers: &[Layer], options: &LoraOptions) -> Result<Self> {
        let LoraOptions { targets, rank, alpha, scaling, seed } = options;
        if *rank == 0 {
            return Err(TrainError::setting("rank 0", "ranks are whole numbers from 1, 8 for example"));
        }
        if !alpha.is_finite() || *alpha <= 0.0 {
            return Err(TrainError::setting(
                format!("alpha {alpha}"),
                "α is more than 0, twice the rank for example",
            ));
        }
        let chosen = targets.choose(layers)?;
        let pair = |(number, layer): (usize, &Layer)| {
            let most = layer.inputs.min(layer.rows.len());
            if *rank > most {
                return Err(TrainError::setting(
                    format!("rank {rank} for {}, whose matrix has rank {most} at most", layer.name),
                    "take a lower rank, or leave the layer out",
                ));
            }
            let mut random = Random::new(*seed, (1 << 32) + number as u64);
            let bound = 1.0 / (layer.inputs as f32).sqrt();
            Ok(Pair {
                rank: *rank,
                scale: scaling.scale(*rank, *alpha),
                a: (0..rank * layer.inputs).map(|_| bound * (2.0 * random.uniform() - 1.0)).collect(),
                b: vec![0.0; layer.rows.len() * rank],
                layer: layer.clone(),
            })
        };
        Ok(Self { pairs: chosen.into_iter().enumerate().map(pair).collect::<Result<_>>()? })
    }

    /// Numbers that are learned.
    pub fn parameters(&self) -> usize {
        self.sizes().sum()
    }

    /// Numbers of `A` and of `B` of each pair, in order.
    pub(crate) fn sizes(&self) -> impl Iterator<Item = usize> {
        self.pairs.iter().flat_map(|pair| [pair.a.len(), pair.b.len()])
    }

    /// `A` and `B` of each pair, in order.
    pub(crate) fn arrays(&self) -> Vec<Vec<f32>> {
        self.pairs.iter().flat_map(|pair| [pair.a.clone(), pair.b.clone()]).collect()
    }

    /// Takes over `A` and `B` of each pair, in order.
    pub(crate) fn set_arrays(&mut self, arrays: &[Vec<f32>]) {
        for (pair, arrays) in self.pairs.iter_mut().zip(arrays.chunks_exact(2)) {
            pair.a.clone_from(&arrays[0]);
            pair.b.clone_from(&arrays[1]);
        }
    }

    /// The adaptions of a graph, trainable.
    pub(crate) fn low_ranks(&self, graph: &Graph) -> Result<Vec<LowRank>> {
        let low_rank = |pair: &Pair| {
            let name = &graph.weight(pair.layer.weight).name;
            let trained = |part: &str, shape: [usize; 2], values: &[f32]| {
                let name = format!("{name}.{}.{part}", pair.layer.rows.start);
                let tensor = Tensor::of_floats(name.as_str(), shape.to_vec(), values);
                let weight = Weight::new(name, &shape, vec![WeightPart::whole(tensor)])?;
                Ok::<_, TrainError>(Weight { trainable: true, ..weight })
            };
            Ok(LowRank {
                weight: pair.layer.weight,
                rows: pair.layer.rows.clone(),
                a: trained("a", [pair.rank, pair.layer.inputs], &pair.a)?,
                b: trained("b", [pair.layer.rows.len(), pair.rank], &pair.b)?,
                scale: pair.scale,
            })
        };
        self.pairs.iter().map(low_rank).collect()
    }
}

/// A weight of a graph, by its name.
pub(crate) fn weight_named(graph: &Graph, name: &str) -> Option<Arc<Weight>> {
    graph.weights().iter().find(|weight| weight.name == name).map(Arc::clone)
}
