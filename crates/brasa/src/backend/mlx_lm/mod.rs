//! MLX-LM as a backend: a Python process that runs the model, and lines of JSON between it and Brasa.

mod model;
mod options;
mod process;
mod protocol;

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::time::Duration;

use brasa_formats::Inspection;
use brasa_models::Source;
use serde_json::{Map, Value};

use self::model::MlxLmModel;
use self::process::Process;
use self::protocol::NAME;
use super::contract::Backend;
use super::error::Unavailable;
use crate::model::DEFAULT_CONTEXT;
use crate::{BackendError, Error, LoadOptions, ModelInfo, TextModel};

/// Time for Python to start and look for the package.
const PROBE_LIMIT: Duration = Duration::from_secs(30);

/// Runs models with the Python package `mlx-lm`, for architectures that Brasa does not know.
///
/// Each loaded model has a Python process of its own, which ends with the model. It generates one text at a time; the native
/// backends do more, and do it faster. What `mlx-lm` cannot honour is refused by name: stop ids and stop strings, penalties,
/// biases, grammars, log-probabilities, lookups and draft models, [`classify`](TextModel::classify),
/// [`batch_generate`](TextModel::batch_generate). Sampling filters apply in [MLX-LM's
/// order](brasa_graph::sampling::SamplingOrder::MLX). A seed draws other tokens than in a native backend.
///
/// Text and chat template go through Hugging Face's tokenizer, which reads special tokens in a user's words as such, and the text
/// comes from `mlx-lm`'s detokenizer, which leaves out a space in front of the text.
///
/// ```no_run
/// use brasa::{Backends, GenerateOptions, LoadOptions, Message, MlxLm};
///
/// let mut backends = Backends::built_in();
/// // In place of the default, which is `python3` or the program that `BRASA_PYTHON` names.
/// backends.register(MlxLm { python: vec!["/opt/mlx/bin/python".into()], ..MlxLm::default() });
/// let options = LoadOptions { device: Some("mlx_lm".into()), ..LoadOptions::default() };
/// let model = backends.load("models/some-mlx-folder", &options)?;
/// for fragment in model.chat(&[Message::new("user", "What is an ember?")], &GenerateOptions::default())? {
///     print!("{}", fragment?.text);
/// }
/// # Ok::<(), brasa::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct MlxLm {
    /// The Python program and its arguments, such as `["uv", "run", "python"]`; by default the program that the environment
    /// variable `BRASA_PYTHON` names, or `python3`.
    pub python: Vec<OsString>,
    /// Time to load a model; by default ten minutes.
    pub load_limit: Duration,
    /// Time between two signs of life while a text is generated: a token, or a chunk of a prompt; by default five minutes. A process
    /// that is silent for longer is killed.
    pub silence_limit: Duration,
}

impl Default for MlxLm {
    fn default() -> Self {
        Self {
            python: vec![std::env::var_os("BRASA_PYTHON").unwrap_or_else(|| "python3".into())],
            load_limit: Duration::from_mins(10),
            silence_limit: Duration::from_mins(5),
        }
    }
}

impl Backend for MlxLm {
    fn name(&self) -> &str {
        NAME
    }

    /// Starts Python to look for the package.
    fn available(&self) -> Result<String, Unavailable> {
        let mut process = self.start()?;
        let found = process.ask("probe", Map::new(), PROBE_LIMIT).map_err(|error| {
            let reason = match error {
                BackendError::Failed { message, .. } => format!("{message}\nhint: pip install mlx-lm"),
                error => error.to_string(),
            };
            Unavailable::new(NAME, reason)
        })?;
        process.quit();
        let version =
            |key: &str| found.get(key).and_then(Value::as_str).unwrap_or("of unknown version").to_owned();
        Ok(format!("mlx-lm {} on Python {}", version("mlx_lm"), version("python")))
    }

    /// Loads a folder with `config.json`, `tokenizer.json` and safetensors. Nothing is downloaded.
    fn load(&self, path: &Path, options: &LoadOptions) -> Result<Box<dyn TextModel>, Error> {
        options::check_load(options)?;
        if options.context == Some(0) {
            return Err(Error::Options("the context must be at least 1".into()));
        }
        let file = |error| Error::File { path: path.to_owned(), error };
        let folder = path.canonicalize().map_err(file)?;
        let unsupported =
            |what: &str, hint| BackendError::Unsupported { backend: NAME, what: what.into(), hint };
        if !folder.is_dir() {
            let hint = "give the folder of a Hugging Face or MLX checkpoint, or choose a native backend: `cpu` or `cuda`";
            return Err(unsupported(&format!("{}: it is no folder", path.display()), hint).into());
        }
        let Some(name) = folder.to_str() else {
            return Err(unsupported("a path that is not Unicode", "rename the folder").into());
        };
        let info = ModelInfo::of(&Source::inspected(&Inspection::open(&folder)?)?);
        let mut process = self.start().map_err(BackendError::from)?;
        let request = Map::from_iter([("path".to_owned(), name.into())]);
        process.ask("load", request, self.load_limit)?;
        let told = process.ask("info", Map::new(), self.silence_limit)?;
        let info = complete(info, &told);
        let own = info.context_length.unwrap_or(DEFAULT_CONTEXT);
        let context = options.context.unwrap_or(own.min(DEFAULT_CONTEXT));
        Ok(Box::new(MlxLmModel::new(process, info, context, self.silence_limit)))
    }
}

impl MlxLm {
    fn start(&self) -> Result<Process, Unavailable> {
        Process::start(&self.python).map_err(|error| {
            let program = self.python.first().map_or("".into(), |program| program.to_string_lossy());
            let reason = match error.kind() {
                io::ErrorKind::NotFound => format!(
                    "there is no program `{program}`\nhint: install Python, or name it with the environment variable BRASA_PYTHON"
                ),
                _ => format!("`{program}`: {error}"),
            };
            Unavailable::new(NAME, reason)
        })
    }
}

/// The facts about a model from its files. Facts whose keys are unknown come from the process.
fn complete(info: ModelInfo, told: &Map<String, Value>) -> ModelInfo {
    let number =
        |key: &str| told.get(key).and_then(Value::as_u64).and_then(|number| usize::try_from(number).ok());
    ModelInfo {
        vocab_size: info.vocab_size.or_else(|| number("vocab_size")),
        num_layers: info.num_layers.or_else(|| number("layers")),
        hidden_size: info.hidden_size.or_else(|| number("hidden_size")),
        ..info
    }
}
