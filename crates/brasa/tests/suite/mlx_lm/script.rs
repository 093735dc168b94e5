//! The script that mlx-lm runs in, with `tests/mlx_lm` in place of the package: its model continues each token by the next byte of
//! `prompt` turned around.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use brasa::engine::EngineError;
use brasa::sampling::SamplingOrder;
use brasa::{Backend, Error, FinishReason, GenerateOptions, LoadOptions, Message, MlxLm, SamplingParams};
use brasa_golden::folder;

use super::{failed, read, try_load};

/// A Python that sees the stand-in; `None` without Python.
fn python() -> Option<MlxLm> {
    let program = std::env::var_os("BRASA_PYTHON").unwrap_or_else(|| "python3".into());
    if Command::new(&program).args(["-c", ""]).output().is_err() {
        println!("skipped: there is no Python");
        return None;
    }
    let packages = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mlx_lm");
    let mut variable = OsString::from("PYTHONPATH=");
    variable.push(packages);
    Some(MlxLm { python: vec!["env".into(), variable, program], ..MlxLm::default() })
}

fn tokens(count: usize) -> GenerateOptions {
    GenerateOptions { max_tokens: Some(count), ..GenerateOptions::default() }
}

#[test]
fn serves_what_the_package_makes() {
    let Some(backend) = python() else { return };
    assert!(backend.available().unwrap().starts_with("mlx-lm "));
    let model = try_load(&backend).unwrap();
    let mut stream = model.generate("Stone", &GenerateOptions::default()).unwrap();
    // Text that the package prints does not get among the replies.
    assert_eq!(read(&mut *stream), ("enotS".into(), None));
    assert_eq!(stream.finish_reason(), Some(FinishReason::End));
    assert_eq!((stream.metrics().prompt_tokens, stream.metrics().generated_tokens), (5, 5));

    let mut stream = model.generate("Stone", &tokens(2)).unwrap();
    assert_eq!(read(&mut *stream), ("en".into(), None));
    assert_eq!(stream.finish_reason(), Some(FinishReason::Length));
    let mut none = model.generate("Stone", &tokens(0)).unwrap();
    assert_eq!(read(&mut *none), (String::new(), None));
    assert_eq!(none.finish_reason(), Some(FinishReason::Length));

    let messages = [Message::new("user", "hi"), Message::new("assistant", "ho")];
    assert_eq!(model.chat(&messages, &tokens(100)).unwrap().into_text().unwrap(), ">oh:tnatsissa<>ih:resu<");
    // The stand-in shows what it was called with.
    let sampling = SamplingParams {
        temperature: 0.5,
        top_k: 7,
        top_p: 0.25,
        min_p: 0.125,
        seed: u64::MAX,
        order: SamplingOrder::MLX,
        ..SamplingParams::default()
    };
    let options = GenerateOptions { sampling, ..tokens(100) };
    let shown = model.generate("!show", &options).unwrap().into_text().unwrap();
    assert_eq!(shown, "temp=0.5 top_p=0.25 min_p=0.125 top_k=7 seed=18446744073709551615 max_tokens=100");
    model.close();
}

#[test]
fn carries_any_text() {
    let Some(backend) = python() else { return };
    let options = LoadOptions { context: Some(400_100), ..LoadOptions::default() };
    let model = backend.load(&folder("tiny-qwen2"), &options).unwrap();
    assert_eq!(model.generate("🔥 ßä\n\"", &tokens(90)).unwrap().into_text().unwrap(), "\"\näß 🔥");
    // Half a character, as a broken tokenizer might make it.
    assert_eq!(model.generate("!half", &tokens(90)).unwrap().into_text().unwrap(), "?");
    let long = "ab".repeat(200_000);
    assert_eq!(model.generate(&long, &tokens(3)).unwrap().into_text().unwrap(), "bab");
}

#[test]
fn goes_on_after_errors_and_cancellations() {
    let Some(backend) = python() else { return };
    // A text that no context ends.
    let options = LoadOptions { context: Some(1 << 30), ..LoadOptions::default() };
    let model = backend.load(&folder("tiny-qwen2"), &options).unwrap();
    let mut stream = model.generate("!fail", &tokens(90)).unwrap();
    assert_eq!(read(&mut *stream), ("a".into(), Some(failed("RuntimeError: half of it"))));
    // It never ends by itself.
    let mut stream = model.generate("!endless", &GenerateOptions::default()).unwrap();
    assert_eq!(stream.next().unwrap().unwrap().text, "a");
    stream.cancel();
    assert_eq!(read(&mut *stream).1, None);
    assert_eq!(stream.finish_reason(), Some(FinishReason::Cancelled));
    drop(stream);
    // Dropped while tokens come, and while the prompt is computed.
    let mut stream = model.generate("!endless", &GenerateOptions::default()).unwrap();
    assert_eq!(stream.next().unwrap().unwrap().text, "a");
    drop(stream);
    drop(model.generate("!prefill", &GenerateOptions::default()).unwrap());
    assert_eq!(model.generate("Stone", &tokens(90)).unwrap().into_text().unwrap(), "enotS");
    let endless = model.generate("!endless", &GenerateOptions::default()).unwrap();
    model.close();
    let error = endless.last();
    assert!(matches!(error, Some(Err(Error::Engine(EngineError::Closed)))), "{error:?}");
}

#[test]
fn keeps_the_context() {
    let Some(backend) = python() else { return };
    let options = LoadOptions { context: Some(8), ..LoadOptions::default() };
    let model = backend.load(&folder("tiny-qwen2"), &options).unwrap();
    let end = |prompt: &str, options: &GenerateOptions| {
        let mut stream = model.generate(prompt, options).unwrap();
        let (mut text, mut error) = (String::new(), None);
        for fragment in &mut stream {
            match fragment {
                Ok(fragment) => text += &fragment.text,
                Err(Error::Engine(found)) => error = Some(found),
                Err(other) => panic!("{other}"),
            }
        }
        (text, error, stream.finish_reason())
    };
    // The last token that is drawn needs no place.
    let full = EngineError::ContextFull { context: 8 };
    assert_eq!(end("abcde", &GenerateOptions::default()), ("edcb".into(), Some(full.clone()), None));
    assert_eq!(end("abcde", &tokens(4)), ("edcb".into(), None, Some(FinishReason::Length)));
    assert_eq!(end("abcdefgh", &GenerateOptions::default()), ("h".into(), Some(full), None));
    let long = EngineError::PromptTooLong { tokens: 9, context: 8 };
    assert_eq!(end("abcdefghi", &GenerateOptions::default()), (String::new(), Some(long), None));
    let empty = Some(EngineError::EmptyPrompt);
    assert_eq!(end("", &GenerateOptions::default()), (String::new(), empty, None));
    assert_eq!(end("ab", &GenerateOptions::default()), ("ba".into(), None, Some(FinishReason::End)));
}

#[test]
fn says_why_a_model_cannot_be_loaded() {
    let Some(mut backend) = python() else { return };
    backend.python.insert(1, "BRASA_STAND_IN_FAILS=1".into());
    let error = try_load(&backend).err().unwrap().to_string();
    assert_eq!(error, "mlx_lm: ValueError: Model type qwen2 not supported.");
}
