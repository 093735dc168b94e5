//! A conversation that computes each of its tokens once: `cargo run --example session -- MODEL`.

use std::io::Write;
use std::path::PathBuf;

use brasa::{Error, GenerateOptions, LoadOptions, Message, Model};

fn main() -> Result<(), Error> {
    let bundled = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/lexicon-qwen3/lexicon-qwen3-Q6_K.gguf");
    let path = std::env::args_os().nth(1).map_or_else(|| bundled.into(), PathBuf::from);
    // The session holds the model: it can be kept in a struct or sent to a thread by itself.
    let session = Model::load(path, &LoadOptions::default())?.session();
    let options = GenerateOptions { max_tokens: Some(100), ..GenerateOptions::default() };
    let mut messages = Vec::new();
    for question in ["What does \"ember\" mean?", "What does \"river\" mean?"] {
        println!("> {question}");
        messages.push(Message::new("user", question));
        let mut stream = session.chat(&messages, &options)?;
        let mut answer = String::new();
        for fragment in &mut stream {
            let text = fragment?.text;
            print!("{text}");
            // A terminal that shows the answer a little later is no reason to stop.
            let _ = std::io::stdout().flush();
            answer += &text;
        }
        let metrics = stream.metrics();
        println!("\n({} of {} prompt tokens were cached)", metrics.cached_tokens, metrics.prompt_tokens);
        messages.push(Message::new("assistant", answer));
    }
    Ok(())
}
