//! Checks the source before parsing, because the parser and all later stages recurse with the nesting of the source.

use minijinja::machinery::{Token, tokenize};
use minijinja::syntax::SyntaxConfig;

use crate::{Result, TokenizerError};

/// Most bytes of a template's source; published ones stay below 50 kB.
pub const LARGEST_BYTES: usize = 1 << 20;
/// Most tokens of one tag.
const MOST_TOKENS: usize = 20_000;
/// Most tokens of one tag that may nest an expression: operators, dots, pipes, brackets, `if` and `else`.
const MOST_OPERATORS: usize = 4_000;
/// Most nested brackets.
const MOST_BRACKETS: usize = 100;
/// Most `not` or signs in a row, and most `else` in one expression.
const MOST_IN_A_ROW: usize = 100;
/// Most nested tags. Each `elif` counts, since it is an `if` in the `else` of the preceding one.
const MOST_BLOCKS: usize = 500;

/// Refuses source that is too large or too deeply nested, and names the line.
///
/// Source that is not a valid template is accepted here, and refused by the parser with its own message.
pub fn check(source: &str, syntax: SyntaxConfig) -> Result<()> {
    if source.len() > LARGEST_BYTES {
        return Err(TokenizerError::Template {
            reason: format!("{} bytes found, expected at most {LARGEST_BYTES}", source.len()),
        });
    }
    let mut tag = Tag::default();
    // For each open block, how many levels it takes.
    let mut blocks: Vec<usize> = Vec::new();
    let mut depth = 0;
    let mut at_start = false;
    for token in tokenize(source, false, syntax) {
        let Ok((token, span)) = token else { return Ok(()) };
        let line = span.start_line;
        if at_start && let Token::Ident(word) = token {
            match word {
                "for" | "if" | "macro" | "call" | "filter" | "with" | "block" | "autoescape" | "set" => {
                    blocks.push(1);
                    depth += 1;
                }
                "elif" | "else" => {
                    if let Some(levels) = blocks.last_mut() {
                        *levels += 1;
                        depth += 1;
                    }
                }
                _ if word.starts_with("end") => depth -= blocks.pop().unwrap_or(0),
                _ => {}
            }
            if depth > MOST_BLOCKS {
                return Err(refusal("blocks nested", MOST_BLOCKS, line));
            }
        }
        at_start = false;
        match token {
            Token::BlockStart | Token::VariableStart => {
                tag = Tag::default();
                at_start = matches!(token, Token::BlockStart);
            }
            Token::BlockEnd if tag.is_assignment => {
                // `{% set x = 1 %}` opens nothing.
                depth -= blocks.pop().unwrap_or(0);
            }
            _ => tag.count(&token, line)?,
        }
    }
    Ok(())
}

/// Counts for the tag that is being read.
#[derive(Default)]
struct Tag {
    tokens: usize,
    operators: usize,
    brackets: usize,
    row: usize,
    elses: usize,
    is_set: bool,
    is_assignment: bool,
}

impl Tag {
    fn count(&mut self, token: &Token<'_>, line: u16) -> Result<()> {
        self.tokens += 1;
        self.is_set |= self.tokens == 1 && matches!(token, Token::Ident("set"));
        self.is_assignment |= self.is_set && self.brackets == 0 && matches!(token, Token::Assign);
        match token {
            Token::ParenOpen | Token::BracketOpen | Token::BraceOpen => self.brackets += 1,
            Token::ParenClose | Token::BracketClose | Token::BraceClose => {
                self.brackets = self.brackets.saturating_sub(1);
            }
            Token::Ident("if" | "else") => self.elses += 1,
            _ => {}
        }
        let prefix = matches!(token, Token::Ident("not") | Token::Minus | Token::Plus | Token::Pow);
        self.row = if prefix { self.row + 1 } else { 0 };
        let leaf = matches!(
            token,
            Token::Comma
                | Token::Colon
                | Token::Str(_)
                | Token::String(_)
                | Token::Int(_)
                | Token::Int128(_)
                | Token::Float(_)
                | Token::ParenClose
                | Token::BracketClose
                | Token::BraceClose
        ) || matches!(token, Token::Ident(word)
            if !matches!(*word, "not" | "and" | "or" | "in" | "is" | "if" | "else"));
        self.operators += usize::from(!leaf);
        for (name, count, most) in [
            ("tokens in one tag", self.tokens, MOST_TOKENS),
            ("operators in one tag", self.operators, MOST_OPERATORS),
            ("brackets nested", self.brackets, MOST_BRACKETS),
            ("`not` or signs in a row", self.row, MOST_IN_A_ROW),
            ("`if` and `else` in one tag", self.elses, MOST_IN_A_ROW),
        ] {
            if count > most {
                return Err(refusal(name, most, line));
            }
        }
        Ok(())
    }
}

fn refusal(what: &str, most: usize, line: u16) -> TokenizerError {
    TokenizerError::Template { reason: format!("more than {most} {what} (line {line})") }
}
