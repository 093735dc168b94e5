//! How threads share the strips of a product with many rows.
//!
//! A thread computes the first half of its share. The other halves are cut into pieces, which threads take as they come to them, so
//! that one whose processor is slower, or has other programs to run, gets fewer. Whoever computes a strip makes the same bits.

use std::ops::Range;

use crate::context::Context;

/// Rows from which on there are pieces. With fewer, weights that stream from memory are the work, and long runs of them the fastest.
const MANY_ROWS: usize = 64;

/// The strips of several weights, shared out among threads.
pub(super) struct Pieces<F> {
    threads: usize,
    /// Strips of a piece.
    step: usize,
    /// Weights.
    weights: usize,
    /// The share of a thread in a weight.
    share: F,
}

impl<F: Fn(usize, usize) -> Range<usize>> Pieces<F> {
    /// `share(weight, thread)` are the strips of a thread; those of all threads cover a weight's strips once. Pieces have `step` strips.
    pub(super) fn new(weights: usize, threads: usize, step: usize, share: F) -> Self {
        Self { threads, step: step.max(1), weights, share }
    }

    /// Lets `compute` have the strips of each weight that this thread is to multiply with `rows` rows: those of all threads cover them once.
    pub(super) fn each(&self, cx: &Context<'_>, rows: usize, mut compute: impl FnMut(usize, Range<usize>)) {
        let many = rows >= MANY_ROWS;
        for weight in 0..self.weights {
            let of_thread = if many { self.own(weight, cx.thread) } else { (self.share)(weight, cx.thread) };
            compute(weight, of_thread);
        }
        while many && let Some((weight, strips)) = self.get(cx.take()) {
            compute(weight, strips);
        }
    }

    /// The strips of a weight that a thread computes by itself: half of its share, in whole pieces.
    fn own(&self, weight: usize, thread: usize) -> Range<usize> {
        let share = (self.share)(weight, thread);
        if self.threads == 1 {
            return share;
        }
        let half = share.len().div_ceil(2).next_multiple_of(self.step).min(share.len());
        share.start..share.start + half
    }

    /// The weight and strips of piece `number` of what is left; `None` behind the last.
    fn get(&self, mut number: usize) -> Option<(usize, Range<usize>)> {
        for weight in 0..self.weights {
            for thread in 0..self.threads {
                let rest = self.own(weight, thread).end..(self.share)(weight, thread).end;
                let count = rest.len().div_ceil(self.step);
                if number < count {
                    let first = rest.start + number * self.step;
                    return Some((weight, first..rest.end.min(first + self.step)));
                }
                number -= count;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Team;

    #[test]
    fn every_strip_is_computed_once() {
        for threads in [1, 2, 3, 16, 64] {
            for step in [1, 8, 32] {
                let strips = [24, 3, 0, 512];
                let share = |weight: usize, thread| Team::split(strips[weight], 1, threads, thread);
                let pieces = Pieces::new(strips.len(), threads, step, share);
                let mut seen = strips.map(|strips| vec![0; strips]);
                let mut mark = |weight: usize, strips: Range<usize>| {
                    seen[weight][strips].iter_mut().for_each(|count| *count += 1);
                };
                for weight in 0..strips.len() {
                    for thread in 0..threads {
                        let own = pieces.own(weight, thread);
                        assert!(own.len() * 2 >= share(weight, thread).len(), "{own:?}");
                        mark(weight, own);
                    }
                }
                for number in 0.. {
                    let Some((weight, strips)) = pieces.get(number) else { break };
                    assert!((1..=step).contains(&strips.len()));
                    mark(weight, strips);
                }
                assert!(
                    seen.iter().flatten().all(|&count| count == 1),
                    "{threads} threads, pieces of {step}"
                );
            }
        }
    }
}
