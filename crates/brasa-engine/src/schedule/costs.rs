//! The time of a step by its number of rows, learned from past steps, and the number of prompt rows that keeps gaps between
//! tokens short.

use std::cmp::Ordering;
use std::time::Duration;

/// Longest time of a step with prompt rows, as a multiple of the time of a step that only decodes. The factor leaves room for
/// unknowns such as a longer context or a busy machine.
const MOST_STRETCH: f64 = 3.0;

/// Number of requests above which a step may take longer still, up to twice [`MOST_STRETCH`]. With many requests, prompts wait
/// for each other, small steps cost more per row, and nearly every step has prompt rows, so that gaps are even.
const CROWD: f64 = 8.0;

/// Buckets of up to this many rows hold a single number of rows each.
const EXACT_ROWS: usize = 8;

/// Least and most weight of a new measurement in a bucket's mean time.
const NEWS: (f64, f64) = (1.0 / 8.0, 1.0 / 2.0);

/// A time longer than the mean by more than this factor counts as this factor times the mean: the machine was busy with something
/// else.
const MOST_SURPRISE: f64 = 3.0;

/// Steps after which a measured time counts as old.
const OLD: u64 = 32;

/// Times of steps by their rows. A row costs the device about as much whether it decodes or belongs to a prompt, so steps of all
/// kinds belong to the same curve.
///
/// More rows never take less time, and at most as long as several steps that have as many together. The last step's time is
/// trusted most: times that contradict it by this rule move towards it. So an accidentally slow time does not stay, even if steps
/// of that size are avoided because of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepCosts {
    /// By number of rows, four buckets for each power of two.
    buckets: Vec<Option<Bucket>>,
    /// Number of steps observed.
    steps: u64,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    rows: f64,
    seconds: f64,
    /// Number of the bucket's latest step.
    seen: u64,
}

impl Bucket {
    /// Weight of a measurement at step `now` in the bucket's mean: the older the last measurement, the larger.
    fn news(&self, now: u64) -> f64 {
        ((now - self.seen) as f64 / (2 * OLD) as f64).clamp(NEWS.0, NEWS.1)
    }
}

impl StepCosts {
    /// Records that a step of `rows` rows took `time`.
    pub(crate) fn observe(&mut self, rows: usize, time: Duration) {
        if rows == 0 {
            return;
        }
        let place = place(rows);
        if self.buckets.len() <= place {
            self.buckets.resize(place + 1, None);
        }
        self.steps += 1;
        let now = self.steps;
        let (rows, seconds) = (rows as f64, time.as_secs_f64());
        let mut seen = Bucket { rows, seconds, seen: now };
        if let Some(mean) = self.buckets[place] {
            let news = mean.news(now);
            seen.rows = mean.rows + (rows - mean.rows) * news;
            seen.seconds = mean.seconds + (seconds.min(mean.seconds * MOST_SURPRISE) - mean.seconds) * news;
        }
        self.buckets[place] = Some(seen);
        for (other, bucket) in self.buckets.iter_mut().enumerate() {
            let Some(bucket) = bucket else { continue };
            let steps = (bucket.rows / seen.rows).max(seen.rows / bucket.rows).ceil();
            let (least, most) = match other.cmp(&place) {
                Ordering::Less => (seen.seconds / steps, seen.seconds),
                Ordering::Equal => continue,
                Ordering::Greater => (seen.seconds, seen.seconds * steps),
            };
            let believable = bucket.seconds.clamp(least, most);
            bucket.seconds += (believable - bucket.seconds) * bucket.news(now);
        }
    }

    /// The number of prompt rows, at most `most`, for a step with the rows of `decoding` out of `requests` requests, if the usual
    /// gap between tokens is `usual` seconds. As many as keep the step within [`MOST_STRETCH`], but at least a sixteenth of
    /// `most`, so that prompts are finished. A quarter of `most` while too few steps were observed, and 1 if the time of decoding
    /// alone has to be measured again.
    pub(crate) fn prompt_rows(&self, decoding: usize, requests: usize, usual: f64, most: usize) -> usize {
        if self.buckets.iter().flatten().count() < 2 || decoding == 0 {
            return (most / 4).max(1);
        }
        if !self.is_fresh(decoding) {
            return 1;
        }
        let times = self.times();
        let crowd = (requests as f64 / CROWD).clamp(1.0, 2.0);
        // In a crowd what was usual before it came says little.
        let usual = if crowd > 1.0 { f64::INFINITY } else { usual };
        let bearable = times.seconds(decoding).min(usual) * MOST_STRETCH * crowd;
        let (mut fits, mut beyond) = ((most / 16).max(1), most.max(1) + 1);
        while fits + 1 < beyond {
            let middle = usize::midpoint(fits, beyond);
            *(if times.seconds(decoding + middle) <= bearable { &mut fits } else { &mut beyond }) = middle;
        }
        fits
    }

    /// True if one of the last steps had about `rows` rows: at least half of them, at most a quarter more.
    fn is_fresh(&self, rows: usize) -> bool {
        let about = place(rows.div_ceil(2))..=place(rows + rows / 4 + 1);
        let known = self.buckets.iter().enumerate().filter(|(place, _)| about.contains(place));
        known.filter_map(|(_, bucket)| *bucket).any(|bucket| self.steps - bucket.seen <= OLD)
    }

    /// True once a step was observed.
    pub(crate) fn are_known(&self) -> bool {
        self.buckets.iter().any(Option::is_some)
    }

    /// The times of steps observed so far.
    pub(crate) fn times(&self) -> StepTimes {
        let mut curve: Vec<Bucket> = self.buckets.iter().flatten().copied().collect();
        let mut most = f64::INFINITY;
        for bucket in curve.iter_mut().rev() {
            most = bucket.seconds.min(most);
            bucket.seconds = most;
        }
        match curve[..] {
            [] => curve.extend([(1.0, 1.0), (5.0, 2.0)].map(|(rows, seconds)| Bucket {
                rows,
                seconds,
                seen: 0,
            })),
            [Bucket { rows, seconds, seen }] => {
                curve.push(Bucket { rows: rows + 4.0, seconds: 2.0 * seconds, seen });
            }
            _ => {}
        }
        StepTimes(curve)
    }
}

/// Times of steps by rising numbers of rows, at least two. Times never fall with more rows. If fewer rows took longer, the
/// machine was busy with something else. While too few steps were observed, a row is assumed to cost a quarter of a step.
pub(crate) struct StepTimes(Vec<Bucket>);

impl StepTimes {
    /// Seconds of a step of `rows` rows: interpolated between two known points, extrapolated beyond the last, and constant below
    /// the first.
    pub(crate) fn seconds(&self, rows: usize) -> f64 {
        let (curve, rows) = (&self.0, rows as f64);
        let above = curve.partition_point(|bucket| bucket.rows < rows);
        if above == 0 {
            return curve[0].seconds;
        }
        let above = above.min(curve.len() - 1);
        let (from, to) = (curve[above - 1], curve[above]);
        let slope = (to.seconds - from.seconds) / (to.rows - from.rows).max(1.0);
        from.seconds + slope * (rows - from.rows)
    }
}

/// The bucket of `rows` rows.
fn place(rows: usize) -> usize {
    if rows <= EXACT_ROWS {
        return rows - 1;
    }
    let power = rows.ilog2();
    let quarter = (rows >> (power - 2)) & 3;
    EXACT_ROWS + (power - EXACT_ROWS.ilog2()) as usize * 4 + quarter
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A gap that limits no step: no gaps are known.
    const ALWAYS: f64 = f64::INFINITY;

    fn costs(points: &[(usize, u64)]) -> StepCosts {
        let mut costs = StepCosts::default();
        for &(rows, millis) in points {
            costs.observe(rows, Duration::from_millis(millis));
        }
        costs
    }

    #[test]
    fn prompts_have_the_rows_that_decoding_requests_can_bear() {
        assert_eq!(costs(&[]).prompt_rows(1, 1, ALWAYS, 128), 32, "nothing is known");
        assert_eq!(costs(&[(1, 20)]).prompt_rows(1, 1, ALWAYS, 128), 32, "one point is no curve");
        // 20 ms and 5 ms a row: beside one row 8 more double the 20 ms.
        let line = costs(&[(1, 25), (16, 100), (512, 25 + 511 * 5)]);
        assert_eq!(line.prompt_rows(1, 1, ALWAYS, 128), 10);
        assert_eq!(line.prompt_rows(16, 1, ALWAYS, 128), 40, "more requests bear more");
        assert_eq!(line.prompt_rows(16, 1, ALWAYS, 30), 30);
        assert_eq!(
            [2, 12, 99].map(|requests| line.prompt_rows(2, requests, ALWAYS, 128)),
            [11, 21, 30],
            "a crowd bears more"
        );
        assert_eq!(line.prompt_rows(1, 1, ALWAYS, 1), 1);
        assert_eq!(line.prompt_rows(16, 1, 0.050, 128), 10, "gaps of 150 ms beside usual ones of 50");
        assert_eq!(line.prompt_rows(16, 1, 0.200, 128), 40, "decoding alone takes less");
        // Rows that cost nothing.
        assert_eq!(costs(&[(1, 25), (64, 25)]).prompt_rows(1, 1, ALWAYS, 2048), 2048);
        // Rows that cost too much.
        assert_eq!(costs(&[(1, 1), (2, 100)]).prompt_rows(1, 1, ALWAYS, 128), 8);
    }

    #[test]
    fn means_follow_the_times_and_not_a_single_surprise() {
        let mut line = costs(&[(1, 25), (512, 25 + 511 * 5)]);
        line.observe(1, Duration::from_mins(4));
        assert!(line.prompt_rows(1, 1, ALWAYS, 128) < 20);
        for _ in 0..100 {
            line.observe(1, Duration::from_millis(100));
        }
        assert!(
            (38..=42).contains(&line.prompt_rows(1, 1, ALWAYS, 128)),
            "{}",
            line.prompt_rows(1, 1, ALWAYS, 128)
        );
    }

    /// A CPU: 10 ms to read the weights, or 3 ms a row.
    fn cpu(rows: usize) -> Duration {
        Duration::from_secs_f64(0.010_f64.max(0.003 * rows as f64))
    }

    /// Steps of 8 decoding requests and the prompt rows that `costs` allows; the rows of the last one.
    fn serve(costs: &mut StepCosts, steps: usize, time: impl Fn(usize) -> Duration) -> usize {
        let mut prompt = 0;
        for _ in 0..steps {
            prompt = costs.prompt_rows(8, 8, ALWAYS, 128);
            costs.observe(8 + prompt, time(8 + prompt));
        }
        prompt
    }

    #[test]
    fn a_time_that_was_slow_by_accident_does_not_last() {
        let mut costs = costs(&[(8, 24)]);
        // Steps of 12 to 40 rows were twenty times slower than they are, and would not be tried again for their times.
        for rows in 12..40 {
            costs.observe(rows, cpu(rows) * 20);
        }
        costs.observe(8, cpu(8));
        assert!(serve(&mut costs, 1, cpu) < 16);
        // Three steps of 8 rows take as long as one of 24.
        assert!((14..=20).contains(&serve(&mut costs, 250, cpu)), "{costs:?}");
    }

    #[test]
    fn a_machine_that_changes_is_learned_anew() {
        let mut costs = StepCosts::default();
        for rows in [1, 8, 512] {
            costs.observe(rows, cpu(rows));
        }
        assert!((14..=18).contains(&serve(&mut costs, 60, cpu)), "{costs:?}");
        // Another program takes most of both memory and cores, then ends.
        for speed in [5, 1, 20] {
            let allowed = serve(&mut costs, 250, |rows| cpu(rows) * speed);
            assert!((12..=22).contains(&allowed), "{speed}: {costs:?}");
        }
    }

    #[test]
    fn buckets_are_in_order() {
        let places: Vec<usize> = (1..5000).map(place).collect();
        assert!(places.is_sorted() && places[..9] == [0, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert!(places.windows(2).all(|pair| pair[1] - pair[0] <= 1));
    }
}
