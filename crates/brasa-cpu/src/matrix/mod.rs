//! Products of f32 matrices that are no weights: `c = a · b`, summed over an inner axis.
//!
//! The second factor is [packed](Packed) once, in panels of as many columns as a tile of the result has; the first is packed a few
//! rows at a time. A tile's sums stay in registers for [`INNER`] summed elements. Each sum is one chain of fused
//! multiplications and additions per piece of [`INNER`] elements, pieces in order: it depends on the inner length alone, and
//! on whether the processor fuses.
//!
//! Goto & van de Geijn 2008, *Anatomy of High-Performance Matrix Multiplication*.

mod dots;
mod rounded;
mod tile;

use std::marker::PhantomData;
use std::ops::Range;

use bytemuck::{Pod, Zeroable};

use crate::Isa;
use crate::arena::RowsMut;
use crate::context::View;
use crate::simd::LANES;

pub(crate) use dots::{FEW_COLUMNS, multiply_few};
pub(crate) use rounded::{Arithmetic, FirstFactor, SecondFactor};
use tile::{Shape, Tile, Turn};

/// Summed elements whose sums stay in registers.
pub(crate) const INNER: usize = 256;
/// Rows of the first factor that are packed together: 96 KiB.
const ROWS: usize = 96;

/// Rows of a factor.
pub(crate) trait FactorRows {
    /// Row `row`.
    fn row(&self, row: usize) -> &[f32];
}

/// Rows of a result.
pub(crate) trait ResultRows {
    /// Row `row`, for writing.
    fn row_mut(&mut self, row: usize) -> &mut [f32];
}

impl FactorRows for View<'_> {
    fn row(&self, row: usize) -> &[f32] {
        View::row(self, row)
    }
}

impl ResultRows for RowsMut<'_, f32> {
    fn row_mut(&mut self, row: usize) -> &mut [f32] {
        self.row(row)
    }
}

/// Rows of a slice, `stride` elements apart.
pub(crate) struct Strided<V> {
    pub values: V,
    pub stride: usize,
}

impl FactorRows for Strided<&[f32]> {
    fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.stride..]
    }
}

impl ResultRows for Strided<&mut [f32]> {
    fn row_mut(&mut self, row: usize) -> &mut [f32] {
        &mut self.values[row * self.stride..]
    }
}

/// Vectors that lie side by side in rows: vector `v` is part `v % per_row` of row `v / per_row`.
pub(crate) struct Vectors<'v, R> {
    pub rows: &'v R,
    pub width: usize,
    pub per_row: usize,
}

impl<R: FactorRows> FactorRows for Vectors<'_, R> {
    fn row(&self, vector: usize) -> &[f32] {
        let column = vector % self.per_row * self.width;
        &self.rows.row(vector / self.per_row)[column..column + self.width]
    }
}

/// Rows that a function finds.
pub(crate) struct Found<'a, F> {
    find: F,
    rows: PhantomData<&'a [f32]>,
}

impl<'a, F: Fn(usize) -> &'a [f32]> Found<'a, F> {
    /// The rows that `find` finds by their numbers.
    pub(crate) fn new(find: F) -> Self {
        Self { find, rows: PhantomData }
    }
}

impl<'a, F: Fn(usize) -> &'a [f32]> FactorRows for Found<'a, F> {
    fn row(&self, row: usize) -> &[f32] {
        (self.find)(row)
    }
}

/// A factor of a product.
pub(crate) enum Factor<'r, R> {
    /// Each row holds the summed elements of one row or column of the result.
    Summed(&'r R),
    /// Each row holds one summed element of all rows or columns of the result.
    Across(&'r R),
}

impl<R> Clone for Factor<'_, R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R> Copy for Factor<'_, R> {}

impl<R: FactorRows> Factor<'_, R> {
    /// Packs `outer` rows or columns of the result, as panels of L lanes: for each summed element of `inner` those of all lanes.
    /// Lanes beyond the last are zero.
    fn pack<const L: usize>(&self, isa: Isa, outer: &Range<usize>, inner: &Range<usize>, to: &mut [f32]) {
        for (first, panel) in outer.clone().step_by(L).zip(to.chunks_exact_mut(L * inner.len())) {
            let panel = panel.as_chunks_mut::<L>().0;
            let filled = L.min(outer.end - first);
            if filled < L {
                panel.fill([0.0; L]);
            }
            match self {
                Self::Summed(rows) => {
                    for lane in (0..filled).step_by(LANES) {
                        let lanes = lane..filled.min(lane + LANES);
                        turn(isa, *rows, first, lanes, inner.clone(), panel);
                    }
                }
                Self::Across(rows) => {
                    for (k, to) in inner.clone().zip(panel) {
                        let from = &rows.row(k)[first..first + filled];
                        match from.as_array::<L>() {
                            Some(from) => *to = *from,
                            None => to[..filled].copy_from_slice(from),
                        }
                    }
                }
            }
        }
    }
}

/// Packs some lanes of a panel whose rows begin with row `first`, 16 summed elements at a time.
fn turn<const L: usize>(
    isa: Isa,
    rows: &impl FactorRows,
    first: usize,
    lanes: Range<usize>,
    inner: Range<usize>,
    panel: &mut [[f32; L]],
) {
    let zeros = [0.0; LANES];
    let mut turned = [[0.0; LANES]; LANES];
    let from: [&[f32]; LANES] = std::array::from_fn(|lane| {
        if lane < lanes.len() { &rows.row(first + lanes.start + lane)[inner.clone()] } else { &[] }
    });
    let mut parts = panel.chunks_exact_mut(LANES);
    for (at, panel) in parts.by_ref().enumerate() {
        let from = from.map(|row| row.as_chunks::<LANES>().0.get(at).unwrap_or(&zeros));
        crate::simd::vectorize(isa, Turn { from: &from, to: &mut turned });
        if L <= LANES && lanes.len() == L {
            // A number of lanes that the compiler knows.
            panel.iter_mut().zip(&turned).for_each(|(to, turned)| to.copy_from_slice(&turned[..L]));
            continue;
        }
        for (to, turned) in panel.iter_mut().zip(&turned) {
            to[lanes.clone()].copy_from_slice(&turned[..lanes.len()]);
        }
    }
    let rest = parts.into_remainder();
    for (lane, row) in lanes.zip(from) {
        for (to, &x) in rest.iter_mut().zip(&row[row.len() - row.len() % LANES..]) {
            to[lane] = x;
        }
    }
}

/// How the products of two matrices are put into the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Store {
    /// Replaces the result by the sums.
    Replace,
    /// Adds the sums to the result.
    Add,
}

/// A part of a product: rows and columns of the result, and the elements that are summed.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// Rows of the result.
    pub rows: Range<usize>,
    /// Begin at a multiple of [`INNER`].
    pub columns: Range<usize>,
    /// Begin at a multiple of [`INNER`].
    pub inner: Range<usize>,
}

/// A second factor that packs itself.
pub(crate) trait Panels {
    /// Writes the elements of `columns` of all summed elements `inner`.
    fn fill<const L: usize>(
        &mut self,
        isa: Isa,
        columns: &Range<usize>,
        inner: &Range<usize>,
        to: &mut PanelRows<'_, L>,
    );
}

/// Panels of L columns: a row for each summed element. Columns beyond the last are zero.
pub(crate) struct PanelRows<'a, const L: usize> {
    rows: &'a mut [[f32; L]],
    height: usize,
}

impl<const L: usize> PanelRows<'_, L> {
    /// Writes elements of a row from a column on, which is a multiple of 16.
    #[inline(always)]
    pub(crate) fn put(&mut self, row: usize, column: usize, from: &[f32]) {
        let (whole, rest) = from.as_chunks::<LANES>();
        for (at, from) in whole.iter().enumerate() {
            self.part(row, column + at * LANES).copy_from_slice(from);
        }
        if !rest.is_empty() {
            self.part(row, column + whole.len() * LANES)[..rest.len()].copy_from_slice(rest);
        }
    }

    /// Sixteen elements of a row.
    #[inline(always)]
    fn part(&mut self, row: usize, column: usize) -> &mut [f32] {
        &mut self.rows[column / L * self.height + row][column % L..][..LANES]
    }
}

/// Panels of L columns, for tests of those who fill them.
#[cfg(test)]
pub(crate) struct PackedPanels<const L: usize>(Packed);

#[cfg(test)]
impl<const L: usize> PackedPanels<L> {
    pub(crate) fn of(isa: Isa, from: &mut impl Panels, columns: &Range<usize>, inner: &Range<usize>) -> Self {
        // Elements that nobody writes are found.
        let mut packed = Packed { values: vec![Line([f32::NAN; LANES]); 1 << 12], ..Packed::default() };
        packed.pack_as::<L>(isa, from, columns, inner);
        Self(packed)
    }

    pub(crate) fn element(&self, row: usize, column: usize) -> f32 {
        let values: &[f32] = bytemuck::cast_slice(&self.0.values);
        values[(column / L * self.0.inner + row) * L + column % L]
    }
}

/// The second factor of a product. The memory is used again.
#[derive(Debug, Default)]
pub(crate) struct Packed {
    columns: usize,
    inner: usize,
    values: Vec<Line>,
}

/// Elements on a cache line of their own: no load of them reads two.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([f32; LANES]);

/// Memory of one thread for products: used again from product to product.
#[derive(Debug, Default)]
pub(crate) struct ProductScratch {
    /// The second factor.
    pub packed: Packed,
    /// Rows of the first factor.
    pub rows: Vec<f32>,
}

impl ProductScratch {
    /// Computes or adds to `out`, `[rows, columns]`, the product of these rows of `a` and these columns of `b`, summed over `inner`
    /// elements.
    pub(crate) fn multiply<A: FactorRows, B: FactorRows>(
        &mut self,
        isa: Isa,
        (a, rows): (Factor<'_, A>, Range<usize>),
        (b, columns): (Factor<'_, B>, Range<usize>),
        inner: usize,
        store: Store,
        out: &mut impl ResultRows,
    ) {
        self.packed.pack(isa, b, columns.clone(), inner);
        let part = Part { rows, columns: 0..columns.len(), inner: 0..inner };
        self.packed.multiply(isa, a, &part, store, &mut self.rows, out);
    }
}

impl Packed {
    /// Memory for some elements, a multiple of [`LANES`].
    fn room(&mut self, elements: usize) -> &mut [f32] {
        let lines = elements / LANES;
        if self.values.len() < lines {
            self.values.resize(lines, Line([0.0; LANES]));
        }
        bytemuck::cast_slice_mut(&mut self.values[..lines])
    }

    /// Packs `columns` of a factor, with `inner` summed elements.
    pub(crate) fn pack<B: FactorRows>(
        &mut self,
        isa: Isa,
        from: Factor<'_, B>,
        columns: Range<usize>,
        inner: usize,
    ) {
        let shape = Shape::of(isa);
        let padded = columns.len().next_multiple_of(shape.columns());
        (self.columns, self.inner) = (columns.len(), inner);
        let values = self.room(padded * inner);
        for first in (0..inner).step_by(INNER) {
            let piece = first..inner.min(first + INNER);
            let to = &mut values[first * padded..piece.end * padded];
            match shape {
                Shape::Large => from.pack::<{ 2 * LANES }>(isa, &columns, &piece, to),
                Shape::Small => from.pack::<LANES>(isa, &columns, &piece, to),
            }
        }
    }

    /// Packs `columns` of a factor, with the summed elements `inner`, of which there are at most [`INNER`].
    pub(crate) fn pack_itself(
        &mut self,
        isa: Isa,
        from: &mut impl Panels,
        columns: &Range<usize>,
        inner: &Range<usize>,
    ) {
        match Shape::of(isa) {
            Shape::Large => self.pack_as::<{ 2 * LANES }>(isa, from, columns, inner),
            Shape::Small => self.pack_as::<LANES>(isa, from, columns, inner),
        }
    }

    fn pack_as<const L: usize>(
        &mut self,
        isa: Isa,
        from: &mut impl Panels,
        columns: &Range<usize>,
        inner: &Range<usize>,
    ) {
        let height = inner.len();
        assert!(height <= INNER, "summed elements {inner:?} in one piece");
        (self.columns, self.inner) = (columns.len(), height);
        let rows = self.room(columns.len().next_multiple_of(L) * height).as_chunks_mut::<L>().0;
        if !columns.len().is_multiple_of(L) {
            let last = rows.len() - height;
            rows[last..].fill([0.0; L]);
        }
        from.fill(isa, columns, inner, &mut PanelRows { rows, height });
    }

    /// Computes or adds to `out` the product of rows of `a` and columns of this factor. Row 0 and column 0 of `out` are the first
    /// of the part.
    ///
    /// # Panics
    ///
    /// If the part reaches outside the factor.
    pub(crate) fn multiply<A: FactorRows>(
        &self,
        isa: Isa,
        a: Factor<'_, A>,
        part: &Part,
        store: Store,
        memory: &mut Vec<f32>,
        out: &mut impl ResultRows,
    ) {
        assert!(
            part.columns.end <= self.columns && part.inner.end <= self.inner,
            "{part:?} of {} columns and {} summed elements",
            self.columns,
            self.inner
        );
        assert!(
            part.columns.start.is_multiple_of(INNER) && part.inner.start.is_multiple_of(INNER),
            "the beginning of {part:?}"
        );
        if part.inner.is_empty() && store == Store::Replace {
            (0..part.rows.len()).for_each(|row| out.row_mut(row)[..part.columns.len()].fill(0.0));
        }
        match Shape::of(isa) {
            Shape::Large => self.tiles::<12, 2, A>(isa, a, part, store, memory, out),
            Shape::Small => self.tiles::<6, 1, A>(isa, a, part, store, memory, out),
        }
    }

    fn tiles<const M: usize, const N: usize, A: FactorRows>(
        &self,
        isa: Isa,
        a: Factor<'_, A>,
        part: &Part,
        store: Store,
        memory: &mut Vec<f32>,
        out: &mut impl ResultRows,
    ) {
        let lanes = N * LANES;
        let padded = self.columns.next_multiple_of(lanes);
        for first in part.inner.clone().step_by(INNER) {
            let whole = first..self.inner.min(first + INNER);
            let piece = first..part.inner.end.min(first + INNER);
            let store = if first > part.inner.start { Store::Add } else { store };
            let panels = &bytemuck::cast_slice(&self.values)[first * padded..][..whole.len() * padded];
            for start in part.rows.clone().step_by(ROWS) {
                let rows = start..part.rows.end.min(start + ROWS);
                let size = rows.len().next_multiple_of(M) * piece.len();
                if memory.len() < size {
                    memory.resize(size, 0.0);
                }
                a.pack::<M>(isa, &rows, &piece, &mut memory[..size]);
                for column in part.columns.clone().step_by(lanes) {
                    let b = &panels[column * whole.len()..][..piece.len() * lanes];
                    let columns = column..part.columns.end.min(column + lanes);
                    let columns = columns.start - part.columns.start..columns.end - part.columns.start;
                    for (at, a) in memory[..size].chunks_exact(M * piece.len()).enumerate() {
                        let first = rows.start - part.rows.start + at * M;
                        let rows = first..(rows.end - part.rows.start).min(first + M);
                        let columns = columns.clone();
                        let tile = Tile::<_, M, N> { a, b, out: &mut *out, rows, columns, store };
                        crate::simd::vectorize(isa, tile);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(count: usize, seed: u32) -> Vec<f32> {
        (0..count as u32).map(|i| ((i * 37 + seed) % 41) as f32 / 20.0 - 1.0).collect()
    }

    /// All orders of the factors, ragged sizes, parts, and sums that are added.
    #[test]
    fn products_agree_with_their_definition() {
        let (m, n, k) = (101, 300, 515);
        let (a, b) = (values(m * k, 1), values(n * k, 2));
        for isa in Isa::available() {
            for (part, orders) in [
                (Part { rows: 0..m, columns: 0..n, inner: 0..k }, 0),
                (Part { rows: 3..20, columns: 256..n, inner: 256..k }, 1),
                (Part { rows: 7..8, columns: 0..1, inner: 0..300 }, 2),
                (Part { rows: 0..m, columns: 0..37, inner: 0..7 }, 3),
            ] {
                let (a_across, b_across) = (orders & 1 == 1, orders & 2 == 2);
                let element = |of: &[f32], across: bool, outer, i, k_| {
                    if across { of[k_ * outer + i] } else { of[i * k + k_] }
                };
                let a_rows = Strided { values: &a[..], stride: if a_across { m } else { k } };
                let b_rows = Strided { values: &b[..], stride: if b_across { n } else { k } };
                let factor = |rows, across| {
                    if across { Factor::Across(rows) } else { Factor::Summed(rows) }
                };
                let mut packed = Packed::default();
                packed.pack(isa, factor(&b_rows, b_across), 0..n, k);
                let (mut memory, width) = (Vec::new(), part.columns.len());
                let mut c = vec![1.0; part.rows.len() * width];
                for store in [Store::Add, Store::Replace] {
                    let mut out = Strided { values: &mut c[..], stride: width };
                    let rows = factor(&a_rows, a_across);
                    packed.multiply(isa, rows, &part, store, &mut memory, &mut out);
                    for (at, &found) in c.iter().enumerate() {
                        let (i, j) = (part.rows.start + at / width, part.columns.start + at % width);
                        let terms = part.inner.clone().map(|k_| {
                            f64::from(element(&a, a_across, m, i, k_))
                                * f64::from(element(&b, b_across, n, j, k_))
                        });
                        let start = if store == Store::Add { 1.0 } else { 0.0 };
                        let expected = start + terms.sum::<f64>();
                        assert!(
                            (f64::from(found) - expected).abs() < 1e-3,
                            "{}: {part:?} {store:?} {i} {j}: {found}, expected {expected}",
                            isa.name()
                        );
                    }
                }
            }
        }
    }
}
