//! Sums over token ids, in the same order on every device.
//!
//! The order is that of a tree over all ids. A sum of some tokens is the sum of all values, with 0 for the other tokens. As
//! rounding is monotone, the sum never falls if a further token is added.

use std::ops::Range;

/// Values that are folded at a time.
const BLOCK: usize = 256;

/// Number of bits of an index within a block.
const BLOCK_BITS: u32 = BLOCK.trailing_zeros();

/// The sum of `values`, in f32.
///
/// Blocks of 256 consecutive values, the last one filled up with zeros, are folded in half: `x[i] += x[i + stride]` for all
/// `i < stride`, with a stride of 128, then 64, … then 1. The blocks' sums are the values of the next level, until one is
/// left. The sum of no values is 0.
pub fn tree_sum(values: &[f32]) -> f32 {
    tree_sum_of(values, &mut Vec::new(), |&value| value)
}

/// The tree sum of the values that `value` gives for `elements`. `sums` is scratch memory.
pub(super) fn tree_sum_of<T>(elements: &[T], sums: &mut Vec<f32>, value: impl Fn(&T) -> f32) -> f32 {
    let (blocks, rest) = elements.as_chunks::<BLOCK>();
    sums.clear();
    sums.extend(blocks.iter().map(|block| fold(block, &value)));
    if !rest.is_empty() {
        sums.push(fold(&padded(rest.iter().map(value)), |&x| x));
    }
    while sums.len() > 1 {
        let blocks = sums.len().div_ceil(BLOCK);
        for block in 0..blocks {
            let values = &sums[block * BLOCK..sums.len().min((block + 1) * BLOCK)];
            sums[block] = fold(&padded(values.iter().copied()), |&x| x);
        }
        sums.truncate(blocks);
    }
    sums.first().copied().unwrap_or(0.0)
}

fn padded(values: impl Iterator<Item = f32>) -> [f32; BLOCK] {
    let mut block = [0.0; BLOCK];
    block.iter_mut().zip(values).for_each(|(x, value)| *x = value);
    block
}

/// Sums one block: folds with strides 128 and 64 while the values are computed, and the others in memory.
fn fold<T>(block: &[T; BLOCK], value: impl Fn(&T) -> f32) -> f32 {
    let mut x = [0.0; BLOCK / 4];
    for (i, x) in x.iter_mut().enumerate() {
        let at = |place: usize| value(&block[place]);
        *x = (at(i) + at(i + 128)) + (at(i + 64) + at(i + 192));
    }
    halve::<32>(&mut x);
    halve::<16>(&mut x);
    halve::<8>(&mut x);
    halve::<4>(&mut x);
    halve::<2>(&mut x);
    halve::<1>(&mut x);
    x[0]
}

/// Folds with one stride. A constant stride lets the compiler vectorise the loop.
fn halve<const STRIDE: usize>(x: &mut [f32; BLOCK / 4]) {
    let (x, folded) = x.split_at_mut(STRIDE);
    for (x, y) in x.iter_mut().zip(&folded[..STRIDE]) {
        *x += y;
    }
}

/// A few tokens of a tree, prepared for sums of their first 1, 2, 3, … tokens.
///
/// Zeros need not be added: joining the few values in the order in which the tree joins their places gives the same sum.
#[derive(Debug, Default)]
pub(super) struct FewValues {
    leaves: Vec<Leaf>,
}

#[derive(Clone, Copy, Debug)]
struct Leaf {
    /// The token's place in the order of the tree: places that are joined first differ in the lowest bits.
    place: u32,
    /// Bits in which this place and the next leaf's differ: the more bits, the later the two are joined.
    distance: u32,
    rank: u32,
    value: f32,
}

impl FewValues {
    /// The number of tokens.
    pub(super) fn len(&self) -> usize {
        self.leaves.len()
    }

    /// Removes all tokens.
    pub(super) fn clear(&mut self) {
        self.leaves.clear();
    }

    /// Replaces the tokens. `tokens` are ids and values in order of rank.
    pub(super) fn set(&mut self, tokens: impl Iterator<Item = (u32, f32)>) {
        let leaf = |(rank, (id, value))| Leaf { place: place(id), distance: 0, rank, value };
        self.leaves.clear();
        self.leaves.extend((0..).zip(tokens).map(leaf));
        self.leaves.sort_unstable_by_key(|leaf| leaf.place);
        for i in 1..self.leaves.len() {
            self.leaves[i - 1].distance = self.leaves[i - 1].place ^ self.leaves[i].place;
        }
        if let Some(last) = self.leaves.last_mut() {
            last.distance = u32::MAX;
        }
    }

    /// The tree sum of the values of the tokens at `ranks`.
    pub(super) fn sum_of_ranks(&self, ranks: Range<usize>) -> f32 {
        // Sums that wait for what is joined to them, and the distance to it; distances fall from first to last.
        let mut waiting = [(0_u32, 0.0_f32); 33];
        let mut depth = 0;
        let mut sum = 0.0;
        for leaf in &self.leaves {
            sum = if (leaf.rank as usize).wrapping_sub(ranks.start) < ranks.len() { leaf.value } else { 0.0 };
            while depth > 0 && waiting[depth - 1].0 < leaf.distance {
                depth -= 1;
                sum += waiting[depth].1;
            }
            waiting[depth] = (leaf.distance, sum);
            depth += 1;
        }
        sum
    }
}

/// Place of token `id` in the tree. A block is folded from its highest bit down; blocks are folded from the lowest up.
fn place(id: u32) -> u32 {
    id.reverse_bits().swap_bytes()
}

const _: () = assert!(BLOCK_BITS == 8, "a byte of the id is a place within a block");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    /// The definition, word by word.
    fn by_definition(values: &[f32]) -> f32 {
        let mut level = values.to_vec();
        while level.len() > 1 {
            level.resize(level.len().next_multiple_of(256), 0.0);
            let mut next = Vec::new();
            for block in level.chunks(256) {
                let mut x = block.to_vec();
                for stride in [128, 64, 32, 16, 8, 4, 2, 1] {
                    for i in 0..stride {
                        x[i] += x[i + stride];
                    }
                }
                next.push(x[0]);
            }
            level = next;
        }
        level.first().copied().unwrap_or(0.0)
    }

    #[test]
    fn sums_follow_the_definition() {
        let mut random = Random::new(1);
        for len in [0, 1, 2, 255, 256, 257, 600, 65_536, 65_537, 150_000] {
            let values: Vec<f32> = (0..len).map(|_| random.uniform()).collect();
            assert_eq!(tree_sum(&values).to_bits(), by_definition(&values).to_bits(), "{len} values");
        }
    }

    #[test]
    fn few_values_are_summed_as_if_the_others_were_zero() {
        let mut random = Random::new(2);
        for len in [1, 2, 300, 70_000, 150_000] {
            for few in [1, 2, 3, 40, 200] {
                let mut ids: Vec<u32> = (0..few).map(|_| random.below(len) as u32).collect();
                ids.sort_unstable();
                ids.dedup();
                // Ranks are in no order of ids.
                for i in (1..ids.len()).rev() {
                    ids.swap(i, random.below(i + 1));
                }
                let values: Vec<f32> = ids.iter().map(|_| random.uniform()).collect();
                let mut leaves = FewValues::default();
                leaves.set(ids.iter().copied().zip(values.iter().copied()));
                for count in 0..=ids.len() {
                    let mut all = vec![0.0; len];
                    for (&id, &value) in ids.iter().zip(&values).take(count) {
                        all[id as usize] = value;
                    }
                    let (found, expected) = (leaves.sum_of_ranks(0..count), tree_sum(&all));
                    assert_eq!(found.to_bits(), expected.to_bits(), "{count} of {} among {len}", ids.len());
                    let first = count / 3;
                    ids[..first].iter().for_each(|&id| all[id as usize] = 0.0);
                    let (found, expected) = (leaves.sum_of_ranks(first..count), tree_sum(&all));
                    assert_eq!(found.to_bits(), expected.to_bits(), "from {first} to {count} among {len}");
                }
            }
        }
        assert_eq!(FewValues::default().sum_of_ranks(0..3).to_bits(), 0.0_f32.to_bits());
    }
}
