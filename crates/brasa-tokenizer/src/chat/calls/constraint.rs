//! Grammars of answers that call tools.

use std::fmt::Write;

use serde_json::{Value, json};

use super::choice::ToolChoice;
use super::format::ToolFormat;
use super::input::{TextGrammar, json_object};
use super::lark::{Lark, Strictness, is_required, json_of, quoted};
use super::literal::Dialect;
use super::tagged::Tags;
use super::tools::{Tools, Types};
use crate::chat::exact;
use crate::{Result, Tokenizer, TokenizerError};

/// How a model writes calls.
#[derive(Clone, Copy, Debug)]
pub struct Writing {
    /// Text before all calls.
    pub open: &'static str,
    /// Text before each call.
    pub before: &'static str,
    pub call: Call,
    /// Text after each call.
    pub after: &'static str,
    pub between: &'static str,
    /// Text after all calls.
    pub close: &'static str,
    /// True if a mark shows where calls begin. If false, an answer consists either of calls or of other text.
    pub is_marked: bool,
}

/// How a model writes one call.
#[derive(Clone, Copy, Debug)]
pub enum Call {
    /// An object with name and arguments under these keys, after other members.
    Object {
        other: &'static str,
        name: &'static str,
        arguments: &'static str,
    },
    /// A name, this text, and a JSON object.
    Headed(&'static str),
    /// A name, a number and a JSON object, with these texts in between.
    Numbered(&'static str, &'static str),
    Literal(&'static Dialect),
    Tagged(&'static Tags),
}

impl ToolFormat {
    /// The grammar of answers with right calls, in Lark as llguidance reads it. `None` if the answer is not restricted.
    ///
    /// If calls are required, the answer consists of calls alone. If the model decides, any text may come before and between
    /// calls, and the grammar restricts only the calls; there is such a grammar only if a tool has `"strict": true`. `parallel`
    /// allows several calls. The grammar does not cover thoughts.
    ///
    /// Arguments of strict tools follow their schemas, and a keyword that is not supported makes the grammar invalid. For other
    /// tools such keywords are ignored. An object with `properties` in its schema may have no others, unless the schema allows
    /// them or the tool has `"strict": false`. Strings in tags, or between control tokens as quotation marks, are not restricted.
    /// There is one exception: if a tool's only property has a schema with `"x-grammar": {"syntax": "lark" | "regex",
    /// "definition": …}`, its text follows that grammar, in JSON too.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::Unsupported`] for models with a form of calls without a grammar, if no tool has the chosen name, or for
    /// a text's grammar that cannot be written for JSON.
    pub fn constraint(
        self,
        tools: &[Value],
        choice: &ToolChoice,
        parallel: bool,
        tokenizer: &Tokenizer,
    ) -> Result<Option<String>> {
        self.grammar_of_calls(tools, choice, parallel, tokenizer, Beside::Text)
    }

    fn grammar_of_calls(
        self,
        tools: &[Value],
        choice: &ToolChoice,
        parallel: bool,
        tokenizer: &Tokenizer,
        beside: Beside,
    ) -> Result<Option<String>> {
        let required = choice.is_required();
        let known = Tools::new(tools, |name| choice.allows(name));
        if *choice == ToolChoice::None
            || !(required || tools.iter().any(|tool| Strictness::of(tool) == Strictness::Strict))
        {
            return Ok(None);
        }
        if known.is_empty() {
            let hint = "name one of the tools of the request";
            return Err(TokenizerError::unsupported("tool_choice", choice.to_string(), hint));
        }
        let Some(mut writing) = self.writing() else {
            let hint = "leave `tool_choice` at `auto`, without strict tools";
            return Err(TokenizerError::unsupported("a grammar for calls in the form", self.name(), hint));
        };
        if self.name() == "mistral" && tokenizer.token_to_id("[ARGS]").is_none() {
            writing = OLD_MISTRAL;
        }
        // Several calls come only if they are allowed, and a named tool is called once.
        let several = parallel && !matches!(choice, ToolChoice::Named(_));
        let mut lark = Lark::new(tokenizer);
        let mut calls = Vec::new();
        for (name, schema) in known.iter() {
            let mut of_name =
                tools.iter().filter(|tool| tool.get("function").unwrap_or(tool)["name"] == name);
            let strictness = of_name.next_back().map_or(Strictness::Plain, Strictness::of);
            let body = match (beside, writing.call) {
                (Beside::Grammar, Call::Object { name: name_key, arguments, .. }) if !writing.is_marked => {
                    json_of(&whole_call(name_key, name, arguments, schema), strictness, name)
                }
                _ => call(&mut lark, &writing, name, schema, strictness)?,
            };
            calls.push(lark.rule("call", &body));
        }
        let one = lark.rule("one", &calls.join(" | "));
        let (before, after) = (lark.text(writing.before)?, lark.text(writing.after)?);
        let more = if several {
            format!("({} {before} {one} {after})*", lark.text(writing.between)?)
        } else {
            String::new()
        };
        let close = lark.text(writing.close)?;
        let opening = format!("{}{}", writing.open, writing.before);
        if required {
            let opening = lark.text(&opening)?;
            return Ok(Some(lark.finish(&format!("{opening} {one} {after} {more} {close}"))));
        }
        if !writing.is_marked {
            // An answer that begins like a call is one.
            let begin = lark.text(&opening)?;
            let calls = lark.rule("calls", &format!("{begin} {one} {after} {more} {close}"));
            return Ok(Some(lark.finish(&format!("{calls} | /[^{{\\[\\s](?s:.*)/"))));
        }
        // Text up to the mark; what is behind the mark is the grammar's.
        let mark = self.marks().iter().map(|mark| mark.text).find(|mark| opening.starts_with(mark));
        let (mark, rest) = opening.split_at(mark.map_or(opening.len(), str::len));
        let (until, rest) = (lark.text_until(mark)?, lark.text(rest)?);
        let calls = lark.rule("calls", &format!("{until} {rest} {one} {after} {more} {close}"));
        let start = if several { format!("{calls}* SOME_TEXT?") } else { format!("{calls} | SOME_TEXT") };
        Ok(Some(lark.finish(&start)))
    }

    /// The grammar of answers that consist of calls alone, for a request with another grammar for its other answers. `None` if no
    /// calls are allowed.
    ///
    /// # Errors
    ///
    /// The errors of [`constraint`](Self::constraint), and [`TokenizerError::Unsupported`] for models whose calls begin like lists, if other answers
    /// may be lists too.
    pub fn calls_alone(
        self,
        tools: &[Value],
        choice: &ToolChoice,
        parallel: bool,
        others: OtherAnswers,
        tokenizer: &Tokenizer,
    ) -> Result<Option<String>> {
        let is_told = |writing: Writing| {
            let is_list = matches!(writing.call, Call::Literal(_));
            writing.is_marked
                || matches!(writing.call, Call::Object { .. })
                || is_list && others == OtherAnswers::NoLists
        };
        if !self.writing().is_some_and(is_told) {
            let hint = match self.writing() {
                None => "set `tool_choice` to `none`, or leave out `tools`",
                Some(_) => {
                    "use a schema of the type object, set `tool_choice` to `none` or `required`, or leave out `tools`"
                }
            };
            let what = "a grammar for answers that are not calls, beside calls in the form";
            return Err(TokenizerError::unsupported(what, self.name(), hint));
        }
        let choice = match choice {
            ToolChoice::Auto => ToolChoice::Required,
            ToolChoice::Allowed { names, .. } => ToolChoice::Allowed { names: names.clone(), required: true },
            choice => choice.clone(),
        };
        self.grammar_of_calls(tools, &choice, parallel, tokenizer, Beside::Grammar)
    }
}

/// The known properties of the answers beside calls, to tell such answers from calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherAnswers {
    /// The other answers may be any texts.
    Any,
    /// No other answer begins like a list.
    NoLists,
}

/// The kind of answer that is allowed besides calls.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beside {
    Text,
    /// A text of another grammar, which may be JSON. Calls that are JSON without a mark are then described by a schema, so that
    /// both grammars have the same lexemes. With a call as literal text, the lexer would refuse every object that begins like the
    /// call.
    Grammar,
}

/// The schema of a whole call as a JSON object.
fn whole_call(name_key: &str, name: &str, arguments: &str, schema: &Value) -> Value {
    let whole = json!({"type": "object", "properties": {name_key: {"const": name}, arguments: schema},
        "required": [name_key, arguments], "additionalProperties": false});
    with_definitions(&whole, schema)
}

/// The form of Mistral's models before Small 3.2.
const OLD_MISTRAL: Writing = Writing {
    open: "[TOOL_CALLS][",
    before: "",
    call: Call::Object { other: "", name: "name", arguments: "arguments" },
    after: "",
    between: ", ",
    close: "]",
    is_marked: true,
};

/// The grammar of one call, without the texts around it.
fn call(
    lark: &mut Lark<'_>,
    writing: &Writing,
    name: &str,
    schema: &Value,
    strictness: Strictness,
) -> Result<String> {
    let json = match writing.call {
        Call::Literal(_) | Call::Tagged(_) => String::new(),
        _ => json_object(schema, lark)?.unwrap_or_else(|| json_of(schema, strictness, name)),
    };
    Ok(match writing.call {
        Call::Object { other, name: name_key, arguments } => {
            let head = format!("{{{other}\"{name_key}\": {}, \"{arguments}\": ", json!(name));
            format!("{} {} \"}}\"", quoted(&head), json)
        }
        Call::Headed(between) => format!("{} {}", lark.text(&format!("{name}{between}"))?, json),
        Call::Numbered(before, behind) => {
            let name = quoted(&format!("{name}{before}"));
            format!("{name} /[0-9]{{1,4}}/ {} {}", lark.text(behind)?, json)
        }
        Call::Literal(dialect) => {
            let members = lark.members(schema, dialect, dialect.assign_text(), 0)?;
            format!(
                "{} {members} {}",
                quoted(&format!("{name}{}", dialect.open)),
                quoted(&dialect.close.to_string())
            )
        }
        Call::Tagged(tags) => tagged(lark, tags, name, schema, strictness)?,
    })
}

/// A call in tags, with its arguments in the order of the schema.
fn tagged(
    lark: &mut Lark<'_>,
    tags: &Tags,
    name: &str,
    schema: &Value,
    strictness: Strictness,
) -> Result<String> {
    let line = if tags.on_lines { "\n" } else { "" };
    let mut body = lark.text(&format!("{}{name}{}\n", tags.name, tags.name_end))?;
    let properties = schema.get("properties").and_then(Value::as_object);
    for (key, value) in properties.into_iter().flatten() {
        let head = match tags.value {
            "" => format!("{}{key}{}{line}", tags.key, tags.key_end),
            tag => format!("{}{key}{}\n{tag}{line}", tags.key, tags.key_end),
        };
        let end = format!("{line}{}\n", tags.value_end);
        let texts = value
            .get("enum")
            .and_then(Value::as_array)
            .filter(|values| !values.is_empty() && values.iter().all(is_text));
        let value = match (TextGrammar::of(value), texts) {
            (Some(grammar), _) => grammar.until(&end, lark)?,
            (_, Some(texts)) => {
                let texts: Vec<String> = texts.iter().filter_map(Value::as_str).map(quoted).collect();
                format!("({}) {}", texts.join(" | "), lark.text(&end)?)
            }
            _ if Types::of(value, 0).contains(Types::STRING) => lark.text_until(&end)?,
            _ => {
                let json = json_of(&with_definitions(value, schema), strictness, name);
                format!("{json} {}", lark.text(&end)?)
            }
        };
        let argument = lark.rule("argument", &format!("{} {value}", lark.text(&head)?));
        let mark = if is_required(schema, key) { "" } else { "?" };
        let _ = write!(body, " {argument}{mark}");
    }
    Ok(format!("{body} {}", lark.text(tags.end)?))
}

/// True if a value is a string that does not represent an exact number.
fn is_text(value: &Value) -> bool {
    value.as_str().is_some_and(|text| exact::digits(text).is_none())
}

/// The schema of a property with the definitions of the whole schema, to which it may refer.
fn with_definitions(property: &Value, whole: &Value) -> Value {
    let mut property = property.clone();
    for key in ["$defs", "definitions"] {
        if let (Some(keywords), Some(definitions)) = (property.as_object_mut(), whole.get(key)) {
            keywords.entry(key).or_insert_with(|| definitions.clone());
        }
    }
    property
}
