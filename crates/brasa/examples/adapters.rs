//! One model with several low-rank adapters, each answering the same prompt at the same time.
//!
//! ```text
//! cargo run --release --example adapters -- MODEL ADAPTER...
//! ```

use std::error::Error;
use std::time::Instant;

use brasa::{AdapterSource, CacheScope, GenerateOptions, LoadOptions, Model, RequestOptions, TokenStream};

const PROMPT: &str = "Once upon a time";

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("which model?")?;
    let adapters: Vec<AdapterSource> = arguments.map(AdapterSource::new).collect();
    if adapters.is_empty() {
        return Err("which adapters?".into());
    }
    let options = GenerateOptions { max_tokens: Some(128), ignore_eos: true, ..GenerateOptions::default() };
    let base = Model::load(&path, &LoadOptions::default())?;
    let streams = (0..adapters.len()).map(|_| base.generate(PROMPT, &options)).collect::<Result<_, _>>()?;
    println!(
        "without adapters: {:.1} tokens/s of {} texts together",
        speed(streams, |_, _| {})?,
        adapters.len()
    );
    drop(base);

    let load = LoadOptions { adapters, adapters_by_request: true, ..LoadOptions::default() };
    let model = Model::load(&path, &load)?;
    let mut streams = Vec::new();
    for info in model.adapters() {
        let adapter = model.adapter_scope(&[(info.id, 1.0)])?;
        let cache_scope = CacheScope { adapter, ..CacheScope::default() };
        let request = RequestOptions { cache_scope, ..RequestOptions::default() };
        let options = GenerateOptions { request, ..options.clone() };
        streams.push(model.generate(PROMPT, &options)?);
    }
    let mut texts = vec![String::new(); streams.len()];
    let speed = speed(streams, |number, text| texts[number] += text)?;
    for (info, text) in model.adapters().iter().zip(texts) {
        println!("{}: {PROMPT}{text}\n", info.name);
    }
    println!("with an adapter each: {speed:.1} tokens/s of all texts together");
    Ok(())
}

/// Tokens a second of all streams together, once each has its first token.
fn speed(mut streams: Vec<TokenStream>, mut take: impl FnMut(usize, &str)) -> Result<f64, brasa::Error> {
    let (mut tokens, mut started) = (0, Instant::now());
    for first in [true, false] {
        for (number, stream) in streams.iter_mut().enumerate() {
            for fragment in stream.by_ref().take(if first { 1 } else { usize::MAX }) {
                take(number, &fragment?.text);
                tokens += usize::from(!first);
            }
        }
        if first {
            started = Instant::now();
        }
    }
    Ok(tokens as f64 / started.elapsed().as_secs_f64())
}
