//! The backends of this machine, and texts by one of them:
//! `cargo run -p brasa --example backends -- [--reference] [MODEL [DEVICE [PROMPT]...]]`.
//!
//! A device is a backend's name, such as `cpu` or `mlx_lm`, or `auto`. Each prompt is a message of a chat if the model has a chat
//! template and the prompt begins with `chat:`, otherwise a text to continue. The most probable tokens are taken, at most 48.

use brasa::{Backends, Error, GenerateOptions, LoadOptions, Message, Precision};

fn main() -> Result<(), Error> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let reference = arguments.first().is_some_and(|first| first == "--reference");
    let mut arguments = arguments.drain(usize::from(reference)..);

    let backends = Backends::built_in();
    let Some(path) = arguments.next() else {
        for backend in backends.iter() {
            match backend.available() {
                Ok(description) => println!("{}: {description}", backend.name()),
                Err(unavailable) => println!("{}: not available: {}", backend.name(), unavailable.reason),
            }
        }
        return Ok(());
    };
    let precision = if reference { Precision::Reference } else { Precision::Fast };
    let options = LoadOptions { device: arguments.next(), precision, ..LoadOptions::default() };
    let model = backends.load(path, &options)?;
    println!("{} of {:?} layers", model.model_type(), model.info().num_layers);

    let options = GenerateOptions { max_tokens: Some(48), ..GenerateOptions::default() };
    for prompt in arguments {
        let mut stream = match prompt.strip_prefix("chat:") {
            Some(question) => model.chat(&[Message::new("user", question)], &options)?,
            None => model.generate(&prompt, &options)?,
        };
        let (mut text, mut ids) = (String::new(), Vec::new());
        for fragment in &mut stream {
            let fragment = fragment?;
            text += &fragment.text;
            ids.extend(fragment.token.map(|token| token.id));
        }
        let end = stream.finish_reason().map_or("?", |reason| reason.name());
        println!(
            "> {prompt}\n{text}\nids: {ids:?}, {end}, of {} prompt tokens",
            stream.metrics().prompt_tokens
        );
    }
    model.close();
    Ok(())
}
