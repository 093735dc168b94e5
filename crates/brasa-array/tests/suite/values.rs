//! Results of operations.

use brasa_array::{Array, loss};

use crate::{assert_close, runner};

#[track_caller]
fn check(array: &Array, shape: &[usize], expected: &[f32]) {
    assert_eq!(array.shape(), shape, "{:?}", array.check());
    assert_close(&runner().read(array).unwrap(), expected, 1e-5);
}

#[test]
fn elements_and_operators() {
    let x = Array::new([1.0, -2.0, 4.0], &[3]);
    check(&(&x + 1.0), &[3], &[2.0, -1.0, 5.0]);
    check(&(1.0 - &x), &[3], &[0.0, 3.0, -3.0]);
    check(&(-(&x * &x) / 2.0), &[3], &[-0.5, -2.0, -8.0]);
    check(&x.abs().sqrt(), &[3], &[1.0, 2.0_f32.sqrt(), 2.0]);
    check(&x.relu(), &[3], &[1.0, 0.0, 4.0]);
    check(&x.clip(-1.0, 2.0), &[3], &[1.0, -1.0, 2.0]);
    check(&x.minimum(&Array::scalar(0.5)), &[3], &[0.5, -2.0, 0.5]);
    check(&x.relu().choose(&Array::scalar(7.0), &x), &[3], &[7.0, -2.0, 7.0]);
    check(&x.scale(0.1).exp().log(), &[3], &[0.1, -0.2, 0.4]);
    check(&Array::zeros(&[2]).sigmoid(), &[2], &[0.5, 0.5]);
    check(&Array::range(1.0, 0.5, 3), &[3], &[1.0, 1.5, 2.0]);
}

#[test]
fn shapes_repeat_on_either_side() {
    let row = Array::new([1.0, 2.0, 3.0], &[3]);
    let column = Array::new([10.0, 20.0], &[2, 1]);
    let expected = [11.0, 12.0, 13.0, 21.0, 22.0, 23.0];
    check(&(&row + &column), &[2, 3], &expected);
    check(&(&column + &row), &[2, 3], &expected);
    check(&row.broadcast_to(&[2, 3]), &[2, 3], &[1.0, 2.0, 3.0, 1.0, 2.0, 3.0]);
}

#[test]
fn reductions_and_products() {
    let x = Array::new([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3]);
    check(&x.sum(0), &[3], &[5.0, 7.0, 9.0]);
    check(&x.mean(1), &[2], &[2.0, 5.0]);
    check(&x.max_all(), &[1], &[6.0]);
    check(&x.sum_all(), &[1], &[21.0]);
    check(&x.scale(0.0).logsumexp(1), &[2], &[3.0_f32.ln(), 3.0_f32.ln()]);
    check(&x.scale(0.0).softmax(), &[2, 3], &[1.0 / 3.0; 6]);
    check(&x.matmul(&x.t()), &[2, 2], &[14.0, 32.0, 32.0, 77.0]);
    check(&(&x + 1.0).matmul(&(&x * 2.0).t()), &[2, 2], &[40.0, 94.0, 76.0, 184.0]);
}

#[test]
fn batches_of_products() {
    let x = Array::range(1.0, 1.0, 12).reshape(&[2, 3, 2]);
    let y = Array::range(0.0, 1.0, 4).reshape(&[2, 2]);
    // Rows of a batch on the left meet one matrix on the right.
    check(&x.matmul(&y), &[2, 3, 2], &[4.0, 7.0, 8.0, 15.0, 12.0, 23.0, 16.0, 31.0, 20.0, 39.0, 24.0, 47.0]);
    let pairs = Array::range(0.0, 1.0, 8).reshape(&[2, 2, 2]);
    check(&pairs.matmul(&pairs), &[2, 2, 2], &[2.0, 3.0, 6.0, 11.0, 46.0, 55.0, 66.0, 79.0]);
    // One matrix on the left repeats, and so do axes of 1.
    check(&y.matmul(&pairs), &[2, 2, 2], &[2.0, 3.0, 6.0, 11.0, 6.0, 7.0, 26.0, 31.0]);
    let spread = pairs.reshape(&[2, 1, 2, 2]).matmul(&pairs.reshape(&[1, 2, 2, 2]));
    assert_eq!(spread.shape(), [2, 2, 2, 2]);
    check(&spread.slice(0, 1..2).slice(1, 0..1).reshape(&[4]), &[4], &[10.0, 19.0, 14.0, 27.0]);
    let three: Vec<f32> = (0..3).map(|at| at as f32).collect();
    let scaled = Array::new(three, &[3, 1, 1]).matmul(&Array::full(2.0, &[3, 1, 1]));
    check(&scaled, &[3, 1, 1], &[0.0, 2.0, 4.0]);
}

#[test]
fn running_sums() {
    let x = Array::range(1.0, 1.0, 5);
    check(&x.cumsum(0), &[5], &[1.0, 3.0, 6.0, 10.0, 15.0]);
    let matrix = Array::range(1.0, 1.0, 6).reshape(&[3, 2]);
    check(&matrix.cumsum(0), &[3, 2], &[1.0, 2.0, 4.0, 6.0, 9.0, 12.0]);
    check(&matrix.cumsum(1), &[3, 2], &[1.0, 3.0, 3.0, 7.0, 5.0, 11.0]);
    check(&Array::ones(&[1000]).cumsum(0).slice(0, 999..1000), &[1], &[1000.0]);
}

#[test]
fn places_by_size() {
    let mut runner = runner();
    let x = Array::new([1.0, f32::NAN, 3.0, 3.0, -0.0, 0.0], &[2, 3]);
    let numbers = |array: Array| (array.shape().to_vec(), array.values().unwrap());
    assert_eq!(numbers(runner.argmax(&x, 1).unwrap()), (vec![2], vec![2.0, 0.0]));
    assert_eq!(numbers(runner.argmax(&x, 0).unwrap()), (vec![3], vec![1.0, 1.0, 0.0]));
    assert_eq!(numbers(runner.argsort(&x, 1).unwrap()), (vec![2, 3], vec![0.0, 2.0, 1.0, 1.0, 2.0, 0.0]));
    assert_eq!(numbers(runner.argsort(&x, 0).unwrap()), (vec![2, 3], vec![0.0, 1.0, 1.0, 1.0, 0.0, 0.0]));
    assert_eq!(numbers(runner.argmax(&Array::full(f32::NAN, &[3]), 0).unwrap()), (vec![1], vec![0.0]));
    assert_eq!(runner.argsort(&x, 2).unwrap_err().to_string(), "argsort: axis 2 of shape [2, 3]");
}

/// Frequencies of 20,000 draws beside their probabilities.
#[test]
fn categorical_draws_have_their_probabilities() {
    let mut runner = runner();
    let shares = [0.5_f32, 0.3, 0.0, 0.2];
    let logits = Array::new(shares.map(|share| share.ln() + 7.0), &[1, 4]).broadcast_to(&[20_000, 4]);
    let draws = runner.categorical(&logits, 3).unwrap();
    assert_eq!(draws.shape(), [20_000]);
    let draws = draws.values().unwrap();
    for (place, share) in shares.iter().enumerate() {
        let found = draws.iter().filter(|&&draw| draw == place as f32).count() as f32 / 20_000.0;
        assert!((found - share).abs() < 0.015, "place {place}: {found}, expected {share}");
    }
    assert_eq!(runner.categorical(&logits, 3).unwrap().values().unwrap(), draws, "one seed, one draw");
    for logits in [[f32::NAN, 0.0], [f32::NEG_INFINITY; 2]] {
        let error = runner.categorical(&Array::new(logits, &[1, 2]), 0).unwrap_err();
        assert!(error.to_string().contains("draw 0"), "{error}");
    }
}

/// Values of MLX 0.32 (`tools/golden/array_losses.py`).
#[test]
fn losses_are_those_of_mlx() {
    let x = Array::new([1.0, -2.0, 0.5, 3.0, 0.0, -1.0], &[2, 3]);
    let y = Array::new([0.0, 1.0, 0.25, 1.0, 0.5, 0.75], &[2, 3]);
    check(&loss::cross_entropy(&x, &[2, 0]), &[1], &[0.535_240]);
    check(&loss::binary_cross_entropy(&x, &y), &[1], &[1.015_711]);
    check(&loss::mean_squared_error(&x, &y), &[1], &[2.895_833]);
    check(&loss::mean_absolute_error(&x, &y), &[1], &[1.416_667]);
    check(&loss::huber(&x, &y, 1.0), &[1], &[0.984_375]);
    let logs = |array: &Array| array - array.logsumexp(1).reshape(&[2, 1]);
    check(&loss::kl_divergence(&logs(&x), &logs(&y)), &[1], &[1.158_714]);
}

#[test]
fn shapes_and_parts() {
    let x = Array::range(0.0, 1.0, 6);
    let matrix = x.reshape(&[2, 3]);
    check(&matrix.t(), &[3, 2], &[0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
    check(&matrix.slice(1, 1..3), &[2, 2], &[1.0, 2.0, 4.0, 5.0]);
    check(&matrix.slice(0, 1..2).reshape(&[3]), &[3], &[3.0, 4.0, 5.0]);
    check(
        &Array::concat(&[&matrix, &matrix.slice(1, 0..1)], 1),
        &[2, 4],
        &[0.0, 1.0, 2.0, 0.0, 3.0, 4.0, 5.0, 3.0],
    );
    check(&matrix.take(&[1, 0, 1]), &[3, 3], &[3.0, 4.0, 5.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    check(&x.take(&[5, 2]), &[2], &[5.0, 2.0]);
}

#[test]
fn random_numbers_follow_from_their_seed() {
    let mut runner = runner();
    let draw = |seed| Array::normal(seed, &[10_000]);
    assert_eq!(draw(1).values(), draw(1).values());
    assert_ne!(draw(1).values(), draw(2).values());
    let x = draw(3);
    let (mean, square) = (x.mean_all(), x.square().mean_all());
    assert!(runner.item(&mean).unwrap().abs() < 0.05);
    assert!((runner.item(&square).unwrap() - 1.0).abs() < 0.05);
    let uniform = Array::uniform(4, &[10_000]).values().unwrap();
    assert!(uniform.iter().all(|x| (0.0..1.0).contains(x)));
    assert!((uniform.iter().sum::<f32>() / 1e4 - 0.5).abs() < 0.02);
}

/// A mistake in an expression is an error of the call that computes it, however large the expression is.
#[test]
fn mistakes_are_named() {
    let (x, y) = (Array::zeros(&[2, 3]), Array::zeros(&[4]));
    for (array, named) in [
        (&x + &y, "add: shapes [2, 3] and [4]"),
        (x.matmul(&x), "matmul: shapes [2, 3] and [2, 3]"),
        (x.matmul(&y), "matmul: shapes [2, 3] and [4]"),
        (
            Array::zeros(&[2, 1, 3]).matmul(&Array::zeros(&[3, 3, 1])),
            "matmul: shapes [2, 1, 3] and [3, 3, 1]",
        ),
        (Array::zeros(&[5000, 1, 1]).matmul(&Array::zeros(&[5000, 1, 1])), "matmul: 5000 products"),
        (x.cumsum(2), "cumsum: axis 2 of shape [2, 3]"),
        (loss::cross_entropy(&x, &[0]), "loss: 1 targets for 2 rows"),
        (loss::cross_entropy(&x, &[0, 3]), "loss: target 3 of row 1, expected less than 3"),
        (loss::cross_entropy(&y, &[0]), "loss: logits of shape [4]"),
        (loss::huber(&x, &x, 0.0), "loss: a delta of 0"),
        (loss::kl_divergence(&x, &y), "loss: shapes [2, 3] and [4]"),
        (x.sum(2), "sum: axis 2"),
        (x.reshape(&[5]), "reshape: shape [2, 3]"),
        (x.transpose(&[0, 0]), "transpose: [0, 0]"),
        (x.slice(1, 2..4), "slice: 2..4"),
        (x.take(&[2]), "take: row 2 of 2"),
        (x.broadcast_to(&[3]), "broadcast_to: shape [2, 3]"),
        (Array::concat(&[&x, &y], 0), "concat: shapes [2, 3] and [4]"),
        (Array::new([1.0], &[2]), "new: 1 values for shape [2]"),
        (Array::zeros(&[0, 2]), "full: shape [0, 2] has an axis of 0"),
        (Array::zeros(&[usize::MAX, 2]), "has more than"),
        (Array::zeros(&[1; 6]), "expected 1 to 5 axes"),
    ] {
        let later = (array.exp() + 1.0).sum_all();
        let message = runner().read(&later).unwrap_err().to_string();
        assert!(message.contains(named), "{message}");
    }
}

/// Neither computing nor dropping a long chain needs a deep stack.
#[test]
fn long_chains() {
    let x = (0..20_000).fold(Array::zeros(&[1]), |x, _| x + 1.0);
    drop(x);
    let x = (0..500).fold(Array::zeros(&[1]), |x, _| x + 1.0);
    check(&x, &[1], &[500.0]);
}
