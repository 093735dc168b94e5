//! The nodes that read each value.

use brasa_graph::{Graph, NodeId, Schedule, ValueId};

/// The nodes that read each value, and the values that a program returns.
#[derive(Clone, Debug)]
pub struct Readers {
    /// The nodes that have each value as an operand, views included.
    direct: Vec<Vec<NodeId>>,
    /// For each value that is no view, the nodes other than views that read it or a view of it, each with its operand.
    of_root: Vec<Vec<(NodeId, ValueId)>>,
    is_output: Vec<bool>,
    /// The value that each value is a view of; itself if it is no view.
    roots: Vec<ValueId>,
}

impl Readers {
    /// Finds the readers of all values of `graph`.
    pub fn of(graph: &Graph) -> Self {
        let count = graph.values().len();
        let roots: Vec<ValueId> = (0..count).map(|id| graph.view(ValueId(id as u32)).root).collect();
        let (mut direct, mut of_root) = (vec![Vec::new(); count], vec![Vec::new(); count]);
        for (number, node) in graph.nodes().iter().enumerate() {
            let id = NodeId(number as u32);
            for &input in &node.inputs {
                let nodes: &mut Vec<NodeId> = &mut direct[input.0 as usize];
                if nodes.last() != Some(&id) {
                    nodes.push(id);
                }
                let nodes: &mut Vec<(NodeId, ValueId)> = &mut of_root[roots[input.0 as usize].0 as usize];
                if !node.op.is_view() && nodes.last().is_none_or(|&(last, _)| last != id) {
                    nodes.push((id, input));
                }
            }
        }
        let mut is_output = vec![false; count];
        for output in graph.outputs() {
            is_output[roots[output.0 as usize].0 as usize] = true;
        }
        Self { direct, of_root, is_output, roots }
    }

    /// The nodes that read `value`, each once, with the operand that it reads. For a view: the nodes that have this view as an
    /// operand. Otherwise: the nodes, except views, that read the value or a view of it, with their first such operand.
    pub fn nodes(&self, value: ValueId) -> Vec<(NodeId, ValueId)> {
        let number = value.0 as usize;
        if self.roots[number] == value {
            return self.of_root[number].clone();
        }
        self.direct[number].iter().map(|&id| (id, value)).collect()
    }

    /// Numbers of the items of `schedule` that have `value` itself as an operand, not a view of it, in order.
    pub fn items(&self, schedule: &Schedule, value: ValueId) -> Vec<usize> {
        let nodes = &self.direct[value.0 as usize];
        let reads = |node: &NodeId| nodes.contains(node);
        let items = schedule.items().iter().enumerate();
        items.filter(|(_, item)| item.nodes().iter().any(reads)).map(|(number, _)| number).collect()
    }

    /// True if the program returns `value`, the value that it is a view of, or another view of that value.
    pub fn is_output(&self, value: ValueId) -> bool {
        self.is_output[self.roots[value.0 as usize].0 as usize]
    }
}

#[cfg(test)]
mod tests {
    use brasa_graph::op::Unary;
    use brasa_graph::{Builder, DType, Dim, Item};

    use super::*;

    #[test]
    fn readers_of_a_value_and_of_its_views() {
        let mut b = Builder::new();
        let x = b.given("x", DType::F32, Dim::ROWS, &[8]);
        let y = b.unary(x, Unary::Silu);
        let (left, right) = (b.slice(y, 0..4), b.slice(y, 4..8));
        let sum = b.add(left, right);
        let whole = b.unary(y, Unary::Silu);
        let graph = b.finish(&[sum, whole]).unwrap();
        let readers = Readers::of(&graph);
        let maker = |value| graph.producer(value).unwrap();
        assert_eq!(readers.nodes(y), [(maker(sum), left), (maker(whole), y)]);
        assert_eq!(readers.nodes(right), [(maker(sum), right)]);
        assert!(readers.nodes(sum).is_empty() && readers.is_output(sum) && !readers.is_output(y));
        let schedule = Schedule::new(&graph, &[]);
        let items = readers.items(&schedule, y).into_iter().map(|item| &schedule.items()[item]);
        let nodes: Vec<NodeId> = items.flat_map(Item::nodes).copied().collect();
        assert_eq!(nodes, [maker(left), maker(right), maker(whole)]);
    }
}
