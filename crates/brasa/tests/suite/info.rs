//! Facts about models, as the library tells them.

use brasa::{LoadOptions, Model};

#[test]
fn formats_windows_and_frequencies_are_told() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models");
    // Bits and group of the format of most bytes, window, and the base of rotary frequencies.
    for (name, bits, group, window, theta) in [
        ("lexicon-qwen3/lexicon-qwen3-Q6_K.gguf", 6, Some(16), None, Some(1e6)),
        ("tiny-gemma3", 16, None, Some(64), Some(1e6)),
        ("tiny-llama", 16, None, None, Some(500_000.0)),
    ] {
        let options = LoadOptions { device: Some("cpu".into()), threads: Some(1), ..LoadOptions::default() };
        let model = Model::load(format!("{root}/{name}"), &options).unwrap();
        let info = model.info();
        let found = (info.quant_bits, info.quant_group_size, info.window, info.rope_theta);
        assert_eq!(found, (Some(bits), group, window, theta), "{name}");
    }
}
