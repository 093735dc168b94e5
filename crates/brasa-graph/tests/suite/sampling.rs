//! Sampling against its definition by brute force, and draws against the distribution that they come from.

use brasa_graph::sampling::{
    Distribution, Draw, DrawRules, DryBreakers, Logprobs, Row, Sampler, SamplingError, SamplingOrder,
    SamplingParams, Stage, exp_nonpositive, gumbel, ln_positive, philox4x32, tree_sum,
};
use brasa_graph::testing::Random;

/// A logit behind the penalties, in f32, which is part of the definition: equal logits must stay equal.
fn penalised(params: &SamplingParams, row: &Row, id: usize, z: f32) -> f32 {
    let window = params.repeat_last_n.unwrap_or(usize::MAX).min(row.history.len());
    let recent = &row.history[row.history.len() - window..];
    let count = recent.iter().filter(|&&seen| seen as usize == id).count();
    if count == 0 {
        return z;
    }
    let z = if z > 0.0 { z / params.repeat_penalty } else { z * params.repeat_penalty };
    z - (count as f32 * params.frequency_penalty + params.presence_penalty)
}

/// A logit behind the penalty of DRY: each place of the window where the latest tokens occurred before, by brute force.
fn repelled(params: &SamplingParams, row: &Row, id: usize, z: f32) -> f32 {
    let dry = &params.dry;
    let window = dry.last_n.unwrap_or(usize::MAX).min(row.history.len());
    let window = &row.history[row.history.len() - window..];
    let sequences = dry.breakers.sequences();
    let breaker_at = |place: usize| {
        let fits = sequences.iter().filter(|sequence| window[place..].starts_with(sequence));
        fits.map(Vec::len).max().map(|length| window.len() - place - length)
    };
    let longest = (0..window.len()).rev().find_map(breaker_at).unwrap_or(window.len());
    let before = |end: usize| {
        let equal = window[..end].iter().rev().zip(window.iter().rev()).take_while(|(a, b)| a == b);
        equal.count().min(longest)
    };
    let follows = (1..window.len()).filter(|&place| window[place] as usize == id).map(before).max();
    match follows.filter(|&length| length >= dry.allowed_length) {
        Some(length) if window.len() > dry.allowed_length && !sequences.contains(&vec![id as u32]) => {
            let power = f64::from(dry.base).powi((length - dry.allowed_length) as i32);
            z - (f64::from(dry.multiplier) * power) as f32
        }
        _ => z,
    }
}

/// A logit behind a stage that looks at the history.
fn changed(stage: Stage, params: &SamplingParams, row: &Row, id: usize, z: f32) -> f32 {
    if stage == Stage::Dry { repelled(params, row, id, z) } else { penalised(params, row, id, z) }
}

/// The stages that do something at a position. Behind a stage that leaves one token nothing does.
fn active(params: &SamplingParams, position: u32) -> Vec<Stage> {
    let neutral = [params.repeat_penalty, params.frequency_penalty, params.presence_penalty]
        .map(f32::to_bits)
        == [1.0, 0.0, 0.0].map(f32::to_bits);
    let [word, ..] = philox4x32([0, position, 1, 0], [params.seed as u32, (params.seed >> 32) as u32]);
    let chance = f64::from(word >> 8) / f64::from(1 << 24);
    let does_something = |stage: Stage| match stage {
        Stage::Penalties => !neutral,
        Stage::Dry => params.dry.multiplier > 0.0 && params.dry.base >= 1.0 && params.dry.last_n != Some(0),
        Stage::Temperature => (params.temperature - 1.0).abs() > 0.0 || params.dynatemp_range > 0.0,
        Stage::TopNSigma => params.top_n_sigma > 0.0,
        Stage::TopK => params.top_k > 0,
        Stage::TypicalP => params.typical_p < 1.0,
        Stage::TopP | Stage::TopPOfAll => params.top_p < 1.0,
        Stage::MinP => params.min_p > 0.0,
        Stage::Xtc => params.xtc_threshold <= 0.5 && chance < f64::from(params.xtc_probability),
    };
    let ends = |stage: Stage| match stage {
        Stage::Temperature => params.temperature == 0.0,
        Stage::TopP | Stage::TopPOfAll => params.top_p == 0.0,
        _ => false,
    };
    let mut stages = params.order.stages().to_vec();
    if let Some(end) = stages.iter().position(|&stage| ends(stage)) {
        stages.truncate(end + 1);
    }
    stages.retain(|&stage| does_something(stage));
    stages
}

/// The stages that come before bias and mask.
fn first_changes(params: &SamplingParams, position: u32) -> Vec<Stage> {
    active(params, position).into_iter().take_while(|stage| stage.changes_logits()).collect()
}

/// Logits after penalties that come first, bias and mask: the definition, written out.
fn adjusted(params: &SamplingParams, row: &Row) -> Vec<f64> {
    let allowed =
        |id: usize| row.mask.is_none_or(|mask| mask.get(id / 32).is_some_and(|w| w >> (id % 32) & 1 == 1));
    let first = first_changes(params, row.position);
    let adjust = |(id, &z): (usize, &f32)| {
        let z = first.iter().fold(z, |z, &stage| changed(stage, params, row, id, z));
        let biases = params.logit_bias.iter().filter(|&&(token, _)| token as usize == id);
        let z = biases.fold(z, |z, &(_, bias)| z + bias);
        if params.suppressed.contains(&(id as u32)) || !allowed(id) {
            f64::NEG_INFINITY
        } else {
            // Zeros of both signs are equal.
            f64::from(z) + 0.0
        }
    };
    row.logits.iter().enumerate().map(adjust).collect()
}

fn softmax(z: &[f64], temperature: f64) -> Vec<f64> {
    let max = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exps: Vec<f64> = z.iter().map(|z| ((z - max) / temperature).exp()).collect();
    let sum: f64 = exps.iter().sum();
    exps.iter().map(|e| e / sum).collect()
}

/// The surviving ids, likeliest first; `None` if a filter's decision hangs on rounding.
fn survivors(params: &SamplingParams, z: &[f64]) -> Option<Vec<usize>> {
    let mut ids: Vec<usize> = (0..z.len()).filter(|&id| z[id] > f64::NEG_INFINITY).collect();
    ids.sort_by(|&a, &b| z[b].total_cmp(&z[a]).then(a.cmp(&b)));
    let whole_tempered = softmax(z, f64::from(params.temperature));
    let mut temperature = 1.0;
    for &stage in params.order.stages() {
        let kept: Vec<f64> = ids.iter().map(|&id| z[id]).collect();
        let p = softmax(&kept, temperature);
        let near = |a: f64, b: f64| (a - b).abs() < 1e-5;
        match stage {
            Stage::Temperature => temperature = f64::from(params.temperature),
            Stage::TopK if params.top_k > 0 => ids.truncate(params.top_k),
            Stage::MinP if params.min_p > 0.0 => {
                let least = f64::from(params.min_p) * p[0];
                if p.iter().any(|&p| near(p / least, 1.0)) {
                    return None;
                }
                ids.truncate(p.iter().take_while(|&&p| p >= least).count().max(1));
            }
            Stage::TopP | Stage::TopPOfAll if params.top_p < 1.0 => {
                let share = |i: usize| if stage == Stage::TopPOfAll { whole_tempered[ids[i]] } else { p[i] };
                let (mut sum, mut count) = (0.0, 0);
                while count < ids.len() && sum < f64::from(params.top_p) {
                    sum += share(count);
                    count += 1;
                    if near(sum, f64::from(params.top_p)) {
                        return None;
                    }
                }
                ids.truncate(count);
            }
            _ => {}
        }
    }
    Some(ids)
}

/// The token that the definition draws; `None` if it hangs on rounding.
fn brute_force(params: &SamplingParams, row: &Row) -> Option<(u32, Vec<usize>)> {
    let z = adjusted(params, row);
    let ids = if params.temperature == 0.0 {
        let best = (0..z.len()).reduce(|a, b| if z[b] > z[a] { b } else { a })?;
        vec![best]
    } else {
        survivors(params, &z)?
    };
    let score = |id: usize| {
        let noise = f64::from(gumbel(params.seed, row.position, id as u32));
        if params.temperature == 0.0 { z[id] } else { z[id] / f64::from(params.temperature) + noise }
    };
    let mut scores: Vec<(f64, usize)> = ids.iter().map(|&id| (score(id), id)).collect();
    scores.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    if scores.len() > 1 && scores[0].0 - scores[1].0 < 1e-4 {
        return None;
    }
    Some((scores[0].1 as u32, ids))
}

fn random_params(random: &mut Random, order: SamplingOrder, vocab: usize) -> SamplingParams {
    let mut maybe = |value: f32, off: f32| if random.below(2) == 0 { value } else { off };
    let (top_p, min_p) = (maybe(0.85, 1.0), maybe(0.05, 0.0));
    let (repeat, frequency, presence) = (maybe(1.3, 1.0), maybe(0.4, 0.0), maybe(0.7, 0.0));
    SamplingParams {
        temperature: [0.0, 0.3, 1.0, 1.7][random.below(4)],
        top_k: [0, 1, 7, 40, vocab + 5][random.below(5)],
        top_p,
        min_p,
        repeat_penalty: repeat,
        frequency_penalty: frequency,
        presence_penalty: presence,
        repeat_last_n: [None, Some(0), Some(10)][random.below(3)],
        logit_bias: (0..random.below(4))
            .map(|_| (random.below(vocab) as u32, random.normal() * 3.0))
            .collect(),
        suppressed: (0..random.below(3)).map(|_| random.below(vocab) as u32).collect(),
        seed: random.bits(),
        order,
        ..SamplingParams::default()
    }
}

/// Sets the rules besides penalties, top-k, top-p, min-p and temperature.
fn more_rules(random: &mut Random, params: &mut SamplingParams, vocab: usize) {
    let mut pick = |of: &[f32]| of[random.below(of.len())];
    params.typical_p = pick(&[1.0, 1.0, 0.9, 0.5, 0.01, 0.0]);
    params.top_n_sigma = pick(&[0.0, 0.0, 0.3, 1.0, 2.5]);
    params.xtc_probability = pick(&[0.0, 0.5, 1.0]);
    params.xtc_threshold = pick(&[0.0, 0.01, 0.1, 0.5, 0.6]);
    params.dynatemp_range = pick(&[0.0, 0.0, 0.5, 4.0]);
    params.dynatemp_exponent = pick(&[0.0, 1.0, 1.0, 2.5]);
    params.dry.multiplier = pick(&[0.0, 0.0, 0.8, 3.0]);
    params.dry.base = pick(&[0.9, 1.0, 1.75]);
    params.dry.allowed_length = random.below(4);
    params.dry.last_n = [None, Some(0), Some(12)][random.below(3)];
    let breakers: Vec<Vec<u32>> = (0..random.below(3))
        .map(|_| (0..=random.below(2)).map(|_| random.below(vocab) as u32).collect())
        .collect();
    params.dry.breakers = DryBreakers::new(breakers.iter().map(Vec::as_slice));
}

fn draw(params: &SamplingParams, row: &Row) -> Result<Draw, SamplingError> {
    Sampler::default().draw(&DrawRules::new(params.clone()).unwrap(), row)
}

#[test]
fn every_preset_draws_as_defined() {
    for (number, (name, order)) in (0..).zip(SamplingOrder::NAMED) {
        let mut random = Random::new(number);
        let (mut checked, mut few) = (0, 0);
        for trial in 0..1500 {
            let vocab = [3, 50, 700][trial % 3];
            let params = random_params(&mut random, order, vocab);
            let spread = [0.5, 3.0, 12.0][random.below(3)];
            // Coarse logits now and then, for ties.
            let coarse = random.below(4) == 0;
            let logit = |z: f32| if coarse { z.round() } else { z };
            let logits: Vec<f32> = (0..vocab).map(|_| logit(random.normal() * spread)).collect();
            let history: Vec<u32> = (0..random.below(30)).map(|_| random.below(vocab) as u32).collect();
            let mask: Vec<u32> = (0..vocab.div_ceil(32)).map(|_| random.bits() as u32 | 1 << 1).collect();
            let mask = (random.below(4) == 0).then_some(&mask[..]);
            let row = Row { logits: &logits, position: random.below(5000) as u32, history: &history, mask };
            let Ok(draw) = draw(&params, &row) else {
                assert!(adjusted(&params, &row).iter().all(|z| z.is_infinite()));
                continue;
            };
            if let Some((token, ids)) = brute_force(&params, &row) {
                assert_eq!(draw.token, token, "{params:?}, trial {trial}");
                checked += 1;
                few += usize::from(ids.len() > 1 && ids.len() < vocab);
            }
        }
        assert!(checked > 1200 && few > 300, "{name}: {checked} checked, {few} with some tokens filtered");
    }
}

/// The definition of the module's documentation in f32, word by word; it shares nothing with the implementation but the noise.
mod by_definition {
    use super::{Row, SamplingParams, Stage, active, adjusted, changed, first_changes, gumbel};

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
                    let exceeds =
                        |&n: &usize| sum_of(&ids[..n], &|z| exp(exponent(z, m, temperature))) > target;
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
}

/// Logits with ties, and now and then NaN and infinities of both signs.
fn odd_logits(random: &mut Random, vocab: usize) -> Vec<f32> {
    let spread = [0.01, 0.5, 3.0, 12.0, 1e30][random.below(5)];
    let (coarse, odd) = (random.below(4) == 0, random.below(3) == 0);
    let mut logit = || {
        let z = random.normal() * spread;
        match random.below(if odd { 8 } else { 1 }) {
            1 => f32::NAN,
            2 | 3 => f32::NEG_INFINITY,
            4 => -0.0,
            5 if random.below(200) == 0 => f32::INFINITY,
            _ if coarse => z.round(),
            _ => z,
        }
    };
    (0..vocab).map(|_| logit()).collect()
}

/// Some of the stages in any order.
fn random_order(random: &mut Random) -> SamplingOrder {
    let mut stages: Vec<Stage> = Stage::ALL.into_iter().filter(|_| random.below(4) > 0).collect();
    if stages.contains(&Stage::TopP) {
        stages.retain(|&stage| stage != Stage::TopPOfAll);
    }
    for i in (1..stages.len()).rev() {
        stages.swap(i, random.below(i + 1));
    }
    SamplingOrder::new(&stages).unwrap()
}

#[test]
fn every_bit_is_as_defined() {
    let named = SamplingOrder::NAMED.map(|(_, order)| Some(order));
    for (number, order) in (0..).zip(named.into_iter().chain([None, None, None])) {
        let mut random = Random::new(100 + number);
        let (mut drawn, mut none, mut cut) = (0, 0, 0);
        for trial in 0..1200 {
            let vocab = [1, 3, 50, 256, 700][trial % 5];
            let order = order.unwrap_or_else(|| random_order(&mut random));
            let mut params = random_params(&mut random, order, vocab);
            let pick = |random: &mut Random, of: &[f32]| of[random.below(of.len())];
            params.top_p = pick(&mut random, &[1.0, 0.999_999_94, 0.95, 0.5, 0.01, 1e-45]);
            params.min_p = pick(&mut random, &[0.0, 0.0, 0.05, 1.0, 1e-45]);
            params.temperature = pick(&mut random, &[0.0, 0.7, 1.0, 1.0, 3.0, 1e-3, 1e-45, 3e38]);
            if trial % 4 > 0 {
                more_rules(&mut random, &mut params, vocab);
            }
            params.logprobs = Some(Logprobs { top: 1000, of: Distribution::Final });
            let logits = odd_logits(&mut random, vocab);
            let mask: Vec<u32> = (0..vocab.div_ceil(32)).map(|_| random.bits() as u32).collect();
            let mask = (random.below(4) == 0).then_some(&mask[..]);
            let ids = [vocab, vocab.min(3)][random.below(2)];
            let history: Vec<u32> = (0..random.below(30)).map(|_| random.below(ids) as u32).collect();
            let row = Row { logits: &logits, position: random.below(5000) as u32, history: &history, mask };
            let label = format!("{params:?}, trial {trial}");
            let Some(expected) = by_definition::draw(&params, &row) else {
                assert!(matches!(draw(&params, &row), Err(SamplingError::NoToken { .. })), "{label}");
                none += 1;
                continue;
            };
            let found = draw(&params, &row).unwrap_or_else(|error| panic!("{label}: {error}"));
            let listed: Vec<usize> = found.top.iter().map(|&(id, _)| id as usize).collect();
            assert_eq!((found.token, listed), (expected.token, expected.survivors.clone()), "{label}");
            assert_eq!(found.logprob.unwrap().to_bits(), expected.logprob.to_bits(), "{label}");
            drawn += 1;
            cut += usize::from(expected.survivors.len() > 1 && expected.survivors.len() < vocab);
        }
        assert!(drawn > 500 && none > 50 && cut > 80, "{order:?}: {drawn} drawn, {none} not, {cut} filtered");
    }
}

/// A temperature of 0 is the end where it stands, and a stage that the order leaves out does nothing.
#[test]
fn orders_are_followed() {
    use Stage::{MinP, Penalties, Temperature, TopK};
    let logits = [5.0, 4.5, 4.0, -2.0];
    let of = |stages: &[Stage], temperature: f32| {
        let params = SamplingParams {
            temperature,
            top_k: 2,
            min_p: 0.9,
            presence_penalty: 3.0,
            seed: 5,
            order: SamplingOrder::new(stages).unwrap(),
            logprobs: Some(Logprobs { top: 9, of: Distribution::Final }),
            ..SamplingParams::default()
        };
        let draw = draw(&params, &Row::new(&logits, 1, &[0])).unwrap();
        draw.top.into_iter().map(|(id, _)| id).collect::<Vec<_>>()
    };
    assert_eq!(of(&[Penalties, Temperature], 0.0), [1]);
    assert_eq!(of(&[Temperature, Penalties], 0.0), [0]);
    assert_eq!(of(&[], 0.0), [0, 1, 2, 3]);
    assert_eq!(of(&[TopK, Penalties], 1.0), [1, 0]);
    assert_eq!(of(&[Penalties, TopK], 1.0), [1, 2]);
    assert_eq!(of(&[TopK, Penalties, MinP], 1.0), [1]);
    assert_eq!(of(&[MinP, Penalties], 1.0), [0]);
    // Half a logit below the likeliest is likely enough at this temperature, which the penalty does not change.
    assert_eq!(of(&[Temperature, MinP, Penalties], 8.0), [1, 0]);
    assert_eq!(of(&[Temperature, Penalties, MinP, TopK], 8.0), [1, 2]);
}

/// A sum of many equal shares stands still in f32 if it is made one by one; in a tree it does not.
#[test]
fn flat_distributions_keep_their_share_of_tokens() {
    let logits = vec![0.25; 150_000];
    for (top_p, expected) in [(0.5, 75_000), (0.95, 142_500), (0.001, 150)] {
        let params = SamplingParams {
            temperature: 1.0,
            top_p,
            logprobs: Some(Logprobs { top: usize::MAX, of: Distribution::Final }),
            ..SamplingParams::default()
        };
        let draw = draw(&params, &Row::new(&logits, 3, &[])).unwrap();
        assert!(draw.top.len().abs_diff(expected) <= 1, "{top_p}: {}", draw.top.len());
        assert!((draw.logprob.unwrap() + (expected as f32).ln()).abs() < 1e-4);
    }
}

#[test]
fn forbidden_infinities_leave_the_others_no_probability() {
    let params = SamplingParams {
        suppressed: vec![1, 3],
        logprobs: Some(Logprobs { top: 3, of: Distribution::Raw }),
        ..SamplingParams::default()
    };
    let draw = draw(&params, &Row::new(&[1.0, f32::INFINITY, 2.0, f32::INFINITY], 0, &[])).unwrap();
    assert_eq!((draw.token, draw.logprob), (2, Some(f32::NEG_INFINITY)));
    let half = 0.5_f32.ln();
    assert_eq!(draw.top, [(1, half), (3, half), (2, f32::NEG_INFINITY)]);
}

#[test]
fn the_parts_of_the_definition_are_public() {
    let mut random = Random::new(8);
    for len in [1, 256, 257, 70_000] {
        let values: Vec<f32> = (0..len).map(|_| random.uniform()).collect();
        assert_eq!(tree_sum(&values).to_bits(), by_definition::tree_sum(&values).to_bits());
        let x = values.iter().map(|x| -100.0 * x);
        assert!(x.into_iter().all(|x| exp_nonpositive(x).to_bits() == by_definition::exp(x).to_bits()));
        let x = values.iter().flat_map(|x| [1e-6 + x, 1.0 + 1000.0 * x]);
        assert!(x.into_iter().all(|x| ln_positive(x).to_bits() == by_definition::ln(x).to_bits()));
    }
}

#[test]
fn final_logprobs_are_those_of_the_survivors() {
    for (number, (_, order)) in (0..).zip(SamplingOrder::NAMED) {
        let mut random = Random::new(77 + number);
        for _ in 0..300 {
            let mut params = random_params(&mut random, order, 60);
            params.logprobs = Some(Logprobs { top: 5, of: Distribution::Final });
            params.temperature = params.temperature.max(0.3);
            let logits = random.normals(60, 3.0);
            let row = Row { logits: &logits, position: 9, history: &[1, 2, 3, 2], mask: None };
            let z = adjusted(&params, &row);
            let Some(ids) = survivors(&params, &z) else { continue };
            let kept: Vec<f64> = ids.iter().map(|&id| z[id]).collect();
            let p = softmax(&kept, f64::from(params.temperature));
            let draw = draw(&params, &row).unwrap();
            let rank = ids.iter().position(|&id| id as u32 == draw.token).unwrap();
            assert!((f64::from(draw.logprob.unwrap()) - p[rank].ln()).abs() < 1e-4);
            assert_eq!(draw.top.len(), ids.len().min(5));
            for (i, &(id, logprob)) in draw.top.iter().enumerate() {
                assert_eq!(id as usize, ids[i]);
                assert!((f64::from(logprob) - p[i].ln()).abs() < 1e-4);
            }
        }
    }
}

#[test]
fn raw_logprobs_are_those_of_the_model() {
    let logits = [1.0, 3.0, 2.0, 3.0];
    let params = SamplingParams {
        logit_bias: vec![(1, -100.0)],
        suppressed: vec![3],
        logprobs: Some(Logprobs { top: 3, of: Distribution::Raw }),
        ..SamplingParams::default()
    };
    let draw = draw(&params, &Row::new(&logits, 0, &[])).unwrap();
    let p = softmax(&logits.map(f64::from), 1.0);
    assert_eq!(draw.token, 2);
    assert!((f64::from(draw.logprob.unwrap()) - p[2].ln()).abs() < 1e-6);
    assert_eq!(draw.top.iter().map(|&(id, _)| id).collect::<Vec<_>>(), [1, 3, 2]);
    assert!((f64::from(draw.top[0].1) - p[1].ln()).abs() < 1e-6);
}

#[test]
fn entropy_is_that_of_the_model() {
    let reported = |logits: &[f32], temperature: f32| {
        let params = SamplingParams {
            entropy: true,
            temperature,
            top_k: 2,
            suppressed: vec![3],
            ..SamplingParams::default()
        };
        draw(&params, &Row::new(logits, 0, &[])).unwrap().entropy.unwrap()
    };
    let logits = [1.0, 3.0, f32::NEG_INFINITY, 3.5, -200.0];
    let p = softmax(&logits.map(f64::from), 1.0);
    let expected: f64 = p.iter().filter(|&&p| p > 0.0).map(|p| -p * p.ln()).sum();
    for temperature in [0.0, 0.7] {
        let found = f64::from(reported(&logits, temperature));
        assert!((found - expected).abs() < 1e-6, "{found}, {expected}");
    }
    assert_eq!(reported(&[5.0, f32::NEG_INFINITY], 0.0).to_bits(), 0.0_f32.to_bits());
    assert!((reported(&[2.0; 1000], 0.0) - 1000.0_f32.ln()).abs() < 1e-4);
    assert!(draw(&SamplingParams::default(), &Row::new(&logits, 0, &[])).unwrap().entropy.is_none());
}

/// Pearson's χ² of draws at 40,000 positions, against the 99.99 % quantile of its distribution.
fn chi_square(params: &SamplingParams, logits: &[f32], expected: &[f64]) {
    const DRAWS: u32 = 40_000;
    let mut counts = vec![0_u32; logits.len()];
    for position in 0..DRAWS {
        counts[draw(params, &Row::new(logits, position, &[])).unwrap().token as usize] += 1;
    }
    let mut statistic = 0.0;
    for (&count, p) in counts.iter().zip(expected) {
        let mean = p * f64::from(DRAWS);
        if mean == 0.0 {
            assert_eq!(count, 0);
        } else {
            statistic += (f64::from(count) - mean).powi(2) / mean;
        }
    }
    // Wilson & Hilferty 1931.
    let degrees = expected.iter().filter(|&&p| p > 0.0).count() as f64 - 1.0;
    let bound = degrees * (1.0 - 2.0 / (9.0 * degrees) + 3.72 * (2.0 / (9.0 * degrees)).sqrt()).powi(3);
    assert!(statistic < bound, "χ² {statistic:.1}, expected below {bound:.1} for {degrees} degrees");
}

#[test]
fn draws_follow_the_softmax() {
    let logits: Vec<f32> = (0..40).map(|i| (i as f32 * 0.7).sin() * 2.0).collect();
    let z: Vec<f64> = logits.iter().copied().map(f64::from).collect();
    for (seed, temperature) in [(0, 1.0), (1, 0.5), (u64::MAX, 2.0)] {
        let params = SamplingParams { temperature, seed, ..SamplingParams::default() };
        chi_square(&params, &logits, &softmax(&z, f64::from(temperature)));
    }
    let params = SamplingParams { temperature: 0.8, top_k: 10, seed: 3, ..SamplingParams::default() };
    let ids = survivors(&params, &z).unwrap();
    let mut kept = vec![f64::NEG_INFINITY; z.len()];
    for id in ids {
        kept[id] = z[id];
    }
    chi_square(&params, &logits, &softmax(&kept, f64::from(0.8_f32)));
}

#[test]
fn a_seed_names_the_draws() {
    let mut random = Random::new(4);
    let logits = random.normals(1000, 2.0);
    let draws = |seed| -> Vec<u32> {
        let params = SamplingParams { temperature: 1.0, seed, ..SamplingParams::default() };
        (0..50).map(|position| draw(&params, &Row::new(&logits, position, &[])).unwrap().token).collect()
    };
    assert_eq!(draws(5), draws(5));
    assert_ne!(draws(5), draws(6));
    // Neighbouring seeds and positions share nothing.
    let (a, b) = (draws(5), draws(6));
    assert!(a[1..].iter().zip(&b).filter(|(a, b)| a == b).count() < 10);
}

#[test]
fn temperatures_near_zero_are_greedy_and_do_not_overflow() {
    let logits = [900.0, 1000.0, 999.0];
    for temperature in [0.0, 1e-30, 1e-3] {
        let params = SamplingParams { temperature, ..SamplingParams::default() };
        assert!(
            (0..100).all(|position| draw(&params, &Row::new(&logits, position, &[])).unwrap().token == 1)
        );
    }
}

#[test]
fn ends_wait_for_the_minimum_length() {
    let params = SamplingParams { min_tokens: 2, ..SamplingParams::default() };
    let rules = DrawRules::new(params).unwrap().with_ends(vec![0], 10);
    let mut sampler = Sampler::default();
    let mut token = |position| sampler.draw(&rules, &Row::new(&[5.0, 1.0], position, &[])).unwrap().token;
    let tokens: Vec<u32> = (10..14).map(&mut token).collect();
    assert_eq!(tokens, [1, 1, 0, 0]);
}

#[test]
fn nothing_left_is_an_error() {
    let params = SamplingParams { suppressed: vec![0], ..SamplingParams::default() };
    let of = |logits: &[f32]| draw(&params, &Row::new(logits, 0, &[]));
    assert_eq!(
        of(&[1.0, f32::NAN]).unwrap_err().to_string(),
        "no token can be drawn: of 2 logits 1 are not finite and the rest is forbidden"
    );
    let row = Row { mask: Some(&[]), ..Row::new(&[1.0, 2.0], 0, &[]) };
    assert!(matches!(draw(&params, &row), Err(SamplingError::NoToken { .. })));
    assert!(of(&[]).is_err());
    assert!(of(&[0.0, f32::INFINITY]).is_err());
    // Ids that do not exist are ignored here and refused by `validate_ids`.
    assert_eq!(
        draw(&params, &Row::new(&[1.0, 2.0, 3.0], 0, &[9, 2])).unwrap(),
        Draw { token: 2, ..Draw::default() }
    );
    let bias = SamplingParams { logit_bias: vec![(3, 1.0)], ..SamplingParams::default() };
    assert_eq!(
        bias.validate_ids(3).unwrap_err().to_string(),
        "logit bias of token 3: the vocabulary has 3 tokens"
    );
    assert!(bias.validate_ids(4).is_ok());
}

#[test]
fn parameters_outside_their_range_are_refused() {
    let greedy = SamplingParams::default();
    for (params, expected) in [
        (
            SamplingParams { temperature: -1.0, ..greedy.clone() },
            "temperature -1: expected 0 (greedy) or more",
        ),
        (
            SamplingParams { top_p: -0.1, ..greedy.clone() },
            "top-p -0.1: expected 0 (the likeliest token) to 1 (off)",
        ),
        (SamplingParams { min_p: 1.5, ..greedy.clone() }, "min-p 1.5: expected 0 (off) to 1"),
        (
            SamplingParams { repeat_penalty: f32::NAN, ..greedy.clone() },
            "repeat penalty NaN: expected more than 0; 1 is off",
        ),
        (
            SamplingParams { logit_bias: vec![(0, f32::INFINITY)], ..greedy.clone() },
            "logit bias inf: expected a number, or −inf to forbid",
        ),
    ] {
        assert_eq!(DrawRules::new(params).unwrap_err().to_string(), expected);
    }
}

/// The likeliest token of many logits, where nothing changes them: the lowest id of the largest.
#[test]
fn greedy_tokens_are_the_lowest_ids_of_the_largest_logits() {
    let mut random = Random::new(77);
    let mut none = 0;
    for trial in 0..300 {
        let vocab = [1, 1023, 1024, 1025, 5000][trial % 5];
        let logits = odd_logits(&mut random, vocab);
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let expected = logits.iter().position(|&z| z >= max && z.is_finite());
        let found = draw(&SamplingParams::default(), &Row::new(&logits, 9, &[]));
        match (found, expected) {
            (Ok(draw), Some(id)) => assert_eq!(draw.token, id as u32, "trial {trial}"),
            (Err(SamplingError::NoToken { .. }), None) => none += 1,
            (found, expected) => panic!("trial {trial}: {found:?}, not {expected:?}"),
        }
    }
    assert!((1..200).contains(&none), "{none} without a token");
}
