//! A two-layer network beside torch (`tools/golden/arrays.py`).

use brasa_array::Array;
use brasa_array::grad::value_and_grad;
use serde_json::Value;

use crate::{assert_close, runner};

fn array(value: &Value) -> Array {
    let shape: Vec<usize> = serde_json::from_value(value["shape"].clone()).unwrap();
    let values: Vec<f32> = serde_json::from_value(value["values"].clone()).unwrap();
    Array::new(values, &shape)
}

/// The first gradients to 1e-5, and fifty losses of gradient descent to 1e-4.
#[test]
fn a_network_learns_as_in_torch() {
    let golden: Value = serde_json::from_str(include_str!("../golden/network.json")).unwrap();
    let [x, targets] = ["x", "targets"].map(|name| array(&golden[name]));
    let names = ["w1", "b1", "w2", "b2"];
    let mut parameters: Vec<Array> = names.iter().map(|name| array(&golden["parameters"][name])).collect();
    let loss = |p: &[Array]| {
        let hidden = (x.matmul(&p[0]) + &p[1]).gelu();
        let logits = hidden.matmul(&p[2]) + &p[3];
        Ok((logits.logsumexp(1) - (logits * &targets).sum(1)).mean_all())
    };
    let step = value_and_grad(loss);
    let mut runner = runner();
    let mut losses = Vec::new();
    for number in 0..50 {
        let (loss, gradients) = step(&parameters).unwrap();
        if number == 0 {
            for (name, gradient) in names.iter().zip(&gradients) {
                let expected: Vec<f32> = serde_json::from_value(golden["gradients"][name].clone()).unwrap();
                assert_close(&runner.read(gradient).unwrap(), &expected, 1e-5);
            }
        }
        let next: Vec<Array> = parameters.iter().zip(&gradients).map(|(p, g)| p - g.scale(0.5)).collect();
        let all: Vec<&Array> = next.iter().chain([&loss]).collect();
        runner.eval(&all).unwrap();
        losses.push(loss.values().unwrap()[0]);
        parameters = next;
    }
    let expected: Vec<f32> = serde_json::from_value(golden["losses"].clone()).unwrap();
    assert_close(&losses, &expected, 1e-4);
    assert!(losses[49] < 0.5 * losses[0], "{losses:?}");
}
