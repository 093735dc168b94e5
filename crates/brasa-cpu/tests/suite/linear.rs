//! Products of packed weights against exactly decoded rows, in every storage format, on every instruction set.

use std::ops::Range;

use crate::common::packed::{bits, is_quantised, pack, team, widths};
use crate::common::sets::{instruction_sets, rounding_sets, rounding_tiles};
use crate::common::tensors::{Noise, formats, tensor};
use brasa_cpu::linear::{
    Arithmetic, ExpertGroups, ExpertInput, FloatRows, Input, Output, PackedExperts, PackedLinear, Packer,
    RowMap, STRIP, WeightClass,
};
use brasa_cpu::quantize::{BLOCK, QuantizedRows};
use brasa_cpu::rounded::RoundedRows;
use brasa_cpu::shared::SharedSlice;
use brasa_cpu::{Isa, Team};
use brasa_formats::{MlxAffine, StorageFormat, Tensor};
use brasa_graph::device::Precision;
use brasa_graph::{RowStride, WeightPart};

fn decoded(tensor: &Tensor) -> Vec<f32> {
    let mut rows = vec![0.0; tensor.rows() * tensor.row_len()];
    tensor.decode_rows(0..tensor.rows(), &mut rows).unwrap();
    rows
}

fn product(weights: &[f32], x: &[f32], k: usize) -> Vec<f64> {
    let dot = |x: &[f32], w: &[f32]| x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
    x.chunks(k).flat_map(|x| weights.chunks(k).map(move |w| dot(x, w))).collect()
}

/// Relative L2 within `bound`, and no element off by more than ten times that of the largest.
fn check(found: &[f32], expected: &[f64], bound: f64, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let differences = || found.iter().zip(expected).map(|(found, expected)| f64::from(*found) - expected);
    let error = norm(&mut differences()) / norm(&mut expected.iter().copied()).max(1e-30);
    assert!(error <= bound, "{what}: relative L2 {error:e}, bound {bound:e}");
    let largest = expected.iter().fold(0.0_f64, |largest, value| largest.max(value.abs()));
    let worst = differences().fold(0.0_f64, |worst, difference| worst.max(difference.abs()));
    assert!(worst <= 10.0 * bound * largest, "{what}: off by {worst:e} of {largest:e}");
}

#[test]
fn packed_rows_decode_exactly() {
    let mut noise = Noise::new(1);
    for format in formats() {
        for k in widths(format) {
            for n in [1, 16, 21] {
                let tensor = tensor(format, n, k, &mut noise);
                let expected = decoded(&tensor);
                for precision in [Precision::Fast, Precision::Reference] {
                    let packed = pack(&tensor, precision);
                    let mut row = vec![0.0; k];
                    for (index, expected) in expected.chunks(k).enumerate() {
                        packed.decode_row(index, &mut row);
                        assert_eq!(
                            bits(&row),
                            bits(expected),
                            "{format} {precision:?} row {index} of {n}×{k}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn products_are_those_of_the_decoded_rows() {
    let mut noise = Noise::new(2);
    let team = team();
    for format in formats() {
        for (k, n) in widths(format).into_iter().zip([1, 16, 35, 48, 7, 33, 80]) {
            let tensor = tensor(format, n, k, &mut noise);
            let weights = decoded(&tensor);
            let packed = pack(&tensor, Precision::Fast);
            let rows = 11;
            let x = noise.activations(rows * k);
            // What the int8 class multiplies: the activations after quantisation.
            let mut given = x.clone();
            if is_quantised(&packed) {
                let mut quantized = QuantizedRows::new(rows, k);
                quantized.quantize(Isa::Scalar, &x, 0..rows);
                for (row, given) in given.chunks_mut(k).enumerate() {
                    let quantized = quantized.view().row(row);
                    for (index, given) in given.iter_mut().enumerate() {
                        *given = quantized.blocks[index / BLOCK].scale * f32::from(quantized.codes[index]);
                    }
                }
            }
            for isa in instruction_sets() {
                let mut y = vec![f32::NAN; rows * n];
                packed.apply(isa, &team, &x, &mut y).unwrap();
                let what = format!("{format} {n}×{k} on {}", isa.name());
                check(&y, &product(&weights, &given, k), 2e-6, &what);
                // A handful of products says little about the error of quantising activations.
                let bound = if n * k < 2048 { 6e-2 } else { 1.5e-2 };
                let bound = if is_quantised(&packed) { bound } else { 2e-6 };
                check(&y, &product(&weights, &x, k), bound, &what);
            }
        }
    }
}

fn rounded(values: &[f32]) -> Vec<f32> {
    values.iter().map(|value| half::bf16::from_f32(*value).to_f32()).collect()
}

/// With tiles, products of many rows and quantised weights are in bf16 too.
#[test]
fn quantised_weights_are_rounded_for_many_rows() {
    let mut noise = Noise::new(16);
    let team = team();
    for isa in rounding_tiles() {
        for format in formats() {
            for (blocks, n, rows) in [(1, 16, 48), (3, 33, 70), (4, 7, 64), (9, 17, 49)] {
                let k = blocks * format.block_len().max(BLOCK);
                let tensor = tensor(format, n, k, &mut noise);
                let packed = pack(&tensor, Precision::Fast);
                if !is_quantised(&packed) {
                    continue;
                }
                assert_eq!(Arithmetic::of(isa, WeightClass::Quantised, rows), Arithmetic::Bf16Tiles);
                let x = noise.activations(rows * k);
                let mut y = vec![f32::NAN; rows * n];
                packed.apply(isa, &team, &x, &mut y).unwrap();
                let what = format!("{format} {n}×{k}, {rows} rows on {}", isa.name());
                // A weight that lies between two of bf16 may be rounded either way, as the last bit of its f32 falls.
                check(&y, &product(&rounded(&decoded(&tensor)), &rounded(&x), k), 2e-4, &what);
                check(&y, &product(&decoded(&tensor), &x, k), 1e-2, &what);
            }
        }
    }
}

#[test]
fn products_of_bf16_are_those_of_rounded_operands() {
    let mut noise = Noise::new(12);
    let team = team();
    for isa in rounding_sets() {
        for format in [StorageFormat::F16, StorageFormat::BF16] {
            for (k, n, rows) in [
                (1, 16, 9),
                (31, 5, 17),
                (64, 33, 40),
                (203, 17, 70),
                (520, 50, 33),
                (4128, 16, 130),
                (1056, 33, 530),
            ] {
                let tensor = tensor(format, n, k, &mut noise);
                let packed = pack(&tensor, Precision::Fast);
                let x = noise.activations(rows * k);
                let mut y = vec![f32::NAN; rows * n];
                packed.apply(isa, &team, &x, &mut y).unwrap();
                let what = format!("{format} {n}×{k}, {rows} rows on {}", isa.name());
                check(&y, &product(&rounded(&decoded(&tensor)), &rounded(&x), k), 2e-6, &what);
                check(&y, &product(&decoded(&tensor), &x, k), 1e-2, &what);
                // The same rows in other company, and one step on more threads.
                for at_once in [9, 16, rows] {
                    for (start, part) in (0..rows).step_by(at_once).zip(x.chunks(k * at_once)) {
                        let part_rows = part.len() / k;
                        if part_rows >= 9 {
                            let mut other = vec![f32::NAN; part_rows * n];
                            packed.apply(isa, &Team::new(3).unwrap(), part, &mut other).unwrap();
                            assert_eq!(
                                bits(&other),
                                bits(&y[start * n..][..part_rows * n]),
                                "{what}, by {at_once}"
                            );
                        }
                    }
                }
                // A few rows are computed as everywhere.
                let mut few = vec![f32::NAN; 8.min(rows) * n];
                packed.apply(isa, &team, &x[..8 * k], &mut few).unwrap();
                let mut expected = vec![f32::NAN; 8 * n];
                packed.apply(Isa::Scalar, &team, &x[..8 * k], &mut expected).unwrap();
                assert_eq!(bits(&few), bits(&expected), "{what}, few");
            }
        }
    }
}

#[test]
fn not_a_number_and_infinity_stay_where_they_are() {
    let (n, k, rows) = (16, 64, 20);
    let tensor = tensor(StorageFormat::BF16, n, k, &mut Noise::new(13));
    let packed = pack(&tensor, Precision::Fast);
    let mut x = Noise::new(14).activations(rows * k);
    x[3 * k + 5] = f32::NAN;
    x[7 * k + 60] = f32::INFINITY;
    for isa in instruction_sets().into_iter().chain(rounding_sets()) {
        let mut y = vec![0.0; rows * n];
        packed.apply(isa, &team(), &x, &mut y).unwrap();
        for (row, y) in y.chunks(n).enumerate() {
            let expected = [row == 3, row == 7];
            assert!(
                y.iter().all(|y| [y.is_nan(), y.is_infinite()] == expected),
                "row {row} on {}",
                isa.name()
            );
        }
    }
}

#[test]
fn reference_products_are_exact_to_f32_rounding() {
    let mut noise = Noise::new(5);
    let team = team();
    for format in formats() {
        let (n, k, rows) = (37, format.block_len().max(8) * 5, 3);
        let tensor = tensor(format, n, k, &mut noise);
        let packed = pack(&tensor, Precision::Reference);
        assert!(!is_quantised(&packed));
        assert_eq!(packed.size_bytes(), tensor.size_bytes());
        let x = noise.activations(rows * k);
        for isa in instruction_sets() {
            let mut y = vec![0.0; rows * n];
            packed.apply(isa, &team, &x, &mut y).unwrap();
            check(&y, &product(&decoded(&tensor), &x, k), 1e-6, &format.to_string());
        }
    }
}

#[test]
fn weights_in_f32_want_no_int8_and_their_products_are_exact_to_f32_rounding() {
    let mut noise = Noise::new(12);
    let team = team();
    for format in formats() {
        let (n, k, rows) = (37, format.block_len().max(8) * 5, 9);
        let tensor = tensor(format, n, k, &mut noise);
        let parts = [WeightPart::whole(tensor.clone())];
        let packed = PackedLinear::in_f32("w", &parts, Precision::Fast, &Packer::new(&team)).unwrap();
        assert!(!is_quantised(&packed), "{format}");
        let mut row = vec![0.0; k];
        packed.decode_row(n - 1, &mut row);
        assert_eq!(bits(&row), bits(&decoded(&tensor)[(n - 1) * k..]), "{format}");
        let x = noise.activations(rows * k);
        for isa in Isa::available() {
            let mut y = vec![0.0; rows * n];
            packed.apply(isa, &team, &x, &mut y).unwrap();
            check(&y, &product(&decoded(&tensor), &x, k), 1e-6, &format.to_string());
        }
    }
}

#[test]
fn groups_that_have_no_layout_are_multiplied_exactly() {
    let mut noise = Noise::new(6);
    for group_size in [16, 96, 512] {
        let format = StorageFormat::MlxAffine(MlxAffine { bits: 4, group_size });
        let k = group_size as usize * 2;
        let tensor = tensor(format, 18, k, &mut noise);
        let packed = pack(&tensor, Precision::Fast);
        let x = noise.activations(k);
        let mut y = vec![0.0; 18];
        packed.apply(Isa::detect().unwrap(), &team(), &x, &mut y).unwrap();
        check(&y, &product(&decoded(&tensor), &x, k), 1e-6, &format.to_string());
    }
}

#[test]
fn segments_of_different_formats_write_side_by_side() {
    let mut noise = Noise::new(7);
    let (k, rows) = (512, 9);
    let parts = [(StorageFormat::Q4_K, 40), (StorageFormat::F16, 3), (StorageFormat::Q6_K, 17)];
    let tensors = parts.map(|(format, n)| tensor(format, n + 4, k, &mut noise));
    // Not the first and the last two rows of each.
    let cut = |tensor: &Tensor| WeightPart::of_rows(tensor.clone(), 2..tensor.rows() - 2);
    let packed =
        PackedLinear::new("qkv", &tensors.each_ref().map(cut), Precision::Fast, &Packer::new(&team()))
            .unwrap();
    assert_eq!((packed.n(), packed.k(), packed.strips()), (60, k, 3 + 1 + 2));
    let classes = packed.weight_classes();
    assert!(classes.has(WeightClass::Quantised) && classes.has(WeightClass::Float16));
    assert_eq!(packed.strip_outputs(2), 32..40);
    assert_eq!(packed.strip_outputs(3), 40..43);
    assert_eq!(packed.strip_outputs(5), 59..60);

    let weights: Vec<f32> =
        tensors.iter().flat_map(|tensor| decoded(tensor)[2 * k..(tensor.rows() - 2) * k].to_vec()).collect();
    let x = noise.activations(rows * k);
    let mut y = vec![0.0; rows * 60];
    packed.apply(Isa::detect().unwrap(), &team(), &x, &mut y).unwrap();
    check(&y, &product(&weights, &x, k), 1e-2, "three segments");
    let mut row = vec![0.0; k];
    for (index, expected) in weights.chunks(k).enumerate() {
        packed.decode_row(index, &mut row);
        assert_eq!(bits(&row), bits(expected), "row {index}");
    }
    for threads in 1..9 {
        let mut next = 0;
        for thread in 0..threads {
            let share = packed.share(threads, thread);
            assert_eq!(share.start, next);
            next = share.end;
        }
        assert_eq!(next, packed.strips());
    }
}

#[test]
fn rows_in_turns_are_packed_like_rows_in_order() {
    let mut noise = Noise::new(31);
    let team = team();
    for format in formats() {
        let (n, k) = (21, format.block_len().max(8) * 8);
        let tensor = tensor(format, 2 * n, k, &mut noise);
        let all = decoded(&tensor);
        for precision in [Precision::Fast, Precision::Reference] {
            let halves =
                [0, 1].map(|first| WeightPart::of_stride(tensor.clone(), RowStride { first, step: 2 }));
            let packed = PackedLinear::new("gate|up", &halves, precision, &Packer::new(&team)).unwrap();
            assert_eq!((packed.n(), packed.k()), (2 * n, k), "{format}");
            let mut row = vec![0.0; k];
            for index in 0..2 * n {
                packed.decode_row(index, &mut row);
                let stored = if index < n { 2 * index } else { 2 * (index - n) + 1 };
                assert_eq!(bits(&row), bits(&all[stored * k..][..k]), "{format}, row {index}");
            }
            let both = PackedExperts::new("odd", &halves[1..], 3, precision, &Packer::new(&team)).unwrap();
            both.experts()[1].decode_row(2, &mut row);
            assert_eq!(bits(&row), bits(&all[(2 * 9 + 1) * k..][..k]), "{format}");
        }
    }
}

#[test]
fn expert_rows_equal_each_experts_own_product() {
    let mut noise = Noise::new(8);
    let (count, n, k, chosen) = (6, 24, 256, 2);
    let cases = rounding_sets().into_iter().map(|isa| (isa, 290)).chain([(Isa::detect().unwrap(), 13)]);
    let formats = [StorageFormat::Q4_K, StorageFormat::Q8_0, StorageFormat::BF16];
    for ((isa, rows), format) in cases.flat_map(|case| formats.map(|format| (case, format))) {
        let tensor = tensor(format, count * n, k, &mut noise);
        let parts = [
            WeightPart::of_rows(tensor.clone(), 0..n + 5),
            WeightPart::of_rows(tensor.clone(), n + 5..count * n),
        ];
        let experts =
            PackedExperts::new("experts", &parts, count, Precision::Fast, &Packer::new(&team())).unwrap();
        let x = noise.activations(rows * k);
        let choices: Vec<u32> =
            (0..rows).flat_map(|row| [(row * row % 5) as u32, ((row + 3) % 6) as u32]).collect();
        let mut groups = ExpertGroups::default();
        groups.gather(&choices, chosen, count, ExpertInput::Shared);

        let mut quantized = QuantizedRows::new(rows, k);
        quantized.quantize(isa, &x, 0..rows);
        let mut rounded = RoundedRows::default();
        rounded.reshape(rows, k);
        rounded.round(isa, &x, k, 0..rows);
        let float = FloatRows { values: &x, k, stride: k };
        let input = Input { float: Some(float), int8: Some(quantized.view()), bf16: Some(rounded.view()) };
        let mut y = vec![f32::NAN; rows * chosen * n];
        let output = Output { values: SharedSlice::new(&mut y), stride: n, column: 0 };
        team()
            .run(|thread, barrier| {
                #[expect(unsafe_code, reason = "the shares of threads are disjoint")]
                // SAFETY: as the reason says.
                unsafe {
                    experts.multiply_share(isa, &input, &groups, &output, barrier.threads(), thread);
                }
            })
            .unwrap();

        for expert in 0..count {
            let of_expert: Vec<usize> =
                (0..choices.len()).filter(|&index| choices[index] as usize == expert).collect();
            let x: Vec<f32> =
                of_expert.iter().flat_map(|index| &x[index / chosen * k..][..k]).copied().collect();
            let mut own = vec![0.0; of_expert.len() * n];
            experts.experts()[expert].apply(isa, &team(), &x, &mut own).unwrap();
            for (index, own) in of_expert.into_iter().zip(own.chunks(n)) {
                assert_eq!(
                    bits(&y[index * n..][..n]),
                    bits(own),
                    "{format} choice {index} on {}",
                    isa.name()
                );
            }
        }
    }
}

/// With residuals, int8 activations are good to 15 bits, on every instruction set alike and whatever other rows there are.
#[test]
fn residuals_make_good_what_rounding_takes() {
    use StorageFormat as F;
    let mut noise = Noise::new(16);
    let mlx = F::MlxAffine(MlxAffine { bits: 4, group_size: 32 });
    for (format, (n, k)) in [F::Q4_0, F::Q6_K, F::Q2_K, F::Q4_1, mlx].into_iter().zip([
        (150, 96),
        (33, 256),
        (17, 2304),
        (40, 2144),
        (129, 64),
    ]) {
        let tensor = tensor(format, n, k, &mut noise);
        let (weights, packed) = (decoded(&tensor), pack(&tensor, Precision::Fast));
        let x = noise.activations(70 * k);
        let multiply = |isa: Isa, rows: Range<usize>| {
            let mut quantized = QuantizedRows::default();
            quantized.reshape_with_residuals(rows.len(), k);
            quantized.quantize(isa, &x[rows.start * k..rows.end * k], 0..rows.len());
            let input = Input { int8: Some(quantized.view()), ..Input::default() };
            let mut y = vec![f32::NAN; rows.len() * n];
            let output = Output { values: SharedSlice::new(&mut y), stride: n, column: 0 };
            #[expect(unsafe_code, reason = "one thread")]
            // SAFETY: no other thread knows `y`.
            unsafe {
                packed.multiply(isa, &input, RowMap::All(rows.len()), &output, 0..packed.strips());
            }
            y
        };
        let all = multiply(Isa::Scalar, 0..70);
        check(&all, &product(&weights, &x, k), 1e-4, &format!("{format} {n}×{k}"));
        for isa in instruction_sets() {
            for rows in [0..70, 3..4, 5..7, 8..17, 20..41] {
                let expected = &all[rows.start * n..rows.end * n];
                let what = format!("{format} {n}×{k}, rows {rows:?} on {}", isa.name());
                assert_eq!(bits(&multiply(isa, rows)), bits(expected), "{what}");
            }
        }
    }
}

/// From the second strip of either on, through chunks that are not whole.
#[test]
fn gates_and_what_they_let_through_are_multiplied_side_by_side_alike() {
    let mut noise = Noise::new(19);
    let team = team();
    for isa in rounding_sets() {
        for format in [StorageFormat::Q4_0, StorageFormat::Q6_K, StorageFormat::F16, StorageFormat::BF16] {
            for (n, k, rows) in [(75, 256, 65), (300, 512, 48), (16 + 7, 256, 70)] {
                let [gate, up] = [(); 2].map(|()| pack(&tensor(format, n, k, &mut noise), Precision::Fast));
                let x = noise.activations(rows * k);
                let [gates, ups] = [&gate, &up].map(|packed| {
                    let mut y = vec![f32::NAN; rows * n];
                    packed.apply(isa, &team, &x, &mut y).unwrap();
                    y
                });
                let mut rounded = RoundedRows::default();
                rounded.reshape(rows, k);
                rounded.round(isa, &x, k, 0..rows);
                let input = Input { bf16: Some(rounded.view()), ..Input::default() };
                let outputs = n - STRIP;
                let mut y = vec![-7.0; rows * n];
                let output = Output { values: SharedSlice::new(&mut y), stride: n, column: 3 };
                let finish = |gates: &mut [f32], ups: &[f32]| {
                    for (gate, up) in gates.iter_mut().zip(ups) {
                        *gate -= 2.0 * up;
                    }
                };
                #[expect(unsafe_code, reason = "one thread")]
                // SAFETY: no other thread knows `y`.
                let together = unsafe {
                    gate.multiply_gated(&up, isa, (&input, rows), &output, ([1, 1], outputs), finish)
                };
                let rounds = !is_quantised(&gate) || isa.has_tiles();
                assert_eq!(together, rounds, "{format} on {}", isa.name());
                for (index, found) in y.iter().enumerate().filter(|_| together) {
                    let (row, column) = (index / n, index % n);
                    let expected = match column.checked_sub(3).filter(|column| *column < outputs) {
                        None => -7.0,
                        Some(column) => {
                            let at = row * n + STRIP + column;
                            gates[at] - 2.0 * ups[at]
                        }
                    };
                    assert_eq!(found.to_bits(), expected.to_bits(), "{format} {} row {row}", isa.name());
                }
            }
        }
    }
}

#[test]
fn nothing_outside_the_claimed_strips_is_written() {
    let mut noise = Noise::new(9);
    let (n, k, stride) = (42, 96, 50);
    let packed = pack(&tensor(StorageFormat::Q5_0, n, k, &mut noise), Precision::Fast);
    let x = noise.activations(2 * k);
    for isa in instruction_sets() {
        let mut quantized = QuantizedRows::new(2, k);
        quantized.quantize(isa, &x, 0..2);
        let input = Input { int8: Some(quantized.view()), ..Input::default() };
        let mut y = vec![-7.0; 2 * stride];
        let output = Output { values: SharedSlice::new(&mut y), stride, column: 3 };
        #[expect(unsafe_code, reason = "one thread")]
        // SAFETY: no other thread knows `y`.
        unsafe {
            packed.multiply(isa, &input, RowMap::All(2), &output, 1..3);
        }
        for (index, value) in y.iter().enumerate() {
            let claimed = (3 + STRIP..3 + n).contains(&(index % stride));
            assert_eq!(value.to_bits() != (-7.0_f32).to_bits(), claimed, "element {index}");
        }
    }
}

#[test]
fn packing_keeps_the_stored_size() {
    let mut noise = Noise::new(10);
    for format in formats() {
        let tensor = tensor(format, 64, 1024, &mut noise);
        let (packed, stored) = (pack(&tensor, Precision::Fast).size_bytes(), tensor.size_bytes());
        assert!(packed * 100 <= stored * 101, "{format}: {packed} bytes of {stored}");
    }
}

#[test]
fn contradictory_weights_are_refused() {
    let mut noise = Noise::new(11);
    let good = tensor(StorageFormat::Q4_0, 4, 64, &mut noise);
    let team = team();
    let refuse = |part: WeightPart| {
        PackedLinear::new("w", &[part], Precision::Fast, &Packer::new(&team))
            .map(|_| ())
            .unwrap_err()
            .to_string()
    };
    let outside = WeightPart::of_rows(good.clone(), 2..5);
    assert_eq!(refuse(outside), "random.Q4_0: rows 2..5, expected rows within 0..4");
    let longer = Tensor { shape: vec![5, 64], ..good.clone() };
    assert_eq!(refuse(WeightPart::whole(longer)), "random.Q4_0: 144 bytes, expected 5 rows of 36 bytes");
    let broken = Tensor { shape: vec![4, 48], ..good };
    assert_eq!(refuse(WeightPart::whole(broken)), "random.Q4_0: rows of 48, expected whole blocks of Q4_0");
}
