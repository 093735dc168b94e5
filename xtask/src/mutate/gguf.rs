//! Changes of GGUF files by their structure: counts, lengths, types, keys, descriptions of tensors.

use brasa_fuzz::Rng;

/// A file in parts that can be moved.
#[derive(Clone, Debug)]
pub struct Gguf {
    version: u32,
    pairs: Vec<Vec<u8>>,
    tensors: Vec<Vec<u8>>,
    data: Vec<u8>,
}

/// Bytes by value type; 0 for strings and arrays.
const SIZES: [usize; 13] = [1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8];
const STRING: u32 = 8;
const ARRAY: u32 = 9;
const ALIGNMENT: usize = 32;
const EXTREMES: [u64; 16] = [
    0,
    1,
    2,
    3,
    8,
    31,
    255,
    1000,
    65_535,
    1 << 31,
    u32::MAX as u64,
    1 << 32,
    1 << 40,
    1 << 62,
    i64::MAX as u64,
    u64::MAX,
];

impl Gguf {
    /// Takes a valid file apart.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let version = u32::from_le_bytes(*bytes.get(4..8)?.as_array()?);
        let mut at = 8;
        let tensor_count = number(bytes, &mut at)?;
        let pair_count = number(bytes, &mut at)?;
        let mut piece = |walk: fn(&[u8], &mut usize) -> Option<()>| {
            let start = at;
            walk(bytes, &mut at)?;
            Some(bytes.get(start..at)?.to_vec())
        };
        let pairs = (0..pair_count).map(|_| piece(walk_pair)).collect::<Option<_>>()?;
        let tensors = (0..tensor_count).map(|_| piece(walk_tensor)).collect::<Option<_>>()?;
        let data = bytes.get(at.next_multiple_of(ALIGNMENT)..).unwrap_or_default().to_vec();
        Some(Self { version, pairs, tensors, data })
    }

    /// Puts the file together.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.pairs.len() as u64).to_le_bytes());
        out.extend(self.pairs.concat());
        out.extend(self.tensors.concat());
        out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
        out.extend_from_slice(&self.data);
        out
    }

    /// Sets a key; `value` is its type and the value, packed.
    pub fn set(&mut self, key: &str, kind: u32, value: &[u8]) {
        let mut pair = string(key.as_bytes());
        pair.extend(kind.to_le_bytes());
        pair.extend_from_slice(value);
        match self.find(key) {
            Some(at) => self.pairs[at] = pair,
            None => self.pairs.push(pair),
        }
    }

    /// Takes a key out.
    pub fn remove(&mut self, key: &str) {
        if let Some(at) = self.find(key) {
            self.pairs.remove(at);
        }
    }

    /// The text of a key.
    pub fn text(&self, key: &str) -> Option<String> {
        let pair = &self.pairs[self.find(key)?];
        Some(String::from_utf8_lossy(pair.get(8 + key.len() + 4 + 8..)?).into_owned())
    }

    fn find(&self, key: &str) -> Option<usize> {
        let key = string(key.as_bytes());
        self.pairs.iter().position(|pair| pair.starts_with(&key))
    }

    /// Changes one place. Returns the new file and what was done.
    pub fn mutate(mut self, rng: &mut Rng) -> (Vec<u8>, String) {
        let what = match rng.below(16) {
            // Numbers of the file itself.
            0 => {
                let (at, width, name) = *rng.choose(&[
                    (0, 4, "magic"),
                    (4, 4, "version"),
                    (8, 8, "tensor count"),
                    (16, 8, "pair count"),
                ]);
                let mut bytes = self.bytes();
                let value = extreme(rng, 7);
                bytes[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
                return (bytes, format!("{name} = {value}"));
            }
            1 => {
                let mut bytes = self.bytes();
                let what = super::text::bytes(&mut bytes, rng);
                return (bytes, what);
            }
            2 => {
                let at = rng.below(self.pairs.len());
                let pair = self.pairs.remove(at);
                format!("{} gone", key_of(&pair))
            }
            3 => {
                let pair = rng.choose(&self.pairs).clone();
                let name = key_of(&pair);
                self.pairs.push(pair);
                format!("{name} twice")
            }
            4 => {
                let at = rng.below(self.tensors.len());
                if rng.below(2) == 0 {
                    self.tensors.remove(at);
                    format!("tensor {at} gone")
                } else {
                    self.tensors.push(self.tensors[at].clone());
                    format!("tensor {at} twice")
                }
            }
            5..=7 => self.change_tensor(rng),
            8 => {
                // The values of two keys, exchanged.
                let (a, b) = (rng.below(self.pairs.len()), rng.below(self.pairs.len()));
                let (first, second) = (self.pairs[a].clone(), self.pairs[b].clone());
                let (cut_a, cut_b) = (key_len(&first), key_len(&second));
                self.pairs[a] = [&first[..cut_a], &second[cut_b..]].concat();
                self.pairs[b] = [&second[..cut_b], &first[cut_a..]].concat();
                format!("{} and {} exchanged", key_of(&first), key_of(&second))
            }
            9 => {
                let depth = *rng.choose(&[2, 8, 9, 5000]);
                let mut value = Vec::new();
                for _ in 1..depth {
                    value.extend(ARRAY.to_le_bytes());
                    value.extend(1_u64.to_le_bytes());
                }
                value.extend(0_u32.to_le_bytes());
                value.extend(0_u64.to_le_bytes());
                let key = key_of(rng.choose::<Vec<u8>>(&self.pairs));
                self.set(&key, ARRAY, &value);
                format!("{key}: arrays {depth} deep")
            }
            _ => self.change_value(rng),
        };
        (self.bytes(), what)
    }

    /// Changes a number, a length, a type or a text of one pair.
    fn change_value(&mut self, rng: &mut Rng) -> String {
        let at = rng.below(self.pairs.len());
        let pair = &mut self.pairs[at];
        let key = key_of(pair);
        let start = key_len(pair);
        let kind = u32::from_le_bytes([pair[start], pair[start + 1], pair[start + 2], pair[start + 3]]);
        let value = start + 4;
        match rng.below(8) {
            0 => {
                let kind = rng.below(14) as u32;
                pair[start..value].copy_from_slice(&kind.to_le_bytes());
                format!("{key}: of type {kind}")
            }
            1 => {
                // A number of another type, whose bytes are right.
                let kind = rng.below(SIZES.len()) as u32;
                let bytes = SIZES[kind as usize];
                let number = if kind == 7 { rng.bits() % 2 } else { extreme(rng, 1) };
                let packed =
                    if bytes == 0 { string(b"text") } else { number.to_le_bytes()[..bytes].to_vec() };
                let kind = if bytes == 0 { STRING } else { kind };
                self.set(&key, kind, &packed);
                format!("{key} = {number} of type {kind}")
            }
            2 => {
                let value = extreme(rng, key.len() as u64);
                pair[..8].copy_from_slice(&value.to_le_bytes());
                format!("{key}: its length = {value}")
            }
            _ if kind == STRING => {
                let mut text = pair[value + 8..].to_vec();
                let what = match rng.below(4) {
                    0 => {
                        let length = extreme(rng, text.len() as u64);
                        pair[value..value + 8].copy_from_slice(&length.to_le_bytes());
                        return format!("{key}: length {length}");
                    }
                    1 => {
                        text = rng
                            .choose(&[
                                &b""[..],
                                b"\0",
                                b"\x1b[2J",
                                b"\xff\xfe",
                                b"none",
                                b"gpt2",
                                b"llama",
                                b"bert",
                            ])
                            .to_vec();
                        "another text".to_owned()
                    }
                    _ => super::text::bytes(&mut text, rng),
                };
                self.set(&key, STRING, &string(&text));
                format!("{key}: {what}")
            }
            _ if kind == ARRAY => {
                let field = *rng.choose(&[0, 4, 4, 12, 12, 16]);
                let width = if field == 0 { 4 } else { 8 };
                let number = if field == 0 { rng.below(14) as u64 } else { extreme(rng, 160) };
                if let Some(place) = pair.get_mut(value + field..value + field + width) {
                    place.copy_from_slice(&number.to_le_bytes()[..width]);
                }
                format!("{key}: array field {field} = {number}")
            }
            _ => {
                let size = SIZES.get(kind as usize).copied().unwrap_or(4);
                let old = pair[value..].iter().rev().fold(0_u64, |old, &byte| old << 8 | u64::from(byte));
                let number = match (kind, rng.below(2)) {
                    (6, 0) => {
                        let floats =
                            [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -1.0, -0.0, 1e-40, f32::MAX, 0.5];
                        u64::from(rng.choose(&floats).to_bits())
                    }
                    _ => extreme(rng, old),
                };
                let place = &mut pair[value..];
                place.copy_from_slice(&number.to_le_bytes()[..size.min(place.len())]);
                format!("{key} = {number:#x}")
            }
        }
    }

    /// Changes the description of one tensor.
    fn change_tensor(&mut self, rng: &mut Rng) -> String {
        let at = rng.below(self.tensors.len());
        let tensor = &mut self.tensors[at];
        let name = key_of(tensor);
        let start = key_len(tensor);
        let dims =
            u32::from_le_bytes([tensor[start], tensor[start + 1], tensor[start + 2], tensor[start + 3]]);
        let kind = start + 4 + 8 * dims as usize;
        match rng.below(7) {
            0 => {
                let count = extreme(rng, u64::from(dims)) as u32;
                tensor[start..start + 4].copy_from_slice(&count.to_le_bytes());
                format!("{name}: {count} dimensions")
            }
            1 => {
                // The shape reversed, or all in one dimension.
                let place = &mut tensor[start + 4..kind];
                let (a, b) = place.split_at_mut(8.min(place.len()));
                if a.len() == b.len() {
                    a.swap_with_slice(b);
                }
                format!("{name}: turned")
            }
            2 => {
                let code = rng.below(42) as u32;
                tensor[kind..kind + 4].copy_from_slice(&code.to_le_bytes());
                format!("{name}: type {code}")
            }
            3 => {
                let offset = extreme(rng, self.data.len() as u64);
                tensor[kind + 4..kind + 12].copy_from_slice(&offset.to_le_bytes());
                format!("{name}: offset {offset}")
            }
            4 => {
                let names = [
                    "",
                    "token_embd.weight",
                    "blk.0.attn_q.weight",
                    "blk.99999999999999999999.x",
                    "\u{1b}[2J",
                    "blk.0.ffn_up_exps.weight",
                ];
                let new = *rng.choose(&names);
                let rest = tensor.split_off(start);
                *tensor = [string(new.as_bytes()), rest].concat();
                format!("{name}: named {new:?}")
            }
            _ => {
                let which = rng.below(dims.max(1) as usize);
                let place = start + 4 + 8 * which;
                if dims == 0 {
                    return "nothing".into();
                }
                let old = u64::from_le_bytes(tensor[place..place + 8].try_into().unwrap_or_default());
                let dim = extreme(rng, old);
                tensor[place..place + 8].copy_from_slice(&dim.to_le_bytes());
                format!("{name}: dimension {which} = {dim}")
            }
        }
    }
}

/// A number at an edge, or near `old`.
fn extreme(rng: &mut Rng, old: u64) -> u64 {
    match rng.below(4) {
        0 => old.wrapping_add(*rng.choose(&[1, u64::MAX, 32, 1 << 32])),
        1 => old.wrapping_mul(*rng.choose(&[2, 3, 256])),
        _ => *rng.choose(&EXTREMES),
    }
}

/// A string as the file has it.
pub fn string(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text].concat()
}

/// An array of strings as the file has it, without its type.
pub fn strings<S: AsRef<[u8]>>(all: &[S]) -> Vec<u8> {
    let mut out = STRING.to_le_bytes().to_vec();
    out.extend((all.len() as u64).to_le_bytes());
    out.extend(all.iter().flat_map(|text| string(text.as_ref())));
    out
}

/// An array of 32-bit numbers of a type, as the file has it.
pub fn numbers(kind: u32, all: impl ExactSizeIterator<Item = [u8; 4]>) -> Vec<u8> {
    let mut out = kind.to_le_bytes().to_vec();
    out.extend((all.len() as u64).to_le_bytes());
    out.extend(all.flatten());
    out
}

fn number(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let number = u64::from_le_bytes(*bytes.get(*at..)?.first_chunk()?);
    *at += 8;
    Some(number)
}

fn code(bytes: &[u8], at: &mut usize) -> Option<u32> {
    let number = u32::from_le_bytes(*bytes.get(*at..)?.first_chunk()?);
    *at += 4;
    Some(number)
}

fn walk_string(bytes: &[u8], at: &mut usize) -> Option<()> {
    let len = number(bytes, at)?;
    *at = at.checked_add(usize::try_from(len).ok()?)?;
    (*at <= bytes.len()).then_some(())
}

fn walk_pair(bytes: &[u8], at: &mut usize) -> Option<()> {
    walk_string(bytes, at)?;
    let kind = code(bytes, at)?;
    walk_value(bytes, at, kind)
}

fn walk_value(bytes: &[u8], at: &mut usize, kind: u32) -> Option<()> {
    match kind {
        STRING => walk_string(bytes, at),
        ARRAY => {
            let inner = code(bytes, at)?;
            let len = number(bytes, at)?;
            (0..len).try_for_each(|_| walk_value(bytes, at, inner))
        }
        _ => {
            *at += SIZES.get(kind as usize)?;
            // A file that was changed before may promise more elements than anybody could count.
            (*at <= bytes.len()).then_some(())
        }
    }
}

fn walk_tensor(bytes: &[u8], at: &mut usize) -> Option<()> {
    walk_string(bytes, at)?;
    let dims = code(bytes, at)?;
    *at += 8 * dims as usize + 4 + 8;
    (*at <= bytes.len()).then_some(())
}

/// Bytes of the key in front of a pair or a tensor.
fn key_len(piece: &[u8]) -> usize {
    let len = piece.first_chunk().map_or(0, |len| u64::from_le_bytes(*len) as usize);
    8 + len
}

fn key_of(piece: &[u8]) -> String {
    String::from_utf8_lossy(piece.get(8..key_len(piece)).unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_promises_too_much_cannot_be_taken_apart() {
        let mut file = Gguf { version: 3, pairs: Vec::new(), tensors: Vec::new(), data: Vec::new() };
        file.set("a", ARRAY, &[&4_u32.to_le_bytes()[..], &u64::MAX.to_le_bytes()].concat());
        assert!(Gguf::parse(&file.bytes()).is_none());
    }

    #[test]
    fn a_file_is_put_together_as_it_was() {
        let mut file = Gguf { version: 3, pairs: Vec::new(), tensors: Vec::new(), data: vec![1; 64] };
        file.set("a", STRING, &string(b"text"));
        file.set("b", ARRAY, &strings(&["x", "yy"]));
        let bytes = file.bytes();
        let parsed = Gguf::parse(&bytes).expect("a file");
        assert_eq!((parsed.text("a").as_deref(), parsed.bytes()), (Some("text"), bytes));
    }
}
