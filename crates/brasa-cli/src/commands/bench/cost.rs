//! The times of operations, singly and by kind.

use std::time::Duration;

/// The times of one step's operations.
pub struct Profile {
    /// Title of the profile, e.g. `prefill of 512 tokens`.
    pub title: String,
    /// The operations, in order of execution.
    pub operations: Vec<Cost>,
}

/// Time of one operation, or of all operations of one kind.
#[derive(Clone)]
pub struct Cost {
    pub label: String,
    pub count: usize,
    pub time: Duration,
    pub bytes: u64,
    pub operations: u64,
}

impl Profile {
    /// The times of each kind of operation, summed over layers, largest first.
    pub fn kinds(&self) -> Vec<Cost> {
        let mut kinds: Vec<Cost> = Vec::new();
        for cost in &self.operations {
            let label = kind(&cost.label);
            match kinds.iter_mut().find(|kind| kind.label == label) {
                Some(kind) => {
                    kind.count += cost.count;
                    kind.time += cost.time;
                    kind.bytes += cost.bytes;
                    kind.operations += cost.operations;
                }
                None => kinds.push(Cost { label, ..cost.clone() }),
            }
        }
        kinds.sort_by_key(|kind| std::cmp::Reverse(kind.time));
        kinds
    }

    /// Time of the whole step.
    pub fn total(&self) -> Duration {
        self.operations.iter().map(|cost| cost.time).sum()
    }
}

/// An operation's label without the layer's number.
fn kind(label: &str) -> String {
    let is_number = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let words = label.split(' ').map(|word| {
        let parts: Vec<&str> = word.split('.').filter(|part| !is_number(part)).collect();
        parts.join(".")
    });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_of_one_kind() {
        let cost = |label: &str, time| Cost {
            label: label.into(),
            count: 1,
            time: Duration::from_micros(time),
            bytes: 10,
            operations: 20,
        };
        let operations = vec![
            cost("embed", 1),
            cost("linear blk.0.q", 2),
            cost("linear blk.1.q", 3),
            cost("linear out2", 4),
        ];
        let profile = Profile { title: String::new(), operations };
        let kinds: Vec<_> =
            profile.kinds().into_iter().map(|kind| (kind.label, kind.count, kind.time.as_micros())).collect();
        assert_eq!(
            kinds,
            [("linear blk.q".to_owned(), 2, 5), ("linear out2".to_owned(), 1, 4), ("embed".to_owned(), 1, 1)]
        );
        assert_eq!(profile.total(), Duration::from_micros(10));
    }
}
