//! The model's own parameters, learned without an adapter: matrices, experts, norms and biases.
//!
//! Learned values are f32 in any model, and correspond to the stored values: the graph may read them times a factor, or plus one.
//! In the graphs of training, the learned weights replace the model's own.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use brasa_formats::{Bytes, Payload, StorageFormat, Tensor};
use brasa_graph::{Change, Graph, Op, Origin, ValueId, ValueKind, Weight, WeightId, WeightPart, rewrite};

use crate::lora::{Kind, Layer, Named, Targets};
use crate::optimizer::{Form, Rule};
use crate::{MemoryPlan, Result, TrainError};

/// The parameters of a model that are learned.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameters {
    /// Each parameter, in the order of the model's weights.
    pub all: Vec<Parameter>,
}

/// A weight that is learned.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// The name of the weight, e.g. `layers.3.qkv`. Projections that are stacked in one weight are one parameter. So are their
    /// biases.
    pub name: String,
    /// The weight's number in the model's graph.
    pub weight: WeightId,
    /// How the graph uses the parameter.
    pub role: Role,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// The parameter's rows in the model's files.
    pub stored: Vec<Stored>,
    /// The factor and the offset with which the graph reads stored values.
    pub seen: [f32; 2],
    /// The values, in the order of the weight's elements, as they are stored.
    pub values: Vec<f32>,
}

/// How a graph uses a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The matrix of a linear layer, `[N, K]`.
    Matrix,
    /// Embeddings, looked up by token ids, `[N, K]`. The same matrix may be the head too.
    Table,
    /// The matrices of experts, `[X, N, K]`.
    Experts,
    /// The weights of a norm, a bias, or factors.
    Vector,
}

/// Consecutive elements of a parameter, and their place in the model's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The elements of the parameter.
    pub elements: Range<usize>,
    /// The name of the stored tensor; `None` for zeros in place of a bias that the model does not have. Such zeros are not
    /// learned.
    pub tensor: Option<String>,
    /// Index of the first of these elements within the stored tensor.
    pub first: usize,
    /// True if the elements are learned. Other elements keep the model's values.
    pub is_learned: bool,
}

/// Which part of a model is learned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Extent {
    /// All parameters of the model.
    #[default]
    Model,
    /// The parameters of the blocks, without embeddings, the last norm and the head.
    Blocks,
    /// The parameters of the last blocks; the number counts blocks.
    LastBlocks(usize),
}

impl Parameters {
    /// The parameters of a part of `model`.
    ///
    /// # Errors
    ///
    /// Errors of [`new`](Self::new), and [`TrainError::Setting`] for more blocks than the model has.
    pub fn of(model: &Graph, extent: Extent) -> Result<Self> {
        let blocks = model.weights().iter().filter_map(|weight| block(&weight.name)).max();
        let blocks = blocks.map_or(0, |last| last + 1);
        let first = match extent {
            Extent::Model => return Self::new(model, |_| true),
            Extent::Blocks => 0,
            Extent::LastBlocks(wanted) if wanted == 0 || wanted > blocks => {
                let what = format!("the last {wanted} blocks, the model has {blocks}");
                return Err(TrainError::setting(what, "name a number of blocks from 1"));
            }
            Extent::LastBlocks(wanted) => blocks - wanted,
        };
        Self::new(model, |name| block(name).is_some_and(|block| block >= first))
    }

    /// The parameters of `model` that `targets` names. `layers` are the model's linear layers, routers left out, which `all` and `experts` choose from.
    ///
    /// A stored tensor is selected by its name with or without `.weight`, by the names of its linear layer, or by the name of the
    /// graph's weight. Of projections that are stacked in one weight, only the named ones are learned.
    ///
    /// # Errors
    ///
    /// Errors of [`new`](Self::new); [`TrainError::Setting`] for a pattern that names no parameter, and for more blocks than the model has.
    pub fn of_targets(model: &Graph, layers: &[Layer], targets: &Targets) -> Result<Self> {
        let mut places = Vec::new();
        for (number, weight) in model.weights().iter().enumerate() {
            let id = WeightId(number as u32);
            if role(model, id).is_some() {
                places.extend(stored(weight).into_iter().map(|(stored, _)| (id, stored)));
            }
        }
        places.retain(|(_, stored)| stored.is_learned);
        let named: Vec<Named<'_>> =
            places.iter().map(|(id, stored)| named(model.weight(*id), *id, stored, layers)).collect();
        let chosen = targets.choose_among(&named, "parameter")?;
        let chosen: BTreeSet<(WeightId, usize)> =
            chosen.into_iter().map(|place| (places[place].0, places[place].1.elements.start)).collect();
        Self::of_places(model, |id, stored| chosen.contains(&(id, stored.elements.start)))
    }

    /// The parameters of `model` that `wanted` accepts by name: linear layers, tables of embeddings, experts, and stored vectors.
    ///
    /// # Errors
    ///
    /// [`TrainError::Setting`] for a weight in a quantised format, and if no parameter is accepted; [`TrainError::Device`] if
    /// values cannot be decoded.
    pub fn new(model: &Graph, wanted: impl Fn(&str) -> bool) -> Result<Self> {
        Self::of_places(model, |id, _| wanted(&model.weight(id).name))
    }

    /// The parameters with a stored place that `wanted` accepts. Their other places keep the model's values.
    fn of_places(model: &Graph, wanted: impl Fn(WeightId, &Stored) -> bool) -> Result<Self> {
        let mut all = Vec::new();
        for (number, weight) in model.weights().iter().enumerate() {
            let id = WeightId(number as u32);
            let Some(role) = role(model, id) else { continue };
            let mut places = stored(weight);
            for (place, _) in &mut places {
                place.is_learned = place.is_learned && wanted(id, place);
            }
            let mut learned = places.iter().filter(|(place, _)| place.is_learned).peekable();
            if learned.peek().is_none() {
                continue;
            }
            if let Some((place, format)) = learned.find(|(_, format)| !format.is_float()) {
                let name = place.tensor.as_deref().unwrap_or(&weight.name);
                let hint = "train an adapter, or convert the model to BF16 first";
                return Err(TrainError::setting(format!("{name} is stored as {format}"), hint));
            }
            let (values, seen) = match &weight.origin {
                Some(origin) => (origin.stored_values()?, [origin.factor, origin.offset]),
                None => (weight.decode("host")?, [1.0, 0.0]),
            };
            all.push(Parameter {
                name: weight.name.clone(),
                weight: id,
                role,
                shape: weight.shape.clone(),
                stored: places.into_iter().map(|(place, _)| place).collect(),
                seen,
                values,
            });
        }
        if all.is_empty() {
            return Err(TrainError::setting("no parameter is learned", "name others, or more blocks"));
        }
        Ok(Self { all })
    }

    /// Number of learned values.
    pub fn count(&self) -> usize {
        self.all.iter().flat_map(Parameter::learned).map(|stored| stored.elements.len()).sum()
    }

    /// The host memory that a run needs, if `rule` updates the parameters.
    pub fn memory(&self, rule: &Rule) -> MemoryPlan {
        MemoryPlan::new(self.forms(), rule)
    }

    /// Forms of the [arrays](Self::arrays).
    pub(crate) fn forms(&self) -> impl Iterator<Item = Form> {
        self.all.iter().flat_map(|parameter| parameter.learned().map(|stored| parameter.form(stored)))
    }

    /// The learned values by stored tensor, as optimizers use them. A parameter's tensors follow each other.
    pub(crate) fn arrays(&self) -> Vec<Vec<f32>> {
        self.changes().map(|(_, _, values)| values.to_vec()).collect()
    }

    /// Sets the learned values, in the form that [`arrays`](Self::arrays) returns.
    pub(crate) fn set_arrays(&mut self, mut arrays: &[Vec<f32>]) {
        for parameter in &mut self.all {
            let Parameter { stored, values, .. } = parameter;
            for Stored { elements, .. } in stored.iter().filter(|stored| stored.is_learned) {
                let (array, rest) = arrays.split_first().expect("an array for each stored tensor");
                values[elements.clone()].copy_from_slice(array);
                arrays = rest;
            }
        }
    }

    /// Adds the gradients of the weights in the graph, one for each parameter, to the gradients of the arrays.
    pub(crate) fn add_gradients(&self, of_seen: &[&[f32]], mut gradients: &mut [Vec<f32>]) {
        for (parameter, of_seen) in self.all.iter().zip(of_seen) {
            let [factor, _] = parameter.seen;
            for Stored { elements, .. } in parameter.learned() {
                let (sums, rest) = std::mem::take(&mut gradients)
                    .split_first_mut()
                    .expect("an array for each stored tensor");
                sums.iter_mut().zip(&of_seen[elements.clone()]).for_each(|(sum, x)| *sum += factor * x);
                gradients = rest;
            }
        }
    }

    /// The learned values with their places in the model's files: the stored tensor, the index of the first element, and the
    /// values from there on.
    pub fn changes(&self) -> impl Iterator<Item = (&str, usize, &[f32])> {
        self.all.iter().flat_map(|parameter| {
            parameter.learned().filter_map(|Stored { elements, tensor, first, .. }| {
                Some((tensor.as_deref()?, *first, &parameter.values[elements.clone()]))
            })
        })
    }

    /// Replaces the model's own weights by these parameters. Returns the new graph and its weights, which are zeros until a
    /// trainer writes them.
    pub(crate) fn put_into(&self, model: &Graph) -> Result<(Graph, Vec<Arc<Weight>>)> {
        let trained = |parameter: &Parameter| {
            let name = format!("{}.learned", parameter.name);
            let weight = Weight::new(
                &*name,
                &parameter.shape,
                vec![WeightPart::whole(zeros(&name, &parameter.shape))],
            )?;
            Ok(Arc::new(Weight { trainable: true, ..weight }))
        };
        let weights = self.all.iter().map(trained).collect::<Result<Vec<_>>>()?;
        let places: BTreeMap<WeightId, usize> =
            self.all.iter().enumerate().map(|(place, parameter)| (parameter.weight, place)).collect();
        // The value of each parameter in the new graph, from its first reader on.
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

impl Parameter {
    /// The values as the graph reads them.
    pub(crate) fn seen_values(&self) -> Cow<'_, [f32]> {
        match self.seen {
            [1.0, 0.0] => Cow::Borrowed(&self.values),
            [factor, offset] => self.values.iter().map(|&value| value * factor + offset).collect(),
        }
    }

    /// The stored places that are learned.
    fn learned(&self) -> impl Iterator<Item = &Stored> {
        self.stored.iter().filter(|stored| stored.is_learned)
    }

    /// The parameter's name in a checkpoint, followed by its learned tensors if only some are learned.
    pub(crate) fn told(&self) -> String {
        if self.stored.iter().all(|stored| stored.is_learned == stored.tensor.is_some()) {
            return self.name.clone();
        }
        let part = |stored: &Stored| {
            let name = stored.tensor.as_deref().unwrap_or_default();
            format!("{name} from {}", stored.first)
        };
        format!("{} ({})", self.name, self.learned().map(part).collect::<Vec<_>>().join("; "))
    }

    /// The form for an optimizer of a stored part of the parameter.
    fn form(&self, Stored { elements, .. }: &Stored) -> Form {
        let width = self.shape.last().copied().unwrap_or(1);
        let rows = elements.len() / width.max(1);
        match (self.role, &self.shape[..]) {
            (Role::Table, _) => Form::Table(rows, width),
            (Role::Experts, &[_, each, _]) if rows > each => Form::Stack(rows / each, each, width),
            (Role::Matrix | Role::Experts, _) => Form::Matrix(rows, width),
            (Role::Vector, _) => Form::Other(elements.len()),
        }
    }
}

/// A tensor of zeros. The zeros take no memory until they are written to.
fn zeros(name: &str, shape: &[usize]) -> Tensor {
    let bytes = vec![0_u8; size_of::<f32>() * shape.iter().product::<usize>()];
    let payload = Payload::Blocks(Bytes::from(bytes));
    Tensor { name: name.into(), shape: shape.to_vec(), format: StorageFormat::F32, payload }
}

/// The number of the block that a weight belongs to, from its name; `None` outside the blocks.
fn block(name: &str) -> Option<usize> {
    name.strip_prefix("layers.")?.split_once('.')?.0.parse().ok()
}

/// The role of a weight that can be learned; `None` for others, such as frequencies of rotations.
fn role(model: &Graph, id: WeightId) -> Option<Role> {
    let weight = model.weight(id);
    if weight.origin.is_some() {
        return Some(Role::Vector);
    }
    let place = |node: &brasa_graph::Node| {
        node.inputs.iter().position(|input| model.value(*input).kind == ValueKind::Weight(id))
    };
    let (mut role, is_matrix) = (None, weight.shape.len() == 2);
    for node in model.nodes() {
        match (&node.op, place(node)) {
            (Op::Embed(_), Some(_)) if is_matrix => return Some(Role::Table),
            (Op::Linear(_), Some(_)) if is_matrix => role = Some(Role::Matrix),
            (Op::ExpertLinear(_), Some(2)) => role = Some(Role::Experts),
            _ => {}
        }
    }
    role
}

/// The names by which patterns may select a stored place: its own, those of its layer, and `all` or `experts`.
fn named<'a>(weight: &'a Weight, id: WeightId, stored: &'a Stored, layers: &'a [Layer]) -> Named<'a> {
    let tensor = stored.tensor.as_deref();
    let of_tensor = tensor.into_iter().flat_map(|name| [Some(name), name.strip_suffix(".weight")]).flatten();
    let layer = layers.iter().find(|layer| layer.weight == id && holds(layer, weight, stored));
    let of_layer = layer.into_iter().flat_map(Layer::names);
    Named {
        names: of_layer.chain(of_tensor).chain([weight.name.as_str()]).collect(),
        block: block(&weight.name),
        kind: match layer {
            Some(layer) if layer.experts.is_some() => Kind::Experts,
            Some(_) => Kind::Linear,
            None => Kind::Other,
        },
    }
}

/// True if a stored place consists of rows of `layer`, a layer of the same weight.
fn holds(layer: &Layer, weight: &Weight, stored: &Stored) -> bool {
    if weight.origin.is_some() {
        return false;
    }
    let width = weight.row_len().max(1);
    // Experts lie one behind the other.
    let each = if layer.experts.is_some() { weight.shape[1].max(1) } else { weight.rows().max(1) };
    let (first, rows) = (stored.elements.start / width % each, stored.elements.len() / width);
    layer.rows == (0..each) || (layer.rows.start <= first && first + rows <= layer.rows.end)
}

/// The places of a weight's elements in the model's files, with their storage formats. All places are marked as learned.
fn stored(weight: &Weight) -> Vec<(Stored, StorageFormat)> {
    let mut end = 0;
    let mut place = |elements: usize, tensor: Option<&Tensor>, first| {
        let start = end;
        end += elements;
        let (tensor, format) = match tensor {
            Some(tensor) => (Some(tensor.name.clone()), tensor.format),
            None => (None, StorageFormat::F32),
        };
        (Stored { elements: start..end, is_learned: tensor.is_some(), tensor, first }, format)
    };
    match &weight.origin {
        Some(Origin { pieces, .. }) => {
            pieces.iter().map(|piece| place(piece.elements, piece.tensor.as_ref(), 0)).collect()
        }
        None => (weight.parts.iter())
            .flat_map(|part| match part.consecutive_rows() {
                Some(rows) => vec![(part, rows)],
                None => part.stored_rows().map(|row| (part, row..row + 1)).collect(),
            })
            .map(|(part, rows)| {
                let (elements, first) = (rows.len() * weight.row_len(), rows.start * weight.row_len());
                place(elements, Some(&part.tensor), first)
            })
            .collect(),
    }
}
