//! The names of the chat's commands.

/// Names of all commands.
pub const NAMES: &[&str] = &[
    "help", "?", "clear", "system", "regen", "undo", "set", "stats", "save", "save!", "load", "exit", "quit",
    "bye",
];

/// True if the line begins with a command of the chat.
pub fn is_known(line: &str) -> bool {
    let name = line.strip_prefix('/').and_then(|rest| rest.split(char::is_whitespace).next());
    name.is_some_and(|name| NAMES.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::{NAMES, is_known};

    #[test]
    fn commands_are_known_by_their_first_word() {
        assert!(NAMES.iter().all(|name| is_known(&format!("/{name} x"))));
        for line in ["", "/", "help", "//help", "/usr/bin", "/ help"] {
            assert!(!is_known(line), "{line}");
        }
    }
}
