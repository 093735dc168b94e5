//! Whisper in the form of MLX's examples: other keys, other names, convolutions with their inputs last, no table of positions.

use std::collections::BTreeMap;

use brasa_formats::Tensor;
use serde_json::{Map, Value};

/// Keys of the configurations of MLX's examples, and the equivalent keys of Hugging Face.
const KEYS: [(&str, &[&str]); 10] = [
    ("n_mels", &["num_mel_bins"]),
    ("n_audio_ctx", &["max_source_positions"]),
    ("n_audio_state", &["d_model"]),
    ("n_audio_head", &["encoder_attention_heads"]),
    ("n_audio_layer", &["encoder_layers"]),
    ("n_vocab", &["vocab_size"]),
    ("n_text_ctx", &["max_target_positions"]),
    ("n_text_state", &[]),
    ("n_text_head", &["decoder_attention_heads"]),
    ("n_text_layer", &["decoder_layers"]),
];

/// Parts of tensors' names in MLX's examples, and the equivalent parts in OpenAI's checkpoints.
const NAMES: [(&str, &str); 2] = [(".mlp1.", ".mlp.0."), (".mlp2.", ".mlp.2.")];

const POSITIONS: &str = "encoder.positional_embedding";
/// The most elements of a table of positions, or of a convolution. Published models have at most five million.
const MOST_ELEMENTS: usize = 1 << 26;

/// True if `values` is the configuration of a Whisper of MLX's examples.
pub(crate) fn is_whisper(values: &Map<String, Value>) -> bool {
    values.contains_key("n_audio_state")
}

/// Converts configuration and tensors to the spelling of other checkpoints.
pub(crate) fn translate(values: &mut Map<String, Value>, tensors: &mut BTreeMap<String, Tensor>) {
    for (theirs, ours) in KEYS {
        let Some(value) = values.remove(theirs) else { continue };
        // A decoder of another width than the encoder is refused by the shapes of its tensors.
        for key in ours {
            values.entry(*key).or_insert_with(|| value.clone());
        }
    }
    // Heads by which words are timed, and no weights.
    tensors.remove("alignment_heads");
    let all = std::mem::take(tensors);
    for (name, tensor) in all {
        let name = NAMES.iter().fold(name, |name, (theirs, ours)| name.replace(theirs, ours));
        let tensor = if name.starts_with("encoder.conv") { inputs_before_rows(tensor) } else { tensor };
        tensors.insert(name.clone(), Tensor { name, ..tensor });
    }
    let count = |key: &str| values.get(key).and_then(Value::as_u64).and_then(|x| usize::try_from(x).ok());
    if let (Some(positions), Some(width)) = (count("max_source_positions"), count("d_model"))
        && positions.checked_mul(width).is_some_and(|elements| elements <= MOST_ELEMENTS)
        && width.is_multiple_of(2)
        && width > 2
    {
        let table = Tensor::of_floats(POSITIONS, vec![positions, width], &sinusoids(positions, width));
        tensors.entry(POSITIONS.into()).or_insert(table);
    }
}

/// Permutes a convolution `[outputs, rows, inputs]` to `[outputs, inputs, rows]`; returns a tensor of another rank unchanged.
fn inputs_before_rows(tensor: Tensor) -> Tensor {
    let [outputs, rows, inputs] = tensor.shape[..] else { return tensor };
    let elements = outputs.checked_mul(rows).and_then(|product| product.checked_mul(inputs));
    let Some(elements) = elements.filter(|&elements| elements <= MOST_ELEMENTS) else { return tensor };
    let mut values = vec![0.0; elements];
    if tensor.decode_rows(0..tensor.rows(), &mut values).is_err() {
        return tensor;
    }
    let mut turned = vec![0.0; elements];
    for output in 0..outputs {
        for row in 0..rows {
            for input in 0..inputs {
                turned[(output * inputs + input) * rows + row] =
                    values[(output * rows + row) * inputs + input];
            }
        }
    }
    Tensor::of_floats(&tensor.name, vec![outputs, inputs, rows], &turned)
}

/// Sinusoidal positions of the encoder: sines in the first half of each row, cosines in the second, of decreasing frequencies.
/// Training does not change them (Vaswani et al. 2017, arXiv:1706.03762).
fn sinusoids(positions: usize, width: usize) -> Vec<f32> {
    let half = width / 2;
    let step = 10_000_f64.ln() / (half - 1) as f64;
    let angle = |position: usize, at: usize| position as f64 * (-step * at as f64).exp();
    let row = |position: usize| {
        let sines = (0..half).map(move |at| angle(position, at).sin() as f32);
        sines.chain((0..half).map(move |at| angle(position, at).cos() as f32))
    };
    (0..positions).flat_map(row).collect()
}
