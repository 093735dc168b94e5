//! Listings of graphs, schedules and plans, as `brasa inspect --graph` prints them.
//!
//! One line per node: results with their types, operation, operands by name, attributes.
//!
//! ```text
//! %12 f32[rows, 40] = linear(%11, layers.0.qkv)
//! %13 f32[rows, 24] = slice(%12) 0..24
//! ```

use std::fmt::Write as _;

use crate::plan::{Buffer, Plan};
use crate::{CacheKind, Graph, Input, Item, NodeId, Schedule, Sizes, ValueId, ValueKind, Weight};

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
        out.push_str(&item_lines(graph, item, |_| String::new()));
    }
    format!("schedule\n{}{}", indented(&out, 2), outputs(graph))
}

/// Prints the items of a schedule with the place of every result in the arena, for steps of at most `sizes`.
pub fn plan(graph: &Graph, schedule: &Schedule, plan: &Plan, sizes: &Sizes) -> String {
    let mut out = String::new();
    for (number, item) in schedule.items().iter().enumerate() {
        let lines = item_lines(graph, item, |value| place(graph, plan, value, sizes));
        out.push_str(&lines);
        let scratch = plan.scratch(number);
        if !scratch.is_empty() {
            let _ = writeln!(out, "  scratch @ {}, {} bytes", scratch.start, scratch.len());
        }
    }
    format!("plan: {} bytes\n{}{}", plan.arena_bytes(), indented(&out, 2), outputs(graph))
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

fn item_lines(graph: &Graph, item: &Item, place: impl Fn(ValueId) -> String) -> String {
    match item {
        Item::Single(node) => {
            let places: String = graph.node(*node).outputs.iter().map(|&value| place(value)).collect();
            format!("{}{places}\n", node_line(graph, *node))
        }
        Item::Fused(fused) => {
            let results: Vec<String> =
                fused.outputs.iter().map(|&value| format!("{value}{}", place(value))).collect();
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

/// Prints a value's place: ` @ 1024, 280 bytes`, or for a view ` @ 1024 + 24 of 40`.
fn place(graph: &Graph, plan: &Plan, value: ValueId, sizes: &Sizes) -> String {
    let Some(place) = plan.place(value) else { return String::new() };
    let view = graph.view(value);
    let buffer = match place.buffer {
        Buffer::Arena { offset_bytes } => offset_bytes.to_string(),
        Buffer::Input(_) | Buffer::Weight(_) => value_name(graph, view.root),
    };
    if view.root == value {
        let typed = graph.value(value);
        let elements = typed.shape.resolve(sizes).into_iter().fold(1, usize::saturating_mul);
        format!(" @ {buffer}, {} bytes", elements.saturating_mul(typed.dtype.size_bytes()))
    } else {
        format!(" @ {buffer} + {} of {}", place.start, place.row_stride)
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
