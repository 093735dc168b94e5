//! Loads the finished adapter, or each best one so far, into a running server.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use brasa::FineTuner;
use brasa::train::lora::Lora;
use serde_json::json;

use super::adapter;
use crate::args::TrainArguments;
use crate::commands::remote;
use crate::failure::Failure;
use crate::output;

/// Checks that the server can be reached, before hours of training.
///
/// # Errors
///
/// [`Failure::Usage`] for an invalid URL; [`Failure::Failed`] if the server cannot be reached or refuses the key.
pub fn check(arguments: &TrainArguments) -> Result<(), Failure> {
    match &arguments.server {
        Some(server) => remote::ask(server, "/lora-adapters", None, within(arguments)).map(drop),
        None => Ok(()),
    }
}

/// Loads the adapter at `path` into the server, in place of one of the same name.
///
/// # Errors
///
/// [`Failure::Failed`] with the server's own message. The adapter's files are kept.
pub fn load(arguments: &TrainArguments, path: &Path) -> Result<(), Failure> {
    let Some(server) = &arguments.server else { return Ok(()) };
    output::line(&post(arguments, server, path)?)
}

/// Sends the best adapters so far to the server in the background; the run does not wait.
///
/// A thread loads one adapter after the other. While it waits for the server, a newer adapter replaces one that is still to be
/// loaded.
pub struct Best {
    arguments: TrainArguments,
    paths: Option<Sender<PathBuf>>,
    answers: Receiver<Result<String, String>>,
    /// True once the finished adapter is about to be loaded, so that other loads are unnecessary.
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    /// The last warning, unless a load has succeeded since.
    warned: Option<String>,
}

impl Best {
    /// Starts the thread, if the options ask for loading best adapters.
    pub fn new(arguments: &TrainArguments) -> Option<Self> {
        let server = arguments.server.clone().filter(|_| arguments.serve_best)?;
        let (paths, wanted) = channel::<PathBuf>();
        let (answer, answers) = channel();
        let ends = Arc::new(AtomicBool::new(false));
        let (own, is_over) = (arguments.clone(), Arc::clone(&ends));
        let thread = std::thread::spawn(move || {
            while let Ok(first) = wanted.recv() {
                let path = wanted.try_iter().last().unwrap_or(first);
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                let _ = answer.send(post(&own, &server, &path).map_err(|failure| failure.to_string()));
            }
        });
        let arguments = arguments.clone();
        Some(Self { arguments, paths: Some(paths), answers, ends, thread: Some(thread), warned: None })
    }

    /// Writes the best adapter so far into the folder `best` of the run, and has the server load it in place of the last one.
    /// Returns a warning if the adapter cannot be written.
    pub fn load(&mut self, tuner: &FineTuner, lora: &Lora) -> Option<String> {
        let folder = self.arguments.out.join("best");
        let written = std::fs::create_dir_all(&folder)
            .map_err(|error| Failure::Failed(format!("{}: {error}", folder.display())))
            .and_then(|()| adapter::write(&self.arguments, tuner, lora, &folder));
        match written {
            Ok(path) => {
                let _ = self.paths.as_ref().map(|paths| paths.send(path));
                None
            }
            Err(failure) => self.told(Err(failure.to_string())),
        }
    }

    /// Reports about adapters since the last call, as lines. An absent server never ends a run, and the same mistake is reported
    /// once.
    pub fn answers(&mut self) -> Vec<String> {
        let answers: Vec<_> = self.answers.try_iter().collect();
        answers.into_iter().filter_map(|answer| self.told(answer)).collect()
    }

    /// Waits for the load in progress, as long as a server may take for an adapter. If `is_followed` by the finished adapter, loads
    /// that have not begun are skipped.
    pub fn finish(mut self, is_followed: bool) -> Vec<String> {
        self.ends.store(is_followed, Ordering::Relaxed);
        self.paths = None;
        let _ = self.thread.take().map(JoinHandle::join);
        self.answers()
    }

    fn told(&mut self, answer: Result<String, String>) -> Option<String> {
        let failure = match answer {
            Ok(line) => {
                self.warned = None;
                return Some(line);
            }
            Err(failure) => failure,
        };
        if self.warned.as_ref() == Some(&failure) {
            return None;
        }
        let line = format!("warning: --serve-best: {failure}");
        self.warned = Some(failure);
        Some(line)
    }
}

/// Loads the adapter at `path` under the name of the run; returns a report.
fn post(arguments: &TrainArguments, server: &str, path: &Path) -> Result<String, Failure> {
    let kept = |failure: String| {
        Failure::Failed(format!("{failure}\nhint: the adapter is written in {}", path.display()))
    };
    let absolute = path.canonicalize().map_err(|error| kept(error.to_string()))?;
    let folder = arguments.out.canonicalize().map_err(|error| kept(error.to_string()))?;
    let own =
        || folder.file_name().map_or_else(|| "adapter".into(), |name| name.to_string_lossy().into_owned());
    let name = arguments.serve_as.clone().unwrap_or_else(own);
    let body = json!({"lora_name": name, "lora_path": absolute.to_string_lossy()});
    let asked = Instant::now();
    let answer = remote::ask(server, "/v1/load_lora_adapter", Some(&body), within(arguments));
    let answer = answer.map_err(|failure| match failure {
        Failure::Failed(_) if asked.elapsed() >= within(arguments) => kept(format!(
            "{server}: has not loaded the adapter in {} s, the limit of --serve-within",
            arguments.serve_within
        )),
        Failure::Failed(text) => kept(text),
        other => other,
    })?;
    let model = answer["model"].as_str().unwrap_or(&name);
    Ok(format!("{}: serves it as {model}", server.trim_end_matches('/')))
}

/// Longest time for an answer of the server, so that a hanging server delays newer adapters and the end of a run no longer than
/// this.
fn within(arguments: &TrainArguments) -> Duration {
    Duration::from_secs(arguments.serve_within)
}
