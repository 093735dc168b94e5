//! Decoders against the public Python ones, bit for bit (values of `tools/golden/codec_decode.py`).

use brasa_formats::codec::{self, CodecError, mlx};
use brasa_formats::{Bytes, MlxAffine, Payload, StorageFormat, Tensor};
use serde_json::Value;

const CASES: &str = include_str!("../golden/codec_decode.json");
static BLOB: &[u8] = include_bytes!("../golden/codec_decode.bin");

fn format_named(name: &str) -> StorageFormat {
    StorageFormat::GGUF.into_iter().find(|format| format.to_string() == name).expect("a known format")
}

fn number(case: &Value, key: &str) -> usize {
    case[key].as_u64().expect("a number") as usize
}

/// Every golden case as a tensor of rows, with the expected elements.
fn golden_tensors() -> Vec<(Tensor, Vec<f32>)> {
    let cases: Vec<Value> = serde_json::from_str(CASES).expect("golden cases");
    let mut rest = Bytes::new(BLOB);
    let mut tensors = Vec::new();
    for case in cases {
        let mut arrays = Vec::new();
        for len in case["bytes"].as_array().expect("lengths") {
            let len = len.as_u64().expect("a length") as usize;
            arrays.push(rest.slice(0..len).expect("an array"));
            rest = rest.slice(len..rest.len()).expect("the rest");
        }
        let expected = arrays.pop().expect("decoded values");
        let expected: Vec<f32> = expected.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        let (format, rows, payload) = if case["format"] == "MLX" {
            let (bits, group_size) = (number(&case, "bits") as u8, number(&case, "group_size") as u32);
            let scale_format = format_named(case["scale_format"].as_str().expect("a name"));
            let [words, scales, biases] = arrays.try_into().expect("three arrays");
            (
                StorageFormat::MlxAffine(MlxAffine { bits, group_size }),
                number(&case, "rows"),
                Payload::Mlx { words, scales, biases, scale_format },
            )
        } else {
            let format = format_named(case["format"].as_str().expect("a name"));
            (format, expected.len() / format.block_len(), Payload::Blocks(arrays.remove(0)))
        };
        let shape = vec![rows, expected.len() / rows];
        tensors.push((Tensor { name: case.to_string(), shape, format, payload }, expected));
    }
    assert!(rest.is_empty(), "golden bytes that belong to no case");
    tensors
}

fn assert_same_bits(name: &str, found: &[f32], expected: &[f32]) {
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!(found.to_bits(), expected.to_bits(), "{name}: element {i}: {found} and {expected}");
    }
}

#[test]
fn every_format_decodes_as_the_public_decoders_do() {
    let tensors = golden_tensors();
    for format in StorageFormat::GGUF {
        assert!(tensors.iter().any(|(tensor, _)| tensor.format == format), "no golden case of {format}");
    }
    for (tensor, expected) in tensors {
        let mut whole = vec![f32::NAN; expected.len()];
        tensor.decode_rows(0..tensor.rows(), &mut whole).expect("golden rows");
        assert_same_bits(&tensor.name, &whole, &expected);

        let last = tensor.rows() - 1;
        let mut row = vec![f32::NAN; tensor.row_len()];
        tensor.decode_row(last, &mut row).expect("the last row");
        assert_same_bits(&tensor.name, &row, &expected[last * tensor.row_len()..]);
    }
}

#[test]
fn stored_bytes_may_lie_at_any_address() {
    for (tensor, expected) in golden_tensors() {
        let Payload::Blocks(bytes) = &tensor.payload else { continue };
        let mut shifted = vec![0; bytes.len() + 1];
        shifted[1..].copy_from_slice(bytes);
        let mut out = vec![f32::NAN; expected.len()];
        codec::decode_row(tensor.format, &shifted[1..], &mut out).expect("shifted bytes");
        assert_same_bits(&tensor.name, &out, &expected);
    }
}

#[test]
fn wrong_sizes_are_errors() {
    for format in StorageFormat::GGUF {
        let len = format.block_len();
        let stored = vec![0; format.block_bytes() + 1];
        let error = codec::decode_row(format, &stored, &mut vec![0.0; len]).expect_err("a byte too many");
        assert!(matches!(error, CodecError::StoredLen { .. }), "{error}");
        if len > 1 {
            let error =
                codec::decode_row(format, &stored, &mut vec![0.0; len + 1]).expect_err("a ragged row");
            assert!(matches!(error, CodecError::RowLen { .. }), "{error}");
        }
    }
}

#[test]
fn wrong_mlx_parameters_and_sizes_are_errors() {
    let row =
        mlx::Row { words: &[0; 16], scales: &[0; 2], biases: &[0; 2], scale_format: StorageFormat::F16 };
    let mlx4 = MlxAffine { bits: 4, group_size: 32 };
    mlx::decode_row(mlx4, row, &mut [0.0; 32]).expect("a good row");
    for (params, row, len) in [
        (MlxAffine { bits: 7, ..mlx4 }, row, 32),
        (MlxAffine { bits: 0, ..mlx4 }, row, 32),
        (MlxAffine { group_size: 0, ..mlx4 }, row, 32),
        (mlx4, mlx::Row { scale_format: StorageFormat::Q8_0, ..row }, 32),
        (mlx4, mlx::Row { words: &[0; 15], ..row }, 32),
        (mlx4, mlx::Row { scales: &[0; 4], ..row }, 32),
        (mlx4, mlx::Row { biases: &[], ..row }, 32),
        (mlx4, row, 33),
    ] {
        mlx::decode_row(params, row, &mut vec![0.0; len]).expect_err("a bad row");
    }
}

#[test]
fn rows_that_do_not_exist_are_errors() {
    for (tensor, _) in golden_tensors() {
        let mut row = vec![0.0; tensor.row_len()];
        tensor.decode_row(tensor.rows(), &mut row).expect_err("a row too far");
        tensor.decode_row(usize::MAX, &mut row).expect_err("no such row");
        tensor.decode_row(0, &mut row[1..]).expect_err("an output too short");
        let torn = Tensor { payload: Payload::Blocks(Bytes::new(Vec::new())), ..tensor };
        torn.decode_row(0, &mut row).expect_err("no bytes");
    }
}

#[test]
fn odd_group_sizes_and_tails() {
    // Groups of four 3-bit codes: two groups fill three bytes.
    let mlx = MlxAffine { bits: 3, group_size: 4 };
    let codes = [0_u32, 1, 2, 3, 4, 5, 6, 7];
    let packed = codes.iter().enumerate().fold(0, |bits, (j, code)| bits | code << (3 * j)).to_le_bytes();
    let scales: Vec<u8> = [1.0_f32, -0.5].iter().flat_map(|v| v.to_le_bytes()).collect();
    let biases: Vec<u8> = [0.0_f32, 10.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    let row =
        mlx::Row { words: &packed[..3], scales: &scales, biases: &biases, scale_format: StorageFormat::F32 };
    let mut out = [0.0; 8];
    mlx::decode_row(mlx, row, &mut out).expect("a good row");
    assert_same_bits("3-bit groups of four", &out, &[0.0, 1.0, 2.0, 3.0, 8.0, 7.5, 7.0, 6.5]);
}
