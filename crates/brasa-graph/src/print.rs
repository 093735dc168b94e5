//! Listings of graphs and schedules, as `brasa inspect --graph` prints them.
//!
//! One line per node: results with their types, operation, operands by name, attributes.
//!
//! ```text
//! %12 f32[rows, 40] = linear(%11, layers.0.qkv)
//! %13 f32[rows, 24] = slice(%12) 0..24
//! ```

use std::fmt::Write as _;

use crate::{CacheKind, Graph, Input, Item, NodeId, Schedule, ValueId, ValueKind, Weight};

/// Prints the weights, caches, nodes and outputs of a graph.
pub fn graph(graph: &Graph) -> String {
    let mut out = String::new();
    for node in 0..graph.nodes().len() {
        let _ = writeln!(out, "{}", node_line(graph, NodeId(node as u32)));
    }
    format!("{}nodes\n{}{}", header(graph), indented(&out, 2), outputs(graph))
}

/// Prints the items of a schedule, in order; the nodes of a fused item follow it.
pub fn schedule(graph: &Graph, schedule: &Schedule) -> String {
    let mut out = String::new();
    for item in schedule.items() {
        out.push_str(&item_lines(graph, item));
    }
    format!("schedule\n{}{}", indented(&out, 2), outputs(graph))
}

/// Prints one node: `%12 f32[rows, 40] = linear(%11, layers.0.qkv)`.
pub fn node_line(graph: &Graph, id: NodeId) -> String {
    let node = graph.node(id);
    let results: Vec<String> = node.outputs.iter().map(|&id| format!("{id} {}", graph.value(id))).collect();
    let operands: Vec<String> = node.inputs.iter().map(|&id| value_name(graph, id)).collect();
    let equals = if results.is_empty() { "" } else { " = " };
    let line = format!(
        "{}{equals}{}({}) {}",
        results.join(", "),
        node.op.name(),
        operands.join(", "),
        node.op.attributes()
    );
    line.trim_end().to_owned()
}

fn item_lines(graph: &Graph, item: &Item) -> String {
    match item {
        Item::Single(node) => format!("{}\n", node_line(graph, *node)),
        Item::Fused(fused) => {
            let results: Vec<String> = fused.outputs.iter().map(ToString::to_string).collect();
            let operands: Vec<String> = fused.inputs.iter().map(|&value| value_name(graph, value)).collect();
            let equals = if results.is_empty() { "" } else { " = " };
            let nodes: Vec<String> = fused.nodes.iter().map(|&node| node_line(graph, node)).collect();
            format!(
                "{}{equals}fused {}({})\n{}",
                results.join(", "),
                fused.fusion.pattern().name(),
                operands.join(", "),
                indented(&nodes.join("\n"), 2)
            )
        }
    }
}

fn header(graph: &Graph) -> String {
    let mut out = String::from("weights\n");
    for weight in graph.weights() {
        let _ = writeln!(
            out,
            "  {} {:?} {}, {} bytes",
            weight.name,
            weight.shape,
            formats(weight),
            weight.stored_bytes()
        );
    }
    for (number, group) in graph.cache_groups().iter().enumerate() {
        if number == 0 {
            out.push_str("caches\n");
        }
        let window = group.spec.window.map_or(String::new(), |window| format!(", window {window}"));
        let ids: Vec<String> = group.caches.iter().map(|cache| cache.0.to_string()).collect();
        let kind = match group.kind {
            CacheKind::Text => "caches",
            CacheKind::Memory => "memories",
        };
        let _ = writeln!(out, "  group {number}: {}{window}, {kind} {}", group.spec, ids.join(" "));
    }
    for (number, elements) in graph.states.iter().enumerate() {
        if number == 0 {
            out.push_str("states\n");
        }
        let _ = writeln!(out, "  state {number}: {elements} elements");
    }
    out
}

/// The storage formats of a weight's parts, each once: `Q4_K + Q6_K`.
fn formats(weight: &Weight) -> String {
    let mut names: Vec<String> = Vec::new();
    for part in &weight.parts {
        let name = part.format().to_string();
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names.join(" + ")
}

fn outputs(graph: &Graph) -> String {
    let names: Vec<String> = graph.outputs().iter().map(|&id| value_name(graph, id)).collect();
    format!("returns {}\n", names.join(", "))
}

/// The name of a value if it has one, else its id.
pub(crate) fn value_name(graph: &Graph, id: ValueId) -> String {
    match graph.value(id).kind {
        ValueKind::Input(Input::TokenIds) => "token_ids".into(),
        ValueKind::Input(Input::Positions) => "positions".into(),
        ValueKind::Input(Input::OutRows) => "out_rows".into(),
        ValueKind::Input(Input::Given(given)) => graph.givens()[given.0 as usize].name.clone(),
        ValueKind::Weight(weight) => graph.weight(weight).name.clone(),
        ValueKind::Temporary(_) => id.to_string(),
        ValueKind::Removed => format!("{id} (removed)"),
    }
}

fn indented(text: &str, spaces: usize) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let _ = writeln!(out, "{:spaces$}{line}", "");
    }
    out
}
