//! Recurrences over the rows of a text, with a matrix as state.
//!
//! Threads share out columns of the matrices of each segment's heads. A block of columns stays in the first cache for all rows of the
//! segment. A row takes one pass over the block: each element decays, gets its part of `k ⊗ u`, and is multiplied with `q` and with
//! the key of the next row, whose `u` needs that product. Decode reads each state from one page and writes it to another.
//!
//! The sums of a column are taken over even and odd rows of the matrix, each in order, whatever the number of rows and threads is.
//! So a text gives the same bits however it is cut into steps.
#![expect(unsafe_code, reason = "threads write disjoint columns of states and results")]

use std::ops::Range;

use brasa_graph::StateId;
use brasa_graph::op::{HeadSharing, ScanRule, ScanSizes};

use crate::arena::RowsMut;
use crate::context::{Context, View};
use crate::kv::{SharedKv, StateColumns};
use crate::simd::{Kernel, LANES, Simd, vectorize};
use crate::slot::{Operands, Out, Place, Source};
use crate::step_state::{SegmentState, StepState};
use crate::weights::CpuWeights;
use crate::{Isa, Team};

use super::operation::{Cost, Operation};
use super::scratch::{Scratch, ScratchSize};

/// Most vectors of columns of a block.
const MOST_VECTORS: usize = 2;

/// `y = Sᵀ q` after each row's change of the state `S`.
#[derive(Clone, Debug)]
pub(crate) struct StateScanOp {
    /// The state; `None` if every segment begins with zeros.
    pub state: Option<StateId>,
    pub rule: ScanRule,
    pub sharing: HeadSharing,
    pub sizes: ScanSizes,
    pub q: Source,
    pub k: Source,
    pub v: Source,
    pub decay: Source,
    /// Present with [`ScanRule::Delta`].
    pub beta: Option<Source>,
    pub out: Out,
}

/// Sixteen columns of one row of a block.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
pub(crate) struct Line([f32; LANES]);

impl Operation for StateScanOp {
    fn operands(&self, list: &mut Operands) {
        list.reads("q", self.q).reads("k", self.k).reads("v", self.v).reads("decay", self.decay);
        list.may_read("beta", self.beta).writes("out", self.out);
        if let Some(state) = self.state {
            list.writes("state", Place::State(state));
        }
    }

    fn scratch(&self, _: &brasa_graph::Sizes, size: &mut ScratchSize) {
        size.state_lines = size.state_lines.max(self.sizes.key_dim * MOST_VECTORS);
    }

    fn run(&self, cx: &mut Context<'_>, scratch: &mut Scratch) {
        let ScanSizes { key_heads, key_dim, heads, value_dim } = self.sizes;
        let step = cx.step;
        let [q, k, v, decay] = [self.q, self.k, self.v, self.decay].map(|source| cx.view(&source));
        let beta = self.beta.map(|beta| cx.view(&beta));
        let vectors = vectors_of_block(cx.isa);
        let blocks = value_dim.div_ceil(vectors * LANES);
        let region = cx.region(&self.out.slot);
        for (number, segment) in step.segments.iter().enumerate() {
            // Segments begin with different threads, so that no thread gets every remainder.
            let thread = (cx.thread + number) % cx.threads;
            for item in Team::split(heads * blocks, 1, cx.threads, thread) {
                let (head, block) = (item / blocks, item % blocks);
                let first = block * vectors * LANES;
                let columns = first..value_dim.min(first + vectors * LANES);
                let values = head * value_dim + columns.start..head * value_dim + columns.end;
                // SAFETY: each block of columns of a segment's head is one thread's, and no two segments use a page that one of
                // them writes, which was checked before the step.
                let state = self.state.map(|state| unsafe {
                    cx.kv.state_columns(state, head, [key_dim, value_dim], columns.clone())
                });
                let part = region.of_rows(segment.rows.clone()).of_columns(values.clone());
                // SAFETY: these rows and columns of the result are this thread's alone.
                let mut out = unsafe { cx.write(&self.out.slot, part) };
                let key = self.sharing.key_head(head, heads, key_heads) * key_dim;
                let scan = Scan {
                    tile: &mut scratch.state,
                    state,
                    segment,
                    kept: step.states_to(segment),
                    q: &q,
                    k: &k,
                    v: &v,
                    decay: &decay,
                    beta: beta.as_ref(),
                    keys: key..key + key_dim,
                    values,
                    head,
                    out: &mut out,
                };
                if columns.len() > LANES {
                    vectorize(cx.isa, Blocks::<2>(scan));
                } else {
                    vectorize(cx.isa, Blocks::<1>(scan));
                }
            }
        }
    }

    fn cost(&self, step: &StepState, _: &CpuWeights, _: SharedKv<'_>) -> Cost {
        let elements = self.sizes.state_elements();
        let read = step.segments.iter().filter(|segment| segment.states_from.is_some()).count();
        let written: usize = step.segments.iter().map(|segment| step.states_to(segment).len()).sum();
        let pages = if self.state.is_some() { read + written } else { 0 };
        let per_element = match self.rule {
            ScanRule::Add => 5,
            ScanRule::Delta => 7,
        };
        Cost {
            bytes: (pages * elements * 4) as u64,
            flops: (step.row_segments.len() * elements * per_element) as u64,
        }
    }
}

/// Vectors of a block: with sums for two of them, processors of sixteen registers would keep sums in memory.
fn vectors_of_block(isa: Isa) -> usize {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512(_) => MOST_VECTORS,
        _ => 1,
    }
}

/// The rows of a segment, and some columns of the state of one of its heads.
struct Scan<'c, 'a> {
    tile: &'c mut [Line],
    state: Option<StateColumns<'a>>,
    segment: &'c SegmentState,
    /// The rows whose states are kept, and their pages.
    kept: &'c [(u32, u32)],
    q: &'c View<'a>,
    k: &'c View<'a>,
    v: &'c View<'a>,
    decay: &'c View<'a>,
    beta: Option<&'c View<'a>>,
    /// The elements of the head's key within a row of `q` and `k`.
    keys: Range<usize>,
    /// The columns within a row of `v`.
    values: Range<usize>,
    head: usize,
    /// The columns of the result; row 0 is the segment's first.
    out: &'c mut RowsMut<'a, f32>,
}

/// A [`Scan`] of a block of C vectors.
struct Blocks<'c, 'a, const C: usize>(Scan<'c, 'a>);

/// The sums of products of a block with a key or a query: over even rows and over odd rows, for each vector.
type Sums<V, const C: usize> = [[V; C]; 2];

impl<const C: usize> Kernel for Blocks<'_, '_, C> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        if self.0.beta.is_some() { self.0.run::<S, C, true>(simd) } else { self.0.run::<S, C, false>(simd) }
    }
}

impl Scan<'_, '_> {
    #[inline(always)]
    fn run<S: Simd, const C: usize, const DELTA: bool>(mut self, simd: S) {
        let rows = self.segment.rows.len();
        let parent = |row: usize| match &self.segment.tree {
            None => row.checked_sub(1),
            Some(tree) => tree.parent(row).map(|parent| parent as usize),
        };
        let mut kept = self.kept.iter().peekable();
        // The products of the state before the row with the row's key; none if they are still to be computed.
        let mut known: Option<Sums<S::V, C>> = None;
        for row in 0..rows {
            let before = parent(row);
            if row == 0 || before != Some(row - 1) {
                known = Some(self.begin::<S, C, DELTA>(simd, row, before));
            }
            let met = match known.take() {
                Some(known) => known,
                None if DELTA => meet::<S, C>(simd, self.tile, self.key(row)),
                None => zeros(simd),
            };
            let page = kept.next_if(|&&(at, _)| at as usize == row).map(|&(_, page)| page);
            let follows = row + 1 < rows && parent(row + 1) == Some(row);
            let sums = if DELTA && follows && page.is_none() {
                let (sums, next) = self.advance::<S, C, DELTA, true>(simd, row, met, None);
                known = Some(next);
                sums
            } else {
                self.advance::<S, C, DELTA, false>(simd, row, met, page).0
            };
            self.put::<S, C>(simd, row, sums);
        }
    }

    /// Loads the state before `row`, which follows row `before`, and multiplies it with the row's key.
    #[inline(always)]
    fn begin<S: Simd, const C: usize, const DELTA: bool>(
        &mut self,
        simd: S,
        row: usize,
        before: Option<usize>,
    ) -> Sums<S::V, C> {
        let page_of =
            |row: usize| self.kept.iter().find(|(at, _)| *at as usize == row).map(|&(_, page)| page);
        let page = match before {
            None => self.segment.states_from,
            Some(before) => page_of(before),
        };
        if let (Some(state), Some(page)) = (&self.state, page) {
            let key = &self.k.row(self.segment.rows.start + row)[self.keys.clone()];
            return load::<S, C, DELTA>(simd, self.tile, state, page, key);
        }
        for line in &mut self.tile[..self.keys.len() * C] {
            *line = Line::default();
        }
        if before.is_none() {
            return zeros(simd);
        }
        // A text that keeps no states: its rows before this one run again.
        for other in 0..row {
            if self.segment.tree.as_ref().is_some_and(|tree| tree.sees(row, other)) {
                let met = if DELTA { meet::<S, C>(simd, self.tile, self.key(other)) } else { zeros(simd) };
                self.advance::<S, C, DELTA, false>(simd, other, met, None);
            }
        }
        if DELTA { meet::<S, C>(simd, self.tile, self.key(row)) } else { zeros(simd) }
    }

    /// The key of a row of the segment.
    #[inline(always)]
    fn key(&self, row: usize) -> &[f32] {
        &self.k.row(self.segment.rows.start + row)[self.keys.clone()]
    }

    /// Changes the state by a row, whose key has the products `met` with it. Returns the products of the new state with the row's
    /// query and, with NEXT, with the key of the next row. With a page, the state goes there, and the tile is written only if rows
    /// follow.
    #[inline(always)]
    fn advance<S: Simd, const C: usize, const DELTA: bool, const NEXT: bool>(
        &mut self,
        simd: S,
        row: usize,
        met: Sums<S::V, C>,
        page: Option<u32>,
    ) -> (Sums<S::V, C>, Sums<S::V, C>) {
        let at = self.segment.rows.start + row;
        let (k, q) = (&self.k.row(at)[self.keys.clone()], &self.q.row(at)[self.keys.clone()]);
        let next = if NEXT { &self.k.row(at + 1)[self.keys.clone()] } else { k };
        let decay = simd.splat(self.decay.row(at)[self.head]);
        let values = &self.v.row(at)[self.values.clone()];
        let mut added = [simd.splat(0.0); C];
        for (c, added) in added.iter_mut().enumerate() {
            let v = simd.load(&lanes(values, c));
            *added = v;
            if DELTA && let Some(beta) = self.beta {
                let known = simd.mul(decay, simd.add(met[0][c], met[1][c]));
                *added = simd.mul(simd.splat(beta.row(at)[self.head]), simd.sub(v, known));
            }
        }
        let pass = Pass { decay, added, k, q, next };
        match (page, &mut self.state) {
            (Some(page), Some(state)) => {
                let stays = row + 1 < self.segment.rows.len();
                pass.keep::<S>(simd, self.tile, state, page, stays)
            }
            _ => pass.run::<S, NEXT>(simd, self.tile),
        }
    }

    /// Writes a row of the result.
    #[inline(always)]
    fn put<S: Simd, const C: usize>(&mut self, simd: S, row: usize, sums: Sums<S::V, C>) {
        let out = self.out.row(row);
        for c in 0..C {
            let y = simd.add(sums[0][c], sums[1][c]);
            store(simd, y, &mut out[c * LANES..]);
        }
    }
}

/// The change of a block by one row.
struct Pass<'c, V, const C: usize> {
    decay: V,
    /// `u`.
    added: [V; C],
    k: &'c [f32],
    q: &'c [f32],
    /// The key of the next row.
    next: &'c [f32],
}

impl<V: Copy, const C: usize> Pass<'_, V, C> {
    /// Changes the block in place.
    #[inline(always)]
    fn run<S: Simd<V = V>, const NEXT: bool>(self, simd: S, tile: &mut [Line]) -> (Sums<V, C>, Sums<V, C>) {
        let mut sums = (zeros::<S, C>(simd), zeros::<S, C>(simd));
        let lines = tile.as_chunks_mut::<C>().0;
        let (pairs, rest) = lines[..self.k.len()].as_chunks_mut::<2>();
        let ((k, k_rest), (q, q_rest), (next, next_rest)) =
            (self.k.as_chunks::<2>(), self.q.as_chunks::<2>(), self.next.as_chunks::<2>());
        for (((lines, k), q), next) in pairs.iter_mut().zip(k).zip(q).zip(next) {
            // Places in `sums` are constants, so that sums stay in registers.
            for half in 0..2 {
                let elements = [k[half], q[half], next[half]];
                self.change::<S, NEXT>(simd, &mut lines[half], elements, &mut sums, half);
            }
        }
        if let ([lines], &[k], &[q], &[next]) = (rest, k_rest, q_rest, next_rest) {
            self.change::<S, NEXT>(simd, lines, [k, q, next], &mut sums, 0);
        }
        sums
    }

    /// Changes one row of the block in place. `half` is 1 for odd rows.
    #[inline(always)]
    fn change<S: Simd<V = V>, const NEXT: bool>(
        &self,
        simd: S,
        lines: &mut [Line; C],
        elements: [f32; 3],
        sums: &mut (Sums<V, C>, Sums<V, C>),
        half: usize,
    ) {
        let [k, q, next] = elements.map(|x| simd.splat(x));
        for (c, line) in lines.iter_mut().enumerate() {
            let new = simd.mul_add(k, self.added[c], simd.mul(self.decay, simd.load(&line.0)));
            simd.store(new, &mut line.0);
            let y = &mut sums.0[half][c];
            *y = simd.mul_add(q, new, *y);
            if NEXT {
                let known = &mut sums.1[half][c];
                *known = simd.mul_add(next, new, *known);
            }
        }
    }

    /// Writes the changed block to a page, and changes the tile only if it `stays`.
    #[expect(clippy::needless_range_loop, reason = "constant places keep the sums in registers")]
    #[inline(always)]
    fn keep<S: Simd<V = V>>(
        self,
        simd: S,
        tile: &mut [Line],
        state: &mut StateColumns<'_>,
        page: u32,
        stays: bool,
    ) -> (Sums<V, C>, Sums<V, C>) {
        let mut sums = zeros::<S, C>(simd);
        let mut lines = tile.as_chunks_mut::<C>().0.iter_mut();
        for (pair, (k, q)) in self.k.chunks(2).zip(self.q.chunks(2)).enumerate() {
            for half in 0..2 {
                let (Some(&k), Some(&q)) = (k.get(half), q.get(half)) else { break };
                let Some(lines) = lines.next() else { break };
                let (k, q) = (simd.splat(k), simd.splat(q));
                let to = state.write(page, 2 * pair + half);
                for (c, line) in lines.iter_mut().enumerate() {
                    let new = simd.mul_add(k, self.added[c], simd.mul(self.decay, simd.load(&line.0)));
                    store(simd, new, &mut to[c * LANES..]);
                    if stays {
                        simd.store(new, &mut line.0);
                    }
                    let y = &mut sums[half][c];
                    *y = simd.mul_add(q, new, *y);
                }
            }
        }
        (sums, zeros(simd))
    }
}

/// Loads a block from a page and, with DELTA, multiplies it with a key.
#[expect(clippy::needless_range_loop, reason = "constant places keep the sums in registers")]
#[inline(always)]
fn load<S: Simd, const C: usize, const DELTA: bool>(
    simd: S,
    tile: &mut [Line],
    state: &StateColumns<'_>,
    page: u32,
    key: &[f32],
) -> Sums<S::V, C> {
    let mut sums = zeros::<S, C>(simd);
    let mut lines = tile.as_chunks_mut::<C>().0.iter_mut();
    for (pair, key) in key.chunks(2).enumerate() {
        for half in 0..2 {
            let Some(&k) = key.get(half) else { break };
            let Some(lines) = lines.next() else { break };
            let (from, k) = (state.read(page, 2 * pair + half), simd.splat(k));
            for (c, line) in lines.iter_mut().enumerate() {
                let x = simd.load(&lanes(from, c));
                simd.store(x, &mut line.0);
                if DELTA {
                    let sum = &mut sums[half][c];
                    *sum = simd.mul_add(k, x, *sum);
                }
            }
        }
    }
    sums
}

/// Multiplies a block with a key.
#[expect(clippy::needless_range_loop, reason = "constant places keep the sums in registers")]
#[inline(always)]
fn meet<S: Simd, const C: usize>(simd: S, tile: &[Line], key: &[f32]) -> Sums<S::V, C> {
    let mut sums = zeros::<S, C>(simd);
    let mut lines = tile.as_chunks::<C>().0.iter();
    for key in key.chunks(2) {
        for half in 0..2 {
            let Some(&k) = key.get(half) else { break };
            let Some(lines) = lines.next() else { break };
            let k = simd.splat(k);
            for (c, line) in lines.iter().enumerate() {
                let sum = &mut sums[half][c];
                *sum = simd.mul_add(k, simd.load(&line.0), *sum);
            }
        }
    }
    sums
}

#[inline(always)]
fn zeros<S: Simd, const C: usize>(simd: S) -> Sums<S::V, C> {
    [[simd.splat(0.0); C]; 2]
}

/// Vector number `c` of some columns, with zeros behind the last column.
#[inline(always)]
fn lanes(columns: &[f32], c: usize) -> [f32; LANES] {
    let columns = &columns[c * LANES..];
    if let Some(whole) = columns.first_chunk() {
        return *whole;
    }
    let mut lanes = [0.0; LANES];
    lanes[..columns.len()].copy_from_slice(columns);
    lanes
}

/// Stores as many lanes as there are columns.
#[inline(always)]
fn store<S: Simd>(simd: S, v: S::V, columns: &mut [f32]) {
    if let Some(whole) = columns.first_chunk_mut() {
        simd.store(v, whole);
    } else {
        let mut lanes = [0.0; LANES];
        simd.store(v, &mut lanes);
        columns.copy_from_slice(&lanes[..columns.len()]);
    }
}
