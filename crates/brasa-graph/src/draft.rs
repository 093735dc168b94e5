//! Draft trees: several possible continuations of one text, verified in one step.

use crate::step::PAGE_POSITIONS;

/// Most rows of a draft tree. The limit is a page's positions, so that a tree touches two pages at most and a row's ancestors fit
/// four words.
pub const MAX_TREE_ROWS: usize = PAGE_POSITIONS;

/// A forest of a segment's rows: each row follows another row, and roots follow the text before the segment.
///
/// A row sees all of that text, its ancestors and itself, and nothing of other branches. What it sees is the text that
/// would lead to it, so it counts in *depth*: a row at depth *d* stands where plain text would have its index,
/// `first_index + d`. Sliding windows end there too, and so do positions unless the step says otherwise.
///
/// Made only by [`new`](Self::new), so every tree is acyclic and small. Slots of a tree hold rows of several
/// branches: the branch that is kept is computed again as plain text, or lay first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DraftTree {
    rows: Vec<TreeRow>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct TreeRow {
    parent: Option<u32>,
    depth: u32,
    /// Bit *i* of word *i / 64*: row *i* is the row itself or an ancestor.
    seen: [u64; MAX_TREE_ROWS / 64],
}

/// Rows that are no tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TreeError {
    /// More rows than a tree may have.
    #[error("a draft tree of {rows} rows, at most {MAX_TREE_ROWS} fit")]
    TooLarge {
        /// How many there are.
        rows: usize,
    },
    /// A row that follows itself or a later one.
    #[error("row {row} of a draft tree follows row {parent}, expected an earlier one")]
    NotEarlier {
        /// The row.
        row: usize,
        /// Index of the row that it names as its parent.
        parent: u32,
    },
}

impl DraftTree {
    /// The tree in which row *i* follows row `parents[i]`, or the text before the segment where that is `None`.
    ///
    /// # Errors
    ///
    /// [`TreeError`]: parents come before their children, which is also what keeps the tree free of cycles.
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

    /// Ancestors of `row`.
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
