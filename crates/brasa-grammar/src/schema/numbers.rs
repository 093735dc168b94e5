//! Numbers that the parser would round.
//!
//! The parser keeps the numbers of a schema as `f64`, and makes ranges of integers up to 64 bits. If a schema restricts numbers
//! in a way that these types do not represent exactly, Brasa describes its numbers by a regular expression. [`mark`] finds such
//! schemas and marks them, and [`place`] replaces them by placeholder numbers. The placeholder's expression in the parser's
//! grammar is then replaced by the exact one ([`Exact`]).

use std::collections::HashSet;

use llguidance::derivre::RegexAst;
use serde_json::{Map, Value, json};

use super::decimal::{Bound, Decimal, has_multiple};
use super::exact::{Exact, name, stand};
use crate::GrammarError;

/// The keyword that marks a schema with exact numbers.
pub const MARK: &str = "x-brasa-numbers";
/// The keyword of an object that replaces a number with more digits than [`Value`] keeps.
pub const LITERAL: &str = "x-brasa-number";
/// Keywords about numbers.
const KEYWORDS: [&str; 5] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];
/// Most ways of combining the choices of one schema.
const MOST_ALTERNATIVES: usize = 64;
/// Most choices and references that are followed for one number.
const MOST_STEPS: usize = 500;
/// Largest coefficient of a divisor: the parser multiplies remainders by ten in 32 bits.
const MOST_DIVISOR: u32 = 400_000_000;
/// Most digits of a divisor after the decimal point.
const MOST_SCALE: u32 = 8;
/// The integer from which on `f64` does not represent all integers.
const ROUNDED: u64 = 1 << 53;

/// The replacement of a schema with exact numbers.
pub struct Marked {
    /// Placeholders of the numbers, one for each way of combining choices.
    stands: Vec<usize>,
    /// Names of the other types that the schema allows.
    other_types: Vec<&'static str>,
}

/// The combined bounds of several schemas for one number.
#[derive(Clone, Default)]
struct Said<'a> {
    is_never: bool,
    is_integer: bool,
    low: Option<Bound>,
    high: Option<Bound>,
    multiple: Option<(u32, u32)>,
    values: Option<Vec<(&'a Value, Decimal)>>,
}

/// Schemas that apply to a value together.
type Together<'a> = Vec<&'a Map<String, Value>>;

/// The digits of a number in a schema: of a JSON number, or of an object that replaces a number with more digits.
pub fn literal(value: &Value) -> Option<String> {
    match value {
        Value::Number(number) => Some(number.to_string().replace("e+", "e")),
        Value::Object(map) if map.len() == 1 => map.get(LITERAL)?.as_str().map(str::to_owned),
        _ => None,
    }
}

/// True if the parser would round a number in a schema, its parts not included.
pub fn is_rounded(schema: &Value) -> bool {
    schema.as_object().is_some_and(is_inexact)
}

/// True if a value is not a number, or a number that the parser reads exactly.
pub fn is_plain(value: &Value) -> bool {
    match value {
        Value::Number(number) if number.is_f64() => {
            number.as_f64().is_some_and(|number| number.abs() < ROUNDED as f64 && digits(number) <= 18)
        }
        Value::Number(number) => number
            .as_i64()
            .map_or_else(|| number.as_u64(), |number| Some(number.unsigned_abs()))
            .is_some_and(|size| size < ROUNDED),
        other => literal(other).is_none(),
    }
}

/// Digits of a number after the decimal point.
fn digits(number: f64) -> usize {
    number.to_string().split_once('.').map_or(0, |(_, digits)| digits.len())
}

/// True if the parser reads a divisor exactly.
fn is_plain_multiple(value: &Value) -> bool {
    value.as_u64().is_some_and(|number| number > 0 && number <= u64::from(MOST_DIVISOR))
}

/// True if the parser would not apply a schema's bounds or divisor exactly, its parts not included.
fn is_inexact(keywords: &Map<String, Value>) -> bool {
    let is_rounded = |name: &str| keywords.get(name).is_some_and(|value| !is_plain(value));
    ["const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"].into_iter().any(is_rounded)
        || keywords
            .get("multipleOf")
            .is_some_and(|value| literal(value).is_some() && !is_plain_multiple(value))
        || keywords.get("enum").and_then(Value::as_array).is_some_and(|values| !values.iter().all(is_plain))
}

/// False if [`mark`] has nothing to do for a schema and its parts.
pub fn may_matter(schema: &Value) -> bool {
    fn count(value: &Value) -> usize {
        match value {
            Value::Array(items) => items.iter().map(count).sum(),
            Value::Object(map) => {
                let own = if is_inexact(map) { 2 } else { usize::from(map.contains_key("multipleOf")) };
                own + map.values().map(count).sum::<usize>()
            }
            _ => 0,
        }
    }
    count(schema) >= 2
}

/// Makes exact expressions for the numbers of a schema that applies to a value, if they need any; otherwise returns `None`. With
/// `coerces_one_of`, `oneOf` is read as `anyOf`.
///
/// # Errors
///
/// [`GrammarError::Unsupported`] if an exact expression is needed and none is known; [`GrammarError::Keyword`] for a `oneOf` of
/// numbers that more than one of its schemas may allow.
pub fn mark(
    root: &Value,
    place: &str,
    schema: &Value,
    coerces_one_of: bool,
    exact: &mut Exact,
) -> Result<Option<Marked>, GrammarError> {
    let refused = |what: &str| GrammarError::Unsupported { place: place.into(), what: what.into() };
    let (mut inexact, mut multiples) = (false, 0);
    look(root, schema, &mut HashSet::new(), 0, &mut |keywords| {
        inexact |= is_inexact(keywords);
        multiples += usize::from(keywords.contains_key("multipleOf"));
    });
    if !inexact && multiples < 2 {
        return Ok(None);
    }
    let many =
        "numbers beyond 2^53, or decimals that f64 does not hold, within this many choices are not supported";
    let alternatives =
        alternatives(root, schema, coerces_one_of, &mut { MOST_STEPS }).map_err(|problem| match problem {
            Problem::Overlap => GrammarError::Keyword { keyword: "oneOf".into(), place: place.into() },
            Problem::TooMany => refused(many),
        })?;
    let mut stands = Vec::new();
    let mut other_types: Vec<&'static str> = Vec::new();
    for together in alternatives {
        other_types.extend(other_types_of(&together));
        let said = Said::of(&together).map_err(|problem| refused(&problem))?;
        let lexeme = said.lexeme();
        let Some(lexeme) = lexeme else { continue };
        stands.push(exact.add(lexeme).ok_or_else(|| refused(many))?);
    }
    let all = ["null", "boolean", "string", "array", "object"];
    let other_types = all.into_iter().filter(|name| other_types.contains(name)).collect();
    Ok(Some(Marked { stands, other_types }))
}

/// Replaces the marked schemas, innermost first.
pub fn place(schema: &mut Value, marked: &[Marked], used: &mut HashSet<usize>) {
    match schema {
        Value::Array(items) => items.iter_mut().for_each(|item| place(item, marked, used)),
        Value::Object(keywords) => {
            for (name, value) in keywords.iter_mut() {
                if !matches!(name.as_str(), "const" | "enum" | "default" | "examples") {
                    place(value, marked, used);
                }
            }
            let number =
                keywords.get(MARK).and_then(Value::as_u64).and_then(|number| usize::try_from(number).ok());
            if let Some(replacement) = number.and_then(|number| marked.get(number)) {
                keywords.shift_remove(MARK);
                replace(keywords, replacement);
                used.extend(&replacement.stands);
            }
        }
        _ => {}
    }
}

/// Adds the definitions that the replaced schemas refer to.
pub fn define(root: &mut Value, used: &HashSet<usize>) {
    let Some(keywords) = root.as_object_mut().filter(|_| !used.is_empty()) else { return };
    let definitions = keywords.entry("$defs").or_insert_with(|| json!({}));
    if let Some(definitions) = definitions.as_object_mut() {
        for number in used {
            definitions.insert(name(*number), json!({"enum": [stand(*number)]}));
        }
    }
}

fn replace(keywords: &mut Map<String, Value>, replacement: &Marked) {
    let reference = |number: &usize| json!({"$ref": format!("#/$defs/{}", name(*number))});
    let mut any: Vec<Value> = replacement.stands.iter().map(reference).collect();
    // Other places may refer to definitions here.
    let kept: Map<String, Value> = ["$schema", "$id", "id", "$defs", "definitions"]
        .iter()
        .filter_map(|name| keywords.shift_remove_entry(*name))
        .collect();
    if !replacement.other_types.is_empty() {
        let mut rest = Value::Object(std::mem::take(keywords));
        without_numbers(&mut rest);
        any.push(json!({"allOf": [{"type": replacement.other_types}, rest]}));
    }
    *keywords = kept;
    match (any.len(), any.first().and_then(Value::as_object)) {
        (1, Some(only)) => keywords.extend(only.clone()),
        (0, _) => _ = keywords.insert("enum".into(), json!([])),
        _ => _ = keywords.insert("anyOf".into(), any.into()),
    }
}

/// Removes the restrictions of numbers from a schema and its choices.
fn without_numbers(schema: &mut Value) {
    let Some(keywords) = schema.as_object_mut() else { return };
    for name in KEYWORDS {
        keywords.shift_remove(name);
    }
    if keywords.get("const").is_some_and(|value| literal(value).is_some()) {
        keywords.shift_remove("const");
        keywords.insert("enum".into(), json!([]));
    }
    if let Some(values) = keywords.get_mut("enum").and_then(Value::as_array_mut) {
        values.retain(|value| literal(value).is_none());
    }
    for name in ["allOf", "anyOf", "oneOf"] {
        let parts = keywords.get_mut(name).and_then(Value::as_array_mut);
        parts.into_iter().flatten().for_each(without_numbers);
    }
}

/// Visits all schemas that apply to a value of `schema` itself.
fn look<'a>(
    root: &'a Value,
    schema: &'a Value,
    seen: &mut HashSet<&'a str>,
    depth: usize,
    see: &mut impl FnMut(&'a Map<String, Value>),
) {
    let Some(keywords) = schema.as_object().filter(|_| depth < 100) else { return };
    see(keywords);
    for name in ["allOf", "anyOf", "oneOf"] {
        for part in keywords.get(name).and_then(Value::as_array).into_iter().flatten() {
            look(root, part, seen, depth + 1, see);
        }
    }
    if let Some(reference) = keywords.get("$ref").and_then(Value::as_str)
        && seen.insert(reference)
        && let Some(target) = target(root, reference)
    {
        look(root, target, seen, depth + 1, see);
    }
}

fn target<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    let pointer = reference.strip_prefix('#')?;
    root.pointer(if pointer == "/" { "" } else { pointer })
}

/// The reason why there is no exact expression for the numbers of a schema.
enum Problem {
    /// The schemas of a `oneOf` may overlap.
    Overlap,
    TooMany,
}

/// The ways in which a value can be valid: each is a list of schemas without choices that apply together.
fn alternatives<'a>(
    root: &'a Value,
    schema: &'a Value,
    coerces_one_of: bool,
    steps: &mut usize,
) -> Result<Vec<Together<'a>>, Problem> {
    *steps = steps.checked_sub(1).ok_or(Problem::TooMany)?;
    let keywords = match schema {
        Value::Object(keywords) => keywords,
        Value::Bool(false) => return Ok(Vec::new()),
        Value::Bool(true) => return Ok(vec![Vec::new()]),
        _ => return Err(Problem::TooMany),
    };
    let mut all: Vec<Together<'a>> = vec![vec![keywords]];
    let mut narrow = |options: Vec<Together<'a>>| {
        all = all
            .iter()
            .flat_map(|one| options.iter().map(|other| [one.as_slice(), other.as_slice()].concat()))
            .take(MOST_ALTERNATIVES + 1)
            .collect();
        if all.len() > MOST_ALTERNATIVES { Err(Problem::TooMany) } else { Ok(()) }
    };
    if let Some(reference) = keywords.get("$ref").and_then(Value::as_str) {
        let target = target(root, reference).ok_or(Problem::TooMany)?;
        narrow(alternatives(root, target, coerces_one_of, steps)?)?;
    }
    for part in keywords.get("allOf").and_then(Value::as_array).into_iter().flatten() {
        narrow(alternatives(root, part, coerces_one_of, steps)?)?;
    }
    for name in ["anyOf", "oneOf"] {
        let Some(parts) = keywords.get(name).and_then(Value::as_array) else { continue };
        let mut options = Vec::new();
        let mut ends = Vec::new();
        for part in parts {
            options.extend(alternatives(root, part, coerces_one_of, steps)?);
            ends.push(options.len());
        }
        if name == "oneOf" && !coerces_one_of && !are_apart(&options, &ends) {
            return Err(Problem::Overlap);
        }
        narrow(options)?;
    }
    Ok(all)
}

/// True if no number is valid by two branches. The ways of branch *i* end at `ends[i]` in `options`.
fn are_apart(options: &[Together<'_>], ends: &[usize]) -> bool {
    let Ok(said) = options.iter().map(Said::of).collect::<Result<Vec<_>, _>>() else {
        return false;
    };
    let branch = |at: usize| ends.iter().take_while(|&&end| end <= at).count();
    (0..said.len()).all(|one| {
        (one + 1..said.len()).all(|other| branch(one) == branch(other) || said[one].is_apart(&said[other]))
    })
}

/// Names of the types other than numbers that the schemas allow together, as far as they name types.
fn other_types_of(together: &Together<'_>) -> Vec<&'static str> {
    let all = ["null", "boolean", "string", "array", "object"];
    let allows = |keywords: &Map<String, Value>, name: &str| {
        let is_named = match keywords.get("type") {
            Some(Value::String(kind)) => kind == name,
            Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == name),
            _ => true,
        };
        let is_listed = match (keywords.get("const"), keywords.get("enum").and_then(Value::as_array)) {
            (Some(value), _) => literal(value).is_none(),
            (None, Some(values)) => values.iter().any(|value| literal(value).is_none()),
            _ => true,
        };
        is_named && is_listed
    };
    all.into_iter().filter(|name| together.iter().all(|keywords| allows(keywords, name))).collect()
}

impl<'a> Said<'a> {
    fn of(together: &Together<'a>) -> Result<Self, String> {
        let mut said = Self::default();
        for keywords in together {
            said.add(keywords)?;
        }
        Ok(said)
    }

    fn add(&mut self, keywords: &'a Map<String, Value>) -> Result<(), String> {
        let kinds: Option<Vec<&str>> = match keywords.get("type") {
            Some(Value::String(kind)) => Some(vec![kind]),
            Some(Value::Array(kinds)) => Some(kinds.iter().filter_map(Value::as_str).collect()),
            _ => None,
        };
        if let Some(kinds) = kinds.filter(|kinds| !kinds.contains(&"number")) {
            self.is_integer = true;
            self.is_never |= !kinds.contains(&"integer");
        }
        for values in [
            keywords.get("const").map(std::slice::from_ref),
            keywords.get("enum").and_then(|values| values.as_array()).map(Vec::as_slice),
        ]
        .into_iter()
        .flatten()
        {
            let mut found = Vec::new();
            for value in values {
                if let Some(text) = literal(value) {
                    found.push((value, decimal(&text)?));
                }
            }
            if let Some(before) = &self.values {
                found.retain(|(_, number)| before.iter().any(|(_, other)| other == number));
            }
            self.values = Some(found);
        }
        for (name, exclusive, is_lower) in
            [("minimum", "exclusiveMinimum", true), ("maximum", "exclusiveMaximum", false)]
        {
            // Draft 4 says with a truth value whether the bound itself is inside.
            let is_inside = keywords.get(exclusive) != Some(&Value::Bool(true));
            for (name, is_inside) in [(name, is_inside), (exclusive, false)] {
                let Some(text) = keywords.get(name).and_then(literal) else { continue };
                self.bound(Bound { number: decimal(&text)?, is_inside }, is_lower);
            }
        }
        if let Some(text) = keywords.get("multipleOf").and_then(literal) {
            let wrong = || {
                format!(
                    "`multipleOf`: {text} is not supported; divisors are above 0 and have at most 8 digits"
                )
            };
            let one =
                decimal(&text)?.scaled().filter(|(coefficient, _)| *coefficient > 0).ok_or_else(wrong)?;
            let both = match self.multiple {
                None => Some(one),
                Some(other) => common_multiple(one, other),
            };
            let fits =
                |(coefficient, scale): &(u32, u32)| *coefficient <= MOST_DIVISOR && *scale <= MOST_SCALE;
            self.multiple = Some(both.filter(fits).ok_or_else(wrong)?);
        }
        Ok(())
    }

    fn bound(&mut self, bound: Bound, is_lower: bool) {
        let kept = if is_lower { &mut self.low } else { &mut self.high };
        let is_tighter = kept.as_ref().is_none_or(|kept| {
            let order = bound.number.cmp(&kept.number);
            let order = if is_lower { order } else { order.reverse() };
            order.is_gt() || order.is_eq() && !bound.is_inside
        });
        if is_tighter {
            *kept = Some(bound);
        }
    }

    fn allows(&self, number: &Decimal) -> bool {
        let is_above = |bound: &Bound| *number > bound.number || bound.is_inside && *number == bound.number;
        let is_below = |bound: &Bound| *number < bound.number || bound.is_inside && *number == bound.number;
        (!self.is_integer || number.is_whole())
            && self.low.as_ref().is_none_or(is_above)
            && self.high.as_ref().is_none_or(is_below)
            && self.multiple.is_none_or(|(coefficient, scale)| number.is_multiple(coefficient, scale))
    }

    /// True if no number is within both.
    fn is_apart(&self, other: &Self) -> bool {
        let is_below = |one: &Self, other: &Self| match (&one.high, &other.low) {
            (Some(high), Some(low)) => {
                high.number < low.number || high.number == low.number && !(high.is_inside && low.is_inside)
            }
            _ => false,
        };
        let lists = |one: &Self, other: &Self| {
            one.values.as_ref().is_some_and(|values| {
                values.iter().all(|(_, number)| {
                    !one.allows(number)
                        || !other.allows(number)
                        || other
                            .values
                            .as_ref()
                            .is_some_and(|values| !values.iter().any(|(_, value)| value == number))
                })
            })
        };
        self.is_never
            || other.is_never
            || is_below(self, other)
            || is_below(other, self)
            || lists(self, other)
            || lists(other, self)
    }

    /// The expression of the numbers; `None` if there are none.
    fn lexeme(mut self) -> Option<RegexAst> {
        if self.is_never {
            return None;
        }
        if let Some(values) = &self.values {
            let right = values.iter().filter(|(_, number)| self.allows(number));
            // An integer without a power of ten, as the parser writes those that it knows.
            let texts: Vec<RegexAst> = right
                .map(|(value, number)| match literal(value) {
                    Some(text) if !self.is_integer => RegexAst::Literal(text),
                    _ => RegexAst::Literal(number.text()),
                })
                .collect();
            return (!texts.is_empty()).then_some(RegexAst::Or(texts));
        }
        if self.is_integer {
            self.low = self.low.map(|low| low.of_integers(true));
            self.high = self.high.map(|high| high.of_integers(false));
            self.multiple = self
                .multiple
                .and_then(|(coefficient, scale)| whole_multiple(coefficient, scale))
                .or_else(|| {
                    debug_assert!(self.multiple.is_none(), "a divisor has a whole multiple");
                    None
                });
        }
        if let (Some(low), Some(high)) = (&self.low, &self.high) {
            let is_empty =
                low.number > high.number || low.number == high.number && !(low.is_inside && high.is_inside);
            let has_none = self
                .multiple
                .is_some_and(|(coefficient, scale)| !has_multiple(low, high, coefficient, scale));
            if is_empty || has_none {
                return None;
            }
        }
        let is_integer = self.is_integer;
        let mut all = Vec::new();
        all.extend(self.low.as_ref().map(|low| RegexAst::Regex(low.above(is_integer))));
        all.extend(self.high.as_ref().map(|high| RegexAst::Regex(high.below(is_integer))));
        if all.is_empty() {
            let fraction = if is_integer { "" } else { r"(\.[0-9]+)?" };
            all.push(RegexAst::Regex(format!("-?(0|[1-9][0-9]*){fraction}")));
        }
        if let Some((coefficient, scale)) = self.multiple {
            let sign = RegexAst::Regex("-?".into());
            all.push(RegexAst::Concat(vec![sign, RegexAst::MultipleOf(coefficient, scale)]));
        }
        Some(RegexAst::And(all))
    }
}

fn decimal(text: &str) -> Result<Decimal, String> {
    Decimal::parse(text).ok_or_else(|| {
        let shown: String = text.chars().take(60).collect();
        format!("the number {shown} has too many digits")
    })
}

/// The least common multiple of two decimal numbers.
fn common_multiple(one: (u32, u32), other: (u32, u32)) -> Option<(u32, u32)> {
    let scale = one.1.max(other.1);
    let at_scale =
        |(coefficient, own): (u32, u32)| u64::from(coefficient).checked_mul(10_u64.checked_pow(scale - own)?);
    let (one, other) = (at_scale(one)?, at_scale(other)?);
    let multiple = (one / greatest_divisor(one, other)).checked_mul(other)?;
    Some((multiple.try_into().ok()?, scale))
}

/// The smallest integer that is a multiple of `coefficient / 10^scale`.
fn whole_multiple(coefficient: u32, scale: u32) -> Option<(u32, u32)> {
    let power = 10_u64.checked_pow(scale)?;
    let multiple = u64::from(coefficient) / greatest_divisor(u64::from(coefficient), power);
    Some((multiple.try_into().ok()?, 0))
}

fn greatest_divisor(one: u64, other: u64) -> u64 {
    if other == 0 { one } else { greatest_divisor(other, one % other) }
}
