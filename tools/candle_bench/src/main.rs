//! Times candle on a GGUF file, with the options and the JSON of `llama-bench` that `compare_engines.py` uses.
//!
//! ```console
//! $ RUSTFLAGS="-C target-cpu=native" cargo build --release
//! $ candle-bench -m qwen3-0.6b-Q4_0.gguf -p 512 -n 0 -d 0 -r 3 -t 2
//! ```
//!
//! The next token is fixed, so that decode is the forward pass alone, as `llama-bench` times it.

use std::fs::File;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use candle_core::quantized::gguf_file::Content;
use candle_core::{Device, Tensor};
use candle_transformers::models::{quantized_llama, quantized_qwen3};

/// The families that both engines' scripts make files of.
enum Model {
    Qwen3(quantized_qwen3::ModelWeights),
    Llama(quantized_llama::ModelWeights),
}

impl Model {
    fn open(path: &str) -> Result<Self> {
        let mut file = File::open(path).with_context(|| path.to_owned())?;
        let content = Content::read(&mut file)?;
        let family =
            content.metadata.get("general.architecture").context("no architecture")?.to_string()?.clone();
        Ok(match family.as_str() {
            "qwen3" => {
                Self::Qwen3(quantized_qwen3::ModelWeights::from_gguf(content, &mut file, &Device::Cpu)?)
            }
            "llama" => {
                Self::Llama(quantized_llama::ModelWeights::from_gguf(content, &mut file, &Device::Cpu)?)
            }
            other => bail!("{other} is not timed"),
        })
    }

    /// Runs `count` tokens after `position` others; position 0 forgets what was cached.
    fn run(&mut self, position: usize, count: usize) -> Result<()> {
        let ids: Vec<u32> = (position..position + count).map(|at| (at * 7919 % 1000 + 13) as u32).collect();
        let input = Tensor::new(ids, &Device::Cpu)?.unsqueeze(0)?;
        let logits = match self {
            Self::Qwen3(model) => {
                if position == 0 {
                    model.clear_kv_cache();
                }
                model.forward(&input, position)?
            }
            Self::Llama(model) => model.forward(&input, position)?,
        };
        logits.flatten_all()?.to_vec1::<f32>()?;
        Ok(())
    }
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (mut path, mut prompt, mut generate, mut depth, mut samples, mut threads) = (None, 512, 0, 0, 3, 2);
    for pair in arguments.chunks(2) {
        let [name, value] = pair else { bail!("{} has no value", pair[0]) };
        match name.as_str() {
            "-m" => path = Some(value.clone()),
            "-p" => prompt = value.parse()?,
            "-n" => generate = value.parse()?,
            "-d" => depth = value.parse()?,
            "-r" => samples = value.parse()?,
            "-t" => threads = value.parse()?,
            // Candle has one kind of attention and one kind of output.
            "-fa" | "-o" => {}
            other => bail!("{other} is not known"),
        }
    }
    // SAFETY: no other thread exists yet.
    unsafe { std::env::set_var("RAYON_NUM_THREADS", threads.to_string()) };
    let mut model = Model::open(&path.context("-m FILE")?)?;
    let mut rates = Vec::new();
    for _ in 0..=samples {
        if depth > 0 {
            model.run(0, depth)?;
        } else if generate > 0 {
            model.run(0, 1)?;
        }
        let started = Instant::now();
        if prompt > 0 {
            model.run(depth, prompt)?;
        }
        for at in 0..generate {
            model.run(depth.max(1) + prompt + at, 1)?;
        }
        rates.push((prompt + generate) as f64 / started.elapsed().as_secs_f64());
    }
    println!(
        r#"[{{"flash_attn": false, "samples_ts": {:?}, "build_commit": "candle 0.11.1", "build_number": 0}}]"#,
        &rates[1..]
    );
    Ok(())
}
