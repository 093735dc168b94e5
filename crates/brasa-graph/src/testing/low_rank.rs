//! Random adapters, and the weights with the adapters merged.

use std::ops::Range;

use brasa_formats::{Bytes, Payload, StorageFormat, Tensor, codec};

use crate::pass::LowRank;
use crate::reference::decode_weight;
use crate::{Change, Graph, Op, ValueKind, Weight, WeightId, WeightPart, rewrite};

use super::{Decoder, Random};

/// A random adapter of `rows` of the weight called `name`. It changes the weight's products by about `scale` times their
/// magnitude.
///
/// # Panics
///
/// If the graph has no weight of this name.
pub fn random_adapter(
    graph: &Graph,
    name: &str,
    rows: Range<usize>,
    rank: usize,
    scale: f32,
    random: &mut Random,
) -> LowRank {
    let place = graph.weights().iter().position(|weight| weight.name == name);
    let place = place.unwrap_or_else(|| panic!("a weight called {name}"));
    let shape = &graph.weights()[place].shape;
    let experts = &shape[..shape.len() - 2];
    let a = random.weight(&format!("{name}.a"), &[experts, &[rank, shape[shape.len() - 1]]].concat());
    let b = random.weight(&format!("{name}.b"), &[experts, &[rows.len(), rank]].concat());
    LowRank { weight: WeightId(place as u32), rows, a, b, scale, gain: None }
}

/// An adapter of all seven projections of a decoder's blocks, random and stored in `format`, which must be a format of floats.
///
/// # Panics
///
/// If `graph` is not the decoder's, or for a format without floats.
pub fn adapter_of_projections(
    decoder: &Decoder,
    graph: &Graph,
    (rank, format): (usize, StorageFormat),
    scale: f32,
    random: &mut Random,
) -> Vec<LowRank> {
    let [q, kv] = [decoder.heads, decoder.kv_heads].map(|heads| heads * decoder.head_dim);
    let (hidden, inner) = (decoder.hidden, decoder.feed_forward);
    let parts = [
        ("qkv", 0..q),
        ("qkv", q..q + kv),
        ("qkv", q + kv..q + 2 * kv),
        ("o", 0..hidden),
        ("gate_up", 0..inner),
        ("gate_up", inner..2 * inner),
        ("down", 0..hidden),
    ];
    let layers = 0..decoder.windows.len();
    let all =
        layers.flat_map(|layer| parts.clone().map(|(name, rows)| (format!("layers.{layer}.{name}"), rows)));
    all.map(|(name, rows)| {
        let mut of = random_adapter(graph, &name, rows, rank, scale, random);
        (of.a, of.b) = (stored_as(&of.a, format), stored_as(&of.b, format));
        of
    })
    .collect()
}

/// The weight with its values rounded to `format` and stored in it; `format` is F32, F16 or BF16.
///
/// # Panics
///
/// For a format without floats.
pub fn stored_as(weight: &Weight, format: StorageFormat) -> Weight {
    let decoded = decode_weight(weight).expect("a whole weight");
    let row_bytes = format.row_bytes(weight.row_len()).expect("floats have no blocks");
    let mut bytes = Vec::new();
    for row in decoded.floats().chunks_exact(weight.row_len()) {
        let start = bytes.len();
        bytes.resize(start + row_bytes, 0);
        codec::encode_row(format, row, None, &mut bytes[start..]).expect("a format of floats");
    }
    let payload = Payload::Blocks(Bytes::from(bytes));
    let tensor = Tensor { name: weight.name.clone(), shape: weight.shape.clone(), format, payload };
    Weight::new(&weight.name, &weight.shape, vec![WeightPart::whole(tensor)]).expect("one whole part")
}

/// The graph with the adapters' products added to the weights of its linear layers, in f32.
///
/// # Panics
///
/// If an adapter does not fit its weight.
pub fn merged(graph: &Graph, adapters: &[LowRank]) -> Graph {
    let floats = |weight| decode_weight(weight).expect("a whole weight").floats().to_vec();
    let mut weights: Vec<Option<Vec<f32>>> = vec![None; graph.weights().len()];
    for LowRank { weight, rows, a, b, scale, gain } in adapters {
        let k = a.row_len();
        let dense = weights[weight.0 as usize].get_or_insert_with(|| floats(graph.weight(*weight)));
        let rank = b.row_len();
        let (a, b) = (floats(a), floats(b));
        // An expert's rows follow those of the expert before.
        for (row, b) in (rows.start..).zip(b.chunks_exact(rank)) {
            let expert = (row - rows.start) / rows.len();
            let a = &a[expert * rank * k..][..rank * k];
            for (column, w) in dense[row * k..][..k].iter_mut().enumerate() {
                let sum: f64 = (b.iter().zip(a.chunks_exact(k)))
                    .map(|(&b, a)| f64::from(b) * f64::from(a[column]))
                    .sum();
                *w = (f64::from(*w) + f64::from(*scale) * sum) as f32;
            }
            if let Some(gain) = gain {
                let gain = floats(gain)[row - rows.start];
                dense[row * k..][..k].iter_mut().for_each(|w| *w *= gain);
            }
        }
    }
    let merge = |builder: &mut crate::Builder, node: &crate::Node, operands: &[crate::ValueId]| {
        let place = match node.op {
            Op::Linear(_) => 1,
            Op::ExpertLinear(_) => 2,
            _ => return None,
        };
        let ValueKind::Weight(id) = graph.value(node.inputs[place]).kind else { return None };
        let old = graph.weight(id);
        let weight = super::weight(&old.name, &old.shape, weights[id.0 as usize].as_ref()?);
        let w = builder.weight(Ok(weight));
        let operands = [&operands[..place], &[w], &operands[place + 1..]].concat();
        Some(builder.apply(node.op.clone(), &operands)[0])
    };
    rewrite(graph, |builder, node, operands| match merge(builder, node, operands) {
        Some(y) => Change::Replace(vec![y]),
        None => Change::Keep,
    })
    .expect("weights of the same shapes")
}
