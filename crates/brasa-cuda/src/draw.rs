//! Tokens drawn on the device, so that no logits come to the host.
#![expect(unsafe_code, reason = "launches kernels")]

use std::ops::Range;
use std::sync::Arc;

use brasa_graph::chain::RowDraw;
use brasa_graph::device::{DeviceError, DrawInputs, Drawn, FillMask};
use brasa_graph::sampling::{Phase, SamplingParams, Stage};

use crate::driver::{DeviceMemory, Grid, Kernel};
use crate::gpu::Gpu;
use crate::params::{
    ArgmaxParams, DRAW_BINS, DRAW_DYNAMIC, DRAW_LISTED, DRAW_MIN_P, DRAW_NO_TOKEN, DRAW_PART, DRAW_TOP_K,
    DRAW_TOP_N_SIGMA, DRAW_TOP_P, DRAW_TYPICAL_P, DRAW_XTC, DrawParams, DrawRow, HandOn, Ptr, Rows,
    draw_bytes,
};

/// Tokens of the largest vocabulary that is drawn from: the kernels add 32 sums of 256 sums of 256 shares.
const MOST_TOKENS: u32 = 32 * 256 * 256;
/// Threads of a block that reads a part of a row, and of one that finishes a row.
const PART_THREADS: u32 = 256;
const ROW_THREADS: u32 = 1024;

/// Memory that kernels pass on, in errors.
const MEMORY: &str = "drawing tokens";

/// The parameters for a token that is not handed on to an interpreter.
const NOWHERE: HandOn = HandOn {
    state: Ptr::NONE,
    shown: Ptr::NONE,
    cancel: Ptr::NONE,
    stops: Ptr::NONE,
    stops_count: 0,
    reserved: 0,
};

/// Draws tokens from rows of logits.
#[derive(Debug)]
pub(crate) struct Drawer {
    gpu: Arc<Gpu>,
    /// Finds the largest logit, if only the largest is wanted.
    largest: Kernel,
    adjust: Kernel,
    find: Kernel,
    weigh: Kernel,
    list: Kernel,
    cut: Kernel,
    close: Kernel,
    take: Kernel,
    /// The drawn ids, and what kernels pass on.
    memory: DeviceMemory,
    /// The rows that were loaded, their lists, and the ids that end a chain.
    inputs: DeviceMemory,
    /// The rules that were loaded, in the phases that they have: those of the first phase, then those of the next. The draws with the fewest
    /// phases begin last.
    rows: Vec<DrawRow>,
    phases: usize,
    words: Vec<u32>,
    stops: Range<usize>,
    bytes: Vec<u8>,
    counts: Vec<u32>,
    ids: Vec<u32>,
}

/// Offsets of the parts of a draw's memory, in bytes. The drawn ids come before all parts.
struct Places {
    /// Parts of a row that blocks read.
    parts: usize,
    largest: usize,
    scores: usize,
    listed: usize,
    sums: usize,
    counts: usize,
    end: usize,
}

impl Places {
    /// The places for `rows` of `width` logits.
    fn new(width: u32, rows: usize) -> Self {
        let parts = width.div_ceil(DRAW_PART) as usize;
        let mut end = (rows * 4).next_multiple_of(16);
        let mut part = |bytes: usize| {
            let start = end;
            end += (rows * bytes).next_multiple_of(16);
            start
        };
        let (largest, scores, listed) = (part(parts * 8), part(parts * 8), part(DRAW_LISTED as usize * 8));
        let (sums, counts) = (part(width.div_ceil(256) as usize * 4), part((DRAW_BINS as usize + 1) * 4));
        Self { parts, largest, scores, listed, sums, counts, end }
    }
}

/// Offsets of a row's lists in the loaded words.
#[derive(Clone, Copy)]
struct Lists {
    repeats: usize,
    repeats_end: usize,
    occurrences: usize,
    biases: usize,
    forbidden: usize,
    end: usize,
}

impl Drawer {
    /// A drawer that has no rows loaded.
    pub(crate) fn new(gpu: &Arc<Gpu>) -> Result<Self, DeviceError> {
        Ok(Self {
            largest: gpu.kernel("largest")?,
            adjust: gpu.kernel("draw_adjust")?,
            find: gpu.kernel("draw_find")?,
            weigh: gpu.kernel("draw_weigh")?,
            list: gpu.kernel("draw_list")?,
            cut: gpu.kernel("draw_cut")?,
            close: gpu.kernel("draw_close")?,
            take: gpu.kernel("draw_take")?,
            memory: gpu.allocate(0, MEMORY)?,
            inputs: gpu.allocate(0, "rules of drawing")?,
            rows: Vec::new(),
            phases: 1,
            words: Vec::new(),
            stops: 0..0,
            bytes: Vec::new(),
            counts: Vec::new(),
            ids: Vec::new(),
            gpu: Arc::clone(gpu),
        })
    }

    /// True if tokens can be drawn from this number of logits.
    pub(crate) fn takes(vocab_size: usize) -> bool {
        vocab_size <= MOST_TOKENS as usize
    }

    /// True if each token of the row can be drawn without copying the earlier tokens to the host.
    pub(crate) fn takes_chain(row: &RowDraw<'_>) -> bool {
        row.mask.is_none() && !row.rules.params().reports_logits() && !row.rules.has_penalties()
    }

    /// Draws a token from each of the rows `x`, whose logits are changed, and waits. Of rows whose rules report on them, the logits come
    /// as they are; rows without a largest finite logit have nothing.
    pub(crate) fn draw(
        &mut self,
        x: Rows,
        draws: &[DrawInputs<'_>],
        fill: &mut FillMask<'_>,
    ) -> Result<Vec<Drawn>, DeviceError> {
        let rows = draws.len();
        let takes_largest = |draw: &DrawInputs<'_>| !draw.masked && draw.rules.takes_largest(draw.position);
        if draws.iter().all(|draw| reports(draw) || takes_largest(draw)) {
            grow(&self.gpu, &mut self.memory, rows * 4, MEMORY)?;
            let params = ArgmaxParams { x, y: Ptr::new(self.memory.address()) };
            self.launch(&self.largest, [rows, 1], ROW_THREADS, &params)?;
        } else {
            self.load(x.width, rows, draws, &[], fill)?;
            self.queue(x, 0, rows, NOWHERE)?;
        }
        self.ids.resize(rows, 0);
        let gpu = Arc::clone(&self.gpu);
        gpu.read(&self.memory, bytemuck::cast_slice_mut(&mut self.ids))?;
        let rows = self.ids.iter().zip(draws).enumerate();
        rows.map(|(row, (&id, draw))| match id {
            _ if reports(draw) => self.logits(x, row).map(Drawn::Logits),
            DRAW_NO_TOKEN => Ok(Drawn::Nothing),
            id => Ok(Drawn::Token(id)),
        })
        .collect()
    }

    /// Brings the logits of row `row` to the host.
    fn logits(&self, x: Rows, row: usize) -> Result<Vec<f32>, DeviceError> {
        let [per, stride, width] = [x.per, x.stride, x.width].map(|number| number as usize);
        let first = row / per * stride + row % per * width;
        let mut logits = vec![0.0; width];
        let from = x.data.0 + first as u64 * 4;
        // SAFETY: the row lies there.
        unsafe { self.gpu.stream.download(bytemuck::cast_slice_mut(&mut logits), from) }
            .map_err(|error| self.gpu.error(error))?;
        Ok(logits)
    }

    /// Brings the rules of draws to the device, of which `at_once` are drawn at a time, from `width` logits each, and ids that end a
    /// chain.
    pub(crate) fn load(
        &mut self,
        width: u32,
        at_once: usize,
        draws: &[DrawInputs<'_>],
        stops: &[u32],
        fill: &mut FillMask<'_>,
    ) -> Result<(), DeviceError> {
        grow(&self.gpu, &mut self.memory, Places::new(width, at_once).end, MEMORY)?;
        self.gather(width, draws, fill);
        self.stops = self.words.len()..self.words.len() + stops.len();
        self.words.extend_from_slice(stops);
        let words_start = size_of_val(&self.rows[..]);
        grow(&self.gpu, &mut self.inputs, words_start + self.words.len() * 4, "rules of drawing")?;
        let words = self.inputs.address() + words_start as u64;
        for row in &mut self.rows {
            for list in [&mut row.repeats, &mut row.occurrences, &mut row.biases, &mut row.forbidden] {
                list.0 += words;
            }
            if row.mask.0 != 0 {
                row.mask.0 += words;
            }
        }
        self.bytes.clear();
        self.bytes.extend_from_slice(draw_bytes(&self.rows));
        self.bytes.extend_from_slice(bytemuck::cast_slice(&self.words));
        // SAFETY: within the allocation, which has just grown; the bytes are kept until the next draw, which comes behind a wait.
        unsafe { self.gpu.stream.upload(self.inputs.address(), &self.bytes) }
            .map_err(|error| self.gpu.error(error))
    }

    /// Queues the launches that draw a token from one row by rule `number` of those that were loaded, hand it to the interpreter whose
    /// state is at `state`, and show it in the word at `shown`. The chain ends with the ids that were loaded, or where the word at `cancel`
    /// is not 0.
    pub(crate) fn queue_and_hand_on(
        &self,
        x: Rows,
        number: usize,
        [state, shown, cancel]: [u64; 3],
    ) -> Result<(), DeviceError> {
        let stops = size_of_val(&self.rows[..]) + self.stops.start * 4;
        let hand_on = HandOn {
            state: Ptr::new(state),
            shown: Ptr::new(shown),
            cancel: Ptr::new(cancel),
            stops: Ptr::new(self.inputs.address() + stops as u64),
            stops_count: self.stops.len() as u32,
            reserved: 0,
        };
        self.queue(x, number, 1, hand_on)
    }

    /// Queues the launches that draw a token from each of `count` rows `x` by the rules that were loaded from `first` on.
    fn queue(&self, x: Rows, first: usize, count: usize, hand_on: HandOn) -> Result<(), DeviceError> {
        let places = Places::new(x.width, count);
        let at = |start: usize| self.memory.address() + start as u64;
        let draws = self.rows.len() / self.phases;
        for phase in 0..self.phases {
            let first = phase * draws + first;
            let params = DrawParams {
                x,
                rows: Ptr::new(self.inputs.address() + (first * size_of::<DrawRow>()) as u64),
                largest: Ptr::new(at(places.largest)),
                scores: Ptr::new(at(places.scores)),
                listed: Ptr::new(at(places.listed)),
                sums: Ptr::new(at(places.sums)),
                counts: Ptr::new(at(places.counts)),
                y: Ptr::new(at(0)),
                hand_on,
            };
            let rows = &self.rows[first..first + count];
            let adjusts = |row: &DrawRow| {
                row.repeats_count + row.occurrences_count + row.biases_count + row.forbidden_count > 0
            };
            if rows.iter().any(adjusts) {
                self.launch(&self.adjust, [1, count], PART_THREADS, &params)?;
            }
            self.launch(&self.find, [places.parts, count], PART_THREADS, &params)?;
            let is_last = phase + 1 == self.phases;
            // In a phase without filters, this kernel finds the best scores, which only the last phase needs.
            if rows.iter().any(|row| row.is_greedy == 0 && (is_last || row.filters_count > 0)) {
                self.launch(&self.weigh, [places.parts, count], PART_THREADS, &params)?;
            }
            if rows.iter().any(|row| row.is_greedy == 0 && row.filters_count > 0) {
                self.launch(&self.list, [places.parts, count], PART_THREADS, &params)?;
            }
            let end = match is_last {
                true => &self.take,
                false if rows.iter().any(|row| row.closing > 0) => &self.close,
                false => &self.cut,
            };
            self.launch(end, [1, count], ROW_THREADS, &params)?;
        }
        Ok(())
    }

    /// Makes the rows and their lists, whose addresses are bytes behind the first.
    fn gather(&mut self, width: u32, draws: &[DrawInputs<'_>], fill: &mut FillMask<'_>) {
        let phases = |draw: &DrawInputs<'_>| {
            if reports(draw) { 1 } else { draw.rules.phases(draw.position).count() }
        };
        self.phases = draws.iter().map(phases).max().unwrap_or(1);
        self.words.clear();
        let nothing = Lists { repeats: 0, repeats_end: 0, occurrences: 0, biases: 0, forbidden: 0, end: 0 };
        let idle = |draw: &DrawInputs<'_>| {
            let phase = Phase { changes: &[], filters: &[], closing: None, is_last: false };
            DrawRow { is_greedy: 1, ..row_of(draw, phase, width, &nothing) }
        };
        self.rows.clear();
        for _ in 0..self.phases {
            self.rows.extend(draws.iter().map(idle));
        }
        for (number, draw) in draws.iter().enumerate().filter(|(_, draw)| !reports(draw)) {
            let mask = self.push_mask(width, number, draw, fill);
            let repeats = self.words.len();
            let occurrences = self.push_repeats(draw);
            let biases = self.push_occurrences(width, draw);
            let forbidden = self.push_biases(&draw.rules.params().logit_bias);
            self.words.extend(draw.rules.forbidden(draw.position));
            let lists = Lists {
                repeats,
                repeats_end: occurrences,
                occurrences,
                biases,
                forbidden,
                end: self.words.len(),
            };
            let later = self.phases - phases(draw);
            for (place, phase) in draw.rules.phases(draw.position).enumerate() {
                let mut lists = lists;
                if !phase.changes.contains(&Stage::Penalties) {
                    lists.occurrences = lists.biases;
                }
                let mut mask = mask;
                if place > 0 {
                    // Biases and masks came before the first filter.
                    (lists.forbidden, lists.end, mask) = (lists.biases, lists.biases, Ptr::NONE);
                }
                self.rows[(later + place) * draws.len() + number] =
                    DrawRow { mask, ..row_of(draw, phase, width, &lists) };
            }
        }
    }

    /// Appends the draw's mask, and returns where it begins. One that cannot be filled allows nothing: the row gets no token, and the host
    /// finds out why.
    fn push_mask(
        &mut self,
        width: u32,
        number: usize,
        draw: &DrawInputs<'_>,
        fill: &mut FillMask<'_>,
    ) -> Ptr<u32> {
        if !draw.masked {
            return Ptr::NONE;
        }
        // Behind a word, lest the address is that of no mask.
        let start = self.words.len().max(1);
        self.words.resize(start + width.div_ceil(32) as usize, 0);
        let words = &mut self.words[start..];
        if fill(number, words).is_err() {
            words.fill(0);
        }
        Ptr::new(start as u64 * 4)
    }

    /// Appends the ids of the tokens that DRY penalises, each with the bits of its penalty; returns the number of words
    /// after that.
    fn push_repeats(&mut self, draw: &DrawInputs<'_>) -> usize {
        let has_dry = |phase: Phase<'_>| phase.changes.contains(&Stage::Dry);
        if draw.rules.phases(draw.position).any(has_dry) {
            let penalties = draw.rules.params().dry.penalties(draw.history);
            self.words.extend(penalties.iter().flat_map(|&(id, penalty)| [id, penalty.to_bits()]));
        }
        self.words.len()
    }

    /// Appends each token of the penalties' window and how often it occurs there; returns where the words end.
    fn push_occurrences(&mut self, width: u32, draw: &DrawInputs<'_>) -> usize {
        let has_penalties = |phase: Phase<'_>| phase.changes.contains(&Stage::Penalties);
        if draw.rules.phases(draw.position).any(has_penalties) {
            self.counts.resize(width as usize, 0);
            let window = draw.rules.params().repeat_last_n.unwrap_or(usize::MAX);
            let window = &draw.history[draw.history.len().saturating_sub(window)..];
            for &id in window {
                if let Some(count) = self.counts.get_mut(id as usize) {
                    *count += 1;
                }
            }
            for &id in window {
                let count = self.counts.get_mut(id as usize).map_or(0, std::mem::take);
                if count > 0 {
                    self.words.extend([id, count]);
                }
            }
        }
        self.words.len()
    }

    /// Appends biases, those of one id together and in order; returns where the words end.
    fn push_biases(&mut self, biases: &[(u32, f32)]) -> usize {
        let mut biases = biases.to_vec();
        biases.sort_by_key(|&(id, _)| id);
        self.words.extend(biases.iter().flat_map(|&(id, bias)| [id, bias.to_bits()]));
        self.words.len()
    }

    fn launch<P: Copy>(
        &self,
        kernel: &Kernel,
        [x, y]: [usize; 2],
        threads: u32,
        params: &P,
    ) -> Result<(), DeviceError> {
        let grid = Grid { blocks: [x as u32, y as u32, 1], threads, shared_bytes: 0 };
        // SAFETY: each kernel with its own structure; memory and inputs have room for all rows, whose logits the caller names.
        unsafe { self.gpu.stream.launch(kernel, grid, params) }.map_err(|error| self.gpu.error(error))
    }
}

/// True if the draw is not made here: its logits go to the host.
fn reports(draw: &DrawInputs<'_>) -> bool {
    draw.rules.params().reports_logits()
}

/// Least bytes of an allocation for draws: enough for the rules of some rows, so that steps with more stop ids do not allocate anew.
const LEAST_BYTES: usize = 16 << 10;

/// Makes `memory` at least `bytes` long; its contents are lost where it grows.
fn grow(gpu: &Gpu, memory: &mut DeviceMemory, bytes: usize, what: &str) -> Result<(), DeviceError> {
    if bytes > memory.size_bytes() {
        *memory = gpu.allocate(bytes.next_power_of_two().max(LEAST_BYTES), what)?;
    }
    Ok(())
}

/// A phase of drawing from a row of `width` logits, as the kernels read it.
fn row_of(draw: &DrawInputs<'_>, phase: Phase<'_>, width: u32, lists: &Lists) -> DrawRow {
    let params = draw.rules.params();
    // Of as many tokens as there are, all are kept.
    let is_cut = phase.filters.contains(&Stage::TopK);
    let top_k = u32::try_from(params.top_k).ok().filter(|&top_k| is_cut && top_k < width);
    let start = |words: usize| Ptr::new(words as u64 * 4);
    let Filters { kinds, values, count, temperature, sum_temperature } = filters(params, phase, top_k);
    let top_p_at = kinds[..count].iter().position(|&kind| kind == DRAW_TOP_P);
    let whole = phase.filters.contains(&Stage::TopPOfAll);
    let place_of = |stage: Stage| phase.changes.iter().position(|&change| change == stage);
    let dry_at = place_of(Stage::Dry);
    let (closing, closing_values) = phase.closing.map_or((0, [0.0; 3]), |stage| closing(params, stage));
    DrawRow {
        repeats: start(lists.repeats),
        repeats_count: dry_at.map_or(0, |_| (lists.repeats_end - lists.repeats) as u32 / 2),
        repeats_first: u32::from(
            dry_at.is_some_and(|dry| place_of(Stage::Penalties).is_none_or(|at| dry < at)),
        ),
        closing,
        closing_values,
        occurrences: start(lists.occurrences),
        biases: start(lists.biases),
        forbidden: start(lists.forbidden),
        mask: Ptr::NONE,
        occurrences_count: (lists.biases - lists.occurrences) as u32 / 2,
        biases_count: (lists.forbidden - lists.biases) as u32 / 2,
        forbidden_count: (lists.end - lists.forbidden) as u32,
        position: draw.position,
        seed_low: params.seed as u32,
        seed_high: (params.seed >> 32) as u32,
        repeat: params.repeat_penalty,
        frequency: params.frequency_penalty,
        presence: params.presence_penalty,
        inverse_temperature: inverse(temperature),
        sum_temperature: inverse(sum_temperature),
        is_greedy: u32::from(phase.is_last && params.is_greedy()),
        most: top_k.unwrap_or(u32::MAX),
        filters_count: count as u32,
        kinds,
        values,
        sums: u32::from(top_p_at.is_some_and(|place| place == 0 || whole)),
        whole: u32::from(whole),
    }
}

/// The filters of a phase.
struct Filters {
    kinds: [u32; 3],
    values: [f32; 3],
    count: usize,
    /// The temperature behind the filters.
    temperature: f32,
    /// The temperature at top-p.
    sum_temperature: f32,
}

/// The filters of `phase`, in order. `top_k` is none where all tokens are kept.
fn filters(params: &SamplingParams, phase: Phase<'_>, top_k: Option<u32>) -> Filters {
    let mut all =
        Filters { kinds: [0; 3], values: [0.0; 3], count: 0, temperature: 1.0, sum_temperature: 1.0 };
    for stage in phase.filters {
        let (kind, value) = match stage {
            Stage::Temperature => {
                all.temperature = params.temperature;
                continue;
            }
            Stage::TopK if top_k.is_some() => (DRAW_TOP_K, 0.0),
            Stage::MinP => (DRAW_MIN_P, all.temperature * params.min_p.ln()),
            Stage::TopP | Stage::TopPOfAll => {
                all.sum_temperature = all.temperature;
                (DRAW_TOP_P, params.top_p)
            }
            Stage::TopK | Stage::Penalties | Stage::Dry | Stage::TopNSigma | Stage::TypicalP | Stage::Xtc => {
                continue;
            }
        };
        (all.kinds[all.count], all.values[all.count]) = (kind, value);
        all.count += 1;
    }
    all
}

/// The `closing` and its values of a [`DrawRow`], for a stage that ends a phase.
fn closing(params: &SamplingParams, stage: Stage) -> (u32, [f32; 3]) {
    match stage {
        Stage::TopNSigma => (DRAW_TOP_N_SIGMA, [params.top_n_sigma, 0.0, 0.0]),
        Stage::TypicalP => (DRAW_TYPICAL_P, [params.typical_p, 0.0, 0.0]),
        Stage::Xtc => (DRAW_XTC, [params.xtc_threshold, 0.0, 0.0]),
        Stage::Temperature => {
            let (temperature, range) = (params.temperature, params.dynatemp_range);
            let least = (temperature - range).max(0.0);
            (DRAW_DYNAMIC, [least, (temperature + range) - least, params.dynatemp_exponent])
        }
        Stage::Penalties | Stage::Dry | Stage::TopK | Stage::TopP | Stage::TopPOfAll | Stage::MinP => {
            unreachable!("{stage:?} ends no phase")
        }
    }
}

/// `1/T`, a normal number.
fn inverse(temperature: f32) -> f32 {
    (1.0 / temperature).clamp(f32::MIN_POSITIVE, f32::MAX)
}
