//! The gaps between tokens under load, on a device whose times are a formula: requests arrive at random, prompts are long and
//! short, and the budget of prompt rows is learned as in an engine.

use std::time::Duration;

use brasa_graph::testing::Random;

use super::*;

/// A simulated device: a step of `rows` rows takes `base + rows · row` seconds.
#[derive(Clone, Copy, Debug)]
struct Device {
    base: f64,
    row: f64,
}

impl Device {
    fn seconds(self, rows: usize) -> f64 {
        self.base.max(self.row * rows as f64) + self.row / 2.0 * rows as f64
    }
}

/// A request that computes its prompt and then decodes.
#[derive(Clone, Debug)]
struct Text {
    arrived: f64,
    prompt: usize,
    pending: usize,
    left: usize,
    last_token: Option<f64>,
}

/// Results of a run.
struct Measured {
    gaps: Vec<f64>,
    /// Times to the first token, by prompt tokens.
    firsts: Vec<(usize, f64)>,
}

fn percentile(values: &mut [f64], percent: usize) -> f64 {
    values.sort_by(f64::total_cmp);
    values[(values.len() - 1) * percent / 100]
}

/// Serves `count` requests that arrive at `load` of what the device can do. `fixed` is a budget of prompt rows in place of the
/// learned one.
fn serve(device: Device, load: f64, count: usize, fixed: Option<usize>, seed: u64) -> Measured {
    const MOST: usize = 128;
    let mut random = Random::new(seed);
    let mut uniform = || (random.below(1 << 20) as f64 + 0.5) / f64::from(1 << 20);
    let mut coming: Vec<Text> = Vec::new();
    // What a request costs alone in good company: its prompt in large chunks, its answer beside seven others.
    let (prompt, answer) = (544.0, 48.0);
    let cost = prompt * device.seconds(512) / 512.0 + answer * device.seconds(8) / 8.0;
    let mut at = 0.0;
    for _ in 0..count {
        at += -uniform().ln() * cost / load;
        let prompt = 64 + (uniform() * 960.0) as usize;
        let left = 32 + (uniform() * 32.0) as usize;
        coming.push(Text { arrived: at, prompt, pending: prompt, left, last_token: None });
    }
    coming.reverse();
    let (mut now, mut active): (f64, Vec<Text>) = (0.0, Vec::new());
    let (mut costs, mut recent) = (StepCosts::default(), RecentGaps::default());
    let mut measured = Measured { gaps: Vec::new(), firsts: Vec::new() };
    while !coming.is_empty() || !active.is_empty() {
        let decoding = active.iter().filter(|text| text.pending == 1).count();
        let requests = active.len() + coming.iter().filter(|text| text.arrived <= now).count();
        let mut limits = Limits {
            max_active: 16,
            max_rows: 512,
            max_outs: 64,
            mixed_rows: fixed.unwrap_or_else(|| costs.prompt_rows(decoding, requests, recent.median(), MOST)),
            max_chain: 1,
            waiting: 0,
            room: Room::default(),
            short: false,
        };
        let described = |active: &[Text]| -> Vec<Active> {
            active.iter().map(|text| Active { pending: text.pending, reads: 0, need: Vec::new() }).collect()
        };
        let waits = coming.last().is_some_and(|text| text.arrived <= now);
        limits.waiting = usize::from(waits);
        let standing = Standing::new(0, 0);
        let candidate = Candidate { standing, cached: 0, coming: 0, need: Vec::new() };
        let candidates = if waits { vec![candidate] } else { Vec::new() };
        let step = match plan(&described(&active), &candidates, &limits) {
            Plan::Admit(_) => {
                active.extend(coming.pop());
                continue;
            }
            Plan::Rest => {
                now = coming.last().map_or(now, |text| text.arrived);
                continue;
            }
            Plan::Step(step) => step,
        };
        let rows: usize = step.rows.iter().sum();
        // Steps are never quite alike.
        let seconds = device.seconds(rows) * (0.9 + 0.2 * uniform());
        costs.observe(rows, Duration::from_secs_f64(seconds));
        recent.observe(decoding as u64, Duration::from_secs_f64(seconds));
        now += seconds;
        for (text, &rows) in active.iter_mut().zip(&step.rows) {
            text.pending -= rows;
            if text.pending == 0 {
                match text.last_token.replace(now) {
                    Some(last) => measured.gaps.push(now - last),
                    None => measured.firsts.push((text.prompt, now - text.arrived)),
                }
                text.left -= 1;
                text.pending = 1;
            }
        }
        active.retain(|text| text.left > 0);
    }
    measured
}

/// Simulated devices: a CPU with two threads, a small model on that CPU, and a GPU.
const DEVICES: [Device; 3] = [
    Device { base: 0.022, row: 0.0035 },
    Device { base: 0.0005, row: 0.0002 },
    Device { base: 0.004, row: 0.00005 },
];

#[test]
fn long_prompts_do_not_stall_those_who_decode() {
    for device in DEVICES {
        for seed in 0..3 {
            let Measured { mut gaps, firsts } = serve(device, 0.8, 150, None, seed);
            let (median, high) = (percentile(&mut gaps, 50), percentile(&mut gaps, 99));
            assert!(high <= 4.0 * median, "{device:?}, seed {seed}: gaps {median} and {high}");
            assert_eq!(firsts.len(), 150);
        }
    }
}

/// The learned budget is better than a fixed one: a fixed number that suits one device causes long gaps or slow prompts on
/// another.
#[test]
fn no_fixed_budget_suits_every_device() {
    let run = |device: Device, fixed| {
        let Measured { mut gaps, firsts } = serve(device, 0.8, 150, fixed, 1);
        let mut firsts: Vec<f64> = firsts.into_iter().map(|(_, time)| time).collect();
        (percentile(&mut gaps, 99), percentile(&mut firsts, 50))
    };
    let (learned, fixed) = (run(DEVICES[0], None), run(DEVICES[0], Some(128)));
    assert!(learned.0 < fixed.0 / 4.0 && learned.1 < fixed.1 * 1.2, "{learned:?} {fixed:?}");
    let (learned, fixed) = (run(DEVICES[2], None), run(DEVICES[2], Some(8)));
    assert!(learned.0 < fixed.0 * 4.0 && learned.1 < fixed.1 / 4.0, "{learned:?} {fixed:?}");
}

#[test]
fn short_prompts_do_not_wait_behind_long_ones() {
    let Measured { firsts, .. } = serve(DEVICES[0], 0.8, 300, None, 5);
    let median = |short: bool| {
        let times = firsts.iter().filter(|(prompt, _)| (*prompt < 300) == short).map(|(_, time)| *time);
        percentile(&mut times.collect::<Vec<_>>(), 50)
    };
    assert!(median(true) < 0.6 * median(false), "{} and {}", median(true), median(false));
}
