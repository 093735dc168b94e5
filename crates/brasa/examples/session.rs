//! Conversations that compute each of their tokens once: `cargo run -p brasa --example session -- [MODEL]`.
//!
//! A conversation, a warm prompt, a step back, a file, and a bundle of files.

use std::io::Write;
use std::path::{Path, PathBuf};

use brasa::{Error, GenerateOptions, LoadOptions, Message, Model, Session, StateBundle};

fn main() -> Result<(), Error> {
    let bundled = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/lexicon-qwen3/lexicon-qwen3-Q6_K.gguf");
    let path = std::env::args_os().nth(1).map_or_else(|| bundled.into(), PathBuf::from);
    let model = Model::load(path, &LoadOptions::default())?;
    let options = GenerateOptions { max_tokens: Some(100), ..GenerateOptions::default() };
    let folder = std::env::temp_dir().join(format!("brasa-example-{}", std::process::id()));
    std::fs::create_dir_all(&folder).map_err(|error| Error::File { path: folder.clone(), error })?;

    // The session holds the model: it can be kept in a struct or sent to a thread by itself.
    let session = model.session();
    let messages = converse(&session, &options)?;
    warm_and_roll_back(&model, &options)?;
    save_and_load(&session, &messages, &options, &folder.join("talk.session"))?;
    bundle(&model, &options, &folder.join("talks.json"))?;
    // What cannot be removed is left to the system.
    let _ = std::fs::remove_dir_all(folder);
    Ok(())
}

/// Two questions; of the second request only what is new is computed.
fn converse(session: &Session, options: &GenerateOptions) -> Result<Vec<Message>, Error> {
    let mut messages = Vec::new();
    for question in ["What does \"ember\" mean?", "What does \"river\" mean?"] {
        println!("> {question}");
        messages.push(Message::new("user", question));
        let mut stream = session.chat(&messages, options)?;
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
    Ok(messages)
}

/// Computes the beginning that all requests share before the first of them comes, and rolls the session back to it.
fn warm_and_roll_back(model: &Model, options: &GenerateOptions) -> Result<(), Error> {
    let mut session = model.session();
    let system = Message::new("system", "You are a dictionary. Answer with a definition, in one sentence.");
    let prompt = model.chat_prompt(&[system.clone(), Message::new("user", "What does \"stone\" mean?")])?;
    let warmed = session.warm_prompt(prompt.clone(), &options.request)?;
    let mut stream = session.generate_ids(prompt.clone(), options)?;
    stream.by_ref().try_for_each(|fragment| fragment.map(drop))?;
    println!("warm: {} of {} tokens cached", stream.metrics().cached_tokens, warmed.prompt_tokens);
    println!("{} tokens, rolled back to {}", session.tokens()?.len(), session.rollback(prompt.len())?);
    session.reset();
    assert!(session.tokens()?.is_empty());
    Ok(())
}

/// A conversation in a file, which another process could read.
fn save_and_load(
    session: &Session,
    messages: &[Message],
    options: &GenerateOptions,
    path: &Path,
) -> Result<(), Error> {
    let saved = session.save(path)?;
    let loaded = session.model().load_session(path)?;
    println!("saved {} tokens in {} bytes, loaded {}", saved.tokens, saved.bytes, loaded.tokens()?.len());
    let messages = [messages, &[Message::new("user", "What does \"stone\" mean?")]].concat();
    // The text that goes on is the one that would have gone on without the file.
    let resumed = loaded.chat(&messages, options)?.into_text()?;
    assert_eq!(resumed, session.chat(&messages, options)?.into_text()?);
    println!("{resumed}");
    Ok(())
}

/// Several conversations, kept together under names.
fn bundle(model: &Model, options: &GenerateOptions, path: &Path) -> Result<(), Error> {
    let mut bundle = StateBundle::new(model);
    for (name, word) in [("ada", "ember"), ("grace", "river")] {
        let question = [Message::new("user", format!("What does {word:?} mean?"))];
        bundle.session(name).chat(&question, options)?.into_text()?;
    }
    let saved = bundle.save(path)?;
    let loaded = StateBundle::load(model, path)?;
    println!("a bundle of {:?}: {} bytes", loaded.sessions.keys().collect::<Vec<_>>(), saved.bytes);
    Ok(())
}
