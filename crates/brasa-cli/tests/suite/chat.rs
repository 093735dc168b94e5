//! The interactive chat, at a terminal that is none, and through a pipe.

#![cfg(unix)]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::command::{scratch, stderr, stdout};
use crate::terminal::{CTRL_C, CTRL_D, READY, Terminal, UP};

fn saved(name: &str, terminal: &mut Terminal) -> Value {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("chat-{name}.json"));
    // It may be left over from an earlier run.
    let _ = std::fs::remove_file(&path);
    terminal.enter(&format!("/save {}", path.display()));
    // The next prompt appears when the file is there.
    terminal.enter("/stats");
    serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap()
}

#[test]
fn a_conversation_at_a_terminal() {
    let mut terminal = Terminal::new(&["--temp", "0", "-n", "6", "-t", "1"]);
    terminal.expect("/help lists commands");
    terminal.enter("/help");
    assert!(terminal.enter("Define: house").contains("Ctrl-C stops the answer."));

    // Several lines, both ways; then the last one again, from the history.
    terminal.enter("Define: \\");
    terminal.enter("river");
    terminal.enter("\"\"\"Define:");
    terminal.enter("");
    terminal.enter("ember\"\"\"");
    terminal.enter("Define: stone");
    terminal.enter(UP);
    let messages = saved("conversation", &mut terminal);
    let said: Vec<&str> = messages
        .as_array()
        .unwrap()
        .iter()
        .filter(|message| message["role"] == "user")
        .map(|message| message["content"].as_str().unwrap())
        .collect();
    assert_eq!(
        said,
        ["Define: house", "Define: \nriver", "Define:\n\nember", "Define: stone", "Define: stone"]
    );

    // What cannot be done is said, and the chat goes on.
    terminal.enter("/set temp warm");
    terminal.enter("/no-such-command");
    assert!(terminal.expect(READY).contains("/no-such-command is no command"));
    terminal.press(CTRL_D);
    assert_eq!(terminal.child.wait().unwrap().code(), Some(0));
}

/// A whole session: keys typed, screen compared.
#[test]
fn a_session_on_the_screen() {
    let file = scratch("session").join("said.json");
    // Folders differ from machine to machine.
    let name = |text: String| text.replace(file.to_str().unwrap(), "FILE");
    let arguments = [
        "--temp",
        "0",
        "-n",
        "5",
        "-c",
        "96",
        "-t",
        "1",
        "--precision",
        "reference",
        "--context-policy",
        "slide",
    ];
    let mut terminal = Terminal::of_width(200, &arguments, &[]);
    let mut session = vec![terminal.answered("")];
    // Typing and editing: the first word is replaced, the last letter put in from the left.
    terminal.shows("Defne: hose", "> Defne: hose");
    terminal.shows("\x1b[D\x1b[Du\x01\x1b[C\x1b[C\x1b[Ci", "> Define: house");
    session.push(terminal.answered("\r"));
    // A paste that the terminal marks is edited further; one that it does not mark is one message all the same.
    terminal.shows("\x1b[200~Define:\rriver\x1b[201~", "river");
    session.push(terminal.answered("s\r"));
    session.push(terminal.answered("Define:\r\r\tstone\r"));
    // History: the message of three lines comes back as a whole, the one before by a second key.
    terminal.shows(UP, "        stone");
    terminal.shows([UP; 3].concat(), "rivers");
    session.push(terminal.answered(CTRL_C));
    // Bytes that are no UTF-8, and the rest of their paste, are left out, and what was typed is still there.
    terminal.shows("Define: ", "> Define:");
    terminal.press(b"d\xe9sol\xe9\rDefine: nothing\r");
    terminal.expect("the conversation goes on)");
    terminal.shows("", "> Define: d");
    session.push(terminal.answered("og\r"));
    for command in [
        "/set",
        "/set temp",
        "/set top_k=7",
        "/set top_k -4",
        "/set n 3.7",
        "/save FILE",
        "/save FILE",
        "/clear",
        "/regen",
        "/load FILE",
        "/load /dev/zero",
        "/load /no/such/file",
        "/frobnicate",
        "/stats of nothing",
        "/undo",
        "//etc",
        "/clear",
    ] {
        let keys = format!("{}\r", command.replace("FILE", file.to_str().unwrap()));
        session.push(name(terminal.answered(keys)));
    }
    // A full context: the oldest turns give way.
    for word in ["house", "river", "stone", "dog", "ember"] {
        session.push(terminal.answered(format!("Define: {word}\r")));
    }
    session.push(terminal.answered(format!("Define:{}\r", " x".repeat(90))));
    let text = session.join("\n");
    let seed = text.lines().find(|line| line.starts_with("seed = ")).unwrap();
    let text = text.replace(seed, "seed = #");
    let mut settings = insta::Settings::clone_current();
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!("session", text));
    // Twice Ctrl-C leaves.
    assert!(terminal.answered(CTRL_C).contains("(Ctrl-C again, Ctrl-D or /exit leaves)"));
    terminal.press(CTRL_C);
    assert_eq!(terminal.ended().0, Some(0));
}

#[test]
fn ctrl_c_stops_the_answer_and_not_the_program() {
    let mut terminal =
        Terminal::new(&["--temp", "0", "--ignore-eos", "--context-policy", "slide", "-t", "1"]);
    // This answer never ends by itself.
    terminal.enter("Define: house");
    terminal.expect("house");
    terminal.expect("\n");
    terminal.expect(" ");
    terminal.press(CTRL_C);
    terminal.expect("(interrupted)");
    let messages = saved("stopped", &mut terminal);
    let roles: Vec<&str> =
        messages.as_array().unwrap().iter().map(|message| message["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant"], "the answer stays as far as it went");

    // At the prompt it says how to leave; a second question is answered like the first.
    terminal.expect(READY);
    terminal.press(CTRL_C);
    terminal.expect("(Ctrl-C again, Ctrl-D or /exit leaves)");
    terminal.enter("/set n 3");
    terminal.enter("Define: river");
    terminal.enter("/exit");
    assert_eq!(terminal.child.wait().unwrap().code(), Some(0));
}

#[test]
fn typed_lines_outlive_a_killed_chat() {
    let folder = scratch("history");
    let state = folder.to_str().unwrap();
    let variables = [("XDG_STATE_HOME", state), ("BRASA_HISTORY", "")];
    let mut terminal = Terminal::with(&["-t", "1"], &variables);
    terminal.answered("");
    terminal.answered("\"\"\"/set\rtemp\"\"\"\r");
    terminal.answered("/set temp 0\r");
    terminal.shows("half a line", "> half a line");
    assert!(Command::new("kill").arg(terminal.child.id().to_string()).status().unwrap().success());
    assert_eq!(terminal.ended().0, Some(130));
    let mut terminal = Terminal::with(&["-t", "1"], &variables);
    terminal.answered("");
    terminal.shows(UP, "> /set temp 0");
    terminal.shows(UP, "temp\"\"\"");
    let kept = std::fs::read_to_string(Path::new(state).join("brasa/history")).unwrap();
    assert_eq!(kept, "\"\"\"/set\\ntemp\"\"\"\n/set temp 0\n");
}

#[test]
fn colours_are_for_terminals_that_have_them() {
    let arguments = ["chat", "-p", "Define: house", "-n", "1", "-t", "1"];
    let prompt = "\x1b[1;32m> ";
    let mut terminal = Terminal::new(&arguments);
    terminal.expect(prompt);
    let mut terminal = Terminal::with(&arguments, &[("NO_COLOR", "1")]);
    assert!(!terminal.expect("> \r\x1b[2C").contains(prompt));
    // What is asked for by an option comes before all, also in front of the command and in llama.cpp's words.
    let mut terminal = Terminal::with(&[&["--color"], &arguments[..]].concat(), &[("NO_COLOR", "1")]);
    terminal.expect(prompt);
    let mut terminal =
        Terminal::with(&[&arguments[..], &["-co", "off"]].concat(), &[("CLICOLOR_FORCE", "1")]);
    assert!(!terminal.expect("> \r\x1b[2C").contains(prompt));
    let arguments = [&["--color=always"], &arguments[..]].concat();
    let mut terminal = Terminal::with(&arguments, &[("TERM", "dumb")]);
    terminal.expect(prompt);
    let arguments = &arguments[1..];
    // A terminal that can do nothing gets nothing but text, and lines of one paste are still one message.
    let mut terminal = Terminal::with(arguments, &[("TERM", "dumb")]);
    terminal.expect("> Define: house");
    assert!(!terminal.expect("\n> ").contains('\x1b'));
    terminal.press("one\ntwo\n/undo\n");
    assert!(!terminal.expect("\n> ").contains('\x1b'));
    terminal.press("/undo\n");
    terminal.expect("1 turn left");
    terminal.expect("\n> ");
    terminal.press(CTRL_D);
    assert_eq!(terminal.ended().0, Some(0));
}

#[test]
fn a_pipe_is_answered_line_by_line() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_brasa"))
        .args(["chat", "--temp", "0", "-n", "3", "-t", "1", "-p", "Define: dog"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(b"Define: house\r\n\n/set n\n/nonsense\nDefine: \xff \\\nriver")
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let text = stdout(&output);
    let (answers, notes): (Vec<&str>, String) = (text.lines().collect(), stderr(&output));
    assert!(answers[0].starts_with("dog") && answers[2].starts_with("house:"), "{text}");
    assert!(text.contains("\nn = 3\n") && !text.contains("> ") && !text.contains('\x1b'), "{text:?}");
    assert!(notes.contains("is not UTF-8") && notes.contains("/nonsense is no command"), "{notes}");
    assert_eq!(output.status.code(), Some(1), "a script learns that a line was not obeyed");
}

/// A template may open the thoughts, and the model may never close them.
#[test]
fn thoughts_are_dim_and_kept_apart() {
    let folder = scratch("thoughts");
    let (template, said) = (folder.join("open.jinja"), folder.join("said.json"));
    std::fs::write(&template, "{{ messages[-1].content }}<think>\n").unwrap();
    let template = ["--chat-template-file", template.to_str().unwrap(), "-n", "3", "--temp", "0", "-t", "1"];
    let mut child = Command::new(env!("CARGO_BIN_EXE_brasa"))
        .args(["chat", "--color", "always"])
        .args(template)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let typed = format!("Define: house\n/save {}\n", said.display());
    child.stdin.take().unwrap().write_all(typed.as_bytes()).unwrap();
    let text = stdout(&child.wait_with_output().unwrap());
    let thought = text.strip_prefix("\x1b[2m").and_then(|text| text.strip_suffix("\x1b[0m\n")).unwrap();
    let messages: Value = serde_json::from_slice(&std::fs::read(said).unwrap()).unwrap();
    assert_eq!(
        (&messages[1]["content"], &messages[1]["reasoning_content"]),
        (&"".into(), &thought.trim().into())
    );
    let mut terminal = Terminal::new(&[&["-p", "Define: house"], &template[..]].concat());
    terminal.expect(&format!("\x1b[2m{thought}\x1b[0m"));
}

/// Names of files may come from anywhere: a terminal shows what it would obey, a pipe gets the bytes.
#[test]
fn escape_codes_in_names_do_not_reach_the_terminal() {
    let directory = crate::command::scratch("escapes").join("red \u{1b}[31m \u{9b}1m \u{202e}");
    std::fs::create_dir_all(&directory).unwrap();
    let path = directory.to_str().unwrap();
    let mut terminal = Terminal::new(&["discover", path]);
    terminal.expect("no models below");
    terminal.expect("red \\u{1b}[31m \\u{9b}1m \\u{202e}");
    terminal.child.wait().unwrap();
    std::fs::write(directory.join("broken.gguf"), "GGUF").unwrap();
    let mut terminal = Terminal::new(&["discover", path]);
    terminal.expect("red \\u{1b}[31m \\u{9b}1m \\u{202e}");
    terminal.child.wait().unwrap();
    let piped = crate::command::stdout(&crate::command::brasa(&["discover", path]));
    assert!(piped.contains("red \u{1b}[31m \u{9b}1m \u{202e}"), "{piped:?}");
}
