//! Ends of llama.cpp's own form that editors ask for: a line that leaves its block, and a limit of time.

use std::time::Duration;

use crate::http::error::Result;
use crate::request::fields::Fields;

/// When a text ends before its model ends it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EarlyEnd {
    /// Blanks and tabs that a line behind the first one has to begin with; 0 for none.
    indent: usize,
    /// Time for the text behind its first token, once it has more than one line.
    most_time: Option<Duration>,
    /// Number of blanks that begin the present line so far; `None` behind its first other character, and in the first line.
    blanks: Option<usize>,
    has_lines: bool,
}

impl EarlyEnd {
    /// Reads `n_indent` and `t_max_predict_ms`.
    pub fn read(fields: &mut Fields) -> Result<Self> {
        let indent = fields.count("n_indent", 0, usize::MAX)?.unwrap_or(0);
        let most_time = fields.limit("t_max_predict_ms")?.and_then(crate::request::fields::Limit::tokens);
        let most_time = most_time.filter(|&ms| ms > 0).map(|ms| Duration::from_millis(ms as u64));
        Ok(Self { indent, most_time, ..Self::default() })
    }

    /// The beginning of `more` that belongs to the text, and whether the text ends there. `time` has passed since its first token.
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
