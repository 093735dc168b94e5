//! A line of a chat, as it was entered.

/// A line that was entered.
pub enum Line {
    /// A text, which may have several lines.
    Text(String),
    /// Ctrl-C was pressed in an empty line.
    Interrupted,
    /// Ctrl-C was pressed in a line with text, which is discarded.
    Abandoned,
    /// Ctrl-D was pressed in an empty line, or the input ended.
    End,
}
