//! Encoders: equal to the public ones where those are exact, at least as accurate as llama.cpp's elsewhere
//! (values of `tools/golden/codec_encode.py`), and calm about odd input.

use brasa_formats::codec::{self, CodecError, mlx};
use brasa_formats::{MlxAffine, StorageFormat};
use serde_json::Value;

const CASES: &str = include_str!("../golden/codec_encode.json");
static BLOB: &[u8] = include_bytes!("../golden/codec_encode.bin");

struct Golden {
    x: Vec<f32>,
    row_len: usize,
    /// Every case with its arrays.
    cases: Vec<(Value, Vec<&'static [u8]>)>,
}

fn golden() -> Golden {
    let parsed: Vec<Value> = serde_json::from_str(CASES).expect("golden cases");
    let mut rest = BLOB;
    let mut cases = Vec::new();
    for case in parsed {
        let mut arrays = Vec::new();
        for len in case["bytes"].as_array().expect("lengths") {
            let (array, tail) = rest.split_at(len.as_u64().expect("a length") as usize);
            arrays.push(array);
            rest = tail;
        }
        cases.push((case, arrays));
    }
    let (input, arrays) = cases.remove(0);
    let mut x = vec![0.0; arrays[0].len() / 4];
    codec::decode_row(StorageFormat::F32, arrays[0], &mut x).expect("the input");
    let row_len = x.len() / input["rows"].as_u64().expect("rows") as usize;
    Golden { x, row_len, cases }
}

fn format_named(name: &Value) -> Option<StorageFormat> {
    StorageFormat::GGUF.into_iter().find(|format| format.to_string() == name.as_str().expect("a name"))
}

fn encode(format: StorageFormat, x: &[f32], importance: Option<&[f32]>) -> Vec<u8> {
    let mut stored = vec![0xEE; format.row_bytes(x.len()).expect("whole blocks")];
    codec::encode_row(format, x, importance, &mut stored).expect("finite elements");
    stored
}

fn round_trip(format: StorageFormat, x: &[f32], importance: Option<&[f32]>) -> Vec<f32> {
    let mut back = vec![f32::NAN; x.len()];
    codec::decode_row(format, &encode(format, x, importance), &mut back).expect("our own bytes");
    back
}

/// `Σ w·(x − y)²`.
fn error(x: &[f32], y: &[f32], w: impl Fn(usize) -> f64) -> f64 {
    x.iter().zip(y).enumerate().map(|(i, (x, y))| w(i) * (f64::from(*x) - f64::from(*y)).powi(2)).sum()
}

const QUANTISED: [StorageFormat; 12] = [
    StorageFormat::Q4_0,
    StorageFormat::Q4_1,
    StorageFormat::Q5_0,
    StorageFormat::Q5_1,
    StorageFormat::Q8_0,
    StorageFormat::Q2_K,
    StorageFormat::Q3_K,
    StorageFormat::Q4_K,
    StorageFormat::Q5_K,
    StorageFormat::Q6_K,
    StorageFormat::IQ4_NL,
    StorageFormat::IQ4_XS,
];

#[test]
fn exact_formats_equal_the_public_encoders() {
    let golden = golden();
    let mut seen = 0;
    for (case, arrays) in &golden.cases {
        let Some(format) = format_named(&case["format"]) else { continue };
        let Some(expected) = arrays.first() else { continue };
        assert!(
            encode(format, &golden.x, None) == *expected,
            "{format}: other bytes than the public encoder"
        );
        seen += 1;
    }
    assert_eq!(seen, 3, "Q8_0, F16, BF16");
}

#[test]
fn errors_are_at_most_those_of_llama_cpp() {
    let golden = golden();
    let mut seen = 0;
    for (case, _) in &golden.cases {
        let Some(limits) = case["rmse_of_row_pairs"].as_array() else { continue };
        let format = format_named(&case["format"]).expect("a known format");
        let back = round_trip(format, &golden.x, None);
        let pairs = golden.x.chunks(2 * golden.row_len).zip(back.chunks(2 * golden.row_len));
        let mut ratios = Vec::new();
        for ((x, back), limit) in pairs.zip(limits) {
            let energy = error(x, &vec![0.0; x.len()], |_| 1.0);
            let rmse = (error(x, back, |_| 1.0) / energy).sqrt();
            ratios.push(rmse / limit.as_f64().expect("a number"));
        }
        // A pair of rows is a small sample: one block whose sub-blocks disagree may lose a little.
        let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
        assert!(mean < 1.0, "{format}: mean error relative to llama.cpp {mean:.4}: {ratios:?}");
        assert!(ratios.iter().all(|ratio| *ratio < 1.04), "{format}: {ratios:?}");
        seen += 1;
    }
    assert_eq!(seen, 11, "every searched format");
}

#[test]
fn mlx_equals_mlx() {
    let golden = golden();
    let mut seen = 0;
    for (case, arrays) in &golden.cases {
        if case["format"] != "MLX" {
            continue;
        }
        let number = |key: &str| case[key].as_u64().expect("a number");
        let params = MlxAffine { bits: number("bits") as u8, group_size: number("group_size") as u32 };
        let scale_format = format_named(&case["scale_format"]).expect("a float format");
        // MLX quantised elements of the type of its scales.
        let x = round_trip(scale_format, &golden.x, None);
        let mut stored: Vec<Vec<u8>> = arrays.iter().map(|array| vec![0xEE; array.len()]).collect();
        let [words, scales, biases] = &mut stored[..] else { panic!("three arrays") };
        mlx::encode_row(params, &x, &mut mlx::RowMut { words, scales, biases, scale_format })
            .expect("finite");
        for (name, (found, expected)) in ["words", "scales", "biases"].iter().zip(stored.iter().zip(arrays)) {
            let wrong = found.iter().zip(*expected).filter(|(a, b)| a != b).count();
            assert_eq!(wrong, 0, "{case}: bytes of {name} that differ, of {}", expected.len());
        }
        seen += 1;
    }
    assert_eq!(seen, 18);
}

#[test]
fn importances_move_the_error_away_from_what_matters() {
    let golden = golden();
    let x = &golden.x[..2 * golden.row_len];
    let importance: Vec<f32> = (0..x.len()).map(|i| if i % 5 == 0 { 50.0 } else { 0.5 }).collect();
    let weight = |i: usize| f64::from(importance[i]);
    for format in QUANTISED {
        if format == StorageFormat::Q8_0 {
            continue;
        }
        let plain = error(x, &round_trip(format, x, None), weight);
        let weighted = error(x, &round_trip(format, x, Some(&importance)), weight);
        assert!(weighted < plain, "{format}: weighted error {weighted}, {plain} without importances");
    }
}

#[test]
fn scaling_importances_changes_nothing_and_zeros_count_as_equal() {
    let x = &golden().x[..512];
    for format in QUANTISED {
        let plain = encode(format, x, None);
        assert!(encode(format, x, Some(&[0.0; 512])) == plain, "{format}: zeros");
        assert!(encode(format, x, Some(&[1e-30; 512])) == plain, "{format}: tiny ones");
        assert!(encode(format, x, Some(&[1e30; 512])) == plain, "{format}: huge ones");
    }
}

#[test]
fn zeros_stay_zeros_and_constants_nearly_constant() {
    for format in QUANTISED {
        assert!(round_trip(format, &[0.0; 256], None).iter().all(|x| *x == 0.0), "{format}: zeros");
        for constant in [0.37_f32, -2.5, 1000.0] {
            for x in round_trip(format, &[constant; 256], None) {
                assert!((x - constant).abs() <= 0.01 * constant.abs(), "{format}: {constant} became {x}");
            }
        }
    }
}

#[test]
fn extreme_magnitudes_give_finite_elements() {
    for format in QUANTISED {
        for magnitude in [1e-45_f32, 1e-30, 1e-12, 1e-7, 1e-4, 1e4, 1e8, 1e20, f32::MAX] {
            let mut x: Vec<f32> =
                (0..256).map(|i| magnitude * ((i * 37 % 101) as f32 / 50.0 - 1.0)).collect();
            x[17] = -magnitude;
            let back = round_trip(format, &x, None);
            assert!(back.iter().all(|x| x.is_finite()), "{format}: {magnitude:e}");
            if (1e-4..=1e4).contains(&magnitude) {
                let relative = error(&x, &back, |_| 1.0) / error(&x, &[0.0; 256], |_| 1.0);
                assert!(relative < 0.1, "{format}: {magnitude:e}: relative square error {relative}");
            }
        }
    }
}

#[test]
fn non_finite_elements_are_named() {
    for format in QUANTISED {
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = [0.5; 256];
            x[200] = value;
            let mut out = vec![0; format.row_bytes(256).expect("whole blocks")];
            let error = codec::encode_row(format, &x, None, &mut out).expect_err("not finite");
            assert!(matches!(error, CodecError::NotFinite { index: 200, .. }), "{error}");
        }
    }
    let kept = round_trip(StorageFormat::F16, &[f32::INFINITY, f32::NAN, 1e6], None);
    assert!(kept[0].is_infinite() && kept[1].is_nan() && (kept[2] - 65504.0).abs() < 1.0, "{kept:?}");
}

#[test]
fn wrong_sizes_and_importances_are_errors() {
    for format in QUANTISED {
        let len = format.block_len();
        let mut out = vec![0; format.block_bytes()];
        let x = vec![1.0; len];
        let fails = |x: &[f32], importance: Option<&[f32]>, out: &mut [u8]| {
            codec::encode_row(format, x, importance, out).expect_err("a bad request").to_string()
        };
        fails(&x[1..], None, &mut out);
        fails(&x, None, &mut [0; 3]);
        fails(&x, Some(&x[1..]), &mut out);
        let message = fails(&x, Some(&vec![-1.0; len]), &mut out);
        assert!(message.contains("number 0 is -1"), "{message}");
        fails(&x, Some(&vec![f32::NAN; len]), &mut out);
    }
}
