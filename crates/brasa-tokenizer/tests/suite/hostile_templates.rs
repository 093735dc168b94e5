//! Templates written by an enemy: each ends soon, within bounds, with an error that names the limit or with a right text.

use std::time::{Duration, Instant};

use brasa_fuzz::sweeps;
use brasa_tokenizer::{ChatOptions, ChatTemplate, Message};

const MEMORY: &str = "stopped because it exceeded its memory";
const WORK: &str = "stopped because it exceeded its amount of work";
const CALLS: &str = "stopped because it exceeded its depth of calls";
const DEPTH: &str = "stopped because it exceeded its depth of values";

/// A megabyte of text in `s`, made in twenty steps.
const MEGABYTE: &str = "{% set n = namespace(s='x') %}{% for i in range(20) %}{% set n.s = n.s + n.s %}{% endfor %}{% set s = n.s %}";
/// A list of two lists of two lists … forty times in `d`.
const SHARED: &str = "{% set n = namespace(d=[1]) %}{% for i in range(40) %}{% set n.d = [n.d, n.d] %}{% endfor %}{% set d = n.d %}";

fn rendered(source: &str) -> String {
    let messages = [Message::new("user", "hi")];
    ChatTemplate::new(source, [("bos_token", "<s>")])
        .and_then(|template| template.render(&messages, &ChatOptions::default()))
        .unwrap_or_else(|error| error.to_string())
}

/// Renders `source` in bounded time; `expected` is a part of what comes out.
fn check(name: &str, source: &str, expected: &str) {
    let start = Instant::now();
    let found = rendered(source);
    let took = start.elapsed();
    if std::env::var_os("BRASA_TIMES").is_some() && took > Duration::from_millis(100) {
        println!("{name}: {took:?}");
    }
    let short: String = found.chars().take(200).collect();
    assert!(found.contains(expected), "{name}: expected {expected:?}, found {short:?}");
    assert!(took < Duration::from_secs(16), "{name} took {took:?}");
}

/// The most memory that this process has held, where the system tells.
fn peak_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
}

#[test]
fn nesting_of_the_source() {
    let wrapped = |open: &str, inner: &str, close: &str, times: usize| {
        format!("{}{inner}{}", open.repeat(times), close.repeat(times))
    };
    let tag = |inner: String| format!("a\n{{{{ {inner} }}}}");
    for (name, source, expected) in [
        ("not", tag(wrapped("not ", "x", "", 6_000)), "more than 100 `not` or signs in a row (line 2)"),
        ("signs", tag(wrapped("-", "1", "", 6_000)), "more than 100 `not` or signs in a row (line 2)"),
        ("powers", tag(wrapped("2 ** ", "1", "", 6_000)), "more than 4000 operators in one tag (line 2)"),
        ("brackets", tag(wrapped("(", "1", ")", 50_000)), "more than 100 brackets nested (line 2)"),
        ("lists", tag(wrapped("[", "1", "]", 50_000)), "more than 100 brackets nested (line 2)"),
        ("maps", tag(wrapped("{1:", "1", "}", 50_000)), "more than 100 brackets nested"),
        ("filters", tag(wrapped("", "1", "|string", 50_000)), "more than 4000 operators in one tag (line 2)"),
        ("attributes", tag(wrapped("", "a", ".a", 50_000)), "more than 4000 operators in one tag"),
        ("items", tag(wrapped("", "a", "[0]", 50_000)), "more than 4000 operators in one tag"),
        ("sums", tag(wrapped("", "bos_token", " + 1", 50_000)), "more than 4000 operators in one tag"),
        ("joins", tag(wrapped("", "bos_token", " ~ 1", 50_000)), "more than 4000 operators in one tag"),
        ("and", tag(wrapped("1 and ", "1", "", 50_000)), "more than 4000 operators in one tag"),
        ("comparisons", tag(wrapped("1 < ", "1", "", 50_000)), "more than 4000 operators in one tag"),
        ("if else", tag(wrapped("1 if 0 else ", "1", "", 6_000)), "more than 100 `if` and `else` in one tag"),
        ("if if", tag(wrapped("", "1", " if 1", 6_000)), "more than 100 `if` and `else` in one tag"),
        ("calls", tag(wrapped("", "a", "()", 50_000)), "more than 4000 operators in one tag"),
        ("tokens", tag(wrapped("1, ", "1", "", 50_000)), "more than 20000 tokens in one tag"),
        ("elif", wrapped("{% if 0 %}", "", "{% elif 0 %}", 2_150), "more than 500 blocks nested (line 1)"),
        (
            "elif chain",
            format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(2_150)),
            "more than 500 blocks nested",
        ),
        ("if", wrapped("{% if 1 %}", "x", "{% endif %}", 5_000), "more than 500 blocks nested"),
        ("for", wrapped("{% for a in [1] %}", "x", "{% endfor %}", 5_000), "more than 500 blocks nested"),
        ("set blocks", wrapped("{% set a %}", "x", "{% endset %}", 5_000), "more than 500 blocks nested"),
        ("macros", wrapped("{% macro a() %}", "x", "{% endmacro %}", 5_000), "more than 500 blocks nested"),
        (
            "generation",
            wrapped("{% generation %}", "x", "{% endgeneration %}", 5_000),
            "more than 500 blocks nested",
        ),
        ("size", "x".repeat(2 << 20), "2097152 bytes found, expected at most 1048576"),
    ] {
        check(name, &source, expected);
    }
}

/// Templates just below the limits of nesting do not overflow the stack.
#[test]
fn the_deepest_source_runs() {
    let tag = |inner: String| format!("{{{{ {inner} }}}}");
    let chain = |part: &str, times: usize| tag(format!("1{}", part.repeat(times)));
    check("not", &tag(format!("{}x", "not ".repeat(99))), "True");
    check("filters", &chain("|string", 3_900), "1");
    check("sums", &chain(" + 1", 3_900), "3901");
    check("joins", &tag(format!("(1{})|length", " ~ 1".repeat(3_900))), "3901");
    check("and", &chain(" and 1", 3_900), "1");
    check("powers", &tag(format!("{}1", "1 ** ".repeat(100))), "1");
    check("attributes", &tag(format!("a is defined and a{}", ".a".repeat(3_900))), "False");
    check("elif", &format!("{{% if 0 %}}{}x{{% endif %}}", "{% elif 0 %}".repeat(490)), "");
    check("if else", &tag(format!("{}1", "2 if 0 else ".repeat(49))), "1");
    let blocks = |times: usize| format!("{}x{}", "{% if 1 %}".repeat(times), "{% endif %}".repeat(times));
    check("blocks", &blocks(140), "x");
    check("too many blocks", &blocks(300), CALLS);
    let brackets = format!("{}1{}", "[".repeat(60), "]".repeat(60));
    check("brackets", &tag(format!("{brackets} == {brackets}")), "True");
    check(
        "macros",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{% endif %}x{% endmacro %}{{ f(25) }}",
        &"x".repeat(26),
    );
}

#[test]
fn growth() {
    let repeated = |step: &str| {
        format!("{{% set n = namespace(s='xx', l=[1, 2]) %}}{{% for i in range(60) %}}{step}{{% endfor %}}")
    };
    for (name, source, expected) in [
        ("doubling", repeated("{% set n.s = n.s + n.s %}"), MEMORY),
        ("joining", repeated("{% set n.s = n.s ~ n.s %}"), MEMORY),
        ("captured", repeated("{% set n.s %}{{ n.s }}{{ n.s }}{% endset %}"), MEMORY),
        ("macro", repeated("{% macro f() %}{{ n.s }}{{ n.s }}{% endmacro %}{% set n.s = f() %}"), MEMORY),
        ("list doubling", repeated("{% set n.l = n.l + n.l %}"), MEMORY),
        ("batch", "{{ [1]|batch(1000000000, 'x')|length }}".to_owned(), MEMORY),
        ("slice", "{{ [1]|slice(1000000000)|length }}".to_owned(), MEMORY),
        ("indent", "{{ 'a\nb'|indent(2000000000) }}".to_owned(), MEMORY),
        ("indent by name", "{{ 'a\nb'|indent(width=2000000000) }}".to_owned(), MEMORY),
        ("printf width", "{{ '%2000000000s'|format('x') }}".to_owned(), MEMORY),
        ("printf precision", "{{ '%.2000000000f'|format(1.5) }}".to_owned(), MEMORY),
        ("format width", "{{ '{:2000000000}'.format('x') }}".to_owned(), MEMORY),
        ("constant times", "{{ 'aaaaaaaaaa' * 9999999 * 9 }}".to_owned(), "repeated string is too large"),
        ("constants", "{{ ('a' * 90000000) ~ ('a' * 90000000) }}".to_owned(), MEMORY),
        ("constant lists", "{{ [1] * 99999999 == [1] * 99999999 }}".to_owned(), MEMORY),
        ("nothing, often", "{{ [] * 9223372036854775807 }}{{ '' * 99 }}".to_owned(), "[]"),
        ("ranges", "{% for i in range(1000) %}{% set a = range(100000)|list %}{% endfor %}".to_owned(), MEMORY),
        ("huge range", "{{ range(1000000000)|list }}".to_owned(), "range has too many elements"),
        ("raw output", format!("{{% for i in range(99999) %}}{}{{% endfor %}}", "x".repeat(10_000)), MEMORY),
        ("attributes", "{% for i in range(99999) %}{% for j in range(99) %}{% set m = namespace(a=i) %}{% endfor %}{% endfor %}".to_owned(), MEMORY),
        (
            "closures",
            format!(
                "{{% for i in range(99999) %}}{{% macro f() %}}{}{{% endmacro %}}{{% endfor %}}",
                (0..20_000).map(|name| format!("{{{{ a{name} }}}}")).collect::<Vec<_>>().concat()
            ),
            MEMORY,
        ),
        ("macros in a loop", "{% for i in range(99999) %}{% macro f() %}{{ i }}{% endmacro %}{% endfor %}".to_owned(), MEMORY),
    ] {
        check(name, &source, expected);
    }
    // Text of a megabyte, and a list of ten thousand of it, which are one and the same in memory.
    for (name, source, expected) in [
        ("replace method", "{{ s.replace('x', 'x' * 1000) }}", MEMORY),
        ("replace filter", "{{ s|replace('x', 'x' * 1000) }}", MEMORY),
        ("replace nothing", "{{ s.replace('', 'x' * 1000) }}", MEMORY),
        ("join filter", "{{ l|join }}", MEMORY),
        ("join method", "{{ ','.join(l) }}", WORK),
        ("join by", "{{ range(1000)|join(s) }}", MEMORY),
        ("join letters", "{{ s.join(s) }}", MEMORY),
        ("format method", "{{ ('{0}' * 1000).format(s) }}", MEMORY),
        ("format filter", "{{ ('%s' * 1000)|format(*([s] * 60)) }}", MEMORY),
        ("tojson", "{{ l|tojson }}", WORK),
        ("tojson of some", "{{ (l[:200])|tojson }}", MEMORY),
        ("tojson separator", "{{ range(1000)|tojson(separators=(s, s)) }}", MEMORY),
        ("tojson indent", "{{ range(1000)|list|tojson(indent=s) }}", MEMORY),
        ("string", "{{ l[:200]|string }}", MEMORY),
        ("print", "{{ l[:200] }}", MEMORY),
        ("concatenate", "{{ l[:200] ~ l }}", MEMORY),
        ("pprint", "{{ l[:200]|pprint }}", MEMORY),
        ("upper", "{{ l[:200]|upper }}", MEMORY),
        ("escape", "{{ l[:200]|escape }}", MEMORY),
        ("captured", "{% set c %}{% for i in l %}{{ i }}{% endfor %}{% endset %}", MEMORY),
        (
            "call",
            "{% macro f() %}{% for i in l %}{{ caller() }}{% endfor %}{% endmacro %}{% call f() %}{{ s }}{% endcall %}",
            MEMORY,
        ),
        ("filter block", "{% filter upper %}{% for i in l %}{{ i }}{% endfor %}{% endfilter %}", MEMORY),
        ("output", "{% for i in range(100) %}{{ s }}{% endfor %}", "exceeded its length of text"),
        ("list times", "{{ l * 9000 }}", MEMORY),
        ("list slices", "{% for i in range(999) %}{% set a = l[:] + l[::-1] %}{% endfor %}", MEMORY),
        ("sum of lists", "{{ ([l] * 1000)|sum(start=[]) }}", MEMORY),
        ("chain", "{% for i in range(999) %}{% set a = l|chain(l) %}{% endfor %}", MEMORY),
        ("letters", "{% for i in range(60) %}{% set a = s|list %}{% endfor %}", MEMORY),
        ("pieces", "{% for i in range(60) %}{% set a = s.split('x') %}{% endfor %}", MEMORY),
        ("splitlines", "{{ ('\n' * 9000000).splitlines() }}", MEMORY),
        ("strftime", "{{ strftime_now(('%c' * 9000000)) }}", MEMORY),
        ("raise", "{{ raise_exception(s) }}", "xxxx…"),
    ] {
        check(name, &format!("{MEGABYTE}{{% set l = [s] * 10000 %}}{source}"), expected);
    }
    if let Some(peak) = peak_bytes() {
        assert!(peak < 2 << 30, "{peak} bytes");
    }
}

#[test]
fn shared_structure() {
    for (name, source, expected) in [
        ("printed", "{{ d }}", WORK),
        ("joined", "{{ d ~ '' }}", MEMORY),
        ("tojson", "{{ d|tojson }}", WORK),
        ("indented", "{{ d|tojson(indent=' ' * 1000) }}", WORK),
        ("string", "{{ d|string }}", WORK),
        ("pprint", "{{ d|pprint }}", MEMORY),
        ("upper", "{{ d|upper }}", MEMORY),
        ("join", "{{ d|join(',') }}", MEMORY),
        ("format", "{{ '{}'.format(d) }}", WORK),
        ("equal", "{% set e = [d, d] %}{% set f = [d, d] %}{{ [e, 1] == [f, 2] }}", WORK),
        ("less", "{{ [d, 1] < [d, 2] }}", WORK),
        ("chained", "{{ 1 < [d, 1] < [d, 2] }}", WORK),
        ("in", "{{ [d, 1] in [[d, 2]] }}", WORK),
        ("test", "{{ [d, 1] is eq([d, 2]) }}", WORK),
        ("select", "{{ [[d, 1]]|select('==', [d, 2])|list }}", WORK),
        ("sort", "{{ [d, d]|sort }}", WORK),
        ("unique", "{{ [d, d]|unique }}", WORK),
        ("min", "{{ [d, d]|min }}", WORK),
        ("groupby", "{{ [[d], [d]]|groupby(0) }}", "chat template: "),
        ("changed", "{% for i in [1, 2] %}{{ loop.changed(d) }}{% endfor %}", WORK),
        ("count", "{{ [d, d].count(d) }}", WORK),
        ("raised", "{{ raise_exception(d) }}", WORK),
        ("key", "{{ {d: 1} }}", "a sequence cannot be the key of a map"),
        ("lookup", "{{ {1: 1}[d] }}{{ d in {1: 1} }}", "False"),
        ("length", "{{ d|length }}", "2"),
    ] {
        check(name, &format!("{SHARED}{source}"), expected);
    }
}

#[test]
fn depth_of_values() {
    let nested = |step: &str, end: &str| {
        format!(
            "{{% set n = namespace(l=[1], t='') %}}{{% for i in range(22000) %}}{{% set n.l = {step} %}}{{% endfor %}}{end}"
        )
    };
    for (name, source, expected) in [
        ("lists compared", nested("[n.l]", "{{ n.l == n.l }}"), DEPTH),
        ("lists dropped", nested("[n.l]", ""), DEPTH),
        ("tuples", nested("(n.l, 1)", ""), DEPTH),
        ("maps", nested("{'a': n.l}", ""), DEPTH),
        ("dict", nested("dict(a=n.l)", ""), DEPTH),
        ("batch", nested("n.l|batch(1)|list", ""), DEPTH),
        ("zip", nested("n.l|zip|list", ""), DEPTH),
        ("items", nested("{'a': n.l}|items|list", ""), DEPTH),
        ("values", nested("{'a': n.l}.values()", ""), "[[[[1]]]]"),
        ("slices", nested("n.l[:]", "{{ n.l == [1] }}"), "True"),
        ("reversed", nested("n.l|reverse", "{{ n.l == [1] }}"), "True"),
        ("chained", nested("n.l|chain([])", "{{ n.l|list == [1] }}"), "True"),
        ("sums", nested("n.l + []", "{{ n.l == [1] }}"), "True"),
        (
            "itself",
            "{% set n = namespace() %}{% set n.n = n %}{{ n }}".to_owned(),
            "a namespace cannot be kept inside",
        ),
        (
            "chain of namespaces",
            "{% set n = namespace() %}{% set m = namespace(n=n) %}".to_owned(),
            "a namespace cannot be kept",
        ),
        (
            "in a list",
            "{% set n = namespace() %}{% set n.l = [n] %}".to_owned(),
            "a namespace cannot be kept",
        ),
        (
            "loop",
            "{% for i in [1] %}{% for j in range(2) %}{{ loop.changed(loop) }}{% endfor %}{% endfor %}"
                .to_owned(),
            "TrueTrue",
        ),
    ] {
        // The method `values` gives the value itself, one list deeper; four times is enough to see that.
        let source = if name == "values" {
            source.replace("22000", "3").replace("{% endfor %}", "{% endfor %}{{ n.l }}")
        } else {
            source
        };
        check(name, &source, expected);
    }
}

#[test]
fn time() {
    let megabytes = |source: &str| format!("{MEGABYTE}{{% for i in range(99999) %}}{source}{{% endfor %}}");
    for (name, source, expected) in [
        (
            "loops",
            "{% for a in range(99999) %}{% for b in [1] * 9999 %}{% endfor %}{% endfor %}".to_owned(),
            "exceeded its ",
        ),
        ("recursion", "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}".to_owned(), CALLS),
        (
            "mutual recursion",
            "{% macro f(x) %}{{ g(x) }}{% endmacro %}{% macro g(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}"
                .to_owned(),
            "chat template: ",
        ),
        ("recursive loop", "{% for x in [[1]] recursive %}{{ loop([x]) }}{% endfor %}".to_owned(), CALLS),
        ("include itself", "{% include 'chat_template' %}".to_owned(), "template not found"),
        ("extend itself", "{% extends 'chat_template' %}".to_owned(), "template not found"),
        ("block in itself", "{% block a %}{{ self.a() }}{% endblock %}".to_owned(), CALLS),
        ("letters", megabytes("{% for c in s %}{% break %}{% endfor %}"), WORK),
        ("search", megabytes("{% set c = 'y' in s %}"), WORK),
        ("equal", megabytes("{% set c = s == s %}"), WORK),
        ("macro argument", megabytes("{% macro f(x) %}{% endmacro %}{{ f(*s) }}"), "too many arguments"),
        ("many arguments", "{{ 'a'|map(*(['map'] * 9999)) }}".to_owned(), "arguments, expected at most 64"),
        ("map of map", format!("{{{{ 'a'|map({}'upper') }}}}", "'map', ".repeat(60)), "A"),
        ("no cycle", "{% for i in [1] %}{{ loop.cycle() }}{% endfor %}".to_owned(), "internal failure: "),
        ("debug", "{{ debug() }}".to_owned(), "unknown function"),
    ] {
        check(name, &source, expected);
    }
    if sweeps("templates that take seconds") {
        for (name, source, expected) in [
            (
                "branching macros",
                "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(30) }}"
                    .to_owned(),
                "exceeded its ",
            ),
            ("letter", megabytes("{% set c = s[-1] %}"), "exceeded its "),
            ("find", megabytes("{% set c = s.find('y') %}"), "exceeded its "),
            ("strip", megabytes("{% set c = s.strip('abcdefghijklmnopqrstuvw' * 100) %}"), "exceeded its "),
        ] {
            check(name, &source, expected);
        }
    }
}

/// The engine's own slices panic on some of these and say something else than Python of others.
#[test]
fn slices_are_those_of_python() {
    let smallest = "-9223372036854775807 - 1";
    for (expression, expected) in [
        ("''[::-1]", "\"\"".to_owned()),
        ("[][::-1]", "[]".to_owned()),
        ("'añc'[::-1]", "\"cña\"".to_owned()),
        ("'abc'[2:0:-1]", "\"cb\"".to_owned()),
        ("'abc'[0:2:-1]", "\"\"".to_owned()),
        ("[1, 2, 3, 4][1:-1]", "[2, 3]".to_owned()),
        ("range(5)[::-2]", "[4, 2, 0]".to_owned()),
        (&format!("'abc'[::{smallest}]"), "\"c\"".to_owned()),
        (&format!("[1, 2][{smallest}:9223372036854775807:{smallest}]"), "[]".to_owned()),
        ("x[1:]", "[]".to_owned()),
    ] {
        assert_eq!(rendered(&format!("{{{{ ({expression}) | tojson }}}}")), expected, "{expression}");
    }
    for (expression, expected) in
        [("'abc'[::0]", "cannot slice by step size of 0"), ("7[1:]", "value of type number cannot be sliced")]
    {
        assert!(rendered(&format!("{{{{ {expression} }}}}")).contains(expected), "{expression}");
    }
}

/// Operators mean what they mean in the engine's own hands.
#[test]
fn operators_are_those_of_the_engine() {
    let operands = [
        "1",
        "-7",
        "2.5",
        "true",
        "none",
        "'ab'",
        "''",
        "[1, 'a']",
        "[]",
        "{'a': 1}",
        "9223372036854775807",
        "x",
        "170141183460469231731687303715884105727",
        "'b'",
        "0",
    ];
    let engine = minijinja::Environment::new();
    let mut compared = 0;
    for operator in [
        "+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and",
        "or",
    ] {
        let mut source = String::new();
        let mut expected = Vec::new();
        for a in operands {
            for b in operands {
                let expression = format!("({a}) {operator} ({b})");
                // A list is printed as Python prints it, and in the engine's own way by the engine.
                match engine.render_str(&format!("{{{{ ({expression}) | tojson }}}}"), ()) {
                    // JSON has no word for a number that is none, nor for what is undefined.
                    Ok(text) if text == "null" && (operator == "**" || [a, b].contains(&"x")) => {}
                    Ok(text) => {
                        source.extend(["{{ (", &expression, ") | tojson }}\n"]);
                        expected.push((expression, text));
                    }
                    Err(_) => {
                        let found = if b == operands[0] || a == operands[0] {
                            rendered(&format!("{{{{ {expression} }}}}"))
                        } else {
                            continue;
                        };
                        assert!(found.starts_with("chat template: "), "{expression}: {found}");
                    }
                }
            }
        }
        let found = rendered(&source);
        let lines: Vec<&str> = found.lines().collect();
        assert_eq!(lines.len(), expected.len(), "{operator}: {found}");
        for ((expression, text), line) in expected.iter().zip(lines) {
            let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).ok();
            // Whole numbers and those of more than 64 bits are written in different ways.
            let same = |a: &str, b: &str| match (read(a), read(b)) {
                (Some(a), Some(b)) => a == b || (a.is_number() && a.as_f64() == b.as_f64()),
                _ => a == b,
            };
            assert!(same(text, line), "{expression}: {line}, the engine says {text}");
            compared += 1;
        }
    }
    assert!(compared > 1_500, "{compared}");
}

/// A thousand long messages, tools of 100 kB and every message written as JSON are far from any limit.
#[test]
fn long_conversations_fit() {
    let text = "Some words of a long talk about nothing at all. ".repeat(200);
    let messages: Vec<Message> = (0..1_000)
        .map(|index| Message::new(if index % 2 == 0 { "user" } else { "assistant" }, text.clone()))
        .collect();
    let tool = serde_json::json!({"type": "function", "function": {"name": "f", "description": "d".repeat(900), "parameters": {"type": "object"}}});
    let tools = vec![tool; 100];
    let options = ChatOptions { tools: Some(&tools), ..ChatOptions::default() };
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/chat/templates");
    for name in ["Qwen-Qwen3-0.6B", "openai-gpt-oss-120b", "meta-llama-Llama-3.1-8B-Instruct"] {
        let source = std::fs::read_to_string(folder.join(format!("{name}.jinja"))).expect("template");
        let template = ChatTemplate::new(&source, [("bos_token", "<s>")]).expect(name);
        let rendered = template.render(&messages, &options).expect(name);
        assert!(rendered.len() > 1_000 * text.len(), "{name}");
    }
}
