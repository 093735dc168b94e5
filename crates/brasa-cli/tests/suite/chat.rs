//! The interactive chat, at a terminal that is none.

#![cfg(unix)]

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::Child;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use pty_process::Size;
use pty_process::blocking::{Command, Pty, open};
use serde_json::Value;

/// Longer than any step here takes on a busy machine; what does not come by then will not come.
const PATIENCE: Duration = Duration::from_mins(2);
/// The line editor sends this when it waits for a line: "pasted text is bracketed from now on".
const READY: &str = "\x1b[?2004h";
const CTRL_C: &str = "\x03";
const CTRL_D: &str = "\x04";
const UP: &str = "\x1b[A";

/// The command, with somebody at its terminal.
struct Terminal {
    child: Child,
    keyboard: std::fs::File,
    screen: Receiver<Vec<u8>>,
    /// Output that no expectation has consumed yet.
    shown: String,
}

impl Terminal {
    fn new(arguments: &[&str]) -> Self {
        let (pty, pts) = open().unwrap();
        pty.resize(Size::new(40, 200)).unwrap();
        let command = Command::new(env!("CARGO_BIN_EXE_brasa")).args(arguments).env("TERM", "xterm");
        let child = command.spawn(pts).unwrap();
        let (keyboard, mut screen_file) = halves(&pty);
        let (sender, screen) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // A terminal whose program has ended gives an error or nothing.
            while let Ok(count @ 1..) = screen_file.read(&mut bytes) {
                if sender.send(bytes[..count].to_vec()).is_err() {
                    break;
                }
            }
        });
        Self { child, keyboard, screen, shown: String::new() }
    }

    /// Waits until `text` is shown; returns what came before it.
    fn expect(&mut self, text: &str) -> String {
        loop {
            if let Some(place) = self.shown.find(text) {
                let before = self.shown[..place].to_owned();
                self.shown.drain(..place + text.len());
                return before;
            }
            match self.screen.recv_timeout(PATIENCE) {
                Ok(bytes) => self.shown += &String::from_utf8_lossy(&bytes),
                Err(error) => panic!("expected {text:?}, got {:?}: {error}", self.shown),
            }
        }
    }

    fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits for the prompt, types a line; returns what was shown before the prompt.
    fn enter(&mut self, line: &str) -> String {
        let before = self.expect(READY);
        self.press(&format!("{line}\r"));
        before
    }
}

/// The terminal's other end, to write to and to read from.
fn halves(pty: &Pty) -> (std::fs::File, std::fs::File) {
    use std::os::fd::AsFd;
    let file = || std::fs::File::from(pty.as_fd().try_clone_to_owned().unwrap());
    (file(), file())
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // One that has ended cannot be killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

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
    let messages = saved("stopped", &mut terminal);
    let roles: Vec<&str> =
        messages.as_array().unwrap().iter().map(|message| message["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant"], "the answer stays as far as it went");

    // At the prompt it says how to leave; a second question is answered like the first.
    terminal.expect(READY);
    terminal.press(CTRL_C);
    terminal.expect("(Ctrl-D or /exit leaves)");
    terminal.enter("/set n 3");
    terminal.enter("Define: river");
    terminal.enter("/exit");
    assert_eq!(terminal.child.wait().unwrap().code(), Some(0));
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
