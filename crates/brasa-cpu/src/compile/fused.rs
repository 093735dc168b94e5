//! Compiler of fused items. If no kernel takes an item, its nodes are lowered one by one, which is its definition.

use brasa_graph::device::DeviceError;
use brasa_graph::fuse::{
    self, Fusion, GateUpActivation, LinearActivation, LinearResidual, LowRankRows, NormLinear, Projection,
    QkNormRopeCacheWrite, RouterExperts,
};
use brasa_graph::op::Unary;
use brasa_graph::{Fused, ValueId};

use super::Compiler;
use crate::linear::PackedLinear;
use crate::ops::CompiledOp;
use crate::ops::experts::{MixtureOp, RouterOp};
use crate::ops::finish::Follow;
use crate::ops::heads::HeadsOp;
use crate::ops::linear::{Factor, GateUpOp, Layer, LinearOp};
use crate::ops::low_rank::{LowRankRowsOp, units};
use crate::ops::norm::{Norm, NormKind};
use crate::ops::prepare::{Activations, Meets};
use crate::slot::{Out, Source};

impl Compiler<'_> {
    /// Appends a fused item; false if no kernel takes it.
    pub(super) fn lower_fused(&mut self, fused: &Fused) -> Result<bool, DeviceError> {
        match &fused.fusion {
            Fusion::LinearResidual(sum) => self.lower_linear_residual(sum),
            Fusion::LowRankRows(product) => self.lower_low_rank_rows(product),
            Fusion::NormLinear(layers) => self.lower_norm_linear(layers),
            Fusion::LinearActivation(layer) => self.lower_linear_activation(layer),
            Fusion::GateUpActivation(pair) => self.lower_gate_up(pair),
            Fusion::QkNormRopeCacheWrite(heads) => self.lower_heads(heads),
            Fusion::RouterExperts(mixture) => self.lower_mixture(mixture),
            // Not among the patterns of this device.
            Fusion::GateUpLowRankRows(_) | Fusion::LinearLowRankRows(_) => Ok(false),
        }
    }

    /// The weight of a projection that uses all of its rows.
    fn whole(&self, projection: &Projection) -> Option<usize> {
        let weight = self.weight(projection.w)?;
        (projection.rows == (0..self.weights.linear(weight).n())).then_some(weight)
    }

    fn lower_linear_residual(&mut self, sum: &LinearResidual) -> Result<bool, DeviceError> {
        if self.shape(sum.residual).rank() != 2 {
            return Ok(false);
        }
        self.lower_followed("linear+residual", (sum.x, &sum.layer, sum.y), None, Some(sum.residual))
    }

    fn lower_linear_activation(&mut self, fused: &LinearActivation) -> Result<bool, DeviceError> {
        if self.shape(fused.y).rank() != 2 {
            return Ok(false);
        }
        let name = fused.activation.map_or("linear", |_| "linear+activation");
        self.lower_followed(name, (fused.x, &fused.layer, fused.y), fused.activation, None)
    }

    /// Appends a linear layer of `x` with its bias and the operations behind it.
    fn lower_followed(
        &mut self,
        name: &str,
        (x, layer, y): (ValueId, &Projection, ValueId),
        activation: Option<Unary>,
        residual: Option<ValueId>,
    ) -> Result<bool, DeviceError> {
        let Some(weight) = self.whole(layer) else { return Ok(false) };
        if self.shape(x).rank() != 2 {
            return Ok(false);
        }
        let rows = self.shape(x).outer();
        let activations = self.activations(x, &[weight])?;
        let bias = layer.bias.map(|bias| self.vector(bias)).transpose()?;
        let residual = residual.map(|residual| self.source(residual)).transpose()?;
        let follow = Follow { bias, activation, residual };
        let layer = Layer { weight, follow, out: self.make(y)? };
        let label = self.label(name, weight);
        self.push(CompiledOp::Linear(LinearOp { activations, layers: vec![layer], rows }), label);
        Ok(true)
    }

    fn lower_low_rank_rows(&mut self, product: &LowRankRows) -> Result<bool, DeviceError> {
        let (Some(a), Some(b)) = (self.weight(product.a), self.weight(product.b)) else { return Ok(false) };
        // A learned `B` may fill blocks that are zero today.
        let is_fixed = !self.graph.weights()[b].trainable;
        let Some(units) = units(self.weights.linear(a), self.weights.linear(b), is_fixed) else {
            return Ok(false);
        };
        if [product.x, product.residual].into_iter().any(|value| self.shape(value).rank() != 2) {
            return Ok(false);
        }
        let activations = Activations { meets: Meets::Chosen, ..self.activations(product.x, &[a])? };
        let factors = self.source(product.factors)?;
        let residual = self.source(product.residual)?;
        let narrow = self.temporary(self.shape(product.x).outer(), self.weights.linear(a).n());
        let out = self.make(product.y)?;
        let op = LowRankRowsOp { activations, a, factors, narrow, b, units, residual, out };
        let label = self.label("low_rank_rows", a);
        self.push(CompiledOp::LowRankRows(op), label);
        Ok(true)
    }

    fn lower_norm_linear(&mut self, fusion: &NormLinear) -> Result<bool, DeviceError> {
        let weights: Option<Vec<usize>> = fusion.layers.iter().map(|(layer, _)| self.whole(layer)).collect();
        let Some(weights) = weights else { return Ok(false) };
        let rows = self.shape(fusion.x).outer();
        let norm = self.fused_norm(&fusion.norm, fusion.x)?;
        let activations = Activations { norm: Some(norm), ..self.activations(fusion.x, &weights)? };
        let mut layers = Vec::with_capacity(weights.len());
        for (&weight, (layer, y)) in weights.iter().zip(&fusion.layers) {
            let bias = layer.bias.map(|bias| self.vector(bias)).transpose()?;
            layers.push(Layer { weight, follow: Follow { bias, ..Follow::default() }, out: self.make(*y)? });
        }
        let label = self.label("norm+linear", weights[0]);
        self.push(CompiledOp::Linear(LinearOp { activations, layers, rows }), label);
        Ok(true)
    }

    fn fused_norm(&mut self, norm: &fuse::Norm, x: ValueId) -> Result<Norm, DeviceError> {
        let w = norm.w.map(|w| self.vector(w)).transpose()?;
        Ok(Norm { kind: NormKind::Rms, eps: norm.eps, width: self.width(x)?, weights: [w, None] })
    }

    fn lower_gate_up(&mut self, pair: &GateUpActivation) -> Result<bool, DeviceError> {
        let (Some(gate), Some(up)) = (self.weight(pair.gate.w), self.weight(pair.up.w)) else {
            return Ok(false);
        };
        if self.shape(pair.x).rank() != 2 || self.shape(pair.y).rank() != 2 {
            return Ok(false);
        }
        let Some((first_gate, first_up, strips)) = paired_strips(
            (self.weights.linear(gate), &pair.gate.rows),
            (self.weights.linear(up), &pair.up.rows),
        ) else {
            return Ok(false);
        };
        let activations = self.activations(pair.x, &[gate, up])?;
        let mut factor = |weight, first_strip, projection: &Projection| -> Result<Factor, DeviceError> {
            let bias = match projection.bias {
                Some(bias) => Some(self.part_of_vector(bias, &projection.rows)?),
                None => None,
            };
            Ok(Factor { weight, first_strip, first_output: projection.rows.start, bias })
        };
        let gate_factor = factor(gate, first_gate, &pair.gate)?;
        let up_factor = factor(up, first_up, &pair.up)?;
        let out = self.make(pair.y)?;
        let unit = pair.unit;
        let op = GateUpOp { activations, gate: gate_factor, up: up_factor, unit, strips, out };
        let label = self.label("gate_up", gate);
        self.push(CompiledOp::GateUp(op), label);
        Ok(true)
    }

    fn lower_heads(&mut self, heads: &QkNormRopeCacheWrite) -> Result<bool, DeviceError> {
        let table = self.rope_table(&heads.rope, heads.positions, heads.frequencies)?;
        let target = self.target(heads.cache);
        let mut norm = |norm: &Option<fuse::Norm>, x| match norm {
            Some(norm) => self.fused_norm(norm, x).map(Some),
            None => Ok(None),
        };
        let (q_norm, k_norm, v_norm) =
            (norm(&heads.q_norm, heads.q)?, norm(&heads.k_norm, heads.k)?, norm(&heads.v_norm, heads.v)?);
        let query_heads = self.row_elements(heads.q)? / target.key_dim;
        let (q, k, v) = (self.source(heads.q)?, self.source(heads.k)?, self.source(heads.v)?);
        let out = self.make(heads.y)?;
        let op = HeadsOp {
            q,
            k,
            v,
            q_norm,
            k_norm,
            v_norm,
            rope: heads.rope,
            table,
            target,
            heads: query_heads,
            out,
        };
        self.push(CompiledOp::Heads(op), "qk_norm+rope+cache_write");
        Ok(true)
    }

    fn lower_mixture(&mut self, mixture: &RouterExperts) -> Result<bool, DeviceError> {
        let weights = [mixture.gate, mixture.up, mixture.down].map(|w| self.weight(w));
        let [Some(gate), Some(up), Some(down)] = weights else { return Ok(false) };
        if self.shape(mixture.logits).rank() != 2 {
            return Ok(false);
        }
        let chosen = mixture.router.k;
        let outer = self.shape(mixture.x).outer();
        let features = self.weights.experts(gate).experts()[0].n();
        let activations = self.expert_activations(mixture.x, &[gate, up])?;
        let logits = self.source(mixture.logits)?;
        let selection_bias = mixture.selection_bias.map(|bias| self.as_row(bias)).transpose()?;
        let expert_scales = mixture.expert_scales.map(|scales| self.source(scales)).transpose()?;
        let mut biases = [None; 3];
        for (place, bias) in biases.iter_mut().zip(mixture.biases) {
            *place = bias.map(|bias| self.source(bias)).transpose()?;
        }
        let experts = self.temporary(outer, chosen);
        let shares = self.temporary(outer, chosen);
        let gates = self.temporary(outer, chosen * features);
        let ups = self.temporary(outer, chosen * features);
        let out = self.make(mixture.y)?;
        let width = self.row_elements(mixture.y)?;
        let downs = self.temporary(outer, chosen * width);
        let hidden = Activations {
            x: Source::Arena(gates),
            k: features,
            per_row: chosen,
            norm: None,
            classes: self.expert_classes(&[down]),
            meets: Meets::Chosen,
            residuals: self.wants_residuals(&[down]),
        };
        let op = MixtureOp {
            router: RouterOp {
                router: mixture.router,
                logits,
                bias: selection_bias,
                experts: Out::by_rows(experts),
                weights: Out::by_rows(shares),
            },
            scale: mixture.scale,
            expert_scales,
            activations,
            gate,
            up,
            down,
            biases,
            unit: mixture.unit,
            gates,
            ups,
            downs,
            hidden,
            out: Out::by_elements(out),
        };
        let label = self.label("experts", gate);
        self.push(CompiledOp::Mixture(op), label);
        Ok(true)
    }
}

type Outputs<'a> = (&'a PackedLinear, &'a std::ops::Range<usize>);

/// First strips and number of strips of two ranges of outputs whose strips pair up.
fn paired_strips(gate: Outputs<'_>, up: Outputs<'_>) -> Option<(usize, usize, usize)> {
    let first = |(linear, rows): Outputs<'_>| {
        // Strips are in order of their outputs.
        let (mut low, mut high) = (0, linear.strips());
        while low < high {
            let middle = usize::midpoint(low, high);
            if linear.strip_outputs(middle).start < rows.start { low = middle + 1 } else { high = middle }
        }
        (low < linear.strips() && linear.strip_outputs(low).start == rows.start).then_some(low)
    };
    let (first_gate, first_up) = (first(gate)?, first(up)?);
    let mut strips = 0;
    loop {
        let outputs = |(linear, rows): Outputs<'_>, first: usize| {
            let strip = first + strips;
            let outputs = (strip < linear.strips()).then(|| linear.strip_outputs(strip))?;
            (outputs.end <= rows.end).then(|| outputs.start - rows.start..outputs.end - rows.start)
        };
        let (of_gate, of_up) = (outputs(gate, first_gate)?, outputs(up, first_up)?);
        if of_gate != of_up {
            return None;
        }
        strips += 1;
        if of_gate.end == gate.1.len() {
            return Some((first_gate, first_up, strips));
        }
    }
}
