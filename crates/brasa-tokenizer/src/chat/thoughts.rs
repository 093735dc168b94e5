//! Thoughts: the part of an answer in which a model reasons, and the marks around it.

use crate::Tokenizer;

/// The marks around a model's thoughts.
#[derive(Debug, PartialEq, Eq)]
pub struct ThoughtMarks {
    /// The text before the thoughts.
    pub start: &'static str,
    /// The text after the thoughts.
    pub end: &'static str,
    /// Tokens of the marks. A vocabulary that has all of them may belong to a model with these marks.
    tokens: &'static [&'static str],
}

/// The marks of all known families.
///
/// A vocabulary may have `<think>` besides the marks that its model uses, so that row comes last.
const MARKS: &[ThoughtMarks] = &[
    // gpt-oss: everything in front of the final channel is thought.
    ThoughtMarks {
        start: "<|channel|>analysis<|message|>",
        end: "<|channel|>final<|message|>",
        tokens: &["<|start|>", "<|channel|>", "<|message|>", "<|end|>"],
    },
    // Gemma 4.
    ThoughtMarks { start: "<|channel>thought", end: "<channel|>", tokens: &["<|channel>", "<channel|>"] },
    // Magistral, Ministral 3.
    pair(&["[THINK]", "[/THINK]"]),
    // Seed-OSS.
    pair(&["<seed:think>", "</seed:think>"]),
    // Command A, Command R7B.
    pair(&["<|START_THINKING|>", "<|END_THINKING|>"]),
    // Apertus.
    pair(&["<|inner_prefix|>", "<|inner_suffix|>"]),
    // Kimi-VL.
    pair(&["◁think▷", "◁/think▷"]),
    // EXAONE Deep.
    pair(&["<thought>", "</thought>"]),
    // DeepSeek, Qwen, GLM, Kimi, MiniMax, Nemotron, Phi-4, SmolLM and most others.
    pair(&["<think>", "</think>"]),
];

/// Marks of one token each.
const fn pair(tokens: &'static [&'static str; 2]) -> ThoughtMarks {
    ThoughtMarks { start: tokens[0], end: tokens[1], tokens }
}

impl ThoughtMarks {
    /// The marks of a model: those in its chat template's source, else those in its vocabulary; `None` if there are none.
    pub fn of(template: Option<&str>, tokenizer: &Tokenizer) -> Option<&'static Self> {
        let written = |marks: &&Self| {
            template.is_some_and(|source| source.contains(marks.start) || source.contains(marks.end))
        };
        let has_all = |marks: &&Self| marks.tokens.iter().all(|token| tokenizer.token_to_id(token).is_some());
        MARKS.iter().find(written).or_else(|| MARKS.iter().find(has_all))
    }

    /// Ids of the marks' tokens. Some are control tokens, which a text leaves out unless requested
    /// ([`DecodeStream::showing`](crate::DecodeStream::showing)).
    pub fn token_ids(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        self.tokens.iter().filter_map(|token| tokenizer.token_to_id(token)).collect()
    }
}

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerPart {
    /// A part of the thoughts.
    Thought(String),
    /// A mark before or after thoughts, which belongs to neither part.
    Mark(&'static str),
    /// A part of the answer proper.
    Answer(String),
}

/// Splits an answer that arrives in fragments into thoughts and the answer proper.
///
/// Thoughts come first. After the first word of the answer proper, a mark is plain text, as in an answer about marks. A fragment
/// that may end within a mark is held back until more is known.
///
/// ```
/// use brasa_tokenizer::{AnswerPart, Thoughts, Tokenizer};
/// # let file = r#"{"version": "1.0", "added_tokens": [], "decoder": {"type": "ByteLevel"}, "pre_tokenizer": {"type":
/// #     "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
/// #     "model": {"type": "BPE", "vocab": {"h": 0}, "merges": []}}"#;
/// # let tokenizer = Tokenizer::from_json(&brasa_tokenizer::HfFiles { tokenizer: file, ..Default::default() })?;
/// let template = "{{ messages[0].content.split('</think>')[-1] }}";
/// let marks = brasa_tokenizer::ThoughtMarks::of(Some(template), &tokenizer);
/// let mut thoughts = Thoughts::new(marks, "What is 1 + 1?<think>");
/// assert_eq!(thoughts.take("Two.</thi"), [AnswerPart::Thought("Two.".into())]);
/// assert_eq!(thoughts.take("nk>2"), [AnswerPart::Mark("</think>"), AnswerPart::Answer("2".into())]);
/// assert_eq!(thoughts.finish(), None);
/// # Ok::<(), brasa_tokenizer::TokenizerError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Thoughts {
    marks: Option<&'static ThoughtMarks>,
    place: Place,
    /// Text that may be the beginning of a mark.
    held: String,
}

/// The place in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Only white space has come so far.
    Start,
    Thoughts,
    Answer,
}

impl Thoughts {
    /// A splitter for the answer to `prompt`. The end of the prompt tells whether the template has opened the thoughts. Without
    /// marks the whole answer is content.
    pub fn new(marks: Option<&'static ThoughtMarks>, prompt: &str) -> Self {
        let is_open = marks.is_some_and(|marks| prompt.trim_end().ends_with(marks.start));
        let place = match marks {
            None => Place::Answer,
            Some(_) if is_open => Place::Thoughts,
            Some(_) => Place::Start,
        };
        Self { marks, place, held: String::new() }
    }

    /// The parts that are complete with the next fragment, in order.
    pub fn take(&mut self, fragment: &str) -> Vec<AnswerPart> {
        self.held.push_str(fragment);
        let mut parts = Vec::new();
        while let Some(part) = self.next() {
            parts.push(part);
        }
        parts
    }

    /// Ends the text and returns the remaining part, if any.
    pub fn finish(&mut self) -> Option<AnswerPart> {
        self.text(self.held.len())
    }

    /// True if the thoughts are open.
    pub(crate) fn is_open(&self) -> bool {
        self.place == Place::Thoughts
    }

    /// True if thoughts may begin.
    pub(crate) fn is_at_start(&self) -> bool {
        self.place == Place::Start
    }

    /// True if all further text is the answer proper.
    pub(crate) fn is_answer(&self) -> bool {
        self.place == Place::Answer && self.held.is_empty()
    }

    /// Ends the thoughts without a mark.
    pub(crate) fn close(&mut self) {
        self.place = Place::Start;
    }

    fn next(&mut self) -> Option<AnswerPart> {
        let Some(marks) = self.marks else { return self.finish() };
        match self.place {
            Place::Answer => self.finish(),
            Place::Thoughts => match self.held.find(marks.end) {
                Some(0) => Some(self.mark(marks.end, Place::Start)),
                Some(at) => self.text(at),
                None => self.text(self.held.len() - begun(&self.held, marks.end)),
            },
            Place::Start => {
                let space = self.held.len() - self.held.trim_start().len();
                if space > 0 {
                    return self.text(space);
                }
                if self.held.starts_with(marks.start) {
                    return Some(self.mark(marks.start, Place::Thoughts));
                }
                // Thoughts that are left out may still be closed.
                if self.held.starts_with(marks.end) {
                    return Some(self.mark(marks.end, Place::Start));
                }
                if marks.start.starts_with(&self.held) || marks.end.starts_with(&self.held) {
                    return None;
                }
                self.place = Place::Answer;
                self.finish()
            }
        }
    }

    fn mark(&mut self, mark: &'static str, place: Place) -> AnswerPart {
        self.held.drain(..mark.len());
        self.place = place;
        AnswerPart::Mark(mark)
    }

    /// The first bytes of the held text as a part; `None` for no bytes.
    fn text(&mut self, bytes: usize) -> Option<AnswerPart> {
        let text: String = self.held.drain(..bytes).collect();
        let part = if self.place == Place::Thoughts { AnswerPart::Thought } else { AnswerPart::Answer };
        (!text.is_empty()).then(|| part(text))
    }
}

/// Number of bytes at the end of `text` that may be the beginning of `mark`.
fn begun(text: &str, mark: &str) -> usize {
    let lengths = mark.char_indices().map(|(at, _)| at).filter(|&at| at > 0);
    lengths.filter(|&at| text.ends_with(&mark[..at])).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::{AnswerPart, MARKS, ThoughtMarks, Thoughts};

    /// The parts of an answer: thoughts in brackets, marks as `|`.
    fn split(marks: &'static ThoughtMarks, prompt: &str, fragments: &[&str]) -> String {
        let mut thoughts = Thoughts::new(Some(marks), prompt);
        let mut parts: Vec<AnswerPart> = fragments.iter().flat_map(|text| thoughts.take(text)).collect();
        parts.extend(thoughts.finish());
        let shown = parts.into_iter().map(|part| match part {
            AnswerPart::Thought(text) => format!("[{text}]"),
            AnswerPart::Mark(_) => "|".to_owned(),
            AnswerPart::Answer(text) => text,
        });
        shown.collect::<String>().replace("][", "")
    }

    #[test]
    fn marks_divide_thoughts_from_the_answer() {
        for marks in MARKS {
            let ThoughtMarks { start, end, .. } = marks;
            let letter: String = start.chars().take(1).collect();
            let whole = format!("\n{start}sü<ß\n{end}\n\nanswer");
            for (answer, shown) in [
                (whole, "\n|[sü<ß\n]|\n\nanswer"),
                (format!("{start}never closed <"), "|[never closed <]"),
                (format!("{start}{end}{start}again{end}b"), "|||[again]|b"),
                (format!("{end}none"), "|none"),
                (format!("A mark is {start} or {end}."), &format!("A mark is {start} or {end}.")),
                (letter.clone(), &letter),
                (String::new(), ""),
            ] {
                assert_eq!(split(marks, "question", &[&answer]), shown, "{answer:?} at once");
                let characters: Vec<String> = answer.chars().map(String::from).collect();
                let characters: Vec<&str> = characters.iter().map(String::as_str).collect();
                assert_eq!(split(marks, "question", &characters), shown, "{answer:?} by characters");
            }
            let opened = format!("question{start}\n");
            assert_eq!(split(marks, &opened, &["a", end, "b"]), "[a]|b");
            let closed = format!("question{start}\n\n{end}\n");
            assert_eq!(split(marks, &closed, &["plain"]), "plain");
        }
        let mut without = Thoughts::new(None, "<think>");
        assert_eq!(without.take("<think>x"), [AnswerPart::Answer("<think>x".into())]);
    }

    #[test]
    fn marks_can_be_told_apart() {
        for marks in MARKS {
            assert_ne!(marks.start, marks.end);
            assert!(marks.tokens.iter().any(|token| marks.start.contains(token)), "{}", marks.start);
            // Another row that fits a template of this family must come later.
            let first =
                MARKS.iter().find(|row| marks.start.contains(row.start) || marks.end.contains(row.end));
            assert_eq!(first, Some(marks));
        }
    }
}
