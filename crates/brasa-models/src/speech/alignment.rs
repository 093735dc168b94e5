//! The heads of a Whisper's decoder whose attention shows where a token is spoken.

use super::SpeechSpec;

// Rows of the embedding table of models that know English alone, of the other ones, and of the third large ones.
const ENGLISH: usize = 51_864;
const SEVERAL: usize = 51_865;
const THIRD: usize = 51_866;

/// Layer and number of each alignment head.
type Heads = &'static [(usize, usize)];

/// Vocabulary, layers and heads of a decoder, and the alignment heads, which OpenAI found for its models (openai-whisper,
/// `whisper/__init__.py`). The first and second large model have one shape and other heads, and are not here.
#[rustfmt::skip]
const KNOWN: &[(usize, usize, usize, Heads)] = &[
    (ENGLISH, 4, 6, &[(1, 0), (2, 0), (2, 5), (3, 0), (3, 1), (3, 2), (3, 3), (3, 4)]),
    (SEVERAL, 4, 6, &[(2, 2), (3, 0), (3, 2), (3, 3), (3, 4), (3, 5)]),
    (ENGLISH, 6, 8, &[(3, 3), (4, 7), (5, 1), (5, 5), (5, 7)]),
    (SEVERAL, 6, 8, &[(3, 1), (4, 2), (4, 3), (4, 7), (5, 1), (5, 2), (5, 4), (5, 6)]),
    (ENGLISH, 12, 12, &[
        (6, 6), (7, 0), (7, 3), (7, 8), (8, 2), (8, 5), (8, 7), (9, 0), (9, 4), (9, 8), (9, 10), (10, 0), (10, 1), (10, 2), (10, 3), (10, 6),
        (10, 11), (11, 2), (11, 4),
    ]),
    (SEVERAL, 12, 12, &[(5, 3), (5, 9), (8, 0), (8, 4), (8, 7), (8, 8), (9, 0), (9, 7), (9, 9), (10, 5)]),
    (ENGLISH, 24, 16, &[
        (11, 4), (14, 1), (14, 12), (14, 14), (15, 4), (16, 0), (16, 4), (16, 9), (17, 12), (17, 14), (18, 7), (18, 10), (18, 15), (20, 0),
        (20, 3), (20, 9), (20, 14), (21, 12),
    ]),
    (SEVERAL, 24, 16, &[(13, 15), (15, 4), (15, 15), (16, 1), (20, 0), (23, 4)]),
    (THIRD, 32, 20, &[
        (7, 0), (10, 17), (12, 18), (13, 12), (16, 1), (17, 14), (19, 11), (21, 4), (24, 1), (25, 6),
    ]),
    (THIRD, 4, 20, &[(2, 4), (2, 11), (3, 3), (3, 6), (3, 11), (3, 14)]),
];

/// The alignment heads of OpenAI's model that has the shape of `spec`. Files of whisper.cpp do not store alignment heads.
pub(super) fn heads_by_shape(spec: &SpeechSpec) -> Option<Vec<(usize, usize)>> {
    let shape = (spec.vocab_size, spec.decoder.layers, spec.decoder.heads);
    let known = KNOWN.iter().find(|(vocab, layers, heads, _)| (*vocab, *layers, *heads) == shape);
    known.map(|(.., heads)| heads.to_vec())
}

impl SpeechSpec {
    /// Layer and number of each head in the later half of the decoder.
    pub(super) fn later_heads(&self) -> Vec<(usize, usize)> {
        let layers = self.decoder.layers / 2..self.decoder.layers;
        layers.flat_map(|layer| (0..self.decoder.heads).map(move |head| (layer, head))).collect()
    }
}
