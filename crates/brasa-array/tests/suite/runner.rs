//! Programs that are shared, and memory.

use brasa_array::{Array, ArrayError, graph};

use crate::runner;

#[test]
fn expressions_of_one_form_share_a_program() {
    let mut runner = runner();
    let mut x = Array::scalar(1.0);
    for _ in 0..5 {
        x = &x * 2.0 + 1.0;
        runner.eval(&[&x]).unwrap();
    }
    let bytes = runner.cache_bytes();
    assert_eq!(x.values().unwrap(), [63.0]);
    runner.read(&(Array::scalar(5.0) * 2.0 + 1.0)).unwrap();
    assert_eq!(runner.cache_bytes(), bytes, "a second program for the same form");
    runner.read(&Array::zeros(&[7]).exp()).unwrap();
    assert!(runner.cache_bytes() > bytes);
}

#[test]
fn memory_is_counted_and_limited() {
    let mut runner = runner();
    let x = Array::ones(&[1000]).exp();
    runner.eval(&[&x]).unwrap();
    assert_eq!(runner.active_bytes(), 4000);
    assert!(runner.peak_bytes() >= 8_000, "{}", runner.peak_bytes());
    drop(x);
    assert_eq!(runner.active_bytes(), 0);
    runner.reset_peak();
    assert_eq!(runner.peak_bytes(), 0);
    assert!(runner.cache_bytes() > 0);
    runner.clear_cache();
    assert_eq!(runner.cache_bytes(), 0);
    assert_eq!(runner.set_memory_limit(1_000_000), u64::MAX);
    let error = runner.read(&Array::ones(&[500_000]).exp()).unwrap_err();
    assert!(matches!(error, ArrayError::Memory { limit_bytes: 1_000_000, .. }), "{error}");
    assert_eq!(runner.read(&Array::ones(&[5]).scale(3.0)).unwrap(), [3.0; 5]);
    runner.set_cache_limit(0);
    assert_eq!(runner.cache_bytes(), 0);
}

/// Values together, one of them twice, one that is there, and one that is part of another.
#[test]
fn arrays_are_computed_together() {
    let mut runner = runner();
    let x = Array::new([1.0, 2.0], &[2]);
    let y = x.square();
    let z = &y + 1.0;
    runner.eval(&[&z, &y, &z, &x]).unwrap();
    assert_eq!((y.values().unwrap(), z.values().unwrap()), (vec![1.0, 4.0], vec![2.0, 5.0]));
    // What has its values is a leaf now.
    let shown = brasa_graph::print::graph(&graph(&[&z * 2.0]).unwrap());
    assert!(!shown.contains("add"), "{shown}");
}
