//! Arrays in safetensors files.

use std::path::Path;

use brasa::array::Array;
use brasa::{array_runner, load_arrays, save_arrays};

#[test]
fn arrays_come_back_as_they_were_written() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("arrays");
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("arrays.safetensors");
    let mut runner = array_runner(Some("cpu")).unwrap();
    let x = Array::range(-1.5, 0.5, 6).reshape(&[2, 3]);
    let (sums, scalar) = (x.cumsum(1), Array::scalar(f32::MIN_POSITIVE));
    save_arrays(&path, &[("x", &x), ("sums.of x", &sums), ("scalar", &scalar)], &mut runner).unwrap();
    let loaded = load_arrays(&path).unwrap();
    assert_eq!(loaded.keys().collect::<Vec<_>>(), ["scalar", "sums.of x", "x"]);
    for (name, array) in [("x", &x), ("sums.of x", &sums), ("scalar", &scalar)] {
        assert_eq!((loaded[name].shape(), loaded[name].values()), (array.shape(), array.values()), "{name}");
    }
    // Checkpoints in halves are read too, as F32.
    let checkpoint = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny-qwen2/model.safetensors");
    let weights = load_arrays(checkpoint).unwrap();
    assert_eq!(weights["model.norm.weight"].shape().len(), 1);

    let twice = save_arrays(&path, &[("x", &x), ("x", &x)], &mut runner).unwrap_err().to_string();
    assert!(twice.contains("this name is taken"), "{twice}");
    let wrong = save_arrays(&path, &[("y", &x.sum(5))], &mut runner).unwrap_err().to_string();
    assert_eq!(wrong, "y: sum: axis 5 of shape [2, 3]");
    assert_eq!(load_arrays(&path).unwrap().len(), 3, "a failed write replaces nothing");
    std::fs::write(&path, b"\x08\0\0\0\0\0\0\0nonsense").unwrap();
    assert!(load_arrays(&path).is_err());
}
