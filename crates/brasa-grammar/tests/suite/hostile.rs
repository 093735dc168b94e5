//! Fuzzing: whatever a grammar says, it is a grammar or an error, and soon.

use std::time::Duration;

use brasa_fuzz::{Fuzzer, sweeps};
use brasa_grammar::{Grammar, GrammarError, Stop, gbnf};

use super::common::{compile, try_judge};

/// Compiles a grammar and makes a few masks, each of which may be an error.
fn outcome(grammar: &Grammar) -> String {
    let verdict = match compile(grammar) {
        Ok(grammar) => try_judge(&*grammar, b"{\"a\": [1]}").map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    match verdict {
        Ok(verdict) => format!("{verdict:?}"),
        // Without what is quoted, which differs from input to input.
        Err(error) => error.split(['`', '"', '\n']).step_by(2).collect(),
    }
}

#[test]
fn gbnf_converts_or_says_why_not() {
    let mut fuzzer = Fuzzer::new("gbnf")
        .words([
            "::=", "root", " | ", "\n", "(", ")", "*", "{2,3}", "[^a-z]", "\\x41", "\"", "<[3]>", "!", ".",
            "#",
        ])
        .runs(if sweeps("more inputs") { 20_000 } else { 500 });
    for file in ["json", "arithmetic", "cut_choice", "cut_keywords", "list"] {
        let path = format!("{}/tests/gbnf/{file}.gbnf", env!("CARGO_MANIFEST_DIR"));
        fuzzer = fuzzer.seed(std::fs::read(path).unwrap());
    }
    fuzzer.run(|data| match gbnf::to_lark(&String::from_utf8_lossy(data), &|_| None) {
        Ok(lark) => format!("{}", lark.lines().count()),
        Err(error) => error.to_string().split([',', '`']).step_by(2).collect(),
    });
}

#[test]
fn grammars_compile_or_say_why_not() {
    let runs = if sweeps("more inputs") { 100 } else { 25 };
    Fuzzer::new("gbnf grammars")
        .seed("root ::= \"{\" [a-z]+ root? \"}\"")
        .seed("root ::= x root | \"a\"{2}\nx ::= [0-9]+ | root \"\"")
        .words(["root", " | ", "(", ")", "*", "{2,3}", "[^a-z]", "x", "?"])
        .longest_input(200)
        .runs(runs)
        .run(|data| outcome(&Grammar::Gbnf(String::from_utf8_lossy(data).into_owned())));
    Fuzzer::new("schemas")
        .seed(r##"{"type":"object","properties":{"a":{"items":{"$ref":"#"}}},"required":["a"]}"##)
        .seed(r#"{"allOf":[{"anyOf":[{"minLength":3},{"pattern":"a+"}]},{"enum":[1,"a"]}],"maximum":1e9}"#)
        .words([
            "\"$ref\":\"#\"",
            "\"oneOf\"",
            "\"multipleOf\":0.1",
            "\"minItems\":9999",
            "\"patternProperties\"",
            "{}",
        ])
        .longest_input(300)
        .runs(runs)
        .run(|data| match serde_json::from_slice(data) {
            Ok(schema) => outcome(&Grammar::JsonSchema(schema)),
            Err(_) => "not JSON".into(),
        });
    for (seed, word) in [("(a|b)*c{2,3}", "(?i)"), ("[^x]+\\d", "{1000}")] {
        Fuzzer::new("regexes").seed(seed).words([word, "\\p{L}", "|", ")"]).longest_input(60).runs(runs).run(
            |data| {
                let text = String::from_utf8_lossy(data).into_owned();
                outcome(&Grammar::Lark(format!("start: A \"b\"\nA: /{text}/")))
                    + &outcome(&Grammar::Regex(text))
            },
        );
    }
}

/// Grammars that are no longer awaited leave their threads to others. There are four, and each of these grammars would keep one for longer than another waits.
#[test]
fn grammars_are_given_up() {
    let rule =
        |mark: char, rule: usize| format!("r{rule} ::= [a-z]* \"{mark}{rule}\" [a-z]* | r{}", rule + 1);
    let rules = |mark: char| (0..3000).map(|number| rule(mark, number)).collect::<Vec<_>>().join("\n");
    let gbnf = |mark: char| Grammar::Gbnf(format!("root ::= r0\n{}\nr3000 ::= \"q\"", rules(mark)));
    let regex = |letter: char| Grammar::Regex(format!("({letter}{{1000}}){{1000}}"));
    let slow = [gbnf('x'), gbnf('y'), regex('x'), regex('y')];
    std::thread::scope(|scope| {
        let compiling = slow.map(|grammar| {
            let stop = Stop::default();
            let order = stop.clone();
            (stop, scope.spawn(move || order.during(|| compile(&grammar).map(|_| ()))))
        });
        // They have begun by then; else the test shows less.
        std::thread::sleep(Duration::from_millis(500));
        for (stop, thread) in compiling {
            stop.give();
            assert_eq!(thread.join().unwrap(), Err(GrammarError::Stopped));
        }
    });
    assert_eq!(compile(&Grammar::Regex("(ab)+ and no other".into())).map(|_| ()), Ok(()));
    // An order holds for what is compiled beside it alone, and another compilation of the grammar may succeed.
    let stop = Stop::default();
    stop.give();
    let late = || compile(&Grammar::Regex("late".into())).map(|_| ());
    assert_eq!(stop.during(late), Err(GrammarError::Stopped));
    assert_eq!(late(), Ok(()));
}
