//! Storage formats of tensors, chosen like llama.cpp's quantiser: a file of a given name has the usual size and quality.
//!
//! Sensitive tensors get more bits: the output matrix (and a tied embedding), the values of attention, the
//! down-projection of about half of the layers. Norms, routers and vectors are never quantised.

use brasa_formats::StorageFormat::{self, F16, IQ4_NL, Q3_K, Q4_0, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0};
use brasa_formats::gguf::Metadata;

use crate::Recipe;
use crate::model::{Model, OutTensor, layer, order};

/// The format of one tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    pub format: StorageFormat,
    /// The format that the recipe wanted, if rows are no whole number of its blocks.
    pub instead_of: Option<StorageFormat>,
}

/// The format of every tensor of `model`, in its order.
pub fn choose(model: &Model, recipe: Recipe) -> Vec<Choice> {
    let mut mix = Mix::new(model, recipe);
    let mut places: Vec<usize> = (0..model.tensors.len()).collect();
    // Choices count layers as they come, so they have to come in llama.cpp's order.
    places.sort_by_key(|&at| order(&model.tensors[at].name));
    let mut choices = vec![Choice { format: F16, instead_of: None }; model.tensors.len()];
    for at in places {
        choices[at] = mix.choose(&model.tensors[at]);
    }
    choices
}

struct Mix {
    recipe: Recipe,
    layers: usize,
    experts: usize,
    /// Query heads per key head.
    group: usize,
    /// True for Llama and Qwen2 with 80 layers and grouped heads.
    is_70b: bool,
    tied: bool,
    value_tensors: usize,
    values_seen: usize,
    downs_seen: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Embedding,
    Output,
    Qkv,
    Value,
    Key,
    AttentionOutput,
    Down,
    Other,
}

fn role(name: &str) -> Role {
    match name {
        "output.weight" => Role::Output,
        "token_embd.weight" | "per_layer_token_embd.weight" => Role::Embedding,
        _ if name.contains("attn_qkv.weight") => Role::Qkv,
        _ if name.contains("attn_v.weight") || name.contains("attn_kv_b.weight") => Role::Value,
        _ if name.contains("attn_k.weight") => Role::Key,
        _ if name.contains("attn_output.weight") => Role::AttentionOutput,
        _ if name.contains("ffn_down") => Role::Down,
        _ => Role::Other,
    }
}

/// Parts of names that are never quantised: small tensors that are worth their bits.
const KEPT: [&str; 16] = [
    "_norm.weight",
    "ffn_gate_inp.weight",
    "altup",
    "laurel",
    "per_layer_model_proj",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "time_mix_first.weight",
    "time_mix_w",
    "time_mix_v",
    "time_mix_a",
    "time_mix_g",
    "time_mix_decay_w",
    "time_mix_lerp_fused.weight",
    "attn_rel_b.weight",
    ".position_embd",
];

fn is_quantised(tensor: &OutTensor) -> bool {
    // As in ggml, trailing dimensions of 1 do not count.
    let dims = tensor.shape.iter().position(|&dim| dim > 1).map_or(0, |first| tensor.shape.len() - first);
    let name = tensor.name.as_str();
    let position = matches!(name, "position_embd.weight" | "token_types.weight");
    dims >= 2 && name.ends_with("weight") && !position && !KEPT.iter().any(|part| name.contains(part))
}

/// True for the kernels of a Whisper's convolutions.
fn is_convolution(tensor: &OutTensor) -> bool {
    tensor.name.starts_with("encoder.conv") && tensor.shape.len() == 3
}

impl Mix {
    fn new(model: &Model, recipe: Recipe) -> Self {
        let number = |key: &str| architecture_number(&model.metadata, key);
        let layers = number("block_count").unwrap_or(0);
        let heads = number("attention.head_count").unwrap_or(1);
        let kv_heads = number("attention.head_count_kv").unwrap_or(heads).max(1);
        let architecture = model.metadata.get::<&str>("general.architecture").ok().flatten();
        let has_70b = matches!(architecture, Some("llama" | "qwen2"));
        let is_value = |tensor: &&OutTensor| matches!(role(&tensor.name), Role::Value | Role::Qkv);
        Self {
            recipe,
            layers,
            experts: number("expert_count").unwrap_or(0),
            group: heads / kv_heads,
            is_70b: has_70b && layers == 80 && heads != kv_heads,
            tied: !model.tensors.iter().any(|tensor| tensor.name == "output.weight"),
            value_tensors: model.tensors.iter().filter(is_value).count(),
            values_seen: 0,
            downs_seen: 0,
        }
    }

    fn choose(&mut self, tensor: &OutTensor) -> Choice {
        if is_convolution(tensor) {
            // Rows of three elements: whisper.cpp has halves, but in files of plain floats.
            let format = if self.recipe == Recipe::F32 { StorageFormat::F32 } else { F16 };
            return Choice { format, instead_of: None };
        }
        if !is_quantised(tensor) {
            return Choice { format: tensor.base, instead_of: None };
        }
        let main = self.recipe.main_format();
        if main.is_float() {
            return Choice { format: main, instead_of: None };
        }
        let wanted = self.wanted(tensor, main);
        let format = fitting(wanted, tensor.row_len());
        Choice { format, instead_of: (format != wanted).then_some(wanted) }
    }

    fn wanted(&mut self, tensor: &OutTensor, main: StorageFormat) -> StorageFormat {
        let role = role(&tensor.name);
        if role == Role::Output || (self.tied && role == Role::Embedding) {
            let fits = tensor.row_len().is_multiple_of(main.block_len());
            return if main == Q8_0 || !fits { Q8_0 } else { Q6_K };
        }
        match role {
            Role::Value | Role::Qkv => {
                let seen = self.values_seen;
                self.values_seen += 1;
                self.value(main, seen)
            }
            Role::Key if self.experts == 8 => Q8_0,
            Role::Down => {
                let seen = self.downs_seen;
                self.downs_seen += 1;
                // Experts come in any order: their layer is in their name.
                let at = if self.experts > 1 { layer(&tensor.name).unwrap_or(seen) } else { seen };
                self.down(main, at)
            }
            Role::AttentionOutput => self.attention_output(main),
            _ => main,
        }
    }

    fn value(&self, main: StorageFormat, seen: usize) -> StorageFormat {
        let mut format = match self.recipe {
            Recipe::Q2_K | Recipe::Q2_K_S if self.group >= 4 => Q4_K,
            Recipe::Q2_K => Q3_K,
            Recipe::Q3_K_M if seen < 2 => Q5_K,
            Recipe::Q3_K_M => Q4_K,
            Recipe::Q3_K_L => Q5_K,
            Recipe::IQ4_NL | Recipe::IQ4_XS if self.group >= 4 => Q5_K,
            Recipe::Q4_K_M | Recipe::Q5_K_M if more_bits(seen, self.value_tensors) => Q6_K,
            Recipe::Q4_K_S if seen < 4 => Q5_K,
            _ => main,
        };
        if self.is_70b && matches!(format, Q3_K | Q4_K) {
            // Eight heads share these values: the matrix is small and matters much.
            format = Q5_K;
        }
        if self.experts == 8 { Q8_0 } else { format }
    }

    fn down(&self, main: StorageFormat, at: usize) -> StorageFormat {
        let first_eighth = at < self.layers / 8;
        match self.recipe {
            Recipe::Q2_K => Q3_K,
            Recipe::Q2_K_S if first_eighth => Q4_K,
            Recipe::Q3_K_M if at < self.layers / 16 => Q5_K,
            Recipe::Q3_K_M => Q4_K,
            Recipe::Q3_K_L => Q5_K,
            Recipe::Q4_K_M | Recipe::Q5_K_M if more_bits(at, self.layers) => Q6_K,
            Recipe::IQ4_NL | Recipe::IQ4_XS | Recipe::Q4_K_S if first_eighth => Q5_K,
            _ => main,
        }
    }

    fn attention_output(&self, main: StorageFormat) -> StorageFormat {
        if self.experts == 8 {
            return match self.recipe {
                Recipe::Q2_K
                | Recipe::Q3_K_S
                | Recipe::Q3_K_M
                | Recipe::Q4_K_S
                | Recipe::Q4_K_M
                | Recipe::IQ4_NL
                | Recipe::IQ4_XS => Q5_K,
                _ => main,
            };
        }
        match self.recipe {
            Recipe::Q2_K => Q3_K,
            Recipe::Q3_K_M => Q4_K,
            Recipe::Q3_K_L => Q5_K,
            _ => main,
        }
    }
}

/// The first and last eighth, and every third layer between.
fn more_bits(at: usize, layers: usize) -> bool {
    at < layers / 8 || at >= 7 * layers / 8 || (at - layers / 8) % 3 == 2
}

/// `wanted`, or what llama.cpp uses instead if a row is no whole number of its blocks.
fn fitting(wanted: StorageFormat, row_len: usize) -> StorageFormat {
    let fits = |format: StorageFormat| row_len.is_multiple_of(format.block_len());
    if fits(wanted) {
        return wanted;
    }
    let smaller = match wanted {
        StorageFormat::IQ4_XS => IQ4_NL,
        StorageFormat::Q2_K | Q3_K => Q4_0,
        Q4_K => Q5_0,
        Q5_K => Q5_1,
        Q6_K => Q8_0,
        other => other,
    };
    if fits(smaller) { smaller } else { F16 }
}

/// A number under the architecture's own prefix; of an array, its first element.
fn architecture_number(metadata: &Metadata, key: &str) -> Option<usize> {
    let architecture = metadata.get::<&str>("general.architecture").ok().flatten()?;
    let key = format!("{architecture}.{key}");
    match metadata.get::<usize>(&key) {
        Ok(number) => number,
        Err(_) => metadata.get::<Vec<u64>>(&key).ok().flatten()?.first().map(|&number| number as usize),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ragged_rows_fall_back_as_in_llama_cpp() {
        use StorageFormat::{IQ4_XS, Q2_K};
        let cases = [(Q4_K, Q5_0), (Q5_K, Q5_1), (Q6_K, Q8_0), (Q2_K, Q4_0), (Q3_K, Q4_0), (IQ4_XS, IQ4_NL)];
        for (wanted, used) in cases {
            assert_eq!(fitting(wanted, 512), wanted);
            assert_eq!(fitting(wanted, 96), used);
            assert_eq!(fitting(wanted, 48), F16);
        }
        assert_eq!(fitting(Q8_0, 48), F16);
    }

    #[test]
    fn about_half_of_the_layers_get_more_bits() {
        let raised: Vec<_> = (0..32).filter(|&at| more_bits(at, 32)).collect();
        assert_eq!(raised, [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31]);
    }
}
