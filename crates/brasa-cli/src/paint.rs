//! Colours, for terminals that have them and people who want them.

use std::borrow::Cow;
use std::io::{IsTerminal, stdout};

/// Whether text is coloured.
#[derive(Clone, Copy, Debug, Default)]
pub struct Paint(bool);

/// A meaning of text that has a colour of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// The prompt at which the user types.
    Prompt,
    /// The thoughts of a model, which are no part of its answer.
    Thought,
}

impl Style {
    /// The sequence that makes a terminal begin this style.
    fn start(self) -> &'static str {
        match self {
            Self::Prompt => "\x1b[1;32m",
            Self::Thought => "\x1b[2m",
        }
    }
}

impl Paint {
    /// Colours if standard output is a terminal that has them, and `NO_COLOR` is not set.
    pub fn of_terminal() -> Self {
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        Self(stdout().is_terminal() && !is_dumb() && !set("NO_COLOR"))
    }

    /// True if there are colours.
    pub fn is_on(self) -> bool {
        self.0
    }

    /// The sequence that begins a style; empty without colours.
    pub fn start(self, style: Style) -> &'static str {
        if self.0 { style.start() } else { "" }
    }

    /// The sequence that ends a style; empty without colours.
    pub fn end(self) -> &'static str {
        if self.0 { "\x1b[0m" } else { "" }
    }

    /// `text` in a style.
    pub fn text(self, style: Style, text: &str) -> Cow<'_, str> {
        if self.0 {
            Cow::Owned(format!("{}{text}{}", self.start(style), self.end()))
        } else {
            Cow::Owned(text.to_owned())
        }
    }
}

/// True if the terminal only prints: it moves no cursor and has no colours.
pub fn is_dumb() -> bool {
    let term = std::env::var("TERM").unwrap_or_default();
    cfg!(unix) && ["", "dumb", "cons25", "emacs"].contains(&term.to_ascii_lowercase().as_str())
}
