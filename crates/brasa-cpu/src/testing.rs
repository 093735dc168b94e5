//! A program that can be broken, for the tests of this crate. Not part of its interface.
//!
//! The tests are in the suite and not beside the program: whatever runs a program compiles every kernel, and the crate's unit
//! tests would compile all of them once more.

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::slot::Places;
use brasa_graph::device::{Precision, Program, ProgramLimits, WeightSet};
use brasa_graph::{Graph, Sizes};

use crate::compile::PATTERNS;
use crate::ops::CompiledOp;
use crate::program::CpuProgram;
use crate::weights::CpuWeightSet;
use crate::{Isa, Team};

/// A program whose table can be made to point outside its arena.
#[derive(Debug)]
pub struct BreakableProgram(CpuProgram);

impl BreakableProgram {
    /// Compiles `graph` in fast precision for `threads` threads.
    ///
    /// # Panics
    ///
    /// If the graph cannot be compiled.
    pub fn new(graph: &Graph, limits: ProgramLimits, threads: usize) -> Self {
        let team = Arc::new(Team::new(threads).expect("threads"));
        let set = Arc::new(CpuWeightSet::new(Precision::Fast, Arc::clone(&team)));
        set.add(graph, &mut |_| ControlFlow::Continue(())).expect("the device takes every weight");
        let weights = set.weights_of(graph).expect("every weight was added");
        let isa = Isa::detect().expect("an instruction set");
        let program = CpuProgram::new(graph, weights, limits.into(), PATTERNS, isa, team);
        Self(program.expect("the device runs every graph"))
    }

    /// The program.
    pub fn program(&mut self) -> &mut dyn Program {
        &mut self.0
    }

    /// Elements between rows, elements of a row, and rows of the output of a step of `rows` rows, as the table says.
    pub fn output(&mut self, rows: usize) -> [usize; 3] {
        let table = self.0.table_mut();
        let sizes = Sizes { rows, ..Sizes::default() };
        let region = table.outputs[0].region(&Places { sizes: &sizes, offsets: &table.offsets });
        [region.stride, region.width, region.rows]
    }

    /// Lets every product write outside the arena: a bug of this crate.
    ///
    /// # Panics
    ///
    /// If the program has no product.
    pub fn break_products(&mut self) {
        let mut broken = 0;
        for entry in &mut self.0.table_mut().ops {
            if let CompiledOp::Linear(op) = &mut entry.op {
                op.layers[0].out.offset = 1 << 40;
                broken += 1;
            }
        }
        assert!(broken > 0, "no product in {:?}", self.0);
    }
}
