//! Converts GBNF, llama.cpp's notation for grammars, to Lark.
//!
//! GBNF has no lexer: a text is a sequence of characters. The parser's lexer always takes the longest lexeme that fits, and is
//! fast only if lexemes are long. So the grammar is cut into lexemes that are as long as possible without taking a character too
//! many: `syntax` makes a tree, `regular` finds parts without recursion, which are regular expressions, `cut` chooses the
//! lexemes, and `conflict` proves by automata that every text can only continue from the longest match. If the proof fails for a
//! lexeme, the lexeme is cut into its parts, in the end into characters.

mod automaton;
mod conflict;
mod cut;
mod regular;
mod syntax;

use crate::GrammarError;

/// The Lark grammar with the same texts as a GBNF grammar. `token_id` finds the tokens that the grammar names, as in `<think>`.
///
/// # Errors
///
/// [`GrammarError::Gbnf`] with line and column, [`GrammarError::TooLarge`].
pub fn to_lark(text: &str, token_id: &dyn Fn(&str) -> Option<u32>) -> Result<String, GrammarError> {
    let rules = syntax::parse(text, token_id)?;
    let regular = regular::expressions(&rules)?;
    Ok(cut::lark(&rules, &regular))
}
