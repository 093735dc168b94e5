//! Fits a curve to points by gradient descent.
//!
//! `cargo run --release -p brasa --example fit_curve`

use brasa::array::{Array, grad};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut runner = brasa::array_runner(None)?;
    let x = Array::range(-1.0, 0.1, 21);
    let y = 0.5 - &x * 2.0 + x.square() * 3.0 + Array::normal(1, &[21]) * 0.05;
    let loss = |p: &[Array]| Ok((&p[0] + &p[1] * &x + &p[2] * x.square() - &y).square().mean_all());
    let step = grad::value_and_grad(loss);
    let mut p = vec![Array::scalar(0.0); 3];
    for _ in 0..300 {
        let (_, gradients) = step(&p)?;
        p = p.iter().zip(&gradients).map(|(p, gradient)| p - gradient * 0.3).collect();
        runner.eval(&p.iter().collect::<Vec<_>>())?;
    }
    let [a, b, c] = [&p[0], &p[1], &p[2]].map(|p| p.values().map_or(f32::NAN, |values| values[0]));
    println!("{a:.2} + {b:.2} x + {c:.2} x²");
    Ok(())
}
