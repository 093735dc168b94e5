//! A text up to a mark.

/// Passes on a text up to a mark. Characters that may belong to the mark are held back.
#[derive(Clone, Debug)]
pub struct Until {
    mark: &'static str,
    held: String,
}

impl Until {
    /// A reader of a text that ends before `mark`.
    pub fn new(mark: &'static str) -> Self {
        Self { mark, held: String::new() }
    }

    /// Reads a character; true if it completes the mark. Characters that belong to the text are passed to `text`.
    pub fn read(&mut self, letter: char, mut text: impl FnMut(char)) -> bool {
        self.held.push(letter);
        while !self.mark.starts_with(&self.held) {
            text(self.held.remove(0));
        }
        self.held.len() == self.mark.len()
    }
}
