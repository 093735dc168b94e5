//! The text encoder, once for all families.
//!
//! Letters: R rows of the step, O rows whose states are wanted, D width, H heads, E head width, F network width, L labels.

use brasa_graph::op::{Attention, Gating, KvSource, LayerNorm, Mask, Rope, RouterTopK, Unary};
use brasa_graph::{Builder, DType, Dim, Graph, Input, ValueId};

use super::spec::{
    ClassifierSpec, EncoderExperts, EncoderFfn, EncoderLayerSpec, EncoderNorms, EncoderSpec, HeadForm,
    HeadPooling,
};
use crate::Result;
use crate::spec::Activation;
use crate::weights::{Place, Weights};

/// The name of the input with each row's token type, which marks the parts of a text.
pub(super) const TOKEN_TYPES: &str = "token_types";

/// An encoder's graph, and its values that programs return.
pub(super) struct Built {
    pub graph: Graph,
    /// Hidden states of the rows with outputs, `[O, D]`.
    pub hidden: ValueId,
    /// The head's logits for the rows with outputs, `[O, L]`.
    pub logits: Option<ValueId>,
}

/// Builds the graph of `spec` over `weights`: token ids, positions and output rows in, hidden states and logits out.
pub(super) fn encoder(spec: &EncoderSpec, weights: &Weights) -> Result<Built> {
    let mut g = Builder::new();
    let ids = g.input(Input::TokenIds);
    let positions = g.input(Input::Positions);
    let out_rows = g.input(Input::OutRows);
    let d = spec.hidden_size;

    let table_shape = [spec.vocab_size, d];
    let table =
        weights.matrix(&mut g, Place::MODEL, "token_embd.weight", table_shape, "vocabulary × width")?;
    let mut h_rd = g.embed(ids, table);
    if spec.token_types > 0 {
        let shape = [spec.token_types, d];
        let table = weights.matrix(&mut g, Place::MODEL, "token_types.weight", shape, "types × width")?;
        let types = g.given(TOKEN_TYPES, DType::U32, Dim::ROWS, &[]);
        let types_rd = g.embed(types, table);
        h_rd = g.add(h_rd, types_rd);
    }
    if let Some(learned) = spec.positions {
        let rows = learned.first..learned.stored;
        let table = weights.rows(&mut g, Place::MODEL, "position_embd.weight", [learned.stored, d], rows)?;
        let positions_rd = g.embed(positions, table);
        h_rd = g.add(h_rd, positions_rd);
    }

    let mut block = Block { g: &mut g, spec, weights, positions };
    h_rd = block.norm(h_rd, Place::MODEL, "token_embd_norm.weight")?;
    for (index, layer) in spec.layers.iter().enumerate() {
        // What follows the last attention is computed for the output rows alone: no other row is read again.
        let only = (index + 1 == spec.layers.len()).then_some(out_rows);
        h_rd = match spec.norms {
            EncoderNorms::Post | EncoderNorms::PostTwice => {
                block.post_norm_layer(h_rd, Place::layer(index), layer, only)?
            }
            EncoderNorms::Pre => block.pre_norm_layer(h_rd, Place::layer(index), layer, only)?,
        };
    }
    if spec.norms == EncoderNorms::Pre {
        h_rd = block.norm(h_rd, Place::MODEL, "output_norm.weight")?;
    }
    let logits = match spec.classifier {
        Some(head) if head.pooling == HeadPooling::First => Some(block.classifier(h_rd, head)?),
        _ => None,
    };
    let outputs: Vec<ValueId> = logits.into_iter().chain([h_rd]).collect();
    Ok(Built { graph: g.finish(&outputs)?, hidden: h_rd, logits })
}

/// State that the layers share while they are built.
struct Block<'a, 'w> {
    g: &'a mut Builder,
    spec: &'a EncoderSpec,
    weights: &'a Weights<'w>,
    positions: ValueId,
}

impl Block<'_, '_> {
    /// Adds a layer whose norms follow the residual sums. `only` selects the rows that are computed after attention; `None` for
    /// all.
    fn post_norm_layer(
        &mut self,
        h_rd: ValueId,
        at: Place,
        layer: &EncoderLayerSpec,
        only: Option<ValueId>,
    ) -> Result<ValueId> {
        let o_rq = self.attention(h_rd, at, layer)?;
        let [o_rq, before_rd] = self.select([o_rq, h_rd], only);
        let h_rd = self.add_attention(before_rd, o_rq, at, layer)?;
        let mut h_rd = self.norm(h_rd, at, "attn_output_norm.weight")?;
        if self.spec.norms == EncoderNorms::PostTwice {
            h_rd = self.g.add(before_rd, h_rd);
            h_rd = self.norm(h_rd, at, "attn_norm_2.weight")?;
        }
        let f_rd = self.ffn(h_rd, at, layer.ffn)?;
        let h_rd = self.g.add(h_rd, f_rd);
        self.norm(h_rd, at, "layer_output_norm.weight")
    }

    /// Adds a layer whose norms precede attention and network. `only` selects the rows that are computed after attention; `None`
    /// for all.
    fn pre_norm_layer(
        &mut self,
        h_rd: ValueId,
        at: Place,
        layer: &EncoderLayerSpec,
        only: Option<ValueId>,
    ) -> Result<ValueId> {
        let x_rd = if at.is_first() { h_rd } else { self.norm(h_rd, at, "attn_norm.weight")? };
        let o_rq = self.attention(x_rd, at, layer)?;
        let [o_rq, h_rd] = self.select([o_rq, h_rd], only);
        let h_rd = self.add_attention(h_rd, o_rq, at, layer)?;
        let x_rd = self.norm(h_rd, at, "ffn_norm.weight")?;
        let f_rd = self.ffn(x_rd, at, layer.ffn)?;
        Ok(self.g.add(h_rd, f_rd))
    }

    /// Selects the rows `only` of each value; all rows if it is `None`.
    fn select<const N: usize>(&mut self, values: [ValueId; N], only: Option<ValueId>) -> [ValueId; N] {
        only.map_or(values, |rows| values.map(|x| self.g.select_rows(x, rows)))
    }

    /// The residual stream with the projected outputs of all heads.
    fn add_attention(
        &mut self,
        h_rd: ValueId,
        o_rq: ValueId,
        at: Place,
        layer: &EncoderLayerSpec,
    ) -> Result<ValueId> {
        let shape = [self.spec.hidden_size, layer.attention_dim()];
        let o_rd = self.linear(o_rq, at, "attn_output.weight", shape)?;
        Ok(self.g.add(h_rd, o_rd))
    }

    /// The outputs of all heads, side by side: `[R, H · E]`.
    fn attention(&mut self, x_rd: ValueId, at: Place, layer: &EncoderLayerSpec) -> Result<ValueId> {
        let (heads, width, dim) = (layer.num_heads, layer.head_dim, layer.attention_dim());
        let why = format!("{heads} heads × {width}");
        let parts = ["attn_q.weight", "attn_k.weight", "attn_v.weight"].map(|name| (name, dim, why.clone()));
        let qkv = self.projection(x_rd, at, "qkv", "attn_qkv.weight", &parts)?;
        let [mut q_rq, mut k_rq, v_rq] =
            [0, 1, 2].map(|part| self.g.slice(qkv, part * dim..(part + 1) * dim));
        if layer.qk_norm {
            q_rq = self.norm(q_rq, at, "attn_q_norm.weight")?;
            k_rq = self.norm(k_rq, at, "attn_k_norm.weight")?;
        }
        let [mut q_rhe, mut k_rhe, v_rhe] =
            [q_rq, k_rq, v_rq].map(|part| self.g.reshape(part, &[heads, width]));
        if let Some(rope) = &layer.rope {
            let frequencies = self.weights.frequencies(self.g, rope);
            let op = Rope { layout: rope.layout, rotary_dim: rope.rotary_dim, magnitude: rope.magnitude };
            [q_rhe, k_rhe] = [q_rhe, k_rhe].map(|x| self.g.rope(x, self.positions, frequencies, op));
        }
        let op = Attention {
            source: KvSource::Step(if layer.alibi { Mask::Alibi } else { Mask::Bidirectional }),
            scale: (width as f32).powf(-0.5),
            window: layer.window,
            softcap: None,
        };
        let o_rhe = self.g.attention(&[q_rhe, k_rhe, v_rhe], op);
        Ok(self.g.reshape(o_rhe, &[dim]))
    }

    fn ffn(&mut self, x_rd: ValueId, at: Place, spec: EncoderFfn) -> Result<ValueId> {
        if let Some(experts) = spec.experts {
            return self.experts(x_rd, at, spec, experts);
        }
        let (width, d) = (spec.width, self.spec.hidden_size);
        let x_rf = if spec.gated {
            let why = String::from("the network's width");
            // The order of the two halves is the file's, and their names say which it is.
            let up_first = self.weights.has(at, "ffn_up_gate.weight");
            let [gate, up] = ["ffn_gate.weight", "ffn_up.weight"].map(|name| (name, width, why.clone()));
            let (fused, parts) = if up_first {
                ("ffn_up_gate.weight", [up, gate])
            } else {
                ("ffn_gate_up.weight", [gate, up])
            };
            let both = self.projection(x_rd, at, "gate_up", fused, &parts)?;
            let (gate, up) = if up_first { (width, 0) } else { (0, width) };
            let gate_rf = self.g.slice(both, gate..gate + width);
            let up_rf = self.g.slice(both, up..up + width);
            let gate_rf = self.activate(gate_rf, spec.activation);
            self.g.mul(gate_rf, up_rf)
        } else {
            let up_rf = self.linear(x_rd, at, "ffn_up.weight", [width, d])?;
            self.activate(up_rf, spec.activation)
        };
        self.linear(x_rf, at, "ffn_down.weight", [d, width])
    }

    /// The outputs of each row's experts, summed by their shares. Letters: X experts, k of them for a row.
    fn experts(
        &mut self,
        x_rd: ValueId,
        at: Place,
        spec: EncoderFfn,
        EncoderExperts { count: x, per_row: k }: EncoderExperts,
    ) -> Result<ValueId> {
        let (width, d) = (spec.width, self.spec.hidden_size);
        let why = format!("{x} experts");
        let router = self.weights.matrix(self.g, at, "ffn_gate_inp.weight", [x, d], &why)?;
        let logits_rx = self.g.linear(x_rd, router);
        let (chosen_rk, share_rk) =
            self.g.router_topk(logits_rx, RouterTopK { k, gating: Gating::SOFTMAX_ALL });
        let up = self.weights.experts(self.g, at, "ffn_up_exps.weight", [x, width, d])?;
        let down = self.weights.experts(self.g, at, "ffn_down_exps.weight", [x, d, width])?;
        let up_rkf = self.g.expert_linear(x_rd, chosen_rk, up);
        let up_rkf = self.activate(up_rkf, spec.activation);
        let y_rkd = self.g.expert_linear(up_rkf, chosen_rk, down);
        let share_rk1 = self.g.reshape(share_rk, &[k, 1]);
        let y_rkd = self.g.mul(y_rkd, share_rk1);
        Ok(self.g.sum(y_rkd, 1))
    }

    /// The head's logits, `[O, L]`.
    fn classifier(&mut self, h_od: ValueId, spec: ClassifierSpec) -> Result<ValueId> {
        let d = self.spec.hidden_size;
        let x_od = self.linear(h_od, Place::MODEL, "cls.weight", [d, d])?;
        let x_od = match spec.form {
            HeadForm::Tanh => self.g.unary(x_od, Unary::Tanh),
            HeadForm::Normed(activation) => {
                let x_od = self.activate(x_od, activation);
                self.norm(x_od, Place::MODEL, "cls.norm.weight")?
            }
        };
        self.linear(x_od, Place::MODEL, "cls.output.weight", [spec.labels, d])
    }

    fn activate(&mut self, x: ValueId, activation: Activation) -> ValueId {
        let function = match activation {
            Activation::Silu => Unary::Silu,
            Activation::GeluTanh => Unary::GeluTanh,
            Activation::GeluErf => Unary::GeluErf,
        };
        self.g.unary(x, function)
    }

    /// A layer norm, with the checkpoint's bias if it has one.
    fn norm(&mut self, x_rd: ValueId, at: Place, name: &str) -> Result<ValueId> {
        let d = self.spec.hidden_size;
        let weight = self.weights.vector(self.g, at, name, d, 1.0)?;
        let parts = [(name, d, String::from("the width that is normed"))];
        let label = format!("{}.bias", name.strip_suffix(".weight").unwrap_or(name));
        let bias = self.weights.stacked_bias(self.g, at, &label, name, &parts)?;
        let operands: Vec<ValueId> = [x_rd, weight].into_iter().chain(bias).collect();
        Ok(self.g.apply(LayerNorm { eps: self.spec.norm_eps }, &operands)[0])
    }

    /// A linear layer, with the checkpoint's bias if it has one.
    fn linear(&mut self, x: ValueId, at: Place, name: &str, shape: [usize; 2]) -> Result<ValueId> {
        self.weights.linear(self.g, x, at, name, shape)
    }

    /// Stacked linear layers of the same rows, with the checkpoint's biases if it has any.
    fn projection(
        &mut self,
        x: ValueId,
        at: Place,
        label: &str,
        fused: &str,
        parts: &[(&str, usize, String)],
    ) -> Result<ValueId> {
        self.weights.projection(self.g, x, at, label, fused, parts, self.spec.hidden_size)
    }
}
