//! Linear layers of experts: each row uses a few experts.

use std::ops::Range;

use brasa_graph::WeightPart;
use brasa_graph::device::Precision;

use super::buffer::Packer;
use super::operands::{Input, Output, RowMap, RowPair};
use super::packed::PackedLinear;
use crate::{Error, Isa};

/// X linear layers of equal shape.
#[derive(Debug)]
pub struct PackedExperts {
    experts: Vec<PackedLinear>,
}

/// Rows gathered by expert. The memory is reused from step to step.
#[derive(Clone, Debug, Default)]
pub struct ExpertGroups {
    /// Expert e has the pairs `starts[e]..starts[e + 1]`.
    starts: Vec<usize>,
    pairs: Vec<RowPair>,
}

/// The row of activations that the j-th chosen expert of a row reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertInput {
    /// `x` is `[R, K]`: all experts of a row read that row.
    Shared,
    /// `x` is `[R, chosen, K]`: each expert reads a row of its own.
    Own,
}

impl ExpertGroups {
    /// Gathers `experts` `[R, chosen]` by expert; results are rows `r · chosen + j`.
    ///
    /// # Panics
    ///
    /// If an expert is not below `count`.
    pub fn gather(&mut self, experts: &[u32], chosen: usize, count: usize, input: ExpertInput) {
        self.starts.clear();
        self.starts.resize(count + 1, 0);
        for &expert in experts {
            self.starts[expert as usize + 1] += 1;
        }
        for expert in 0..count {
            self.starts[expert + 1] += self.starts[expert];
        }
        self.pairs.clear();
        self.pairs.resize(experts.len(), RowPair::default());
        for (y, &expert) in experts.iter().enumerate() {
            let x = match input {
                ExpertInput::Shared => y / chosen,
                ExpertInput::Own => y,
            };
            let next = &mut self.starts[expert as usize];
            self.pairs[*next] = RowPair { x: x as u32, y: y as u32 };
            *next += 1;
        }
        // Every start has moved to the next one's place.
        self.starts.rotate_right(1);
        self.starts[0] = 0;
    }

    /// The pairs of expert `expert`.
    pub fn pairs(&self, expert: usize) -> &[RowPair] {
        &self.pairs[self.starts[expert]..self.starts[expert + 1]]
    }
}

impl PackedExperts {
    /// Packs `count` experts, stacked in `parts`.
    ///
    /// # Errors
    ///
    /// [`Error::BadWeight`] if the rows do not divide among the experts, and the errors of [`PackedLinear::new`].
    pub fn new(
        name: &str,
        parts: &[WeightPart],
        count: usize,
        precision: Precision,
        packer: &Packer<'_>,
    ) -> Result<Self, Error> {
        let rows: usize = parts.iter().map(|part| part.rows.len()).sum();
        if count == 0 || !rows.is_multiple_of(count) {
            return Err(Error::BadWeight {
                name: name.into(),
                found: format!("{rows} rows"),
                expected: format!("equally many for each of {count} experts"),
            });
        }
        let n = rows / count;
        let experts = (0..count).map(|expert| {
            PackedLinear::new(name, &cut(parts, &(expert * n..(expert + 1) * n)), precision, packer)
        });
        Ok(Self { experts: experts.collect::<Result<_, _>>()? })
    }

    /// The experts.
    pub fn experts(&self) -> &[PackedLinear] {
        &self.experts
    }

    /// Computes this thread's share of all experts' outputs.
    ///
    /// # Safety
    ///
    /// No other thread reads or writes this share of the outputs of the rows of `groups` until a barrier. Shares of different
    /// threads are disjoint.
    #[expect(unsafe_code, reason = "several threads write one output")]
    pub unsafe fn multiply_share(
        &self,
        isa: Isa,
        input: &Input<'_>,
        groups: &ExpertGroups,
        output: &Output<'_>,
        threads: usize,
        thread: usize,
    ) {
        for (expert, linear) in self.experts.iter().enumerate() {
            let pairs = groups.pairs(expert);
            if !pairs.is_empty() {
                let strips = linear.share(threads, thread);
                // SAFETY: by the contract; shares of strips are disjoint.
                unsafe { linear.multiply(isa, input, RowMap::Pairs(pairs), output, strips) };
            }
        }
    }
}

/// The parts that make up `rows` of stacked parts.
fn cut(parts: &[WeightPart], rows: &Range<usize>) -> Vec<WeightPart> {
    let mut first = 0;
    let mut cut = Vec::new();
    for part in parts {
        let start = rows.start.clamp(first, first + part.rows.len()) - first;
        let end = rows.end.clamp(first, first + part.rows.len()) - first;
        if start < end {
            cut.push(part.cut(start..end));
        }
        first += part.rows.len();
    }
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_gathered_by_expert_in_their_order() {
        let mut groups = ExpertGroups::default();
        groups.gather(&[2, 0, 0, 3, 2, 3], 2, 4, ExpertInput::Shared);
        let pair = |x, y| RowPair { x, y };
        assert_eq!(groups.pairs(0), [pair(0, 1), pair(1, 2)]);
        assert_eq!(groups.pairs(1), []);
        assert_eq!(groups.pairs(2), [pair(0, 0), pair(2, 4)]);
        assert_eq!(groups.pairs(3), [pair(1, 3), pair(2, 5)]);
        groups.gather(&[1, 0], 2, 2, ExpertInput::Own);
        assert_eq!((groups.pairs(0), groups.pairs(1)), (&[pair(1, 1)][..], &[pair(0, 0)][..]));
    }
}
