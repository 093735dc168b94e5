//! The commands of the chat, which begin with a slash.

use std::path::Path;

use brasa::Message;
use brasa::formats::read_file;

use super::conversation::Conversation;
use super::paths::expanded;
use super::running::Chat;
use super::saved::messages;
use super::settings;
use crate::failure::Failure;
use crate::output::{self, plural};

const HELP: &str = "\
/help             this list
/clear            forget the conversation
/system TEXT      set the system prompt and forget the conversation
/regen            answer the last question again
/undo             forget the last question and its answer
/set              show the options; /set NAME VALUE changes one, e.g. /set temp 0
/stats            what the last answer cost
/save FILE        write the conversation as JSON; /save! replaces a file that exists
/load FILE        go on with a conversation that was saved, or that the page exported;
                  Tab completes names of files, ~ is the home folder
/exit             leave (also Ctrl-D)

Several lines: paste them, end a line with \\, or put \"\"\" before and after the text.
A message that begins with a slash: type two. Ctrl-C stops the answer.";

/// Whether the chat goes on after a message, or the user leaves.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Next {
    Stay,
    Leave,
}

/// Most bytes of a conversation that is loaded.
const LARGEST_CONVERSATION: u64 = 64 << 20;

impl Chat<'_> {
    /// Runs a command.
    pub fn obey(&mut self, line: &str) -> Result<Next, Failure> {
        let command = line.trim().trim_start_matches('/');
        let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        match (name, rest.trim()) {
            ("help" | "?", _) => output::line(HELP)?,
            ("exit" | "quit" | "bye", _) => return Ok(Next::Leave),
            ("clear", _) => {
                let turns = plural(self.conversation.turns(), "turn");
                self.conversation.clear();
                confirm(&format!("{turns} forgotten"));
            }
            ("system", text) => self.set_system_prompt(text),
            ("regen", _) => {
                if !self.conversation.unanswer() {
                    return Err(Failure::Usage("there is no question yet".into()));
                }
                self.answer()?;
            }
            ("undo", _) => {
                if !self.conversation.undo() {
                    return Err(Failure::Usage("there is no question yet".into()));
                }
                confirm(&format!(
                    "the last question is forgotten, {} left",
                    plural(self.conversation.turns(), "turn")
                ));
            }
            ("set", rest) => output::line(&settings::set(&mut self.options, rest)?)?,
            ("stats", _) => output::line(self.stats.as_deref().unwrap_or("nothing has been answered yet"))?,
            ("save" | "save!" | "load", "") => {
                return Err(Failure::Usage(format!("/{name} needs a file name")));
            }
            ("save" | "save!", path) => self.save(&expanded(path), name == "save!")?,
            ("load", path) => self.load(&expanded(path))?,
            _ => {
                return Err(Failure::Usage(format!(
                    "/{name} is no command\nhint: /help lists them; a message that begins with a slash begins with two"
                )));
            }
        }
        Ok(Next::Stay)
    }

    fn set_system_prompt(&mut self, text: &str) {
        let turns = plural(self.conversation.turns(), "turn");
        let messages = if text.is_empty() { Vec::new() } else { vec![Message::new("system", text)] };
        self.conversation = Conversation::new(messages);
        let what = if text.is_empty() { "no system prompt" } else { "the system prompt is set" };
        confirm(&format!("{what}, {turns} forgotten"));
    }

    fn save(&self, path: &Path, replace: bool) -> Result<(), Failure> {
        let messages = self.conversation.messages();
        let text =
            serde_json::to_string_pretty(messages).map_err(|error| Failure::Failed(error.to_string()))?;
        let force = output::Force { given: replace, how: "/save!" };
        output::file(path, force, |out| writeln!(out, "{text}"))?;
        confirm(&format!("{} saved to {}", plural(messages.len(), "message"), path.display()));
        Ok(())
    }

    fn load(&mut self, path: &Path) -> Result<(), Failure> {
        let bytes =
            read_file(path, LARGEST_CONVERSATION).map_err(|error| Failure::Failed(error.to_string()))?;
        let messages =
            messages(&bytes).map_err(|reason| Failure::Failed(format!("{}: {reason}", path.display())))?;
        self.conversation = Conversation::new(messages);
        self.stats = None;
        confirm(&format!(
            "{} loaded from {}, {}",
            plural(self.conversation.messages().len(), "message"),
            path.display(),
            plural(self.conversation.turns(), "turn")
        ));
        Ok(())
    }
}

/// Confirms that a command was run.
fn confirm(text: &str) {
    output::note(&format!("({text})"));
}
