use std::fmt;
use std::sync::{Arc, LazyLock};

use super::spectrum::{BINS, COLUMN, Spectrum};
use super::weights::{Layer, tensor};

/// Samples of a step: 32 ms.
pub(super) const STEP: usize = 512;
/// Samples of the step before that a step sees.
const CONTEXT: usize = 64;
/// Samples by which a step is mirrored at its end.
const MIRRORED: usize = 64;
/// Columns of the spectrum of a step, and samples from one to the next.
const COLUMNS: usize = 4;
const HOP: usize = 128;
/// Elements of the memory.
const WIDTH: usize = 128;
/// Elements between the convolutions.
const NARROW: usize = 64;
/// Steps whose convolutions are computed together, so that weights are read once for all of them.
const TOGETHER: usize = 8;

static NETWORK: LazyLock<Arc<Network>> = LazyLock::new(|| Arc::new(Network::new()));

/// The probability of speech in each 32 ms of a sound at 16 kHz, by Silero's voice activity detector.
///
/// The network (Silero Team 2020–2025, <https://github.com/snakers4/silero-vad>, version 6, MIT licence) is part of the library: magnitudes of a
/// short-time Fourier transform, four convolutions, and an LSTM of 128 elements from step to step, 240,000 weights in f32. Each step
/// sees the last 4 ms of the step before.
///
/// ```
/// use brasa_audio::VoiceNetwork;
///
/// let mut network = VoiceNetwork::new();
/// let mut probabilities = Vec::new();
/// network.push(&[0.0; 1000], &mut probabilities);
/// network.finish(&mut probabilities);
/// assert!(probabilities.len() == 2 && probabilities.iter().all(|&p| p < 0.1));
/// ```
#[derive(Clone)]
pub struct VoiceNetwork {
    network: Arc<Network>,
    /// The context of the next step, followed by the samples of the step that have arrived.
    held: Vec<f32>,
    hidden: [f32; WIDTH],
    cell: [f32; WIDTH],
}

impl fmt::Debug for VoiceNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VoiceNetwork").field("held", &self.held.len()).finish_non_exhaustive()
    }
}

impl Default for VoiceNetwork {
    fn default() -> Self {
        Self::new()
    }
}

impl VoiceNetwork {
    /// The state before the beginning of a sound.
    pub fn new() -> Self {
        let network = Arc::clone(&NETWORK);
        Self { network, held: vec![0.0; CONTEXT], hidden: [0.0; WIDTH], cell: [0.0; WIDTH] }
    }

    /// Takes further samples, and appends the probabilities of the steps that are whole.
    pub fn push(&mut self, samples: &[f32], probabilities: &mut Vec<f32>) {
        self.held.extend_from_slice(samples);
        let steps = (self.held.len() - CONTEXT) / STEP;
        let network = Arc::clone(&self.network);
        for first in (0..steps).step_by(TOGETHER) {
            let count = TOGETHER.min(steps - first);
            let gates = network.gates(&self.held[first * STEP..][..count * STEP + CONTEXT], count);
            for gates in gates.chunks_exact(4 * WIDTH) {
                probabilities.push(network.remember(gates, &mut self.hidden, &mut self.cell));
            }
        }
        self.held.drain(..steps * STEP);
    }

    /// Ends the sound: a last step that is not whole is filled up with silence. The next sample begins another sound.
    pub fn finish(&mut self, probabilities: &mut Vec<f32>) {
        let rest = self.held.len() - CONTEXT;
        if rest > 0 {
            self.push(&vec![0.0; STEP - rest], probabilities);
        }
        *self = Self::new();
    }
}

/// The network without its memory.
struct Network {
    spectrum: Spectrum,
    convolutions: [Layer; 4],
    /// Computes the four gates from the convolutions' output, with the biases of both inputs.
    input: Layer,
    recurrent: Layer,
    last: Vec<f32>,
    last_bias: f32,
}

impl Network {
    fn new() -> Self {
        let matrix = |name: &str, bias: Vec<f32>| {
            let weights = tensor(name, 4 * WIDTH * WIDTH);
            Layer::new(bias, WIDTH, |output, input| weights[output * WIDTH + input])
        };
        let biases =
            tensor("lstm_cell.bias_ih", 4 * WIDTH).into_iter().zip(tensor("lstm_cell.bias_hh", 4 * WIDTH));
        Self {
            spectrum: Spectrum::new(),
            convolutions: [
                Layer::convolution("conv1", WIDTH, BINS),
                Layer::convolution("conv2", NARROW, WIDTH),
                Layer::convolution("conv3", NARROW, NARROW),
                Layer::convolution("conv4", WIDTH, NARROW),
            ],
            input: matrix("lstm_cell.weight_ih", biases.map(|(a, b)| a + b).collect()),
            recurrent: matrix("lstm_cell.weight_hh", vec![0.0; 4 * WIDTH]),
            last: tensor("final_conv.weight", WIDTH),
            last_bias: tensor("final_conv.bias", 1)[0],
        }
    }

    /// The inputs of the recurrent gates for `count` steps, `[count, 512]`. `samples` holds the context and the samples of the
    /// steps.
    fn gates(&self, samples: &[f32], count: usize) -> Vec<f32> {
        let [first, second, third, fourth] = &self.convolutions;
        // Rows of a convolution's input lie behind one another, with an empty one at each end of a step: three of them are an input.
        let mut columns = vec![0.0; count * (COLUMNS + 2) * BINS];
        let mut step = [0.0; CONTEXT + STEP + MIRRORED];
        for (number, columns) in columns.chunks_exact_mut((COLUMNS + 2) * BINS).enumerate() {
            let (inside, mirrored) = step.split_at_mut(CONTEXT + STEP);
            inside.copy_from_slice(&samples[number * STEP..][..CONTEXT + STEP]);
            for (to, from) in mirrored.iter_mut().zip(inside.iter().rev().skip(1)) {
                *to = *from;
            }
            for pair in (0..COLUMNS).step_by(2) {
                let column = |at: usize| &step[at * HOP..][..COLUMN];
                let out = &mut columns[(1 + pair) * BINS..][..2 * BINS];
                self.spectrum.magnitudes(column(pair), column(pair + 1), out);
            }
        }
        let x = each(&columns, count, first, [COLUMNS, 1, BINS]);
        let x = each(&x, count, second, [2, 2, WIDTH]);
        let x = each(&x, count, third, [1, 2, NARROW]);
        let x = each(&x, count, fourth, [1, 1, NARROW]);
        let mut gates = vec![0.0; count * 4 * WIDTH];
        // The row in the middle of three.
        self.input.apply(&x[WIDTH..], 3 * WIDTH, &mut gates);
        gates
    }

    /// A step of the LSTM (Hochreiter & Schmidhuber 1997), and the probability of what it remembers.
    fn remember(&self, gates: &[f32], hidden: &mut [f32; WIDTH], cell: &mut [f32; WIDTH]) -> f32 {
        let mut own = [0.0; 4 * WIDTH];
        self.recurrent.apply(&hidden[..], WIDTH, &mut own);
        let gate = |kind: usize, at: usize| gates[kind * WIDTH + at] + own[kind * WIDTH + at];
        for at in 0..WIDTH {
            let kept = sigmoid(gate(1, at)) * cell[at];
            cell[at] = kept + sigmoid(gate(0, at)) * gate(2, at).tanh();
            hidden[at] = sigmoid(gate(3, at)) * cell[at].tanh();
        }
        let sum: f32 = hidden.iter().zip(&self.last).map(|(value, weight)| value.max(0.0) * weight).sum();
        sigmoid(sum + self.last_bias)
    }
}

/// A convolution of `count` steps, and what is below zero cut off: `rows` rows of each from every `stride`th of its rows on, which have
/// `channels` elements. The result has an empty row at each end of a step.
fn each(x: &[f32], count: usize, layer: &Layer, [rows, stride, channels]: [usize; 3]) -> Vec<f32> {
    let width = layer.outputs();
    let mut y = vec![0.0; count * (rows + 2) * width];
    for (x, y) in x.chunks_exact(x.len() / count).zip(y.chunks_exact_mut((rows + 2) * width)) {
        let y = &mut y[width..][..rows * width];
        layer.apply(x, stride * channels, y);
        for value in y {
            *value = value.max(0.0);
        }
    }
    y
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}
