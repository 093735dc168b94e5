//! A whole program: `cargo run --release -p brasa --example quick_start -- MODEL`.

use brasa::{GenerateOptions, LoadOptions, Message, Model};

fn main() -> Result<(), brasa::Error> {
    let path = std::env::args().nth(1).expect("a model: a GGUF file, or a folder");
    let model = Model::load(path, &LoadOptions::default())?;
    let options = GenerateOptions { max_tokens: Some(200), ..GenerateOptions::default() };
    for fragment in model.chat(&[Message::new("user", "What does \"ember\" mean?")], &options)? {
        print!("{}", fragment?.text);
    }
    println!();
    Ok(())
}
