//! The time of a step by its rows, learned from past steps, and the prompt rows that decoding requests can bear.

use std::time::Duration;

/// Most that a step with prompt rows may take, as a multiple of the step that decodes alone. Gaps between tokens of three
/// times the usual leave room for what is not known beforehand: a longer context, a busy machine.
const MOST_STRETCH: f64 = 3.0;

/// Requests from which on that grows with their number, to twice as much. In a crowd every prompt waits for many others, few rows cost
/// more each than many do, and nearly every gap is one with prompt rows, so that none stands out.
const CROWD: f64 = 8.0;

/// Buckets of up to this many rows hold a single number of rows each.
const EXACT_ROWS: usize = 8;

/// Share of a new time in a bucket's mean.
const NEWS: f64 = 1.0 / 8.0;

/// A time that is longer than the mean by this factor counts as so much longer alone: the machine was doing something else.
const MOST_SURPRISE: f64 = 3.0;

/// Mean times of steps by their rows. A row costs the device about as much whether it decodes or belongs to a prompt, so
/// steps of all kinds teach the same curve.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepCosts {
    /// By number of rows, four buckets for each power of two.
    buckets: Vec<Option<Bucket>>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    rows: f64,
    seconds: f64,
}

impl StepCosts {
    /// Learns that a step of `rows` rows took `time`.
    pub(crate) fn observe(&mut self, rows: usize, time: Duration) {
        if rows == 0 {
            return;
        }
        let place = place(rows);
        if self.buckets.len() <= place {
            self.buckets.resize(place + 1, None);
        }
        let (rows, seconds) = (rows as f64, time.as_secs_f64());
        match &mut self.buckets[place] {
            None => self.buckets[place] = Some(Bucket { rows, seconds }),
            Some(bucket) => {
                let seconds = seconds.min(bucket.seconds * MOST_SURPRISE);
                bucket.rows += (rows - bucket.rows) * NEWS;
                bucket.seconds += (seconds - bucket.seconds) * NEWS;
            }
        }
    }

    /// Prompt rows, at most `most`, that a step may have beside those `decoding` of all `requests`: as many as the others can bear, but
    /// at least a sixteenth of `most`, so that prompts come to an end. A quarter of `most` while too little is known.
    pub(crate) fn prompt_rows(&self, decoding: usize, requests: usize, most: usize) -> usize {
        let curve = self.curve();
        if curve.len() < 2 || decoding == 0 {
            return (most / 4).max(1);
        }
        let crowd = (requests as f64 / CROWD).clamp(1.0, 2.0);
        let bearable = seconds(&curve, decoding as f64) * MOST_STRETCH * crowd;
        let (mut fits, mut beyond) = ((most / 16).max(1), most.max(1) + 1);
        while fits + 1 < beyond {
            let middle = usize::midpoint(fits, beyond);
            let step = seconds(&curve, (decoding + middle) as f64);
            *(if step <= bearable { &mut fits } else { &mut beyond }) = middle;
        }
        fits
    }

    /// True once a step has taught anything.
    pub(crate) fn are_known(&self) -> bool {
        self.buckets.iter().any(Option::is_some)
    }

    /// Times of steps that decode.
    pub(crate) fn decode_times(&self) -> DecodeTimes {
        let mut curve: Vec<Bucket> = self.buckets.iter().flatten().copied().collect();
        let mut most = f64::INFINITY;
        for bucket in curve.iter_mut().rev() {
            most = bucket.seconds.min(most);
            bucket.seconds = most;
        }
        match curve[..] {
            [] => curve.extend([Bucket { rows: 1.0, seconds: 1.0 }, Bucket { rows: 5.0, seconds: 2.0 }]),
            [Bucket { rows, seconds }] => {
                curve.push(Bucket { rows: rows + 4.0, seconds: 2.0 * seconds });
            }
            _ => {}
        }
        DecodeTimes(curve)
    }

    /// Known points of the curve, by rising rows. More rows never take less time.
    fn curve(&self) -> Vec<Bucket> {
        let mut least = 0.0;
        let known = self.buckets.iter().flatten().map(|bucket| {
            least = bucket.seconds.max(least);
            Bucket { seconds: least, ..*bucket }
        });
        known.collect()
    }
}

/// Times of steps, for the choice of drafts. A step takes at most as long as one of more rows: where few rows were seen to take
/// long, the machine was doing something else. A row costs a quarter of a step while too little is known.
pub(crate) struct DecodeTimes(Vec<Bucket>);

impl DecodeTimes {
    /// Seconds of a step of `rows` rows.
    pub(crate) fn seconds(&self, rows: usize) -> f64 {
        seconds(&self.0, rows as f64)
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

/// Time of a step of `rows` rows: between two known points and beyond the last one on a straight line, and below the first
/// one as long as there.
fn seconds(curve: &[Bucket], rows: f64) -> f64 {
    let above = curve.partition_point(|bucket| bucket.rows < rows);
    if above == 0 {
        return curve[0].seconds;
    }
    let above = above.min(curve.len() - 1);
    let (from, to) = (curve[above - 1], curve[above]);
    let slope = (to.seconds - from.seconds) / (to.rows - from.rows).max(1.0);
    from.seconds + slope * (rows - from.rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(points: &[(usize, u64)]) -> StepCosts {
        let mut costs = StepCosts::default();
        for &(rows, millis) in points {
            costs.observe(rows, Duration::from_millis(millis));
        }
        costs
    }

    #[test]
    fn prompts_have_the_rows_that_decoding_requests_can_bear() {
        assert_eq!(costs(&[]).prompt_rows(1, 1, 128), 32, "nothing is known");
        assert_eq!(costs(&[(1, 20)]).prompt_rows(1, 1, 128), 32, "one point is no curve");
        // 20 ms and 5 ms a row: beside one row 8 more double the 20 ms.
        let line = costs(&[(1, 25), (512, 25 + 511 * 5)]);
        assert_eq!(line.prompt_rows(1, 1, 128), 10);
        assert_eq!(line.prompt_rows(16, 1, 128), 40, "more requests bear more");
        assert_eq!(line.prompt_rows(16, 1, 30), 30);
        assert_eq!(
            [2, 12, 99].map(|requests| line.prompt_rows(2, requests, 128)),
            [12, 21, 30],
            "a crowd bears more"
        );
        assert_eq!(line.prompt_rows(1, 1, 1), 1);
        // Rows that cost nothing.
        assert_eq!(costs(&[(1, 25), (64, 25)]).prompt_rows(1, 1, 2048), 2048);
        // Rows that cost too much.
        assert_eq!(costs(&[(1, 1), (2, 100)]).prompt_rows(1, 1, 128), 8);
    }

    #[test]
    fn means_follow_the_times_and_not_a_single_surprise() {
        let mut line = costs(&[(1, 25), (512, 25 + 511 * 5)]);
        line.observe(1, Duration::from_mins(4));
        assert!(line.prompt_rows(1, 1, 128) < 20);
        for _ in 0..100 {
            line.observe(1, Duration::from_millis(100));
        }
        assert!((38..=42).contains(&line.prompt_rows(1, 1, 128)), "{}", line.prompt_rows(1, 1, 128));
    }

    #[test]
    fn buckets_are_in_order() {
        let places: Vec<usize> = (1..5000).map(place).collect();
        assert!(places.is_sorted() && places[..9] == [0, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert!(places.windows(2).all(|pair| pair[1] - pair[0] <= 1));
    }
}
