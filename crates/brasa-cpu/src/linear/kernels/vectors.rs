//! The operations of an instruction set, over which the kernels of this folder are written once.
//!
//! The 16 outputs of a strip fill [`PARTS`](Vectors::PARTS) vectors: one of AVX-512, two of AVX2, four of NEON. In every vector
//! the 32-bit lane is the output. [`Vectors`] has what all extensions of a width share, [`Dots`] the ways to multiply codes.
//!
//! The values that implement the traits prove that the processor has the instructions, as those of [`Simd`](crate::simd::Simd) do.
//! All methods are `#[inline(always)]` and work only at full speed inside of [`Work::run`], which [`Dots::run`] compiles
//! for the instructions. A function that is not inlined there, such as a large closure, would call each instruction.
#![expect(unsafe_code, reason = "methods that read and write through pointers")]

use std::ops::IndexMut;

use super::super::formats::{Kind, Meaning, Width};
use super::super::layout::{LANES, Lanes};
use super::super::scales::WidenF16;

/// Vectors of an instruction set.
///
/// # Safety of the unsafe methods
///
/// Pointers are readable, or writable, for a vector of the named elements. They need no alignment.
pub(in super::super) trait Vectors: Copy {
    /// Four codes of one byte for each output.
    type Codes: Copy;
    /// An i32 for each output.
    type Ints: Copy;
    /// An f32 for each output.
    type Floats: Copy;
    /// The floats of all parts of a strip.
    type Parts: Copy + IndexMut<usize, Output = Self::Floats>;
    /// Four activations that are multiplied with one output's weights after another.
    type FourInputs: Copy;

    /// Vectors of a strip.
    const PARTS: usize;
    /// Outputs of a vector.
    const OUTPUTS: usize = LANES / Self::PARTS;
    /// Bytes of a vector.
    const BYTES: usize = 4 * Self::OUTPUTS;

    /// All parts zero.
    fn zero_parts(self) -> Self::Parts;

    unsafe fn load_codes(self, from: *const u8) -> Self::Codes;
    unsafe fn store_codes(self, codes: Self::Codes, to: *mut u8);
    /// Sixteen bytes of a table, chosen by codes below 16.
    fn look_up(self, table: &[u8; 16], codes: Self::Codes) -> Self::Codes;
    /// The bits `mask` from place `from` of every byte, moved to place `to`. Places are constants of the caller.
    fn bits(self, codes: Self::Codes, from: usize, to: usize, mask: u8) -> Self::Codes;
    fn or(self, a: Self::Codes, b: Self::Codes) -> Self::Codes;
    /// Subtracts `offset` from every byte; wraps.
    fn minus(self, codes: Self::Codes, offset: u8) -> Self::Codes;

    fn floats(self, ints: Self::Ints) -> Self::Floats;
    unsafe fn load(self, from: *const f32) -> Self::Floats;
    unsafe fn store(self, floats: Self::Floats, to: *mut f32);
    fn splat(self, value: f32) -> Self::Floats;
    fn add(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    fn mul(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a · b + c`, rounded once.
    fn mul_add(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;

    unsafe fn load_f16(self, from: *const u8) -> Self::Floats;
    /// Two inputs of bf16: the low and the high half of every lane.
    unsafe fn load_bf16_pair(self, from: *const u8) -> [Self::Floats; 2];
    unsafe fn load_four(self, from: *const f32) -> Self::FourInputs;
    /// Adds the products of one input's weights with activation number AT of four, which must still be where they were loaded.
    unsafe fn add_product<const AT: usize>(
        self,
        weights: Self::Floats,
        x: Self::FourInputs,
        sum: Self::Floats,
    ) -> Self::Floats;
}

impl<V: Vectors> WidenF16 for V {
    #[inline(always)]
    fn widen(self, bytes: &[u8; 2 * LANES]) -> Lanes {
        let mut lanes = [0.0; LANES];
        for first in (0..LANES).step_by(V::OUTPUTS) {
            // SAFETY: a vector of f16 is read, as many floats are written.
            unsafe {
                self.store(self.load_f16(bytes.as_ptr().add(2 * first)), lanes.as_mut_ptr().add(first));
            };
        }
        lanes
    }
}

/// Codes of a [`Dots`].
pub(in super::super) type Codes<D> = <<D as Dots>::V as Vectors>::Codes;
/// Sums of a [`Dots`]: of a block, or of each half of it if its shape has halves. The second is else undefined.
pub(in super::super) type Sums<D> = [<<D as Dots>::V as Vectors>::Ints; 2];

/// The codes that an instruction set multiplies as signed bytes, with their offset subtracted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Centring {
    /// No offset: the instruction multiplies unsigned by signed bytes.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "an instruction of x86-64"))]
    Never,
    /// Whole bytes, whose products with activations would overflow sums of 16 bits.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "an instruction of x86-64"))]
    Bytes,
    /// Whole bytes, and in panels all codes without a minimum: the instruction multiplies signed bytes.
    #[cfg_attr(not(target_arch = "aarch64"), expect(dead_code, reason = "instructions of aarch64"))]
    Signed,
}

impl Centring {
    /// True if a kernel that unpacks centres codes of meaning M.
    pub const fn of_planes<M: Meaning>(self) -> bool {
        !matches!(self, Self::Never) && matches!(M::WIDTH, Width::Eight)
    }

    /// True if a panel keeps codes of meaning M centred.
    pub const fn of_panels<M: Meaning>(self) -> bool {
        self.of_planes::<M>() || matches!(self, Self::Signed) && !M::SHAPE.has_min()
    }
}

/// The multiple of `Σa` that is added to `Σ code·a`.
///
/// A format with a minimum means codes from zero on, any other format means centred codes.
pub(in super::super) const fn correction(offset: u8, has_min: bool, centred: bool) -> i32 {
    (if centred { offset as i32 } else { 0 }) - (if has_min { 0 } else { offset as i32 })
}

/// An instruction set's way to multiply codes of one byte with activations. All sums are exact.
///
/// # Safety of the unsafe methods
///
/// `x` is readable for 32 codes, each in −127..=127.
pub(in super::super) trait Dots: Copy {
    /// The vectors that codes and sums are in, which by themselves multiply floats.
    type V: Vectors + Dots;
    /// The codes that are centred before they are multiplied.
    const CENTRING: Centring;
    /// Most rows that a kernel of planes multiplies at once.
    const PLANE_ROWS: usize;
    /// Most rows that a kernel of panels multiplies at once.
    const PANEL_ROWS: usize;
    /// True if two rows of a panel are multiplied together.
    const PAIRS: bool = false;

    /// True if several rows meet a panel's whole bytes group by group, by [`panel_dots_of_rows`](Self::panel_dots_of_rows).
    const BYTES_BY_GROUPS: bool = false;

    /// True if one row is multiplied with the two parts of a block together, by [`dots_of_parts`](Self::dots_of_parts).
    const TWO_PARTS_OF_A_ROW: bool = false;

    /// The proof for the vectors.
    fn vectors(self) -> Self::V;

    /// Does `work` in a function that is compiled for the instructions.
    fn run(self, work: impl Work);

    /// `start` plus the products of codes in the order of planes. R says how many rows follow each other.
    unsafe fn dots<M: Meaning, const R: usize>(
        self,
        start: [i32; 2],
        weights: &[Codes<Self>; 8],
        x: *const i8,
    ) -> Sums<Self>;

    /// Does for both parts of a block what [`dots`](Self::dots) does for one, with codes that are unpacked on the way: an
    /// activation is read once for both and no unpacked code is kept, where registers are few.
    ///
    /// # Safety
    ///
    /// `planes` points to a packed block of kind K.
    #[inline(always)]
    unsafe fn dots_of_parts<K: Kind>(
        self,
        _start: [i32; 2],
        _planes: *const u8,
        _x: *const i8,
        _centred: bool,
    ) -> [Sums<Self>; 2] {
        unreachable!("an instruction set that multiplies part by part")
    }

    /// Codes in the order in which a panel keeps them.
    #[inline(always)]
    fn arrange(self, weights: [Codes<Self>; 8]) -> [Codes<Self>; 8] {
        weights
    }

    /// `start` plus the products of codes in a panel's order.
    #[inline(always)]
    unsafe fn panel_dots<M: Meaning, const R: usize>(
        self,
        start: [i32; 2],
        weights: &[Codes<Self>; 8],
        x: *const i8,
    ) -> Sums<Self> {
        // SAFETY: by the contract.
        unsafe { self.dots::<M, R>(start, weights, x) }
    }

    /// The sums of two rows with codes in a panel's order.
    #[inline(always)]
    unsafe fn panel_dots_of_pair<M: Meaning>(
        self,
        start: [[i32; 2]; 2],
        weights: &[Codes<Self>; 8],
        x: [*const i8; 2],
    ) -> [Sums<Self>; 2] {
        // SAFETY: by the contract.
        unsafe {
            [
                self.panel_dots::<M, 2>(start[0], weights, x[0]),
                self.panel_dots::<M, 2>(start[1], weights, x[1]),
            ]
        }
    }

    /// The sums of R rows with a part of a block of a panel, which has whole bytes: what each group of codes has to be
    /// prepared by is done once for all rows, where registers do not hold it for eight groups.
    ///
    /// # Safety
    ///
    /// `codes` points to the eight vectors of the part.
    #[inline(always)]
    unsafe fn panel_dots_of_rows<M: Meaning, const R: usize>(
        self,
        _start: [[i32; 2]; R],
        _codes: *const u8,
        _x: [*const i8; R],
    ) -> [Sums<Self>; R] {
        unreachable!("an instruction set that multiplies row by row")
    }
}

/// Code that is compiled for every instruction set. `run` must be `#[inline(always)]`.
pub(in super::super) trait Work {
    /// Does the work with the instructions of `dots`.
    fn run<D: Dots>(self, dots: D);
}

/// Evaluates the expression with constant `$index` from 0 to 7, to an array.
macro_rules! eight {
    ($index:ident => $value:expr) => {
        eight!(@ $index, $value, 0 1 2 3 4 5 6 7)
    };
    (@ $index:ident, $value:expr, $($number:literal)*) => {
        [$({
            const $index: usize = $number;
            $value
        }),*]
    };
}
pub(super) use eight;

/// Methods of [`Vectors`] that are one expression of intrinsics each.
macro_rules! one_each {
    ($($name:ident($($operand:ident: $operand_type:ty),*) -> $result:ty = $value:expr;)*) => {$(
        #[inline(always)]
        fn $name(self, $($operand: $operand_type),*) -> $result {
            // SAFETY: `self` proves the instructions.
            unsafe { $value }
        }
    )*};
}
pub(super) use one_each;

/// Unsafe methods of [`Vectors`] that are one expression of intrinsics each.
macro_rules! one_each_of_memory {
    ($($name:ident($($operand:ident: $operand_type:ty),*) $(-> $result:ty)? = $value:expr;)*) => {$(
        #[inline(always)]
        unsafe fn $name(self, $($operand: $operand_type),*) $(-> $result)? {
            // SAFETY: `self` proves the instructions; memory by the contract.
            unsafe { $value }
        }
    )*};
}
pub(super) use one_each_of_memory;
