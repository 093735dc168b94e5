//! The shape of a tile of bf16: 16 rows of 32 inputs.

/// Rows of a tile.
pub(crate) const ROWS: usize = 16;
/// Inputs of a tile.
pub(crate) const BF16_INPUTS: usize = 32;

/// A row of a tile, on a cache line of its own: a matrix unit loads a row on two lines in two parts.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
pub struct TileRow(pub(crate) [u16; BF16_INPUTS]);

impl TileRow {
    /// A row of zeroes.
    pub(crate) const ZERO: Self = Self([0; BF16_INPUTS]);
}

/// A tile: 16 rows of activations, 32 inputs each.
pub(crate) type Bf16Rows = [[u16; BF16_INPUTS]; ROWS];
