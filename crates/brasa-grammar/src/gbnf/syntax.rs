//! Parses GBNF to a tree.

use std::collections::HashMap;

use crate::GrammarError;

/// Most times that a part may be repeated by a number, as in llama.cpp.
const MOST_TIMES: usize = 2_000;
/// Most levels of parentheses.
const MOST_LEVELS: usize = 100;
/// Most rules.
const MOST_RULES: usize = 4_000;

/// A rule of the grammar.
pub struct Rule {
    pub body: Node,
}

/// A part of a rule.
#[derive(Clone, Debug)]
pub enum Node {
    /// One character in any of these ranges. Ranges ascend, do not touch and exclude surrogates.
    Char(Vec<(u32, u32)>),
    /// A token by its id.
    Token(u32),
    /// Any token except the one with this id.
    OtherToken(u32),
    /// A rule by its number.
    Rule(usize),
    /// Parts one after the other.
    Sequence(Vec<Node>),
    /// One of several parts.
    Choice(Vec<Node>),
    /// A part repeated: at least the first number of times, at most the second (`None` without limit).
    Repeat(Box<Node>, usize, Option<usize>),
}

/// The rules of a grammar. The first is `root`.
pub fn parse(text: &str, token_id: &dyn Fn(&str) -> Option<u32>) -> Result<Vec<Rule>, GrammarError> {
    let characters: Vec<char> = text.chars().collect();
    let mut parser = Parser { characters, at: 0, token_id, names: HashMap::new(), uses: Vec::new() };
    let mut bodies: HashMap<usize, Node> = HashMap::new();
    parser.number("root");
    parser.space(true);
    while parser.peek().is_some() {
        let start = parser.at;
        let name = parser.name()?;
        let number = parser.number(&name);
        if parser.names.len() > MOST_RULES {
            return Err(parser.wrong(start, format!("more than {MOST_RULES} rules")));
        }
        parser.space(false);
        if !parser.characters[parser.at..].starts_with(&[':', ':', '=']) {
            return Err(parser.wrong(parser.at, format!("expected `::=` behind the name `{name}`")));
        }
        parser.at += 3;
        parser.space(true);
        let body = parser.choice(0)?;
        if let Some(found) = parser.peek().filter(|found| !matches!(found, '\n' | '\r')) {
            return Err(parser.wrong(parser.at, format!("expected the end of the rule, found `{found}`")));
        }
        // Of two rules with one name the last counts, as in llama.cpp.
        bodies.insert(number, body);
        parser.space(true);
    }
    if !bodies.contains_key(&0) {
        return Err(parser.wrong(0, "there is no rule `root`".into()));
    }
    let mut names: Vec<(&String, &usize)> = parser.names.iter().collect();
    names.sort_by_key(|(_, number)| **number);
    let undefined = parser.uses.iter().find(|(number, _)| !bodies.contains_key(number));
    if let Some(&(number, place)) = undefined {
        return Err(parser.wrong(place, format!("there is no rule `{}`", names[number].0)));
    }
    // A name that was only defined has a body, and so has every name that is used.
    Ok((0..names.len()).filter_map(|number| bodies.remove(&number)).map(|body| Rule { body }).collect())
}

struct Parser<'a> {
    characters: Vec<char>,
    at: usize,
    token_id: &'a dyn Fn(&str) -> Option<u32>,
    names: HashMap<String, usize>,
    /// Rules that are used, with the place of the first use.
    uses: Vec<(usize, usize)>,
}

impl Parser<'_> {
    fn peek(&self) -> Option<char> {
        self.characters.get(self.at).copied()
    }

    fn wrong(&self, at: usize, what: String) -> GrammarError {
        let before = &self.characters[..at.min(self.characters.len())];
        let line = before.iter().filter(|&&character| character == '\n').count() + 1;
        let column = before.iter().rev().take_while(|&&character| character != '\n').count() + 1;
        GrammarError::Gbnf { line, column, what }
    }

    fn number(&mut self, name: &str) -> usize {
        let next = self.names.len();
        *self.names.entry(name.to_owned()).or_insert(next)
    }

    /// Skips blanks and comments, and line breaks too if `over_lines`.
    fn space(&mut self, over_lines: bool) {
        while let Some(next) = self.peek() {
            match next {
                ' ' | '\t' => self.at += 1,
                '\n' | '\r' if over_lines => self.at += 1,
                '#' => {
                    while self.peek().is_some_and(|next| !matches!(next, '\n' | '\r')) {
                        self.at += 1;
                    }
                }
                _ => return,
            }
        }
    }

    fn name(&mut self) -> Result<String, GrammarError> {
        let start = self.at;
        while self.peek().is_some_and(is_word) {
            self.at += 1;
        }
        if start == self.at {
            let found = self.peek().map_or("the end".into(), |found| format!("`{found}`"));
            return Err(self.wrong(start, format!("expected the name of a rule, found {found}")));
        }
        Ok(self.characters[start..self.at].iter().collect())
    }

    fn choice(&mut self, level: usize) -> Result<Node, GrammarError> {
        if level > MOST_LEVELS {
            return Err(self.wrong(self.at, format!("more than {MOST_LEVELS} levels of parentheses")));
        }
        let mut options = vec![self.sequence(level)?];
        while self.peek() == Some('|') {
            self.at += 1;
            self.space(true);
            options.push(self.sequence(level)?);
        }
        Ok(if options.len() == 1 { options.remove(0) } else { Node::Choice(options) })
    }

    fn sequence(&mut self, level: usize) -> Result<Node, GrammarError> {
        let mut parts: Vec<Node> = Vec::new();
        // An empty text can be followed by nothing that repeats it.
        let mut can_repeat = false;
        while let Some(next) = self.peek() {
            let start = self.at;
            let part = match next {
                '"' => Some(self.literal()?),
                '[' => Some(self.class()?),
                '<' | '!' => Some(self.token()?),
                '(' => {
                    self.at += 1;
                    self.space(true);
                    let inner = self.choice(level + 1)?;
                    if self.peek() != Some(')') {
                        return Err(self.wrong(self.at, "expected `)`".into()));
                    }
                    self.at += 1;
                    Some(inner)
                }
                '.' => {
                    self.at += 1;
                    Some(Node::Char(complement(&[])))
                }
                next if is_word(next) => {
                    let name = self.name()?;
                    let number = self.number(&name);
                    self.uses.push((number, start));
                    Some(Node::Rule(number))
                }
                '*' | '+' | '?' | '{' => None,
                _ => break,
            };
            if let Some(part) = part {
                can_repeat = start + 2 != self.at || next != '"';
                parts.push(part);
            } else {
                let (least, most) = self.times()?;
                let Some(last) = parts.pop().filter(|_| can_repeat) else {
                    return Err(self.wrong(start, format!("there is nothing in front of `{next}` to repeat")));
                };
                parts.push(Node::Repeat(Box::new(last), least, most));
            }
            self.space(level > 0);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Node::Sequence(parts) })
    }

    /// Parses a repetition operator: least and most number of times.
    fn times(&mut self) -> Result<(usize, Option<usize>), GrammarError> {
        let start = self.at;
        let sign = self.peek();
        self.at += 1;
        match sign {
            Some('*') => return Ok((0, None)),
            Some('+') => return Ok((1, None)),
            Some('?') => return Ok((0, Some(1))),
            _ => {}
        }
        self.space(true);
        let least = self.count()?;
        self.space(true);
        let mut most = Some(least);
        if self.peek() == Some(',') {
            self.at += 1;
            self.space(true);
            most = if self.peek() == Some('}') { None } else { Some(self.count()?) };
            self.space(true);
        }
        if self.peek() != Some('}') {
            return Err(self.wrong(self.at, "expected `}`".into()));
        }
        self.at += 1;
        if most.is_some_and(|most| most < least) {
            return Err(self.wrong(start, "the second number is less than the first".into()));
        }
        Ok((least, most))
    }

    fn count(&mut self) -> Result<usize, GrammarError> {
        let start = self.at;
        while self.peek().is_some_and(|next| next.is_ascii_digit()) {
            self.at += 1;
        }
        let digits: String = self.characters[start..self.at].iter().collect();
        match digits.parse() {
            Ok(count) if count <= MOST_TIMES => Ok(count),
            _ if digits.is_empty() => Err(self.wrong(start, "expected a number".into())),
            _ => Err(self.wrong(start, format!("at most {MOST_TIMES} repetitions are possible"))),
        }
    }

    fn literal(&mut self) -> Result<Node, GrammarError> {
        let start = self.at;
        self.at += 1;
        let mut parts = Vec::new();
        while self.peek() != Some('"') {
            let code = self.character(start, "the text")?;
            parts.push(Node::Char(vec![(code, code)]));
        }
        self.at += 1;
        Ok(if parts.len() == 1 { parts.remove(0) } else { Node::Sequence(parts) })
    }

    fn class(&mut self) -> Result<Node, GrammarError> {
        let start = self.at;
        self.at += 1;
        let is_negative = self.peek() == Some('^');
        self.at += usize::from(is_negative);
        let mut ranges = Vec::new();
        while self.peek() != Some(']') {
            let first = self.character(start, "the class")?;
            let mut last = first;
            if self.peek() == Some('-') && self.characters.get(self.at + 1) != Some(&']') {
                self.at += 1;
                last = self.character(start, "the class")?;
            }
            if last < first {
                return Err(self.wrong(start, "a range ends before it begins".into()));
            }
            ranges.push((first, last));
        }
        self.at += 1;
        let ranges = if is_negative { complement(&ranges) } else { complement(&complement(&ranges)) };
        if ranges.is_empty() {
            return Err(self.wrong(start, "the class has no characters".into()));
        }
        Ok(Node::Char(ranges))
    }

    /// Parses a character or an escape.
    fn character(&mut self, start: usize, within: &str) -> Result<u32, GrammarError> {
        let Some(next) = self.peek() else {
            return Err(self.wrong(start, format!("{within} does not end")));
        };
        let escape = self.at;
        self.at += 1;
        if next != '\\' {
            return Ok(next as u32);
        }
        let Some(kind) = self.peek() else {
            return Err(self.wrong(start, format!("{within} does not end")));
        };
        self.at += 1;
        let digits = match kind {
            't' => return Ok(9),
            'n' => return Ok(10),
            'r' => return Ok(13),
            '\\' | '"' | '[' | ']' | '-' => return Ok(kind as u32),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            other => return Err(self.wrong(escape, format!("unknown escape `\\{other}`"))),
        };
        let hex: String = self.characters[self.at..].iter().take(digits).collect();
        let code =
            u32::from_str_radix(&hex, 16).ok().filter(|_| hex.len() == digits && !hex.starts_with('+'));
        let Some(code) = code else {
            return Err(self.wrong(escape, format!("expected {digits} hexadecimal digits behind `\\{kind}`")));
        };
        self.at += digits;
        match char::from_u32(code) {
            Some(_) => Ok(code),
            None => Err(self.wrong(escape, format!("there is no character {code:X}"))),
        }
    }

    /// Parses a token: `<name>`, `<[id]>`, or either after `!`.
    fn token(&mut self) -> Result<Node, GrammarError> {
        let start = self.at;
        let is_other = self.peek() == Some('!');
        self.at += usize::from(is_other);
        let name_start = self.at;
        if self.peek() != Some('<') {
            return Err(self.wrong(self.at, "expected `<` behind `!`".into()));
        }
        while self.peek().is_some_and(|next| next != '>' && next != '\n') {
            self.at += 1;
        }
        if self.peek() != Some('>') {
            return Err(self.wrong(start, "the token does not end".into()));
        }
        self.at += 1;
        let name: String = self.characters[name_start..self.at].iter().collect();
        let by_id = name.strip_prefix("<[").and_then(|rest| rest.strip_suffix("]>"));
        let id = match by_id {
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse().ok(),
            _ => (self.token_id)(&name),
        };
        match id {
            Some(id) if is_other => Ok(Node::OtherToken(id)),
            Some(id) => Ok(Node::Token(id)),
            None => Err(self.wrong(start, format!("the vocabulary has no token `{name}`"))),
        }
    }
}

fn is_word(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '-' || character == '_'
}

/// The ranges of all characters that are in none of `ranges`.
fn complement(ranges: &[(u32, u32)]) -> Vec<(u32, u32)> {
    const SURROGATES: (u32, u32) = (0xD800, 0xDFFF);
    const END: u32 = char::MAX as u32 + 1;
    let mut taken = ranges.to_vec();
    taken.push(SURROGATES);
    taken.sort_unstable();
    let (mut free, mut next) = (Vec::new(), 0);
    for (first, last) in taken {
        if first > next {
            free.push((next, first - 1));
        }
        next = next.max(last.saturating_add(1));
    }
    if next < END {
        free.push((next, END - 1));
    }
    free
}
