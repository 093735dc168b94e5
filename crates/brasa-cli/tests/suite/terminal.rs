//! A pseudo-terminal with somebody at the keyboard: keys typed, screen compared.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::process::Child;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use pty_process::Size;
use pty_process::blocking::{Command, Pty, open};

/// Longer than any step here takes on a busy machine; what does not come by then will not come.
const PATIENCE: Duration = Duration::from_mins(2);
/// The line editor sends this when it waits for a line: "pasted text is bracketed from now on".
pub const READY: &str = "\x1b[?2004h";
pub const CTRL_C: &str = "\x03";
pub const CTRL_D: &str = "\x04";
pub const UP: &str = "\x1b[A";
/// More rows than any test fills, so that nothing scrolls away.
const ROWS: u16 = 300;

/// The command, with somebody at its terminal.
pub struct Terminal {
    pub child: Child,
    keyboard: std::fs::File,
    output: Receiver<Vec<u8>>,
    /// Output that no expectation has consumed yet.
    shown: String,
    screen: vt100::Parser,
    /// The row of the last prompt.
    row: u16,
}

impl Terminal {
    /// Starts the command at a terminal of 100 columns, with these variables beside those of the test.
    pub fn with(arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        Self::of_width(100, arguments, variables)
    }

    /// Starts the command at a terminal of this many columns.
    pub fn of_width(columns: u16, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let (pty, pts) = open().unwrap();
        pty.resize(Size::new(ROWS, columns)).unwrap();
        let command = Command::new(env!("CARGO_BIN_EXE_brasa"))
            .args(arguments)
            .env("TERM", "xterm")
            .env_remove("NO_COLOR")
            .env("BRASA_HISTORY", "off")
            .envs(variables.iter().copied());
        let child = command.spawn(pts).unwrap();
        let (keyboard, mut output_file) = halves(&pty);
        let (sender, output) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // A terminal whose program has ended gives an error or nothing.
            while let Ok(count @ 1..) = output_file.read(&mut bytes) {
                if sender.send(bytes[..count].to_vec()).is_err() {
                    break;
                }
            }
        });
        let screen = vt100::Parser::new(ROWS, columns, 0);
        Self { child, keyboard, output, shown: String::new(), screen, row: 0 }
    }

    pub fn new(arguments: &[&str]) -> Self {
        Self::with(arguments, &[])
    }

    /// Waits until `text` is sent; returns what came before it.
    pub fn expect(&mut self, text: &str) -> String {
        loop {
            if let Some(place) = self.shown.find(text) {
                let before = self.shown[..place].to_owned();
                self.shown.drain(..place + text.len());
                return before;
            }
            self.receive(&format!("{text:?}"));
        }
    }

    fn receive(&mut self, expected: &str) {
        match self.output.recv_timeout(PATIENCE) {
            Ok(bytes) => {
                self.screen.process(&bytes);
                self.shown += &String::from_utf8_lossy(&bytes);
            }
            Err(error) => panic!("expected {expected}, got {:?}: {error}", self.shown),
        }
    }

    pub fn press(&mut self, keys: impl AsRef<[u8]>) {
        self.keyboard.write_all(keys.as_ref()).unwrap();
    }

    /// Waits for the prompt, types a line; returns what was shown before the prompt.
    pub fn enter(&mut self, line: &str) -> String {
        let before = self.expect(READY);
        self.press(format!("{line}\r"));
        before
    }

    /// Presses keys, and waits until the row of the cursor reads `text`.
    pub fn shows(&mut self, keys: impl AsRef<[u8]>, text: &str) {
        self.press(keys);
        while self.text_of(self.screen.screen().cursor_position().0) != text {
            self.receive(&format!("a row {text:?}"));
        }
    }

    /// Presses keys, and waits for the next prompt; returns the rows between the last prompt and this one.
    pub fn answered(&mut self, keys: impl AsRef<[u8]>) -> String {
        self.press(keys);
        let first = self.row;
        loop {
            let (row, column) = self.screen.screen().cursor_position();
            if row > first && column == 2 && self.text_of(row) == ">" {
                let rows: Vec<String> = (first..row).map(|row| self.text_of(row)).collect();
                self.row = row;
                return rows.join("\n");
            }
            self.receive(&format!("a prompt below row {first}"));
        }
    }

    /// Waits until the command has ended; returns its exit code and the rows from the last prompt on.
    pub fn ended(&mut self) -> (Option<i32>, String) {
        let code = self.child.wait().unwrap().code();
        while let Ok(bytes) = self.output.recv() {
            self.screen.process(&bytes);
        }
        let (last, _) = self.screen.screen().cursor_position();
        let mut rest = String::new();
        for row in self.row..=last {
            writeln!(rest, "{}", self.text_of(row)).unwrap();
        }
        (code, rest.trim_end().to_owned())
    }

    fn text_of(&self, row: u16) -> String {
        let screen = self.screen.screen();
        let (_, columns) = screen.size();
        screen.contents_between(row, 0, row, columns).trim_end().to_owned()
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
