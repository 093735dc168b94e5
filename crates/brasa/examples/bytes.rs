//! A model that is part of the program: `cargo run --example bytes`.

use std::ops::ControlFlow;

use brasa::{Error, GenerateOptions, LoadOptions, Message, Model};

static MODEL: &[u8] = include_bytes!("../../../models/lexicon-qwen3/lexicon-qwen3-Q6_K.gguf");

fn main() -> Result<(), Error> {
    let model = Model::from_gguf_bytes(MODEL, &LoadOptions::default(), |progress| {
        eprintln!("{} of {} bytes", progress.done_bytes, progress.total_bytes);
        ControlFlow::Continue(())
    })?;
    let question = Message::new("user", "What does \"ember\" mean?");
    println!("{}", model.chat(&[question], &GenerateOptions::default())?.into_text()?);
    Ok(())
}
