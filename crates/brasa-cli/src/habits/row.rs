//! The form of the tables of other tools' options.

/// One option of another tool.
pub struct Row {
    /// All spellings of one meaning, divided by spaces. The negative form of an option is a row of its own.
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
    /// One value or several, by their name in the help. A word that names a file ends them, as an option does.
    Many(&'static str),
    /// One of these words, or none.
    Maybe(&'static [&'static str]),
    /// Two values, by their names in the help.
    Two(&'static str, &'static str),
}

/// The answer of Brasa to an option.
pub enum Outcome {
    /// Our option of this long name means the same and takes the value.
    Ours(&'static str),
    /// The option is replaced by these words.
    Becomes(&'static [&'static str]),
    /// A function that reads the value and returns the words in place of the option, or an error. The text is for the page.
    Made(
        fn(&str) -> Result<Vec<String>, String>,
        #[cfg_attr(not(test), expect(dead_code, reason = "the text is for the page"))] &'static str,
    ),
    /// The option asks for Brasa's usual behaviour, or for something that no result depends on. The reason is for the page.
    True(#[cfg_attr(not(test), expect(dead_code, reason = "the reason is for the page"))] &'static str),
    /// Brasa goes on after a note.
    Noted(&'static str),
    /// One answer and no chat; without a prompt, a note.
    SingleTurn(&'static str),
    /// `run` becomes the command of this name; the reason is for the page.
    Command(
        &'static str,
        #[cfg_attr(not(test), expect(dead_code, reason = "the reason is for the page"))] &'static str,
    ),
    /// Brasa refuses the option and names a replacement.
    Answered(&'static str),
    /// The answer depends on the value: pairs of values and answers, and the answer for every other value.
    Cases(&'static [(&'static [&'static str], Outcome)], &'static Outcome),
}

impl Outcome {
    /// The answer for `value`, which is no [`Outcome::Cases`].
    pub fn for_value(&self, value: &str) -> &Self {
        let Self::Cases(cases, other) = self else { return self };
        let found = cases.iter().find(|(values, _)| values.iter().any(|known| same(known, value)));
        found.map_or(*other, |(_, outcome)| outcome)
    }
}

/// True if two values mean the same: letters in any case, spaces left out, numbers by their value.
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
