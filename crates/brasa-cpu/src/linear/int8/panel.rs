//! A tile unpacked to bytes and f32 scales.

use super::super::layout::{LANES, Layout, Shape, UNIT_BLOCKS, WIDE_BLOCK_BYTES};
use super::super::planes::{self, WideBlock};
use super::super::scales::{self, Lanes, UnitScales};

/// An unpacked tile: scratch memory of one thread, reused from tile to tile.
#[derive(Default)]
pub(in super::super) struct Panel {
    /// By block.
    pub(super) codes: Vec<PanelBlock>,
    /// By block or half block, as the shape says.
    pub(super) scales: Vec<PanelLanes>,
    /// As `scales`; empty where there are no minima.
    pub(super) mins: Vec<PanelLanes>,
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct PanelBlock(pub WideBlock);

#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct PanelLanes(pub Lanes);

impl Shape {
    /// Scales of a block.
    pub(in super::super) const fn scales_per_block(self) -> usize {
        match self {
            Self::Whole | Self::WholeMin => 1,
            Self::Halves | Self::HalvesMin => 2,
        }
    }

    pub(in super::super) const fn has_min(self) -> bool {
        matches!(self, Self::WholeMin | Self::HalvesMin)
    }
}

impl Panel {
    /// Makes room for a tile of `layout`.
    pub(super) fn reserve(&mut self, layout: &Layout) {
        let scales = layout.blocks * layout.shape.scales_per_block();
        self.codes.resize(layout.blocks, PanelBlock([0; WIDE_BLOCK_BYTES]));
        self.scales.resize(scales, PanelLanes([0.0; LANES]));
        self.mins.resize(if layout.shape.has_min() { scales } else { 0 }, PanelLanes([0.0; LANES]));
    }

    /// What the kernels rely on: room for a tile of `layout`.
    pub(super) fn check(&self, layout: &Layout) {
        let scales = layout.blocks * layout.shape.scales_per_block();
        let mins = if layout.shape.has_min() { scales } else { 0 };
        let found = (self.codes.len(), self.scales.len(), self.mins.len());
        assert_eq!(found, (layout.blocks, scales, mins), "blocks, scales and minima of a panel");
    }

    /// Unpacks a tile.
    #[inline(always)]
    pub(super) fn fill(&mut self, layout: &Layout, tile: &[u8]) {
        self.fill_scales(layout, tile);
        for_each_block(layout, tile, |block, packed| {
            planes::unpack(layout.codes, packed, &mut self.codes[block].0);
        });
    }

    /// Unpacks the scales alone.
    #[inline(always)]
    pub(super) fn fill_scales(&mut self, layout: &Layout, tile: &[u8]) {
        let per_unit = UNIT_BLOCKS * layout.shape.scales_per_block();
        let mut unpacked = UnitScales::ZERO;
        for unit in 0..layout.units() {
            let (head, stored) = unit_bytes(layout, tile, unit);
            scales::expand(layout, head, unit, stored, &mut unpacked);
            for (out, scale) in self.scales[unit * per_unit..].iter_mut().zip(&unpacked.scale[..per_unit]) {
                out.0 = *scale;
            }
            if layout.shape.has_min() {
                for (out, min) in self.mins[unit * per_unit..].iter_mut().zip(&unpacked.min[..per_unit]) {
                    out.0 = *min;
                }
            }
        }
    }
}

/// The head of a tile, and its bytes from unit `unit` on.
#[inline(always)]
pub(in super::super) fn unit_bytes<'a>(layout: &Layout, tile: &'a [u8], unit: usize) -> (&'a [u8], &'a [u8]) {
    let (head, units) = tile.split_at(layout.head_bytes());
    (head, &units[unit * layout.unit_bytes(UNIT_BLOCKS)..])
}

/// The planes of each block of a tile.
#[inline(always)]
pub(in super::super) fn for_each_block(layout: &Layout, tile: &[u8], mut each: impl FnMut(usize, &[u8])) {
    for unit in 0..layout.units() {
        let blocks = layout.unit_blocks(unit);
        let (_, stored) = unit_bytes(layout, tile, unit);
        let planes = stored[layout.scale_bytes(blocks)..].chunks_exact(layout.codes.block_bytes());
        for (block, packed) in planes.take(blocks).enumerate() {
            each(unit * UNIT_BLOCKS + block, packed);
        }
    }
}
