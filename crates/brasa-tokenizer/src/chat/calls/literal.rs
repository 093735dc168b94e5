//! Calls with arguments as literals of another language than JSON: Python's, or Gemma's.

use serde_json::Value;

use super::json::{push_letter, push_string};
use super::sink::Sink;
use super::until::Until;
use super::{LONGEST_NAME, Step, Wrong};
use crate::chat::exact;

/// Deepest nesting that is read.
const DEEPEST: usize = 100;

/// The form in which a family writes a call with literals.
#[derive(Debug)]
pub struct Dialect {
    /// The character between the name and the first argument.
    pub open: char,
    /// The character after the last argument.
    pub close: char,
    /// The character between an argument's name and its value.
    assign: char,
    /// The mark on both sides of a string in a language without escapes; `None` for Python's strings.
    pub quote: Option<&'static str>,
}

impl Dialect {
    /// The text between an argument's name and its value.
    pub fn assign_text(&self) -> &'static str {
        if self.quote.is_some() { ":" } else { "=" }
    }

    /// The text between a key of an object and its value.
    pub fn colon(&self) -> &'static str {
        if self.quote.is_some() { ":" } else { ": " }
    }

    /// The text between two values.
    pub fn comma(&self) -> &'static str {
        if self.quote.is_some() { "," } else { ", " }
    }

    /// A value as the dialect writes it.
    pub fn write(&self, value: &Value) -> String {
        match (value, self.quote) {
            (Value::Null, None) => "None".into(),
            (Value::Bool(true), None) => "True".into(),
            (Value::Bool(false), None) => "False".into(),
            (Value::String(text), _) if exact::digits(text).is_some() => exact::exact_json(value),
            (Value::String(text), Some(quote)) => format!("{quote}{text}{quote}"),
            (Value::Array(items), _) => {
                let items: Vec<String> = items.iter().map(|item| self.write(item)).collect();
                format!("[{}]", items.join(self.comma()))
            }
            (Value::Object(members), quote) => {
                let key =
                    |key: &str| if quote.is_some() { key.to_owned() } else { Value::from(key).to_string() };
                let members: Vec<String> = members
                    .iter()
                    .map(|(name, value)| format!("{}{}{}", key(name), self.colon(), self.write(value)))
                    .collect();
                format!("{{{}}}", members.join(self.comma()))
            }
            (value, _) => value.to_string(),
        }
    }
}

/// Python: `f(a='x', b=[1, None])`.
pub const PYTHON: Dialect = Dialect { open: '(', close: ')', assign: '=', quote: None };
/// Gemma 4: `f{a:<|"|>x<|"|>,b:[1,null]}`.
pub const GEMMA_4: Dialect = Dialect { open: '{', close: '}', assign: ':', quote: Some("<|\"|>") };
/// FunctionGemma: `f{a:<escape>x<escape>,b:[1,null]}`.
pub const FUNCTION_GEMMA: Dialect = Dialect { open: '{', close: '}', assign: ':', quote: Some("<escape>") };

/// Reads a call with literals and writes its arguments as JSON.
#[derive(Clone, Debug)]
pub struct LiteralCall {
    dialect: &'static Dialect,
    state: State,
    /// Open containers, outermost first.
    open: Vec<Container>,
    /// The beginning of a name, a key, a word or a quotation mark.
    word: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Container {
    /// The arguments of the call.
    Arguments,
    Object,
    List,
    Tuple,
}

#[derive(Clone, Debug)]
enum State {
    Name,
    /// Before a key, or before the end after a comma.
    Key {
        is_first: bool,
    },
    BareKey,
    Assign,
    /// Before a value, or before the end of a list.
    Value {
        is_first: bool,
        may_close: bool,
    },
    Bare,
    /// Before a comma or an end.
    Next,
    /// After one or two of Python's quotation marks: a string begins, is empty, or three marks begin a long one.
    Quote {
        quote: char,
        is_key: bool,
        has_two: bool,
    },
    /// In a Python string. `ends` counts the quotation marks that may end a long one.
    Python {
        quote: char,
        is_key: bool,
        is_long: bool,
        ends: u8,
        escape: Escape,
    },
    /// In the mark before a string without escapes.
    Opening {
        rest: &'static str,
        is_key: bool,
    },
    /// In a string without escapes.
    Plain {
        until: Until,
        is_key: bool,
    },
    /// After a mark that may end a string without escapes, and the white space after the mark.
    Closed {
        is_key: bool,
        space: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Escape {
    None,
    Begun,
    Hex { missing: u8, value: u32 },
}

impl LiteralCall {
    /// A reader at the beginning of a call.
    pub fn new(dialect: &'static Dialect) -> Self {
        Self { dialect, state: State::Name, open: Vec::new(), word: String::new() }
    }

    /// Reads a character.
    pub fn read(&mut self, letter: char, sink: &mut Sink) -> Step {
        let mut out = String::new();
        let result = self.step(letter, sink, &mut out);
        if !out.is_empty() {
            sink.arguments(&out);
        }
        match result {
            Ok(()) if self.open.is_empty() && !matches!(self.state, State::Name) => {
                sink.end();
                Step::Done
            }
            Ok(()) => Step::More,
            Err(Wrong) => Step::Wrong,
        }
    }

    fn step(&mut self, letter: char, sink: &mut Sink, out: &mut String) -> Result<(), Wrong> {
        let is_space = letter.is_whitespace();
        match &mut self.state {
            State::Name => {
                if letter == self.dialect.open {
                    let name = self.word.trim();
                    // Llama calls its built-in tools by a method of that name.
                    let name = name.strip_suffix(".call").filter(|name| sink.tools.has(name)).unwrap_or(name);
                    if !sink.begin(name) {
                        return Err(Wrong);
                    }
                    self.word.clear();
                    self.open.push(Container::Arguments);
                    out.push('{');
                    self.state = State::Key { is_first: true };
                    return Ok(());
                }
                if letter.is_alphanumeric() || matches!(letter, '_' | '-' | '.' | ':' | '/') || is_space {
                    return self.push_word(letter);
                }
                Err(Wrong)
            }
            State::Key { .. } | State::Assign | State::Value { .. } | State::Next if is_space => Ok(()),
            State::Key { is_first } => {
                let is_first = *is_first;
                if self.closes(letter) {
                    return self.leave(out);
                }
                if !is_first {
                    out.push_str(", ");
                }
                let is_argument = self.open.last() == Some(&Container::Arguments);
                if self.dialect.quote.is_none() && !is_argument {
                    return self.open_quote(letter, true);
                }
                if self.dialect.quote.is_some_and(|quote| quote.starts_with(letter)) {
                    return self.open_quote(letter, true);
                }
                self.state = State::BareKey;
                self.push_key(letter, out)
            }
            State::BareKey => self.push_key(letter, out),
            State::Assign => {
                let assign = match self.open.last() {
                    Some(Container::Arguments) => self.dialect.assign,
                    _ => ':',
                };
                if letter != assign {
                    return Err(Wrong);
                }
                out.push_str(": ");
                self.state = State::Value { is_first: true, may_close: false };
                Ok(())
            }
            State::Value { is_first, may_close } => {
                let (is_first, may_close) = (*is_first, *may_close);
                if may_close && self.closes(letter) {
                    return self.leave(out);
                }
                if !is_first {
                    out.push_str(", ");
                }
                self.begin_value(letter, out)
            }
            State::Bare => self.read_bare(letter, out),
            State::Next => self.next(letter, out),
            &mut State::Quote { quote, is_key, has_two } => {
                let begin = |is_long| State::Python { quote, is_key, is_long, ends: 0, escape: Escape::None };
                match (has_two, letter == quote) {
                    (false, true) => self.state = State::Quote { quote, is_key, has_two: true },
                    (true, true) => {
                        out.push('"');
                        self.state = begin(true);
                    }
                    (false, false) => {
                        out.push('"');
                        self.state = begin(false);
                        return self.step(letter, sink, out);
                    }
                    (true, false) => {
                        out.push('"');
                        self.end_string(is_key, out);
                        return self.step(letter, sink, out);
                    }
                }
                Ok(())
            }
            State::Python { .. } => self.read_python(letter, out),
            State::Opening { rest, is_key } => {
                *rest = rest.strip_prefix(letter).ok_or(Wrong)?;
                if rest.is_empty()
                    && let Some(quote) = self.dialect.quote
                {
                    out.push('"');
                    self.state = State::Plain { until: Until::new(quote), is_key: *is_key };
                }
                Ok(())
            }
            State::Plain { until, is_key } => {
                let is_key = *is_key;
                if until.read(letter, |letter| push_letter(letter, out)) {
                    self.state = State::Closed { is_key, space: String::new() };
                }
                Ok(())
            }
            State::Closed { space, .. } if is_space && space.len() < LONGEST_NAME => {
                space.push(letter);
                Ok(())
            }
            State::Closed { is_key, space } => {
                let (is_key, space) = (*is_key, std::mem::take(space));
                let follows = if is_key { letter == ':' } else { matches!(letter, ',' | '}' | ']' | ')') };
                if let Some(quote) = self.dialect.quote.filter(|_| !follows) {
                    // A string may hold the mark.
                    quote.chars().chain(space.chars()).for_each(|letter| push_letter(letter, out));
                    self.state = State::Plain { until: Until::new(quote), is_key };
                } else {
                    self.end_string(is_key, out);
                }
                self.step(letter, sink, out)
            }
        }
    }

    fn push_word(&mut self, letter: char) -> Result<(), Wrong> {
        self.word.push(letter);
        if self.word.len() > LONGEST_NAME { Err(Wrong) } else { Ok(()) }
    }

    fn push_key(&mut self, letter: char, out: &mut String) -> Result<(), Wrong> {
        let assign = if self.open.last() == Some(&Container::Arguments) { self.dialect.assign } else { ':' };
        if letter == assign {
            push_string(self.word.trim_end(), out);
            self.word.clear();
            out.push_str(": ");
            self.state = State::Value { is_first: true, may_close: false };
            return Ok(());
        }
        if matches!(letter, '(' | ')' | '{' | '}' | '[' | ']' | ',' | '\'' | '"') {
            return Err(Wrong);
        }
        self.push_word(letter)
    }

    fn begin_value(&mut self, letter: char, out: &mut String) -> Result<(), Wrong> {
        let (container, state) = match letter {
            '[' => (Container::List, State::Value { is_first: true, may_close: true }),
            '(' if self.dialect.quote.is_none() => {
                (Container::Tuple, State::Value { is_first: true, may_close: true })
            }
            '{' => (Container::Object, State::Key { is_first: true }),
            '\'' | '"' if self.dialect.quote.is_none() => return self.open_quote(letter, false),
            _ if self.dialect.quote.is_some_and(|quote| quote.starts_with(letter)) => {
                return self.open_quote(letter, false);
            }
            _ => {
                self.state = State::Bare;
                return self.read_bare(letter, out);
            }
        };
        if self.open.len() == DEEPEST {
            return Err(Wrong);
        }
        out.push(if container == Container::Object { '{' } else { '[' });
        self.open.push(container);
        self.state = state;
        Ok(())
    }

    fn open_quote(&mut self, letter: char, is_key: bool) -> Result<(), Wrong> {
        if let Some(quote) = self.dialect.quote {
            self.state = State::Opening { rest: &quote[letter.len_utf8()..], is_key };
            return Ok(());
        }
        if letter != '\'' && letter != '"' {
            return Err(Wrong);
        }
        self.state = State::Quote { quote: letter, is_key, has_two: false };
        Ok(())
    }

    fn read_bare(&mut self, letter: char, out: &mut String) -> Result<(), Wrong> {
        let is_end = matches!(letter, ',' | ')' | ']' | '}');
        let is_space = self.dialect.quote.is_none() && letter.is_whitespace();
        if !is_end && !is_space {
            return self.push_word(letter);
        }
        let word = std::mem::take(&mut self.word);
        match word.trim() {
            "True" | "true" => out.push_str("true"),
            "False" | "false" => out.push_str("false"),
            "None" | "null" => out.push_str("null"),
            word if serde_json::from_str::<serde_json::Number>(word).is_ok() => out.push_str(word),
            // Gemma leaves the marks of a string out at times.
            word if self.dialect.quote.is_some() && !word.is_empty() => push_string(word, out),
            _ => return Err(Wrong),
        }
        self.state = State::Next;
        if is_space { Ok(()) } else { self.next(letter, out) }
    }

    fn next(&mut self, letter: char, out: &mut String) -> Result<(), Wrong> {
        if self.closes(letter) {
            return self.leave(out);
        }
        if letter != ',' {
            return Err(Wrong);
        }
        self.state = match self.open.last() {
            Some(Container::List | Container::Tuple) => State::Value { is_first: false, may_close: true },
            _ => State::Key { is_first: false },
        };
        Ok(())
    }

    fn closes(&self, letter: char) -> bool {
        let close = match self.open.last() {
            Some(Container::Arguments) => self.dialect.close,
            Some(Container::Object) => '}',
            Some(Container::List) => ']',
            Some(Container::Tuple) => ')',
            None => return false,
        };
        letter == close
    }

    fn leave(&mut self, out: &mut String) -> Result<(), Wrong> {
        let container = self.open.pop().ok_or(Wrong)?;
        out.push(if matches!(container, Container::List | Container::Tuple) { ']' } else { '}' });
        self.state = State::Next;
        Ok(())
    }

    fn read_python(&mut self, letter: char, out: &mut String) -> Result<(), Wrong> {
        let State::Python { quote, is_key, is_long, ends, escape } = &mut self.state else {
            return Err(Wrong);
        };
        match escape {
            Escape::None if letter == *quote => {
                *ends += 1;
                if !*is_long || *ends == 3 {
                    let is_key = *is_key;
                    self.end_string(is_key, out);
                }
                return Ok(());
            }
            Escape::None => {
                (0..std::mem::take(ends)).for_each(|_| push_letter(*quote, out));
                match letter {
                    '\\' => *escape = Escape::Begun,
                    _ => push_letter(letter, out),
                }
                return Ok(());
            }
            Escape::Begun => {
                let meant = match letter {
                    'n' => '\n',
                    't' => '\t',
                    'r' => '\r',
                    'b' => '\u{8}',
                    'f' => '\u{c}',
                    'v' => '\u{b}',
                    'a' => '\u{7}',
                    '0' => '\0',
                    '\\' | '\'' | '"' => letter,
                    'x' | 'u' | 'U' => {
                        let missing = if letter == 'x' { 2 } else { 4 * (1 + u8::from(letter == 'U')) };
                        *escape = Escape::Hex { missing, value: 0 };
                        return Ok(());
                    }
                    '\n' => {
                        *escape = Escape::None;
                        return Ok(());
                    }
                    _ => {
                        push_letter('\\', out);
                        letter
                    }
                };
                push_letter(meant, out);
            }
            Escape::Hex { missing, value } => {
                *missing -= 1;
                *value = *value << 4 | letter.to_digit(16).ok_or(Wrong)?;
                if *missing > 0 {
                    return Ok(());
                }
                push_letter(char::from_u32(*value).ok_or(Wrong)?, out);
            }
        }
        *escape = Escape::None;
        Ok(())
    }

    fn end_string(&mut self, is_key: bool, out: &mut String) {
        out.push('"');
        self.state = if is_key { State::Assign } else { State::Next };
    }
}
