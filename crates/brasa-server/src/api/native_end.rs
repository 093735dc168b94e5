//! Early ends of a text in llama.cpp's form, which editors use: a line that leaves its block, and a time limit.

use std::time::Duration;

use crate::http::error::Result;
use crate::request::fields::{Fields, Limit};

/// The conditions under which a text is ended before the model ends it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EarlyEnd {
    /// Least number of blanks and tabs at the beginning of all lines but the first; 0 for no condition.
    indent: usize,
    /// Time limit from the first token on, which applies once the text has more than one line.
    most_time: Option<Duration>,
    /// Number of blanks at the beginning of the current line so far; `None` after its first other character, and in the first
    /// line.
    blanks: Option<usize>,
    has_lines: bool,
}

impl EarlyEnd {
    /// Reads `n_indent` and `t_max_predict_ms`.
    pub fn read(fields: &mut Fields) -> Result<Self> {
        let indent = fields.count("n_indent", 0, usize::MAX)?.unwrap_or(0);
        let most_time = fields.limit("t_max_predict_ms")?.and_then(Limit::tokens);
        let most_time = most_time.filter(|&ms| ms > 0).map(|ms| Duration::from_millis(ms as u64));
        Ok(Self { indent, most_time, ..Self::default() })
    }

    /// The beginning of `more` that belongs to the text, and true if the text ends with it. `time` is the time since the text's
    /// first token.
    pub fn take<'a>(&mut self, more: &'a str, time: Duration) -> (&'a str, bool) {
        for (at, letter) in more.char_indices() {
            match (letter, &mut self.blanks) {
                (' ' | '\t', Some(blanks)) => *blanks += 1,
                (_, Some(blanks)) if *blanks < self.indent => return (&more[..at], true),
                ('\n', _) => (self.blanks, self.has_lines) = (Some(0), true),
                _ => self.blanks = None,
            }
        }
        (more, self.has_lines && self.most_time.is_some_and(|most| time >= most))
    }
}
