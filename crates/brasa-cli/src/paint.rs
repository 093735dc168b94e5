//! Colours, if the terminal and the user want them.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::io::{IsTerminal, stdout};
use std::sync::OnceLock;

use clap::ValueEnum;

/// The user's choice, from the command line.
static WISH: OnceLock<When> = OnceLock::new();

/// When to use colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum When {
    /// Colours if the environment and the terminal allow them
    #[default]
    Auto,
    /// Also for a file or a pipe
    Always,
    /// Not even at a terminal
    Never,
}

impl When {
    /// The choice in translated arguments, before they are parsed, because the parser's own messages have colours too.
    pub fn of(arguments: &[OsString]) -> Self {
        let mut wish = Self::default();
        let mut words = arguments.iter().take_while(|word| *word != "--").peekable();
        while let Some(word) = words.next() {
            let value = match word.to_str() {
                Some("--color") => words.peek().copied().map(OsString::as_os_str),
                Some(word) => word.strip_prefix("--color=").map(OsStr::new),
                None => None,
            };
            let value = value.and_then(OsStr::to_str);
            wish = value.and_then(|value| Self::from_str(value, false).ok()).unwrap_or(wish);
        }
        wish
    }
}

/// Makes `when` the user's choice for the rest of the process.
pub fn choose(when: When) {
    // The wish is set once, before anything is painted.
    let _ = WISH.set(when);
}

/// Whether and how text is coloured.
#[derive(Clone, Copy, Debug, Default)]
pub struct Paint(bool);

/// A kind of text with a colour of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// The prompt at which the user types.
    Prompt,
    /// The thoughts of a model, which are not part of its answer.
    Thought,
}

impl Style {
    /// The control sequence that begins the style.
    fn start(self) -> &'static str {
        match self {
            Self::Prompt => "\x1b[1;32m",
            Self::Thought => "\x1b[2m",
        }
    }
}

impl Paint {
    /// Whether standard output has colours, by the user's choice, the environment and the terminal, in this order.
    pub fn of_output() -> Self {
        let is = |name, what: fn(&OsStr) -> bool| std::env::var_os(name).is_some_and(|value| what(&value));
        Self(match WISH.get().copied().unwrap_or_default() {
            When::Always => true,
            When::Never => false,
            When::Auto if is("NO_COLOR", |value| !value.is_empty()) => false,
            When::Auto if is("CLICOLOR_FORCE", |value| !value.is_empty() && value != "0") => true,
            When::Auto if is("CLICOLOR", |value| value == "0") => false,
            When::Auto => stdout().is_terminal() && !is_dumb(),
        })
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

/// True if the terminal only prints: it supports neither cursor movements nor colours.
pub fn is_dumb() -> bool {
    let term = std::env::var("TERM").unwrap_or_default();
    cfg!(unix) && ["", "dumb", "cons25", "emacs"].contains(&term.to_ascii_lowercase().as_str())
}
