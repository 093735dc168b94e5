//! The encoder of sound, which writes the memories of the decoder.

use brasa_graph::op::{Attention, KvSource, Mask, Unary, Unfold};
use brasa_graph::{Builder, CacheId, CacheSpec, DType, Dim, Graph, Input, MemoryId, Symbol, ValueId};

use super::spec::SpeechSpec;
use super::stack::Stack;
use super::tensors::Tensors;
use crate::Result;

/// Declares the caches and memories of the decoder's layers, in the order in which both graphs have them.
pub(super) fn declare(g: &mut Builder, spec: &SpeechSpec) -> (Vec<CacheId>, Vec<MemoryId>) {
    let (heads, head_dim) = (spec.decoder.heads, spec.head_dim());
    let own = CacheSpec::new(heads, head_dim, None);
    let caches = (0..spec.decoder.layers).map(|_| g.cache(own)).collect();
    let memories = (0..spec.decoder.layers).map(|_| g.memory(heads, head_dim)).collect();
    (caches, memories)
}

/// Builds the graph of the encoder. Also returns the keys of each memory.
pub(super) fn encoder(spec: &SpeechSpec, tensors: &Tensors) -> Result<(Graph, Vec<ValueId>)> {
    let mut g = Builder::new();
    let (_, memories) = declare(&mut g, spec);
    let positions = g.input(Input::Positions);
    let frames = Dim { factor: 2, symbol: Some(Symbol::Rows) };
    let mel = g.given("mel", DType::F32, frames, &[spec.num_mel_bins]);

    let width = spec.hidden_size;
    let x = convolution(&mut g, tensors, mel, 1, [width, spec.num_mel_bins], 1)?;
    let x_rd = convolution(&mut g, tensors, x, 2, [width, width], 2)?;
    let shape = [spec.encoder.positions, width];
    let table = tensors.weight(&mut g, "encoder.positional_embedding", &shape, "positions × width")?;
    let position_rd = g.embed(positions, table);
    let mut h_rd = g.add(x_rd, position_rd);

    let mut stack = Stack { g: &mut g, tensors, spec, shape: spec.encoder };
    for layer in 0..spec.encoder.layers {
        h_rd = block(&mut stack, h_rd, &format!("encoder.blocks.{layer}"))?;
    }
    let encoded_rd = stack.norm(h_rd, "encoder.ln_post")?;

    // The decoder reads the encoder through these projections alone.
    stack.shape = spec.decoder;
    let mut keys = Vec::with_capacity(memories.len());
    for (layer, memory) in memories.into_iter().enumerate() {
        let block = format!("decoder.blocks.{layer}.cross_attn");
        let names = ["key", "value"].map(|part| format!("{block}.{part}"));
        let heads = stack.heads(encoded_rd, &format!("{block}.kv"), &names)?;
        stack.g.memory_write(heads[0], heads[1], memory);
        keys.push(heads[0]);
    }
    Ok((g.finish(&[encoded_rd])?, keys))
}

/// Number of rows in a convolution's window.
const TAPS: usize = 3;

/// Convolution number `number`, followed by GELU, which does not depend on the networks' activation.
fn convolution(
    g: &mut Builder,
    tensors: &Tensors,
    x: ValueId,
    number: usize,
    [outputs, inputs]: [usize; 2],
    stride: usize,
) -> Result<ValueId> {
    let name = format!("encoder.conv{number}");
    let weight = tensors.filters(g, &format!("{name}.weight"), [outputs, inputs, TAPS])?;
    let bias = tensors.vector(g, &format!("{name}.bias"), outputs)?;
    let seen = g.apply(Unfold { taps: TAPS, stride, padding: 1 }, &[x])[0];
    let y = g.linear(seen, weight);
    let y = g.add(y, bias);
    Ok(g.unary(y, Unary::GeluErf))
}

fn block(stack: &mut Stack, h_rd: ValueId, name: &str) -> Result<ValueId> {
    let x_rd = stack.norm(h_rd, &format!("{name}.attn_ln"))?;
    let names = ["query", "key", "value"].map(|part| format!("{name}.attn.{part}"));
    let qkv = stack.heads(x_rd, &format!("{name}.attn.qkv"), &names)?;
    let attention = Attention {
        source: KvSource::Step(Mask::Bidirectional),
        scale: (stack.head_dim() as f32).powf(-0.5),
        window: None,
        softcap: None,
    };
    let found = stack.g.attention(&qkv, attention);
    let h_rd = stack.add_attended(h_rd, found, &format!("{name}.attn.out"))?;
    stack.network(h_rd, name)
}
