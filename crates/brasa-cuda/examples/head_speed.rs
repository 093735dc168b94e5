//! Speed of linear layers of heads, in the shapes of multi-head latent attention: queries to the space of latents, and latents to values.
//!
//! `cargo run --release -p brasa-cuda --example head_speed -- [FORMAT] [--exact]`
//!
//! Each layer has weights of its own, so that a step reads them from memory. A step of up to eight rows is also run by a program for no
//! more rows, which has no kernels for tensor cores.

mod formats;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use brasa_cuda::{CudaBackend, CudaOptions};
use brasa_graph::device::{Backend, KvPoolSpec, Precision, ProgramLimits};
use brasa_graph::step::{Outs, Step};
use brasa_graph::testing::{Noise, Sequences, random_tensor, weight};
use brasa_graph::{Builder, Graph, Input, Weight, WeightPart};

/// Heads, elements of a head without a position, and elements of a latent: DeepSeek-V3, DeepSeek-V2-Lite, and one like GLM-4.7-Flash.
const SHAPES: [(usize, usize, usize); 3] = [(128, 128, 512), (16, 128, 512), (20, 256, 512)];
const LAYERS: usize = 8;
const ROWS: [usize; 11] = [1, 2, 4, 8, 9, 16, 32, 64, 128, 512, 2048];
const REPETITIONS: usize = 9;
/// Rows of the table that ids look up.
const TOKENS: usize = 64;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let deterministic = arguments.iter().position(|argument| argument == "--exact");
    let deterministic = deterministic.map(|place| arguments.remove(place)).is_some();
    let name = arguments.first().map_or("BF16", String::as_str);
    let device = CudaBackend::new(&CudaOptions { deterministic, ..CudaOptions::default() })?;
    println!("{}", device.info().description);
    for shape @ (heads, inputs, latent) in SHAPES {
        let graph = Arc::new(layers(shape, name)?);
        let weights = device.upload(&graph, Precision::Fast, &mut |_| ControlFlow::Continue(()))?;
        println!(
            "{heads} heads, {inputs} to {latent} and back, {name}: microseconds of a layer's two products"
        );
        for rows in ROWS {
            let limits = ProgramLimits { max_rows: rows, max_outs: rows, max_segments: 1 };
            let mut program = device.compile(Arc::clone(&graph), Arc::clone(&weights), limits.into())?;
            let mut pool = device.kv_pool(KvPoolSpec::empty())?;
            let mut sequences = Sequences::new(&*pool);
            let mut times: Vec<Duration> = Vec::new();
            for id in 0..REPETITIONS as u64 {
                let tokens: Vec<u32> = (0..rows as u32).map(|row| row * 7 % TOKENS as u32).collect();
                let segment = sequences.extend(&mut *pool, id, &tokens, Outs::All)?;
                let profile = program.profile(&Step { segments: vec![segment] }, &mut *pool)?;
                let own = profile.iter().filter(|op| op.label.starts_with("head_linear"));
                times.push(own.map(|op| op.time).sum());
            }
            times.sort_unstable();
            let each = times[REPETITIONS / 2].as_secs_f64() / LAYERS as f64;
            let elements = (2 * heads * inputs * latent) as f64;
            let (terabytes, teraflops) = (
                graph.weights()[1].stored_bytes() as f64 * 2.0 / each / 1e12,
                2.0 * elements * rows as f64 / each / 1e12,
            );
            println!(
                "{rows:5} rows: {:8.1} µs, {terabytes:5.2} TB/s of weights, {teraflops:6.1} TFLOP/s",
                each * 1e6
            );
        }
    }
    Ok(())
}

/// Layers of two products each; returns a number of each row.
fn layers((heads, inputs, latent): (usize, usize, usize), format: &str) -> Result<Graph, String> {
    let format = formats::format(format).ok_or_else(|| format!("no format {format}"))?;
    let mut noise = Noise::new(1);
    let mut b = Builder::new();
    let ids = b.input(Input::TokenIds);
    let width = heads * inputs;
    let table = b.weight(Ok(weight("table", &[TOKENS, width], &noise.activations(TOKENS * width))));
    let x = b.embed(ids, table);
    let mut x = b.reshape(x, &[heads, inputs]);
    for layer in 0..LAYERS {
        for (outputs, inputs) in [(latent, inputs), (inputs, latent)] {
            let part = WeightPart::whole(random_tensor(format, heads * outputs, inputs, &mut noise));
            let name = format!("layers.{layer}.{outputs}");
            let w = b.weight(Weight::new(name, &[heads, outputs, inputs], vec![part]));
            x = b.head_linear(x, w);
            // Numbers stay near one.
            x = b.scale(x, 0.1);
        }
    }
    let x = b.reshape(x, &[width]);
    let y = b.sum(x, 1);
    b.finish(&[y]).map_err(|error| error.to_string())
}
