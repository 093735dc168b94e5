//! The definition of sampling, written out in f64.

use brasa_graph::sampling::{Row, SamplingParams, Stage, gumbel, philox4x32};

/// A logit behind the penalties, in f32, which is part of the definition: equal logits must stay equal.
pub fn penalised(params: &SamplingParams, row: &Row, id: usize, z: f32) -> f32 {
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
pub fn repelled(params: &SamplingParams, row: &Row, id: usize, z: f32) -> f32 {
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
pub fn changed(stage: Stage, params: &SamplingParams, row: &Row, id: usize, z: f32) -> f32 {
    if stage == Stage::Dry { repelled(params, row, id, z) } else { penalised(params, row, id, z) }
}

/// The stages that do something at a position. Behind a stage that leaves one token nothing does.
pub fn active(params: &SamplingParams, position: u32) -> Vec<Stage> {
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
pub fn first_changes(params: &SamplingParams, position: u32) -> Vec<Stage> {
    active(params, position).into_iter().take_while(|stage| stage.changes_logits()).collect()
}

/// Logits after penalties that come first, bias and mask: the definition, written out.
pub fn adjusted(params: &SamplingParams, row: &Row) -> Vec<f64> {
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

pub fn softmax(z: &[f64], temperature: f64) -> Vec<f64> {
    let max = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exps: Vec<f64> = z.iter().map(|z| ((z - max) / temperature).exp()).collect();
    let sum: f64 = exps.iter().sum();
    exps.iter().map(|e| e / sum).collect()
}

/// The surviving ids, likeliest first; `None` if a filter's decision hangs on rounding.
pub fn survivors(params: &SamplingParams, z: &[f64]) -> Option<Vec<usize>> {
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
pub fn brute_force(params: &SamplingParams, row: &Row) -> Option<(u32, Vec<usize>)> {
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
