//! From stored rows to tiles; see [`layout`](super::layout).

use brasa_formats::codec::{
    Block, BlockIQ4NL, BlockIQ4XS, BlockQ2K, BlockQ3K, BlockQ4_0, BlockQ4_1, BlockQ4K, BlockQ5_0, BlockQ5_1,
    BlockQ5K, BlockQ6K, BlockQ8_0,
};
use brasa_formats::{MlxAffine, StorageFormat};

use super::layout::{BLOCK, LANES, Layout, SUPER_BLOCK, SUPER_BLOCKS, Scales, WIDE_BLOCK_BYTES};
use super::planes;

/// One stored row.
#[derive(Clone, Copy)]
pub(super) enum StoredRow<'a> {
    /// Consecutive blocks.
    Blocks(StorageFormat, &'a [u8]),
    /// The three arrays of MLX.
    Mlx { params: MlxAffine, words: &'a [u8], scales: &'a [u8], biases: &'a [u8] },
}

/// Packs up to 16 rows; `tile` is zero before, rows that are not there stay so.
pub(super) fn pack_tile(layout: &Layout, rows: &[StoredRow<'_>], tile: &mut [u8]) {
    for unit in 0..layout.blocks.div_ceil(SUPER_BLOCKS) {
        let first = unit * SUPER_BLOCKS;
        let blocks = SUPER_BLOCKS.min(layout.blocks - first);
        let mut wide = [[0; WIDE_BLOCK_BYTES]; SUPER_BLOCKS];
        for (lane, row) in rows.iter().enumerate() {
            let mut codes = [0; SUPER_BLOCK];
            let mut put = Put { layout, tile, unit, lane };
            match *row {
                StoredRow::Blocks(format, bytes) => put.blocks(format, bytes, blocks, &mut codes),
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
            let packed = &mut tile[layout.code_offset_bytes(first + at)..][..layout.codes.block_bytes()];
            planes::pack(layout.codes, wide, packed);
        }
    }
}

/// Where the scales of one row go, for up to eight blocks.
struct Put<'a> {
    layout: &'a Layout,
    tile: &'a mut [u8],
    unit: usize,
    lane: usize,
}

impl Put<'_> {
    /// Into the vector `offset` bytes behind the start of the scales of block `at` of this unit.
    fn scale(&mut self, at: usize, offset: usize, bytes: &[u8]) {
        let start = self.layout.scale_offset_bytes(self.unit * SUPER_BLOCKS + at);
        self.tile[start + offset + self.lane * bytes.len()..][..bytes.len()].copy_from_slice(bytes);
    }

    fn words(&mut self, offset: usize, bytes: &[u8]) {
        for (index, word) in bytes.as_chunks::<4>().0.iter().enumerate() {
            self.scale(0, offset + index * 4 * LANES, word);
        }
    }

    fn head(&mut self, bytes: &[u8]) {
        self.tile[2 * (self.unit * LANES + self.lane)..][..2].copy_from_slice(bytes);
    }

    fn blocks(&mut self, format: StorageFormat, row: &[u8], blocks: usize, codes: &mut [u8; SUPER_BLOCK]) {
        use StorageFormat as F;
        let bytes = |half: &_| -> [u8; 2] { bytemuck::cast(*half) };
        match format {
            F::Q4_0 => {
                for (at, block, codes) in small::<BlockQ4_0>(row, self.unit, blocks, codes) {
                    self.scale(at, at % 2 * 2 * LANES, &bytes(&block.d));
                    nibbles(&block.qs, codes);
                }
            }
            F::IQ4_NL => {
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
            F::Q2_K => {
                let block: &BlockQ2K = super_block(row, self.unit);
                self.scale(0, 0, &bytes(&block.d));
                self.scale(0, 2 * LANES, &bytes(&block.dmin));
                self.words(4 * LANES, &block.scales);
                *codes = block.codes();
            }
            F::Q3_K => {
                let block: &BlockQ3K = super_block(row, self.unit);
                self.head(&bytes(&block.d));
                self.words(0, &block.scales);
                *codes = block.codes().map(|code| (code + 4) as u8);
            }
            F::Q4_K => {
                let block: &BlockQ4K = super_block(row, self.unit);
                self.scale(0, 0, &bytes(&block.d));
                self.scale(0, 2 * LANES, &bytes(&block.dmin));
                self.words(4 * LANES, &block.scales);
                *codes = block.codes();
            }
            F::Q5_K => {
                let block: &BlockQ5K = super_block(row, self.unit);
                self.scale(0, 0, &bytes(&block.d));
                self.scale(0, 2 * LANES, &bytes(&block.dmin));
                self.words(4 * LANES, &block.scales);
                *codes = block.codes();
            }
            F::Q6_K => {
                let block: &BlockQ6K = super_block(row, self.unit);
                self.head(&bytes(&block.d));
                for (sub, scale) in block.scales.iter().enumerate() {
                    self.scale(sub / 2, sub % 4 * LANES, &scale.to_le_bytes());
                }
                *codes = block.codes().map(|code| (code + 32) as u8);
            }
            F::IQ4_XS => {
                let block: &BlockIQ4XS = super_block(row, self.unit);
                self.scale(0, 0, &bytes(&block.d));
                self.scale(0, 2 * LANES, &block.scales_h);
                self.scale(0, 4 * LANES, &block.scales_l);
                for (qs, codes) in block.qs.as_chunks::<16>().0.iter().zip(codes.as_chunks_mut::<BLOCK>().0) {
                    nibbles(qs, codes);
                }
            }
            F::F32 | F::F16 | F::BF16 | F::MlxAffine(_) => {
                unreachable!("{format} rows have no block layout")
            }
        }
    }

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

/// The blocks of 32 of a unit, each with its number in the unit and the place of its codes.
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

/// Byte j holds element j in its low nibble, element j + 16 in its high nibble.
fn nibbles(qs: &[u8; 16], codes: &mut [u8; BLOCK]) {
    for (index, byte) in qs.iter().enumerate() {
        codes[index] = byte & 15;
        codes[index + 16] = byte >> 4;
    }
}

fn fifth_bits(qh: [u8; 4], codes: &mut [u8; BLOCK]) {
    let bits = u32::from_le_bytes(qh);
    for (index, code) in codes.iter_mut().enumerate() {
        *code |= ((bits >> index & 1) as u8) << 4;
    }
}
