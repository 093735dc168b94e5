//! A file as whisper.cpp's converter writes it, made of a checkpoint of Hugging Face. It shares no code with the reader.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

/// Frequencies of a filter bank.
const FREQUENCIES: usize = 201;

/// Writes the checkpoint in `folder` as a file of whisper.cpp whose tensors are all F32.
pub fn write(folder: &Path, out: &Path) {
    let read =
        |name: &str| -> Value { serde_json::from_slice(&std::fs::read(folder.join(name)).unwrap()).unwrap() };
    let config = read("config.json");
    let mut bin = b"lmgg".to_vec();
    for key in [
        "vocab_size",
        "max_source_positions",
        "d_model",
        "encoder_attention_heads",
        "encoder_layers",
        "max_target_positions",
        "d_model",
        "decoder_attention_heads",
        "decoder_layers",
        "num_mel_bins",
    ] {
        number(&mut bin, config[key].as_u64().unwrap());
    }
    number(&mut bin, 0);
    let bins = config["num_mel_bins"].as_u64().unwrap();
    number(&mut bin, bins);
    number(&mut bin, FREQUENCIES as u64);
    bin.extend(slaney(bins as usize).iter().flat_map(|weight| weight.to_le_bytes()));
    vocabulary(&mut bin, &read("tokenizer.json"));
    tensors(&mut bin, &std::fs::read(folder.join("model.safetensors")).unwrap());
    std::fs::write(out, bin).unwrap();
}

fn number(bin: &mut Vec<u8>, number: u64) {
    bin.extend(u32::try_from(number).unwrap().to_le_bytes());
}

/// Slaney's filters as librosa computes them: triangles of equal area over 0 to 8 kHz.
fn slaney(bins: usize) -> Vec<f32> {
    let step = 6.4_f64.ln() / 27.0;
    let hertz = |mel: f64| if mel < 15.0 { mel * 200.0 / 3.0 } else { 1000.0 * ((mel - 15.0) * step).exp() };
    let highest = 15.0 + (8000.0_f64 / 1000.0).ln() / step;
    let edges: Vec<f64> = (0..bins + 2).map(|n| hertz(highest * n as f64 / (bins + 1) as f64)).collect();
    let weight = |bin: usize, frequency: f64| {
        let (low, middle, high) = (edges[bin], edges[bin + 1], edges[bin + 2]);
        let slope = ((frequency - low) / (middle - low)).min((high - frequency) / (high - middle)).max(0.0);
        (slope * 2.0 / (high - low)) as f32
    };
    (0..bins)
        .flat_map(|bin| (0..FREQUENCIES).map(move |n| (bin, n as f64 * 40.0)))
        .map(|(bin, f)| weight(bin, f))
        .collect()
}

/// The bytes of the text's tokens, in the order of their ids.
fn vocabulary(bin: &mut Vec<u8>, tokenizer: &Value) {
    let added =
        tokenizer["added_tokens"].as_array().unwrap().iter().map(|token| token["id"].as_u64().unwrap());
    let text_tokens = added.min().unwrap();
    let ids = tokenizer["model"]["vocab"].as_object().unwrap().iter();
    let ids: BTreeMap<u64, &String> = ids.map(|(token, id)| (id.as_u64().unwrap(), token)).collect();
    number(bin, text_tokens);
    for (_, token) in ids.range(..text_tokens) {
        let bytes: Vec<u8> = token.chars().map(byte).collect();
        number(bin, bytes.len() as u64);
        bin.extend(bytes);
    }
}

/// The byte that a character of GPT-2's spelling stands for.
fn byte(character: char) -> u8 {
    let shown = |byte: &u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    match u32::from(character) {
        code @ 0..256 => code as u8,
        code => (0..=255).filter(|byte| !shown(byte)).nth(code as usize - 256).unwrap(),
    }
}

fn tensors(bin: &mut Vec<u8>, safetensors: &[u8]) {
    let header_bytes = u64::from_le_bytes(safetensors[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&safetensors[8..8 + header_bytes]).unwrap();
    let data = &safetensors[8 + header_bytes..];
    for (name, tensor) in header.as_object().unwrap() {
        let Some(dtype) = tensor["dtype"].as_str() else { continue };
        assert_eq!(dtype, "BF16", "{name}");
        let place: Vec<usize> = serde_json::from_value(tensor["data_offsets"].clone()).unwrap();
        let mut shape: Vec<u64> = serde_json::from_value(tensor["shape"].clone()).unwrap();
        let name = openai(name);
        if name.ends_with("conv1.bias") || name.ends_with("conv2.bias") {
            shape.push(1);
        }
        number(bin, shape.len() as u64);
        number(bin, name.len() as u64);
        number(bin, 0);
        shape.iter().rev().for_each(|&dim| number(bin, dim));
        bin.extend(name.as_bytes());
        let values = data[place[0]..place[1]].as_chunks::<2>().0;
        bin.extend(values.iter().flat_map(|&[low, high]| [0, 0, low, high]));
    }
}

/// OpenAI's name of a tensor.
fn openai(name: &str) -> String {
    let mut name = name.strip_prefix("model.").unwrap().replace(".layers.", ".blocks.");
    for (theirs, ours) in [
        ("encoder_attn_layer_norm", "cross_attn_ln"),
        ("self_attn_layer_norm", "attn_ln"),
        ("encoder_attn.", "cross_attn."),
        ("self_attn.", "attn."),
        ("q_proj", "query"),
        ("k_proj", "key"),
        ("v_proj", "value"),
        ("out_proj", "out"),
        ("final_layer_norm", "mlp_ln"),
        ("fc1", "mlp.0"),
        ("fc2", "mlp.2"),
        ("embed_tokens", "token_embedding"),
        ("embed_positions.weight", "positional_embedding"),
        ("encoder.layer_norm", "encoder.ln_post"),
        ("decoder.layer_norm", "decoder.ln"),
    ] {
        name = name.replace(theirs, ours);
    }
    name
}
