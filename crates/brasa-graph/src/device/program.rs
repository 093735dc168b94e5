//! A compiled graph: its limits, and the calls that run steps.

use std::time::Duration;

use super::error::DeviceError;
use super::pool::{KvPool, KvType};
use crate::chain::{self, Chain, Finish};
use crate::learn::Learner;
use crate::output::Outputs;
use crate::sampling::{DrawRules, SamplingError};
use crate::step::{PageId, Step};

/// The largest step that a program must run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramLimits {
    /// Most rows of a step.
    pub max_rows: usize,
    /// Most rows of a step that have outputs: logits or hidden states.
    pub max_outs: usize,
    /// Most segments of a step: rows of one sequence each.
    pub max_segments: usize,
}

impl Default for ProgramLimits {
    fn default() -> Self {
        Self { max_rows: 512, max_outs: 256, max_segments: 64 }
    }
}

/// The steps that a program is compiled for. The device chooses kernels for them once, when it compiles the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramSpec {
    /// The largest step.
    pub limits: ProgramLimits,
    /// Element type of keys and values in the KV pool of every step. Ignored for a graph without caches.
    pub kv_type: KvType,
}

impl ProgramLimits {
    /// The spec of a program for steps within these limits, with keys and values of type `kv_type`.
    pub fn with(self, kv_type: KvType) -> ProgramSpec {
        ProgramSpec { limits: self, kv_type }
    }
}

/// The limits, with keys and values in f16. A program without caches ignores their type.
impl From<ProgramLimits> for ProgramSpec {
    fn from(limits: ProgramLimits) -> Self {
        limits.with(KvType::F16)
    }
}

/// Inputs of a row's draw, besides its logits.
#[derive(Clone, Copy, Debug)]
pub struct DrawInputs<'a> {
    /// Rules of the draw. If they [report on the logits](crate::sampling::SamplingParams::reports_logits), the device draws
    /// nothing, and the row's logits come to the host.
    pub rules: &'a DrawRules,
    /// Position of the token to draw; selects the noise.
    pub position: u32,
    /// All tokens before the drawn one.
    pub history: &'a [u32],
    /// True if a [mask](FillMask) restricts the tokens.
    pub masked: bool,
}

/// The outcome of a draw on the device, for one row of logits.
#[derive(Clone, Debug, PartialEq)]
pub enum Drawn {
    /// The drawn token.
    Token(u32),
    /// The row's logits, `[vocab_size]`, because the row's rules report on them.
    Logits(Vec<f32>),
    /// The device drew no token. The host has to draw one, or to report why there is none.
    Nothing,
}

/// Writes the mask of the draw with the given number, as [`TokenMask::fill`](crate::sampling::TokenMask::fill) does.
pub type FillMask<'a> = dyn FnMut(usize, &mut [u32]) -> Result<(), SamplingError> + 'a;

/// A compiled graph: a flat table of operations over one arena, replayed step by step.
pub trait Program: Send {
    /// The largest step that the program runs.
    fn limits(&self) -> ProgramLimits;

    /// Bytes of the program's arena.
    fn arena_bytes(&self) -> u64;

    /// The compiled program as text for people: its operations in order, and the places of its values. Empty if the device compiles
    /// nothing.
    fn describe(&self) -> String {
        String::new()
    }

    /// Runs one step; returns the graph's outputs. Outputs of `Outs` rows have one row for each row with outputs, in the order of
    /// the step.
    ///
    /// Blocks until the device is done. The outputs stay valid until the next call.
    ///
    /// # Errors
    ///
    /// [`DeviceError::StepTooLarge`], [`DeviceError::BadStep`]: nothing was written. [`DeviceError::Lost`]: the program is lost,
    /// and perhaps more, as the error's [`LostPart`](super::LostPart) says.
    fn run(&mut self, step: &Step, pool: &mut dyn KvPool) -> Result<Outputs<'_>, DeviceError>;

    /// The program's interface for learning on the device, with its first output as the loss; `None` if the host updates values.
    fn learner(&mut self) -> Option<&mut dyn Learner> {
        None
    }

    /// Runs a step and draws the token of each row that asks for logits, in order, from `draws`. Returns `None`, without running
    /// the step, if this device leaves drawing to the host.
    ///
    /// `fill` is called once for the mask of each draw that has one, while the step runs. A draw with a mask that cannot be
    /// filled gets [`Drawn::Nothing`].
    ///
    /// Tokens equal those of [`Sampler::draw`](crate::sampling::Sampler::draw), up to the rounding of the device's logarithm.
    ///
    /// # Errors
    ///
    /// Errors of [`run`](Self::run).
    fn run_drawn(
        &mut self,
        step: &Step,
        pool: &mut dyn KvPool,
        draws: &[DrawInputs<'_>],
        fill: &mut FillMask<'_>,
    ) -> Result<Option<Vec<Drawn>>, DeviceError> {
        let _ = (step, pool, draws, fill);
        Ok(None)
    }

    /// Most tokens of a row in one chain. `masked` is true if a row of the chain has a mask. A device that cannot call the host
    /// in the middle of a chain then returns 1.
    fn max_chain(&self, masked: bool) -> usize {
        let _ = masked;
        chain::STEPWISE_TOKENS
    }

    /// Decodes the segments that ask for the logits of their last row: runs `step`, draws a token for each, and goes on with the
    /// drawn tokens until every row has ended (see [`chain`](mod@crate::chain)).
    ///
    /// The sink receives the tokens of a row in order. Its answer may take effect late; tokens that the device drew meanwhile are
    /// thrown away. Segments that ask for no logits take part in the first step only. Tokens equal those of as many calls of
    /// [`run`](Self::run) and [`Sampler::draw`](crate::sampling::Sampler::draw), bit for bit where the device does not
    /// [draw](Self::run_drawn) by itself. `step` is used up. A chain without segments ends at once.
    ///
    /// # Errors
    ///
    /// Errors of [`run`](Self::run). The cache is then as before the chain. Tokens that the sink has received stay valid and in
    /// their histories, and are still to be computed.
    fn run_chain(
        &mut self,
        step: &mut Step,
        pool: &mut dyn KvPool,
        chain: Chain<'_, '_>,
    ) -> Result<Finish, DeviceError> {
        chain::stepwise(self, step, pool, chain)
    }

    /// Number of [spare state pages](crate::StatePages::spares) that each segment of a chain should bring: the number
    /// of steps that the device runs ahead of the caller's answers, at least 1.
    fn spare_state_pages(&self) -> usize {
        1
    }

    /// Whether [`shift`](Self::shift) can move the keys of `pool`.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Unsupported`], naming the part of the graph or the pool that forbids it (see [`shift`](mod@crate::shift)).
    fn check_shift(&self, _: &dyn KvPool) -> Result<(), DeviceError> {
        Err(DeviceError::Unsupported { device: "this device".into(), what: "a context shift".into() })
    }

    /// Moves the keys of whole pages, given by cache group, `by` positions ahead, so that a text that lost pages continues with
    /// the pages after them. The pages must belong to one text alone.
    ///
    /// # Errors
    ///
    /// Errors of [`check_shift`](Self::check_shift), and [`DeviceError::BadStep`] for pages that do not exist. No key has moved
    /// then.
    fn shift(&mut self, pool: &mut dyn KvPool, _pages: &[Vec<PageId>], _by: i32) -> Result<(), DeviceError> {
        self.check_shift(pool)
    }

    /// Runs one step and returns the time of each operation.
    ///
    /// # Errors
    ///
    /// Errors of [`run`](Self::run).
    fn profile(&mut self, step: &Step, pool: &mut dyn KvPool) -> Result<Vec<OpTime>, DeviceError>;
}

/// Time of one operation of a step.
#[derive(Clone, Debug)]
pub struct OpTime {
    /// The operation and its weight, e.g. `linear layers.3.qkv`.
    pub label: String,
    /// Wall time of the operation.
    pub time: Duration,
    /// Bytes read: of weights, as the checkpoint stores them, and of caches; each counted once.
    pub bytes: u64,
    /// Floating-point (or integer) operations.
    pub flops: u64,
}
