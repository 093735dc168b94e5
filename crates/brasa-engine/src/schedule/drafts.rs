//! The number of drafts of each request in a step.

use super::StepCosts;

/// Drafts must raise the rate of tokens by this factor to be computed, since times are known roughly.
const LEAST_GAIN: f64 = 1.02;

/// The number of drafts of each request, at most `most` in all, that gives the most tokens a second by the times of past steps.
/// `hopes` has one list for each request: the probability that each of its drafts is drawn.
///
/// A step without drafts has one row for each of `decoding` requests. `drafting` has the times of a draft model's steps if it has
/// yet to make the drafts: one step for the first draft of all requests that have one, one for the second, and so on.
pub(crate) fn share_drafts(
    hopes: &[&[f32]],
    decoding: usize,
    most: usize,
    costs: &StepCosts,
    drafting: Option<&StepCosts>,
) -> Vec<usize> {
    let mut all: Vec<(f32, usize)> = hopes
        .iter()
        .enumerate()
        .flat_map(|(request, hopes)| hopes.iter().map(move |&hope| (hope, request)))
        .collect();
    // Hopes of one request fall, so it gets them in order.
    all.sort_by(|(first, _), (second, _)| second.total_cmp(first));
    all.truncate(most);
    let times = costs.times();
    let drafting = drafting.map(StepCosts::times);
    let mut tokens = decoding as f64;
    let mut counts = vec![0; hopes.len()];
    // Requests with a first draft, with a second one, and so on.
    let mut levels: Vec<usize> = Vec::new();
    let (mut best, mut best_rate) = (0, tokens / times.seconds(decoding) * LEAST_GAIN);
    for (place, &(hope, request)) in all.iter().enumerate() {
        tokens += f64::from(hope);
        if counts[request] == levels.len() {
            levels.push(0);
        }
        levels[counts[request]] += 1;
        counts[request] += 1;
        let guessing: f64 = drafting
            .as_ref()
            .map_or(0.0, |times| levels.iter().map(|&requests| times.seconds(requests)).sum());
        let rate = tokens / (times.seconds(decoding + place + 1) + guessing);
        if rate > best_rate {
            (best, best_rate) = (place + 1, rate);
        }
    }
    all[best..].iter().for_each(|&(_, request)| counts[request] -= 1);
    counts
}

/// The least probability of being drawn at which a further draft is worth its share of a draft model's step, if `requests` out of
/// `decoding` requests have drafts.
pub(crate) fn least_model_hope(
    requests: usize,
    decoding: usize,
    costs: &StepCosts,
    drafting: &StepCosts,
) -> f32 {
    let step = drafting.times().seconds(requests) / requests.max(1) as f64;
    (step * decoding as f64 / costs.times().seconds(decoding)) as f32
}

/// The least probability of being drawn at which a draft may be worth a row in a step of `decoding` requests with at most `most`
/// drafts.
pub(crate) fn least_hope(decoding: usize, most: usize, costs: &StepCosts) -> f32 {
    let times = costs.times();
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
        let share = |hopes: &[&[f32]], most, costs| share_drafts(hopes, hopes.len(), most, costs, None);
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
    fn drafts_that_are_yet_to_be_made_pay_for_their_making() {
        let cheap = costs(&[(1, 100), (11, 200)]);
        let hopes: Vec<f32> = (1..8).map(|place| 0.8_f32.powi(place)).collect();
        let share = |hopes: &[&[f32]], drafting: &[(usize, u64)]| {
            share_drafts(hopes, hopes.len(), 30, &cheap, Some(&costs(drafting)))
        };
        let free = share_drafts(&[&hopes], 1, 30, &cheap, None);
        let quick = share(&[&hopes], &[(1, 10), (9, 12)]);
        let slow = share(&[&hopes], &[(1, 40), (9, 45)]);
        assert!(free[0] > quick[0] && quick[0] > slow[0] && slow[0] > 0, "{free:?}, {quick:?}, {slow:?}");
        assert_eq!(share(&[&hopes], &[(1, 90), (9, 100)]), [0]);
        // Together they share the steps, and the rows are dearer.
        let shared = share(&[&hopes[..]; 4], &[(1, 10), (9, 12)]);
        assert!(shared.iter().all(|&count| count > 0 && count <= quick[0]), "{shared:?}");
        assert_eq!(share(&[&[], &hopes], &[(1, 10), (9, 12)])[0], 0);
        assert!(least_model_hope(1, 1, &cheap, &costs(&[(1, 50), (9, 50)])) > 0.49);
        assert!(least_model_hope(4, 4, &cheap, &costs(&[(1, 50), (9, 50)])) < 0.4);
    }

    #[test]
    fn whatever_is_worth_a_row_has_the_least_hope() {
        for points in [&[(1, 100), (11, 200)][..], &[(1, 100), (11, 1100)], &[(1, 100), (8, 110), (9, 400)]] {
            let costs = costs(points);
            for hope in [0.02, 0.05, 0.11, 0.2, 0.5, 0.9, 1.0] {
                let least = least_hope(1, 8, &costs);
                let drafts = share_drafts(&[&[hope; 8]], 1, 8, &costs, None);
                assert_eq!(drafts[0] > 0, hope > least, "{points:?}: {hope} of {least}");
            }
        }
    }
}
