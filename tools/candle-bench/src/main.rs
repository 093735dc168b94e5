//! Speed of candle with a GGUF file, measured as llama-bench measures llama.cpp.
//!
//!     candle-bench MODEL.gguf PROMPT GENERATE DEPTH SAMPLES
//!
//! prints tokens per second of each sample as a JSON list: PROMPT tokens in one pass, then GENERATE one by one, after DEPTH
//! tokens that are not timed. Threads are those of `RAYON_NUM_THREADS`.

use std::error::Error;
use std::fs::File;
use std::io::BufReader;
use std::time::Instant;

use candle_core::quantized::gguf_file;
use candle_core::{Device, Tensor};
use candle_transformers::models::{quantized_llama, quantized_qwen3};

enum Model {
    Llama(quantized_llama::ModelWeights),
    Qwen3(quantized_qwen3::ModelWeights),
}

impl Model {
    fn open(path: &str) -> Result<Self, Box<dyn Error>> {
        let mut file = BufReader::new(File::open(path)?);
        let content = gguf_file::Content::read(&mut file)?;
        let architecture = content.metadata.get("general.architecture").ok_or("no general.architecture")?.to_string()?.clone();
        Ok(match architecture.as_str() {
            "llama" => Self::Llama(quantized_llama::ModelWeights::from_gguf(content, &mut file, &Device::Cpu)?),
            "qwen3" => Self::Qwen3(quantized_qwen3::ModelWeights::from_gguf(content, &mut file, &Device::Cpu)?),
            other => return Err(format!("architecture `{other}` is not measured").into()),
        })
    }

    /// Logits of the last of `tokens`, which follow `position` others; position 0 begins afresh.
    fn forward(&mut self, tokens: &[u32], position: usize) -> candle_core::Result<f32> {
        let input = Tensor::new(tokens, &Device::Cpu)?.unsqueeze(0)?;
        let logits = match self {
            Self::Llama(model) => model.forward(&input, position)?,
            Self::Qwen3(model) => {
                if position == 0 {
                    model.clear_kv_cache();
                }
                model.forward(&input, position)?
            }
        };
        logits.flatten_all()?.max(0)?.to_dtype(candle_core::DType::F32)?.to_scalar()
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, numbers @ ..] = arguments.as_slice() else { return Err("no model".into()) };
    let numbers = numbers.iter().map(|text| text.parse()).collect::<Result<Vec<usize>, _>>()?;
    let [prompt, generate, depth, samples] = numbers[..] else {
        return Err("candle-bench MODEL.gguf PROMPT GENERATE DEPTH SAMPLES".into());
    };
    let mut model = Model::open(path)?;
    let tokens: Vec<u32> = (0..depth + prompt + generate).map(|index| (index * 7919 + 13) as u32 % 100_000).collect();
    let mut rates = Vec::new();
    // The first warms up.
    for _ in 0..=samples {
        for start in (0..depth).step_by(512) {
            model.forward(&tokens[start..depth.min(start + 512)], start)?;
        }
        let started = Instant::now();
        if prompt > 0 {
            model.forward(&tokens[depth..depth + prompt], depth)?;
        }
        for position in depth + prompt..tokens.len() {
            model.forward(&tokens[position..=position], position)?;
        }
        rates.push((prompt + generate) as f64 / started.elapsed().as_secs_f64());
    }
    println!("{:?}", &rates[1..]);
    Ok(())
}
