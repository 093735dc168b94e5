//! Matrices of a model that are learned themselves, without an adapter beside them.
//!
//! The values that are learned are f32, whatever the model stores. In the graphs of training each takes the place of the stored one; norms and biases
//! stay.

use std::collections::BTreeMap;
use std::sync::Arc;

use brasa_formats::Tensor;
use brasa_graph::{Change, Graph, Op, ValueId, ValueKind, Weight, WeightId, WeightPart, rewrite};

use crate::optimizer::Form;
use crate::{Result, TrainError};

/// The matrices of a model that are learned.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrices {
    /// Each matrix, in the order of the model's weights.
    pub all: Vec<Matrix>,
}

/// A matrix that is learned.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    /// The name of the weight, e.g. `layers.3.qkv`. Projections that are stacked in one weight are one matrix.
    pub name: String,
    /// The weight of the model's graph.
    pub weight: WeightId,
    /// Rows, and elements of a row.
    pub shape: [usize; 2],
    /// True if its rows are looked up by token ids. The same matrix may be the head too.
    pub is_table: bool,
    /// `[rows, elements of a row]`.
    pub values: Vec<f32>,
}

impl Matrices {
    /// The matrices of `model` that `wanted` names: linear layers and tables of embeddings.
    ///
    /// # Errors
    ///
    /// [`TrainError::Setting`] for a matrix that is stored in blocks, whose values are no floats, and if there is none; [`TrainError::Device`] if values cannot be
    /// decoded.
    pub fn new(model: &Graph, wanted: impl Fn(&str) -> bool) -> Result<Self> {
        let mut all = Vec::new();
        for (number, weight) in model.weights().iter().enumerate() {
            let &[rows, columns] = &weight.shape[..] else { continue };
            let id = WeightId(number as u32);
            let readers = readers(model, id);
            if readers.is_empty() || !wanted(&weight.name) {
                continue;
            }
            if let Some(part) = weight.parts.iter().find(|part| !part.format().is_float()) {
                let what = format!("{} is stored as {}", weight.name, part.format());
                let hint = "learn an adapter beside it, or take a model of F32, F16 or BF16";
                return Err(TrainError::setting(what, hint));
            }
            let is_table = readers.iter().any(|op| matches!(op, Op::Embed(_)));
            let values = weight.decode("host")?;
            all.push(Matrix {
                name: weight.name.clone(),
                weight: id,
                shape: [rows, columns],
                is_table,
                values,
            });
        }
        if all.is_empty() {
            return Err(TrainError::setting("no matrix is learned", "name others, or more blocks"));
        }
        Ok(Self { all })
    }

    /// Numbers that are learned.
    pub fn parameters(&self) -> usize {
        self.all.iter().map(|matrix| matrix.values.len()).sum()
    }

    /// Forms of the arrays. A table is no matrix to an optimizer: a gradient has few of its rows.
    pub(crate) fn forms(&self) -> impl Iterator<Item = Form> {
        self.all.iter().map(
            |&Matrix { shape: [rows, columns], is_table, .. }| {
                if is_table { Form::Other(rows * columns) } else { Form::Matrix(rows, columns) }
            },
        )
    }

    /// The model with these matrices in place of its own, and their weights.
    pub(crate) fn put_into(&self, model: &Graph) -> Result<(Graph, Vec<Arc<Weight>>)> {
        let trained = |matrix: &Matrix| {
            let name = format!("{}.learned", matrix.name);
            let tensor = Tensor::of_floats(name.as_str(), matrix.shape.to_vec(), &matrix.values);
            let weight = Weight::new(name, &matrix.shape, vec![WeightPart::whole(tensor)])?;
            Ok(Arc::new(Weight { trainable: true, ..weight }))
        };
        let weights = self.all.iter().map(trained).collect::<Result<Vec<_>>>()?;
        let places: BTreeMap<WeightId, usize> =
            self.all.iter().enumerate().map(|(place, matrix)| (matrix.weight, place)).collect();
        // The value of each matrix in the new graph, from its first reader on.
        let mut values: Vec<Option<ValueId>> = vec![None; weights.len()];
        let graph = rewrite(model, |g, node, operands| {
            let mut operands = operands.to_vec();
            let mut is_other = false;
            for (operand, &input) in operands.iter_mut().zip(&node.inputs) {
                let ValueKind::Weight(weight) = model.value(input).kind else { continue };
                let Some(&place) = places.get(&weight) else { continue };
                *operand = *values[place].get_or_insert_with(|| g.weight(Ok(Arc::clone(&weights[place]))));
                is_other = true;
            }
            if is_other { Change::Replace(g.apply(node.op.clone(), &operands)) } else { Change::Keep }
        })?;
        Ok((graph, weights))
    }
}

/// The operations of linear layers and of embeddings that read a weight.
fn readers(model: &Graph, id: WeightId) -> Vec<&Op> {
    let reads = |node: &&brasa_graph::Node| {
        let is_it = |input: &ValueId| model.value(*input).kind == ValueKind::Weight(id);
        matches!(node.op, Op::Linear(_) | Op::Embed(_)) && node.inputs.iter().any(is_it)
    };
    model.nodes().iter().filter(reads).map(|node| &node.op).collect()
}
