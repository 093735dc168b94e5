//! Marks for characters of a rendered conversation that come from its messages, tools and documents.
//!
//! A message may contain the text of a control token. In the rendered text it must stay plain text, even if the template cuts the
//! message, splits it at that token or reverses it. So each character of data with which a control token can begin or end is
//! replaced in the template's variables by another character, its *mark*, which occurs nowhere else in the conversation. The
//! operations of the template treat a mark as the character that it replaces ([`sandbox`](super::sandbox)), so a template behaves
//! as without marks. Parts of a text keep their marks, so the rendered text shows where such a character comes from. A control
//! token with a marked character is plain text.
//!
//! Signs before and after a control token would not work: a template that splits at the token would separate them.

use std::borrow::Cow;
use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::generation::{END, START};
use super::message::{Content, Message};

/// A set of characters, most of them ASCII, for fast tests of each character of a conversation.
#[derive(Clone, Debug, Default)]
pub struct Edges {
    ascii: u128,
    all: BTreeSet<char>,
}

impl Edges {
    /// True if a character is in the set.
    pub fn contains(&self, char: char) -> bool {
        if char.is_ascii() { self.ascii >> u32::from(char) & 1 == 1 } else { self.all.contains(&char) }
    }

    /// The characters, ascending.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = char> {
        self.all.iter().copied()
    }
}

impl FromIterator<char> for Edges {
    fn from_iter<I: IntoIterator<Item = char>>(chars: I) -> Self {
        let all: BTreeSet<char> = chars.into_iter().collect();
        let ascii =
            all.iter().filter(|char| char.is_ascii()).fold(0, |set, &char| set | 1 << u32::from(char));
        Self { ascii, all }
    }
}

/// Characters of data, and the marks that replace them.
#[derive(Clone, Debug, Default)]
pub struct Marks {
    /// Pairs of a character and its mark, both ascending.
    pairs: Vec<(char, char)>,
}

impl Marks {
    /// Chooses marks for `characters`. `taken` are private-use characters in the data, which are not used as marks.
    ///
    /// `None` if the data leaves too few private-use characters.
    pub fn new(characters: &Edges, taken: &BTreeSet<char>) -> Option<Self> {
        let free = ('\u{100000}'..='\u{10FFFD}').chain('\u{F0000}'..='\u{FFFFD}');
        let free = free.filter(|char| !taken.contains(char) && *char != START && *char != END);
        let mut marks: Vec<char> = free.take(characters.iter().len()).collect();
        marks.sort_unstable();
        (marks.len() == characters.iter().len())
            .then(|| Self { pairs: characters.iter().zip(marks).collect() })
    }

    /// True if there are no marks.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// True if a text may contain marks.
    pub fn may_be_in(&self, text: &str) -> bool {
        // The private-use planes begin so in UTF-8.
        !self.is_empty() && text.bytes().any(|byte| byte >= 0xF3)
    }

    /// The character that a mark replaces; any other character is returned unchanged.
    pub fn plain_char(&self, char: char) -> char {
        if char < '\u{F0000}' {
            return char;
        }
        let found = self.pairs.binary_search_by_key(&char, |pair| pair.1);
        found.map_or(char, |found| self.pairs[found].0)
    }

    /// A text with marks replaced by their characters.
    pub fn plain<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if !self.may_be_in(text) {
            return Cow::Borrowed(text);
        }
        text.chars().map(|char| self.plain_char(char)).collect::<String>().into()
    }

    /// The mark of a character, or the character itself if it has none.
    pub fn mark_char(&self, char: char) -> char {
        let found = self.pairs.binary_search_by_key(&char, |pair| pair.0);
        found.map_or(char, |found| self.pairs[found].1)
    }

    /// A text with characters replaced by their marks.
    pub fn mark(&self, text: &str) -> String {
        text.chars().map(|char| self.mark_char(char)).collect()
    }

    /// A text with marks replaced by their characters, and the offsets of these characters in bytes of the returned text.
    pub fn take_apart(&self, text: &str) -> (String, Vec<usize>) {
        let (mut plain, mut places) = (String::with_capacity(text.len()), Vec::new());
        for char in text.chars() {
            let own = self.plain_char(char);
            if own != char {
                places.push(plain.len());
            }
            plain.push(own);
        }
        (plain, places)
    }
}

/// Position of a text in a conversation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A role, or the name of a member, for which templates search.
    Name,
    /// Any other text.
    Data,
}

/// Changes every text of a message.
pub fn change_message(message: &mut Message, change: &mut impl FnMut(&mut String, Place)) {
    change(&mut message.role, Place::Name);
    match &mut message.content {
        Content::Text(text) => change(text, Place::Data),
        Content::Parts(parts) => parts.iter_mut().for_each(|part| change_value(part, change)),
        Content::Missing => {}
    }
    let own = [&mut message.reasoning_content, &mut message.tool_call_id, &mut message.name];
    own.into_iter().flatten().for_each(|text| change(text, Place::Data));
    message.tool_calls.iter_mut().for_each(|call| change_value(call, change));
    change_map(&mut message.other, change);
}

/// Changes every text of a value, the names of members included.
pub fn change_value(value: &mut Value, change: &mut impl FnMut(&mut String, Place)) {
    match value {
        Value::String(text) => change(text, Place::Data),
        Value::Array(list) => list.iter_mut().for_each(|item| change_value(item, change)),
        Value::Object(map) => change_map(map, change),
        _ => {}
    }
}

fn change_map(map: &mut Map<String, Value>, change: &mut impl FnMut(&mut String, Place)) {
    let changed = std::mem::take(map).into_iter().map(|(mut name, mut value)| {
        change(&mut name, Place::Name);
        change_value(&mut value, change);
        (name, value)
    });
    *map = changed.collect();
}
