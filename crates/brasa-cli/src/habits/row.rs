//! Rows of the tables of other programs' options.

/// One option of another program.
pub struct Row {
    /// All spellings of the option, separated by spaces. The negated form of an option is a row of its own.
    spellings: &'static str,
    /// The value that the option takes.
    pub value: Value,
    /// The answer of Brasa to the option.
    pub outcome: Outcome,
}

impl Row {
    /// Each spelling.
    pub fn spellings(&self) -> impl Iterator<Item = &'static str> {
        self.spellings.split_ascii_whitespace()
    }
}

/// The value that an option takes.
pub enum Value {
    /// No value.
    None,
    /// One value, by its name in the help.
    One(&'static str),
    /// One value or several, by their name in the help. The list ends at an option or at a word that names a file.
    Many(&'static str),
    /// Optionally one of these words.
    Maybe(&'static [&'static str]),
    /// Two values, by their names in the help.
    Two(&'static str, &'static str),
}

/// The answer of Brasa to an option.
pub enum Outcome {
    /// Brasa's option of this long name has the same meaning and takes the value.
    Ours(&'static str),
    /// The option is replaced by these words.
    Becomes(&'static [&'static str]),
    /// A function that reads the value and returns the words that replace the option, or an error. The text is for the page.
    Made(
        fn(&str) -> Result<Vec<String>, String>,
        #[cfg_attr(not(test), expect(dead_code, reason = "the text is for the page"))] &'static str,
    ),
    /// The option requests Brasa's usual behaviour, or has no effect on results. The text is the reason, for the page.
    True(#[cfg_attr(not(test), expect(dead_code, reason = "the reason is for the page"))] &'static str),
    /// Brasa ignores the option and prints this note.
    Noted(&'static str),
    /// One answer in place of a chat. Without a prompt, this note is printed.
    SingleTurn(&'static str),
    /// The command `run` is replaced by this one. The reason is for the page.
    Command(
        &'static str,
        #[cfg_attr(not(test), expect(dead_code, reason = "the reason is for the page"))] &'static str,
    ),
    /// Brasa refuses the option; the text names a replacement.
    Answered(&'static str),
    /// The answer depends on the value: pairs of values and answers, and the answer for every other value.
    Cases(&'static [(&'static [&'static str], Outcome)], &'static Outcome),
}

impl Outcome {
    /// The answer for `value`, which is never [`Outcome::Cases`].
    pub fn for_value(&self, value: &str) -> &Self {
        let Self::Cases(cases, other) = self else { return self };
        let found = cases.iter().find(|(values, _)| values.iter().any(|known| same(known, value)));
        found.map_or(*other, |(_, outcome)| outcome)
    }
}

/// True if two values are equal, ignoring case and spaces, and comparing numbers by value.
fn same(known: &str, value: &str) -> bool {
    let numbers = known.parse::<f64>().ok().zip(value.parse::<f64>().ok());
    let letters = |text: &str| -> String {
        text.chars().filter(|c| !c.is_whitespace()).map(|c| c.to_ascii_lowercase()).collect()
    };
    numbers.map_or_else(|| letters(known) == letters(value), |(known, value)| known.total_cmp(&value).is_eq())
}

/// An option without a value.
pub const fn flag(spellings: &'static str, outcome: Outcome) -> Row {
    Row { spellings, value: Value::None, outcome }
}

/// An option with one value.
pub const fn value(spellings: &'static str, name: &'static str, outcome: Outcome) -> Row {
    Row { spellings, value: Value::One(name), outcome }
}

/// An option with any number of values.
pub const fn many(spellings: &'static str, name: &'static str, outcome: Outcome) -> Row {
    Row { spellings, value: Value::Many(name), outcome }
}

/// An option with two values.
pub const fn two(spellings: &'static str, names: [&'static str; 2], outcome: Outcome) -> Row {
    Row { spellings, value: Value::Two(names[0], names[1]), outcome }
}

/// An option with an optional value.
pub const fn maybe(spellings: &'static str, words: &'static [&'static str], outcome: Outcome) -> Row {
    Row { spellings, value: Value::Maybe(words), outcome }
}
