//! Draft trees: several possible continuations of one text, verified in one step.

use crate::step::PAGE_POSITIONS;

/// Most rows of a draft tree. The limit is a page's positions, so that a tree touches two pages at most and a row's ancestors fit
/// four words.
pub const MAX_TREE_ROWS: usize = PAGE_POSITIONS;

/// A forest of a segment's rows: each row follows another row, and roots follow the text before the segment.
///
/// A row sees all of the text before the segment, its ancestors and itself, but no other branch. So its place in the text follows
/// from its *depth*: a row at depth *d* counts as index `first_index + d`. Sliding windows use that index, and so do positions
/// unless the step gives others.
///
/// Made only by [`new`](Self::new), so every tree is acyclic and small. The cache slots of a tree hold rows of several branches.
/// So the kept branch is computed again as plain text, unless its rows come first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DraftTree {
    rows: Vec<TreeRow>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct TreeRow {
    parent: Option<u32>,
    depth: u32,
    /// For each row, the rows that it sees: bit *i* of word *i / 64* is set if row *i* is the row itself or an ancestor.
    seen: [u64; MAX_TREE_ROWS / 64],
}

/// The reason why rows form no valid tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TreeError {
    /// The tree has more rows than it may have.
    #[error("a draft tree of {rows} rows, at most {MAX_TREE_ROWS} fit")]
    TooLarge {
        /// Number of rows.
        rows: usize,
    },
    /// A row names itself or a later row as its parent.
    #[error("row {row} of a draft tree follows row {parent}, expected an earlier one")]
    NotEarlier {
        /// Number of the row.
        row: usize,
        /// Index of the row that it names as its parent.
        parent: u32,
    },
}

impl DraftTree {
    /// The tree in which row *i* follows row `parents[i]`, or the text before the segment if that is `None`.
    ///
    /// # Errors
    ///
    /// [`TreeError`] if there are too many rows, or if a parent does not come before its children (which also excludes cycles).
    pub fn new(parents: &[Option<u32>]) -> Result<Self, TreeError> {
        if parents.len() > MAX_TREE_ROWS {
            return Err(TreeError::TooLarge { rows: parents.len() });
        }
        let mut rows: Vec<TreeRow> = Vec::with_capacity(parents.len());
        for (row, &parent) in parents.iter().enumerate() {
            let (depth, mut seen) = match parent {
                None => (0, [0; MAX_TREE_ROWS / 64]),
                Some(parent) => match rows.get(parent as usize) {
                    Some(above) => (above.depth + 1, above.seen),
                    None => return Err(TreeError::NotEarlier { row, parent }),
                },
            };
            seen[row / 64] |= 1 << (row % 64);
            rows.push(TreeRow { parent, depth, seen });
        }
        Ok(Self { rows })
    }

    /// Rows of the tree.
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// The row that `row` follows; `None` for the text before the segment.
    pub fn parent(&self, row: usize) -> Option<u32> {
        self.rows[row].parent
    }

    /// Number of ancestors of `row`.
    pub fn depth(&self, row: usize) -> usize {
        self.rows[row].depth as usize
    }

    /// True if `other` is `row` itself or an ancestor.
    pub fn sees(&self, row: usize, other: usize) -> bool {
        self.rows[row].seen[other / 64] >> (other % 64) & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    #[test]
    fn rows_see_what_leads_to_them() {
        for seed in 0..20 {
            let mut random = Random::new(seed);
            let parents: Vec<Option<u32>> = (0..MAX_TREE_ROWS)
                .map(|row| (random.below(8) > 0 && row > 0).then(|| random.below(row) as u32))
                .collect();
            let tree = DraftTree::new(&parents).unwrap();
            for row in 0..parents.len() {
                let path: Vec<usize> =
                    std::iter::successors(Some(row), |&row| parents[row].map(|row| row as usize)).collect();
                assert_eq!((tree.parent(row), tree.depth(row)), (parents[row], path.len() - 1));
                for other in 0..parents.len() {
                    assert_eq!(tree.sees(row, other), path.contains(&other), "{row} and {other}");
                }
            }
        }
    }

    #[test]
    fn what_is_no_tree_is_refused() {
        let refused = |parents: &[Option<u32>]| DraftTree::new(parents).unwrap_err().to_string();
        assert_eq!(refused(&[None, Some(1)]), "row 1 of a draft tree follows row 1, expected an earlier one");
        assert_eq!(refused(&[Some(7)]), "row 0 of a draft tree follows row 7, expected an earlier one");
        assert_eq!(refused(&[None; 257]), "a draft tree of 257 rows, at most 256 fit");
        assert_eq!(DraftTree::new(&[]).unwrap().rows(), 0);
    }
}
