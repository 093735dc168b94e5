//! Several answers at once, read by one thread that never waits: `cargo run -p brasa --example streams -- [MODEL]`.
//!
//! All streams share each pass over the weights, so together they take little longer than one alone.

use std::path::PathBuf;
use std::task::Poll;
use std::time::{Duration, Instant};

use brasa::{Error, GenerateOptions, LoadOptions, Message, Model, RequestOptions};

const QUESTIONS: [&str; 3] =
    ["What does \"ember\" mean?", "What does \"river\" mean?", "What does \"stone\" mean?"];

fn main() -> Result<(), Error> {
    let bundled = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/lexicon-qwen3/lexicon-qwen3-Q6_K.gguf");
    let path = std::env::args_os().nth(1).map_or_else(|| bundled.into(), PathBuf::from);
    let model = Model::load(path, &LoadOptions::default())?;

    // What the model's makers recommend; without this line the most probable tokens are taken.
    let mut options = GenerateOptions { max_tokens: Some(100), ..GenerateOptions::default() };
    model.recommended_sampling().apply(&mut options.sampling);

    let streams = QUESTIONS.map(|question| model.chat(&[Message::new("user", question)], &options));
    let mut streams: Vec<_> = streams.into_iter().collect::<Result<_, _>>()?;
    let mut answers = QUESTIONS.map(|question| format!("{question}\n"));
    let mut running = streams.len();
    while running > 0 {
        let mut idle = true;
        for (stream, answer) in streams.iter_mut().zip(&mut answers) {
            if stream.finish_reason().is_some() {
                continue;
            }
            match stream.try_next() {
                Poll::Ready(Some(fragment)) => *answer += &fragment?.text,
                Poll::Ready(None) => running -= 1,
                Poll::Pending => continue,
            }
            idle = false;
        }
        if idle {
            // A program with other work does it here; one with an executor uses `poll_next` and is woken.
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    println!("{}\n", answers.join("\n\n"));
    cancel(&model)
}

/// Two ways to end a request early: a handle that cancels it from anywhere, and a deadline. Dropping a stream cancels it too.
fn cancel(model: &Model) -> Result<(), Error> {
    let deadline = Some(Instant::now() + Duration::from_secs(10));
    let request = RequestOptions { deadline, ..RequestOptions::default() };
    let options = GenerateOptions { ignore_eos: true, request, ..GenerateOptions::default() };
    let mut stream = model.chat(&[Message::new("user", QUESTIONS[0])], &options)?;
    let canceller = stream.canceller();
    for (index, fragment) in stream.by_ref().enumerate() {
        // Fragments that were made before the engine heard of it are still given.
        fragment?;
        if index == 3 {
            canceller.cancel();
        }
    }
    println!("ended: {}", stream.finish_reason().map_or("?", |reason| reason.name()));
    Ok(())
}
