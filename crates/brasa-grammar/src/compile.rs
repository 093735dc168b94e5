//! Compiles grammars to parsers.

use std::fmt;
use std::sync::{Arc, OnceLock};

use brasa_tokenizer::{ThoughtMarks, Tokenizer};
use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::toktrie::InferenceCapabilities;
use llguidance::{Logger, Matcher, ParserFactory};
use serde_json::{Value, json};

use brasa_engine::MaskSource;

use crate::cache::{self, Cache};
use crate::limits::{KEPT_BYTES, KEPT_GRAMMARS, SOURCE_BYTES};
use crate::parser::{Parser, ReadMasks};
use crate::schema::{OneOf, Unsupported};
use crate::shapes::Shapes;
use crate::thoughts::AfterThoughts;
use crate::{
    CompiledGrammar, Grammar, GrammarError, compilers, gbnf, lark, limits, schema, stop, vocabulary,
};

/// Compiles grammars for one model.
///
/// Making a `Grammars` costs nothing. The first grammar takes the time to build a tree of all tokens: about a second for 150,000
/// tokens.
pub struct Grammars {
    tokenizer: Arc<Tokenizer>,
    vocab_size: usize,
    factory: OnceLock<Result<Arc<Factory>, GrammarError>>,
    cache: Cache,
}

/// Makes parsers for one vocabulary.
struct Factory {
    parsers: ParserFactory,
    masks: Arc<ReadMasks>,
    /// Characters of the longest token of the vocabulary.
    longest_chars: usize,
}

impl Factory {
    /// A parser at the beginning of a text of `grammar`.
    ///
    /// # Errors
    ///
    /// The error that `wrong` makes of the parser's message; [`GrammarError::Stopped`].
    fn matcher(
        &self,
        grammar: TopLevelGrammar,
        numbers: &schema::Exact,
        limits: ParserLimits,
        wrong: impl Fn(String) -> GrammarError,
    ) -> Result<Matcher, GrammarError> {
        let init = numbers.exchange(grammar, self.parsers.tok_env(), &limits).map_err(&wrong)?;
        stop::check()?;
        let logger = Logger::new(0, 0);
        let parser =
            self.parsers.create_parser_from_init_ext(init, logger, InferenceCapabilities::default(), limits);
        let mut parser = parser.map_err(|error| wrong(error.to_string()))?;
        stop::obeyed_by(&parser.enable_cancellation());
        parser.bias_computer = Arc::clone(&self.masks) as _;
        Ok(Matcher::new(Ok(parser)))
    }
}

impl Grammars {
    /// A compiler of grammars for a model with this tokenizer and `vocab_size` logits.
    pub fn new(tokenizer: Arc<Tokenizer>, vocab_size: usize) -> Self {
        Self { tokenizer, vocab_size, factory: OnceLock::new(), cache: Cache::default() }
    }

    /// Compiles a grammar. A grammar that was compiled recently comes from a cache.
    ///
    /// # Errors
    ///
    /// [`GrammarError`]: names the place where the grammar is wrong, or the part that is not supported.
    pub fn compile(&self, grammar: &Grammar) -> Result<Arc<CompiledGrammar>, GrammarError> {
        refuse_too_large(grammar)?;
        let key = cache::key(grammar);
        if let Some(compiled) = self.cache.find(&key) {
            return compiled;
        }
        let mut compiled = self.compile_afresh(grammar, OneOf::Narrowed);
        for one_of in [OneOf::NarrowedOrAnyOf, OneOf::AsAnyOf] {
            if matches!(&compiled, Err(GrammarError::Keyword { keyword, .. }) if keyword == "oneOf") {
                compiled = self.compile_afresh(grammar, one_of);
            }
        }
        // What is too slow once is not tried again.
        let is_lasting =
            !matches!(compiled, Err(GrammarError::Busy | GrammarError::Stopped | GrammarError::NoThread(_)));
        if is_lasting {
            self.cache.keep(key, &compiled, KEPT_GRAMMARS, KEPT_BYTES);
        }
        compiled
    }

    fn compile_afresh(&self, grammar: &Grammar, one_of: OneOf) -> Result<Arc<CompiledGrammar>, GrammarError> {
        let factory = Arc::clone(self.factory()?);
        let (kind, grammar) = (grammar.kind(), grammar.clone());
        let (tokenizer, vocab_size) = (Arc::clone(&self.tokenizer), self.vocab_size);
        let work = move || {
            let mut notes = schema::Notes { one_of, ..schema::Notes::default() };
            let (grammar, loose) = source(&grammar, &tokenizer, &mut notes)?;
            stop::check()?;
            let wrong = |what: String| refusal(kind, &what, &notes);
            let limits = if loose.is_some() { limits::exact_parser() } else { limits::parser() };
            let exact = factory.matcher(grammar, &notes.numbers, limits, wrong)?;
            // Without a loose form, the exact one does its work.
            let loose = loose.and_then(|loose| {
                let most_chars = loose.slack_chars.checked_sub(factory.longest_chars)?;
                let grammar = json_schema(loose.schema, Unsupported::Refused, notes.one_of);
                let parser = factory.matcher(grammar, &notes.numbers, limits::parser(), wrong);
                Some((parser.ok()?, most_chars))
            });
            stop::check()?;
            let parser = match loose {
                Some((loose, most_chars)) => Parser::with_loose(exact, loose, most_chars),
                None => Parser::new(exact),
            };
            let overlaps = notes.overlaps.iter().filter(|_| notes.one_of.coerces());
            let warnings = overlaps.map(|place| coerced(place)).collect();
            let compiled = CompiledGrammar::new(parser, kind, vocab_size, warnings);
            stop::check()?;
            Ok(Arc::new(compiled.map_err(wrong)?))
        };
        compilers::run(kind, work)
    }

    /// A mask that applies after the thoughts of an answer, for models that think first.
    ///
    /// `prompt_end` is the end of the prompt's text: the chat template may have begun the thoughts, or ended them.
    pub fn after_thoughts(
        &self,
        mask: Arc<dyn MaskSource>,
        marks: Option<&'static ThoughtMarks>,
        prompt_end: &str,
    ) -> Arc<dyn MaskSource> {
        match marks {
            Some(marks) => AfterThoughts::wrap(mask, &self.tokenizer, marks, prompt_end, self.vocab_size),
            None => mask,
        }
    }

    fn factory(&self) -> Result<&Arc<Factory>, GrammarError> {
        let made = self.factory.get_or_init(|| {
            let environment = vocabulary::environment(&self.tokenizer, self.vocab_size)?;
            let parsers = ParserFactory::new_simple(&environment).map_err(|error| GrammarError::Grammar {
                kind: "vocabulary",
                what: cleaned(&error.to_string()),
            })?;
            let masks = Arc::new(ReadMasks(Shapes::new(&environment, parsers.slicer())));
            let trie = environment.tok_trie();
            let chars = |id: u32| trie.token(id).iter().filter(|&byte| byte & 0xc0 != 0x80).count();
            let longest_chars = (0..trie.vocab_size() as u32).map(chars).max().unwrap_or(0);
            Ok(Arc::new(Factory { parsers, masks, longest_chars }))
        });
        made.as_ref().map_err(Clone::clone)
    }
}

impl fmt::Debug for Grammars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grammars").field("vocab_size", &self.vocab_size).finish_non_exhaustive()
    }
}

/// The grammar in the parser's form, and the loose form of a schema if it has one.
fn source(
    grammar: &Grammar,
    tokenizer: &Tokenizer,
    notes: &mut schema::Notes,
) -> Result<(TopLevelGrammar, Option<schema::Loose>), GrammarError> {
    let source = match grammar {
        Grammar::JsonSchema(value) => {
            let schema::Checked { exact, loose } = schema::checked(value, Unsupported::Refused, notes)?;
            return Ok((json_schema(exact, Unsupported::Refused, notes.one_of), loose));
        }
        Grammar::LenientJsonSchema(value) => {
            let checked = schema::checked(value, Unsupported::Ignored, notes)?;
            json_schema(checked.exact, Unsupported::Ignored, notes.one_of)
        }
        Grammar::AnyJson => json_schema(json!({}), Unsupported::Refused, OneOf::default()),
        Grammar::Regex(text) => TopLevelGrammar::from_regex(text),
        Grammar::Lark(text) => TopLevelGrammar::from_lark(lark::with_checked_schemas(text, notes)?),
        Grammar::Gbnf(text) => {
            TopLevelGrammar::from_lark(gbnf::to_lark(text, &|name| tokenizer.token_to_id(name))?)
        }
        Grammar::OneOf(grammars) => {
            // Rules of one grammar are unknown to the others.
            let names: Vec<String> = (0..grammars.len()).map(|number| format!("g{number}")).collect();
            let start = names.iter().map(|name| format!("@{name}")).collect::<Vec<_>>().join(" | ");
            let mut whole = TopLevelGrammar::from_lark(format!("start: {start}"));
            for (grammar, name) in grammars.iter().zip(names) {
                if matches!(grammar, Grammar::OneOf(_)) {
                    let what = "a choice of grammars within another".to_owned();
                    return Err(GrammarError::Grammar { kind: grammar.kind(), what });
                }
                let (TopLevelGrammar { grammars: mut parts, .. }, _) = source(grammar, tokenizer, notes)?;
                parts.iter_mut().take(1).for_each(|part| part.name = Some(name.clone()));
                whole.grammars.append(&mut parts);
            }
            whole
        }
        Grammar::AfterSpace(grammar) => {
            let (TopLevelGrammar { grammars: mut parts, .. }, _) = source(grammar, tokenizer, notes)?;
            parts.iter_mut().take(1).for_each(|part| part.name = Some("text".into()));
            let mut whole = TopLevelGrammar::from_lark("start: \" \"? @text".into());
            whole.grammars.append(&mut parts);
            whole
        }
    };
    Ok((source, None))
}

/// Refuses grammars that are too large to be processed.
fn refuse_too_large(grammar: &Grammar) -> Result<(), GrammarError> {
    let text_bytes = match grammar {
        Grammar::JsonSchema(schema) | Grammar::LenientJsonSchema(schema) => return schema::bounded(schema),
        Grammar::OneOf(grammars) => return grammars.iter().try_for_each(refuse_too_large),
        Grammar::Regex(text) | Grammar::Lark(text) | Grammar::Gbnf(text) => text.len(),
        Grammar::AfterSpace(grammar) => return refuse_too_large(grammar),
        Grammar::AnyJson => 0,
    };
    if text_bytes > SOURCE_BYTES {
        return Err(GrammarError::TooLarge {
            what: "bytes of a grammar",
            count: text_bytes,
            most: SOURCE_BYTES,
        });
    }
    Ok(())
}

/// A schema with the parser's options that Brasa always sets. Between two parts there may be a space, or a line break and an
/// indentation, but never blanks without end.
fn json_schema(mut schema: Value, unsupported: Unsupported, one_of: OneOf) -> TopLevelGrammar {
    let is_lenient = unsupported == Unsupported::Ignored;
    let escapes = schema::escapes(&schema);
    if let Some(keywords) = schema.as_object_mut() {
        let options = json!({
            "whitespace_pattern": r"\x20|(?:\r?\n){1,2}[\x20\t]{0,40}",
            "json_allowed_escapes": escapes,
            "lenient": is_lenient,
            "coerce_one_of": is_lenient || one_of.coerces(),
        });
        keywords.insert("x-guidance".into(), options);
    }
    TopLevelGrammar::from_json_schema(schema)
}

/// The warning about a `oneOf` at `place` that is read as `anyOf`.
fn coerced(place: &str) -> String {
    format!(
        "JSON schema, {place}: `oneOf` is read as `anyOf`, because its schemas may overlap: an answer may be right by several of them"
    )
}

/// The error for a grammar that the parser refuses.
fn refusal(kind: &'static str, what: &str, notes: &schema::Notes) -> GrammarError {
    // A narrowed `oneOf` may allow nothing, or be too large.
    if notes.is_narrowed || what.contains("Enable 'coerce_one_of' option") {
        let place = notes.overlaps.first().cloned().unwrap_or_else(|| "#".into());
        return GrammarError::Keyword { keyword: "oneOf".into(), place };
    }
    // The text of a grammar that nobody has written helps nobody.
    match what.split_once("failed to compile JSON schema: ") {
        Some((_, what)) => GrammarError::Grammar {
            kind: "JSON schema",
            what: cleaned(what.lines().next().unwrap_or_default()),
        },
        None => GrammarError::Grammar { kind, what: cleaned(what) },
    }
}

/// The parser's message without its remarks for developers.
pub(crate) fn cleaned(message: &str) -> String {
    let message = message.split("\n<").next().unwrap_or_default().trim_end();
    match message.strip_prefix("panic: ") {
        Some(panic) => format!("the parser failed ({})", panic.lines().next().unwrap_or_default()),
        None if message.is_empty() => "the parser failed".into(),
        None => message.to_owned(),
    }
}
