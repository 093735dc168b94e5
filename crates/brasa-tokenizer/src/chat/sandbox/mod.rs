//! Runs chat templates on a thread with limits. A template comes with the model file, so it is untrusted code.
//!
//! minijinja bounds the number of instructions and of nested calls, and nothing else. Without further limits, a template of a
//! hundred bytes takes all memory (`s = s + s`), never ends (`[d, d]` nested forty times and printed), or overflows the stack and
//! with it the process (`not not …`, lists in lists). Here
//!
//! - nesting of the source is refused before parsing ([`source`]);
//! - the parsed tree is rebuilt with operators that pay for what they do from a [`budget`] of bytes built, bytes read
//!   and time ([`guard`], [`operations`]), and filters, tests and methods pay too ([`filters`], [`text`]);
//! - lists and maps know the cost of a walk over them and are at most so deep ([`values`]), so walks are paid for
//!   before they begin, and recursion is bounded;
//! - texts that come from messages keep the [marks](super::marks) of their characters, which every operation treats as the
//!   replaced characters ([`data`]);
//! - all of it happens on a thread of the template's own, with a stack that holds the deepest recursion that is left; a panic
//!   ends one rendering, and a rendering that does not answer is abandoned.
//!
//! The alternatives were a new evaluator, which would repeat two thousand lines of filters, and a process of its own, which a
//! library cannot have. minijinja gives access to its tree and its code generator (`unstable_machinery`); rebuilding the tree
//! keeps its parser, its instructions and its filters.
//!
//! The limits: [`budget::MEMORY_BYTES`] built, [`budget::WORK`] read, [`budget::OUTPUT_BYTES`] written,
//! [`budget::TIME`], [`FUEL`] instructions, [`RECURSION`] levels of calls and blocks, [`values::DEEPEST`] levels of values,
//! [`source::LARGEST_BYTES`] of source. A conversation of a thousand messages of 10 kB with tools of 100 kB fits (a test).

mod budget;
mod data;
mod filters;
mod guard;
mod operations;
mod slice;
mod source;
mod text;
mod values;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use minijinja::machinery::{CodeGenerator, Instructions, make_string_output, parse};
use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value};

use super::generation;
use super::marks::Marks;
use super::python;
use super::time::CivilTime;
use crate::{Result, TokenizerError};
use brasa_fault::without_panic;

pub use budget::memory;
pub use data::marks;
pub use values::{Digits, pay_for_printing};

/// Most instructions of one rendering. A conversation of a thousand turns with tools needs a hundredth of it.
const FUEL: u64 = 20_000_000;
/// Most levels of calls and blocks.
const RECURSION: usize = 200;
/// Bytes of the thread's stack. Only the used part takes memory; without optimisation the deepest template uses a tenth.
const STACK_BYTES: usize = 64 << 20;
/// Time beyond the budget for which a caller waits, for a rendering that is stuck between two payments.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most characters of an error message from a template.
const LONGEST_MESSAGE: usize = 2000;
const NAME: &str = "chat_template";

thread_local! {
    static MOMENT: Cell<Option<CivilTime>> = const { Cell::new(None) };
}

/// A compiled template on a thread of its own.
#[derive(Debug)]
pub struct Sandbox {
    jobs: Mutex<Sender<Job>>,
}

struct Job {
    variables: Value,
    moment: Option<CivilTime>,
    marks: Marks,
    answer: Sender<Result<String>>,
}

impl Sandbox {
    /// Compiles a template.
    pub fn new(source: String) -> Result<Self> {
        let (jobs, receiver) = channel();
        let (ready, compiled) = channel();
        std::thread::Builder::new()
            .name("chat template".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                let failed = ready.clone();
                let run = || compile_and_serve(&source, &receiver, &ready);
                if let Err(panic) = without_panic(run) {
                    let _ =
                        failed.send(Err(TokenizerError::Template { reason: format!("compiling: {panic}") }));
                }
            })
            .map_err(|error| TokenizerError::Template { reason: format!("no thread for it: {error}") })?;
        wait(&compiled)?;
        Ok(Self { jobs: Mutex::new(jobs) })
    }

    /// Renders the template. `strftime_now` uses `moment`, `None` the present. Texts in `variables` may have `marks`, which the
    /// template sees as the characters that they replace.
    pub fn render(&self, variables: Value, moment: Option<CivilTime>, marks: Marks) -> Result<String> {
        let (answer, answered) = channel();
        let job = Job { variables, moment, marks, answer };
        // If the thread is gone, so is the other end of `answered`.
        let _ = self.jobs.lock().unwrap_or_else(PoisonError::into_inner).send(job);
        wait(&answered)
    }
}

fn wait<T>(answered: &Receiver<Result<T>>) -> Result<T> {
    answered.recv_timeout(budget::TIME + PATIENCE).unwrap_or_else(|error| {
        Err(match error {
            RecvTimeoutError::Timeout => TokenizerError::TemplateLimit { limit: "time" },
            RecvTimeoutError::Disconnected => {
                TokenizerError::Template { reason: "its thread has ended".to_owned() }
            }
        })
    })
}

type Blocks<'a> = BTreeMap<&'a str, Instructions<'a>>;

/// The main function of the thread: compiles the template, reports the result, and renders until all senders are dropped.
fn compile_and_serve(source: &str, jobs: &Receiver<Job>, ready: &Sender<Result<()>>) {
    budget::begin();
    let compiled = environment().and_then(|environment| Ok((environment, syntax()?)));
    let (environment, syntax) = match compiled {
        Ok(both) => both,
        Err(error) => return drop(ready.send(Err(failure(&error)))),
    };
    if let Err(error) = source::check(source, syntax.clone()) {
        return drop(ready.send(Err(error)));
    }
    let (instructions, blocks) = match compile(source, syntax) {
        Ok(compiled) => compiled,
        Err(error) => return drop(ready.send(Err(failure(&error)))),
    };
    let _ = ready.send(Ok(()));
    while let Ok(Job { variables, moment, marks, answer }) = jobs.recv() {
        MOMENT.set(moment);
        budget::begin();
        data::begin(marks);
        let rendered = without_panic(|| render(&environment, &instructions, &blocks, variables));
        let rendered = match rendered {
            Ok(rendered) => rendered.map_err(|error| failure(&error)),
            Err(panic) => Err(TokenizerError::Template { reason: panic }),
        };
        let _ = answer.send(rendered);
    }
}

fn compile(source: &str, syntax: SyntaxConfig) -> std::result::Result<(Instructions<'_>, Blocks<'_>), Error> {
    let tree = guard::guarded(&parse(source, NAME, syntax)?)?;
    let mut generator = CodeGenerator::new(NAME, source);
    generator.compile_stmt(&tree);
    Ok(generator.finish())
}

fn render<'a>(
    environment: &'a Environment<'a>,
    instructions: &Instructions<'a>,
    blocks: &Blocks<'a>,
    variables: Value,
) -> std::result::Result<String, Error> {
    let mut out = String::new();
    let root = values::own(variables)?;
    minijinja::machinery::eval(
        environment,
        instructions,
        root,
        blocks,
        &mut make_string_output(&mut out),
        AutoEscape::None,
    )?;
    if out.len() as u64 > budget::OUTPUT_BYTES {
        return Err(budget::exceeded("length of text"));
    }
    Ok(out)
}

fn syntax() -> std::result::Result<SyntaxConfig, Error> {
    SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()
}

/// The template language of transformers: Jinja with loop controls, Python's methods and a few functions.
fn environment() -> std::result::Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(syntax()?);
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(RECURSION);
    environment.set_formatter(|out, _, value| {
        if let Some(text) = value.as_str() {
            memory(text.len() as u64)?;
            return Ok(out.write_str(text)?);
        }
        Ok(out.write_str(&python::str(value)?)?)
    });
    environment.set_unknown_method_callback(text::method);
    filters::add_to(&mut environment);
    operations::add_to(&mut environment);
    operations::add_functions_to(&mut environment);
    environment.add_filter(generation::MARKS, |text: &str| {
        memory(text.len() as u64)?;
        Ok::<_, Error>(format!("{}{text}{}", generation::START, generation::END))
    });
    environment.add_function("raise_exception", |message: &Value| -> std::result::Result<Value, Error> {
        Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("{RAISED}{}", data::plain(&python::str(message)?)?),
        ))
    });
    environment.add_function("strftime_now", |pattern: &str| {
        memory(64 * pattern.len() as u64)?;
        Ok::<_, Error>(MOMENT.get().unwrap_or_else(CivilTime::now).format(pattern))
    });
    Ok(environment)
}

/// Marks error messages that templates raise, among the engine's own.
const RAISED: &str = "\u{1}";

fn failure(error: &Error) -> TokenizerError {
    let detail = error.detail().unwrap_or_default();
    let short = |text: &str| -> String {
        let text = data::marks().plain(text);
        let cut = text.char_indices().nth(LONGEST_MESSAGE).map_or(text.len(), |(at, _)| at);
        text[..cut].to_owned() + if cut < text.len() { "…" } else { "" }
    };
    if let Some(limit) = budget::limit_of(error) {
        return TokenizerError::TemplateLimit { limit };
    }
    if let Some(raised) = detail.strip_prefix(RAISED) {
        return TokenizerError::Template { reason: short(raised) };
    }
    match error.kind() {
        ErrorKind::OutOfFuel => TokenizerError::TemplateLimit { limit: "number of steps" },
        _ if detail.contains("recursion limit") => TokenizerError::TemplateLimit { limit: "depth of calls" },
        kind => {
            let line = error.line().map(|line| format!(" (line {line})")).unwrap_or_default();
            let detail = if detail.is_empty() { kind.to_string() } else { format!("{kind}: {detail}") };
            TokenizerError::Template { reason: short(&detail) + &line }
        }
    }
}
