//! The parts that both stacks of a Whisper are made of.
//!
//! Letters: R rows of the step, D width, H heads, E head width.

use brasa_graph::op::{LayerNorm, Unary};
use brasa_graph::{Builder, ValueId};

use super::spec::{SpeechSpec, StackSpec};
use super::tensors::Tensors;
use crate::Result;
use crate::spec::Activation;

/// Added to the variance in every norm; keeps the division finite.
const NORM_EPS: f32 = 1e-5;

/// State that the blocks of a stack share while they are built.
pub(super) struct Stack<'g, 'a, 's> {
    pub g: &'g mut Builder,
    pub tensors: &'a Tensors<'s>,
    pub spec: &'a SpeechSpec,
    pub shape: StackSpec,
}

impl Stack<'_, '_, '_> {
    /// Elements of a head.
    pub fn head_dim(&self) -> usize {
        self.spec.hidden_size / self.shape.heads
    }

    /// A norm with weight and bias.
    pub fn norm(&mut self, x_rd: ValueId, name: &str) -> Result<ValueId> {
        let width = self.spec.hidden_size;
        let weight = self.tensors.vector(self.g, &format!("{name}.weight"), width)?;
        let bias = self.tensors.vector(self.g, &format!("{name}.bias"), width)?;
        Ok(self.g.apply(LayerNorm { eps: NORM_EPS }, &[x_rd, weight, bias])[0])
    }

    /// A linear layer with a bias.
    pub fn linear(&mut self, x: ValueId, name: &str, [rows, width]: [usize; 2]) -> Result<ValueId> {
        let shape = [rows, width];
        let weight = self.tensors.weight(self.g, &format!("{name}.weight"), &shape, "outputs × width")?;
        let bias = self.tensors.vector(self.g, &format!("{name}.bias"), rows)?;
        let y = self.g.linear(x, weight);
        Ok(self.g.add(y, bias))
    }

    /// Projects `x_rd` to heads `[R, H, E]`, in the order of their names.
    pub fn heads(&mut self, x_rd: ValueId, label: &str, names: &[String]) -> Result<Vec<ValueId>> {
        let width = self.spec.hidden_size;
        let (matrix, bias) = self.tensors.stacked(self.g, label, names, [width, width])?;
        let y = self.g.linear(x_rd, matrix);
        let y = self.g.add(y, bias);
        let inner = [self.shape.heads, self.head_dim()];
        let cut = |place: usize| place * width..(place + 1) * width;
        Ok((0..names.len())
            .map(|place| {
                let part = self.g.slice(y, cut(place));
                self.g.reshape(part, &inner)
            })
            .collect())
    }

    /// Projects the attention outputs of the heads, `[R, H, E]`, and adds them to the residual stream.
    pub fn add_attended(&mut self, h_rd: ValueId, found_rhe: ValueId, name: &str) -> Result<ValueId> {
        let width = self.spec.hidden_size;
        let found_rd = self.g.reshape(found_rhe, &[width]);
        let y_rd = self.linear(found_rd, name, [width, width])?;
        Ok(self.g.add(h_rd, y_rd))
    }

    /// The network of a block, added to the residual stream.
    pub fn network(&mut self, h_rd: ValueId, block: &str) -> Result<ValueId> {
        let (width, inner) = (self.spec.hidden_size, self.shape.ffn_width);
        let x_rd = self.norm(h_rd, &format!("{block}.mlp_ln"))?;
        let x = self.linear(x_rd, &format!("{block}.mlp.0"), [inner, width])?;
        let x = activate(self.g, x, self.spec.activation);
        let y_rd = self.linear(x, &format!("{block}.mlp.2"), [width, inner])?;
        Ok(self.g.add(h_rd, y_rd))
    }
}

pub(super) fn activate(g: &mut Builder, x: ValueId, activation: Activation) -> ValueId {
    let function = match activation {
        Activation::Silu => Unary::Silu,
        Activation::GeluTanh => Unary::GeluTanh,
        Activation::GeluErf => Unary::GeluErf,
    };
    g.unary(x, function)
}
