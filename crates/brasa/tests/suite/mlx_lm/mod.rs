//! The `mlx_lm` backend against children that are shell scripts, and its Python script against a stand-in for the package.

mod bad_children;
mod commands;
mod ends;
mod refused;
mod script;

use std::ffi::OsString;
use std::path::PathBuf;

use brasa::{
    Backend, BackendError, Error, Fragment, GenerateOptions, LoadOptions, MlxLm, TextModel, TextStream, Token,
};
use brasa_golden::folder;

/// Beginning of every scripted child: `expect TEXT...` reads a request that has these texts in it, `say LINE` replies, `load` plays
/// the loading of a model, requests 1 and 2. The child is called with `-c SCRIPT`, which it passes over.
const PRELUDE: &str = r#"
say() { printf '%s\n' "$1"; }
expect() {
    IFS= read -r line
    for text; do
        case "$line" in *"$text"*) ;; *) echo "expected $text, found $line" >&2; exit 9 ;; esac
    done
}
load() {
    expect '"id":1,"command":"load","path":"/'
    say '{"id":1,"ok":true,"model_type":"qwen2","vocab_size":1}'
    expect '"id":2,"command":"info"'
    say '{"id":2,"ok":true,"model_type":"qwen2","vocab_size":1,"layers":2,"hidden_size":3}'
}
"#;

fn child(script: &str) -> MlxLm {
    let python = ["sh", "-c", &format!("{PRELUDE}{script}")].map(OsString::from).to_vec();
    MlxLm { python, ..MlxLm::default() }
}

fn try_load(backend: &MlxLm) -> Result<Box<dyn TextModel>, Error> {
    backend.load(&folder("tiny-qwen2"), &LoadOptions::default())
}

/// A model whose child behaves as `script` says once it is loaded.
fn model(script: &str) -> Box<dyn TextModel> {
    try_load(&child(&format!("load\n{script}"))).unwrap()
}

fn start(model: &dyn TextModel) -> Box<dyn TextStream> {
    model.generate("x", &GenerateOptions::default()).unwrap()
}

/// The whole of a stream: its text, and the error that ended it.
fn read(stream: &mut dyn TextStream) -> (String, Option<BackendError>) {
    let mut text = String::new();
    for fragment in stream {
        match fragment {
            Ok(fragment) => text += &fragment.text,
            Err(Error::Backend(error)) => return (text, Some(error)),
            Err(error) => panic!("{error}"),
        }
    }
    (text, None)
}

fn failed(message: &str) -> BackendError {
    BackendError::Failed { backend: "mlx_lm", message: message.into() }
}

fn fragment(text: &str, id: Option<u32>) -> Fragment {
    let token = id.map(|id| Token { id, ..Token::default() });
    Fragment { text: text.into(), token }
}

/// A file of its own that no test has made.
fn fresh_file(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("brasa-mlx-lm-{}-{name}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    path
}
