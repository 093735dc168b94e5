//! Which multiprocessor multiplies which tiles of a linear layer.
//!
//! Tiles are dealt evenly, and the odd ones of a layer go to multiprocessors that had none of the layer in front. The first multiprocessors, one
//! for each key head, attend to texts of few positions: what attends comes last to the layer behind, for which everybody waits. So they have
//! fewer tiles of the layers beside attention than the others, or none, where that makes nobody slower.

/// Bytes of tiles that a multiprocessor has beside others at most, where those who attend have none: they lie in its ring before values come.
const MOST_BYTES: u32 = 80 << 10;

/// The tiles of one weight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stack {
    pub count: u32,
    pub tile_bytes: u32,
}

/// The shares of a weight's tiles, from which each multiprocessor computes its own (`my_tiles` of `ring.cuh`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Deal {
    pub each: u32,
    pub odd: u32,
    /// Places that multiprocessors are turned by, and in the upper half how many of them have no tile.
    pub rotation: u32,
}

pub(super) struct Dealer {
    multiprocessors: u32,
    /// Number of multiprocessors that attend to texts of few positions. They are the first multiprocessors.
    attending: u32,
    /// The first multiprocessor that has no odd tile yet.
    next: u32,
}

impl Dealer {
    pub(super) fn new(multiprocessors: u32, attending: u32) -> Self {
        // Where nobody is left for other work, nobody is spared.
        let attending = if attending < multiprocessors { attending } else { 0 };
        Self { multiprocessors, attending, next: 0 }
    }

    pub(super) fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }

    /// Deals one weight to all.
    pub(super) fn among_all(&mut self, count: u32) -> Deal {
        self.among(count, self.next, self.multiprocessors)
    }

    /// Deals the weights of a layer, whose outputs are one value.
    pub(super) fn deal(&mut self, stacks: &[Stack], beside_attention: bool) -> Vec<Deal> {
        let spared = if beside_attention { self.attending } else { 0 };
        if let &[stack] = stacks {
            return vec![self.deal_one(stack, spared)];
        }
        // A multiprocessor that had tiles in two formats would prepare the layer's input twice.
        let sum: u32 = stacks.iter().map(|stack| stack.count).sum();
        let most = sum.div_ceil(self.multiprocessors).max(1);
        let mut members: Vec<u32> = stacks.iter().map(|stack| stack.count.div_ceil(most)).collect();
        let needed: u32 = members.iter().sum();
        if needed > self.multiprocessors {
            return stacks.iter().map(|stack| self.among_all(stack.count)).collect();
        }
        let spared = if needed + spared <= self.multiprocessors { spared } else { 0 };
        let mut left = self.multiprocessors - spared - needed;
        for (members, stack) in members.iter_mut().zip(stacks).rev() {
            let more = left.min(stack.count - *members);
            *members += more;
            left -= more;
        }
        let mut first = self.beside(self.multiprocessors - spared - left, spared);
        let mut deal = |(stack, &members): (&Stack, &u32)| {
            let deal = self.among(stack.count, first, members);
            first = (first + members) % self.multiprocessors;
            self.next = first;
            deal
        };
        stacks.iter().zip(&members).map(&mut deal).collect()
    }

    /// Deals one weight; the first `spared` have fewer tiles, if possible.
    fn deal_one(&mut self, stack: Stack, spared: u32) -> Deal {
        let others = self.multiprocessors - spared;
        let most = stack.count.div_ceil(others);
        if spared > 0 && most * stack.tile_bytes <= MOST_BYTES && most <= 2 {
            return self.among(stack.count, spared, others);
        }
        let first = self.beside(stack.count % self.multiprocessors, spared);
        self.among(stack.count, first, self.multiprocessors)
    }

    /// The first of `members` multiprocessors for the next tiles. It is the next one in turn, or `spared` if that keeps the first
    /// `spared` multiprocessors free.
    fn beside(&self, members: u32, spared: u32) -> u32 {
        let fits = members + spared <= self.multiprocessors;
        let meets = spared > 0 && (self.next < spared || self.next + members > self.multiprocessors);
        if fits && meets { spared } else { self.next }
    }

    /// Deals tiles to `members` multiprocessors from `first` on.
    fn among(&mut self, count: u32, first: u32, members: u32) -> Deal {
        let turned = (self.multiprocessors - first) % self.multiprocessors;
        let odd = count % members;
        self.next = (first + odd) % self.multiprocessors;
        Deal { each: count / members, odd, rotation: turned | (self.multiprocessors - members) << 16 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tiles of each multiprocessor, as `my_tiles` computes them.
    fn dealt(deal: Deal, multiprocessors: u32) -> Vec<std::ops::Range<u32>> {
        let (rotation, idle) = (deal.rotation & 0xffff, deal.rotation >> 16);
        let tiles = |number: u32| {
            let r = (number + rotation) % multiprocessors;
            let first = r * deal.each + r.min(deal.odd);
            let count = if r + idle < multiprocessors { deal.each + u32::from(r < deal.odd) } else { 0 };
            first..first + count
        };
        (0..multiprocessors).map(tiles).collect()
    }

    /// How many tiles each multiprocessor has; every tile is dealt once.
    fn counts(deal: Deal, count: u32, multiprocessors: u32) -> Vec<u32> {
        let dealt = dealt(deal, multiprocessors);
        let mut tiles: Vec<u32> = dealt.iter().cloned().flatten().collect();
        tiles.sort_unstable();
        assert_eq!(tiles, (0..count).collect::<Vec<_>>());
        dealt.iter().map(|range| range.len() as u32).collect()
    }

    #[test]
    fn every_tile_is_dealt_once_and_those_who_attend_have_the_fewest() {
        for multiprocessors in [1, 2, 7, 78, 132] {
            for attending in [0, 1, 2, 8, 16] {
                let mut dealer = Dealer::new(multiprocessors, attending);
                for count in (0..300).chain([1000, 9496]) {
                    for (tile_bytes, beside) in [(9216, true), (65_536, true), (9216, false)] {
                        let stack = Stack { count, tile_bytes };
                        let deal = dealer.deal(&[stack], beside)[0];
                        let counts = counts(deal, count, multiprocessors);
                        let most = counts.iter().copied().max().unwrap_or(0);
                        let fair = count.div_ceil(multiprocessors);
                        assert!(most == fair || (beside && most == 2 && fair == 1), "{most} of {count}");
                        let spared = dealer.attending as usize;
                        if beside && spared > 0 && count > 0 && count < multiprocessors - spared as u32 {
                            assert_eq!(
                                counts[..spared].iter().sum::<u32>(),
                                0,
                                "{count} on {multiprocessors}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn odd_tiles_go_on_where_those_of_the_layer_in_front_ended() {
        let mut dealer = Dealer::new(7, 2);
        let mut next = 0;
        for count in [10, 12, 5, 21, 6, 8] {
            let deal = dealer.deal(&[Stack { count, tile_bytes: 9216 }], false)[0];
            let odd = (0..count % 7).map(|number| (next + number) % 7);
            let counts = counts(deal, count, 7);
            assert!(odd.into_iter().all(|number| counts[number as usize] == count / 7 + 1), "{counts:?}");
            next = (next + count % 7) % 7;
        }
    }

    #[test]
    fn weights_in_two_formats_go_to_different_multiprocessors() {
        for (first, second, multiprocessors) in
            [(192, 64, 132), (160, 32, 132), (320, 64, 132), (40, 16, 9), (3, 1, 7)]
        {
            let mut dealer = Dealer::new(multiprocessors, 8);
            for _ in 0..50 {
                let stacks = [first, second].map(|count| Stack { count, tile_bytes: 9216 });
                let deals = dealer.deal(&stacks, true);
                let (a, b) =
                    (counts(deals[0], first, multiprocessors), counts(deals[1], second, multiprocessors));
                let most = (first + second).div_ceil(multiprocessors);
                for (a, b) in a.iter().zip(&b) {
                    assert!(a + b <= most && (*a == 0 || *b == 0), "{a} and {b}");
                }
                dealer.deal(&[Stack { count: 384, tile_bytes: 9216 }], false);
            }
        }
    }
}
