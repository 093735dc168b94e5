//! The tiles of a matrix B that are not zero, as runs of tiles and their inputs.

use crate::params::LOW_RANK_SPANS;

/// Tiles of B below `tiles_end`, and not in the span before, which are zero but in the subs `first..end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub tiles_end: u32,
    pub first: u32,
    pub end: u32,
}

impl Span {
    fn cost(self, tiles: u32) -> u64 {
        u64::from(tiles) * u64::from(self.end - self.first)
    }

    /// Joins two runs of tiles, the first of which begins behind `before`. Also returns the number of subs that the joined run
    /// reads without need.
    fn join(self, next: Self, before: u32) -> (Self, u64) {
        let of_both = [self, next].into_iter().filter(|span| span.first < span.end);
        let (first, end) =
            of_both.fold((u32::MAX, 0), |(first, end), span| (first.min(span.first), end.max(span.end)));
        let joined = Self { tiles_end: next.tiles_end, first: first.min(end), end };
        let needed = self.cost(self.tiles_end - before) + next.cost(next.tiles_end - self.tiles_end);
        (joined, joined.cost(next.tiles_end - before) - needed)
    }

    /// The runs of tiles, of which each has some subs, as few enough spans, that read the fewest subs in vain.
    pub(crate) fn merge(tiles: impl Iterator<Item = std::ops::Range<u32>>) -> Vec<Self> {
        let mut spans: Vec<Self> = Vec::new();
        for (tile, subs) in tiles.enumerate() {
            let own = Self { tiles_end: tile as u32 + 1, first: subs.start, end: subs.end };
            match spans.last_mut() {
                Some(last) if (last.first, last.end) == (own.first, own.end) => {
                    last.tiles_end = own.tiles_end;
                }
                _ => spans.push(own),
            }
            if spans.len() > LOW_RANK_SPANS as usize {
                let before = |place: usize| place.checked_sub(1).map_or(0, |last| spans[last].tiles_end);
                let joined = |place: usize| spans[place].join(spans[place + 1], before(place));
                let cheapest = (0..spans.len() - 1).min_by_key(|&place| joined(place).1).unwrap_or(0);
                spans[cheapest] = joined(cheapest).0;
                spans.remove(cheapest + 1);
            }
        }
        spans
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_what_tiles_need() {
        let span = |tiles_end, first, end| Span { tiles_end, first, end };
        let spans = |tiles: &[(usize, std::ops::Range<u32>)]| {
            Span::merge(tiles.iter().flat_map(|(count, subs)| std::iter::repeat_n(subs.clone(), *count)))
        };
        // Queries, keys and values.
        let found = spans(&[(256, 0..2), (64, 2..4), (64, 4..6)]);
        assert_eq!(found, [span(256, 0, 2), span(320, 2, 4), span(384, 4, 6)]);
        // Tiles without anything read nothing.
        assert_eq!(spans(&[(3, 0..0)]), [span(3, 0, 0)]);
        // Of many runs those are joined that read least in vain.
        let found = spans(&[(9, 0..1), (1, 0..0), (9, 3..4), (9, 0..4), (9, 5..6)]);
        assert_eq!(found, [span(10, 0, 1), span(19, 3, 4), span(28, 0, 4), span(37, 5, 6)]);
        assert!(spans(&[]).is_empty());
    }
}
