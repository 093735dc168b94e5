//! Finds stop strings in a stream of text. Text is held back while it may still become part of one.
//!
//! Each pattern is followed by the automaton of Knuth, Morris and Pratt 1977: a byte of text costs a step of each pattern, however long the
//! patterns are and however nearly the text matches them.

/// Finds the first stop string in a stream of text, outside the marks that the reader of the text does not see.
///
/// The stop that is complete first wins, the longest of those that are complete at once, so that neither the text nor the cause of its end
/// depends on how the text was cut. A stop string that overlaps a mark, or blank space directly behind one, does not count, unless a stop string
/// names the mark.
#[derive(Debug, Default)]
pub(crate) struct StopMatcher {
    stops: Vec<Pattern>,
    marks: Vec<Pattern>,
    /// Text that has not been released yet.
    held: String,
    /// Bytes of text that were released so far.
    given: usize,
    /// Bytes of text that the patterns have processed.
    read: usize,
    /// A complete stop string, kept while a mark may still turn out to overlap it.
    found: Option<Found>,
    /// True while nothing but blank space has followed a mark.
    behind_mark: bool,
}

/// A stop string in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Found {
    start: usize,
    end: usize,
    /// Index of the stop string among all.
    index: usize,
}

/// The text that a push releases, and the stop string that ended it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Passed {
    /// Text that belongs to no stop string.
    pub(crate) text: String,
    /// Index among all of the stop string that was found; `None` if none was.
    pub(crate) stop: Option<usize>,
}

impl StopMatcher {
    pub(crate) fn new(stops: Vec<String>, marks: Vec<String>) -> Self {
        // Who stops at a mark by name sees it.
        let is_hidden = |mark: &String| stops.iter().all(|stop| !stop.contains(mark.as_str()));
        let marks = if stops.is_empty() { Vec::new() } else { marks.into_iter().filter(is_hidden).collect() };
        let patterns = |texts: Vec<String>| texts.into_iter().map(Pattern::new).collect();
        Self {
            stops: patterns(stops),
            marks: patterns(marks),
            held: String::new(),
            given: 0,
            read: 0,
            found: None,
            behind_mark: false,
        }
    }

    /// True if there is a stop string to search for.
    pub(crate) fn may_find(&self) -> bool {
        !self.stops.is_empty()
    }

    /// Takes more text; returns the text that can be released. Nothing may be pushed once a stop string was found.
    pub(crate) fn push(&mut self, text: &str) -> Passed {
        if self.stops.is_empty() {
            return Passed { text: text.to_owned(), stop: None };
        }
        self.held.push_str(text);
        for byte in text.bytes() {
            self.read += 1;
            self.step(byte);
            if let Some(found) = self.found
                && self.marks.iter().all(|mark| self.read - mark.matched >= found.end)
            {
                return self.end(found);
            }
        }
        let longest = self.stops.iter().map(|stop| stop.matched).max().unwrap_or(0);
        let kept_from = self.found.map_or(self.read - longest, |found| found.start);
        let rest = self.held.split_off(kept_from - self.given);
        self.given = kept_from;
        Passed { text: std::mem::replace(&mut self.held, rest), stop: None }
    }

    /// The text that was held back, once the stream has ended.
    pub(crate) fn finish(&mut self) -> Passed {
        match self.found {
            Some(found) => self.end(found),
            None => Passed { text: std::mem::take(&mut self.held), stop: None },
        }
    }

    fn step(&mut self, byte: u8) {
        let read = self.read;
        let starts = self.marks.iter_mut().filter_map(|mark| mark.step(byte).then(|| read - mark.len()));
        if let Some(start) = starts.min() {
            self.found = self.found.filter(|found| found.end <= start);
            self.marks.iter_mut().chain(&mut self.stops).for_each(|pattern| pattern.matched = 0);
            self.behind_mark = true;
            return;
        }
        self.behind_mark &= byte.is_ascii_whitespace();
        if self.behind_mark {
            return;
        }
        let stops = self.stops.iter_mut().enumerate();
        let found = stops.filter_map(|(index, stop)| {
            stop.step(byte).then(|| Found { start: read - stop.len(), end: read, index })
        });
        let found = found.min();
        self.found = self.found.or(found);
    }

    fn end(&mut self, found: Found) -> Passed {
        self.held.truncate(found.start - self.given);
        Passed { text: std::mem::take(&mut self.held), stop: Some(found.index) }
    }
}

/// A string to search for.
#[derive(Debug)]
struct Pattern {
    text: String,
    /// The failure function of Knuth, Morris and Pratt. For each prefix of the pattern, by its length: bytes of the longest
    /// shorter prefix that is also a suffix of it.
    shorter: Vec<u32>,
    /// Bytes of the longest prefix of the pattern with which the text read so far ends.
    matched: usize,
}

impl Pattern {
    fn new(text: String) -> Self {
        let bytes = text.as_bytes();
        let mut shorter = vec![0; bytes.len() + 1];
        let mut length = 0_usize;
        for end in 1..bytes.len() {
            while length > 0 && bytes[length] != bytes[end] {
                length = shorter[length] as usize;
            }
            length += usize::from(bytes[length] == bytes[end]);
            shorter[end + 1] = length as u32;
        }
        Self { text, shorter, matched: 0 }
    }

    fn len(&self) -> usize {
        self.text.len()
    }

    /// Takes a byte; true if the pattern is complete with it.
    fn step(&mut self, byte: u8) -> bool {
        let bytes = self.text.as_bytes();
        if self.matched == bytes.len() {
            self.matched = self.shorter[self.matched] as usize;
        }
        while self.matched > 0 && bytes[self.matched] != byte {
            self.matched = self.shorter[self.matched] as usize;
        }
        self.matched += usize::from(bytes[self.matched] == byte);
        self.matched == bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use brasa_fuzz::Rng;

    use super::*;

    /// The text up to the first stop string, and which that is, for text that comes in pieces of `size` characters.
    fn stopped(text: &str, size: usize, stops: &[&str], marks: &[&str]) -> (String, Option<usize>) {
        let texts = |all: &[&str]| all.iter().map(ToString::to_string).collect();
        let mut matcher = StopMatcher::new(texts(stops), texts(marks));
        let characters: Vec<String> = text.chars().map(String::from).collect();
        let mut whole = String::new();
        for piece in characters.chunks(size) {
            let passed = matcher.push(&piece.concat());
            whole.push_str(&passed.text);
            if passed.stop.is_some() {
                return (whole, passed.stop);
            }
        }
        let passed = matcher.finish();
        (whole + &passed.text, passed.stop)
    }

    /// Text in pieces of any size comes out up to the first stop string, which is named.
    #[test]
    fn any_split_gives_the_same_text_and_the_same_stop() {
        let cases: &[(&str, &[&str], &str, Option<usize>)] = &[
            ("hello END world", &["END"], "hello ", Some(0)),
            ("aaab", &["aab"], "a", Some(0)),
            ("no stop here", &["stops"], "no stop here", None),
            ("xé stop", &["é s", "stop"], "x", Some(0)),
            ("abcabd", &["abd", "bca"], "a", Some(1)),
            ("abcd", &["abcd", "bc"], "a", Some(1)),
            ("a fragment", &["fragment", "fra"], "a ", Some(1)),
            ("a fragment", &["f", "fr"], "a ", Some(0)),
            ("xyz", &["z", "yz", "yz"], "x", Some(1)),
            ("tail EN", &["END"], "tail EN", None),
            ("aaaa", &["aaab"], "aaaa", None),
        ];
        for (text, stops, expected, stop) in cases {
            for size in 1..=text.len() {
                let found = stopped(text, size, stops, &[]);
                assert_eq!(found, ((*expected).to_owned(), *stop), "{text:?} in pieces of {size}");
            }
        }
    }

    /// Stop strings are not found in marks, across them, or in the blank space behind them, and are where no mark comes of it.
    #[test]
    fn marks_hold_no_stop_strings() {
        let marks = ["<think>", "</think>", "<tool_call>"];
        let cases: &[(&str, &[&str], &str, Option<usize>)] = &[
            ("<think>\nhm</think>\n\nso\nit is", &["\n"], "<think>\nhm</think>\n\nso", Some(0)),
            ("a<tool_call>b", &["<", "tool"], "a<tool_call>b", None),
            ("a<tool>b", &["b", "tool"], "a<", Some(1)),
            ("a<tool>b", &["<"], "a", Some(0)),
            ("a<tool_cal", &["ool"], "a<t", Some(0)),
            ("a b<think>c d", &["b<think>c", "d"], "a ", Some(0)),
            ("a</think>b", &["</think>"], "a", Some(0)),
            ("x</think>y</think>stop", &["stop"], "x</think>y</think>", Some(0)),
            ("ab<think>c", &["a", "b<"], "", Some(0)),
            ("<thi<think>x", &["thi", "x"], "<", Some(0)),
        ];
        for (text, stops, expected, stop) in cases {
            for size in 1..=text.len() {
                let found = stopped(text, size, stops, &marks);
                assert_eq!(found, ((*expected).to_owned(), *stop), "{text:?} in pieces of {size}");
            }
        }
    }

    /// The automata find the stop that a search at every byte finds.
    #[test]
    fn texts_of_few_letters_are_stopped_as_a_plain_search_stops_them() {
        let mut random = Rng::new(0x5709);
        let letters = |random: &mut Rng, most: usize| -> String {
            (0..=random.below(most)).map(|_| ["a", "b", "é"][random.below(3)]).collect()
        };
        for _ in 0..2000 {
            let text = letters(&mut random, 40);
            let stops: Vec<String> = (0..=random.below(4)).map(|_| letters(&mut random, 6)).collect();
            let ends = (1..=text.len()).find_map(|end| {
                let ending = stops
                    .iter()
                    .enumerate()
                    .filter(|(_, stop)| text.as_bytes()[..end].ends_with(stop.as_bytes()));
                ending.map(|(index, stop)| (end - stop.len(), index)).min()
            });
            let expected =
                ends.map_or((text.clone(), None), |(start, index)| (text[..start].into(), Some(index)));
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            assert_eq!(stopped(&text, 1 + random.below(5), &stops, &[]), expected, "{text:?} {stops:?}");
        }
    }

    /// Stop strings that the text nearly matches all the time cost a few steps a byte: a search of every pattern at every byte would
    /// compare a hundred thousand times as many bytes, and not end within a test's time.
    #[test]
    fn long_stop_strings_that_nearly_match_are_cheap() {
        let stops: Vec<String> = (0..16).map(|last| format!("{}{last}", "a".repeat(4000))).collect();
        let mut matcher = StopMatcher::new(stops, Vec::new());
        let mut given = 0;
        for _ in 0..20_000 {
            given += matcher.push("aaaa").text.len();
        }
        assert_eq!(given, 80_000 - 4000);
        assert_eq!(matcher.push("7").stop, Some(7));
    }
}
