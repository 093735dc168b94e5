//! The definition of the documentation of `sampling` in f32, word by word; it shares nothing with the implementation but the noise.

use brasa_graph::sampling::{Row, SamplingParams, Stage, gumbel};

use super::definition::{active, adjusted, changed, first_changes};

/// The drawn token, the survivors in order, and their sum of shares.
pub struct Drawn {
    pub token: u32,
    pub survivors: Vec<usize>,
    pub logprob: f32,
}

pub fn exp(x: f32) -> f32 {
    if x < -87.0 {
        return 0.0;
    }
    let round = 1.5 * 8_388_608.0;
    let n = (x * std::f32::consts::LOG2_E + round) - round;
    let r = (x - n * 0.693_145_75) - n * 1.428_606_8e-6;
    let mut p = 1.0 / 5040.0;
    for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 1.0 / 2.0, 1.0, 1.0] {
        p = p * r + c;
    }
    p * 2.0_f32.powi(n as i32)
}

pub fn tree_sum(values: &[f32]) -> f32 {
    let mut level = values.to_vec();
    while level.len() > 1 {
        level.resize(level.len().next_multiple_of(256), 0.0);
        let fold = |block: &[f32]| {
            let mut x = block.to_vec();
            for stride in [128, 64, 32, 16, 8, 4, 2, 1] {
                for i in 0..stride {
                    x[i] += x[i + stride];
                }
            }
            x[0]
        };
        level = level.chunks(256).map(fold).collect();
    }
    level[0]
}

/// Tokens in order, the largest first, and the largest logit; `None` if it is not finite.
fn in_order(z: &[f32]) -> Option<(Vec<usize>, f32)> {
    let numbers = z.iter().copied().filter(|z| !z.is_nan());
    let m = numbers.fold(f32::NEG_INFINITY, |m, z| if z > m { z } else { m });
    let mut order: Vec<usize> = (0..z.len()).filter(|&id| z[id] > f32::NEG_INFINITY).collect();
    order.sort_by(|&a, &b| z[b].partial_cmp(&z[a]).unwrap().then(a.cmp(&b)));
    m.is_finite().then_some((order, m))
}

fn inverse(temperature: f32) -> f32 {
    (1.0 / temperature).clamp(f32::MIN_POSITIVE, f32::MAX)
}

fn exponent(z: f32, m: f32, temperature: f32) -> f32 {
    if z >= m { 0.0 } else { (z - m) * inverse(temperature) }
}

pub fn ln(x: f32) -> f32 {
    let mut k = 0;
    let mut f = x;
    while f >= std::f32::consts::SQRT_2 {
        (f, k) = (f / 2.0, k + 1);
    }
    while f < std::f32::consts::FRAC_1_SQRT_2 {
        (f, k) = (f * 2.0, k - 1);
    }
    let s = (f - 1.0) / (f + 1.0);
    let q = s * s;
    let p = (((2.0 / 9.0 * q + 2.0 / 7.0) * q + 2.0 / 5.0) * q + 2.0 / 3.0) * q + 2.0;
    let k = k as f32;
    k * 0.693_145_75 + (k * 1.428_606_8e-6 + s * p)
}

/// `None` if there is no token.
pub fn draw(params: &SamplingParams, row: &Row) -> Option<Drawn> {
    let mut z: Vec<f32> = adjusted(params, row).into_iter().map(|z| z as f32).collect();
    let (mut order, mut m) = in_order(&z)?;
    let (mut kept, mut temperature) = (order.len(), 1.0);
    let first = first_changes(params, row.position).len();
    for stage in active(params, row.position).split_off(first) {
        let sum_of = |ids: &[usize], value: &dyn Fn(f32) -> f32| {
            let mut values = vec![0.0; z.len()];
            for &id in ids {
                values[id] = value(z[id]);
            }
            tree_sum(&values)
        };
        let sum_of_first = |n: usize| sum_of(&order[..n], &|z| exp(exponent(z, m, temperature)));
        // The mean exponent of the tokens that are left.
        let mean = || {
            let weighted = sum_of(&order[..kept], &|z| {
                let (x, share) = (exponent(z, m, temperature), exp(exponent(z, m, temperature)));
                if share > 0.0 { x * share } else { 0.0 }
            });
            weighted / sum_of_first(kept)
        };
        // The ranks that a stage leaves which begins a new row, and the factor of logits.
        let mut left: Option<(std::ops::Range<usize>, f32)> = None;
        let scale = inverse(temperature);
        match stage {
            Stage::Temperature if params.temperature == 0.0 => {
                return Some(Drawn { token: order[0] as u32, survivors: vec![order[0]], logprob: 0.0 });
            }
            Stage::Temperature if params.dynatemp_range > 0.0 => {
                let (least, most) = (
                    (params.temperature - params.dynatemp_range).max(0.0),
                    params.temperature + params.dynatemp_range,
                );
                let entropy = ln(sum_of_first(kept)) - mean();
                let h = (entropy / ln(kept as f32)).clamp(0.0, 1.0);
                let e = params.dynatemp_exponent;
                let power = match h {
                    _ if e == 0.0 => 1.0,
                    _ if h == 0.0 => 0.0,
                    _ => exp(e * ln(h)),
                };
                let dynamic = if kept < 2 { 1.0 } else { least + (most - least) * power };
                left = Some((0..kept, inverse(dynamic)));
            }
            Stage::Temperature => temperature = params.temperature,
            Stage::TopK => kept = kept.min(params.top_k),
            Stage::TopP | Stage::TopPOfAll => {
                let s = sum_of_first(if stage == Stage::TopPOfAll { order.len() } else { kept });
                let reaches = |&n: &usize| sum_of_first(n) >= params.top_p * s;
                kept = (1..=kept).find(reaches).unwrap_or(kept);
            }
            Stage::MinP => {
                let least = m + temperature * params.min_p.ln();
                kept = order[..kept].iter().filter(|&&id| z[id] >= least).count();
            }
            Stage::TopNSigma => {
                let n = kept as f32;
                let mu = sum_of(&order[..kept], &|z| z - m) / n;
                let squares = sum_of(&order[..kept], &|z| ((z - m) - mu) * ((z - m) - mu));
                let least = m - params.top_n_sigma * (squares / n).sqrt();
                let above = order[..kept].iter().filter(|&&id| z[id] >= least || least.is_nan()).count();
                left = Some((0..above, scale));
            }
            Stage::TypicalP => {
                let mean = mean();
                let distance = |rank: usize| (exponent(z[order[rank]], m, temperature) - mean).abs();
                let is_below = |rank: usize| exponent(z[order[rank]], m, temperature) < mean;
                let mut nearest: Vec<usize> = (0..kept).collect();
                nearest.sort_by(|&a, &b| {
                    let ranks = if is_below(a) { a.cmp(&b) } else { b.cmp(&a) };
                    let sides = is_below(a).cmp(&is_below(b));
                    distance(a).total_cmp(&distance(b)).then(sides).then(ranks)
                });
                let target = params.typical_p * sum_of_first(kept);
                let ids: Vec<usize> = nearest.iter().map(|&rank| order[rank]).collect();
                let exceeds = |&n: &usize| sum_of(&ids[..n], &|z| exp(exponent(z, m, temperature))) > target;
                let n = (1..=kept).find(exceeds).unwrap_or(kept);
                nearest.truncate(n);
                nearest.sort_unstable();
                assert_eq!(nearest[n - 1] - nearest[0], n - 1, "neighbours");
                left = Some((nearest[0]..nearest[n - 1] + 1, scale));
            }
            Stage::Xtc => {
                let target = params.xtc_threshold * sum_of_first(kept);
                let likely = |&&id: &&usize| exp(exponent(z[id], m, temperature)) >= target;
                let likely = order[..kept].iter().take_while(likely).count();
                left = Some((likely.max(1) - 1..kept, scale));
            }
            Stage::Penalties | Stage::Dry => left = Some((0..kept, scale)),
        }
        let Some((ranks, factor)) = left else { continue };
        let whole = if stage == Stage::Temperature { factor } else { scale };
        let (ranks, factor) = if (m * whole).is_finite() { (ranks, factor) } else { (0..1, 1.0) };
        let ids = order[ranks].to_vec();
        z = (0..z.len())
            .map(|id| {
                let z = if ids.contains(&id) { z[id] * factor } else { f32::NEG_INFINITY };
                if stage.changes_logits() { changed(stage, params, row, id, z) } else { z }
            })
            .collect();
        (order, m) = in_order(&z)?;
        (kept, temperature) = (order.len(), 1.0);
    }
    let mut best = (f32::NEG_INFINITY, 0);
    let mut by_id = order[..kept].to_vec();
    by_id.sort_unstable();
    for &id in &by_id {
        let score = exponent(z[id], m, temperature) + gumbel(params.seed, row.position, id as u32);
        if score > best.0 {
            best = (score, id);
        }
    }
    let mut shares = vec![0.0; z.len()];
    for &id in &by_id {
        shares[id] = exp(exponent(z[id], m, temperature));
    }
    let logprob = exponent(z[best.1], m, temperature) - tree_sum(&shares).ln();
    Some(Drawn { token: best.1 as u32, survivors: order[..kept].to_vec(), logprob })
}
