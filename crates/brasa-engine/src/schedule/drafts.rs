//! How many drafts each request has in a step.

use super::StepCosts;

/// Drafts must make tokens come faster by this factor: a little, since times are known roughly.
const LEAST_GAIN: f64 = 1.02;

/// The number of drafts of each request, for which `hopes` has the probability that they are drawn, one list a request: as many
/// as make most tokens a second by the times of past steps, at most `most` in all.
///
/// A step in which nobody has drafts has a row of each of `decoding` requests.
pub(crate) fn share_drafts(hopes: &[&[f32]], decoding: usize, most: usize, costs: &StepCosts) -> Vec<usize> {
    let mut all: Vec<(f32, usize)> = hopes
        .iter()
        .enumerate()
        .flat_map(|(request, hopes)| hopes.iter().map(move |&hope| (hope, request)))
        .collect();
    // Hopes of one request fall, so it gets them in order.
    all.sort_by(|(first, _), (second, _)| second.total_cmp(first));
    all.truncate(most);
    let times = costs.decode_times();
    let mut tokens = decoding as f64;
    let (mut best, mut best_rate) = (0, tokens / times.seconds(decoding) * LEAST_GAIN);
    for (place, (hope, _)) in all.iter().enumerate() {
        tokens += f64::from(*hope);
        let rate = tokens / times.seconds(decoding + place + 1);
        if rate > best_rate {
            (best, best_rate) = (place + 1, rate);
        }
    }
    let mut counts = vec![0; hopes.len()];
    all[..best].iter().for_each(|&(_, request)| counts[request] += 1);
    counts
}

/// The least hope for a draft at which it may be worth a row beside those of `decoding` requests, if at most `most` drafts follow.
pub(crate) fn least_hope(decoding: usize, most: usize, costs: &StepCosts) -> f32 {
    let times = costs.decode_times();
    let alone = times.seconds(decoding) / LEAST_GAIN;
    let drafts = (1..=most.max(1))
        .map(|drafts| decoding as f64 * (times.seconds(decoding + drafts) / alone - 1.0) / drafts as f64);
    drafts.fold(f64::INFINITY, f64::min) as f32
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn costs(points: &[(usize, u64)]) -> StepCosts {
        let mut costs = StepCosts::default();
        for &(rows, millis) in points {
            costs.observe(rows, Duration::from_millis(millis));
        }
        costs
    }

    #[test]
    fn rows_are_shared_by_hope_as_long_as_they_pay() {
        // A row costs a tenth of a step.
        let cheap = costs(&[(1, 100), (11, 200), (101, 1100)]);
        let sure = [0.95, 0.9, 0.85, 0.8];
        let vague = [0.3, 0.09, 0.03];
        let share = |hopes: &[&[f32]], most, costs| share_drafts(hopes, hopes.len(), most, costs);
        assert_eq!(share(&[&sure], 9, &cheap), [4]);
        assert_eq!(share(&[&sure], 3, &cheap), [3], "no more than there are rows");
        assert_eq!(share(&[&vague], 9, &cheap), [1]);
        assert_eq!(share(&[&[0.1]], 9, &cheap), [0]);
        assert_eq!(share(&[&vague, &sure], 9, &cheap), [0, 4]);
        assert_eq!(share(&[&[], &sure], 9, &cheap), [0, 4]);
        // A row costs a step: nothing pays.
        let dear = costs(&[(1, 100), (11, 1100)]);
        assert_eq!(share(&[&sure], 9, &dear), [0]);
        // Rows are nearly free up to eight, and dear behind that.
        let stairs = costs(&[(1, 100), (8, 110), (9, 400)]);
        let hopes: Vec<f32> = (1..20).map(|place| 0.98_f32.powi(place)).collect();
        assert_eq!(share(&[&hopes], 19, &stairs), [7]);
        assert_eq!(share(&[&hopes, &hopes], 19, &stairs).iter().sum::<usize>(), 6);
    }

    #[test]
    fn whatever_is_worth_a_row_has_the_least_hope() {
        for points in [&[(1, 100), (11, 200)][..], &[(1, 100), (11, 1100)], &[(1, 100), (8, 110), (9, 400)]] {
            let costs = costs(points);
            for hope in [0.02, 0.05, 0.11, 0.2, 0.5, 0.9, 1.0] {
                let least = least_hope(1, 8, &costs);
                let drafts = share_drafts(&[&[hope; 8]], 1, 8, &costs);
                assert_eq!(drafts[0] > 0, hope > least, "{points:?}: {hope} of {least}");
            }
        }
    }
}
