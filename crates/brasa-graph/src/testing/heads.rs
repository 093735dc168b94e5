//! Linear layers of heads in every storage format.

use std::sync::Arc;

use brasa_formats::StorageFormat;

use crate::device::{Backend, KvType, Precision};
use crate::reference::ReferenceBackend;
use crate::{Builder, Graph, Input, Weight, WeightPart};

use super::{Noise, Running, Tolerance, compare, formats, random_tensor};

/// Rows of the table that token ids look up.
const TOKENS: usize = 97;

/// A [`HeadLinear`](crate::op::HeadLinear) layer with random weights. Its input rows come from a table by token id.
#[derive(Clone, Copy, Debug)]
pub struct HeadLayer {
    /// H, the number of heads.
    pub heads: usize,
    /// N, outputs of a head.
    pub outputs: usize,
    /// K, inputs of a head: whole blocks of `format`.
    pub inputs: usize,
    /// Storage format of the weight; `None` for a weight of parts in all formats, a few rows each.
    pub format: Option<StorageFormat>,
}

impl HeadLayer {
    /// The layer as a graph from token ids to `[rows, heads · outputs]`. `seed` determines table and weight.
    ///
    /// # Panics
    ///
    /// If `inputs` is no multiple of the format's block.
    pub fn graph(&self, seed: u64) -> Arc<Graph> {
        let &Self { heads, outputs, inputs, format } = self;
        let mut noise = Noise::new(seed);
        let width = heads * inputs;
        let table = super::weight("table", &[TOKENS, width], &noise.activations(TOKENS * width));
        let (mut parts, mut left) = (Vec::new(), heads * outputs);
        for number in 0.. {
            if left == 0 {
                break;
            }
            let of_many = formats();
            let rows = if format.is_some() { left } else { left.min(1 + number % 7) };
            let format = format.unwrap_or(of_many[number % of_many.len()]);
            parts.push(WeightPart::whole(random_tensor(format, rows, inputs, &mut noise)));
            left -= rows;
        }
        let mut b = Builder::new();
        let ids = b.input(Input::TokenIds);
        let table = b.weight(Ok(table));
        let w = b.weight(Weight::new("heads", &[heads, outputs, inputs], parts));
        let x = b.embed(ids, table);
        let x = b.reshape(x, &[heads, inputs]);
        let y = b.head_linear(x, w);
        let y = b.reshape(y, &[heads * outputs]);
        Arc::new(b.finish(&[y]).expect("a layer"))
    }
}

/// The effect of the other rows of a step on the bits of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Company {
    /// None: a row has the same bits alone and beside other rows.
    ChangesNothing,
    /// A row may be rounded in another way, since other kernels may multiply several rows.
    MayRound,
}

/// Compares linear layers of heads with the reference: in every storage format, in one weight of all formats, and in
/// steps of each number of rows in `rows`. With [`Company::ChangesNothing`], also compares the bits of rows of a step
/// with those of each row alone.
///
/// # Panics
///
/// If a result differs by more than `tolerance`, or if bits differ.
pub fn check_heads(
    device: &dyn Backend,
    precision: Precision,
    rows: &[usize],
    (tolerance, company): (Tolerance, Company),
) {
    let whole_tiles = |format| HeadLayer { heads: 4, outputs: 32, inputs: 256, format };
    let ragged = |format| HeadLayer { heads: 3, outputs: 21, inputs: 256, format };
    for format in formats().into_iter().map(Some).chain([None]) {
        for layer in [whole_tiles(format), ragged(format)] {
            let graph = layer.graph(5);
            let mut found = Running::new(device, &graph, precision, KvType::F32);
            let mut expected = Running::new(&ReferenceBackend, &graph, Precision::Reference, KvType::F32);
            for (number, &rows) in rows.iter().enumerate() {
                let ids: Vec<u32> = (0..rows).map(|row| (row * 31 + 7) as u32 % TOKENS as u32).collect();
                let id = 1000 * (1 + number as u64);
                let together = found.step(&[(id, &ids)]);
                let label = format!("{layer:?}, {rows} rows on {}", device.info().name);
                let comparison = compare(&together, &expected.step(&[(id, &ids)]));
                assert!(comparison.within(tolerance), "{label}: {comparison}");
                if company == Company::ChangesNothing {
                    let alone: Vec<f32> = (id + 1..)
                        .zip(&ids)
                        .flat_map(|(id, token)| found.step(&[(id, std::slice::from_ref(token))]))
                        .collect();
                    let same = alone.iter().zip(&together).all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(same && alone.len() == together.len(), "{label}: alone it has other bits");
                }
            }
        }
    }
}
