use std::fmt::Write;

use super::message::Message;

/// Built-in chat templates for checkpoints without one, chosen by the control tokens that the vocabulary has.
///
/// A template begins with BOS only if its family does, so its text must be encoded with nothing added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuiltinTemplate {
    /// Llama 3: `<|start_header_id|>role<|end_header_id|>`.
    Llama3,
    /// ChatML, for Qwen and many others: `<|im_start|>role … <|im_end|>`, without BOS.
    ChatMl,
    /// Gemma 1 to 3: `<start_of_turn>role … <end_of_turn>`, with the system text in the first user turn.
    Gemma,
}

impl BuiltinTemplate {
    /// Chooses the template whose control tokens exist: Llama 3's, then ChatML's, then Gemma's.
    pub fn choose(has_token: impl Fn(&str) -> bool) -> Option<Self> {
        [Self::Llama3, Self::ChatMl, Self::Gemma]
            .into_iter()
            .find(|form| form.control_tokens().iter().all(|token| has_token(token)))
    }

    /// `llama3`, `chatml` or `gemma`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Llama3 => "llama3",
            Self::ChatMl => "chatml",
            Self::Gemma => "gemma",
        }
    }

    /// The template with this [`name`](Self::name).
    pub fn by_name(name: &str) -> Option<Self> {
        [Self::Llama3, Self::ChatMl, Self::Gemma].into_iter().find(|form| form.name() == name)
    }

    /// The control tokens that a vocabulary must have for the template.
    pub fn control_tokens(self) -> &'static [&'static str] {
        match self {
            Self::Llama3 => &["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
            Self::ChatMl => &["<|im_start|>", "<|im_end|>"],
            Self::Gemma => &["<start_of_turn>", "<end_of_turn>"],
        }
    }

    pub(crate) fn render(self, bos: &str, messages: &[Message], add_generation_prompt: bool) -> String {
        let mut out = String::new();
        let mut system = String::new();
        if self != Self::ChatMl {
            out.push_str(bos);
        }
        for message in messages {
            let text = message.content.text();
            let role = message.role.as_str();
            let _ = match self {
                Self::Llama3 => {
                    write!(out, "<|start_header_id|>{role}<|end_header_id|>\n\n{}<|eot_id|>", text.trim())
                }
                Self::ChatMl => write!(out, "<|im_start|>{role}\n{text}<|im_end|>\n"),
                Self::Gemma if role == "system" => {
                    system.push_str(text.trim());
                    system.push_str("\n\n");
                    Ok(())
                }
                Self::Gemma => {
                    let role = if role == "assistant" { "model" } else { "user" };
                    let before = if role == "user" { std::mem::take(&mut system) } else { String::new() };
                    write!(out, "<start_of_turn>{role}\n{before}{}<end_of_turn>\n", text.trim())
                }
            };
        }
        if add_generation_prompt {
            out.push_str(match self {
                Self::Llama3 => "<|start_header_id|>assistant<|end_header_id|>\n\n",
                Self::ChatMl => "<|im_start|>assistant\n",
                Self::Gemma => "<start_of_turn>model\n",
            });
        }
        out
    }
}
