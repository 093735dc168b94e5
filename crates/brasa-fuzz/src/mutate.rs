//! Mutations that break binary headers and JSON alike.

use crate::Rng;

/// Numbers at the edges of what parsers compute with.
const EDGES: [u64; 16] = [
    0,
    1,
    2,
    3,
    7,
    8,
    31,
    32,
    255,
    1 << 16,
    (1 << 31) - 1,
    1 << 31,
    u32::MAX as u64,
    1 << 62,
    i64::MAX as u64,
    u64::MAX,
];

/// Changes `input` in one to six places.
pub(crate) fn mutate(input: &mut Vec<u8>, corpus: &[Vec<u8>], words: &[Vec<u8>], rng: &mut Rng) {
    for _ in 0..=rng.below(6) * rng.below(2) {
        mutate_once(input, corpus, words, rng);
    }
}

fn mutate_once(input: &mut Vec<u8>, corpus: &[Vec<u8>], words: &[Vec<u8>], rng: &mut Rng) {
    let at = rng.below(input.len() + 1);
    match rng.below(14) {
        0 => flip(input, rng),
        1 => {
            if let Some(byte) = input.get_mut(at) {
                *byte = rng.bits() as u8;
            }
        }
        2 | 3 => {
            let number = edge(input.len(), rng);
            overwrite(input, at, &number);
        }
        4 => nudge(input, at, rng),
        5 => {
            let end = at + rng.below((input.len() - at).min(64) + 1);
            input.drain(at..end);
        }
        6 => {
            let end = at + rng.below((input.len() - at).min(64) + 1);
            let piece = input[at..end].to_vec();
            let to = rng.below(input.len() + 1);
            let times = 1 + rng.below(3) * rng.below(8);
            input.splice(to..to, piece.repeat(times));
        }
        7 => {
            let bytes: Vec<u8> = (0..=rng.below(8)).map(|_| rng.bits() as u8).collect();
            input.splice(at..at, bytes);
        }
        8 => input.truncate(at),
        9 => {
            // The start of this input, the end of another.
            let other = rng.choose(corpus);
            let from = rng.below(other.len() + 1);
            input.truncate(at);
            input.extend_from_slice(&other[from..]);
        }
        10 | 11 if !words.is_empty() => {
            let word = rng.choose(words).clone();
            if rng.below(2) == 0 {
                overwrite(input, at, &word);
            } else {
                input.splice(at..at, word);
            }
        }
        _ => decimal(input, at, rng),
    }
}

fn flip(input: &mut [u8], rng: &mut Rng) {
    let bit = rng.below(input.len() * 8);
    if let Some(byte) = input.get_mut(bit / 8) {
        *byte ^= 1 << (bit % 8);
    }
}

/// An edge number in one, two, four or eight bytes, sometimes one off, sometimes the input's own length.
fn edge(len: usize, rng: &mut Rng) -> Vec<u8> {
    let number = if rng.below(8) == 0 { len as u64 } else { *rng.choose(&EDGES) };
    let number = number.wrapping_add(*rng.choose(&[0, 0, 1, u64::MAX]));
    number.to_le_bytes()[..*rng.choose(&[1, 2, 4, 8])].to_vec()
}

fn overwrite(input: &mut [u8], at: usize, bytes: &[u8]) {
    for (to, from) in input[at..].iter_mut().zip(bytes) {
        *to = *from;
    }
}

/// Adds a little to the number of one or eight bytes at `at`.
fn nudge(input: &mut [u8], at: usize, rng: &mut Rng) {
    let delta = rng.below(33) as u64;
    let delta = delta.wrapping_sub(16);
    if let Some(bytes) = input[at..].first_chunk_mut::<8>() {
        *bytes = u64::from_le_bytes(*bytes).wrapping_add(delta).to_le_bytes();
    } else if let Some(byte) = input.get_mut(at) {
        *byte = byte.wrapping_add(delta as u8);
    }
}

/// Replaces the decimal number at or after `at`.
fn decimal(input: &mut Vec<u8>, at: usize, rng: &mut Rng) {
    let Some(start) = input[at..].iter().position(u8::is_ascii_digit).map(|n| at + n) else { return };
    let digits = input[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let number = if rng.below(4) == 0 {
        rng.choose(&["-1", "1e3", "0.5", "1e999", "99999999999999999999", "null", "\"7\"", "[]"]).to_string()
    } else {
        rng.choose(&EDGES).to_string()
    };
    input.splice(start..start + digits, number.into_bytes());
}
