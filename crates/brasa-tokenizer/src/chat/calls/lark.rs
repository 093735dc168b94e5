//! Lark grammars in llguidance's dialect, rule by rule.

use serde_json::{Value, json};

use super::closed::closed;
use super::input::TextGrammar;
use super::literal::Dialect;
use super::tools::Types;
use crate::chat::exact;
use crate::{AddSpecial, ParseSpecial, Result, Tokenizer};

/// Deepest nesting of a schema that is followed. Deeper values are not restricted.
const DEEPEST: usize = 12;

/// A Lark grammar that is being written.
pub struct Lark<'a> {
    tokenizer: &'a Tokenizer,
    rules: Vec<String>,
}

impl<'a> Lark<'a> {
    /// A grammar with a few terminals and no rules.
    pub fn new(tokenizer: &'a Tokenizer) -> Self {
        let terminals = [
            r"TEXT: /(?s:.*)/",
            r"SOME_TEXT: /(?s:.+)/",
            r"WORD: /[A-Za-z_][A-Za-z0-9_]{0,40}/",
            r"INTEGER: /-?(0|[1-9][0-9]{0,17})/",
            r"NUMBER: /-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?([eE][-+]?[0-9]{1,2})?/",
            r#"QUOTED: /"([^"\\\x00-\x1f\x7f]|\\["\\nrt])*"/"#,
        ];
        Self { tokenizer, rules: terminals.map(str::to_owned).to_vec() }
    }

    /// Adds a rule with a name that begins with `name`; returns the name.
    pub fn rule(&mut self, name: &str, body: &str) -> String {
        self.rule_with(name, "", body)
    }

    /// Adds a rule whose match is as short as possible.
    pub fn lazy_rule(&mut self, name: &str, body: &str) -> String {
        self.rule_with(name, "[lazy]", body)
    }

    fn rule_with(&mut self, name: &str, option: &str, body: &str) -> String {
        let name = format!("{name}_{}", self.rules.len());
        self.rules.push(format!("{name}{option}: {body}"));
        name
    }

    /// The finished grammar, with `start` as its first rule.
    pub fn finish(mut self, start: &str) -> String {
        self.rules.insert(0, format!("start: {start}"));
        self.rules.join("\n")
    }

    /// An expression of a literal text. Control tokens in the text are tokens; the rest may be tokenized in any way.
    pub fn text(&self, text: &str) -> Result<String> {
        let mut parts = Vec::new();
        let mut rest = text;
        for id in self.tokenizer.encode(text, AddSpecial::No, ParseSpecial::Yes)? {
            let token = self.tokenizer.vocabulary().text(id).filter(|token| !token.is_empty());
            if self.tokenizer.vocabulary().kind(id).is_special()
                && let Some((before, behind)) = token.and_then(|token| rest.split_once(token))
            {
                parts.extend((!before.is_empty()).then(|| quoted(before)));
                parts.push(format!("<[{id}]>"));
                rest = behind;
            }
        }
        parts.extend((!rest.is_empty()).then(|| quoted(rest)));
        Ok(if parts.is_empty() { quoted("") } else { parts.join(" ") })
    }

    /// An expression of any text up to a mark, and the mark.
    pub fn text_until(&mut self, mark: &str) -> Result<String> {
        let mark = self.text(mark)?;
        Ok(if mark.starts_with('<') {
            // No text holds a control token.
            format!("SOME_TEXT? {mark}")
        } else {
            self.lazy_rule("until", &format!("TEXT {mark}"))
        })
    }

    /// An expression of a literal in a dialect, of a type that the schema allows.
    pub fn literal(&mut self, schema: &Value, dialect: &'static Dialect, depth: usize) -> Result<String> {
        if let Some(grammar) = TextGrammar::of(schema) {
            return match dialect.quote {
                Some(quote) => Ok(format!("{} {}", self.text(quote)?, grammar.until(quote, self)?)),
                // Python reads JSON's escapes.
                None => grammar.in_json(self),
            };
        }
        if let Some(values) = schema.get("enum").and_then(Value::as_array).filter(|values| !values.is_empty())
        {
            let written: Result<Vec<String>> =
                values.iter().map(|value| self.text(&dialect.write(value))).collect();
            return Ok(format!("({})", written?.join(" | ")));
        }
        if let Some(value) = schema.get("const") {
            return self.text(&dialect.write(value));
        }
        for key in ["anyOf", "oneOf"] {
            if let Some(Value::Array(schemas)) = schema.get(key).filter(|_| depth < DEEPEST) {
                let mut written = Vec::new();
                for schema in schemas {
                    written.push(self.literal(schema, dialect, depth + 1)?);
                }
                return Ok(format!("({})", written.join(" | ")));
            }
        }
        let types = if depth < DEEPEST { Types::of(schema, 0) } else { Types::NULL };
        let mut written = Vec::new();
        if types.contains(Types::STRING) {
            written.push(match dialect.quote {
                Some(quote) => {
                    let open = self.text(quote)?;
                    format!("({open} {})", self.text_until(quote)?)
                }
                None => "QUOTED".to_owned(),
            });
        }
        if types.contains(Types::NUMBER) {
            let is_integer = schema.get("type").is_some_and(|kind| kind == "integer");
            written.push(if is_integer { "INTEGER" } else { "NUMBER" }.to_owned());
        }
        if types.contains(Types::BOOLEAN) {
            let words = [json!(true), json!(false)].map(|value| quoted(&dialect.write(&value)));
            written.push(format!("({})", words.join(" | ")));
        }
        if types.contains(Types::NULL) {
            written.push(quoted(&dialect.write(&Value::Null)));
        }
        if types.contains(Types::ARRAY) {
            let item = self.literal(schema.get("items").unwrap_or(&Value::Null), dialect, depth + 4)?;
            let item = self.rule("item", &item);
            let comma = quoted(dialect.comma());
            written.push(self.rule("list", &format!("\"[\" ({item} ({comma} {item})*)? \"]\"")));
        }
        if types.contains(Types::OBJECT) {
            let members = if schema.get("properties").is_some_and(Value::is_object) {
                self.members(schema, dialect, dialect.colon(), depth)?
            } else {
                let value = self.literal(&Value::Null, dialect, depth + 4)?;
                let key = if dialect.quote.is_some() { "WORD" } else { "QUOTED" };
                let member = self.rule("member", &format!("{key} {} {value}", quoted(dialect.colon())));
                format!("({member} ({} {member})*)?", quoted(dialect.comma()))
            };
            written.push(self.rule("object", &format!("\"{{\" {members} \"}}\"")));
        }
        Ok(format!("({})", written.join(" | ")))
    }

    /// An expression of the members of an object in the order of its schema, with commas in between. `assign` is the text between
    /// key and value.
    pub fn members(
        &mut self,
        schema: &Value,
        dialect: &'static Dialect,
        assign: &str,
        depth: usize,
    ) -> Result<String> {
        let is_argument = depth == 0;
        let comma = quoted(dialect.comma());
        let properties: Vec<(&String, &Value)> =
            schema.get("properties").and_then(Value::as_object).into_iter().flatten().collect();
        // The members behind the last one, at the beginning and behind another.
        let (mut first, mut more) = (quoted(""), quoted(""));
        for (key, value) in properties.into_iter().rev() {
            let value = self.literal(value, dialect, depth + 1)?;
            let is_bare = is_argument || dialect.quote.is_some();
            let key_text = if is_bare { key.clone() } else { Value::from(key.as_str()).to_string() };
            let key_text = self.text(&format!("{key_text}{assign}"))?;
            let member = self.rule("member", &format!("{key_text} {value}"));
            let (with, behind) = (format!("{member} {more}"), format!("{comma} {member} {more}"));
            if is_required(schema, key) {
                (first, more) = (self.rule("first", &with), self.rule("more", &behind));
            } else {
                let without = format!("{with} | {first}");
                first = self.rule("first", &without);
                more = self.rule("more", &format!("{behind} | {more}"));
            }
        }
        Ok(first)
    }
}

/// How closely the grammar of a call follows the schema of its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strictness {
    /// `"strict": true`: an unsupported keyword makes the grammar invalid.
    Strict,
    /// No `strict` field: unsupported keywords are ignored.
    Plain,
    /// `"strict": false`: unsupported keywords are ignored, and objects may have properties that their schemas do not name.
    Open,
}

impl Strictness {
    /// Reads a tool's `strict` field.
    pub fn of(tool: &Value) -> Self {
        match tool.get("function").unwrap_or(tool).get("strict") {
            Some(Value::Bool(true)) => Self::Strict,
            Some(Value::Bool(false)) => Self::Open,
            _ => Self::Plain,
        }
    }
}

/// An expression of JSON values that follow a schema, for arguments of `tool`.
pub fn json_of(schema: &Value, strictness: Strictness, tool: &str) -> String {
    let mut schema = if strictness == Strictness::Open { schema.clone() } else { closed(schema) };
    if let Some(keywords) = schema.as_object_mut() {
        let is_lenient = strictness != Strictness::Strict;
        let options = json!({
            // Blanks without end are no part of an answer.
            "whitespace_pattern": r"\x20|(?:\r?\n){1,2}[\x20\t]{0,40}",
            "lenient": is_lenient,
            "coerce_one_of": is_lenient,
        });
        keywords.insert("x-guidance".into(), options);
        // Errors name it.
        keywords.insert("x-brasa-place".into(), format!("parameters of `{tool}`").into());
    }
    format!("%json {}", exact::exact_json(&schema))
}

/// True if a schema requires a property.
pub fn is_required(schema: &Value, key: &str) -> bool {
    let required = schema.get("required").and_then(Value::as_array);
    required.is_some_and(|required| required.iter().any(|name| name == key))
}

/// A text as a string literal of the grammar.
pub fn quoted(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}
