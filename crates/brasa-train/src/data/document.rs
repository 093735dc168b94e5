//! Token ids to learn from.

use std::ops::Range;

/// Token ids of one example, and the tokens that are learned.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    /// Token ids.
    pub tokens: Box<[u32]>,
    /// The tokens that are learned, in order, without overlap. The first token of a document follows nothing and is never
    /// learned.
    pub spans: Box<[Span]>,
}

/// Consecutive learned tokens of equal weight.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// Indices of the tokens in the document.
    pub tokens: Range<u32>,
    /// Factor of the tokens' losses, greater than 0.
    pub weight: f32,
}

impl Document {
    /// A document in which the tokens in `ranges` are learned.
    pub(crate) fn new(tokens: Vec<u32>, ranges: impl IntoIterator<Item = Range<usize>>) -> Self {
        let spans = ranges
            .into_iter()
            .map(|range| range.start.max(1)..range.end)
            .filter(|range| range.start < range.end)
            .map(|range| Span { tokens: range.start as u32..range.end as u32, weight: 1.0 })
            .collect();
        Self { tokens: tokens.into(), spans }
    }

    /// A document in which all tokens from index `start` on are learned.
    pub(crate) fn learned_from(tokens: Vec<u32>, start: usize) -> Self {
        let end = tokens.len();
        Self::new(tokens, std::iter::once(start..end))
    }

    /// A document with a weight for each token; a weight of 0 means that the token is not learned.
    pub(crate) fn weighted(tokens: Vec<u32>, weights: &[f32]) -> Self {
        let mut spans: Vec<Span> = Vec::new();
        for (at, &weight) in weights.iter().enumerate().skip(1).filter(|(_, weight)| **weight > 0.0) {
            let at = at as u32;
            match spans
                .last_mut()
                .filter(|span| span.tokens.end == at && span.weight.to_bits() == weight.to_bits())
            {
                Some(span) => span.tokens.end += 1,
                None => spans.push(Span { tokens: at..at + 1, weight }),
            }
        }
        Self { tokens: tokens.into(), spans: spans.into() }
    }

    /// Indices and weights of the learned tokens, in order.
    pub fn targets(&self) -> impl Iterator<Item = (usize, f32)> + '_ {
        let each =
            |span: &Span| span.tokens.clone().map(|at| at as usize).zip(std::iter::repeat(span.weight));
        self.spans.iter().flat_map(each)
    }

    /// Number of learned tokens.
    pub fn learned(&self) -> usize {
        self.spans.iter().map(|span| span.tokens.len()).sum()
    }

    /// Rows of a step that the document takes: one for every token before the last learned one.
    pub fn rows(&self) -> usize {
        self.spans.last().map_or(0, |span| span.tokens.end as usize - 1)
    }

    /// The document followed by a learned token 0. MLX-LM pads with that token, and learns the first one.
    pub(crate) fn with_padding_token(&self) -> Self {
        let end = self.tokens.len() as u32;
        let mut spans = self.spans.to_vec();
        match spans
            .last_mut()
            .filter(|span| span.tokens.end == end && span.weight.to_bits() == 1.0_f32.to_bits())
        {
            Some(span) => span.tokens.end += 1,
            None => spans.push(Span { tokens: end..end + 1, weight: 1.0 }),
        }
        Self { tokens: [&self.tokens[..], &[0]].concat().into(), spans: spans.into() }
    }

    /// The first `tokens` tokens of the document.
    pub(crate) fn cut(&self, tokens: usize) -> Self {
        let end = tokens.min(self.tokens.len()) as u32;
        let spans = self.spans.iter().filter(|span| span.tokens.start < end);
        let spans = spans.map(|span| Span { tokens: span.tokens.start..span.tokens.end.min(end), ..*span });
        Self { tokens: self.tokens[..end as usize].into(), spans: spans.collect() }
    }
}
