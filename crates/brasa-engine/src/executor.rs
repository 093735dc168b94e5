//! Runs steps over sequences: manages the pages that a program works on, and checks the steps.

use std::sync::Arc;

use brasa_graph::device::{DeviceError, Program};
use brasa_graph::sampling::Sampler;
use brasa_graph::step::Step;

use crate::kv::KvStore;
use crate::{AdapterRows, EngineError};

mod chains;
mod compose;
mod drafted;
mod failure;
mod pages;
mod parts;
mod steps;

pub use failure::StepError;
use failure::check;
pub use parts::{Reads, SequenceChain, SequenceRows, StepOut};

/// Compiles a program on the engine's thread, when it is first needed.
pub type MakeProgram = Box<dyn FnMut() -> Result<Box<dyn Program>, DeviceError> + Send>;

/// Runs steps over sequences. The engine's thread has one; [`Engine::with`](crate::Engine::with) lends it out.
pub struct Executor {
    program: Box<dyn Program>,
    hidden: Hidden,
    adapter_rows: Option<Arc<AdapterRows>>,
    store: KvStore,
    context: usize,
    vocab_size: usize,
    step: Step,
    sampler: Sampler,
    /// Sequences that are being read or written outside the engine, whose pages cannot give way.
    lent: usize,
}

/// The program that returns hidden states.
enum Hidden {
    None,
    Unmade(MakeProgram),
    Made(Box<dyn Program>),
}

impl Executor {
    pub(crate) fn new(
        program: Box<dyn Program>,
        hidden: Option<MakeProgram>,
        adapter_rows: Option<Arc<AdapterRows>>,
        store: KvStore,
        context: usize,
        vocab_size: usize,
    ) -> Self {
        let (step, sampler) = (Step::default(), Sampler::default());
        let hidden = hidden.map_or(Hidden::None, Hidden::Unmade);
        Self { program, hidden, adapter_rows, store, context, vocab_size, step, sampler, lent: 0 }
    }

    /// Exchanges the programs and the order of adapters in rows; returns the old programs.
    ///
    /// # Errors
    ///
    /// [`EngineError::Options`] for a program with other limits: nothing changed.
    pub(crate) fn replace(
        &mut self,
        program: Box<dyn Program>,
        hidden: Option<MakeProgram>,
        bank: Vec<u64>,
    ) -> Result<impl Send + 'static + use<>, EngineError> {
        let (found, expected) = (program.limits(), self.program.limits());
        if found != expected {
            return Err(EngineError::Options(format!("a program for {found:?}, expected {expected:?}")));
        }
        if let Some(rows) = &self.adapter_rows {
            rows.lay_out(bank);
        }
        let hidden = std::mem::replace(&mut self.hidden, hidden.map_or(Hidden::None, Hidden::Unmade));
        Ok((std::mem::replace(&mut self.program, program), hidden))
    }

    /// Positions that a sequence may have.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Number of token ids of the model: the width of the logits.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Most rows of a step.
    pub fn max_rows(&self) -> usize {
        self.program.limits().max_rows
    }

    /// Most rows of a step that can have outputs.
    pub fn max_outs(&self) -> usize {
        self.program.limits().max_outs
    }

    /// Most sequences in a step.
    pub fn max_segments(&self) -> usize {
        self.program.limits().max_segments
    }

    /// Most tokens that a chain draws for a sequence. `masked` is true if a sequence of the chain has a mask.
    pub fn max_chain(&self, masked: bool) -> usize {
        self.program.max_chain(masked)
    }

    /// Bytes on the device of all KV pages and of the programs' arenas. Weights are not counted.
    pub fn memory_bytes(&self) -> u64 {
        let hidden = if let Hidden::Made(program) = &self.hidden { program.arena_bytes() } else { 0 };
        self.store.size_bytes() + self.program.arena_bytes() + hidden
    }
}

/// The program that returns hidden states; compiled when first needed.
///
/// # Errors
///
/// [`EngineError::Device`] if the program cannot be compiled, [`EngineError::Options`] if the engine was started without one.
fn made(hidden: &mut Hidden) -> Result<&mut dyn Program, EngineError> {
    if let Hidden::Unmade(make) = hidden {
        *hidden = Hidden::Made(make()?);
    }
    match hidden {
        Hidden::Made(program) => Ok(&mut **program),
        _ => Err(EngineError::Options("this engine has no program for hidden states".into())),
    }
}
