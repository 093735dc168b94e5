//! Which parts of an answer are thoughts: those between `<think>` and `</think>`.

const START: &str = "<think>";
const END: &str = "</think>";

/// A part of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part<'t> {
    /// A part of the thoughts, their marks included.
    Thought(&'t str),
    /// A part of the answer.
    Answer(&'t str),
}

/// Splits an answer that comes in fragments. Nothing is held back: a mark that comes in several fragments counts from its last
/// one on.
pub struct Thoughts {
    thinking: bool,
    /// The end of the text so far, one byte shorter than a mark at most.
    tail: String,
}

impl Thoughts {
    /// Nothing is known yet; the prompt may have begun the thoughts.
    pub fn new(thinking: bool) -> Self {
        Self { thinking, tail: String::new() }
    }

    /// The parts of the next fragment, in order.
    pub fn take<'t>(&mut self, fragment: &'t str) -> Vec<Part<'t>> {
        let mut parts = Vec::new();
        let mut rest = fragment;
        loop {
            let mark = if self.thinking { END } else { START };
            let before = self.tail.len();
            let joined = format!("{}{rest}", self.tail);
            let Some(place) = joined.find(mark) else {
                self.keep_tail(&joined);
                self.part(rest, &mut parts);
                return parts;
            };
            // A mark begins its part or ends it, so it is dim either way.
            let (mark_start, mark_end) = (place.saturating_sub(before), place + mark.len() - before);
            let split = if self.thinking { mark_end } else { mark_start };
            let (this, other) = rest.split_at(split);
            self.part(this, &mut parts);
            self.thinking = !self.thinking;
            self.tail.clear();
            rest = other;
            if let (true, Some(behind)) = (self.thinking, rest.get(mark_end - split..)) {
                parts.push(Part::Thought(&rest[..mark_end - split]));
                rest = behind;
            }
        }
    }

    fn part<'t>(&self, text: &'t str, parts: &mut Vec<Part<'t>>) {
        if !text.is_empty() {
            parts.push(if self.thinking { Part::Thought(text) } else { Part::Answer(text) });
        }
    }

    fn keep_tail(&mut self, text: &str) {
        let mut start = text.len().saturating_sub(END.len() - 1);
        while !text.is_char_boundary(start) {
            start += 1;
        }
        text[start..].clone_into(&mut self.tail);
    }
}

#[cfg(test)]
mod tests {
    use super::{Part, Thoughts};

    fn split(thinking: bool, fragments: &[&str]) -> String {
        let mut thoughts = Thoughts::new(thinking);
        let mut shown = String::new();
        for fragment in fragments {
            for part in thoughts.take(fragment) {
                match part {
                    Part::Thought(text) => shown.extend(["[", text, "]"]),
                    Part::Answer(text) => shown += text,
                }
            }
        }
        shown
    }

    #[test]
    fn marks_divide_thoughts_from_the_answer() {
        assert_eq!(split(false, &["plain <thin king>"]), "plain <thin king>");
        assert_eq!(split(false, &["<think>", "a", "b</think>c"]), "[<think>][a][b</think>]c");
        assert_eq!(split(true, &["a</thi", "nk>b<think>süß"]), "[a</thi][nk>]b[<think>][süß]");
        assert_eq!(split(false, &["x<th", "ink>é", "é</think>", "y"]), "x<th[ink>][é][é</think>]y");
        assert_eq!(split(false, &["<think></think>", "y</think>"]), "[<think>][</think>]y</think>");
        assert_eq!(split(false, &["ä", "ö", "ü<think>"]), "äöü[<think>]");
    }
}
