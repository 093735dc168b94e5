//! Prints a compiled table: its operations in order, with the place of every operand.

use std::fmt::Write as _;

use brasa_graph::Sizes;
use brasa_graph::device::ProgramLimits;

use crate::Isa;
use crate::arena::ELEMENT_BYTES;
use crate::linear::{Arithmetic, WeightClass, WeightClasses};
use crate::slot::{Access, Operand, Place, Places, Slot};

use super::Table;

/// Every class of weights, in the order of their names in a description.
const CLASSES: [WeightClass; 3] = [WeightClass::Quantised, WeightClass::Float16, WeightClass::Full];

/// Prints a table: each operation, its operands with the bytes of the arena where they begin, and the arithmetic of
/// its products by number of rows.
///
/// ```text
/// program: 36864 bytes for steps of at most 8 rows
///   linear blk.0.ffn_down    int8; 48 rows and more: bf16 tiles
///     x       @ 0, 8 × 512
///     w       blk.0.ffn_down
///     out  ←  @ 16384, 8 × 128
/// ```
pub(crate) fn describe(table: &Table, limits: &ProgramLimits, isa: Isa) -> String {
    let sizes = Sizes::at_most(limits);
    let places = Places { sizes: &sizes, offsets: &table.offsets };
    let name = |weight: usize| table.weights[weight].as_str();
    let mut out = format!(
        "program: {} bytes for steps of at most {} rows\n",
        table.arena_elements * ELEMENT_BYTES,
        limits.max_rows
    );
    for (input, slot) in &table.inputs {
        let _ = writeln!(out, "  {input:?} {}", arena(slot, &places));
    }
    for entry in &table.ops {
        let arithmetic = arithmetic(entry.op.products(), isa, limits.max_rows);
        let _ = writeln!(out, "  {}{arithmetic}", entry.label);
        for Operand { name: operand, access, place } in &entry.operands {
            let arrow = if *access == Access::Write { "←" } else { " " };
            let place = match place {
                Place::Arena(slot) => arena(slot, &places),
                Place::Floats(view) => name(view.weight).to_owned(),
                Place::Packed(weight) => name(*weight).to_owned(),
                Place::Cache(group, place) => format!("cache {place} of group {group}"),
                Place::State(state) => format!("state {}", state.0),
            };
            let _ = writeln!(out, "    {operand:<10} {arrow} {place}");
        }
    }
    for output in &table.outputs {
        let _ = writeln!(out, "  returns {}", arena(output, &places));
    }
    out
}

/// `@ 1024, 8 × 64`, and the distance of rows if they are not dense.
fn arena(slot: &Slot, places: &Places<'_>) -> String {
    let region = slot.region(places);
    let dense = region.stride == region.width || region.rows <= 1;
    let stride = if dense { String::new() } else { format!(" of {}", region.stride) };
    format!("@ {}, {} × {}{stride}", region.offset * ELEMENT_BYTES, region.rows, region.width)
}

/// The arithmetic of products with weights of these classes, for one row and wherever more rows change it.
fn arithmetic(classes: WeightClasses, isa: Isa, max_rows: usize) -> String {
    let mut out = String::new();
    let mut last = Vec::new();
    for rows in 1..=max_rows {
        let classes = CLASSES.into_iter().filter(|class| classes.has(*class));
        let mut kinds: Vec<Arithmetic> = classes.map(|class| Arithmetic::of(isa, class, rows)).collect();
        kinds.dedup();
        if kinds != last {
            let names: Vec<_> = kinds.iter().map(|kind| kind.name()).collect();
            let from = if rows == 1 { String::from("   ") } else { format!("; {rows} rows and more: ") };
            let _ = write!(out, "{from}{}", names.join(" + "));
            last = kinds;
        }
    }
    out
}
