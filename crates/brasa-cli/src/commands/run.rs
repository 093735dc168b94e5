//! `brasa run`: one answer, or a chat.

use std::io::IsTerminal;

use brasa::tokenizer::ChatOptions;
use brasa::{Message, Model};

use super::generate::answer;
use super::{chat, prompt_text};
use crate::args::{RunArguments, Switch};
use crate::failure::Failure;
use crate::{bundled, input, load, output, sampling};

/// Answers the prompt; without one, chats.
pub fn run(arguments: &RunArguments) -> Result<(), Failure> {
    let prompt = prompt_text(&arguments.prompt)?;
    let system_prompt = match &arguments.system_prompt_file {
        Some(path) => Some(input::text(path)?),
        None => arguments.system_prompt.clone(),
    };
    let at_terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    let model = load::model(&arguments.load)?;
    let options = sampling::options(&arguments.sampling, &model)?;
    let template = ChatOptions {
        thinking: arguments.reasoning.map(|switch| switch == Switch::On),
        ..ChatOptions::default()
    };
    if template.thinking.is_some() && !has_switch_for_thinking(&model) {
        output::note("warning: --reasoning: the model's chat template has no switch for thinking");
    }
    let mut messages = Vec::new();
    if let Some(text) = system_prompt {
        messages.push(Message::new("system", text));
    }
    let question = match prompt {
        Some(text) => text,
        None if at_terminal && !arguments.json => {
            return chat::chat(&model, messages, &template, &options, arguments);
        }
        // Without a terminal and a prompt, the built-in model answers a question of its own.
        None if arguments.load.model.is_none() => {
            if !arguments.json {
                output::line(&format!("> {}", bundled::QUESTION))?;
            }
            bundled::QUESTION.to_owned()
        }
        None => {
            return Err(Failure::Usage(
                "nothing to answer\nhint: give a prompt (-p, -f, or standard input), or run at a terminal to chat".into(),
            ));
        }
    };
    messages.push(Message::new("user", question));
    let ids = model.chat_prompt_with(&messages, &template)?;
    let mut stream = model.generate_ids(ids.clone(), &options)?;
    answer(&model, &mut stream, &ids, arguments.json, arguments.load.verbose, &options)?.complete()
}

/// True if the model's chat template writes another prompt if the model may think than if it may not.
pub fn has_switch_for_thinking(model: &Model) -> bool {
    let question = [Message::new("user", "?")];
    let prompt = |thinking| {
        let options = ChatOptions { thinking: Some(thinking), ..ChatOptions::default() };
        model.chat_template().and_then(|template| template.render(&question, &options).ok())
    };
    prompt(true) != prompt(false)
}
