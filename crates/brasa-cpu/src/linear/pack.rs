//! From stored rows to strips in the order that [`layout`](super::layout) describes.

use brasa_formats::MlxAffine;
use brasa_formats::codec::{
    Block, BlockIQ4NL, BlockIQ4XS, BlockQ2K, BlockQ3K, BlockQ4_0, BlockQ4_1, BlockQ4K, BlockQ5_0, BlockQ5_1,
    BlockQ5K, BlockQ6K, BlockQ8_0,
};

use super::formats::{Format, Scales};
use super::layout::{BLOCK, LANES, Layout, SUPER_BLOCK, SUPER_BLOCKS, WIDE_BLOCK_BYTES};
use super::planes;
use super::stored::StoredRow;

/// Packs up to 16 rows. `strip` must be zero before; missing rows stay zero.
pub(super) fn pack_strip(layout: &Layout, rows: &[StoredRow<'_>], strip: &mut [u8]) {
    for unit in 0..layout.blocks.div_ceil(SUPER_BLOCKS) {
        let first = unit * SUPER_BLOCKS;
        let blocks = SUPER_BLOCKS.min(layout.blocks - first);
        let mut wide = [[0; WIDE_BLOCK_BYTES]; SUPER_BLOCKS];
        for (lane, row) in rows.iter().enumerate() {
            let mut codes = [0; SUPER_BLOCK];
            let mut put = Put { layout, strip, unit, lane };
            match *row {
                StoredRow::Blocks(bytes) => put.blocks(bytes, blocks, &mut codes),
                StoredRow::Mlx { params, words, scales, biases } => {
                    put.mlx(params, words, [scales, biases], blocks, &mut codes);
                }
            }
            for (wide, codes) in wide.iter_mut().zip(codes.as_chunks::<BLOCK>().0).take(blocks) {
                for (group, codes) in codes.as_chunks::<4>().0.iter().enumerate() {
                    wide[4 * (LANES * group + lane)..][..4].copy_from_slice(codes);
                }
            }
        }
        for (at, wide) in wide.iter().enumerate().take(blocks) {
            let packed = &mut strip[layout.code_offset_bytes(first + at)..][..layout.block_bytes()];
            planes::pack(layout.codes, wide, packed);
        }
    }
}

/// Memory for the scales of one row, for up to eight blocks.
struct Put<'a> {
    layout: &'a Layout,
    strip: &'a mut [u8],
    unit: usize,
    lane: usize,
}

impl Put<'_> {
    /// Writes `bytes` to this row's lane of the vector `offset` bytes behind the start of the scales of block `at`.
    fn scale(&mut self, at: usize, offset: usize, bytes: &[u8]) {
        let start = self.layout.scale_offset_bytes(self.unit * SUPER_BLOCKS + at);
        self.strip[start + offset + self.lane * bytes.len()..][..bytes.len()].copy_from_slice(bytes);
    }

    /// Writes words to this row's lanes of consecutive vectors, the first `offset` bytes behind the start of the scales.
    fn words(&mut self, offset: usize, bytes: &[u8]) {
        for (index, word) in bytes.as_chunks::<4>().0.iter().enumerate() {
            self.scale(0, offset + index * 4 * LANES, word);
        }
    }

    /// Writes a super-block's scale and minimum scale, and the words of its blocks' scales.
    fn two_scales(&mut self, [d, dmin]: [[u8; 2]; 2], words: &[u8]) {
        self.scale(0, 0, &d);
        self.scale(0, 2 * LANES, &dmin);
        self.words(4 * LANES, words);
    }

    /// Writes the super-block's scale to the strip's head.
    fn head(&mut self, bytes: &[u8]) {
        self.strip[2 * (self.unit * LANES + self.lane)..][..2].copy_from_slice(bytes);
    }

    /// Takes blocks of the layout's format: an arm for each format.
    fn blocks(&mut self, row: &[u8], blocks: usize, codes: &mut [u8; SUPER_BLOCK]) {
        use Format as F;
        let bytes = |half: &_| -> [u8; 2] { bytemuck::cast(*half) };
        match self.layout.format {
            F::Q4_0 => {
                for (at, block, codes) in small::<BlockQ4_0>(row, self.unit, blocks, codes) {
                    self.scale(at, at % 2 * 2 * LANES, &bytes(&block.d));
                    nibbles(&block.qs, codes);
                }
            }
            F::Iq4Nl => {
                for (at, block, codes) in small::<BlockIQ4NL>(row, self.unit, blocks, codes) {
                    self.scale(at, at % 2 * 2 * LANES, &bytes(&block.d));
                    nibbles(&block.qs, codes);
                }
            }
            F::Q4_1 => {
                for (at, block, codes) in small::<BlockQ4_1>(row, self.unit, blocks, codes) {
                    self.scale(at, 0, &bytes(&block.d));
                    self.scale(at, 2 * LANES, &bytes(&block.m));
                    nibbles(&block.qs, codes);
                }
            }
            F::Q5_0 => {
                for (at, block, codes) in small::<BlockQ5_0>(row, self.unit, blocks, codes) {
                    self.scale(at, at % 2 * 2 * LANES, &bytes(&block.d));
                    nibbles(&block.qs, codes);
                    fifth_bits(block.qh, codes);
                }
            }
            F::Q5_1 => {
                for (at, block, codes) in small::<BlockQ5_1>(row, self.unit, blocks, codes) {
                    self.scale(at, 0, &bytes(&block.d));
                    self.scale(at, 2 * LANES, &bytes(&block.m));
                    nibbles(&block.qs, codes);
                    fifth_bits(block.qh, codes);
                }
            }
            F::Q8_0 => {
                for (at, block, codes) in small::<BlockQ8_0>(row, self.unit, blocks, codes) {
                    self.scale(at, at % 2 * 2 * LANES, &bytes(&block.d));
                    *codes = block.qs.map(|code| code as u8 ^ 0x80);
                }
            }
            F::Q2K => {
                let block: &BlockQ2K = super_block(row, self.unit);
                self.two_scales([&block.d, &block.dmin].map(bytes), &block.scales);
                *codes = block.codes();
            }
            F::Q3K => {
                let block: &BlockQ3K = super_block(row, self.unit);
                self.head(&bytes(&block.d));
                self.words(0, &block.scales);
                *codes = block.codes().map(|code| (code + 4) as u8);
            }
            F::Q4K => {
                let block: &BlockQ4K = super_block(row, self.unit);
                self.two_scales([&block.d, &block.dmin].map(bytes), &block.scales);
                *codes = block.codes();
            }
            F::Q5K => {
                let block: &BlockQ5K = super_block(row, self.unit);
                self.two_scales([&block.d, &block.dmin].map(bytes), &block.scales);
                *codes = block.codes();
            }
            F::Q6K => {
                let block: &BlockQ6K = super_block(row, self.unit);
                self.head(&bytes(&block.d));
                for (sub, scale) in block.scales.iter().enumerate() {
                    self.scale(sub / 2, sub % 4 * LANES, &scale.to_le_bytes());
                }
                *codes = block.codes().map(|code| (code + 32) as u8);
            }
            F::Iq4Xs => {
                let block: &BlockIQ4XS = super_block(row, self.unit);
                self.scale(0, 0, &bytes(&block.d));
                self.scale(0, 2 * LANES, &block.scales_h);
                self.scale(0, 4 * LANES, &block.scales_l);
                for (qs, codes) in block.qs.as_chunks::<16>().0.iter().zip(codes.as_chunks_mut::<BLOCK>().0) {
                    nibbles(qs, codes);
                }
            }
            F::Mlx2 | F::Mlx3 | F::Mlx4 | F::Mlx5 | F::Mlx6 | F::Mlx8 => {
                unreachable!("MLX rows are three arrays")
            }
        }
    }

    /// Takes groups of MLX.
    fn mlx(
        &mut self,
        params: MlxAffine,
        words: &[u8],
        pairs: [&[u8]; 2],
        blocks: usize,
        codes: &mut [u8; SUPER_BLOCK],
    ) {
        let Scales::Affine { group_blocks, float } = self.layout.scales else {
            unreachable!("MLX rows with {:?}", self.layout.scales)
        };
        let bits = usize::from(params.bits);
        let mask = (1 << bits) - 1;
        let words = &words[self.unit * SUPER_BLOCK / 8 * bits..];
        for (codes, bytes) in codes.chunks_exact_mut(8).zip(words.chunks_exact(bits)).take(blocks * BLOCK / 8)
        {
            let mut packed = [0; 8];
            packed[..bits].copy_from_slice(bytes);
            let packed = u64::from_le_bytes(packed);
            for (index, code) in codes.iter_mut().enumerate() {
                *code = (packed >> (index * bits) & mask) as u8;
            }
        }
        let width = float.bytes();
        for at in (0..blocks).step_by(group_blocks) {
            let group = (self.unit * SUPER_BLOCKS + at) / group_blocks;
            for (index, values) in pairs.iter().enumerate() {
                self.scale(at, index * LANES * width, &values[group * width..][..width]);
            }
        }
    }
}

/// The blocks of 32 inputs of a unit, each with its number in the unit and the memory for its codes.
fn small<'a, B: Block>(
    row: &'a [u8],
    unit: usize,
    blocks: usize,
    codes: &'a mut [u8; SUPER_BLOCK],
) -> impl Iterator<Item = (usize, &'a B, &'a mut [u8; BLOCK])> {
    let row: &[B] = bytemuck::cast_slice(row);
    let codes = codes.as_chunks_mut::<BLOCK>().0;
    row[unit * SUPER_BLOCKS..][..blocks]
        .iter()
        .zip(codes)
        .enumerate()
        .map(|(at, (block, codes))| (at, block, codes))
}

fn super_block<B: Block>(row: &[u8], unit: usize) -> &B {
    &bytemuck::cast_slice(row)[unit]
}

/// Writes codes of 4 bits: byte j holds element j in its low nibble, element j + 16 in its high nibble.
fn nibbles(qs: &[u8; 16], codes: &mut [u8; BLOCK]) {
    for (index, byte) in qs.iter().enumerate() {
        codes[index] = byte & 15;
        codes[index + 16] = byte >> 4;
    }
}

/// Adds the fifth bit to codes of 4 bits.
fn fifth_bits(qh: [u8; 4], codes: &mut [u8; BLOCK]) {
    let bits = u32::from_le_bytes(qh);
    for (index, code) in codes.iter_mut().enumerate() {
        *code |= ((bits >> index & 1) as u8) << 4;
    }
}
