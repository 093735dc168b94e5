//! `brasa run`: one answer, or a chat.

use std::io::IsTerminal;
use std::path::Path;

use brasa::tokenizer::{ChatOptions, ChatTemplate};
use brasa::{AnswerForm, GenerateOptions, Message, Model, Turn, TurnOptions};
use serde_json::json;

use super::chat;
use super::generate::{Shown, answer};
use super::prompt::prompt_text;
use super::remote::{self, Question};
use crate::args::{PromptArguments, RunArguments, Switch};
use crate::failure::Failure;
use crate::paint::Paint;
use crate::painted::PaintedAnswer;
use crate::prompt_cache::PromptCache;
use crate::{bundled, input, load, output, sampling};

/// Answers the prompt; chats if there is none.
pub fn run(arguments: &RunArguments) -> Result<(), Failure> {
    let prompt = prompt_text(&arguments.prompt)?;
    let at_terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    let asks_itself = prompt.is_none();
    let question = match prompt {
        Some(text) => text,
        None if arguments.remote.server.is_some() => {
            return Err(Failure::Usage(
                "nothing to ask the server\nhint: give a prompt (-p, -f, or standard input)".into(),
            ));
        }
        None if at_terminal && !arguments.json => return converse(arguments, None),
        // Without a terminal and a prompt, the built-in model answers a question of its own.
        None if arguments.load.source.model.is_none() => bundled::QUESTION.to_owned(),
        None => {
            return Err(Failure::Usage(
                "nothing to answer\nhint: give a prompt (-p, -f, or standard input), or run at a terminal to chat".into(),
            ));
        }
    };
    if arguments.remote.server.is_some() {
        return ask(arguments, &question);
    }
    let Prepared { model, mut options, template, mut messages } = prepare(arguments)?;
    if asks_itself && !arguments.json {
        output::line(&format!("> {question}"))?;
    }
    messages.push(Message::new("user", question));
    let form = options.mask.take().map_or(AnswerForm::Free, AnswerForm::Mask);
    let asked = TurnOptions { template, form, ..TurnOptions::default() };
    let Turn { prompt: ids, mask, thoughts, .. } = model.turn(&messages, &asked)?;
    options.mask = mask;
    let cache = PromptCache::open(&model, &arguments.prompt_cache)?;
    let mut stream = match &cache {
        Some(cache) => cache.session().generate_ids(ids.clone(), &options)?,
        None => model.generate_ids(ids.clone(), &options)?,
    };
    let shown = if arguments.json {
        Shown::Object
    } else {
        Shown::Text(PaintedAnswer::new(Paint::of_output(), thoughts))
    };
    let answered = answer(&model, &mut stream, &ids, shown, arguments.load.verbose, &options);
    // An answer that was broken off leaves its prompt.
    drop(stream);
    let kept = cache.map_or(Ok(()), |cache| cache.keep(&ids, &options));
    answered.and(kept)
}

/// Sends the question to a server.
fn ask(arguments: &RunArguments, question: &str) -> Result<(), Failure> {
    let system = system_prompt(arguments)?.map(|text| json!({"role": "system", "content": text}));
    let messages = system.into_iter().chain([json!({"role": "user", "content": question})]).collect();
    let thinking = arguments.reasoning.map(|switch| switch == Switch::On);
    let model = arguments.load.source.model.as_deref().and_then(Path::to_str);
    let (json, verbose) = (arguments.json, arguments.load.verbose);
    let question = Question::Chat { messages, thinking };
    remote::answer(&arguments.remote, model, question, &arguments.sampling, json, verbose)
}

/// Chats, at a terminal or line by line through a pipe.
pub fn chat(arguments: &RunArguments) -> Result<(), Failure> {
    if arguments.json {
        return Err(Failure::Usage("--json is for one answer (`brasa run -p`), not for a chat".into()));
    }
    if arguments.remote.server.is_some() {
        return Err(Failure::Usage("--server is for one answer (`brasa run -p`), not for a chat".into()));
    }
    let PromptArguments { prompt, file, .. } = &arguments.prompt;
    let question = if prompt.is_some() || file.is_some() { prompt_text(&arguments.prompt)? } else { None };
    converse(arguments, question)
}

fn converse(arguments: &RunArguments, question: Option<String>) -> Result<(), Failure> {
    let Prepared { model, options, template, messages } = prepare(arguments)?;
    chat::chat(&model, messages, question, &template, &options, arguments)
}

/// A model and its options, ready for a question.
struct Prepared {
    model: Model,
    options: GenerateOptions,
    template: ChatOptions<'static>,
    /// The system prompt, if there is one.
    messages: Vec<Message>,
}

fn prepare(arguments: &RunArguments) -> Result<Prepared, Failure> {
    let system_prompt = system_prompt(arguments)?;
    let model = load::model_with_drafts(&arguments.load, &arguments.drafts)?;
    let options = sampling::options(&arguments.sampling, &model)?;
    if let Some(guess) = model.chat_template().and_then(ChatTemplate::guess) {
        output::note(&format!("note: {guess}"));
    }
    let template = ChatOptions {
        thinking: arguments.reasoning.map(|switch| switch == Switch::On),
        ..ChatOptions::default()
    };
    if template.thinking.is_some() && !has_switch_for_thinking(&model) {
        output::note("warning: --reasoning: the model's chat template has no switch for thinking");
    }
    let messages = system_prompt.map(|text| Message::new("system", text)).into_iter().collect();
    Ok(Prepared { model, options, template, messages })
}

fn system_prompt(arguments: &RunArguments) -> Result<Option<String>, Failure> {
    match &arguments.system_prompt_file {
        Some(path) => input::text(path).map(Some),
        None => Ok(arguments.system_prompt.clone()),
    }
}

/// True if the chat template gives another prompt with thinking than without.
pub fn has_switch_for_thinking(model: &Model) -> bool {
    let question = [Message::new("user", "?")];
    let prompt = |thinking| {
        let options = ChatOptions { thinking: Some(thinking), ..ChatOptions::default() };
        model.chat_template().and_then(|template| template.render(&question, &options).ok())
    };
    prompt(true) != prompt(false)
}
