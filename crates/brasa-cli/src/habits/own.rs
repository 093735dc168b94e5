//! Brasa's own options, read from the parser.

use std::collections::HashMap;

use clap::Command;

/// The options of one command.
pub struct Options {
    command: Option<String>,
    /// Long names, and whether the option takes a value.
    longs: HashMap<String, bool>,
    /// Single letters: the long name, and whether the option takes a value.
    shorts: HashMap<char, (String, bool)>,
}

impl Options {
    /// The options of a command; those of `run` if `command` is `None`.
    pub fn of(root: &Command, command: Option<&str>) -> Self {
        let found = command.and_then(|name| root.find_subcommand(name)).unwrap_or(root);
        let mut options = Self {
            command: command.is_some().then(|| found.get_name().to_owned()),
            longs: [("--help".into(), false), ("--version".into(), false)].into(),
            shorts: [('h', ("--help".into(), false)), ('V', ("--version".into(), false))].into(),
        };
        options.read(found);
        options
    }

    fn read(&mut self, command: &Command) {
        for argument in command.get_arguments() {
            let Some(long) = argument.get_long() else { continue };
            let (long, takes_value) = (format!("--{long}"), argument.get_action().takes_values());
            for alias in argument.get_all_aliases().unwrap_or_default() {
                self.longs.insert(format!("--{alias}"), takes_value);
            }
            for letter in argument.get_short_and_visible_aliases().unwrap_or_default() {
                self.shorts.insert(letter, (long.clone(), takes_value));
            }
            self.longs.insert(long, takes_value);
        }
    }

    /// True if `word` is the name of a command.
    pub fn is_command(root: &Command, word: &str) -> bool {
        word == "help" || root.find_subcommand(word).is_some()
    }

    /// True if the command has an option with this spelling.
    pub fn has(&self, spelling: &str) -> bool {
        let mut letters = spelling.chars().skip(1);
        match (letters.next(), letters.next()) {
            (Some(letter), None) => self.shorts.contains_key(&letter),
            _ => self.longs.contains_key(spelling),
        }
    }

    /// True if the command writes a chat or an answer.
    pub fn is_chat(&self) -> bool {
        self.command.as_deref().is_none_or(|name| matches!(name, "run" | "chat"))
    }

    /// True if a word that is not an option names a model, if `count` such words came before.
    pub fn takes_model(&self, count: usize) -> bool {
        match self.command.as_deref() {
            Some("serve") => true,
            Some("run" | "chat" | "generate" | "perplexity" | "tokenize" | "logits" | "embed" | "bench") => {
                count == 0
            }
            _ => false,
        }
    }

    /// True if the short options in `word` include the one for a model.
    pub fn names_model(&self, word: &str) -> bool {
        self.value_letter(word) == Some("--model")
    }

    /// The long name of the short option in `word` that takes a value.
    fn value_letter(&self, word: &str) -> Option<&str> {
        if word.starts_with("--") || !word.starts_with('-') {
            return None;
        }
        let mut letters = word.chars().skip(1);
        let found = letters.find_map(|letter| self.shorts.get(&letter).filter(|(_, value)| *value));
        found.map(|(long, _)| long.as_str())
    }

    /// True if `--name` is followed by its value.
    pub fn takes_value(&self, name: &str) -> bool {
        self.longs.get(name).copied().unwrap_or(false)
    }

    /// True if a word such as `-vp` joins several short options, or one short option and its value. False for clusters that
    /// include the help's letter.
    pub fn is_cluster(&self, word: &str) -> bool {
        for letter in word.chars().skip(1) {
            match self.shorts.get(&letter) {
                Some((_, true)) => return true,
                Some((long, false)) if long != "--help" && long != "--version" => {}
                _ => return false,
            }
        }
        true
    }

    /// The long name of the short option at the end of `word`, if its value is the next word.
    pub fn last_of_cluster(&self, word: &str) -> Option<&str> {
        let mut letters = word.chars().skip(1);
        let (long, _) = letters.find_map(|letter| self.shorts.get(&letter).filter(|(_, value)| *value))?;
        letters.next().is_none().then_some(long)
    }

    /// True if the short options in `word` include the one for a prompt.
    pub fn names_prompt(&self, word: &str) -> bool {
        self.value_letter(word).is_some_and(|long| matches!(long, "--prompt" | "--file"))
    }

    /// Every spelling of the command's options, each with the option's long name.
    #[cfg(test)]
    pub fn spellings(&self, root: &Command) -> Vec<(String, String)> {
        let found = self.command.as_deref().and_then(|name| root.find_subcommand(name)).unwrap_or(root);
        let mut spellings = Vec::new();
        for argument in found.get_arguments() {
            let Some(long) = argument.get_long() else { continue };
            let aliases = argument.get_all_aliases().unwrap_or_default();
            let shorts = argument.get_short_and_visible_aliases().unwrap_or_default();
            let all = aliases.iter().map(|alias| format!("--{alias}")).chain([format!("--{long}")]);
            spellings.extend(
                all.chain(shorts.iter().map(|letter| format!("-{letter}")))
                    .map(|spelling| (spelling, format!("--{long}"))),
            );
        }
        spellings
    }
}
