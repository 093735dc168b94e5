//! A step in device memory: its numbers, its segments, its pages.
//!
//! Everything is laid out in page-locked host memory and copied in one piece. The memory is kept from step to step.
#![expect(unsafe_code, reason = "copies to device memory")]

use std::sync::Arc;

use brasa_graph::device::DeviceError;
use brasa_graph::step::{GivenValues, Segment, Step};
use brasa_graph::{DraftTree, GivenId, Input, Sizes};

use crate::driver::{DeviceMemory, PinnedMemory};
use crate::gpu::Gpu;
use crate::kv::CudaKvPool;
use crate::params::{CachePages, Ptr, SegmentRows, StatePlaces, StepRows, TreeRow};

/// The step that is being run.
#[derive(Debug)]
pub(crate) struct StepState {
    pub sizes: Sizes,
    /// Rows that the step gives in place of their tokens' embeddings: the first row's number, `[rows, hidden_size]`.
    pub embeddings: Vec<(usize, Arc<[f32]>)>,
    pub segments: Vec<SegmentSizes>,
    host: PinnedMemory,
    device: DeviceMemory,
    /// State pages that the step reads, and those that it writes.
    state_pages_touched: usize,
    /// Bytes before each part of the copy.
    places: Places,
}

/// Facts about a segment that launches need.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentSizes {
    /// Cache index of its first row.
    pub first_index: usize,
    pub rows: usize,
    /// Rows of its memories.
    pub memory_rows: usize,
    pub is_tree: bool,
}

impl SegmentSizes {
    /// True for text of that many rows, each of which sees all before it.
    pub(crate) fn is_long(&self, fewest_rows: usize) -> bool {
        self.rows >= fewest_rows && !self.is_tree
    }
}

/// Bytes before each part of the copy.
#[derive(Debug, Default)]
struct Places {
    inputs: Vec<usize>,
    arrivals: usize,
    row_segments: usize,
    segments: usize,
    tree_rows: usize,
    /// By cache group: starts of block tables, and their entries.
    tables: Vec<(usize, usize)>,
    /// The state pages before each segment and after each row; `None` for a graph without states.
    states: Option<(usize, usize)>,
}

/// Words in which blocks of a launch count each other.
pub(crate) const MOST_ARRIVALS: usize = 1024;

/// The first of [`Places::inputs`], in order. The inputs that a graph declares follow.
const INPUTS: [Input; 3] = [Input::TokenIds, Input::Positions, Input::OutRows];

impl StepState {
    /// No step yet.
    pub(crate) fn new(gpu: &Gpu) -> Result<Self, DeviceError> {
        Ok(Self {
            sizes: Sizes::default(),
            embeddings: Vec::new(),
            segments: Vec::new(),
            host: PinnedMemory::new(&gpu.context, 0).map_err(|error| gpu.error(error))?,
            device: gpu.allocate(0, "a step")?,
            state_pages_touched: 0,
            places: Places::default(),
        })
    }

    /// Takes over a step that has been checked, and queues its copy.
    pub(crate) fn load(&mut self, gpu: &Gpu, step: &Step, pool: &CudaKvPool) -> Result<(), DeviceError> {
        self.sizes = Sizes::of(step);
        self.embeddings.clear();
        self.segments.clear();
        let mut bytes = Layout::default();
        let givens = step.segments.first().map_or(0, |segment| segment.given.len() as u32);
        let inputs = INPUTS.into_iter().chain((0..givens).map(|id| Input::Given(GivenId(id))));
        self.places.inputs.clear();
        self.places.inputs.extend(inputs.map(|input| bytes.part(numbers(step, input))));
        let (mut row_segments, mut segments, mut tree_rows) = (Vec::new(), Vec::new(), Vec::new());
        for (number, segment) in step.segments.iter().enumerate() {
            let first_row = row_segments.len();
            row_segments.extend((0..segment.rows).map(|_| number as u32));
            let described = segment_rows(segment, first_row, tree_rows.len());
            segments.push(described);
            if let Some(tree) = &segment.tree {
                tree_rows.extend((0..tree.rows()).map(|row| tree_row(tree, row)));
            }
            if let Some(given) = &segment.embeddings {
                self.embeddings.push((first_row, Arc::clone(given)));
            }
            self.segments.push(SegmentSizes {
                first_index: segment.first_index,
                rows: segment.rows,
                memory_rows: segment.memory_rows,
                is_tree: segment.tree.is_some(),
            });
        }
        self.places.arrivals = bytes.part(std::iter::repeat_n(0, MOST_ARRIVALS));
        self.places.row_segments = bytes.part(row_segments);
        self.places.segments = bytes.part(segments.iter().flat_map(|segment| {
            let &SegmentRows { first_row, rows, first_index, memory_rows, has_tree, first_tree_row } =
                segment;
            [first_row, rows, first_index, memory_rows, has_tree, first_tree_row]
        }));
        self.places.tree_rows = bytes.long_part(tree_rows.iter().flat_map(|row| {
            let [a, b, c, d] = row.seen;
            [a, b, c, d, u64::from(row.depth)]
        }));
        self.places.tables.clear();
        let groups = step.segments.first().map_or(0, |segment| segment.pages.len());
        for group in 0..groups {
            let (mut starts, mut pages) = (Vec::new(), Vec::new());
            for segment in &step.segments {
                starts.push(pages.len() as u32);
                let table = &segment.pages[group];
                // Behind a window there is no page, and nothing reads its address.
                pages.extend(table.iter().map(|page| page.map_or(0, |page| pool.address(group, page))));
            }
            self.places.tables.push((bytes.part(starts), bytes.long_part(pages)));
        }
        self.places.states = pool.has_states().then(|| {
            let from = step.segments.iter().map(|segment| pool.state_address(segment.states.from));
            let to = step.segments.iter().flat_map(|segment| {
                (0..segment.rows).map(|row| pool.state_address(segment.states.page_after(row)))
            });
            (bytes.long_part(from), bytes.long_part(to))
        });
        self.state_pages_touched = step
            .segments
            .iter()
            .map(|segment| usize::from(segment.states.from.is_some()) + segment.states.to.len())
            .sum();
        self.copy(gpu, &bytes.bytes)
    }

    /// Copies the laid out step, in larger memory where it has outgrown what there is.
    fn copy(&mut self, gpu: &Gpu, bytes: &[u8]) -> Result<(), DeviceError> {
        if bytes.len() > self.device.size_bytes() {
            let size_bytes = bytes.len().next_power_of_two();
            self.host = PinnedMemory::new(&gpu.context, size_bytes).map_err(|error| gpu.error(error))?;
            self.device = gpu.allocate(size_bytes, "a step")?;
        }
        let host = &mut self.host.bytes_mut()[..bytes.len()];
        host.copy_from_slice(bytes);
        // SAFETY: the device's memory is as large as the host's, which is not written again before the run has ended.
        unsafe { gpu.stream.upload(self.device.address(), host) }.map_err(|error| gpu.error(error))
    }

    /// Address of the numbers of `input`.
    pub(crate) fn input(&self, input: Input) -> u64 {
        let number = match input {
            Input::TokenIds => 0,
            Input::Positions => 1,
            Input::OutRows => 2,
            Input::Given(id) => INPUTS.len() + id.0 as usize,
        };
        self.device.address() + self.places.inputs[number] as u64
    }

    /// Facts about the step that kernels read.
    pub(crate) fn rows(&self) -> StepRows {
        let at = |offset: usize| self.device.address() + offset as u64;
        StepRows {
            segments: Ptr::new(at(self.places.segments)),
            row_segments: Ptr::new(at(self.places.row_segments)),
            tree_rows: Ptr::new(at(self.places.tree_rows)),
            rows: self.sizes.rows as u32,
            segments_count: self.sizes.segments as u32,
        }
    }

    /// [`MOST_ARRIVALS`] words that are 0 when the step begins.
    pub(crate) fn arrivals(&self) -> Ptr<u32> {
        Ptr::new(self.device.address() + self.places.arrivals as u64)
    }

    /// The pages of the state that lies that many bytes within a page; no pages for a state that is not kept.
    pub(crate) fn states(&self, offset_bytes: Option<usize>) -> StatePlaces {
        let (Some((from, to)), Some(offset_bytes)) = (self.places.states, offset_bytes) else {
            return StatePlaces { from: Ptr::NONE, to: Ptr::NONE, offset_bytes: 0 };
        };
        let at = |offset: usize| Ptr::new(self.device.address() + offset as u64);
        StatePlaces { from: at(from), to: at(to), offset_bytes: offset_bytes as u64 }
    }

    /// Number of state pages that the step reads or writes.
    pub(crate) fn state_pages_touched(&self) -> usize {
        self.state_pages_touched
    }

    /// Cache number `place` of group `group`.
    pub(crate) fn cache(&self, pool: &CudaKvPool, group: usize, place: usize) -> CachePages {
        let (starts, pages) = self.places.tables[group];
        let at = |offset: usize| self.device.address() + offset as u64;
        pool.cache(group, place, Ptr::new(at(pages)), Ptr::new(at(starts)))
    }
}

/// Parts laid out one after the other.
#[derive(Debug, Default)]
struct Layout {
    bytes: Vec<u8>,
}

impl Layout {
    /// Appends words; returns where they begin.
    fn part(&mut self, words: impl IntoIterator<Item = u32>) -> usize {
        let start = self.begin();
        self.bytes.extend(words.into_iter().flat_map(u32::to_ne_bytes));
        start
    }

    /// Appends words of eight bytes; returns where they begin.
    fn long_part(&mut self, words: impl IntoIterator<Item = u64>) -> usize {
        let start = self.begin();
        self.bytes.extend(words.into_iter().flat_map(u64::to_ne_bytes));
        start
    }

    fn begin(&mut self) -> usize {
        let start = self.bytes.len().next_multiple_of(16);
        self.bytes.resize(start, 0);
        start
    }
}

/// The words of an input of a step: integers, or the bits of floats.
fn numbers(step: &Step, input: Input) -> Vec<u32> {
    let (mut first, mut numbers) = (0, Vec::with_capacity(step.rows()));
    for segment in &step.segments {
        match input {
            Input::TokenIds => numbers.extend(&segment.tokens),
            Input::Positions => numbers.extend((0..segment.rows).map(|row| segment.position(row))),
            Input::OutRows => numbers.extend(segment.out_rows().map(|row| (first + row) as u32)),
            Input::Given(given) => match &segment.given[given.0 as usize] {
                GivenValues::F32(values) => numbers.extend(values.iter().map(|x| x.to_bits())),
                GivenValues::U32(values) => numbers.extend_from_slice(values),
            },
        }
        first += segment.rows;
    }
    numbers
}

fn segment_rows(segment: &Segment, first_row: usize, first_tree_row: usize) -> SegmentRows {
    SegmentRows {
        first_row: first_row as u32,
        rows: segment.rows as u32,
        first_index: segment.first_index as u32,
        memory_rows: segment.memory_rows as u32,
        has_tree: u32::from(segment.tree.is_some()),
        first_tree_row: first_tree_row as u32,
    }
}

fn tree_row(tree: &DraftTree, row: usize) -> TreeRow {
    let mut seen = [0; 4];
    for other in (0..=row).filter(|&other| tree.sees(row, other)) {
        seen[other / 64] |= 1 << (other % 64);
    }
    TreeRow { seen, depth: tree.depth(row) as u32 }
}
