//! Gradients against central differences in f64, and what functions say about their own.

use brasa_array::grad::{checkpoint, custom_vjp, jvp, stop_gradient, value_and_grad, vjp};
use brasa_array::{Array, Result, graph};
use brasa_graph::reference::Array as Numbers;
use brasa_graph::step::{Outs, Segment, SequenceId, Step};
use brasa_graph::testing::evaluate_with;
use brasa_graph::{ValueId, ValueKind};

use crate::{assert_close, runner};

/// The elements of an expression in f64, with other elements in leaf `moved`.
fn numbers(expression: &Array, moved: Option<(usize, &[f64])>) -> Vec<f64> {
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
    evaluate_with(&graph, &Step { segments: vec![row] }, &brought)[0].floats().to_vec()
}

/// Gradients of a function of one array: by rule, in f64 and on the device, and by differences of 1e-5 to either side.
#[track_caller]
fn check(name: &str, x: &Array, function: impl Fn(&Array) -> Array) {
    let (result, gradients) = value_and_grad(|x| Ok(function(&x[0])))(std::slice::from_ref(x)).unwrap();
    let by_rule = numbers(&gradients[0], None);
    let found = runner().read(&gradients[0]).unwrap();
    let values: Vec<f64> = x.values().unwrap().into_iter().map(f64::from).collect();
    // The array is the first leaf with its values; others are constants of other shapes.
    let leaf = graph(std::slice::from_ref(&result)).unwrap();
    let leaf = leaf.weights().iter().position(|weight| {
        weight.decode("test").unwrap() == x.values().unwrap() && weight.shape == x.shape()
    });
    let leaf = leaf.unwrap();
    let at_side = |at: usize, by: f64| {
        let mut moved = values.clone();
        moved[at] += by;
        numbers(&result, Some((leaf, &moved)))[0]
    };
    let expected: Vec<f64> =
        (0..values.len()).map(|at| (at_side(at, 1e-5) - at_side(at, -1e-5)) / 2e-5).collect();
    assert!(expected.iter().any(|x| x.abs() > 1e-3), "{name}: nothing to check");
    for (at, ((a, in_f64), b)) in found.iter().zip(by_rule).zip(expected).enumerate() {
        let scale = b.abs().max(1.0);
        assert!((in_f64 - b).abs() <= 1e-6 * scale, "{name}, element {at} in f64: {in_f64}, expected {b}");
        assert!((f64::from(*a) - b).abs() <= 2e-5 * scale, "{name}, element {at}: {a}, expected {b}");
    }
}

type Function = Box<dyn Fn(&Array) -> Array>;

/// Functions of an array `[2, 3]` that give a number, of every operation.
fn functions() -> Vec<(&'static str, Function)> {
    let w = Array::normal(1, &[3, 4]);
    let weights = Array::normal(2, &[2, 3]);
    let mut all: Vec<(&'static str, Function)> = Vec::new();
    let mut add = |name, function: Function| all.push((name, function));
    let mut weighed = |name, function: fn(&Array) -> Array| {
        let weights = weights.clone();
        add(name, Box::new(move |x| (function(x) * &weights).sum_all()));
    };
    weighed("exp", Array::exp);
    weighed("log", |x| (x.square() + 0.5).log());
    weighed("rsqrt", |x| (x.square() + 0.5).rsqrt());
    weighed("sqrt", |x| (x.square() + 0.5).sqrt());
    weighed("tanh", Array::tanh);
    weighed("sigmoid", Array::sigmoid);
    weighed("silu", Array::silu);
    weighed("gelu", Array::gelu);
    weighed("gelu_tanh", Array::gelu_tanh);
    weighed("relu", Array::relu);
    weighed("abs", Array::abs);
    weighed("clip", |x| x.clip(-1.0, 0.5));
    weighed("minimum", |x| x.minimum(&x.square()));
    weighed("div", |x| x / (x.square() + 1.0));
    weighed("softmax", Array::softmax);
    weighed("choose", |x| x.relu().choose(&x.square(), &x.exp()));
    add("rows meet columns", Box::new(|x| (x.slice(1, 0..1) * x.slice(0, 1..2)).exp().sum_all()));
    add("sum", Box::new(|x| x.sum(0).square().sum_all()));
    add("mean", Box::new(|x| x.mean(1).square().sum_all()));
    add("max", Box::new(|x| x.max(1).square().sum_all()));
    add("logsumexp", Box::new(|x| x.logsumexp(0).square().sum_all()));
    add("matmul", Box::new(move |x| x.matmul(&w).square().mean_all()));
    add("both sides", Box::new(|x| x.matmul(&x.t()).scale(0.3).exp().sum_all()));
    add("reshape", Box::new(|x| (x.reshape(&[3, 2]).matmul(x)).square().sum_all()));
    add("concat", Box::new(|x| Array::concat(&[x, &x.square()], 0).exp().sum_all()));
    add("take", Box::new(|x| x.take(&[1, 1, 0]).square().mean(0).exp().sum_all()));
    add("broadcast", Box::new(|x| (x.sum(0).broadcast_to(&[2, 3]) * x).sum_all()));
    let norm = |x: &Array| {
        let centred = x - x.mean(1).reshape(&[2, 1]);
        let variance = centred.square().mean(1).reshape(&[2, 1]);
        (&centred * (variance + 1e-3).rsqrt()).exp().sum_all()
    };
    add("norm", Box::new(norm));
    let weights = weights.clone();
    add("cross entropy", Box::new(move |x| (x.logsumexp(1) - (x * &weights).sum(1)).mean_all()));
    all
}

fn point() -> Array {
    Array::new([0.3, -0.7, 1.1, 0.4, -1.3, 0.9], &[2, 3])
}

#[test]
fn gradients_are_slopes() {
    for (name, function) in functions() {
        check(name, &point(), function);
    }
}

/// The gradient of half the square of a function.
fn gradient(function: &Function, x: &Array) -> Array {
    let square = |x: &[Array]| Ok(function(&x[0]).square() * 0.5);
    value_and_grad(square)(std::slice::from_ref(x)).unwrap().1.remove(0)
}

/// Products of Hessians and directions: the gradient of a gradient's part along a direction, against differences of that gradient.
#[test]
fn gradients_of_gradients_are_slopes() {
    let direction = Array::normal(7, &[2, 3]);
    for (name, function) in functions() {
        check(&format!("gradient of {name}"), &point(), |x| (gradient(&function, x) * &direction).sum_all());
    }
}

/// A Hessian is symmetric, so that its product is the same forward and backward: `⟨H·v, w⟩ = ⟨v, H·w⟩`. The gradient of a tangent is that product too.
#[test]
fn hessians_are_symmetric() {
    let [v, w] = [7, 8].map(|seed| Array::normal(seed, &[2, 3]));
    let x = [point()];
    for (name, function) in functions() {
        let slope = |x: &[Array]| Ok(vec![gradient(&function, &x[0])]);
        let forward = jvp(slope, &x, std::slice::from_ref(&v)).unwrap().1.remove(0);
        let backward = vjp(slope, &x, std::slice::from_ref(&w)).unwrap().1.remove(0);
        let tangent = |x: &[Array]| {
            let square = |x: &[Array]| Ok(vec![function(&x[0]).square() * 0.5]);
            Ok(jvp(square, x, std::slice::from_ref(&v))?.1.remove(0))
        };
        let reverse_of_forward = value_and_grad(tangent)(&x).unwrap().1.remove(0);
        let [left, right, other] = [&forward * &w, &backward * &v, &reverse_of_forward * &w]
            .map(|each| numbers(&each.sum_all(), None)[0]);
        assert!(left.abs() > 1e-6, "{name}: nothing to check");
        for found in [right, other] {
            assert!((left - found).abs() <= 1e-10 * left.abs().max(1.0), "{name}: {left} and {found}");
        }
    }
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

/// Checkpoints change no bit of gradients, and the program has the operations of the region twice.
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
    let rule = |_: &[Array], _: &[Array], _: &[Array]| Ok(vec![Array::zeros(&[5])]);
    let wrong = value_and_grad(|x| Ok(custom_vjp(|x| Ok(vec![x[0].sum_all()]), rule)(x)?.remove(0)));
    let error = wrong(&x).unwrap_err().to_string();
    assert!(error.contains("gradients of a custom function of shapes [[5]]"), "{error}");
}
