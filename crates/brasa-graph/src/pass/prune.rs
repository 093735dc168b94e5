//! Removes nodes without effect.

use crate::{Change, Graph, rewrite};

/// Returns `graph` without the nodes that no output, cache write, memory write or recurrent state needs.
///
/// Weights, caches and states stay, with their ids, even if no node reads them.
///
/// # Panics
///
/// If the nodes of `graph` are not in a valid order: a bug of this crate.
pub fn prune(graph: &Graph) -> Graph {
    let mut needed = vec![false; graph.values().len()];
    for &output in graph.outputs() {
        needed[output.0 as usize] = true;
    }
    let mut kept = vec![false; graph.nodes().len()];
    for (node, kept) in graph.nodes().iter().zip(&mut kept).rev() {
        let writes = node.op.memory_access().is_some_and(|access| access.kind.writes());
        *kept = writes || node.outputs.iter().any(|output| needed[output.0 as usize]);
        if *kept {
            node.inputs.iter().for_each(|input| needed[input.0 as usize] = true);
        }
    }
    let mut kept = kept.into_iter();
    let keep_or_remove = |_: &mut _, _: &_, _: &[_]| match kept.next() {
        Some(false) => Change::Remove,
        _ => Change::Keep,
    };
    rewrite(graph, keep_or_remove).expect("operands of nodes that stay are needed, so their makers stay")
}
