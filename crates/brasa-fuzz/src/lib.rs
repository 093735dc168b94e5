//! Fuzzing on stable Rust, for tests: seeds, seeded mutations, bounds on time and memory; and reports of [skipped] tests.
//!
//! A target is a plain function from bytes to a description of its *outcome*, for instance the text of an error. Without
//! coverage instrumentation, a new outcome is what shows that an input reached somewhere new: such inputs join the
//! corpus and are mutated further, so that the fuzzer works its way through a parser's checks one after another.
//!
//! ```
//! fn parse(data: &[u8]) -> String {
//!     match str::from_utf8(data) {
//!         Ok(text) => format!("{:?}", text.parse::<u8>()),
//!         Err(_) => "not UTF-8".into(),
//!     }
//! }
//!
//! brasa_fuzz::Fuzzer::new("numbers").seed("200").words(["+", "0x"]).runs(500).run(parse);
//! ```
//!
//! A session runs a fixed number of inputs, so that it tests as much on a slow machine as on a fast one. The environment
//! variable `BRASA_FUZZ_TIMES` multiplies that number, and `BRASA_FUZZ_SEED` chooses the mutations (0 without it). A failure
//! prints the seed, writes the input to the temporary directory and says where.

mod memory;
mod mutate;
mod rng;
mod skipped;
mod work;

use std::collections::HashSet;
use std::env;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::time::Duration;

pub use memory::{MeteredAllocator, most_bytes};
pub use rng::Rng;
pub use skipped::{skipped, sweep_times, sweeps};

use mutate::mutate;

const DEFAULT_RUNS: u64 = 5_000;
const DEFAULT_LONGEST_INPUT: usize = 1 << 16;
const MOST_IN_CORPUS: usize = 2000;
/// The processor time that one input may take. Parsers here need microseconds, decoders of sound that are compiled without optimisation
/// tenths of a second.
const SLOWEST: Duration = Duration::from_secs(5);

/// A fuzzing session for one target.
#[derive(Clone, Debug)]
pub struct Fuzzer {
    name: String,
    seeds: Vec<Vec<u8>>,
    words: Vec<Vec<u8>>,
    runs: u64,
    seed: u64,
    longest_input: usize,
    memory_factor: Option<usize>,
}

/// Counts of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Inputs that were run.
    pub runs: u64,
    /// Different outcomes that were seen.
    pub outcomes: usize,
}

impl Fuzzer {
    /// A session without seeds. The name appears in messages.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            seeds: Vec::new(),
            words: Vec::new(),
            runs: DEFAULT_RUNS,
            seed: env_number("BRASA_FUZZ_SEED").unwrap_or(0),
            longest_input: DEFAULT_LONGEST_INPUT,
            memory_factor: None,
        }
    }

    /// Adds an input to start from. Small valid ones are best.
    #[must_use]
    pub fn seed(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.seeds.push(bytes.into());
        self
    }

    /// Adds the files of a directory whose names end in `suffix`.
    ///
    /// # Panics
    ///
    /// If the directory cannot be read, or holds no such file.
    #[must_use]
    pub fn seed_directory(mut self, directory: impl AsRef<Path>, suffix: &str) -> Self {
        let directory = directory.as_ref();
        let list = || -> std::io::Result<Vec<_>> {
            let entries = std::fs::read_dir(directory)?;
            let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
            paths.retain(|path| path.to_string_lossy().ends_with(suffix));
            paths.sort();
            paths.into_iter().map(std::fs::read).collect()
        };
        let seeds = list().unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
        assert!(!seeds.is_empty(), "{}: no file ends in {suffix}", directory.display());
        self.seeds.extend(seeds);
        self
    }

    /// Adds words of the format: keys, keywords, magic numbers.
    #[must_use]
    pub fn words<W: AsRef<[u8]>>(mut self, words: impl IntoIterator<Item = W>) -> Self {
        self.words.extend(words.into_iter().map(|word| word.as_ref().to_vec()));
        self
    }

    /// Sets the number of mutated inputs, which `BRASA_FUZZ_TIMES` multiplies; 5,000 by default.
    #[must_use]
    pub fn runs(mut self, runs: u64) -> Self {
        self.runs = runs;
        self
    }

    /// Sets the most bytes of an input; 64 KiB by default.
    #[must_use]
    pub fn longest_input(mut self, bytes: usize) -> Self {
        self.longest_input = bytes;
        self
    }

    /// Lets the target hold at most `factor` × the input's bytes + 1 MiB at any time.
    ///
    /// Needs [`MeteredAllocator`] as the test's global allocator; the target has to stay on its thread.
    #[must_use]
    pub fn memory_factor(mut self, factor: usize) -> Self {
        self.memory_factor = Some(factor);
        self
    }

    /// Runs the seeds, then their mutations.
    ///
    /// # Panics
    ///
    /// If the target panics, takes seconds of processor time, or takes more memory than it may. The input is kept in a file.
    pub fn run(self, target: impl Fn(&[u8]) -> String) -> Report {
        let mut rng = Rng::new(self.seed);
        let times = env_number("BRASA_FUZZ_TIMES").unwrap_or(1);
        if times <= 1 {
            skipped("long fuzzing", "run by `cargo xtask ci` or with BRASA_FUZZ_TIMES=10");
        }

        let mut outcomes = HashSet::new();
        let mut runs = 0;
        for seed in &self.seeds {
            outcomes.insert(essence(&self.run_one(&target, seed)));
            runs += 1;
        }
        let mut corpus = self.seeds.clone();
        if corpus.is_empty() {
            corpus.push(Vec::new());
        }
        for _ in 0..self.runs.saturating_mul(times) {
            let mut input = rng.choose(&corpus).clone();
            mutate(&mut input, &corpus, &self.words, &mut rng);
            input.truncate(self.longest_input);
            let outcome = self.run_one(&target, &input);
            runs += 1;
            if outcomes.insert(essence(&outcome)) {
                if corpus.len() < MOST_IN_CORPUS {
                    corpus.push(input);
                } else {
                    // Seeds stay.
                    let at = self.seeds.len() + rng.below(corpus.len() - self.seeds.len());
                    corpus[at] = input;
                }
            }
        }
        let report = Report { runs, outcomes: outcomes.len() };
        println!("{}: {} inputs, {} outcomes, seed {}", self.name, report.runs, report.outcomes, self.seed);
        report
    }

    fn run_one(&self, target: &impl Fn(&[u8]) -> String, input: &[u8]) -> String {
        let started = work::of_thread();
        let before = memory::reset_peak();
        let result = panic::catch_unwind(AssertUnwindSafe(|| target(input)));
        let held = memory::peak().saturating_sub(before);
        let outcome = match result {
            Ok(outcome) => outcome,
            Err(cause) => {
                eprintln!("{}", self.kept(input, "panicked"));
                panic::resume_unwind(cause);
            }
        };
        if let Some(factor) = self.memory_factor {
            let limit = input.len().saturating_mul(factor).saturating_add(1 << 20);
            assert!(held <= limit, "{}", self.kept(input, &format!("held {held} bytes, may hold {limit}")));
        }
        let took = work::of_thread().saturating_sub(started);
        assert!(took <= SLOWEST, "{}", self.kept(input, &format!("worked for {took:?}")));
        outcome
    }

    /// Keeps an input that failed, and says where.
    fn kept(&self, input: &[u8], failure: &str) -> String {
        let path = env::temp_dir().join(format!("brasa-fuzz-{}-{}.bin", self.name, std::process::id()));
        let place = match std::fs::write(&path, input) {
            Ok(()) => path.display().to_string(),
            Err(error) => format!("not kept: {error}"),
        };
        format!("{}: {failure} on {} bytes ({place}), BRASA_FUZZ_SEED={}", self.name, input.len(), self.seed)
    }
}

/// The number in an environment variable, if the variable is set.
fn env_number(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text}: not a whole number")))
}

/// An outcome without what varies from input to input: numbers, and everything from the first quotation on.
fn essence(outcome: &str) -> String {
    outcome.chars().take(400).take_while(|c| *c != '"').filter(|c| !c.is_ascii_digit()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hidden_panic_is_found() {
        // Four bytes have to be right, and each shows by a new outcome.
        let hidden = |data: &[u8]| {
            let right = data.iter().zip(b"\x07\x01\x99\x42").take_while(|(a, b)| a == b).count();
            assert!(right < 4, "found");
            ["none", "one", "two", "three"][right].to_owned()
        };
        let found = panic::catch_unwind(|| Fuzzer::new("hidden").seed("0000").runs(10_000_000).run(hidden));
        assert_eq!(found.unwrap_err().downcast_ref::<&str>(), Some(&"found"));
        // The input that was kept.
        let kept = env::temp_dir().join(format!("brasa-fuzz-hidden-{}.bin", std::process::id()));
        std::fs::remove_file(kept).unwrap();
    }

    #[test]
    fn waiting_is_no_work() {
        let waiting = |_: &[u8]| {
            std::thread::sleep(Duration::from_millis(20));
            String::new()
        };
        let before = work::of_thread();
        Fuzzer::new("waiting").seed("0").runs(3).run(waiting);
        assert!(!cfg!(unix) || work::of_thread() < before + Duration::from_millis(60));
        let before = work::of_thread();
        let mut sum = 0_u64;
        while work::of_thread() == before {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(work::of_thread() > before);
    }

    #[test]
    fn outcomes_are_told_apart_by_what_matters() {
        assert_eq!(essence("byte 17: odd is \"x\\ny\""), "byte : odd is ");
        assert_ne!(essence("too long"), essence("too short"));
    }
}
