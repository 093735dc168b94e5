//! The layout of an arena: memory that values share when they are needed at different times.

/// A request for bytes of an arena, and the time for which they are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Numbers of the first and the last operation that need the bytes; `(0, usize::MAX)` for bytes that are kept from step to
    /// step.
    pub items: (usize, usize),
    /// Number of bytes.
    pub size_bytes: usize,
}

impl Demand {
    /// Bytes that the demand takes from an arena: [`size_bytes`](Self::size_bytes), rounded up to a multiple of `alignment`.
    /// `usize::MAX` if the multiple does not fit a `usize`.
    pub fn taken_bytes(self, alignment: usize) -> usize {
        self.size_bytes.checked_next_multiple_of(alignment).unwrap_or(usize::MAX)
    }
}

/// Lays demands out in one arena. Returns the byte offset of each, a multiple of `alignment`, and the arena's size in bytes.
///
/// Demands that are needed at the same time do not overlap. The largest is placed first; each goes into the smallest sufficient
/// gap between earlier placed demands that are needed at the same time, or else after them. Sizes saturate at `usize::MAX`.
pub fn lay_out(demands: &[Demand], alignment: usize) -> (Vec<usize>, usize) {
    let mut order: Vec<usize> = (0..demands.len()).filter(|&i| demands[i].size_bytes > 0).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(demands[i].size_bytes), i));
    let mut offsets: Vec<usize> = vec![0; demands.len()];
    let (mut placed, mut total): (Vec<usize>, usize) = (Vec::new(), 0);
    for i in order {
        let ((first, last), taken) = (demands[i].items, demands[i].taken_bytes(alignment));
        // `placed` is kept in order of offsets.
        let (mut end, mut best) = (0, None::<(usize, usize)>);
        for &other in &placed {
            let (other_first, other_last) = demands[other].items;
            if other_first > last || first > other_last {
                continue;
            }
            let gap = offsets[other].saturating_sub(end);
            if gap >= taken && best.is_none_or(|(tightest, _)| gap < tightest) {
                best = Some((gap, end));
            }
            end = end.max(offsets[other].saturating_add(demands[other].taken_bytes(alignment)));
        }
        offsets[i] = best.map_or(end, |(_, offset)| offset);
        total = total.max(offsets[i].saturating_add(taken));
        let at = placed.partition_point(|&other| offsets[other] <= offsets[i]);
        placed.insert(at, i);
    }
    (offsets, total)
}

#[cfg(test)]
mod tests {
    use super::*;
    use brasa_graph::testing::Random;

    #[test]
    fn demands_of_one_time_lie_apart() {
        let mut random = Random::new(1);
        for _ in 0..50 {
            let demands: Vec<Demand> = (0..60)
                .map(|_| {
                    let first = random.below(40);
                    Demand { items: (first, first + random.below(6)), size_bytes: random.below(1200) }
                })
                .collect();
            let (offsets, total) = lay_out(&demands, 64);
            for (i, a) in demands.iter().enumerate() {
                assert!(offsets[i] + a.size_bytes <= total && offsets[i].is_multiple_of(64));
                for (j, b) in demands.iter().enumerate().take(i) {
                    let apart =
                        offsets[i] + a.size_bytes <= offsets[j] || offsets[j] + b.size_bytes <= offsets[i];
                    let meet = a.items.0 <= b.items.1 && b.items.0 <= a.items.1;
                    assert!(apart || !meet || a.size_bytes == 0 || b.size_bytes == 0);
                }
            }
            let at_once = |item: usize| -> usize {
                let needed = demands.iter().filter(|it| it.items.0 <= item && item <= it.items.1);
                needed.map(|it| it.size_bytes).sum()
            };
            let least = (0..50).map(at_once).max().unwrap_or(0);
            assert!(total <= least * 2, "{total} for {least}");
        }
    }

    #[test]
    fn absurd_sizes_do_not_overflow() {
        let huge = Demand { items: (0, 1), size_bytes: usize::MAX / 2 };
        assert_eq!(lay_out(&[huge; 4], 256).1, usize::MAX);
    }
}
