//! Cuts a GBNF grammar into lexemes and writes it as Lark.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;
use std::rc::Rc;

use super::automaton::{Automaton, Bytes, START};
use super::conflict::{Budget, conflict};
use super::regular::{Expression, expression, times};
use super::syntax::{Node, Rule};
use crate::stop;

/// Most pairs of states that are examined before everything is cut into characters.
const MOST_PAIRS: usize = 200_000;
/// Most lexemes for which pairs are examined.
const MOST_LEXEMES: usize = 200;
/// Most rounds in which only conflicting lexemes are cut, before all lexemes are.
const MOST_ROUNDS: usize = 20;

/// A part of a rule in terms of lexemes.
enum Piece {
    Lexeme(usize),
    Token(u32),
    OtherToken(u32),
    Rule(usize),
    Sequence(Vec<Piece>),
    Choice(Vec<Piece>),
    Repeat(Box<Piece>, usize, Option<usize>),
}

/// A lexeme of the grammar.
struct Lexeme {
    expression: Expression,
    is_character: bool,
    /// The lexeme's automaton; `None` if it is not computed yet or too large.
    automaton: Option<Rc<Automaton>>,
    first: Bytes,
    follow: Bytes,
}

/// The Lark grammar. `regular` has the regular expressions of rules without recursion.
pub fn lark(rules: &[Rule], regular: &[Option<Expression>]) -> String {
    if let Some(whole) = &regular[0] {
        // One lexeme is the whole text: there is nothing that it could take too much of.
        let lexeme = Lexeme::new(whole.clone(), false);
        let sign = if whole.is_nullable { "?" } else { "" };
        let is_empty = whole.text.is_empty();
        return if is_empty {
            "start: \"\"\n".into()
        } else {
            format!("start: T0{sign}\n{}\n", lexeme.terminal(0))
        };
    }
    let (mut cuts, mut automata) = (HashSet::new(), HashMap::new());
    let (mut budget, mut rounds) = (Budget(MOST_PAIRS), 0);
    loop {
        // What nobody waits for may be anything.
        if stop::is_given() {
            return String::new();
        }
        let mut cutter = Cutter { regular, cuts: &cuts, lexemes: Vec::new(), numbers: HashMap::new() };
        let pieces = cutter.rules(rules);
        let mut lexemes = cutter.lexemes;
        let wrong = if lexemes.len() > MOST_LEXEMES || budget.0 == 0 || rounds == MOST_ROUNDS {
            (0..lexemes.len()).filter(|&number| !lexemes[number].is_character).collect()
        } else {
            for lexeme in &mut lexemes {
                lexeme.prepare(&mut automata);
            }
            follow(&pieces, &mut lexemes);
            conflicts(&lexemes, &mut budget)
        };
        if wrong.is_empty() {
            return write(&pieces, &lexemes);
        }
        rounds = (rounds + 1).min(MOST_ROUNDS);
        cuts.extend(wrong.into_iter().map(|number| lexemes[number].expression.text.clone()));
    }
}

/// Lexemes that must be cut: of each conflicting pair, the lexeme that continues, which is never a single character.
fn conflicts(lexemes: &[Lexeme], budget: &mut Budget) -> Vec<usize> {
    let is_wrong = |lexeme: &Lexeme, budget: &mut Budget| {
        if stop::is_given() {
            return true;
        }
        let Some(automaton) = &lexeme.automaton else { return true };
        lexemes
            .iter()
            .filter(|one| one.first.meets(&lexeme.first))
            .any(|one| one.automaton.as_ref().is_some_and(|own| conflict(own, one.follow, automaton, budget)))
    };
    let composite = lexemes.iter().enumerate().filter(|(_, lexeme)| !lexeme.is_character);
    composite.filter(|(_, lexeme)| is_wrong(lexeme, budget)).map(|(number, _)| number).collect()
}

struct Cutter<'a> {
    regular: &'a [Option<Expression>],
    /// Expressions that must not be lexemes.
    cuts: &'a HashSet<String>,
    lexemes: Vec<Lexeme>,
    numbers: HashMap<String, usize>,
}

impl Cutter<'_> {
    /// The pieces of the rules that the first rule needs; `None` for other rules.
    fn rules(&mut self, rules: &[Rule]) -> Vec<Option<Piece>> {
        let mut pieces: Vec<Option<Piece>> = rules.iter().map(|_| None).collect();
        let mut open = vec![0];
        while let Some(number) = open.pop() {
            if pieces[number].is_some() || stop::is_given() {
                continue;
            }
            let mut used = Vec::new();
            pieces[number] = Some(self.parts(&rules[number].body, &mut used));
            open.extend(used);
        }
        pieces
    }

    /// The piece for a part: one lexeme, if the part is regular and may be a lexeme.
    fn part(&mut self, node: &Node, used: &mut Vec<usize>) -> Piece {
        match expression(node, self.regular).and_then(|text| self.lexeme(text, matches!(node, Node::Char(_))))
        {
            Some(lexeme) => Piece::Lexeme(lexeme),
            None => self.parts(node, used),
        }
    }

    fn lexeme(&mut self, expression: Expression, is_character: bool) -> Option<usize> {
        if expression.text.is_empty() || (!is_character && self.cuts.contains(&expression.text)) {
            return None;
        }
        if let Some(&number) = self.numbers.get(&expression.text) {
            return Some(number);
        }
        let number = self.lexemes.len();
        self.numbers.insert(expression.text.clone(), number);
        self.lexemes.push(Lexeme::new(expression, is_character));
        Some(number)
    }

    /// The piece for a part that must not be one lexeme, from its parts.
    fn parts(&mut self, node: &Node, used: &mut Vec<usize>) -> Piece {
        match node {
            Node::Char(_) => self.part(node, used),
            Node::Token(id) => Piece::Token(*id),
            Node::OtherToken(id) => Piece::OtherToken(*id),
            Node::Rule(number) => {
                used.push(*number);
                Piece::Rule(*number)
            }
            Node::Choice(options) => {
                Piece::Choice(options.iter().map(|option| self.part(option, used)).collect())
            }
            Node::Repeat(inner, least, most) => {
                Piece::Repeat(Box::new(self.part(inner, used)), *least, *most)
            }
            Node::Sequence(parts) => Piece::Sequence(self.runs(parts, used)),
        }
    }

    /// The pieces of a sequence. Adjacent regular parts become one lexeme if they may.
    fn runs(&mut self, parts: &[Node], used: &mut Vec<usize>) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut at = 0;
        while at < parts.len() {
            let is_regular = |part: &Node| expression(part, self.regular).is_some();
            let end = at + parts[at..].iter().take_while(|part| is_regular(part)).count();
            let is_whole = at == 0 && end == parts.len();
            let run = &parts[at..end];
            let joined = (run.len() > 1 && !is_whole)
                .then(|| expression(&Node::Sequence(run.to_vec()), self.regular))
                .flatten()
                .and_then(|text| self.lexeme(text, false));
            if let Some(lexeme) = joined {
                pieces.push(Piece::Lexeme(lexeme));
            } else {
                pieces.extend(run.iter().map(|part| self.part(part, used)));
            }
            if let Some(part) = parts.get(end) {
                pieces.push(self.part(part, used));
            }
            at = end + 1;
        }
        pieces
    }
}

impl Lexeme {
    fn new(expression: Expression, is_character: bool) -> Self {
        Self { expression, is_character, automaton: None, first: Bytes::default(), follow: Bytes::default() }
    }

    /// Computes the automaton, or takes it from `known`, the results of earlier rounds.
    fn prepare(&mut self, known: &mut HashMap<String, Option<Rc<Automaton>>>) {
        let text = &self.expression.text;
        let automaton = known.entry(text.clone()).or_insert_with(|| Automaton::new(text).map(Rc::new));
        self.automaton.clone_from(automaton);
        self.first = self.automaton.as_ref().map_or_else(Bytes::default, |own| own.onward(START));
    }

    /// The definition of a terminal. Lexemes are never empty: a rule makes a lexeme optional instead.
    fn terminal(&self, number: usize) -> String {
        let rest = if self.expression.is_nullable { " & /(?s:.)+/" } else { "" };
        format!("T{number}: /{}/{rest}", self.expression.text)
    }
}

/// The bytes that a part may begin with, and whether it may be empty.
type Begin = (Bytes, bool);

/// Finds the bytes that may follow each lexeme.
fn follow(pieces: &[Option<Piece>], lexemes: &mut [Lexeme]) {
    let mut begins: Vec<Begin> = pieces.iter().map(|_| (Bytes::default(), false)).collect();
    while pieces.iter().enumerate().fold(false, |has_new, (number, piece)| {
        let Some(piece) = piece else { return has_new };
        let (bytes, is_nullable) = begin(piece, lexemes, &begins);
        let is_new = begins[number].0.add_all(bytes) || (is_nullable && !begins[number].1);
        begins[number].1 |= is_nullable;
        has_new | is_new
    }) {}
    let mut follows: Vec<Bytes> = pieces.iter().map(|_| Bytes::default()).collect();
    let mut has_new = true;
    while has_new {
        has_new = false;
        for number in 0..pieces.len() {
            if let Some(piece) = &pieces[number] {
                let after = follows[number];
                has_new |= spread(piece, after, lexemes, &begins, &mut follows);
            }
        }
    }
}

fn begin(piece: &Piece, lexemes: &[Lexeme], rules: &[Begin]) -> Begin {
    match piece {
        Piece::Lexeme(number) => (lexemes[*number].first, lexemes[*number].expression.is_nullable),
        Piece::Token(_) | Piece::OtherToken(_) => (Bytes::default(), false),
        Piece::Rule(number) => rules[*number],
        Piece::Sequence(parts) => {
            let mut bytes = Bytes::default();
            for part in parts {
                let (first, is_nullable) = begin(part, lexemes, rules);
                bytes.add_all(first);
                if !is_nullable {
                    return (bytes, false);
                }
            }
            (bytes, true)
        }
        Piece::Choice(options) => {
            options.iter().fold((Bytes::default(), false), |(mut bytes, nullable), option| {
                let (first, is_nullable) = begin(option, lexemes, rules);
                bytes.add_all(first);
                (bytes, nullable | is_nullable)
            })
        }
        Piece::Repeat(inner, least, _) => {
            let (bytes, is_nullable) = begin(inner, lexemes, rules);
            (bytes, is_nullable || *least == 0)
        }
    }
}

/// Adds to the lexemes and rules of a part the bytes that may follow them, if the bytes `after` may follow the part. Returns true
/// if any byte was new.
fn spread(
    piece: &Piece,
    after: Bytes,
    lexemes: &mut [Lexeme],
    rules: &[Begin],
    follows: &mut [Bytes],
) -> bool {
    match piece {
        Piece::Lexeme(number) => lexemes[*number].follow.add_all(after),
        Piece::Token(_) | Piece::OtherToken(_) => false,
        Piece::Rule(number) => follows[*number].add_all(after),
        Piece::Sequence(parts) => {
            let (mut after, mut has_new) = (after, false);
            for part in parts.iter().rev() {
                has_new |= spread(part, after, lexemes, rules, follows);
                let (mut first, is_nullable) = begin(part, lexemes, rules);
                if is_nullable {
                    first.add_all(after);
                }
                after = first;
            }
            has_new
        }
        Piece::Choice(options) => options
            .iter()
            .fold(false, |has_new, option| has_new | spread(option, after, lexemes, rules, follows)),
        Piece::Repeat(inner, _, most) => {
            let mut after = after;
            if *most != Some(1) {
                after.add_all(begin(inner, lexemes, rules).0);
            }
            spread(inner, after, lexemes, rules, follows)
        }
    }
}

fn write(pieces: &[Option<Piece>], lexemes: &[Lexeme]) -> String {
    let mut text = String::from("start: r0\n");
    for (number, piece) in pieces.iter().enumerate() {
        if let Some(piece) = piece {
            let _ = write!(text, "r{number}: ");
            write_piece(piece, lexemes, &mut text);
            text.push('\n');
        }
    }
    for (number, lexeme) in lexemes.iter().enumerate() {
        text.push_str(&lexeme.terminal(number));
        text.push('\n');
    }
    text
}

fn write_piece(piece: &Piece, lexemes: &[Lexeme], text: &mut String) {
    // Writing to a text cannot fail.
    let _ = match piece {
        Piece::Lexeme(number) => {
            write!(text, "T{number}{}", if lexemes[*number].expression.is_nullable { "?" } else { "" })
        }
        Piece::Token(id) => write!(text, "<[{id}]>"),
        Piece::OtherToken(id) => write!(text, "<[^{id}]>"),
        Piece::Rule(number) => write!(text, "r{number}"),
        Piece::Sequence(parts) if parts.is_empty() => write!(text, "\"\""),
        Piece::Sequence(parts) => {
            write_list(parts, " ", lexemes, text);
            Ok(())
        }
        Piece::Choice(options) => {
            write_list(options, " | ", lexemes, text);
            Ok(())
        }
        Piece::Repeat(_, 0, Some(0)) => write!(text, "\"\""),
        Piece::Repeat(inner, least, most) => {
            text.push('(');
            write_piece(inner, lexemes, text);
            write!(text, "){}", times(*least, *most))
        }
    };
}

fn write_list(parts: &[Piece], between: &str, lexemes: &[Lexeme], text: &mut String) {
    text.push('(');
    for (number, part) in parts.iter().enumerate() {
        text.push_str(if number > 0 { between } else { "" });
        write_piece(part, lexemes, text);
    }
    text.push(')');
}
