//! Stop strings: text is held back while it may still become one.

/// Finds the first stop string in a stream of text.
#[derive(Debug)]
pub(crate) struct StopMatcher {
    stops: Vec<String>,
    held: String,
}

impl StopMatcher {
    pub(crate) fn new(stops: Vec<String>) -> Self {
        Self { stops, held: String::new() }
    }

    /// Takes more text; returns the text that certainly belongs to no stop string, and true if a stop string was found.
    pub(crate) fn push(&mut self, text: &str) -> (String, bool) {
        self.held.push_str(text);
        // The stop that is complete first wins, so that the answer does not depend on how the text was cut.
        let found = self
            .stops
            .iter()
            .filter_map(|stop| self.held.find(stop.as_str()).map(|start| (start + stop.len(), start)));
        if let Some((_, start)) = found.min() {
            self.held.truncate(start);
            return (std::mem::take(&mut self.held), true);
        }
        let keep = self.possible_start();
        let rest = self.held.split_off(keep);
        (std::mem::replace(&mut self.held, rest), false)
    }

    /// The text that was held back, when no more comes.
    pub(crate) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Start of the longest end of the held text that may become a stop string.
    fn possible_start(&self) -> usize {
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let earliest = self.held.len().saturating_sub(longest.saturating_sub(1));
        self.held
            .char_indices()
            .map(|(index, _)| index)
            .filter(|&index| index >= earliest)
            .find(|&index| self.stops.iter().any(|stop| stop.starts_with(&self.held[index..])))
            .unwrap_or(self.held.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Text in pieces of any size comes out up to the first stop string.
    #[test]
    fn any_split_gives_the_same_text() {
        let cases: &[(&str, &[&str], &str, bool)] = &[
            ("hello END world", &["END"], "hello ", true),
            ("aaab", &["aab"], "a", true),
            ("no stop here", &["stops"], "no stop here", false),
            ("xé stop", &["é s", "stop"], "x", true),
            ("abcabd", &["abd", "bca"], "a", true),
            ("abcd", &["abcd", "bc"], "a", true),
            ("tail EN", &["END"], "tail EN", false),
        ];
        for (text, stops, expected, found) in cases {
            let characters: Vec<String> = text.chars().map(String::from).collect();
            for size in 1..=characters.len() {
                let mut matcher = StopMatcher::new(stops.iter().map(ToString::to_string).collect());
                let mut output = String::new();
                let mut stopped = false;
                for piece in characters.chunks(size) {
                    let (text, stop) = matcher.push(&piece.concat());
                    output.push_str(&text);
                    if stop {
                        stopped = true;
                        break;
                    }
                }
                if !stopped {
                    output.push_str(&matcher.finish());
                }
                assert_eq!((output.as_str(), stopped), (*expected, *found), "{text:?} in pieces of {size}");
            }
        }
    }
}
