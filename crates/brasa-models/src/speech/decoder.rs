//! The decoder of text, which reads the encoder's memories.

use brasa_graph::op::{Attention, KvSource};
use brasa_graph::{Builder, Graph, Input, ValueId};

use super::encoder::declare;
use super::spec::SpeechSpec;
use super::stack::Stack;
use super::tensors::Tensors;
use crate::Result;

/// Builds the graph of the decoder. Also returns each layer's queries to its memory.
pub(super) fn decoder(spec: &SpeechSpec, tensors: &Tensors) -> Result<(Graph, Vec<ValueId>)> {
    let mut g = Builder::new();
    let (caches, memories) = declare(&mut g, spec);
    let ids = g.input(Input::TokenIds);
    let positions = g.input(Input::Positions);
    let out_rows = g.input(Input::OutRows);

    let width = spec.hidden_size;
    let shape = [spec.vocab_size, width];
    let table = tensors.weight(&mut g, "decoder.token_embedding.weight", &shape, "vocabulary × width")?;
    let shape = [spec.decoder.positions, width];
    let places = tensors.weight(&mut g, "decoder.positional_embedding", &shape, "positions × width")?;
    let mut h_rd = g.embed(ids, table);
    if let Some(scale) = spec.embedding_scale {
        h_rd = g.scale(h_rd, scale);
    }
    let position_rd = g.embed(positions, places);
    h_rd = g.add(h_rd, position_rd);

    let mut stack = Stack { g: &mut g, tensors, spec, shape: spec.decoder };
    let scale = (spec.head_dim() as f32).powf(-0.5);
    let attention = |source| Attention { source, scale, window: None, softcap: None };
    let mut queries = Vec::with_capacity(memories.len());
    for (layer, (cache, memory)) in caches.into_iter().zip(memories).enumerate() {
        let name = format!("decoder.blocks.{layer}");
        let x_rd = stack.norm(h_rd, &format!("{name}.attn_ln"))?;
        let names = ["query", "key", "value"].map(|part| format!("{name}.attn.{part}"));
        let qkv = stack.heads(x_rd, &format!("{name}.attn.qkv"), &names)?;
        stack.g.cache_write(qkv[1], qkv[2], cache);
        let found = stack.g.attention(&qkv[..1], attention(KvSource::Cache(cache)));
        h_rd = stack.add_attended(h_rd, found, &format!("{name}.attn.out"))?;

        let x_rd = stack.norm(h_rd, &format!("{name}.cross_attn_ln"))?;
        let names = [format!("{name}.cross_attn.query")];
        let query = stack.heads(x_rd, &format!("{name}.cross_attn.q"), &names)?;
        queries.push(query[0]);
        let mut found = stack.g.attention(&query, attention(KvSource::Memory(memory)));
        // No row is read again behind the last attention but those with logits.
        if layer + 1 == spec.decoder.layers {
            [found, h_rd] = [found, h_rd].map(|x| stack.g.select_rows(x, out_rows));
        }
        h_rd = stack.add_attended(h_rd, found, &format!("{name}.cross_attn.out"))?;
        h_rd = stack.network(h_rd, &name)?;
    }
    let h_od = stack.norm(h_rd, "decoder.ln")?;
    let logits_ov = g.linear(h_od, table);
    Ok((g.finish(&[logits_ov])?, queries))
}
