//! Encodes two texts as one sequence of ids.

use serde_json::Value;

use crate::Result;
use crate::post::{MOST_IDS, id, malformed};
use crate::vocabulary::Vocabulary;

/// The form in which a tokenizer joins two texts to one sequence, such as `[CLS] query [SEP] document [SEP]`.
///
/// Used for models that judge pairs of texts. Models with token types distinguish the texts by the type of each id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairTemplate(Vec<Piece>);

/// A part of a sequence, with the type of its ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    part: Part,
    kind: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    First,
    Second,
    Token(u32),
}

impl PairTemplate {
    /// Number of ids that belong to neither text.
    pub fn added(&self) -> usize {
        self.0.iter().filter(|piece| matches!(piece.part, Part::Token(_))).count()
    }

    /// The ids of the sequence of two texts, and the type of each id.
    pub fn join(&self, first: &[u32], second: &[u32]) -> (Vec<u32>, Vec<u32>) {
        let (mut ids, mut types) = (Vec::new(), Vec::new());
        for Piece { part, kind } in &self.0 {
            match part {
                Part::First => ids.extend(first),
                Part::Second => ids.extend(second),
                Part::Token(id) => ids.push(*id),
            }
            types.resize(ids.len(), *kind);
        }
        (ids, types)
    }

    /// The numbers of ids to keep of two texts with `first` and `second` ids, in a sequence of at most `most` ids. The longer text
    /// loses its end, as with the strategy `longest_first` of the tokenizers crate.
    pub fn cut(&self, first: usize, second: usize, most: usize) -> (usize, usize) {
        let room = most.saturating_sub(self.added());
        if first + second <= room {
            return (first, second);
        }
        let (shorter, longer) = (first.min(second), first.max(second));
        let (short, long) =
            if shorter <= room / 2 { (shorter, room - shorter) } else { (room / 2, room - room / 2) };
        debug_assert!(long <= longer, "{long} of {longer}");
        if first > second { (long, short) } else { (short, long) }
    }

    /// The form of BERT: `before A behind B behind`, the second text of type 1.
    pub(crate) fn bert(before: &[u32], behind: &[u32]) -> Self {
        let tokens = |ids: &[u32], kind| -> Vec<Piece> {
            ids.iter().map(|&id| Piece { part: Part::Token(id), kind }).collect()
        };
        let text = |part, kind| vec![Piece { part, kind }];
        let (first, second) = (text(Part::First, 0), text(Part::Second, 1));
        Self([tokens(before, 0), first, tokens(behind, 0), second, tokens(behind, 1)].concat())
    }

    /// The form of RoBERTa: `before A behind behind B behind`, all of type 0.
    pub(crate) fn roberta(before: &[u32], behind: &[u32]) -> Self {
        let token = |&id: &u32| Part::Token(id);
        let [before, behind] = [before, behind].map(|ids| ids.iter().map(token).collect::<Vec<_>>());
        let parts = [before, vec![Part::First], behind.clone(), behind.clone(), vec![Part::Second], behind];
        Self(parts.concat().into_iter().map(|part| Piece { part, kind: 0 }).collect())
    }

    /// Reads the template for pairs from a post-processor; `None` if it has none.
    pub(crate) fn of(post_processor: Option<&Value>, vocabulary: &Vocabulary) -> Result<Option<Self>> {
        let Some(value) = post_processor.filter(|value| !value.is_null()) else { return Ok(None) };
        let template = Self::read(value)?;
        for Piece { part, .. } in template.iter().flat_map(|template| &template.0) {
            if let Part::Token(id) = part
                && vocabulary.text(*id).is_none()
            {
                return Err(malformed(&format!("id {id}, which no token has")));
            }
        }
        Ok(template)
    }

    fn read(value: &Value) -> Result<Option<Self>> {
        match value["type"].as_str() {
            Some("Sequence") => {
                // One of several adds ids; the others, such as ByteLevel, add none.
                let inner = value["processors"].as_array().into_iter().flatten();
                let found: Vec<Self> =
                    inner.map(Self::read).filter_map(Result::transpose).collect::<Result<_>>()?;
                Ok(<[Self; 1]>::try_from(found).ok().map(|[only]| only))
            }
            Some("BertProcessing") => {
                let (cls, sep) = (id(&value["cls"][1])?, id(&value["sep"][1])?);
                Ok(Some(Self::bert(&[cls], &[sep])))
            }
            Some("RobertaProcessing") => {
                let (cls, sep) = (id(&value["cls"][1])?, id(&value["sep"][1])?);
                Ok(Some(Self::roberta(&[cls], &[sep])))
            }
            Some("TemplateProcessing") => Self::read_template(value),
            _ => Ok(None),
        }
    }

    fn read_template(value: &Value) -> Result<Option<Self>> {
        let mut pieces = Vec::new();
        for item in value["pair"].as_array().into_iter().flatten() {
            let (is_text, body) = match (item.get("Sequence"), item.get("SpecialToken")) {
                (Some(body), _) => (true, body),
                (None, Some(body)) => (false, body),
                (None, None) => return Err(malformed("`pair` with a piece that is neither text nor token")),
            };
            let kind = match &body["type_id"] {
                Value::Null => 0,
                kind => id(kind)?,
            };
            let name = body["id"].as_str().unwrap_or_default();
            if is_text {
                let part = if name == "A" { Part::First } else { Part::Second };
                pieces.push(Piece { part, kind });
                continue;
            }
            let ids = value["special_tokens"][name]["ids"].as_array();
            let ids = ids.ok_or_else(|| malformed(&format!("special token {name:?} without ids")))?;
            for one in ids {
                pieces.push(Piece { part: Part::Token(id(one)?), kind });
            }
            if pieces.len() > MOST_IDS {
                return Err(malformed(&format!("more than {MOST_IDS} ids around a pair of texts")));
            }
        }
        let count = |part| pieces.iter().filter(|piece| piece.part == part).count();
        let is_whole = (count(Part::First), count(Part::Second)) == (1, 1);
        Ok(is_whole.then_some(Self(pieces)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rule of the tokenizers crate, in its own order of steps.
    fn longest_first(first: usize, second: usize, room: usize) -> (usize, usize) {
        if first + second <= room {
            return (first, second);
        }
        let (mut n1, mut n2, mut swap) = (first, second, false);
        if n1 > n2 {
            swap = true;
            std::mem::swap(&mut n1, &mut n2);
        }
        n2 = if n1 > room { n1 } else { n1.max(room - n1) };
        if n1 + n2 > room {
            n1 = room / 2;
            n2 = n1 + room % 2;
        }
        if swap { (n2, n1) } else { (n1, n2) }
    }

    #[test]
    fn the_longer_text_loses_its_end() {
        let template = PairTemplate::bert(&[1], &[2]);
        assert_eq!(template.added(), 3);
        for most in [0, 3, 4, 5, 10, 11, 30] {
            for first in 0..20 {
                for second in 0..20 {
                    let found = template.cut(first, second, most);
                    assert_eq!(
                        found,
                        longest_first(first, second, most.saturating_sub(3)),
                        "{first}, {second} in {most}"
                    );
                }
            }
        }
    }

    #[test]
    fn texts_are_told_apart_by_types() {
        let (ids, types) = PairTemplate::bert(&[1], &[2]).join(&[7, 8], &[9]);
        assert_eq!((ids, types), (vec![1, 7, 8, 2, 9, 2], vec![0, 0, 0, 0, 1, 1]));
    }

    #[test]
    fn every_form_of_a_file_is_read() {
        let read = |text: &str| {
            let value: Value = serde_json::from_str(text).unwrap();
            PairTemplate::read(&value).unwrap().map(|template| template.join(&[7, 8], &[9]))
        };
        let roberta = r#"{"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0]}"#;
        let doubled = Some((vec![0, 7, 8, 2, 2, 9, 2], vec![0; 7]));
        assert_eq!(read(roberta), doubled);
        let bert = r#"{"type": "BertProcessing", "sep": ["[SEP]", 2], "cls": ["[CLS]", 1]}"#;
        assert_eq!(read(bert), Some((vec![1, 7, 8, 2, 9, 2], vec![0, 0, 0, 0, 1, 1])));
        let sequence =
            format!(r#"{{"type": "Sequence", "processors": [{{"type": "ByteLevel"}}, {roberta}]}}"#);
        assert_eq!(read(&sequence), doubled);
        let template = r#"{"type": "TemplateProcessing", "single": [],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "x", "type_id": 1}},
                     {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"x": {"id": "x", "ids": [3, 4], "tokens": ["x", "y"]}}}"#;
        assert_eq!(read(template), Some((vec![7, 8, 3, 4, 9], vec![0, 0, 1, 1, 1])));
        assert_eq!(read(r#"{"type": "TemplateProcessing", "single": [], "pair": []}"#), None);
        assert_eq!(read(r#"{"type": "ByteLevel"}"#), None);
    }
}
