//! The contract that devices implement: weights, KV pages, programs.
//!
//! Errors are values, never panics; a device that is not there is *unavailable with a reason*.

use std::any::Any;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::Duration;

use crate::chain::{self, Chain, Finish};
use crate::learn::Learner;
use crate::output::Outputs;
use crate::sampling::{DrawRules, SamplingError};
use crate::step::{PageId, Step};
use crate::{CacheGroup, Graph, GroupId, Op, StateLayout, Weight};

/// A device that runs graphs.
pub trait Backend: Send + Sync {
    /// Name and abilities of the device, for people.
    fn info(&self) -> DeviceInfo;

    /// Limits of the device, known before anything is uploaded. The default implementation sets no limits.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    /// Free bytes of the device's memory; `None` if the device does not tell.
    fn free_bytes(&self) -> Option<u64> {
        None
    }

    /// Bytes of device memory in use by weights, pages and programs of this backend; `None` if the backend does not count them.
    fn memory_use(&self) -> Option<MemoryUse> {
        None
    }

    /// An empty set of weights that are multiplied with `precision`.
    fn weight_set(&self, precision: Precision) -> Arc<dyn WeightSet>;

    /// A set of the weights of `graph`: [`weight_set`](Self::weight_set), then [`WeightSet::add`].
    ///
    /// # Errors
    ///
    /// Errors of [`WeightSet::add`].
    fn upload(
        &self,
        graph: &Graph,
        precision: Precision,
        progress: &mut dyn FnMut(UploadProgress) -> ControlFlow<()>,
    ) -> Result<Arc<dyn WeightSet>, DeviceError> {
        let weights = self.weight_set(precision);
        weights.add(graph, progress)?;
        Ok(weights)
    }

    /// Approximate bytes of the weights of `graph` on the device: their size in the checkpoint, unless the device stores them in
    /// another form.
    fn weight_bytes(&self, graph: &Graph) -> u64 {
        graph.weights().iter().map(|weight| weight.stored_bytes()).sum()
    }

    /// Bytes of device memory that the weights of `graph` take in an empty set, and bytes of a program's arena. As much is allocated by
    /// [`WeightSet::add`] and [`compile`](Self::compile); `measure` allocates nothing and decodes no matrix, so models that do not
    /// fit are measured too.
    ///
    /// The default implementation is for devices without an arena: it counts the weights as the checkpoint stores them.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Unsupported`] for what [`compile`](Self::compile) would refuse.
    fn measure(
        &self,
        graph: &Arc<Graph>,
        precision: Precision,
        spec: ProgramSpec,
    ) -> Result<Measure, DeviceError> {
        let _ = (precision, spec);
        Ok(Measure { weight_bytes: self.weight_bytes(graph), arena_bytes: 0 })
    }

    /// Makes an empty pool of KV pages.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Unsupported`] if the device does not support the element type.
    fn kv_pool(&self, spec: KvPoolSpec) -> Result<Box<dyn KvPool>, DeviceError>;

    /// Compiles `graph`. Its weights must have been added to `weights`.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Unsupported`], [`DeviceError::OutOfMemory`].
    fn compile(
        &self,
        graph: Arc<Graph>,
        weights: Arc<dyn WeightSet>,
        spec: ProgramSpec,
    ) -> Result<Box<dyn Program>, DeviceError>;
}

/// Device memory that a model takes, keys and values apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measure {
    /// Bytes of the weights, in all forms in which the device keeps them.
    pub weight_bytes: u64,
    /// Bytes of a program's arena, as [`Program::arena_bytes`] counts them before the first step.
    pub arena_bytes: u64,
}

/// Device memory in use by a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    /// Bytes in use now.
    pub held_bytes: u64,
    /// Most bytes in use at one time since the backend was made.
    pub most_held_bytes: u64,
}

/// Name and abilities of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Short name, e.g. `cpu`.
    pub name: String,
    /// For people: model, instruction sets, threads.
    pub description: String,
    /// Threads of this process that compute.
    pub threads: usize,
    /// Memory of the device, if known.
    pub memory_bytes: Option<u64>,
    /// Rows of a prompt that the device computes efficiently at once.
    pub prompt_rows: usize,
    /// Texts that the device decodes efficiently at once. More texts make each answer slower and their total hardly faster.
    pub decode_rows: usize,
}

/// Limits of a device. The device refuses graphs and pools beyond them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Element types of keys and values that the device's pools can store.
    pub kv_types: &'static [KvType],
    /// Most elements of an attention head; `None` for no limit.
    pub widest_head: Option<usize>,
    /// Most experts that a router chooses from; `None` for no limit.
    pub most_experts: Option<usize>,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self { kv_types: KvType::ALL, widest_head: None, most_experts: None }
    }
}

impl Capabilities {
    /// Checks `graph` against these limits, with keys and values of type `dtype`.
    ///
    /// The check needs no uploaded weights. [`Backend::compile`] and [`Backend::kv_pool`] refuse with the same words,
    /// but later; they may also refuse for reasons that are not limits.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Unsupported`], naming `device` and the limit.
    pub fn check(&self, device: &str, graph: &Graph, dtype: KvType) -> Result<(), DeviceError> {
        let refuse = |what: String| Err(DeviceError::Unsupported { device: device.into(), what });
        if !self.kv_types.contains(&dtype) && !graph.cache_groups().is_empty() {
            return refuse(format!("keys and values of type {dtype:?}"));
        }
        for node in graph.nodes() {
            let width = || node.inputs.first().and_then(|&input| graph.value(input).shape.width());
            match (&node.op, width()) {
                (Op::Attention(_), Some(width)) => self.check_head(width).or_else(refuse)?,
                (Op::RouterTopK(_), Some(experts)) => self.check_experts(experts).or_else(refuse)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Checks the number of elements of an attention head against [`widest_head`](Self::widest_head).
    ///
    /// # Errors
    ///
    /// The number and the limit, as text for [`DeviceError::Unsupported`].
    pub fn check_head(&self, elements: usize) -> Result<(), String> {
        match self.widest_head {
            Some(most) if elements > most => Err(format!("heads of {elements}, at most {most}")),
            _ => Ok(()),
        }
    }

    /// Checks the number of experts that a router chooses from against [`most_experts`](Self::most_experts).
    ///
    /// # Errors
    ///
    /// The number and the limit, as text for [`DeviceError::Unsupported`].
    pub fn check_experts(&self, experts: usize) -> Result<(), String> {
        match self.most_experts {
            Some(most) if experts > most => Err(format!("{experts} experts, at most {most}")),
            _ => Ok(()),
        }
    }
}

/// How exactly a program computes.
///
/// A `match` over this enum is exhaustive on purpose: every device has to handle each precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Precision {
    /// The device's fastest arithmetic within its bounds: int8 activations for quantised weights on a CPU.
    #[default]
    Fast,
    /// f32 activations, weights decoded exactly.
    Reference,
}

/// How far an upload has come.
#[derive(Clone, Copy, Debug)]
pub struct UploadProgress {
    /// Stored bytes that are ready.
    pub done_bytes: u64,
    /// Stored bytes in all.
    pub total_bytes: u64,
}

/// Weights on one device, uploaded and repacked once and shared by programs.
///
/// Weights are told apart by identity: graphs that share a weight by [`Arc`] share its upload.
pub trait WeightSet: Send + Sync {
    /// Uploads and repacks the weights of `graph` that are not there yet.
    ///
    /// `progress` is called as weights become ready, and may cancel. It counts the bytes of this call only.
    ///
    /// # Errors
    ///
    /// [`DeviceError::OutOfMemory`], [`DeviceError::Cancelled`], [`DeviceError::Unsupported`]; weights that were already uploaded
    /// stay.
    fn add(
        &self,
        graph: &Graph,
        progress: &mut dyn FnMut(UploadProgress) -> ControlFlow<()>,
    ) -> Result<(), DeviceError>;

    /// The elements of a weight, `[rows, row_len]`, decoded exactly to f32.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Unsupported`] for a weight that was not added, [`DeviceError::OutOfMemory`].
    fn read(&self, weight: &Arc<Weight>) -> Result<Vec<f32>, DeviceError>;

    /// Writes a weight's elements, `[rows, row_len]`, rounded to its stored formats. Programs see them from their next step on.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Unsupported`] for a weight that was not added or is quantised, and for another number of elements;
    /// [`DeviceError::OutOfMemory`]. The weight is unchanged then.
    fn write(&self, weight: &Arc<Weight>, values: &[f32]) -> Result<(), DeviceError>;

    /// Bytes of the set's weights on the device.
    fn size_bytes(&self) -> u64;

    /// Converts the set to its own type, for the device that made it.
    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;
}

/// Element type of cached keys and values.
///
/// A `match` over this enum is exhaustive on purpose: a new type does not compile until every device reads and writes it, or
/// refuses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum KvType {
    /// 32-bit float.
    F32,
    /// IEEE half.
    #[default]
    F16,
    /// bfloat16.
    BF16,
    /// int8 with a scale per 32 elements of a head (the last may have fewer): `scale = max|x|/127`, rounded to f16, and codes
    /// `round(x · 127/max|x|)`, half away from zero, which stand for `scale · code`.
    Q8,
}

impl KvType {
    /// Every type, the most exact first.
    pub const ALL: &[Self] = &[Self::F32, Self::F16, Self::BF16, Self::Q8];
}

/// The contents of a [`KvPool`]: cache groups, the element type of keys and values, and recurrent states.
#[derive(Clone, Debug)]
pub struct KvPoolSpec {
    /// Cache groups of the graph, in order.
    pub groups: Vec<CacheGroup>,
    /// Element type.
    pub dtype: KvType,
    /// Layout of the graph's recurrent states, which are always f32.
    pub states: StateLayout,
}

impl KvPoolSpec {
    /// The specification of a pool for the caches and states of `graph`, with keys and values of type `dtype`.
    pub fn of(graph: &Graph, dtype: KvType) -> Self {
        Self { groups: graph.cache_groups(), dtype, states: graph.state_layout() }
    }

    /// The specification of a pool for a graph that has neither caches nor states.
    pub fn empty() -> Self {
        Self { groups: Vec::new(), dtype: KvType::F32, states: StateLayout::default() }
    }
}

/// Device memory of sequences: pages of keys and values for each cache group, and pages of recurrent states.
///
/// The engine decides which sequence holds which page.
pub trait KvPool: Send {
    /// The specification that the pool was made with.
    fn spec(&self) -> &KvPoolSpec;

    /// Pages that exist in `group`; 0 for a group that does not exist.
    fn capacity(&self, group: GroupId) -> usize;

    /// Grows `group` to at least `pages` pages; existing pages keep their contents.
    ///
    /// # Errors
    ///
    /// [`DeviceError::OutOfMemory`], [`DeviceError::UnknownGroup`]. Nothing has changed then.
    fn reserve(&mut self, group: GroupId, pages: usize) -> Result<(), DeviceError>;

    /// Bytes that one page of `group` takes on this device, the padding of its layout included; 0 for a group that does not
    /// exist.
    fn page_bytes(&self, group: GroupId) -> u64;

    /// Fetches `bytes` of a page's memory, for devices where memory comes with the first write and a step would wait for it. The
    /// page's contents do not change. Returns false if nothing is left to fetch.
    fn prefault(&mut self, _group: GroupId, _page: PageId, _bytes: Range<u64>) -> bool {
        false
    }

    /// Copies the first `positions` positions of a page within a group, all of them if the page has fewer (copy-on-write of a
    /// shared partial page). Later positions of `to` are unspecified: they keep their contents or get those of `from`.
    ///
    /// # Errors
    ///
    /// [`DeviceError::UnknownGroup`], [`DeviceError::UnknownPage`]: nothing was copied. [`DeviceError::Lost`].
    fn copy_page(
        &mut self,
        group: GroupId,
        from: PageId,
        to: PageId,
        positions: usize,
    ) -> Result<(), DeviceError>;

    /// Copies a page to `bytes`, in the [canonical layout](mod@crate::page).
    ///
    /// # Errors
    ///
    /// [`DeviceError::UnknownGroup`], [`DeviceError::UnknownPage`], [`DeviceError::PageBytes`]: nothing was copied.
    /// [`DeviceError::Lost`].
    fn read_page(&self, group: GroupId, page: PageId, bytes: &mut [u8]) -> Result<(), DeviceError>;

    /// Overwrites a page with `bytes`, in the [canonical layout](mod@crate::page).
    ///
    /// # Errors
    ///
    /// [`DeviceError::UnknownGroup`], [`DeviceError::UnknownPage`], [`DeviceError::PageBytes`]: nothing was written.
    /// [`DeviceError::Lost`].
    fn write_page(&mut self, group: GroupId, page: PageId, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Number of state pages that exist.
    fn state_capacity(&self) -> usize;

    /// Grows the number of state pages to at least `pages`; existing pages keep their contents.
    ///
    /// # Errors
    ///
    /// [`DeviceError::OutOfMemory`]. Nothing has changed then.
    fn reserve_states(&mut self, pages: usize) -> Result<(), DeviceError>;

    /// Bytes that one state page takes on this device; 0 for a graph without recurrent states.
    fn state_bytes(&self) -> u64;

    /// Copies a state page to `bytes`, in the layout of the pool's [`StateLayout`], as little-endian f32.
    ///
    /// # Errors
    ///
    /// [`DeviceError::UnknownState`], [`DeviceError::StateBytes`]: nothing was copied. [`DeviceError::Lost`].
    fn read_state(&self, page: PageId, bytes: &mut [u8]) -> Result<(), DeviceError>;

    /// Overwrites a state page with `bytes`, in the layout of the pool's [`StateLayout`], as little-endian f32.
    ///
    /// # Errors
    ///
    /// [`DeviceError::UnknownState`], [`DeviceError::StateBytes`]: nothing was written. [`DeviceError::Lost`].
    fn write_state(&mut self, page: PageId, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Bytes that all pages of all groups and all state pages take on this device.
    fn size_bytes(&self) -> u64 {
        let groups = (0..self.spec().groups.len()).map(|group| GroupId(group as u32));
        let kv: u64 =
            groups.map(|group| self.page_bytes(group).saturating_mul(self.capacity(group) as u64)).sum();
        kv.saturating_add(self.state_bytes().saturating_mul(self.state_capacity() as u64))
    }

    /// The pool as its own type, for the device that made it.
    fn as_any_mut(&mut self) -> &mut dyn Any;
}

/// The largest step that a program must run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramLimits {
    /// Rows of a step.
    pub max_rows: usize,
    /// Rows with logits.
    pub max_outs: usize,
    /// Sequences in a step.
    pub max_segments: usize,
}

impl Default for ProgramLimits {
    fn default() -> Self {
        Self { max_rows: 512, max_outs: 256, max_segments: 64 }
    }
}

/// The steps that a program is compiled for. A device chooses kernels by it once, when it compiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramSpec {
    /// The largest step.
    pub limits: ProgramLimits,
    /// Element type of the pools that steps bring. Of no importance for a graph without caches.
    pub kv_type: KvType,
}

impl ProgramLimits {
    /// The spec of a program for steps within these limits, with keys and values of type `kv_type`.
    pub fn with(self, kv_type: KvType) -> ProgramSpec {
        ProgramSpec { limits: self, kv_type }
    }
}

/// The spec of a program without caches, or with keys and values in f16.
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
    /// and perhaps more, as the error's [`LostPart`] says.
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
    fn spare_states(&self) -> usize {
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
    /// Wall time.
    pub time: Duration,
    /// Bytes read: of weights, as the checkpoint stores them, and of caches; each counted once.
    pub bytes: u64,
    /// Floating-point (or integer) operations.
    pub flops: u64,
}

/// How much a failed device has [lost](DeviceError::Lost), and so what has to be made again.
///
/// Variants are in ascending order: each one includes the losses before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LostPart {
    /// The call's own work: the program, if a step failed, else the upload or the copy of a page. The backend's
    /// weights, pools and other programs stay usable, except the pages that the call was writing.
    /// [Compile](Backend::compile) another program, or upload or copy again.
    Program,
    /// Everything that the backend made: weights, pools with their pages, and programs. Make another backend of the
    /// same device; then upload, reserve and compile again.
    Context,
    /// The device itself, for the rest of this process: no other backend of it can be made. A new process may be able
    /// to use it.
    Device,
}

/// Errors of a device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The device cannot be used here.
    #[error("device {device} is unavailable: {reason}")]
    Unavailable {
        /// Name of the device.
        device: String,
        /// The reason why it cannot be used.
        reason: String,
    },
    /// The device has no such operation, type or geometry.
    #[error("{device} does not support {what}")]
    Unsupported {
        /// Name of the device.
        device: String,
        /// The operation, type or geometry that is not supported.
        what: String,
    },
    /// The device has too little memory.
    #[error("out of memory: {bytes} bytes for {what}")]
    OutOfMemory {
        /// Bytes that were requested.
        bytes: u64,
        /// Purpose of the bytes.
        what: String,
    },
    /// A step is larger than the program's limits.
    #[error("step has {found} {what}, at most {limit} fit")]
    StepTooLarge {
        /// Name of the quantity that is too large: rows, logit rows or sequences.
        what: &'static str,
        /// Number in the step.
        found: usize,
        /// Largest number that the program runs.
        limit: usize,
    },
    /// A step contradicts the program or the pool: a token outside the vocabulary, a missing page.
    #[error("step cannot run: {what}")]
    BadStep {
        /// The reason, as a sentence for people.
        what: String,
    },
    /// The pool has no cache group of this number.
    #[error("there is no cache group {group}: the KV pool has {groups}")]
    UnknownGroup {
        /// Number of the group.
        group: u32,
        /// Number of groups that the pool has.
        groups: usize,
    },
    /// The group has no such page.
    #[error("there is no KV page {page} in cache group {group}, which has {pages}")]
    UnknownPage {
        /// Number of the page's group.
        group: u32,
        /// Number of the page, counted from 0.
        page: usize,
        /// Number of pages that the group has.
        pages: usize,
    },
    /// The number of bytes for a page is not the size of a page.
    #[error("{found} bytes for a KV page of cache group {group}, expected {expected}")]
    PageBytes {
        /// Number of the group.
        group: u32,
        /// Number of bytes that were given.
        found: usize,
        /// Bytes of a page in the canonical layout.
        expected: usize,
    },
    /// The pool has no such state page.
    #[error("there is no state page {page}: the pool has {pages}")]
    UnknownState {
        /// Number of the page, counted from 0.
        page: usize,
        /// Number of state pages that the pool has.
        pages: usize,
    },
    /// The number of bytes for a state page is not the size of a state page.
    #[error("{found} bytes for a state page, expected {expected}")]
    StateBytes {
        /// Number of bytes that were given.
        found: usize,
        /// Bytes of a state page.
        expected: usize,
    },
    /// The caller cancelled the operation.
    #[error("cancelled")]
    Cancelled,
    /// The device failed and does not recover. Every later call that needs a lost part fails with the same error.
    #[error("device {device} failed: {reason}")]
    Lost {
        /// Name of the device.
        device: String,
        /// How much is lost, and so what has to be made again.
        what: LostPart,
        /// A description by the device or its driver.
        reason: String,
    },
}

impl DeviceError {
    /// The error for a weight that was not added to the set.
    pub fn not_added(device: &str, weight: &Weight) -> Self {
        Self::Unsupported {
            device: device.into(),
            what: format!("{}, a weight that was not added to this set", weight.name),
        }
    }
}
