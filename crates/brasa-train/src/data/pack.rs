//! Packs documents into steps.

use std::collections::BTreeMap;

/// Packs documents of `rows[i]` rows into steps of at most `max_rows` rows and `max_documents` documents: the longest first, each
/// into the fullest step that has room for it (best-fit decreasing; Ding et al. 2024, arXiv:2404.10830). Documents of equal
/// length keep the order that they have in `order`, which names documents.
///
/// # Panics
///
/// If a document is longer than a step.
pub fn pack(rows: &[usize], order: &[u32], max_rows: usize, max_documents: usize) -> Vec<Vec<u32>> {
    let mut longest_first = order.to_vec();
    longest_first.sort_by_key(|&document| std::cmp::Reverse(rows[document as usize]));
    let mut steps: Vec<Vec<u32>> = Vec::new();
    // By room that is left: steps, the oldest last.
    let mut open: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for document in longest_first {
        let rows = rows[document as usize];
        assert!(rows <= max_rows, "document {document} has {rows} rows, a step {max_rows}");
        let fullest =
            open.range_mut(rows..).next().map(|(&room, steps)| (room, steps.pop(), steps.is_empty()));
        let (room, step) = if let Some((room, Some(step), last)) = fullest {
            if last {
                open.remove(&room);
            }
            (room, step)
        } else {
            steps.push(Vec::new());
            (max_rows, steps.len() - 1)
        };
        steps[step].push(document);
        if steps[step].len() < max_documents {
            open.entry(room - rows).or_default().push(step);
        }
    }
    steps
}
