//! Random checkpoints survive being written and read, whatever their names, values, shapes and formats.

use std::collections::{BTreeMap, HashSet};
use std::fs;

use brasa_formats::gguf::{Array, Metadata, Scalar, Value};
use brasa_formats::safetensors::Dtype;
use brasa_formats::{Checkpoint, Payload, StorageFormat, gguf, safetensors};
use brasa_fuzz::Rng;

use crate::scratch::Scratch;

const CASES: u64 = 200;

fn name(rng: &mut Rng) -> String {
    const PIECES: [&str; 9] = ["blk", ".", "7", "weight", "é", "", "\"", " ", "\u{1f525}\n"];
    (0..rng.below(6)).map(|_| *rng.choose(&PIECES)).collect()
}

fn distinct_names(rng: &mut Rng, most: usize) -> Vec<String> {
    let mut seen = HashSet::new();
    (0..rng.below(most + 1)).map(|_| name(rng)).filter(|name| seen.insert(name.clone())).collect()
}

fn numbers<T: Scalar>(rng: &mut Rng, of_bits: fn(u64) -> T) -> Array {
    Array::of((0..rng.below(9)).map(|_| of_bits(rng.bits())).collect::<Vec<_>>())
}

fn array(rng: &mut Rng, depth: usize) -> Array {
    match rng.below(if depth < 7 { 13 } else { 12 }) {
        0 => numbers(rng, |bits| bits as u8),
        1 => numbers(rng, |bits| bits as i8),
        2 => numbers(rng, |bits| bits as u16),
        3 => numbers(rng, |bits| bits as i16),
        4 => numbers(rng, |bits| bits as u32),
        5 => numbers(rng, |bits| bits as i32),
        6 => numbers(rng, |bits| f32::from_bits(bits as u32)),
        7 => numbers(rng, |bits| bits & 1 == 1),
        8 => numbers(rng, |bits| bits),
        9 => numbers(rng, |bits| bits as i64),
        10 => numbers(rng, f64::from_bits),
        11 => Array::of_strings((0..rng.below(4)).map(|_| rng.bits().to_le_bytes()).collect::<Vec<_>>()),
        _ => Array::of_arrays((0..rng.below(3)).map(|_| array(rng, depth + 1)).collect::<Vec<_>>()),
    }
}

fn value(rng: &mut Rng) -> Value {
    let bits = rng.bits();
    match rng.below(14) {
        0 => Value::from(bits as u8),
        1 => Value::from(bits as i8),
        2 => Value::from(bits as u16),
        3 => Value::from(bits as i16),
        4 => Value::from(bits as u32),
        5 => Value::from(bits as i32),
        6 => Value::from(bits as f32),
        7 => Value::from(bits & 1 == 1),
        8 => Value::from(name(rng)),
        9 => Value::from(bits),
        10 => Value::from(bits as i64),
        11 => Value::from(bits as f64),
        _ => Value::from(array(rng, 1)),
    }
}

fn bytes(rng: &mut Rng, len: usize) -> Vec<u8> {
    (0..len).map(|_| rng.bits() as u8).collect()
}

/// Writes `data` in pieces of random length.
fn pieces<'d>(rng: &mut Rng, mut data: &'d [u8]) -> Vec<&'d [u8]> {
    let mut pieces = Vec::new();
    while !data.is_empty() {
        let (piece, rest) = data.split_at(1 + rng.below(data.len()));
        pieces.push(piece);
        data = rest;
    }
    pieces
}

#[test]
fn gguf_round_trips() {
    let scratch = Scratch::new("gguf_round_trips");
    let path = scratch.path("model.gguf");
    for seed in 0..CASES {
        let mut rng = Rng::new(seed);
        let mut metadata = Metadata::new();
        for key in distinct_names(&mut rng, 12) {
            metadata.insert(key, value(&mut rng));
        }
        if rng.below(3) == 0 {
            metadata.insert("general.alignment", 8_u32 << rng.below(8));
        }
        let plan = |rng: &mut Rng, name| {
            let format = *rng.choose(&StorageFormat::GGUF);
            let mut shape: Vec<usize> = (0..rng.below(5)).map(|_| rng.below(4)).collect();
            match shape.last_mut() {
                Some(row_len) => *row_len *= format.block_len(),
                None if format.block_len() > 1 => shape.push(format.block_len()),
                None => {}
            }
            gguf::TensorPlan { name, shape, format }
        };
        let plans: Vec<_> =
            distinct_names(&mut rng, 8).into_iter().map(|name| plan(&mut rng, name)).collect();
        let contents: Vec<_> = plans.iter().map(|plan| bytes(&mut rng, plan.size_bytes().unwrap())).collect();

        let mut writer = gguf::Writer::create(Scratch::output(&path), &metadata, plans.clone()).unwrap();
        assert_eq!(writer.data_bytes(), contents.iter().map(|content| content.len() as u64).sum::<u64>());
        for (plan, content) in plans.iter().zip(&contents) {
            for piece in pieces(&mut rng, content) {
                assert_eq!(writer.next_tensor(), Some(plan), "seed {seed}");
                writer.write(&plan.name, piece).unwrap();
            }
        }
        writer.finish().unwrap();

        let checkpoint = Checkpoint::open(&path).unwrap();
        let brasa_formats::Metadata::Gguf(read) = checkpoint.metadata() else { panic!("not GGUF") };
        // NaN is unequal to itself, but its text is its text.
        assert_eq!(
            format!("{:?}", read.iter().collect::<Vec<_>>()),
            format!("{:?}", metadata.iter().collect::<Vec<_>>()),
            "seed {seed}"
        );
        assert_eq!(checkpoint.tensors().len(), plans.len(), "seed {seed}");
        for (tensor, (plan, content)) in checkpoint.tensors().iter().zip(plans.iter().zip(&contents)) {
            assert_eq!((&tensor.name, &tensor.shape, tensor.format), (&plan.name, &plan.shape, plan.format));
            let Payload::Blocks(stored) = &tensor.payload else { panic!("blocks") };
            assert_eq!(**stored, **content, "seed {seed}: {}", plan.name);
        }
    }
}

#[test]
fn safetensors_round_trips() {
    const DTYPES: [Dtype; 6] = [Dtype::F32, Dtype::F16, Dtype::BF16, Dtype::I64, Dtype::BOOL, Dtype::I32];
    let scratch = Scratch::new("safetensors_round_trips");
    let path = scratch.path("model.safetensors");
    fs::write(scratch.path("config.json"), "{}").unwrap();
    for seed in 0..CASES {
        let mut rng = Rng::new(seed);
        let plan = |rng: &mut Rng, name| safetensors::TensorPlan {
            name,
            dtype: *rng.choose(&DTYPES),
            shape: (0..rng.below(5)).map(|_| rng.below(4)).collect(),
        };
        let plans: Vec<_> = distinct_names(&mut rng, 8)
            .into_iter()
            .filter(|name| !name.ends_with("weight"))
            .map(|name| plan(&mut rng, name))
            .collect();
        let contents: BTreeMap<String, Vec<u8>> = plans
            .iter()
            .map(|plan| (plan.name.clone(), bytes(&mut rng, plan.size_bytes().unwrap() as usize)))
            .collect();

        let mut writer =
            safetensors::Writer::create(Scratch::output(&path), &[("format", "pt")], &plans).unwrap();
        for plan in &plans {
            for piece in pieces(&mut rng, &contents[&plan.name]) {
                assert_eq!(writer.next_tensor(), Some(plan.name.as_str()), "seed {seed}");
                writer.write(&plan.name, piece).unwrap();
            }
        }
        writer.finish().unwrap();

        let checkpoint = Checkpoint::open(&path).unwrap();
        let floats: Vec<_> = plans.iter().filter(|plan| plan.dtype.float_format().is_some()).collect();
        assert_eq!(checkpoint.tensors().len(), floats.len(), "seed {seed}");
        for (tensor, plan) in checkpoint.tensors().iter().zip(floats) {
            assert_eq!((&tensor.name, &tensor.shape), (&plan.name, &plan.shape));
            assert_eq!(Some(tensor.format), plan.dtype.float_format());
            let Payload::Blocks(stored) = &tensor.payload else { panic!("blocks") };
            assert_eq!(**stored, *contents[&plan.name], "seed {seed}: {}", plan.name);
        }
    }
}

#[test]
fn an_abandoned_safetensors_writer_leaves_nothing() {
    let scratch = Scratch::new("an_abandoned_safetensors_writer_leaves_nothing");
    let path = scratch.path("model.safetensors");
    let plan = |name: &str, shape: &[usize]| safetensors::TensorPlan {
        name: name.into(),
        dtype: Dtype::F32,
        shape: shape.into(),
    };
    let message = |plans: &[safetensors::TensorPlan]| {
        let error = safetensors::Writer::create(Scratch::output(&path), &[], plans).unwrap_err().to_string();
        error.rsplit("model.safetensors: ").next().unwrap().to_owned()
    };
    assert_eq!(message(&[plan("w", &[1]), plan("w", &[1])]), "w: this name is taken");
    assert_eq!(message(&[plan("__metadata__", &[1])]), "__metadata__: this name is taken");
    assert_eq!(
        message(&[plan("w", &[1 << 40, 1 << 40])]),
        "w: shape [1099511627776, 1099511627776] of F32 has no size"
    );

    let mut writer =
        safetensors::Writer::create(Scratch::output(&path), &[], &[plan("v", &[2]), plan("w", &[1])])
            .unwrap();
    let error = writer.write("w", &[0; 4]).unwrap_err().to_string();
    assert!(error.ends_with("w: written out of order: v is due"), "{error}");
    let error = writer.write("v", &[0; 9]).unwrap_err().to_string();
    assert!(error.ends_with("v: 9 bytes, expected 8"), "{error}");
    writer.write("v", &[0; 8]).unwrap();
    let error = writer.finish().unwrap_err().to_string();
    assert!(error.ends_with("w: 0 of 4 bytes written"), "{error}");
    assert_eq!(scratch.names(), [""; 0]);
}
