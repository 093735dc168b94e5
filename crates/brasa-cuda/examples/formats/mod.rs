//! Storage formats by name.

use brasa_formats::{MlxAffine, StorageFormat};

/// A format by its name: GGUF's, or `MLX` with bits and perhaps a group (`MLX4`, `MLX8/32`).
pub fn format(name: &str) -> Option<StorageFormat> {
    if let Some(mlx) = name.strip_prefix("MLX") {
        let (bits, group) = mlx.split_once('/').unwrap_or((mlx, "64"));
        let (bits, group_size) = (bits.parse().ok()?, group.parse().ok()?);
        return Some(StorageFormat::MlxAffine(MlxAffine { bits, group_size }));
    }
    StorageFormat::GGUF.into_iter().find(|format| format.to_string() == name)
}
