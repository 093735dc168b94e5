//! Optimizers against torch, schedules against transformers (tools/golden/optimizers.py).

use std::path::Path;

use brasa_golden::Golden;
use brasa_train::optimizer::{
    Adafactor, Adam, BLOCK, Codes, Form, MlxSchedule, Moment, Muon, MuonKind, Optimizer, Rule, SHORTEST,
    Schedule, Sgd, Shape, clip, map, norm,
};

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

/// The numbers of codes are those of bitsandbytes, bit for bit, and so are its moments over six updates, but for single codes.
#[test]
fn moments_of_eight_bits_are_those_of_bitsandbytes() {
    let golden = golden();
    for (is_signed, name) in [(true, "signed"), (false, "unsigned")] {
        assert_eq!(map(is_signed)[..], golden.floats(&format!("eight_bits.{name}")), "{name}");
    }
    let made = |number: usize| -> Vec<f32> {
        let number = |i: usize| (1.7 * i as f64 + number as f64).cos() * 10_f64.powf(i as f64 / 1125.0 - 3.0);
        (0..4500).map(|i| number(i) as f32).collect()
    };
    let values = made(0);
    let magnitudes: Vec<f32> = values.iter().map(|x| x.abs()).collect();
    for (values, is_signed, name) in [(&values, true, "codes"), (&magnitudes, false, "unsigned_codes")] {
        let mut codes = Codes::zeros(values.len(), is_signed);
        for (block, values) in values.chunks(BLOCK).enumerate() {
            codes.encode(block, values);
        }
        // A number half way between two codes is bitsandbytes' lower or upper one as its sums round.
        let expected = golden.floats(&format!("eight_bits.{name}"));
        let others: Vec<(u8, f32)> = (codes.codes.iter().zip(expected))
            .map(|(&code, expected)| (code, expected))
            .filter(|&(code, expected)| (f32::from(code) - expected).abs() > 0.5)
            .collect();
        let is_near = |&(code, expected): &(u8, f32)| (f32::from(code) - expected).abs() < 1.5;
        assert!(others.len() <= 9 && others.iter().all(is_near), "{name}: {others:?}");
        assert_eq!(codes.magnitudes, golden.floats("eight_bits.magnitudes"), "{name}");
    }
    let rule = Rule::AdamW8(Adam { beta2: 0.95, eps: 1e-6, weight_decay: 0.1, ..Adam::default() });
    let mut optimizer = Optimizer::new(rule, [4500_usize]);
    let mut values = vec![made(1)];
    (2..8).for_each(|number| optimizer.update(0.01, &mut values, &[made(number)]));
    let expected = golden.floats("eight_bits.end");
    // Of 54000 numbers that are encoded, one in a thousand is half way between two codes, and moves its value a little otherwise.
    let is_other = |(a, b): &(&f32, &f32)| (*a - *b).abs() > 1e-6 * b.abs().max(0.1);
    let others: Vec<_> = values[0].iter().zip(&expected).filter(is_other).collect();
    assert!(others.len() <= 90, "{} of 4500: {:?}", others.len(), &others[..5]);
    assert!(others.iter().all(|(a, b)| (*a - *b).abs() < 0.01), "{others:?}");
    let bytes: u64 = optimizer.states()[0].iter().map(Moment::size_bytes).sum();
    assert_eq!(bytes, 2 * (4500 + 4 * 18));
    // Short arrays keep f32.
    let [mut short, mut whole] =
        [rule, Rule::AdamW(Adam { beta2: 0.95, eps: 1e-6, weight_decay: 0.1, ..Adam::default() })]
            .map(|rule| Optimizer::new(rule, [SHORTEST - 1]));
    let gradient = [vec![0.5; SHORTEST - 1]];
    let [mut a, mut b] = [(); 2].map(|()| vec![vec![1.0; SHORTEST - 1]]);
    short.update(0.1, &mut a, &gradient);
    whole.update(0.1, &mut b, &gradient);
    assert_eq!((a, short.states()), (b, whole.states()));
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

/// torch makes matrices orthogonal in bf16, which changes an update by up to a hundredth.
#[test]
fn muon_is_that_of_torch() {
    let golden = golden();
    let matrices = [Form::Matrix(6, 10), Form::Matrix(12, 5)];
    let arrays = |label: &str| [0, 1].map(|matrix| golden.floats(&format!("{label}.{matrix}"))).to_vec();
    let muon = Muon { momentum: 0.9, weight_decay: 0.1, ..Muon::default() };
    let mut optimizer = Optimizer::new(Rule::Muon(muon), matrices);
    let mut values = arrays("muon.begin");
    for update in 1..=4 {
        optimizer.update(0.01, &mut values, &arrays(&format!("muon.gradient.{update}")));
        for (label, bound) in [("muon_f32", 1e-6), ("muon", 1e-3)] {
            for (found, expected) in values.iter().zip(arrays(&format!("{label}.{update}"))) {
                for (found, expected) in found.iter().zip(expected) {
                    assert!(
                        (found - expected).abs() < bound,
                        "{label}, {update}: {found}, expected {expected}"
                    );
                }
            }
        }
    }
    assert!(optimizer.states().iter().all(|states| states.len() == 1));
}

#[test]
fn what_is_no_matrix_is_changed_by_adamw_beside_muon() {
    let golden = golden();
    let muon = Rule::Muon(Muon { weight_decay: 0.1, ..Muon::default() });
    let adamw = Rule::AdamW(Adam { weight_decay: 0.1, ..Adam::default() });
    let [mut by_muon, mut by_adamw] = [begin(&golden), begin(&golden)];
    let [mut muon, mut adamw] = [muon, adamw].map(|rule| Optimizer::new(rule, SIZES));
    for update in 0..3 {
        muon.update(0.01, &mut by_muon, &gradients(&golden, update));
        adamw.update(0.01, &mut by_adamw, &gradients(&golden, update));
    }
    assert_eq!(by_muon, by_adamw);
    // MLX's is the momentum itself.
    let plain = Muon { nesterov: false, kind: MuonKind::Mlx, weight_decay: 0.5, ..Muon::default() };
    let mut optimizer = Optimizer::new(Rule::Muon(plain), [2_usize]);
    let mut values = vec![vec![2.0, -4.0]];
    optimizer.update(0.1, &mut values, &[vec![1.0, 2.0]]);
    // 0.05 · (gradient + 0.5 · value) along.
    check_near("mlx", &values[0], &[2.0 - 0.1 * 0.05 * 2.0, -4.0], 1e-6);
}

#[test]
fn settings_of_adafactor_are_read_or_refused() {
    let parse = |text: &str| Adafactor::parse(&serde_json::from_str(text).expect("JSON"));
    let found = parse(r#"{"eps": [1e-20, 0.01], "beta_1": 0.5, "relative_step": false}"#).expect("settings");
    let expected =
        Adafactor { eps: [1e-20, 0.01], beta1: Some(0.5), relative_step: false, ..Adafactor::default() };
    assert_eq!(found, expected);
    assert_eq!(parse(r#"{"beta_1": null}"#).expect("settings"), Adafactor::default());
    for text in ["3", r#"{"eps": [1]}"#, r#"{"decay_rate": 0.8}"#, r#"{"beta_1": 1}"#, r#"{"beta2": 0.9}"#] {
        assert!(parse(text).unwrap_err().to_string().starts_with("adafactor"), "{text}");
    }
}

#[test]
fn schedules_of_mlx_lm_are_refused_by_name() {
    let refused = |text: &str| {
        let value = serde_json::from_str(text).expect("JSON");
        MlxSchedule::parse(&value).unwrap_err().to_string()
    };
    assert!(refused("3").starts_with("lr_schedule: 3\nhint: "));
    for text in [
        r#"{"name": "cosine", "arguments": [1, 2]}"#,
        r#"{"name": "cosine_decay", "arguments": [1]}"#,
        r#"{"name": "step_decay", "arguments": [1, 0.5, 0]}"#,
        r#"{"name": "cosine_decay", "arguments": [1, 2], "warmup": 1.5}"#,
        r#"{"name": "cosine_decay", "arguments": [1, 2], "cool": 1}"#,
    ] {
        assert!(refused(text).starts_with("lr_schedule: "), "{text}");
    }
}
