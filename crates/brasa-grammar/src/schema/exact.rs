//! Regular expressions for exact numbers, and their placeholders in the parser's form of a grammar.

use llguidance::api::{GrammarInit, ParserLimits, TopLevelGrammar};
use llguidance::derivre::RegexAst;
use llguidance::earley::lexerspec::{LexemeClass, LexerSpec};
use llguidance::toktrie::TokEnv;

use super::numbers::MARK;

/// Most different expressions of numbers in one grammar.
const MOST_EXACT: usize = 400;

/// Expressions of numbers, each with a placeholder number for use in a schema.
#[derive(Clone, Default)]
pub struct Exact {
    lexemes: Vec<RegexAst>,
}

impl Exact {
    /// Adds an expression; returns its number. `None` if there are too many.
    pub fn add(&mut self, lexeme: RegexAst) -> Option<usize> {
        self.lexemes.push(lexeme);
        (self.lexemes.len() <= MOST_EXACT).then_some(self.lexemes.len() - 1)
    }

    /// The parser's form of a grammar, with placeholders replaced by the expressions.
    ///
    /// # Errors
    ///
    /// The parser's error.
    pub fn exchange(
        &self,
        grammar: TopLevelGrammar,
        environment: &TokEnv,
        limits: &ParserLimits,
    ) -> Result<GrammarInit, String> {
        let plain = |error: &dyn ToString| error.to_string();
        let (grammar, mut lexer) = GrammarInit::Serialized(grammar)
            .to_internal(Some(environment.clone()), limits.clone())
            .map_err(|error| plain(&error))?;
        for (number, lexeme) in self.lexemes.iter().enumerate() {
            exchange(&mut lexer, number, lexeme).map_err(|error| plain(&error))?;
        }
        if !self.lexemes.is_empty() && lexer.cost() > limits.initial_lexer_fuel {
            return Err("the numbers of the schema have too many digits".into());
        }
        Ok(GrammarInit::Internal(grammar, lexer))
    }
}

/// Replaces the lexeme of one placeholder by its expression, in every class of lexemes that has it.
fn exchange(lexer: &mut LexerSpec, number: usize, lexeme: &RegexAst) -> Result<(), String> {
    let plain = |error: &dyn ToString| error.to_string();
    let add = |lexer: &mut LexerSpec, lexeme: RegexAst| {
        let added = lexer.add_greedy_lexeme(String::new(), lexeme, false, None, usize::MAX);
        added.map(|id| id.as_usize()).map_err(|error| plain(&error))
    };
    // As the parser writes the number.
    let stand = RegexAst::Regex(format!("({})", regex_syntax::escape(&stand(number).to_string())));
    for class in 0..lexer.skip_by_class.len() {
        lexer.current_class = LexemeClass::new(class);
        let count = lexer.lexemes.len();
        let at = add(lexer, stand.clone())?;
        if at == count {
            // The class had none.
            lexer.lexemes.truncate(count);
            continue;
        }
        let behind = lexer.lexemes.split_off(at);
        if add(lexer, lexeme.clone())? != at {
            // The same expression is there already. This one differs in a text that is no number.
            let other = RegexAst::Not(Box::new(RegexAst::Literal(name(number))));
            add(lexer, RegexAst::And(vec![lexeme.clone(), other]))?;
        }
        if lexer.lexemes.len() != at + 1 {
            return Err("numbers beyond 2^53 are not supported here".into());
        }
        lexer.lexemes.extend(behind.into_iter().skip(1));
    }
    Ok(())
}

/// The name of the definition of expression `number`.
pub fn name(number: usize) -> String {
    format!("{MARK}-{number}")
}

/// The placeholder of expression `number`. The parser prints it with exactly its digits.
pub fn stand(number: usize) -> f64 {
    (451_773_906_281_000.0 + (number * 10 + 7) as f64) / 1e15
}
