//! From named tensors to the weights of a graph: shapes checked, rows stacked, offsets folded in.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Range;

use brasa_formats::Tensor;
use brasa_graph::{Builder, Origin, Piece, ValueId, Weight, WeightPart};

use crate::metadata::floats;
use crate::names::{Spelling, first};
use crate::rope::RopeSpec;
use crate::source::Source;
use crate::{ModelError, Result};

/// Takes tensors out of a checkpoint by Brasa's names, and records which were used.
#[derive(Debug)]
pub(crate) struct Weights<'a> {
    source: &'a Source,
    names: Box<dyn Spelling>,
    norm_offset: f32,
    used: RefCell<BTreeSet<&'a str>>,
    /// Tables of frequencies made so far.
    ropes: RefCell<Vec<(RopeSpec, ValueId)>>,
}

/// A stored copy of the embedding table, in a model whose head is the table itself. No graph reads the copy, but writing the table
/// must write the copy too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadCopy {
    /// The name of the copy.
    pub copy: String,
    /// The name of the table.
    pub table: String,
}

/// The place of a tensor: the whole model, or one layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    layer: Option<usize>,
}

impl Place {
    pub const MODEL: Self = Self { layer: None };

    pub fn layer(layer: usize) -> Self {
        Self { layer: Some(layer) }
    }

    /// True for the first layer.
    pub fn is_first(self) -> bool {
        self.layer == Some(0)
    }

    /// The name of a tensor's weight in graphs.
    fn label(self, name: &str) -> String {
        match self.layer {
            Some(layer) => format!("layers.{layer}.{name}"),
            None => name.into(),
        }
    }
}

impl<'a> Weights<'a> {
    /// Makes a reader of the tensors of `source`. `norm_offset` is added to the weights of RMS norms; `used` are tensors that are
    /// accounted for already.
    pub fn new(
        source: &'a Source,
        names: impl Spelling + 'static,
        norm_offset: f32,
        used: BTreeSet<&'a str>,
    ) -> Self {
        Self {
            source,
            names: Box::new(names),
            norm_offset,
            used: RefCell::new(used),
            ropes: RefCell::default(),
        }
    }

    fn spellings(&self, place: Place, name: &str) -> Vec<String> {
        match place.layer {
            Some(layer) => self.names.layer(layer, name),
            None => self.names.global(name),
        }
    }

    /// The first tensor of `source` under one of `spellings`; `None` if there is none.
    fn find(&self, spellings: &[String]) -> Option<&'a Tensor> {
        let tensor = first(self.source, spellings)?;
        self.used.borrow_mut().insert(tensor.name.as_str());
        Some(tensor)
    }

    pub fn has(&self, place: Place, name: &str) -> bool {
        first(self.source, &self.spellings(place, name)).is_some()
    }

    fn require(&self, place: Place, name: &str) -> Result<&'a Tensor> {
        let spellings = self.spellings(place, name);
        self.find(&spellings).ok_or_else(|| ModelError::MissingTensor { tensor: spellings.join(" or ") })
    }

    fn checked(&self, place: Place, name: &str, shape: &[usize], why: &str) -> Result<&'a Tensor> {
        let tensor = self.require(place, name)?;
        if tensor.shape == shape { Ok(tensor) } else { Err(wrong_shape(tensor, shape, why)) }
    }

    /// Makes a weight from the matrix of one tensor.
    pub fn matrix(
        &self,
        g: &mut Builder,
        place: Place,
        name: &str,
        shape: [usize; 2],
        why: &str,
    ) -> Result<ValueId> {
        let tensor = self.checked(place, name, &shape, why)?;
        Ok(g.weight(Weight::new(place.label(stem(name)), &shape, vec![WeightPart::whole(tensor.clone())])))
    }

    /// A linear layer, with the checkpoint's bias if it has one.
    pub fn linear(
        &self,
        g: &mut Builder,
        x: ValueId,
        place: Place,
        name: &str,
        shape: [usize; 2],
    ) -> Result<ValueId> {
        let w = self.matrix(g, place, name, shape, "outputs × inputs")?;
        let y = g.linear(x, w);
        let parts = [(name, shape[0], String::from("one per output"))];
        let label = format!("{}.bias", name.strip_suffix(".weight").unwrap_or(name));
        let bias = self.stacked_bias(g, place, &label, name, &parts)?;
        Ok(bias.map_or(y, |bias| g.add(y, bias)))
    }

    /// Stacked linear layers of the same rows `[R, width]`, with the checkpoint's biases if it has any.
    #[allow(clippy::too_many_arguments, reason = "a layer is told by its names, its rows and its width")]
    pub fn projection(
        &self,
        g: &mut Builder,
        x: ValueId,
        place: Place,
        label: &str,
        fused: &str,
        parts: &[(&str, usize, String)],
        width: usize,
    ) -> Result<ValueId> {
        let w = self.stacked(g, place, label, fused, parts, width)?;
        let y = g.linear(x, w);
        let bias = self.stacked_bias(g, place, &format!("{label}.bias"), fused, parts)?;
        Ok(bias.map_or(y, |bias| g.add(y, bias)))
    }

    /// Some rows of a stored matrix.
    pub fn rows(
        &self,
        g: &mut Builder,
        place: Place,
        name: &str,
        stored: [usize; 2],
        rows: Range<usize>,
    ) -> Result<ValueId> {
        let tensor = self.checked(place, name, &stored, "positions × width")?.clone();
        let shape = [rows.len(), stored[1]];
        Ok(g.weight(Weight::new(place.label(stem(name)), &shape, vec![WeightPart::of_rows(tensor, rows)])))
    }

    /// Makes a matrix of stacked rows: from the one tensor `fused` if the checkpoint has it, else from `parts`, each with a name,
    /// its rows and how to read them.
    pub fn stacked(
        &self,
        g: &mut Builder,
        place: Place,
        label: &str,
        fused: &str,
        parts: &[(&str, usize, String)],
        width: usize,
    ) -> Result<ValueId> {
        let rows = parts.iter().map(|(_, rows, _)| rows).sum();
        let stored = if self.has(place, fused) {
            let why = parts.iter().map(|(name, ..)| stem(name)).collect::<Vec<_>>().join(" | ");
            vec![WeightPart::whole(self.checked(place, fused, &[rows, width], &why)?.clone())]
        } else {
            parts
                .iter()
                .map(|(name, rows, why)| {
                    Ok(WeightPart::whole(self.checked(place, name, &[*rows, width], why)?.clone()))
                })
                .collect::<Result<_>>()?
        };
        Ok(g.weight(Weight::new(place.label(label), &[rows, width], stored)))
    }

    /// Stacked biases in the order of [`stacked`](Self::stacked), zero if a part has none; `None` if no part has one.
    pub fn stacked_bias(
        &self,
        g: &mut Builder,
        place: Place,
        label: &str,
        fused: &str,
        parts: &[(&str, usize, String)],
    ) -> Result<Option<ValueId>> {
        let total = parts.iter().map(|(_, rows, _)| rows).sum();
        let fused = bias(fused);
        let (mut values, mut pieces) = (Vec::new(), Vec::new());
        if self.has(place, &fused) {
            let tensor = self.require(place, &fused)?;
            values = floats(tensor, &[total], "one per output")?;
            pieces.push(Piece { tensor: Some(tensor.clone()), elements: total });
        } else if parts.iter().any(|(name, ..)| self.has(place, &bias(name))) {
            for (name, rows, why) in parts {
                let tensor = self.find(&self.spellings(place, &bias(name)));
                match tensor {
                    Some(tensor) => values.extend(floats(tensor, &[*rows], why)?),
                    None => values.resize(values.len() + rows, 0.0),
                }
                pieces.push(Piece { tensor: tensor.cloned(), elements: *rows });
            }
        }
        if values.is_empty() {
            return Ok(None);
        }
        let origin = Origin { pieces, factor: 1.0, offset: 0.0 };
        Ok(Some(vector_of(g, place.label(label), &values, Some(origin))))
    }

    /// The weights of an RMS norm for the graph: the stored weights plus the family's offset.
    pub fn norm(&self, g: &mut Builder, place: Place, name: &str, width: usize) -> Result<ValueId> {
        let tensor = self.require(place, name)?;
        let values = floats(tensor, &[width], "the width that is normed")?;
        let origin = Origin { offset: self.norm_offset, ..Origin::of(tensor, width) };
        Ok(computed(g, place.label(stem(name)), values, origin))
    }

    /// Makes a weight from a vector of plain numbers, each multiplied by `factor`.
    pub fn vector(
        &self,
        g: &mut Builder,
        place: Place,
        name: &str,
        len: usize,
        factor: f32,
    ) -> Result<ValueId> {
        let tensor = self.require(place, name)?;
        let values = floats(tensor, &[len], "one per element")?;
        let origin = Origin { factor, ..Origin::of(tensor, len) };
        Ok(computed(g, place.label(stem(name)), values, origin))
    }

    /// Makes a weight from one stored number that training does not change. Hugging Face's models store such a number as a
    /// buffer, not as a parameter.
    pub fn constant(&self, g: &mut Builder, place: Place, name: &str) -> Result<ValueId> {
        let values = floats(self.require(place, name)?, &[1], "one scalar")?;
        Ok(plain_vector(g, place.label(stem(name)), &values))
    }

    /// One matrix per expert: from the stack `name`, from the second or first half of `gate_up` stacks, or from
    /// matrices kept one by one.
    pub fn experts(&self, g: &mut Builder, place: Place, name: &str, shape: [usize; 3]) -> Result<ValueId> {
        let [experts, rows, width] = shape;
        let why = format!("{experts} experts");
        let half = match name {
            "ffn_gate_exps.weight" => Some(0),
            "ffn_up_exps.weight" => Some(1),
            _ => None,
        };
        let parts = match half {
            Some(half) if self.has(place, "ffn_gate_up_exps.weight") => {
                let both =
                    self.checked(place, "ffn_gate_up_exps.weight", &[experts, 2 * rows, width], &why)?;
                (0..experts)
                    .map(|expert| {
                        let start = (2 * expert + half) * rows;
                        WeightPart::of_rows(both.clone(), start..start + rows)
                    })
                    .collect()
            }
            _ if self.has(place, name) => {
                vec![WeightPart::whole(self.checked(place, name, &shape, &why)?.clone())]
            }
            _ => self.separate_experts(place, name, shape)?,
        };
        Ok(g.weight(Weight::new(place.label(stem(name)), &shape, parts)))
    }

    fn separate_experts(
        &self,
        place: Place,
        name: &str,
        [experts, rows, width]: [usize; 3],
    ) -> Result<Vec<WeightPart>> {
        let layer = place.layer.unwrap_or_default();
        (0..experts)
            .map(|expert| {
                let mut spellings = self.names.expert(layer, name, expert);
                let Some(tensor) = self.find(&spellings) else {
                    let mut stacks = self.spellings(place, name);
                    stacks.append(&mut spellings);
                    return Err(ModelError::MissingTensor { tensor: stacks.join(" or ") });
                };
                if tensor.shape == [rows, width] {
                    Ok(WeightPart::whole(tensor.clone()))
                } else {
                    Err(wrong_shape(tensor, &[rows, width], "one expert"))
                }
            })
            .collect()
    }

    /// The frequency table of `rope`, shared by all layers with equal rotations.
    pub fn frequencies(&self, g: &mut Builder, rope: &RopeSpec) -> ValueId {
        let known = self.ropes.borrow().iter().find(|(other, _)| other == rope).map(|&(_, id)| id);
        known.unwrap_or_else(|| {
            let label = match self.ropes.borrow().len() {
                0 => "rope_frequencies".into(),
                n => format!("rope_frequencies.{n}"),
            };
            let id = plain_vector(g, label, &rope.frequencies());
            self.ropes.borrow_mut().push((rope.clone(), id));
            id
        })
    }

    /// The values of a tensor that no graph reads; `None` if it is not there.
    pub fn values(&self, place: Place, name: &str, shape: &[usize], why: &str) -> Result<Option<Vec<f32>>> {
        self.find(&self.spellings(place, name)).map(|tensor| floats(tensor, shape, why)).transpose()
    }

    /// Marks a tensor as used that the model does not read.
    pub fn pass_over(&self, place: Place, name: &str) {
        self.find(&self.spellings(place, name));
    }

    /// The stored head of a model whose head is the embedding table. Marks the tensor as used.
    pub fn head_copy(&self) -> Result<Option<HeadCopy>> {
        let Some(copy) = self.find(&self.spellings(Place::MODEL, "output.weight")) else { return Ok(None) };
        let table = self.require(Place::MODEL, "token_embd.weight")?;
        Ok(Some(HeadCopy { copy: copy.name.clone(), table: table.name.clone() }))
    }

    /// Names of tensors that were not used and do not belong to another part of a larger model.
    pub fn unused(self) -> Vec<&'a str> {
        let used = self.used.into_inner();
        let names = self.source.tensors.keys().map(String::as_str);
        names.filter(|name| !used.contains(name) && !self.names.is_foreign(name)).collect()
    }
}

/// Makes a weight from computed values.
pub(crate) fn plain_vector(g: &mut Builder, name: String, values: &[f32]) -> ValueId {
    vector_of(g, name, values, None)
}

/// Makes a weight from stored values, multiplied by their origin's factor, plus its offset.
fn computed(g: &mut Builder, name: String, mut values: Vec<f32>, origin: Origin) -> ValueId {
    for value in &mut values {
        *value = *value * origin.factor + origin.offset;
    }
    vector_of(g, name, &values, Some(origin))
}

fn vector_of(g: &mut Builder, name: String, values: &[f32], origin: Option<Origin>) -> ValueId {
    let tensor = Tensor::of_floats(name.as_str(), vec![values.len()], values);
    let weight = Weight::new(name, &[values.len()], vec![WeightPart::whole(tensor)]);
    g.weight(weight.map(|weight| Weight { origin, ..weight }))
}

pub(crate) fn wrong_shape(tensor: &Tensor, expected: &[usize], why: &str) -> ModelError {
    ModelError::TensorShape {
        tensor: tensor.name.clone(),
        found: tensor.shape.clone(),
        expected: expected.into(),
        why: why.into(),
    }
}

fn stem(name: &str) -> &str {
    name.strip_suffix(".weight").unwrap_or(name)
}

fn bias(name: &str) -> String {
    format!("{}.bias", stem(name))
}
