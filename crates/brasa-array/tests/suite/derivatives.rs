//! Gradients against central differences in f64, and what functions say about their own.

use brasa_array::grad::{checkpoint, custom_vjp, jvp, stop_gradient, value_and_grad, vjp};
use brasa_array::{Array, Result, graph};
use brasa_graph::reference::Array as Numbers;
use brasa_graph::step::{Outs, Segment, SequenceId, Step};
use brasa_graph::testing::evaluate_with;
use brasa_graph::{ValueId, ValueKind};

use crate::{assert_close, runner};

/// The value of a scalar expression in f64, with other elements in leaf `moved`.
fn value(expression: &Array, moved: Option<(usize, &[f64])>) -> f64 {
    let graph = graph(std::slice::from_ref(expression)).unwrap();
    let brought: Vec<(ValueId, Numbers<f64>)> = moved
        .iter()
        .map(|&(number, values)| {
            let is_it =
                |kind: ValueKind| matches!(kind, ValueKind::Weight(weight) if weight.0 as usize == number);
            let id = graph.values().iter().position(|value| is_it(value.kind)).unwrap();
            let shape = graph.weights()[number].shape.clone();
            (ValueId(id as u32), Numbers::of(shape, values.to_vec()))
        })
        .collect();
    let row = Segment::text(SequenceId(0), 0, vec![0], Outs::None, Vec::new());
    evaluate_with(&graph, &Step { segments: vec![row] }, &brought)[0].floats()[0]
}

/// Gradients of a function of one array: by rule, and by differences of 1e-5 to either side.
#[track_caller]
fn check(name: &str, x: &Array, function: impl Fn(&Array) -> Array) {
    let (result, gradients) = value_and_grad(|x| Ok(function(&x[0])))(std::slice::from_ref(x)).unwrap();
    let found = runner().read(&gradients[0]).unwrap();
    let values: Vec<f64> = x.values().unwrap().into_iter().map(f64::from).collect();
    // The array is the first leaf with its values; others are constants of other shapes.
    let leaf = graph(std::slice::from_ref(&result)).unwrap();
    let leaf = leaf.weights().iter().position(|weight| {
        weight.decode("test").unwrap() == x.values().unwrap() && weight.shape == x.shape()
    });
    let leaf = leaf.unwrap();
    let expected: Vec<f32> = (0..values.len())
        .map(|at| {
            let at_side = |by: f64| {
                let mut moved = values.clone();
                moved[at] += by;
                value(&result, Some((leaf, &moved)))
            };
            ((at_side(1e-5) - at_side(-1e-5)) / 2e-5) as f32
        })
        .collect();
    assert!(expected.iter().any(|x| x.abs() > 1e-3), "{name}: nothing to check");
    for (at, (a, b)) in found.iter().zip(&expected).enumerate() {
        assert!((a - b).abs() <= 2e-5 * b.abs().max(1.0), "{name}, element {at}: {a}, expected {b}");
    }
}

#[test]
fn gradients_are_slopes() {
    let x = Array::new([0.3, -0.7, 1.1, 0.4, -1.3, 0.9], &[2, 3]);
    let w = Array::normal(1, &[3, 4]);
    let weights = Array::normal(2, &[2, 3]);
    let weighed = |y: Array| (y * &weights).sum_all();
    check("exp", &x, |x| weighed(x.exp()));
    check("log", &x, |x| weighed((x.square() + 0.5).log()));
    check("rsqrt", &x, |x| weighed((x.square() + 0.5).rsqrt()));
    check("sqrt", &x, |x| weighed((x.square() + 0.5).sqrt()));
    check("tanh", &x, |x| weighed(x.tanh()));
    check("sigmoid", &x, |x| weighed(x.sigmoid()));
    check("silu", &x, |x| weighed(x.silu()));
    check("gelu", &x, |x| weighed(x.gelu()));
    check("gelu_tanh", &x, |x| weighed(x.gelu_tanh()));
    check("relu", &x, |x| weighed(x.relu()));
    check("abs", &x, |x| weighed(x.abs()));
    check("clip", &x, |x| weighed(x.clip(-1.0, 0.5)));
    check("div", &x, |x| weighed(x / (x.square() + 1.0)));
    check("rows meet columns", &x, |x| (x.slice(1, 0..1) * x.slice(0, 1..2)).exp().sum_all());
    check("sum", &x, |x| x.sum(0).square().sum_all());
    check("mean", &x, |x| x.mean(1).square().sum_all());
    check("max", &x, |x| x.max(1).square().sum_all());
    check("logsumexp", &x, |x| x.logsumexp(0).square().sum_all());
    check("softmax", &x, |x| weighed(x.softmax()));
    check("matmul", &x, |x| x.matmul(&w).square().mean_all());
    check("both sides", &x, |x| x.matmul(&x.t()).exp().sum_all());
    check("reshape", &x, |x| (x.reshape(&[3, 2]).matmul(x)).square().sum_all());
    check("concat", &x, |x| Array::concat(&[x, &x.square()], 0).exp().sum_all());
    check("take", &x, |x| x.take(&[1, 1, 0]).square().mean(0).exp().sum_all());
    check("choose", &x, |x| weighed(x.relu().choose(&x.square(), &x.exp())));
    check("broadcast", &x, |x| (x.sum(0).broadcast_to(&[2, 3]) * x).sum_all());
    check("cross entropy", &x, |x| (x.logsumexp(1) - (x * &weights).sum(1)).mean_all());
}

/// `⟨J·v, w⟩ = ⟨v, Jᵀ·w⟩`, and zeros for what nothing depends on.
#[test]
fn forward_and_reverse_agree() {
    let mut runner = runner();
    let primals = [Array::normal(1, &[2, 3]), Array::normal(2, &[3]), Array::scalar(3.0)];
    let function = |x: &[Array]| Ok(vec![(&x[0] * &x[1]).tanh().sum(1), x[1].exp()]);
    let directions = [Array::normal(3, &[2, 3]), Array::normal(4, &[3]), Array::scalar(1.0)];
    let cotangents = [Array::normal(5, &[2]), Array::normal(6, &[3])];
    let (_, tangents) = jvp(function, &primals, &directions).unwrap();
    let (_, gradients) = vjp(function, &primals, &cotangents).unwrap();
    let inner = |a: &[Array], b: &[Array]| {
        a.iter().zip(b).map(|(a, b)| (a * b).sum_all()).reduce(|a, b| a + b).unwrap()
    };
    let forward = runner.item(&inner(&tangents, &cotangents)).unwrap();
    let reverse = runner.item(&inner(&directions, &gradients)).unwrap();
    assert!((forward - reverse).abs() < 1e-5 * forward.abs().max(1.0), "{forward}, {reverse}");
    assert_eq!(runner.read(&gradients[2]).unwrap(), [0.0]);
}

/// The second and the third derivative of x⁴: 12·x², 24·x.
#[test]
fn gradients_of_gradients() {
    let slope = |x: &[Array]| Ok(value_and_grad(|x| Ok(x[0].square().square()))(x)?.1.remove(0));
    let second = |x: &[Array]| Ok(value_and_grad(slope)(x)?.1.remove(0));
    let (second, third) = value_and_grad(second)(&[Array::scalar(1.5)]).unwrap();
    let mut runner = runner();
    assert_close(&runner.read(&second).unwrap(), &[27.0], 1e-5);
    assert_close(&runner.read(&third[0]).unwrap(), &[36.0], 1e-5);
}

#[test]
fn stopped_arrays_are_constants() {
    let (value, gradients) =
        value_and_grad(|x| Ok((stop_gradient(&x[0]) * &x[0]).sum_all()))(&[Array::scalar(3.0)]).unwrap();
    let mut runner = runner();
    assert_eq!(runner.item(&value).unwrap(), 9.0);
    assert_eq!(runner.item(&gradients[0]).unwrap(), 3.0);
}

/// The same bits, computed again: the program has the operations of the region twice.
#[test]
fn checkpoints_change_nothing_but_what_is_kept() {
    let region = |x: &[Array]| Ok(vec![x[0].exp().tanh().exp()]);
    let x = [Array::normal(1, &[40])];
    let plain = value_and_grad(|x| Ok(region(x)?[0].square().sum_all()))(&x).unwrap();
    let again = value_and_grad(|x| Ok(checkpoint(region)(x)?[0].square().sum_all()))(&x).unwrap();
    let tanhs = |of: &(Array, Vec<Array>)| {
        let both = [of.0.clone(), of.1[0].clone()];
        graph(&both)
            .unwrap()
            .nodes()
            .iter()
            .filter(|node| format!("{:?}", node.op).contains("Unary(Tanh)"))
            .count()
    };
    assert_eq!((tanhs(&plain), tanhs(&again)), (1, 2));
    let mut runner = runner();
    assert_eq!(runner.item(&plain.0).unwrap(), runner.item(&again.0).unwrap());
    assert_eq!(runner.read(&plain.1[0]).unwrap(), runner.read(&again.1[0]).unwrap());
}

/// A gradient that is not the function's own, behind and in front of plain operations, twice in a row, and differentiated again.
#[test]
fn functions_with_gradients_of_their_own() {
    let ten = |x: &[Array]| -> Result<Vec<Array>> {
        let rule = |x: &[Array], y: &[Array], d: &[Array]| Ok(vec![&d[0] * &x[0] * 10.0 + &y[0] * 0.0]);
        custom_vjp(|x| Ok(vec![x[0].square()]), rule)(x)
    };
    let mut runner = runner();
    let x = [Array::scalar(3.0)];
    let once = value_and_grad(|x| Ok(ten(&[&x[0] * 2.0])?[0].scale(0.5)))(&x).unwrap();
    // d/dx: ½ · 10·(2x) · 2.
    assert_eq!((runner.item(&once.0).unwrap(), runner.item(&once.1[0]).unwrap()), (18.0, 60.0));
    let twice = value_and_grad(|x| Ok(ten(&ten(x)?)?.remove(0) + &x[0]))(&x).unwrap();
    // 10·x² · 10·x, and 1 of the plain term.
    assert_eq!((runner.item(&twice.0).unwrap(), runner.item(&twice.1[0]).unwrap()), (84.0, 2701.0));
    let slope = |x: &[Array]| Ok(value_and_grad(|x| Ok(ten(x)?.remove(0)))(x)?.1.remove(0));
    let second = value_and_grad(slope)(&x).unwrap();
    assert_eq!((runner.item(&second.0).unwrap(), runner.item(&second.1[0]).unwrap()), (30.0, 10.0));
    let error = jvp(|x| ten(x), &x, &x).unwrap_err().to_string();
    assert!(error.contains("no forward mode"), "{error}");
}

#[test]
fn errors_reach_the_caller() {
    let x = [Array::zeros(&[2])];
    let error = value_and_grad(|x| Ok(x[0].exp()))(&x).unwrap_err().to_string();
    assert!(error.contains("cotangents of shapes [[1]], expected [[2]]"), "{error}");
    let error = value_and_grad(|x| Ok((&x[0] + &Array::zeros(&[3])).sum_all()))(&x).unwrap_err().to_string();
    assert!(error.contains("add: shapes [2] and [3]"), "{error}");
    let slope = |x: &[Array]| Ok(value_and_grad(|x| Ok(x[0].tanh().sum_all()))(x)?.1[0].sum_all());
    let error = value_and_grad(slope)(&x).unwrap_err().to_string();
    assert!(error.contains("unary_gradient"), "{error}");
    let rule = |_: &[Array], _: &[Array], _: &[Array]| Ok(vec![Array::zeros(&[5])]);
    let wrong = value_and_grad(|x| Ok(custom_vjp(|x| Ok(vec![x[0].sum_all()]), rule)(x)?.remove(0)));
    let error = wrong(&x).unwrap_err().to_string();
    assert!(error.contains("gradients of a custom function of shapes [[5]]"), "{error}");
}
