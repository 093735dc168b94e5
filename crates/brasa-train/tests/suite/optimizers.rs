//! Optimizers against torch, schedules against transformers (tools/golden/optimizers.py).

use std::path::Path;

use brasa_golden::Golden;
use brasa_train::optimizer::{Adam, Optimizer, Rule, Schedule, Sgd, Shape, clip, norm};

fn golden() -> Golden {
    Golden::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/optimizers.safetensors"))
}

const SIZES: [usize; 2] = [7, 33];

fn begin(golden: &Golden) -> Vec<Vec<f32>> {
    (0..2).map(|array| golden.floats(&format!("begin.{array}"))).collect()
}

fn gradients(golden: &Golden, update: usize) -> Vec<Vec<f32>> {
    let of = |(array, &size): (usize, &usize)| {
        golden.floats(&format!("gradients.{array}"))[update * size..][..size].to_vec()
    };
    SIZES.iter().enumerate().map(of).collect()
}

fn check_near(name: &str, found: &[f32], expected: &[f32], bound: f32) {
    assert_eq!(found.len(), expected.len(), "{name}");
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (found - expected).abs() / expected.abs().max(1e-2);
        assert!(error <= bound, "{name}[{at}]: {found}, expected {expected}");
    }
}

#[test]
fn values_are_those_of_torch() {
    let golden = golden();
    let adam = Adam { weight_decay: 0.1, ..Adam::default() };
    let rules = [
        ("adamw", Rule::AdamW(Adam { beta2: 0.95, eps: 1e-6, ..adam })),
        ("adam", Rule::Adam(adam)),
        ("sgd", Rule::Sgd(Sgd { weight_decay: 0.1, ..Sgd::default() })),
        ("momentum", Rule::Sgd(Sgd { momentum: 0.9, ..Sgd::default() })),
        ("nesterov", Rule::Sgd(Sgd { momentum: 0.9, nesterov: true, weight_decay: 0.1 })),
    ];
    let mut compared = 0;
    for (name, rule) in rules {
        let mut values = begin(&golden);
        let mut optimizer = Optimizer::new(rule, SIZES);
        for update in 0..12 {
            optimizer.update(0.01, &mut values, &gradients(&golden, update));
            for (array, values) in values.iter().enumerate() {
                let label = format!("{name}.{}.{array}", update + 1);
                if golden.has(&label) {
                    check_near(&label, values, &golden.floats(&label), 3e-6);
                    compared += 1;
                }
            }
        }
        assert_eq!(optimizer.updates(), 12);
    }
    assert_eq!(compared, 5 * 3 * 2);
}

#[test]
fn a_state_goes_on_bit_for_bit() {
    let golden = golden();
    for rule in [Rule::AdamW(Adam::default()), Rule::Sgd(Sgd { momentum: 0.9, ..Sgd::default() })] {
        let run = |optimizer: &mut Optimizer, values: &mut Vec<Vec<f32>>, updates: std::ops::Range<usize>| {
            for update in updates {
                optimizer.update(0.01, values, &gradients(&golden, update));
            }
        };
        let (mut whole, mut values) = (Optimizer::new(rule, SIZES), begin(&golden));
        run(&mut whole, &mut values, 0..12);
        let (mut first, mut halted) = (Optimizer::new(rule, SIZES), begin(&golden));
        run(&mut first, &mut halted, 0..5);
        let mut second = Optimizer::new(rule, SIZES);
        second.restore(first.updates(), first.states().to_vec());
        run(&mut second, &mut halted, 5..12);
        assert_eq!((halted, second), (values, whole));
    }
}

#[test]
fn long_gradients_are_clipped_as_torch_clips_them() {
    let golden = golden();
    let mut long = gradients(&golden, 0);
    let found = norm(&long);
    check_near("norm", &[found as f32], &golden.floats("clip.norm"), 1e-6);
    clip(&mut long, found, 0.5);
    for (array, clipped) in long.iter().enumerate() {
        check_near("clipped", clipped, &golden.floats(&format!("clip.{array}")), 1e-6);
    }
    let short = long.clone();
    clip(&mut long, norm(&short), 1.0);
    assert_eq!(long, short);
}

#[test]
fn rates_are_those_of_transformers_behind_the_warm_up_and_one_ahead_within() {
    let golden = golden();
    for (name, shape) in [("constant", Shape::Constant), ("linear", Shape::Linear), ("cosine", Shape::Cosine)]
    {
        let schedule = Schedule { shape, peak: 0.3, warm_up: 5, updates: 25, floor: 0.0 };
        let expected = golden.floats(&format!("rates.{name}"));
        let found: Vec<f32> = (0..25).map(|update| schedule.rate(update) as f32).collect();
        check_near(name, &found[5..], &expected[5..], 1e-5);
        check_near(name, &found[..5], &expected[1..6], 1e-5);
        let floored = Schedule { floor: 0.1, ..schedule };
        let last = if shape == Shape::Constant { 0.3 } else { 0.03 };
        assert!((floored.rate(25) - last).abs() < 1e-12 && (floored.rate(99) - last).abs() < 1e-12, "{name}");
    }
    let none = Schedule { shape: Shape::Linear, peak: 1.0, warm_up: 0, updates: 0, floor: 0.0 };
    assert!((none.rate(0) - 1.0).abs() < 1e-12);
}
