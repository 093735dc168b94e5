//! Products of packed weights have the same bits on every instruction set, in any company and on any number of threads.

use crate::common::packed::{bits, is_quantised, pack, team, widths};
use crate::common::sets::{emulated_tiles, instruction_sets};
use crate::common::tensors::{Noise, formats, tensor};
use brasa_cpu::quantize::BLOCK;
use brasa_cpu::{Isa, Team};
use brasa_formats::{MlxAffine, StorageFormat};
use brasa_graph::device::Precision;

#[test]
fn every_instruction_set_gives_the_same_bits() {
    let mut noise = Noise::new(3);
    let team = team();
    for format in formats() {
        for k in widths(format) {
            for (n, rows) in [(16, 1), (5, 2), (40, 3), (17, 7), (33, 8), (48, 13), (16, 17), (21, 35)] {
                let packed = pack(&tensor(format, n, k, &mut noise), Precision::Fast);
                let x = noise.activations(rows * k);
                let mut expected = vec![0.0; rows * n];
                packed.apply(Isa::Scalar, &team, &x, &mut expected).unwrap();
                for isa in instruction_sets() {
                    let mut y = vec![f32::NAN; rows * n];
                    packed.apply(isa, &team, &x, &mut y).unwrap();
                    assert_eq!(bits(&y), bits(&expected), "{format} {n}×{k}, {rows} rows on {}", isa.name());
                }
            }
        }
    }
}

/// A format of every shape that tiles scale in their own way, through blocks of results that are not whole: rows and
/// outputs by 16 and by the blocks of tiles, inputs by slice and by panel.
#[test]
fn tiles_give_the_same_bits_at_every_edge() {
    use StorageFormat as F;
    let mut noise = Noise::new(15);
    let team = team();
    let Some(tiles) = emulated_tiles() else { return };
    let mlx = |bits| F::MlxAffine(MlxAffine { bits, group_size: 32 });
    for format in [F::Q4_0, F::Q4_1, mlx(8), F::Q6_K, F::Q2_K] {
        let whole_blocks = format.block_len() / BLOCK;
        let sizes = [(33, 9, 65), (16, 8, 64), (50, 3, 129), (7, 17, 275), (64, 72, 40)];
        for (n, blocks, rows) in sizes.into_iter().chain([(33, 9, 5), (150, 8, 8), (50, 3, 9), (140, 1, 16)])
        {
            let k = (blocks * BLOCK).next_multiple_of(whole_blocks * BLOCK);
            let packed = pack(&tensor(format, n, k, &mut noise), Precision::Fast);
            let x = noise.activations(rows * k);
            let [expected, found] = [Isa::Scalar, tiles].map(|isa| {
                let mut y = vec![f32::NAN; rows * n];
                packed.apply(isa, &team, &x, &mut y).unwrap();
                bits(&y)
            });
            assert_eq!(found, expected, "{format} {n}×{k}, {rows} rows");
        }
    }
}

/// The two numbers are those of AVX2 and AVX-512; every other architecture has to find them too.
#[test]
fn every_architecture_gives_the_same_bits() {
    let team = team();
    for isa in Isa::available() {
        let mut noise = Noise::new(13);
        let mut fingerprints = [Fingerprint::new(); 2];
        for format in formats() {
            for k in widths(format) {
                for (n, rows) in [(21, 1), (16, 3), (5, 13)] {
                    let packed = pack(&tensor(format, n, k, &mut noise), Precision::Fast);
                    let mut y = vec![f32::NAN; rows * n];
                    packed.apply(isa, &team, &noise.activations(rows * k), &mut y).unwrap();
                    fingerprints[usize::from(!is_quantised(&packed))].add(&y);
                }
            }
        }
        let found = fingerprints.map(|fingerprint| fingerprint.0);
        assert_eq!(
            found,
            [0x1588_d403_333e_ed83, 0x8286_dcdf_8028_a56c],
            "quantised and float weights on {}: {found:#018x?}",
            isa.name()
        );
    }
}

#[test]
fn a_row_is_the_same_alone_and_in_any_company_on_any_number_of_threads() {
    let mut noise = Noise::new(4);
    for format in formats() {
        for precision in [Precision::Fast, Precision::Reference] {
            let (n, k, rows) = (72, format.block_len().max(32) * 3, 19);
            let packed = pack(&tensor(format, n, k, &mut noise), precision);
            let x = noise.activations(rows * k);
            for isa in instruction_sets() {
                let team = Team::new(1).unwrap();
                let mut alone = vec![0.0; rows * n];
                for (x, y) in x.chunks(k).zip(alone.chunks_mut(n)) {
                    packed.apply(isa, &team, x, y).unwrap();
                }
                for (threads, at_once) in [(1, 19), (2, 2), (3, 5), (4, 8), (2, 11)] {
                    let team = Team::new(threads).unwrap();
                    let mut y = vec![0.0; rows * n];
                    for (x, y) in x.chunks(k * at_once).zip(y.chunks_mut(n * at_once)) {
                        packed.apply(isa, &team, x, y).unwrap();
                    }
                    assert_eq!(
                        bits(&y),
                        bits(&alone),
                        "{format} {precision:?} {threads} threads, {at_once} rows"
                    );
                }
            }
        }
    }
}

/// A number that tells whether two lists of floats are equal bit for bit: FNV-1a.
#[derive(Clone, Copy, Debug)]
struct Fingerprint(u64);

impl Fingerprint {
    const fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn add(&mut self, values: &[f32]) {
        for value in values {
            self.0 = (self.0 ^ u64::from(value.to_bits())).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}
