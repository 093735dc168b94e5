//! Changes of JSON by its structure: values to extremes, other types, keys that go, come twice or change places, nesting.

use brasa_fuzz::Rng;
use serde_json::{Map, Value, json};

/// A text that stands for something that JSON cannot say until the text is written out.
const RAW: &str = "@raw@";

/// Values that are written as they are, within quotes here.
const RAW_VALUES: &[&str] = &[
    "NaN",
    "Infinity",
    "-Infinity",
    "1e999",
    "-1e999",
    "1e-999",
    "18446744073709551616",
    "00",
    "nul",
    "'x'",
    "\\\"\\ud800\\\"",
    "\\\"\\u0000\\\"",
];

/// Changes one place. Returns the new text and what was done.
pub fn mutate(text: &[u8], rng: &mut Rng) -> (Vec<u8>, String) {
    let Ok(mut value) = serde_json::from_slice::<Value>(text) else {
        let mut bytes = text.to_vec();
        let what = super::text::bytes(&mut bytes, rng);
        return (bytes, what);
    };
    let mut pointers = Vec::new();
    collect(&value, String::new(), &mut pointers);
    let pointer = rng.choose(&pointers).clone();
    let what = change(&mut value, &pointer, rng);
    let text = written(&value);
    (text.into_bytes(), format!("{pointer}: {what}"))
}

/// The text of a value, with raw values and keys in place.
fn written(value: &Value) -> String {
    let text = value.to_string();
    let mut out = String::with_capacity(text.len());
    let mut rest = text.as_str();
    let quoted = format!("\"{RAW}");
    while let Some(at) = rest.find(&quoted) {
        out.push_str(&rest[..at]);
        rest = &rest[at + quoted.len()..];
        // The text behind it ends at the quote that closes it.
        let end = rest.find("@\"").unwrap_or(rest.len());
        out.push_str(&rest[..end].replace("\\\"", "\"").replace("\\\\", "\\"));
        rest = rest.get(end + 2..).unwrap_or_default();
    }
    out + rest
}

fn raw(text: &str) -> Value {
    Value::from(format!("{RAW}{}@", text.replace("\\\"", "\"")))
}

/// Pointers to everything within a value; to a few elements of long lists.
fn collect(value: &Value, at: String, into: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            let step = (map.len() / 40).max(1);
            for (key, inner) in map.iter().step_by(step) {
                let key = key.replace('~', "~0").replace('/', "~1");
                collect(inner, format!("{at}/{key}"), into);
            }
        }
        Value::Array(all) => {
            for (index, inner) in all.iter().enumerate().take(6) {
                collect(inner, format!("{at}/{index}"), into);
            }
        }
        _ => {}
    }
    into.push(at);
}

fn change(value: &mut Value, pointer: &str, rng: &mut Rng) -> String {
    let (parent, key) = match pointer.rsplit_once('/') {
        Some((parent, key)) => (parent, key.replace("~1", "/").replace("~0", "~")),
        None => ("", String::new()),
    };
    match rng.below(12) {
        0 => match value.pointer_mut(parent) {
            Some(Value::Object(map)) => {
                map.shift_remove(&key);
                "gone".into()
            }
            Some(Value::Array(all)) => {
                all.pop();
                "list without its last".into()
            }
            _ => "nothing".into(),
        },
        1 => {
            let Some(Value::Object(map)) = value.pointer_mut(parent) else { return "nothing".into() };
            let twice = map.get(&key).cloned().unwrap_or(Value::Null);
            // A key with raw text is written as its own name once more.
            map.insert(format!("{RAW}\"{key}\"@"), if rng.below(2) == 0 { twice } else { json!(7) });
            "twice".into()
        }
        2 => match value.pointer_mut(parent) {
            Some(Value::Object(map)) if !map.is_empty() => swap(map, &key, rng),
            _ => "nothing".into(),
        },
        3 => {
            let depth = *rng.choose(&[5, 126, 130, 5000, 200_000]);
            let (open, close) = *rng.choose(&[("[", "]"), ("{\"a\":", "}")]);
            set(value, pointer, raw(&format!("{}1{}", open.repeat(depth), close.repeat(depth))));
            format!("{depth} deep")
        }
        4 => {
            let Some(Value::Object(map)) = value.pointer_mut(parent) else { return "nothing".into() };
            let name = rng.choose(&["", "unknown", "\u{0}", "\u{1b}[2J", "__proto__", "type"]);
            map.insert((*name).into(), json!(1));
            format!("beside a key {name:?}")
        }
        5 => {
            let Some(Value::Array(all)) = value.pointer_mut(pointer) else { return "nothing".into() };
            let more = all.first().cloned().unwrap_or(Value::Null);
            let times = *rng.choose(&[1, 3, 1000]);
            all.extend(std::iter::repeat_n(more, times));
            format!("list {times} longer")
        }
        _ => {
            let new = extreme(value.pointer(pointer).unwrap_or(&Value::Null), rng);
            let shown: String = new.to_string().chars().take(60).collect();
            set(value, pointer, new);
            format!("= {shown}")
        }
    }
}

fn set(value: &mut Value, pointer: &str, new: Value) {
    if let Some(place) = value.pointer_mut(pointer) {
        *place = new;
    }
}

/// Exchanges the values of `key` and of another key.
fn swap(map: &mut Map<String, Value>, key: &str, rng: &mut Rng) -> String {
    let keys: Vec<String> = map.keys().cloned().collect();
    let other = rng.choose(&keys).clone();
    let exchange = |map: &mut Map<String, Value>| -> Option<()> {
        let (a, b) = (map.get(key)?.clone(), map.get(&other)?.clone());
        map.insert(key.into(), b);
        map.insert(other.clone(), a);
        Some(())
    };
    exchange(map);
    format!("exchanged with {other}")
}

/// Replaces a value by another one, usually of a similar kind.
fn extreme(old: &Value, rng: &mut Rng) -> Value {
    let numbers = [
        json!(0),
        json!(1),
        json!(2),
        json!(3),
        json!(-1),
        json!(7),
        json!(64),
        json!(255),
        json!(1000),
        json!(65_536),
        json!(1_000_000_000),
        json!(i32::MAX),
        json!(u32::MAX),
        json!(i64::MAX),
        json!(i64::MIN),
        json!(u64::MAX),
        json!(0.5),
        json!(-0.0),
        json!(1e-300),
        json!(1e300),
        json!(2.5),
    ];
    let texts = [
        json!(""),
        json!(" "),
        json!("a"),
        json!("\u{0}"),
        json!("\u{1b}]0;x\u{7}"),
        json!("é\u{301}\u{202e}"),
        json!("../../../../etc/passwd"),
        json!("/dev/zero"),
        json!("x".repeat(100_000)),
        json!("(((((((((((((((((((("),
        json!("(a*)*b"),
        json!("(?:a{1000}){1000}"),
        json!("\\p{L}+|\\s+(?!\\S)"),
        json!("[PAD"),
        json!("AAAA"),
    ];
    match rng.below(5) {
        0 => raw(rng.choose::<&str>(RAW_VALUES)),
        1 => rng
            .choose(&[
                json!(null),
                json!(true),
                json!(false),
                json!([]),
                json!({}),
                json!([[]]),
                json!([null]),
            ])
            .clone(),
        2 => rng.choose(&texts).clone(),
        3 => rng.choose(&numbers).clone(),
        _ => match old {
            Value::Number(number) => {
                let old = number.as_f64().unwrap_or(1.0);
                match rng.below(6) {
                    0 => json!(old as i64 + 1),
                    1 => json!(old as i64 - 1),
                    2 => json!(old * 2.0),
                    3 => json!(-old),
                    4 => json!(old as i64 / 2),
                    _ => json!(old.to_string()),
                }
            }
            Value::String(text) => {
                let mut bytes = text.clone().into_bytes();
                super::text::bytes(&mut bytes, rng);
                json!(String::from_utf8_lossy(&bytes))
            }
            Value::Bool(truth) => json!(!truth),
            _ => rng.choose(&numbers).clone(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_json_cannot_say_is_written() {
        let value = json!({"a": raw("NaN"), format!("{RAW}\"a\"@"): [raw("1e999")], "b": "x\"y"});
        assert_eq!(written(&value), r#"{"a":NaN,"a":[1e999],"b":"x\"y"}"#);
    }

    #[test]
    fn most_changes_change_something() {
        let text = br#"{"a": 1, "b": {"c": [1, 2, 3], "d": "text"}, "e": null, "f": true}"#;
        let compact = written(&serde_json::from_slice(text).expect("JSON"));
        let mut rng = Rng::new(1);
        let same = (0..200).filter(|_| mutate(text, &mut rng).0 == compact.as_bytes()).count();
        assert!(same < 60, "{same} of 200 changed nothing");
    }
}
