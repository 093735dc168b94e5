//! The network's weights, from the file that the library carries.

use serde_json::Value;

/// Silero's network for 16 kHz (MIT licence, models/silero-vad).
static FILE: &[u8] = include_bytes!("../../../../models/silero-vad/silero_vad_16k.safetensors");

/// Outputs that are computed together: four vectors of the oldest x86-64 and of aarch64.
pub(super) const BLOCK: usize = 16;

/// The tensor of this name and of this many elements.
///
/// # Panics
///
/// If the file that was compiled in is another.
pub(super) fn tensor(name: &str, len: usize) -> Vec<f32> {
    let (length, rest) = FILE.split_first_chunk::<8>().expect("a header's length");
    let (header, body) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let header: Value = serde_json::from_slice(header).expect("a header of JSON");
    let place = |at: usize| header[name]["data_offsets"][at].as_u64().expect("a tensor's place") as usize;
    let values = body[place(0)..place(1)].as_chunks::<4>().0;
    assert_eq!(values.len(), len, "elements of {name}");
    values.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

/// A linear layer whose weights lie in blocks: `[outputs / 16, inputs, 16]`.
pub(super) struct Layer {
    weights: Vec<f32>,
    bias: Vec<f32>,
    inputs: usize,
}

impl Layer {
    /// Weights `[outputs, inputs]`, given by a function of output and input.
    pub(super) fn new(bias: Vec<f32>, inputs: usize, weight: impl Fn(usize, usize) -> f32) -> Self {
        assert!(bias.len().is_multiple_of(BLOCK), "{} outputs", bias.len());
        let mut weights = Vec::with_capacity(bias.len() * inputs);
        for first in (0..bias.len()).step_by(BLOCK) {
            for input in 0..inputs {
                weights.extend((first..first + BLOCK).map(|output| weight(output, input)));
            }
        }
        Self { weights, bias, inputs }
    }

    /// A convolution of three taps as a layer over three rows of channels, which are contiguous.
    pub(super) fn convolution(name: &str, outputs: usize, channels: usize) -> Self {
        let weights = tensor(&format!("{name}.weight"), outputs * channels * 3);
        let bias = tensor(&format!("{name}.bias"), outputs);
        Self::new(bias, 3 * channels, |output, input| {
            weights[(output * channels + input % channels) * 3 + input / channels]
        })
    }

    /// Outputs of one row.
    pub(super) fn outputs(&self) -> usize {
        self.bias.len()
    }

    /// `y[r] = bias + W · x[r]` for rows of `x` that begin `stride` elements apart; rows of `y` are contiguous.
    pub(super) fn apply(&self, x: &[f32], stride: usize, y: &mut [f32]) {
        let outputs = self.outputs();
        let rows = y.len() / outputs;
        for (block, weights) in self.weights.chunks_exact(self.inputs * BLOCK).enumerate() {
            let first = block * BLOCK;
            let bias: &[f32; BLOCK] = self.bias[first..].first_chunk().expect("a block of biases");
            let mut row = 0;
            while row + 1 < rows {
                let inputs = [row, row + 1].map(|row| &x[row * stride..][..self.inputs]);
                for (at, sums) in products(weights, bias, inputs).iter().enumerate() {
                    y[(row + at) * outputs + first..][..BLOCK].copy_from_slice(sums);
                }
                row += 2;
            }
            if row < rows {
                let [sums] = products(weights, bias, [&x[row * stride..][..self.inputs]]);
                y[row * outputs + first..][..BLOCK].copy_from_slice(&sums);
            }
        }
    }
}

/// A block of outputs of `R` rows. Each is one sum in the order of its inputs, whatever `R` is.
#[inline]
fn products<const R: usize>(weights: &[f32], bias: &[f32; BLOCK], rows: [&[f32]; R]) -> [[f32; BLOCK]; R] {
    let mut sums = [*bias; R];
    for (input, weights) in weights.as_chunks::<BLOCK>().0.iter().enumerate() {
        for (sums, row) in sums.iter_mut().zip(rows) {
            let value = row[input];
            for (sum, weight) in sums.iter_mut().zip(weights) {
                *sum += value * weight;
            }
        }
    }
    sums
}
