//! Tensor names of Whisper. Inside this crate a tensor has the name of OpenAI's own checkpoints.

/// `model_type` in `config.json`, and `general.architecture` in GGUF.
pub(crate) const ARCHITECTURES: &[&str] = &["whisper"];

/// Prefixes of tensors' names in Hugging Face's checkpoints: of the whole model, and of its base without head.
const PREFIXES: [&str; 2] = ["model.", ""];

/// Names of tensors outside the blocks: in OpenAI's spelling and in Hugging Face's.
const GLOBAL: &[(&str, &str)] = &[
    ("encoder.positional_embedding", "encoder.embed_positions.weight"),
    ("encoder.ln_post", "encoder.layer_norm"),
    ("decoder.token_embedding", "decoder.embed_tokens"),
    ("decoder.positional_embedding", "decoder.embed_positions.weight"),
    ("decoder.ln", "decoder.layer_norm"),
];

/// Names of tensors inside a block: in OpenAI's spelling and in Hugging Face's.
const BLOCK: &[(&str, &str)] = &[
    ("attn_ln", "self_attn_layer_norm"),
    ("attn.query", "self_attn.q_proj"),
    ("attn.key", "self_attn.k_proj"),
    ("attn.value", "self_attn.v_proj"),
    ("attn.out", "self_attn.out_proj"),
    ("cross_attn_ln", "encoder_attn_layer_norm"),
    ("cross_attn.query", "encoder_attn.q_proj"),
    ("cross_attn.key", "encoder_attn.k_proj"),
    ("cross_attn.value", "encoder_attn.v_proj"),
    ("cross_attn.out", "encoder_attn.out_proj"),
    ("mlp_ln", "final_layer_norm"),
    ("mlp.0", "fc1"),
    ("mlp.2", "fc2"),
];

/// Tensors that repeat another: the head, which is the embedding table.
pub(super) const REPEATED: &[&str] = &["proj_out.weight", "model.proj_out.weight"];

/// All spellings of a tensor, most usual first.
pub(super) fn spellings(name: &str) -> Vec<String> {
    let hugging_face = hugging_face(name);
    let mut all: Vec<String> = PREFIXES.iter().map(|prefix| format!("{prefix}{hugging_face}")).collect();
    all.push(name.into());
    all
}

/// The names of all tensors of a model with these numbers of blocks, biases that only some layers have included.
pub(super) fn all(encoder_layers: usize, decoder_layers: usize) -> Vec<String> {
    let with_endings = |stem: String| [format!("{stem}.weight"), format!("{stem}.bias")];
    let mut all: Vec<String> =
        ["encoder.conv1", "encoder.conv2"].map(String::from).into_iter().flat_map(with_endings).collect();
    for (ours, _) in GLOBAL {
        if ours.ends_with("positional_embedding") {
            all.push((*ours).into());
        } else {
            all.extend(with_endings((*ours).into()));
        }
    }
    for (stack, layers) in [("encoder", encoder_layers), ("decoder", decoder_layers)] {
        let blocks = (0..layers).flat_map(|layer| BLOCK.iter().map(move |(ours, _)| (layer, ours)));
        all.extend(blocks.flat_map(|(layer, ours)| with_endings(format!("{stack}.blocks.{layer}.{ours}"))));
    }
    all
}

/// The name in Hugging Face's spelling, without the model's prefix.
fn hugging_face(name: &str) -> String {
    if let Some((_, theirs)) = GLOBAL.iter().find(|(ours, _)| *ours == name) {
        return (*theirs).into();
    }
    let (stem, ending) = name.rsplit_once('.').unwrap_or((name, ""));
    if let Some((_, theirs)) = GLOBAL.iter().find(|(ours, _)| *ours == stem) {
        return format!("{theirs}.{ending}");
    }
    let in_block = stem.split_once(".blocks.").and_then(|(stack, rest)| {
        let (number, part) = rest.split_once('.')?;
        let (_, theirs) = BLOCK.iter().find(|(ours, _)| *ours == part)?;
        Some(format!("{stack}.layers.{number}.{theirs}.{ending}"))
    });
    in_block.unwrap_or_else(|| name.into())
}
