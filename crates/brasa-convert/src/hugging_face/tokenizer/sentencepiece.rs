//! `tokenizer.model`: the pieces of a SentencePiece model, out of its protocol buffer.

/// The parts of a SentencePiece model that a conversion needs.
#[derive(Debug, PartialEq)]
pub struct Model {
    pub pieces: Vec<Piece>,
    /// True if a space goes before the text.
    pub adds_prefix: bool,
}

/// One piece; types are numbered as in GGUF.
#[derive(Debug, PartialEq)]
pub struct Piece {
    pub text: String,
    pub score: f32,
    pub token_type: i32,
}

/// Parses the model; the error describes the mistake.
pub fn parse(bytes: &[u8]) -> Result<Model, String> {
    let mut model = Model { pieces: Vec::new(), adds_prefix: true };
    let mut reader = Reader(bytes);
    while let Some((field, value)) = reader.next()? {
        match (field, value) {
            (1, Value::Bytes(piece)) => model.pieces.push(parse_piece(piece)?),
            // The normaliser: its third field is `add_dummy_prefix`.
            (3, Value::Bytes(normalizer)) => {
                let mut reader = Reader(normalizer);
                while let Some((field, value)) = reader.next()? {
                    if let (3, Value::Integer(flag)) = (field, value) {
                        model.adds_prefix = flag != 0;
                    }
                }
            }
            _ => {}
        }
    }
    if model.pieces.is_empty() { Err("no pieces, expected a SentencePiece model".into()) } else { Ok(model) }
}

fn parse_piece(bytes: &[u8]) -> Result<Piece, String> {
    let mut piece = Piece { text: String::new(), score: 0.0, token_type: 1 };
    let mut reader = Reader(bytes);
    while let Some((field, value)) = reader.next()? {
        match (field, value) {
            (1, Value::Bytes(text)) => {
                piece.text = String::from_utf8(text.to_vec()).map_err(|_| "a piece that is not UTF-8")?;
            }
            (2, Value::Fixed32(bits)) => piece.score = f32::from_bits(bits),
            (3, Value::Integer(kind @ 1..=6)) => piece.token_type = kind as i32,
            (3, Value::Integer(kind)) => return Err(format!("a piece of type {kind}, expected 1 to 6")),
            _ => {}
        }
    }
    Ok(piece)
}

enum Value<'a> {
    Integer(u64),
    Fixed32(u32),
    Bytes(&'a [u8]),
    Other,
}

/// Fields of a message, in order.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<Option<(u64, Value<'a>)>, String> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let tag = self.integer()?;
        let value = match tag & 7 {
            0 => Value::Integer(self.integer()?),
            1 => {
                self.take(8)?;
                Value::Other
            }
            2 => {
                let len = self.integer()?;
                Value::Bytes(self.take(usize::try_from(len).unwrap_or(usize::MAX))?)
            }
            5 => {
                let bytes = self.take(4)?;
                Value::Fixed32(bytes.iter().rev().fold(0, |bits, &byte| bits << 8 | u32::from(byte)))
            }
            other => return Err(format!("wire type {other}, expected a protocol buffer")),
        };
        Ok(Some((tag >> 3, value)))
    }

    fn integer(&mut self) -> Result<u64, String> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            value |= u64::from(byte & 127) << shift;
            if byte < 128 {
                return Ok(value);
            }
        }
        Err("an integer of more than ten bytes".into())
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], String> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or("it ends in the middle of a field")?;
        self.0 = rest;
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_and_prefix() {
        let mut bytes = vec![0x0A, 12, 0x0A, 3];
        bytes.extend("▁".as_bytes());
        bytes.push(0x15);
        bytes.extend((-2.5_f32).to_le_bytes());
        bytes.extend([0x18, 4]);
        bytes.extend([0x1A, 2, 0x18, 0]);
        let piece = Piece { text: "▁".into(), score: -2.5, token_type: 4 };
        assert_eq!(parse(&bytes), Ok(Model { pieces: vec![piece], adds_prefix: false }));
    }

    #[test]
    fn damage_is_an_error() {
        for bytes in
            [&b""[..], b"\x0A\x7F", b"\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF", b"IQ== 0\n", b"\x0F"]
        {
            assert!(parse(bytes).is_err(), "{bytes:?}");
        }
    }
}
