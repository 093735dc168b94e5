//! The decoder-only transformer, once for all families. Without caches it is an encoder whose rows all see each other.
//!
//! Letters: R rows of the step, O rows with logits, D width, H heads, G key and value heads, E head width, F network
//! width, P per-layer width, V vocabulary.

use brasa_graph::op::{Attention, KvSource, Mask, Rope, RouterTopK, Unary};
use brasa_graph::{Builder, CacheId, CacheSpec, Graph, Input, ValueId};

use crate::Result;
use crate::spec::{
    Activation, AttentionSpec, DenseSpec, ExpertsSpec, FfnSpec, Head, KvSpec, LayerSpec, ModelSpec, Norms,
    PerLayerInputs, Router, ValueSource,
};
use crate::weights::{HeadCopy, Place, Weights};

/// Values of the graph that callers may read.
pub(crate) struct Inside {
    /// The normed hidden states that the head reads, `[Outs, D]`.
    pub hidden: ValueId,
    /// The residual stream after each layer, `[R, D]`; after the last layer `[Outs, D]`.
    pub states: Vec<ValueId>,
    pub head_copy: Option<HeadCopy>,
}

/// Which rows a row attends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sight {
    /// A row attends to itself and to the rows before it, through caches.
    Causal,
    /// A row attends to all rows of its text, which is one segment of a step.
    Bidirectional,
}

/// Builds the graph of `spec` over `weights`: token ids, positions and output rows in, logits `[Outs, V]` out.
/// Also returns values inside.
pub(crate) fn decoder(spec: &ModelSpec, weights: &Weights, sight: Sight) -> Result<(Graph, Inside)> {
    let mut g = Builder::new();
    let ids = g.input(Input::TokenIds);
    let positions = g.input(Input::Positions);
    let out_rows = g.input(Input::OutRows);

    let table_shape = [spec.vocab_size, spec.hidden_size];
    let table =
        weights.matrix(&mut g, Place::MODEL, "token_embd.weight", table_shape, "vocabulary × width")?;
    let mut h_rd = g.embed(ids, table);
    if let Some(scale) = spec.embedding_scale {
        h_rd = g.scale(h_rd, scale);
    }
    let inputs = match spec.per_layer_inputs {
        Some(per_layer) => Some(per_layer_inputs(&mut g, spec, per_layer, weights, ids, h_rd)?),
        None => None,
    };

    let mut block =
        Block { g: &mut g, spec, weights, sight, positions, out_rows, inputs, caches: Vec::new() };
    let mut states = Vec::with_capacity(spec.layers.len());
    for (index, layer) in spec.layers.iter().enumerate() {
        h_rd = block.layer(h_rd, index, layer)?;
        states.push(h_rd);
    }

    // The last layer has kept the output rows alone.
    let h_od = h_rd;
    let norm = weights.norm(&mut g, Place::MODEL, "output_norm.weight", spec.hidden_size)?;
    let h_od = g.rms_norm(h_od, norm, spec.norm_eps);
    let mut head_copy = None;
    let head = match spec.head {
        Head::Tied => {
            head_copy = weights.head_copy()?;
            table
        }
        Head::Untied => {
            weights.matrix(&mut g, Place::MODEL, "output.weight", table_shape, "vocabulary × width")?
        }
    };
    let mut logits_ov = g.linear(h_od, head);
    if let Some(cap) = spec.final_softcap {
        logits_ov = g.unary(logits_ov, Unary::Softcap(cap));
    }
    Ok((g.finish(&[logits_ov])?, Inside { hidden: h_od, states, head_copy }))
}

/// The per-layer inputs `[R, layers · P]`: each token's own vectors, mixed with a normed projection of its embedding.
fn per_layer_inputs(
    g: &mut Builder,
    spec: &ModelSpec,
    per_layer: PerLayerInputs,
    weights: &Weights,
    ids: ValueId,
    h_rd: ValueId,
) -> Result<ValueId> {
    let (layers, width) = (spec.layers.len(), per_layer.width);
    let all = layers * width;
    let why = format!("{layers} layers × {width}");
    let table_shape = [spec.vocab_size, all];
    let table = weights.matrix(g, Place::MODEL, "per_layer_token_embd.weight", table_shape, &why)?;
    let proj_shape = [all, spec.hidden_size];
    let proj = weights.matrix(g, Place::MODEL, "per_layer_model_proj.weight", proj_shape, &why)?;
    let norm = weights.norm(g, Place::MODEL, "per_layer_proj_norm.weight", width)?;

    let own = g.embed(ids, table);
    let own = g.scale(own, (width as f32).sqrt());
    let projected = g.linear(h_rd, proj);
    let projected = g.scale(projected, (spec.hidden_size as f32).powf(-0.5));
    let projected = g.reshape(projected, &[layers, width]);
    let projected = g.rms_norm(projected, norm, spec.norm_eps);
    let projected = g.reshape(projected, &[all]);
    let sum = g.add(projected, own);
    Ok(g.scale(sum, 0.5_f32.sqrt()))
}

/// State that the layers share while they are built.
struct Block<'a, 'w> {
    g: &'a mut Builder,
    spec: &'a ModelSpec,
    weights: &'a Weights<'w>,
    sight: Sight,
    positions: ValueId,
    out_rows: ValueId,
    /// The per-layer inputs `[R, layers · P]`; `None` in models without.
    inputs: Option<ValueId>,
    /// The cache that each layer so far reads.
    caches: Vec<CacheId>,
}

impl Block<'_, '_> {
    /// Adds one layer. Everything after the last attention is computed for the output rows alone: no other row is read again.
    fn layer(&mut self, h_rd: ValueId, index: usize, layer: &LayerSpec) -> Result<ValueId> {
        let at = Place::layer(index);
        let x_rd = self.norm(h_rd, at, "attn_norm.weight")?;
        let o_rq = self.attention(x_rd, at, &layer.attention)?;

        let mut input = self.inputs.map(|inputs| self.layer_input(inputs, index));
        let (mut o_rq, mut h_rd) = (o_rq, h_rd);
        if index + 1 == self.spec.layers.len() {
            [o_rq, h_rd] = [o_rq, h_rd].map(|x| self.g.select_rows(x, self.out_rows));
            input = input.map(|x| self.g.select_rows(x, self.out_rows));
        }

        let q_dim = layer.attention.q_dim();
        let o_rd = self.linear(o_rq, at, "attn_output.weight", [self.spec.hidden_size, q_dim])?;
        let o_rd = self.post_norm(o_rd, at, layer.norms, "post_attention_norm.weight")?;
        let h_rd = self.g.add(h_rd, o_rd);

        let f_rd = self.ffn(h_rd, at, &layer.ffn)?;
        let f_rd = self.post_norm(f_rd, at, layer.norms, "post_ffw_norm.weight")?;
        let mut h_rd = self.g.add(h_rd, f_rd);

        if let (Some(input_rp), Some(per_layer)) = (input, self.spec.per_layer_inputs) {
            h_rd = self.per_layer_input(h_rd, input_rp, at, per_layer)?;
        }
        if layer.output_scalar {
            let scalar = self.weights.constant(self.g, at, "layer_output_scale.weight")?;
            h_rd = self.g.mul(h_rd, scalar);
        }
        Ok(h_rd)
    }

    /// The outputs of all heads, side by side: `[R, H · E]`.
    fn attention(&mut self, x_rd: ValueId, at: Place, spec: &AttentionSpec) -> Result<ValueId> {
        let (q_dim, kv_dim) = (spec.q_dim(), spec.kv_dim());
        let q = ("attn_q.weight", q_dim, format!("{} heads × {}", spec.num_heads, spec.head_dim));
        let k = ("attn_k.weight", kv_dim, format!("{} key heads × {}", spec.num_kv_heads, spec.head_dim));
        let v = ("attn_v.weight", kv_dim, format!("{} value heads × {}", spec.num_kv_heads, spec.head_dim));
        let frequencies = self.weights.frequencies(self.g, &spec.rope);

        let cache = match spec.kv {
            KvSpec::Own { value, value_norm } => {
                let parts = match value {
                    ValueSource::Projection => vec![q, k, v],
                    ValueSource::Key => vec![q, k],
                };
                let qkv = self.projection(x_rd, at, "qkv", &parts)?;
                let q_rhe = self.heads(qkv, 0, spec.num_heads, spec.head_dim);
                let k_rge = self.heads(qkv, q_dim, spec.num_kv_heads, spec.head_dim);
                let v_rge = match value {
                    ValueSource::Projection => {
                        self.heads(qkv, q_dim + kv_dim, spec.num_kv_heads, spec.head_dim)
                    }
                    ValueSource::Key => k_rge,
                };
                let v_rge =
                    if value_norm { self.g.rms_norm_unscaled(v_rge, self.spec.norm_eps) } else { v_rge };
                let q_rhe = self.head_norm(q_rhe, at, spec, "attn_q_norm.weight")?;
                let k_rge = self.head_norm(k_rge, at, spec, "attn_k_norm.weight")?;
                let q_rhe = self.rope(q_rhe, frequencies, spec);
                let k_rge = self.rope(k_rge, frequencies, spec);
                if self.sight == Sight::Bidirectional {
                    return Ok(self.look_around([q_rhe, k_rge, v_rge], spec));
                }
                let cache = self.g.cache(CacheSpec::new(spec.num_kv_heads, spec.head_dim, spec.window));
                self.g.cache_write(k_rge, v_rge, cache);
                (q_rhe, cache)
            }
            KvSpec::Shared { layer } => {
                // Some exports keep the idle projections.
                for name in ["attn_k.weight", "attn_v.weight", "attn_k_norm.weight"] {
                    self.weights.pass_over(at, name);
                }
                let q_rd = self.projection(x_rd, at, "q", &[q])?;
                let q_rhe = self.g.reshape(q_rd, &[spec.num_heads, spec.head_dim]);
                let q_rhe = self.head_norm(q_rhe, at, spec, "attn_q_norm.weight")?;
                (self.rope(q_rhe, frequencies, spec), self.caches[layer])
            }
        };
        let (q_rhe, cache) = cache;
        self.caches.push(cache);

        let o_rhe = self.g.attention(
            &[q_rhe],
            Attention {
                source: KvSource::Cache(cache),
                scale: spec.scale,
                window: spec.window,
                softcap: spec.softcap,
            },
        );
        Ok(self.g.reshape(o_rhe, &[q_dim]))
    }

    /// Attention to all rows of the text, within the window to either side.
    fn look_around(&mut self, qkv: [ValueId; 3], spec: &AttentionSpec) -> ValueId {
        let op = Attention {
            source: KvSource::Step(Mask::Bidirectional),
            scale: spec.scale,
            window: spec.window,
            softcap: spec.softcap,
        };
        let o_rhe = self.g.attention(&qkv, op);
        self.g.reshape(o_rhe, &[spec.q_dim()])
    }

    /// The elements of each row from `start` on, reshaped to `heads` heads of `head_dim` elements.
    fn heads(&mut self, x: ValueId, start: usize, heads: usize, head_dim: usize) -> ValueId {
        let part = self.g.slice(x, start..start + heads * head_dim);
        self.g.reshape(part, &[heads, head_dim])
    }

    fn head_norm(&mut self, x_rhe: ValueId, at: Place, spec: &AttentionSpec, name: &str) -> Result<ValueId> {
        if !spec.qk_norm {
            return Ok(x_rhe);
        }
        let norm = self.weights.norm(self.g, at, name, spec.head_dim)?;
        Ok(self.g.rms_norm(x_rhe, norm, self.spec.norm_eps))
    }

    fn rope(&mut self, x_rhe: ValueId, frequencies: ValueId, spec: &AttentionSpec) -> ValueId {
        let rope = &spec.rope;
        let op = Rope { layout: rope.layout, rotary_dim: rope.rotary_dim, magnitude: rope.magnitude };
        self.g.rope(x_rhe, self.positions, frequencies, op)
    }

    fn ffn(&mut self, h_rd: ValueId, at: Place, ffn: &FfnSpec) -> Result<ValueId> {
        let x_rd = self.norm(h_rd, at, "ffn_norm.weight")?;
        match ffn {
            FfnSpec::Dense(dense) => self.dense(x_rd, at, *dense),
            FfnSpec::Experts(experts) => self.experts(x_rd, h_rd, at, *experts),
            FfnSpec::DenseAndExperts(dense, experts) => {
                let dense_rd = self.dense(x_rd, at, *dense)?;
                let dense_rd = self.norm(dense_rd, at, "post_ffw_norm_1.weight")?;
                let x_rd = self.norm(h_rd, at, "pre_ffw_norm_2.weight")?;
                let experts_rd = self.experts(x_rd, h_rd, at, *experts)?;
                let experts_rd = self.norm(experts_rd, at, "post_ffw_norm_2.weight")?;
                Ok(self.g.add(dense_rd, experts_rd))
            }
        }
    }

    fn dense(&mut self, x_rd: ValueId, at: Place, spec: DenseSpec) -> Result<ValueId> {
        let width = spec.width;
        let why = String::from("the network's width");
        // GGUF keeps a fused gate|up under the name of `up` alone (Phi-3).
        let up_is_both = !self.weights.has(at, "ffn_gate.weight") && self.weights.has(at, "ffn_up.weight");
        let fused = if up_is_both { "ffn_up.weight" } else { "ffn_gate_up.weight" };
        let parts = [("ffn_gate.weight", width, why.clone()), ("ffn_up.weight", width, why)];
        let gate_up = self.projection_fused(x_rd, at, "gate_up", fused, &parts)?;
        let gate_rf = self.g.slice(gate_up, 0..width);
        let up_rf = self.g.slice(gate_up, width..2 * width);
        let gate_rf = self.activate(gate_rf, spec.activation);
        let x_rf = self.g.mul(gate_rf, up_rf);
        self.linear(x_rf, at, "ffn_down.weight", [self.spec.hidden_size, width])
    }

    /// Adds the experts of a layer; `x_rd` is the experts' input, `h_rd` the residual stream.
    fn experts(&mut self, x_rd: ValueId, h_rd: ValueId, at: Place, spec: ExpertsSpec) -> Result<ValueId> {
        let (width, d) = (spec.expert.width, self.spec.hidden_size);
        let (x, k) = (spec.num_experts, spec.experts_per_token);
        let routed_rd = match spec.router {
            Router::Plain => x_rd,
            Router::Normed => {
                let root = (d as f32).powf(-0.5);
                let scale = self.weights.vector(self.g, at, "ffn_gate_inp.scale", d, root)?;
                self.g.rms_norm(h_rd, scale, self.spec.norm_eps)
            }
        };
        let router =
            self.weights.matrix(self.g, at, "ffn_gate_inp.weight", [x, d], &format!("{x} experts"))?;
        let logits = self.g.linear(routed_rd, router);
        let (chosen, mut share) = self.g.router_topk(logits, RouterTopK { k, gating: spec.gating });
        if spec.router == Router::Normed && self.weights.has(at, "ffn_down_exps.scale") {
            let scales = self.weights.vector(self.g, at, "ffn_down_exps.scale", x, 1.0)?;
            let scales = self.g.gather(scales, chosen);
            share = self.g.mul(share, scales);
        }

        let gate = self.weights.experts(self.g, at, "ffn_gate_exps.weight", [x, width, d])?;
        let up = self.weights.experts(self.g, at, "ffn_up_exps.weight", [x, width, d])?;
        let down = self.weights.experts(self.g, at, "ffn_down_exps.weight", [x, d, width])?;
        let gate_rkf = self.g.expert_linear(x_rd, chosen, gate);
        let up_rkf = self.g.expert_linear(x_rd, chosen, up);
        let gate_rkf = self.activate(gate_rkf, spec.expert.activation);
        let x_rkf = self.g.mul(gate_rkf, up_rkf);
        let y_rkd = self.g.expert_linear(x_rkf, chosen, down);
        let share_rk1 = self.g.reshape(share, &[k, 1]);
        let y_rkd = self.g.mul(y_rkd, share_rk1);
        Ok(self.g.sum(y_rkd, 1))
    }

    /// The part of the per-layer inputs for layer `index`.
    fn layer_input(&mut self, inputs: ValueId, index: usize) -> ValueId {
        let width = self.spec.per_layer_inputs.map_or(0, |per_layer| per_layer.width);
        self.g.slice(inputs, index * width..(index + 1) * width)
    }

    fn per_layer_input(
        &mut self,
        h_rd: ValueId,
        input_rp: ValueId,
        at: Place,
        per_layer: PerLayerInputs,
    ) -> Result<ValueId> {
        let (d, width) = (self.spec.hidden_size, per_layer.width);
        let gate_rp = self.linear(h_rd, at, "inp_gate.weight", [width, d])?;
        let gate_rp = self.activate(gate_rp, per_layer.activation);
        let x_rp = self.g.mul(gate_rp, input_rp);
        let x_rd = self.linear(x_rp, at, "proj.weight", [d, width])?;
        let x_rd = self.norm(x_rd, at, "post_norm.weight")?;
        Ok(self.g.add(h_rd, x_rd))
    }

    fn activate(&mut self, x: ValueId, activation: Activation) -> ValueId {
        let function = match activation {
            Activation::Silu => Unary::Silu,
            Activation::GeluTanh => Unary::GeluTanh,
            Activation::GeluErf => Unary::GeluErf,
        };
        self.g.unary(x, function)
    }

    fn norm(&mut self, x_rd: ValueId, at: Place, name: &str) -> Result<ValueId> {
        let norm = self.weights.norm(self.g, at, name, self.spec.hidden_size)?;
        Ok(self.g.rms_norm(x_rd, norm, self.spec.norm_eps))
    }

    fn post_norm(&mut self, x_rd: ValueId, at: Place, norms: Norms, name: &str) -> Result<ValueId> {
        match norms {
            Norms::Pre => Ok(x_rd),
            Norms::PreAndPost => self.norm(x_rd, at, name),
        }
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
        parts: &[(&str, usize, String)],
    ) -> Result<ValueId> {
        self.projection_fused(x, at, label, "attn_qkv.weight", parts)
    }

    fn projection_fused(
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
