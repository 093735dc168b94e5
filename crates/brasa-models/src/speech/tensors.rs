//! From a Whisper's tensors to weights of its graphs.

use std::cell::RefCell;
use std::collections::BTreeSet;

use brasa_formats::Tensor;
use brasa_graph::{Builder, ValueId, Weight, WeightPart};

use super::names::{REPEATED, spellings};
use crate::metadata::floats;
use crate::names::first;
use crate::source::Source;
use crate::weights::{plain_vector, wrong_shape};
use crate::{ModelError, Result};

/// Takes tensors out of a checkpoint by OpenAI's names, and records which were used.
#[derive(Debug)]
pub(super) struct Tensors<'a> {
    source: &'a Source,
    used: RefCell<BTreeSet<&'a str>>,
}

impl<'a> Tensors<'a> {
    pub fn new(source: &'a Source) -> Self {
        Self { source, used: RefCell::default() }
    }

    fn find(&self, name: &str) -> Option<&'a Tensor> {
        let tensor = first(self.source, &spellings(name))?;
        self.used.borrow_mut().insert(tensor.name.as_str());
        Some(tensor)
    }

    fn require(&self, name: &str) -> Result<&'a Tensor> {
        let missing = || ModelError::MissingTensor { tensor: spellings(name).join(" or ") };
        self.find(name).ok_or_else(missing)
    }

    fn checked(&self, name: &str, shape: &[usize], why: &str) -> Result<&'a Tensor> {
        let tensor = self.require(name)?;
        if tensor.shape == shape { Ok(tensor) } else { Err(wrong_shape(tensor, shape, why)) }
    }

    /// Makes a weight from one tensor.
    pub fn weight(&self, g: &mut Builder, name: &str, shape: &[usize], why: &str) -> Result<ValueId> {
        let tensor = self.checked(name, shape, why)?;
        Ok(g.weight(Weight::new(label(name), shape, vec![WeightPart::whole(tensor.clone())])))
    }

    /// The filters of a convolution, `[outputs, inputs, taps]`, as the matrix `[outputs, inputs · taps]`.
    pub fn filters(&self, g: &mut Builder, name: &str, shape: [usize; 3]) -> Result<ValueId> {
        let tensor = self.checked(name, &shape, "outputs × inputs × taps")?;
        let [outputs, inputs, taps] = shape;
        let matrix = Tensor { shape: vec![outputs, inputs * taps], ..tensor.clone() };
        Ok(g.weight(Weight::new(label(name), &[outputs, inputs * taps], vec![WeightPart::whole(matrix)])))
    }

    /// Makes a weight from a vector of plain numbers.
    pub fn vector(&self, g: &mut Builder, name: &str, len: usize) -> Result<ValueId> {
        let values = floats(self.require(name)?, &[len], "one per element")?;
        Ok(plain_vector(g, name.into(), &values))
    }

    /// Stacks linear layers that have the same input: matrix `[rows · names, width]` and biases, zero where a layer has none.
    pub fn stacked(
        &self,
        g: &mut Builder,
        label: &str,
        names: &[String],
        [rows, width]: [usize; 2],
    ) -> Result<(ValueId, ValueId)> {
        let (mut parts, mut biases) = (Vec::new(), Vec::new());
        for name in names {
            let tensor = self.checked(&format!("{name}.weight"), &[rows, width], "outputs × width")?;
            parts.push(WeightPart::whole(tensor.clone()));
            match self.find(&format!("{name}.bias")) {
                Some(bias) => biases.extend(floats(bias, &[rows], "one per output")?),
                None => biases.resize(biases.len() + rows, 0.0),
            }
        }
        let matrix = g.weight(Weight::new(label, &[rows * names.len(), width], parts));
        Ok((matrix, plain_vector(g, format!("{label}.bias"), &biases)))
    }

    /// The filter bank, `[bins, frequencies]`, if the checkpoint brings one.
    pub fn mel_filters(&self, bins: usize) -> Result<Option<Vec<f32>>> {
        let Some(tensor) = self.find("mel_filters") else { return Ok(None) };
        let shape = [bins, tensor.row_len()];
        floats(tensor, &shape, "mel bins × frequencies").map(Some)
    }

    /// Names of tensors that were not used.
    pub fn unused(&self) -> Vec<&'a str> {
        let used = self.used.borrow();
        let names = self.source.tensors.keys().map(String::as_str);
        names.filter(|name| !used.contains(name) && !REPEATED.contains(name)).collect()
    }
}

/// The name of a tensor's weight in graphs.
fn label(name: &str) -> &str {
    name.strip_suffix(".weight").unwrap_or(name)
}
