//! A cache of the grammars that were compiled last, and of their errors.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use crate::{CompiledGrammar, Grammar, GrammarError};

/// A compiled grammar, or the error of compiling it.
type Compiled = Result<Arc<CompiledGrammar>, GrammarError>;

/// Compiled grammars, least recently used first, within a budget of bytes of source.
///
/// Keys are whole texts: a schema with its properties in another order counts as another grammar.
#[derive(Default)]
pub struct Cache {
    kept: Mutex<VecDeque<(String, Compiled)>>,
}

impl Cache {
    /// The compiled grammar or its error, if it is cached. Marks it as used last.
    pub fn find(&self, key: &str) -> Option<Compiled> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.iter().position(|(found, _)| found == key)?;
        let entry = kept.remove(at)?;
        let compiled = entry.1.clone();
        kept.push_back(entry);
        Some(compiled)
    }

    /// Keeps a grammar. Drops the least recently used grammars while more than `most` are kept, or while their sources have more
    /// than `budget_bytes`.
    pub fn keep(&self, key: String, compiled: &Compiled, most: usize, budget_bytes: usize) {
        if key.len() > budget_bytes {
            return;
        }
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|(found, _)| *found != key);
        kept.push_back((key, compiled.clone()));
        let mut bytes: usize = kept.iter().map(|(key, _)| key.len()).sum();
        while kept.len() > most || bytes > budget_bytes {
            let Some((key, _)) = kept.pop_front() else { return };
            bytes -= key.len();
        }
    }
}

/// The key of a grammar in the cache: a text that identifies its kind and source.
pub fn key(grammar: &Grammar) -> String {
    let (kind, text) = match grammar {
        Grammar::JsonSchema(schema) => ("schema", &schema.to_string()),
        Grammar::LenientJsonSchema(schema) => ("lenient", &schema.to_string()),
        Grammar::AnyJson => ("json", &String::new()),
        Grammar::OneOf(grammars) => {
            // With its length in front, no key can be taken for the end of another.
            let keys = grammars.iter().map(key).map(|key| format!("{} {key} ", key.len()));
            ("one", &keys.collect::<String>())
        }
        Grammar::AfterSpace(grammar) => ("space", &key(grammar)),
        Grammar::Regex(text) => ("regex", text),
        Grammar::Lark(text) => ("lark", text),
        Grammar::Gbnf(text) => ("gbnf", text),
    };
    format!("{kind} {text}")
}
