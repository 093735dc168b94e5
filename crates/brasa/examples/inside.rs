//! Looks inside a generation and a model: `cargo run -p brasa --example inside -- [MODEL]`.

use std::ops::ControlFlow;
use std::path::PathBuf;

use brasa::eval::{FastEvalConfig, ModelRunner, run_fast_eval};
use brasa::{
    Error, GenerateOptions, LoadOptions, Model, ProbeEvent, ProbeKind, Probes, RequestOptions, RunFacts,
};

fn main() -> Result<(), Error> {
    let bundled = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/lexicon-qwen3/lexicon-qwen3-Q6_K.gguf");
    let path = std::env::args_os().nth(1).map_or_else(|| bundled.into(), PathBuf::from);
    let model = Model::load(path, &LoadOptions::default())?;
    let ids = watch(&model)?;
    look(&model, &ids)?;
    evaluate(&model)
}

/// Tells of each token how sure the model was; returns the ids of the text.
fn watch(model: &Model) -> Result<Vec<u32>, Error> {
    let probes = Probes::of([ProbeKind::Token, ProbeKind::Entropy, ProbeKind::Cache]);
    let mut options = GenerateOptions { max_tokens: Some(8), ..GenerateOptions::default() };
    probes.ask(&mut options);
    let mut watch = probes.watch(model);
    let mut ids = Vec::new();
    for fragment in model.generate("An ember is", &options)? {
        watch.see(&fragment?, |event| match event {
            ProbeEvent::Token { id, text, .. } => {
                ids.push(id);
                print!("{text:>12}");
            }
            ProbeEvent::Entropy { nats, .. } => print!("  entropy {nats:.2}"),
            ProbeEvent::Cache { pages, .. } => println!("  {pages} pages"),
            _ => {}
        });
    }
    Ok(ids)
}

/// Queries, keys and states of chosen layers, and what follows from them.
fn look(model: &Model, ids: &[u32]) -> Result<(), Error> {
    let layers = model.look_inside(ids, &[0, 1], &RequestOptions::default())?;
    let last = ids.len() - 1;
    for layer in &layers {
        let weights = layer.weights(0);
        println!(
            "layer {}: the last token looks at itself by {:.2}, entropy {:.2}; its state has length {:.1}",
            layer.layer,
            weights[last * ids.len() + last],
            layer.entropy(0)[last],
            layer.residual_norms()[last],
        );
    }
    println!("the cosine between the two states is {:.2}", layers[0].coherence(&layers[1])[last]);
    Ok(())
}

/// Speed, reuse of keys and values, and whether equal answers are equal: what `brasa eval` reports.
fn evaluate(model: &Model) -> Result<(), Error> {
    let mut runner = ModelRunner::new(model, RunFacts::of("bundled", model), || true);
    let config = FastEvalConfig { max_tokens: 16, runs: 1, ..FastEvalConfig::default() };
    let report = run_fast_eval(&mut runner, &config, &mut |_| ControlFlow::Continue(()))?;
    println!("{:.0} % of prompts cached", report.prompt_cache.hit_rate() * 100.0);
    for check in &report.quality.checks {
        println!("{}: {}", check.name, check.difference.as_deref().unwrap_or("same"));
    }
    Ok(())
}
