//! The interactive chat: history, several lines, commands; Ctrl-C stops the answer, not the program.

use brasa::tokenizer::ChatOptions;
use brasa::{GenerateOptions, Message, Model, Session};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

use super::generate::answer;
use crate::args::RunArguments;
use crate::failure::Failure;
use crate::{bundled, interrupt, output};

const HELP: &str = "\
/help            this list
/clear           forget the conversation
/system TEXT     set the system prompt and forget the conversation
/regen           answer the last question again
/set NAME VALUE  change temp, top_k, top_p, min_p, seed or n
/stats           what the last answer cost
/save FILE       write the conversation as JSON; /save! replaces a file that exists
/exit            leave (also Ctrl-D)

Several lines: end a line with \\, or put \"\"\" before and after the text.
Ctrl-C stops the answer.";

/// A conversation, with the model, the session and the options that carry it on.
struct Chat<'m> {
    model: &'m Model,
    session: Session,
    messages: Vec<Message>,
    /// Messages that `/clear` keeps.
    kept: usize,
    template: &'m ChatOptions<'m>,
    options: GenerateOptions,
    stats: String,
}

/// Chats until the user leaves.
pub fn chat(
    model: &Model,
    messages: Vec<Message>,
    template: &ChatOptions<'_>,
    options: &GenerateOptions,
    arguments: &RunArguments,
) -> Result<(), Failure> {
    let failed = |error: ReadlineError| Failure::Failed(error.to_string());
    let mut editor = DefaultEditor::new().map_err(failed)?;
    let mut chat = Chat {
        model,
        session: model.session(),
        kept: messages.len(),
        messages,
        template,
        options: options.clone(),
        stats: "nothing has been answered yet".into(),
    };
    output::line(&format!("{} – /help lists commands, Ctrl-D leaves", arguments.load.name()))?;
    if arguments.load.model.is_none() {
        output::line(&format!("Ask for words, e.g. {}", bundled::QUESTION))?;
    }
    loop {
        match read(&mut editor) {
            Ok(line) if line.trim().is_empty() => {}
            Ok(line) => {
                // History is a convenience; a line that cannot be kept is still answered.
                let _ = editor.add_history_entry(&line);
                match chat.take(line) {
                    Ok(true) => {}
                    Ok(false) => return Ok(()),
                    Err(Failure::Interrupted) => output::line("")?,
                    Err(Failure::Failed(message) | Failure::Usage(message)) => {
                        output::note(&format!("error: {message}"));
                    }
                    Err(failure) => return Err(failure),
                }
            }
            Err(ReadlineError::Interrupted) => output::line("(Ctrl-D or /exit leaves)")?,
            Err(ReadlineError::Eof) => return Ok(()),
            Err(error) => return Err(failed(error)),
        }
    }
}

/// One message, of as many lines as the user wants.
fn read(editor: &mut DefaultEditor) -> Result<String, ReadlineError> {
    let mut text = editor.readline("> ")?;
    if let Some(start) = text.trim_start().strip_prefix("\"\"\"") {
        let mut block = start.to_owned();
        while !block.trim_end().ends_with("\"\"\"") {
            block.push('\n');
            block.push_str(&editor.readline("… ")?);
        }
        let end = block.trim_end().len() - 3;
        block.truncate(end);
        return Ok(block.trim_matches('\n').to_owned());
    }
    while let Some(line) = text.strip_suffix('\\') {
        text = format!("{line}\n{}", editor.readline("… ")?);
    }
    Ok(text)
}

impl Chat<'_> {
    /// Takes a message or a command; false if the user leaves.
    fn take(&mut self, line: String) -> Result<bool, Failure> {
        let Some(command) = line.trim().strip_prefix('/') else {
            self.messages.push(Message::new("user", line));
            return self.answer().map(|()| true);
        };
        let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        match (name, rest.trim()) {
            ("help" | "?", _) => output::line(HELP)?,
            ("exit" | "quit" | "bye", _) => return Ok(false),
            ("clear", _) => self.messages.truncate(self.kept),
            ("system", text) => {
                self.messages.clear();
                if !text.is_empty() {
                    self.messages.push(Message::new("system", text));
                }
                self.kept = self.messages.len();
            }
            ("regen", _) => {
                while self.messages.len() > self.kept
                    && self.messages.last().is_some_and(|last| last.role != "user")
                {
                    self.messages.pop();
                }
                if self.messages.len() == self.kept {
                    return Err(Failure::Usage("there is no question yet".into()));
                }
                self.answer()?;
            }
            ("set", rest) => self.set(rest)?,
            ("stats", _) => output::line(&self.stats)?,
            ("save" | "save!", "") => return Err(Failure::Usage("/save needs a file name".into())),
            ("save" | "save!", path) => {
                let text = serde_json::to_string_pretty(&self.messages)
                    .map_err(|error| Failure::Failed(error.to_string()))?;
                let force = output::Force { given: name == "save!", how: "/save!" };
                output::file(path.as_ref(), force, |out| writeln!(out, "{text}"))?;
            }
            _ => return Err(Failure::Usage(format!("/{name} is no command; /help lists them"))),
        }
        Ok(true)
    }

    fn answer(&mut self) -> Result<(), Failure> {
        let result = self.stream();
        if result.is_err() && self.messages.last().is_some_and(|last| last.role == "user") {
            // A question without an answer must not stay: templates expect the roles to alternate.
            self.messages.pop();
        }
        result
    }

    fn stream(&mut self) -> Result<(), Failure> {
        // A Ctrl-C from before the answer does not count.
        interrupt::take();
        let ids = self.model.chat_prompt_with(&self.messages, self.template)?;
        let mut stream = self.session.generate_ids(ids.clone(), &self.options)?;
        // An interrupted answer stays in the conversation as far as it went.
        let text = answer(self.model, &mut stream, &ids, false, false, &self.options)?.text;
        let metrics = stream.metrics();
        self.stats = format!(
            "{} prompt tokens ({} cached) at {:.1} tok/s, {} generated at {:.1} tok/s; context {} of {}",
            metrics.prompt_tokens,
            metrics.cached_tokens,
            metrics.prefill_tokens_per_second(),
            metrics.generated_tokens,
            metrics.decode_tokens_per_second(),
            metrics.prompt_tokens + metrics.generated_tokens,
            self.model.context(),
        );
        self.messages.push(Message::new("assistant", text));
        Ok(())
    }

    fn set(&mut self, rest: &str) -> Result<(), Failure> {
        let usage = || Failure::Usage("/set NAME VALUE, with temp, top_k, top_p, min_p, seed or n".into());
        let (name, value) = rest.split_once(char::is_whitespace).ok_or_else(usage)?;
        let number: f64 = value.trim().parse().map_err(|_| usage())?;
        let mut options = self.options.clone();
        match name {
            "temp" => options.sampling.temperature = number as f32,
            "top_k" => options.sampling.top_k = number as usize,
            "top_p" => options.sampling.top_p = number as f32,
            "min_p" => options.sampling.min_p = number as f32,
            "seed" => options.sampling.seed = number as u64,
            "n" => options.max_tokens = (number >= 0.0).then_some(number as usize),
            _ => return Err(usage()),
        }
        options.validate().map_err(|error| Failure::Usage(error.to_string()))?;
        self.options = options;
        Ok(())
    }
}
