//! Decoders with random weights in the shapes of public models.

use brasa_formats::{MlxAffine, StorageFormat};
use brasa_graph::testing::Decoder;

/// A format by its name: GGUF's, or `MLX` with bits and perhaps a group (`MLX4`, `MLX8/32`).
pub fn format(name: &str) -> Option<StorageFormat> {
    if let Some(mlx) = name.strip_prefix("MLX") {
        let (bits, group) = mlx.split_once('/').unwrap_or((mlx, "64"));
        let (bits, group_size) = (bits.parse().ok()?, group.parse().ok()?);
        return Some(StorageFormat::MlxAffine(MlxAffine { bits, group_size }));
    }
    StorageFormat::GGUF.into_iter().find(|format| format.to_string() == name)
}

/// A decoder of Llama-3.1-8B (`8b`), Llama-3.2-1B (`1b`) or Qwen3-0.6B (`0.6b`); `None` for other names.
pub fn decoder(model: &str, format: StorageFormat) -> Option<Decoder> {
    let small = Decoder { fresh_rows: 64, ..Decoder::qwen3_0_6b(format) };
    let of_llama = Decoder { vocab: 128_256, heads: 32, ..small.clone() };
    match model {
        "0.6b" => Some(small),
        "1b" => Some(Decoder {
            hidden: 2048,
            head_dim: 64,
            feed_forward: 8192,
            windows: vec![None; 16],
            ..of_llama
        }),
        "8b" => Some(Decoder { hidden: 4096, feed_forward: 14_336, windows: vec![None; 32], ..of_llama }),
        _ => None,
    }
}
