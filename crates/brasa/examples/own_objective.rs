//! Learns an adapter by a loss of the program's own: `cargo run --release -p brasa --example own_objective -- [MODEL] [FOLDER]`.
//!
//! The adapter is written into the folder, `adapter` if none is named. Label smoothing (Szegedy et al. 2015, arXiv:1512.00567) asks for a probability of all tokens, not of the
//! learned one alone.

use std::ops::ControlFlow;
use std::path::PathBuf;

use brasa::formats::{AdapterForm, Existing};
use brasa::graph::op::{Binary, Reduce, ReduceFn};
use brasa::train::data::{Batches, DataOptions, Dataset};
use brasa::train::lora::{Lora, LoraOptions};
use brasa::train::{Objective, TokenLoss, TrainOptions};
use brasa::{Error, FineTuner, LoadOptions};

const ROWS: &str = r#"{"prompt": "Plural of cat?", "completion": "cats"}
{"prompt": "Plural of box?", "completion": "boxes"}
{"prompt": "Plural of lady?", "completion": "ladies"}
{"prompt": "Plural of dog?", "completion": "dogs"}"#;

fn main() -> Result<(), Error> {
    let bundled = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/lexicon-qwen3/lexicon-qwen3-Q6_K.gguf");
    let mut words = std::env::args_os().skip(1).map(PathBuf::from);
    let path = words.next().unwrap_or_else(|| bundled.into());
    let folder = words.next().unwrap_or_else(|| "adapter".into());
    let tuner = FineTuner::open(path, &LoadOptions::default())?;
    let data = Dataset::read_from(ROWS.as_bytes(), "rows", &tuner.examples(), &DataOptions::default())?;
    let mut batches = Batches::new(data.documents, 256, 16, Some(0));
    let lora = Lora::new(tuner.layers(), &LoraOptions::default())?;
    let objective = Objective::Own(smoothed(0.1));
    let options = TrainOptions { objective, ..TrainOptions::default() };
    let mut trainer = tuner.trainer(lora, options, (256, 16), &mut |_| ControlFlow::Continue(()))?;
    for _ in 0..10 {
        let update = trainer.update(&mut batches)?;
        println!("update {}: loss {:.4}", update.number, update.loss);
    }
    trainer.fetch()?;
    tuner.write(trainer.lora(), AdapterForm::Peft, &folder, Existing::Replace)?;
    Ok(())
}

/// Cross-entropy with labels of which `share` is spread over all tokens.
fn smoothed(share: f32) -> TokenLoss {
    TokenLoss::new(format!("labels smoothed by {share}"), move |g, at| {
        let reduced = |function| Reduce { function, axis: 1 };
        let all = g.apply(reduced(ReduceFn::LogSumExp), &[at.logits])[0];
        let mean = g.apply(reduced(ReduceFn::Mean), &[at.logits])[0];
        let spread = g.apply(Binary::Sub, &[all, mean])[0];
        let (own, spread) = (g.scale(at.cross_entropies, 1.0 - share), g.scale(spread, share));
        g.add(own, spread)
    })
}
