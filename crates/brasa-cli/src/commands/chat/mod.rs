//! The loop of a chat: reads messages and commands, and prints answers. No mistake of typing loses the conversation.
//!
//! A [`Reader`](read::Reader) gives messages and commands, a [`Conversation`](conversation::Conversation) keeps the messages and
//! fits them into the context, [`answer`] shows the answer while it is made.

mod answer;
mod command;
mod conversation;
mod editor;
mod history;
mod line;
mod names;
mod paths;
mod read;
mod running;
mod saved;
mod settings;

use brasa::tokenizer::ChatOptions;
use brasa::{ContextPolicy, GenerateOptions, Message, Model};

use self::command::Next;
use self::conversation::{Conversation, WhenFull};
use self::line::Line;
use self::read::Reader;
use self::running::Chat;
use crate::args::RunArguments;
use crate::failure::Failure;
use crate::paint::Paint;
use crate::prompt_cache::PromptCache;
use crate::{bundled, output};

/// Chats until the user leaves or the input ends. `question` is answered first.
///
/// # Errors
///
/// [`Failure::OutputClosed`]; [`Failure::Failed`] if the terminal fails, or if the input is no terminal and an answer fails.
pub fn chat(
    model: &Model,
    messages: Vec<Message>,
    question: Option<String>,
    template: &ChatOptions<'_>,
    options: &GenerateOptions,
    arguments: &RunArguments,
) -> Result<(), Failure> {
    let mut options = options.clone();
    let when_full = match arguments.sampling.context_policy {
        None => {
            options.context_policy = ContextPolicy::Stop;
            WhenFull::DropOldest
        }
        Some(crate::args::PolicyName::Slide) => WhenFull::DropOldest,
        Some(_) => WhenFull::Refuse,
    };
    let paint = Paint::of_output();
    let mut reader = Reader::new(paint)?;
    let (session, file) = match PromptCache::open(model, &arguments.prompt_cache)? {
        Some(cache) => cache.into_parts(),
        None => (model.session(), None),
    };
    let mut chat = Chat {
        model,
        session,
        conversation: Conversation::new(messages),
        template,
        options,
        when_full,
        paint,
        verbose: arguments.load.verbose,
        stats: None,
    };
    if reader.is_at_terminal() {
        output::line(&format!("{} – /help lists commands, Ctrl-D leaves", arguments.load.source.name()))?;
        if arguments.load.source.model.is_none() {
            output::line(&format!("Ask for words, e.g. {}", bundled::QUESTION))?;
        }
    }
    let mut failed = false;
    if let Some(question) = question {
        if reader.is_at_terminal() {
            output::line(&format!("> {question}"))?;
        }
        failed |= !shown(chat.ask(question))?;
    }
    let mut wants_to_leave = false;
    loop {
        let line = reader.message()?;
        let wanted_to_leave = std::mem::replace(&mut wants_to_leave, matches!(line, Line::Interrupted));
        match line {
            Line::Text(text) => match chat.take_all(&text) {
                Ok(Next::Stay) => {}
                Ok(Next::Leave) => break,
                Err(failure) => failed |= !shown(Err(failure))?,
            },
            Line::Abandoned => {}
            Line::Interrupted if wanted_to_leave => break,
            Line::Interrupted => output::note("(Ctrl-C again, Ctrl-D or /exit leaves)"),
            Line::End => break,
        }
    }
    PromptCache::keep_all(&chat.session, file.as_ref())?;
    // Somebody at a terminal has seen every error; a script sees the exit code.
    if failed && !reader.is_at_terminal() {
        return Err(Failure::Failed("not every message was answered".into()));
    }
    Ok(())
}

/// Prints a failure after which the chat goes on; returns false if there was one.
fn shown(result: Result<(), Failure>) -> Result<bool, Failure> {
    match result {
        Ok(()) => Ok(true),
        Err(failure @ (Failure::Failed(_) | Failure::Usage(_))) => {
            output::note(&format!("error: {failure}"));
            Ok(false)
        }
        Err(failure) => Err(failure),
    }
}

impl Chat<'_> {
    /// Processes the entered text. Leading lines with commands are run one after the other; the rest is one message.
    fn take_all(&mut self, text: &str) -> Result<Next, Failure> {
        let mut rest = text;
        while let Some((line, behind)) = rest.split_once('\n') {
            if !names::is_known(line) {
                break;
            }
            if self.obey(line)? == Next::Leave {
                return Ok(Next::Leave);
            }
            rest = behind;
        }
        if rest.trim().is_empty() {
            return Ok(Next::Stay);
        }
        if rest.starts_with("//") {
            rest = &rest[1..];
        } else if rest.starts_with('/') && (names::is_known(rest) || !rest.contains('\n')) {
            return self.obey(rest);
        }
        self.ask(rest.to_owned()).map(|()| Next::Stay)
    }
}
