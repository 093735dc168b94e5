//! The values that a trainer changes: those of an adapter, or of the model's own parameters.

use std::sync::Arc;

use brasa_graph::device::KvPool;
use brasa_graph::learn::LearnedBlock;
use brasa_graph::{Graph, ValueId, ValueKind, Weight};

use crate::Result;
use crate::lora::{Lora, Norms, Places};
use crate::optimizer::Form;
use crate::parameters::Parameters;

/// The values that are learned, and their weights in the graphs of training.
pub(crate) enum Learned {
    /// An adapter.
    Adapter {
        lora: Lora,
        places: Places,
        /// For an adapter with magnitudes: the program that computes norms, and the norms for the present values.
        norms: Option<(Norms, Vec<Vec<f32>>)>,
    },
    /// Parameters of the model, and a weight of the graph for each.
    Parameters(Parameters, Vec<Arc<Weight>>),
}

impl Learned {
    /// The values of an adapter, in the graph to which it was added.
    pub fn adapter(lora: Lora, adapted: &Graph) -> Result<Self> {
        Ok(Self::Adapter { places: Places::new(adapted, &lora)?, lora, norms: None })
    }

    /// The weights that training changes.
    pub fn weights(&self) -> Vec<&Arc<Weight>> {
        match self {
            Self::Adapter { places, .. } => places.weights().collect(),
            Self::Parameters(_, weights) => weights.iter().collect(),
        }
    }

    /// The graph's values of the learned weights, in order.
    pub fn values(&self, graph: &Graph) -> Vec<ValueId> {
        let value_of = |weight: &Arc<Weight>| {
            let is_it = |value: &brasa_graph::Value| match value.kind {
                ValueKind::Weight(id) => Arc::ptr_eq(graph.weight(id), weight),
                _ => false,
            };
            let at = graph.values().iter().position(is_it).expect("the graph was made of these weights");
            ValueId(at as u32)
        };
        self.weights().into_iter().map(value_of).collect()
    }

    /// True if dropout applies to the input of the linear layer with this weight.
    pub fn has_dropout_before(&self, weight: &Arc<Weight>) -> bool {
        match self {
            Self::Adapter { places, .. } => places.is_a(weight),
            Self::Parameters(..) => false,
        }
    }

    /// The form of each array.
    pub fn forms(&self) -> Vec<Form> {
        match self {
            Self::Adapter { lora, .. } => lora.forms().collect(),
            Self::Parameters(parameters, _) => parameters.forms().collect(),
        }
    }

    /// The arrays of values: [those of an adapter](Lora::arrays), or a stored tensor each.
    pub fn arrays(&self) -> Vec<Vec<f32>> {
        match self {
            Self::Adapter { lora, .. } => lora.arrays(),
            Self::Parameters(parameters, _) => parameters.arrays(),
        }
    }

    /// Sets the arrays, in the form that [`arrays`](Self::arrays) returns.
    pub fn set_arrays(&mut self, arrays: &[Vec<f32>]) {
        match self {
            Self::Adapter { lora, .. } => lora.set_arrays(arrays),
            Self::Parameters(parameters, _) => parameters.set_arrays(arrays),
        }
    }

    /// The block of a weight for each array; `None` if the update of an array needs more than the array's own gradient, so that a
    /// device cannot make it.
    pub fn blocks(&self) -> Option<Vec<LearnedBlock>> {
        match self {
            Self::Adapter { lora, places, .. } => places.blocks(lora),
            // They are more than a device has room for the means of, and some are stored in other formats.
            Self::Parameters(..) => None,
        }
    }

    /// Adds the gradients of the weights, in the weights' order, to the gradients of the arrays.
    pub fn add_gradients(&self, of_weights: &[&[f32]], gradients: &mut [Vec<f32>]) {
        match self {
            Self::Adapter { lora, places, norms } => {
                let norms = norms.as_ref().map_or(&[][..], |(_, norms)| norms);
                places.add_gradients(lora, norms, of_weights, gradients);
            }
            Self::Parameters(parameters, _) => parameters.add_gradients(of_weights, gradients),
        }
    }

    /// Recomputes the values besides the arrays on which weights depend, such as norms.
    pub fn prepare(&mut self, pool: &mut dyn KvPool) -> Result<()> {
        if let Self::Adapter { lora, norms: Some((norms, values)), .. } = self {
            *values = norms.compute(lora, pool)?;
        }
        Ok(())
    }

    /// Calls `write` with each weight and its values, computed from the arrays.
    pub fn write(&self, mut write: impl FnMut(&Arc<Weight>, &[f32]) -> Result<()>) -> Result<()> {
        match self {
            Self::Adapter { lora, places, norms } => {
                let norms = norms.as_ref().map_or(&[][..], |(_, norms)| norms);
                let values = places.values_of_weights(lora, norms);
                values.iter().try_for_each(|(weight, values)| write(weight, values))
            }
            Self::Parameters(parameters, weights) => weights
                .iter()
                .zip(&parameters.all)
                .try_for_each(|(weight, parameter)| write(weight, &parameter.seen_values())),
        }
    }
}
