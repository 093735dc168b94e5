//! Converts parts of a grammar without recursion to regular expressions.

use std::fmt::Write;

use super::syntax::{Node, Rule};
use crate::{GrammarError, stop};

/// Most bytes of a regular expression of a lexeme. Parts with longer ones are cut.
pub const LONGEST: usize = 8 << 10;
/// Most characters, tokens and uses of rules in a grammar, with repetitions counted as often as they may occur.
const MOST_PARTS: usize = 200_000;

/// A regular expression.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Expression {
    pub text: String,
    /// True if the expression matches the empty text.
    pub is_nullable: bool,
}

/// The regular expression of each rule; `None` for rules that are recursive, use tokens, or are too long.
pub fn expressions(rules: &[Rule]) -> Result<Vec<Option<Expression>>, GrammarError> {
    let parts = rules.iter().map(|rule| weight(&rule.body)).fold(0, usize::saturating_add);
    if parts > MOST_PARTS {
        return Err(GrammarError::TooLarge {
            what: "parts of a GBNF grammar",
            count: parts,
            most: MOST_PARTS,
        });
    }
    let mut found: Vec<Option<Expression>> = vec![None; rules.len()];
    // A rule is regular once all rules that it uses are; recursive ones never come to be.
    loop {
        stop::check()?;
        let mut has_new = false;
        for (number, rule) in rules.iter().enumerate() {
            if found[number].is_none()
                && let Some(expression) = expression(&rule.body, &found)
            {
                found[number] = Some(expression);
                has_new = true;
            }
        }
        if !has_new {
            return Ok(found);
        }
    }
}

/// The regular expression of a part; `None` if the part is not regular or the expression is too long.
pub fn expression(node: &Node, rules: &[Option<Expression>]) -> Option<Expression> {
    let mut text = String::new();
    let is_nullable = write_node(node, rules, &mut text)?;
    Some(Expression { text, is_nullable })
}

/// Appends the expression of a part; returns whether the part may be empty. `None` if the part is not regular.
fn write_node(node: &Node, rules: &[Option<Expression>], text: &mut String) -> Option<bool> {
    let is_nullable = match node {
        Node::Char(ranges) => {
            write_class(ranges, text);
            false
        }
        Node::Token(_) | Node::OtherToken(_) => return None,
        Node::Rule(number) => {
            let rule = rules[*number].as_ref()?;
            text.push_str("(?:");
            text.push_str(&rule.text);
            text.push(')');
            rule.is_nullable
        }
        Node::Sequence(parts) => {
            let mut is_nullable = true;
            for part in parts {
                let is_choice = matches!(part, Node::Choice(_));
                text.push_str(if is_choice { "(?:" } else { "" });
                is_nullable &= write_node(part, rules, text)?;
                text.push_str(if is_choice { ")" } else { "" });
            }
            is_nullable
        }
        Node::Choice(options) => {
            let mut is_nullable = false;
            for (number, option) in options.iter().enumerate() {
                text.push_str(if number > 0 { "|" } else { "" });
                is_nullable |= write_node(option, rules, text)?;
            }
            is_nullable
        }
        Node::Repeat(inner, least, most) => {
            text.push_str("(?:");
            let is_nullable = write_node(inner, rules, text)?;
            text.push(')');
            text.push_str(&times(*least, *most));
            is_nullable || *least == 0
        }
    };
    (text.len() <= LONGEST).then_some(is_nullable)
}

/// The repetition operator of regular expressions and of Lark, such as `{2,5}`.
pub fn times(least: usize, most: Option<usize>) -> String {
    match (least, most) {
        (0, None) => "*".into(),
        (1, None) => "+".into(),
        (0, Some(1)) => "?".into(),
        (least, None) => format!("{{{least},}}"),
        (least, Some(most)) => format!("{{{least},{most}}}"),
    }
}

fn write_class(ranges: &[(u32, u32)], text: &mut String) {
    let single = |code: u32| match char::from_u32(code) {
        Some(letter) if letter.is_ascii_alphanumeric() => letter.to_string(),
        _ => format!("\\x{{{code:X}}}"),
    };
    if let [(first, last)] = ranges
        && first == last
    {
        text.push_str(&single(*first));
        return;
    }
    text.push('[');
    for &(first, last) in ranges {
        let end = if last > first { format!("-{}", single(last)) } else { String::new() };
        // Writing to a text cannot fail.
        let _ = write!(text, "{}{end}", single(first));
    }
    text.push(']');
}

/// Number of characters, tokens and uses of rules in a part, counted as often as they may occur.
fn weight(node: &Node) -> usize {
    match node {
        Node::Char(_) | Node::Token(_) | Node::OtherToken(_) | Node::Rule(_) => 1,
        Node::Sequence(parts) | Node::Choice(parts) => {
            parts.iter().map(weight).fold(1, usize::saturating_add)
        }
        Node::Repeat(inner, least, most) => {
            weight(inner).saturating_mul(most.unwrap_or(*least).max(*least).max(1)).saturating_add(1)
        }
    }
}
