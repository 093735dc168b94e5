//! Layout of the arena: the place of each buffer.
//!
//! Every element takes four bytes, halves too, which are kept as the floats that they stand for.

/// Alignment of every buffer.
const ALIGNMENT_BYTES: usize = 256;

/// A buffer: how long it is needed, and its size. Of one that is kept from step to step `last` is [`usize::MAX`], and `first` 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lifetime {
    /// The operation that writes the buffer.
    pub first: usize,
    /// The last operation that reads the buffer.
    pub last: usize,
    pub elements: usize,
}

/// An offset in bytes for each buffer, and the bytes of the whole: largest first, each into the lowest gap between those
/// placed before that are needed at the same time.
pub(super) fn lay_out(buffers: &[Lifetime]) -> (Vec<usize>, usize) {
    let mut order: Vec<usize> = (0..buffers.len()).collect();
    order.sort_by_key(|&buffer| (std::cmp::Reverse(buffers[buffer].elements), buffer));
    let (mut offsets, mut total) = (vec![0_usize; buffers.len()], 0_usize);
    // In order of offsets.
    let mut placed: Vec<usize> = Vec::new();
    for buffer in order {
        let Lifetime { first, last, .. } = buffers[buffer];
        let meets = |&&other: &&usize| buffers[other].first <= last && first <= buffers[other].last;
        let (mut start, needed) = (0_usize, bytes(buffers[buffer].elements));
        for &other in placed.iter().filter(meets) {
            if offsets[other] >= start.saturating_add(needed) {
                break;
            }
            start = start.max(offsets[other].saturating_add(bytes(buffers[other].elements)));
        }
        offsets[buffer] = start;
        total = total.max(start.saturating_add(needed));
        placed.insert(placed.partition_point(|&other| offsets[other] <= start), buffer);
    }
    (offsets, total)
}

/// Bytes that a buffer of so many elements takes.
pub(super) fn bytes(elements: usize) -> usize {
    elements.saturating_mul(4).checked_next_multiple_of(ALIGNMENT_BYTES).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use brasa_graph::testing::Random;

    use super::*;

    #[test]
    fn buffers_that_meet_lie_apart() {
        let mut random = Random::new(1);
        for _ in 0..50 {
            let mut buffer = || {
                let first = random.below(40);
                Lifetime { first, last: first + random.below(6), elements: 1 + random.below(900) }
            };
            let buffers: Vec<Lifetime> = (0..60).map(|_| buffer()).collect();
            let (offsets, total) = lay_out(&buffers);
            for (i, a) in buffers.iter().enumerate() {
                assert!(offsets[i] + a.elements * 4 <= total && offsets[i].is_multiple_of(ALIGNMENT_BYTES));
                for (j, b) in buffers.iter().enumerate().take(i) {
                    let apart = offsets[i] + a.elements * 4 <= offsets[j]
                        || offsets[j] + b.elements * 4 <= offsets[i];
                    assert!(apart || a.first > b.last || b.first > a.last, "{a:?} and {b:?}");
                }
            }
        }
    }

    #[test]
    fn absurd_sizes_do_not_overflow() {
        let huge = Lifetime { first: 0, last: 1, elements: usize::MAX / 2 };
        assert_eq!(lay_out(&[huge; 4]).1, usize::MAX);
    }
}
