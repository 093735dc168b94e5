//! Weights whose rows are stored in turns with those of another.

use brasa_formats::{StorageFormat, Tensor};
use brasa_graph::testing::{Noise, random_tensor};
use brasa_graph::{RowStride, Weight, WeightPart};

const WIDTH: usize = 64;

/// Every row of a tensor, decoded.
fn rows(tensor: &Tensor) -> Vec<Vec<f32>> {
    let mut values = vec![0.0; tensor.rows() * WIDTH];
    tensor.decode_rows(0..tensor.rows(), &mut values).unwrap();
    values.chunks(WIDTH).map(<[f32]>::to_vec).collect()
}

fn half(tensor: &Tensor, first: usize) -> WeightPart {
    WeightPart::of_stride(tensor.clone(), RowStride { first, step: 2 })
}

#[test]
fn rows_in_turns_stack_like_rows_in_order() {
    let mut noise = Noise::new(3);
    for format in [StorageFormat::F32, StorageFormat::BF16, StorageFormat::Q8_0, StorageFormat::Q4_0] {
        let tensor = random_tensor(format, 14, WIDTH, &mut noise);
        let stored = rows(&tensor);
        let weight = Weight::new("gate|up", &[14, WIDTH], vec![half(&tensor, 0), half(&tensor, 1)]).unwrap();
        let order: Vec<usize> = (0..14).step_by(2).chain((1..14).step_by(2)).collect();
        let expected: Vec<f32> = order.iter().flat_map(|&row| stored[row].clone()).collect();
        assert_eq!(weight.decode("test").unwrap(), expected, "{format}");
        assert_eq!(weight.stored_bytes(), tensor.size_bytes() as u64, "{format}");
        // A range across both halves, and one within a cut half.
        let mut some = vec![0.0; 6 * WIDTH];
        weight.decode_rows(4..10, &mut some).unwrap();
        assert_eq!(some, expected[4 * WIDTH..10 * WIDTH], "{format}");
        let cut = half(&tensor, 1).cut(2..5);
        assert_eq!(cut.stored_rows().collect::<Vec<_>>(), [5, 7, 9]);
        let few = Weight::new("few", &[3, WIDTH], vec![cut]).unwrap();
        assert_eq!(few.decode("test").unwrap(), expected[9 * WIDTH..12 * WIDTH], "{format}");
        if format.is_float() {
            let doubled: Vec<f32> = expected.iter().map(|x| 2.0 * x).collect();
            let written = weight.with_values(&doubled).unwrap();
            assert_eq!(written.decode("test").unwrap(), doubled, "{format}");
        }
    }
}

#[test]
fn rows_in_turns_must_be_there() {
    let tensor = random_tensor(StorageFormat::F32, 7, WIDTH, &mut Noise::new(4));
    assert_eq!([0, 1].map(|first| half(&tensor, first).rows), [0..4, 0..3]);
    let part = WeightPart { rows: 0..4, ..half(&tensor, 1) };
    let error = Weight::new("odd", &[4, WIDTH], vec![part]).unwrap_err().to_string();
    assert!(error.contains("rows 0..4 of random.F32, which has 3 from row 1 in steps of 2"), "{error}");
}
