//! Trains a network of two layers to tell two spirals apart.
//!
//! `cargo run --release -p brasa --example two_layer_network`

use brasa::array::{Array, Result, grad};

const POINTS: usize = 200;

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut runner = brasa::array_runner(None)?;
    let (x, targets) = spirals();
    let scores =
        |p: &[Array]| ((x.matmul(&p[0]) * 2.0 + &p[1]).tanh().matmul(&p[2]) + &p[3]).reshape(&[POINTS]);
    // ln(1 + e^s) − target · s, as the logarithm of a sum of exponentials.
    let loss = |p: &[Array]| -> Result<Array> {
        let scores = scores(p);
        let both = Array::concat(&[&scores.reshape(&[1, POINTS]), &Array::zeros(&[1, POINTS])], 0);
        Ok((both.logsumexp(0) - &scores * &targets).mean_all())
    };
    let step = grad::value_and_grad(loss);
    let mut p = vec![
        Array::normal(1, &[2, 32]),
        Array::normal(2, &[32]),
        Array::normal(3, &[32, 1]) * 0.3,
        Array::zeros(&[1]),
    ];
    // Adam (Kingma & Ba 2014, arXiv:1412.6980).
    let (mut mean, mut square): (Vec<Array>, Vec<Array>) =
        p.iter().map(|p| (Array::zeros(p.shape()), Array::zeros(p.shape()))).unzip();
    for number in 1..=1000 {
        let (loss, gradients) = step(&p)?;
        let rate = 0.02 * (1.0 - 0.999_f32.powi(number)).sqrt() / (1.0 - 0.9_f32.powi(number));
        for (at, gradient) in gradients.iter().enumerate() {
            mean[at] = &mean[at] * 0.9 + gradient * 0.1;
            square[at] = &square[at] * 0.999 + gradient.square() * 0.001;
            p[at] = &p[at] - &mean[at] * Array::scalar(rate) / (square[at].sqrt() + 1e-8);
        }
        let all: Vec<&Array> = p.iter().chain(&mean).chain(&square).chain([&loss]).collect();
        runner.eval(&all)?;
        if number % 200 == 0 {
            println!("step {number}: loss {:.4}", runner.item(&loss)?);
        }
    }
    let found = runner.read(&scores(&p))?;
    let targets = runner.read(&targets)?;
    let right =
        found.iter().zip(&targets).filter(|(score, target)| (**score > 0.0) == (**target > 0.5)).count();
    println!("{right} of {POINTS} points told apart");
    Ok(())
}

/// Points of two spirals, `[POINTS, 2]`, and which of them each belongs to.
fn spirals() -> (Array, Array) {
    let (mut points, mut targets) = (Vec::new(), Vec::new());
    for point in 0..POINTS {
        let (arm, along) = (point % 2, (point / 2) as f32 / (POINTS / 2) as f32);
        let angle = along * 5.0 + arm as f32 * std::f32::consts::PI;
        points.extend([(0.1 + along) * angle.cos(), (0.1 + along) * angle.sin()]);
        targets.push(arm as f32);
    }
    (Array::new(points, &[POINTS, 2]), Array::new(targets, &[POINTS]))
}
