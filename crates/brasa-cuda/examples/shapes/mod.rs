//! Decoders with random weights in the shapes of public models.

use brasa_formats::StorageFormat;
use brasa_graph::testing::Decoder;

#[path = "../formats/mod.rs"]
mod formats;

pub use formats::format;

/// A decoder of Llama-3.1-8B (`8b`), Llama-3.2-1B (`1b`), Qwen3-0.6B (`0.6b`) or Qwen3-30B-A3B (`30b-a3b`), or one with the experts of
/// gpt-oss-20b (`20b-a4b`) or of Gemma-4-26B-A4B (`26b-a4b`); `None` for other names. A number behind a slash, as in `30b-a3b/12`, is how
/// many layers it has instead.
pub fn decoder(model: &str, format: StorageFormat) -> Option<Decoder> {
    let (model, layers) = match model.split_once('/') {
        Some((model, layers)) => (model, Some(layers.parse().ok()?)),
        None => (model, None),
    };
    // Checkpoints have routers in floats.
    let mut decoder = Decoder { router: Some(StorageFormat::F32), ..whole(model, format)? };
    if let Some(layers) = layers {
        decoder.windows.resize(layers, None);
    }
    Some(decoder)
}

fn whole(model: &str, format: StorageFormat) -> Option<Decoder> {
    let small = Decoder { fresh_rows: 64, ..Decoder::qwen3_0_6b(format) };
    let of_llama = Decoder { vocab: 128_256, heads: 32, ..small.clone() };
    match model {
        "0.6b" => Some(small),
        "1b" => Some(Decoder {
            hidden: 2048,
            head_dim: 64,
            head_norms: false,
            feed_forward: 8192,
            windows: vec![None; 16],
            ..of_llama
        }),
        "8b" => Some(Decoder {
            hidden: 4096,
            head_norms: false,
            feed_forward: 14_336,
            windows: vec![None; 32],
            ..of_llama
        }),
        // Enough rows that differ for a router to choose among all experts.
        "30b-a3b" => Some(Decoder {
            hidden: 2048,
            heads: 32,
            kv_heads: 4,
            feed_forward: 768,
            experts: Some((128, 8)),
            windows: vec![None; 48],
            fresh_rows: 256,
            ..small
        }),
        "20b-a4b" => Some(Decoder {
            hidden: 2880,
            heads: 64,
            head_dim: 64,
            feed_forward: 2880,
            experts: Some((32, 4)),
            windows: [Some(128), None].repeat(12),
            fresh_rows: 256,
            ..small
        }),
        "26b-a4b" => Some(Decoder {
            hidden: 2816,
            feed_forward: 704,
            experts: Some((128, 8)),
            windows: vec![None; 30],
            fresh_rows: 256,
            ..small
        }),
        _ => None,
    }
}
