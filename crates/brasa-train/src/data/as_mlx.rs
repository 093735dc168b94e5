//! The batches of MLX-LM's trainer, for runs that are compared with its runs.
//!
//! Documents are sorted by the number of fields of their rows, which MLX-LM 0.32 uses as their lengths; documents with equal
//! numbers keep the order of the file. Each `batch_size` documents in this order form a batch. The remaining documents are never
//! learned. Orders of batches are permutations that NumPy draws from one generator for training and evaluations in turn.

use super::mersenne::Mersenne;

/// How MLX-LM's trainer makes batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MlxBatches {
    /// Number of documents of a batch.
    pub batch_size: usize,
    /// Seed of the order of batches.
    pub seed: u32,
    /// Number of batches that are learned in all.
    pub iterations: u64,
    /// Number of batches that are learned between two evaluations.
    pub steps_per_eval: u64,
    /// Number of documents for training. Training and evaluations draw from one generator, so both numbers matter for either.
    pub train_documents: usize,
    /// Number of documents for evaluation; 0 without an evaluation file.
    pub valid_documents: usize,
    /// Whether these batches are learned or evaluated.
    pub purpose: MlxPurpose,
}

/// The use of batches of MLX-LM's trainer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MlxPurpose {
    /// Examples to learn.
    Train,
    /// Examples to evaluate during training, at most this many.
    Valid(Option<usize>),
    /// Examples to evaluate at the end, at most this many.
    Test(Option<usize>),
}

impl MlxBatches {
    /// The documents of each batch, before batches are put in an order.
    pub(super) fn batches(&self, fields: &[usize]) -> Vec<Vec<u32>> {
        let mut order: Vec<u32> = (0..fields.len() as u32).collect();
        order.sort_by_key(|&document| fields[document as usize]);
        order.chunks_exact(self.batch_size).map(<[u32]>::to_vec).collect()
    }

    /// The order of `count` batches in epoch `epoch`: the `epoch`-th pass over the examples, or the `epoch`-th evaluation.
    pub(super) fn order(&self, epoch: u64, count: usize) -> Vec<u32> {
        let (train, valid) = (self.train_documents / self.batch_size, self.valid_documents / self.batch_size);
        let mut random = Mersenne::new(self.seed);
        let (mut passes, mut evaluations) = (0, 0);
        let is_learned = self.purpose == MlxPurpose::Train;
        for iteration in 1.. {
            let is_over = iteration > self.iterations && !is_learned;
            // A pass draws its order when its first batch is wanted.
            if !is_over && (iteration - 1) % (train.max(1) as u64) == 0 {
                let order = random.permutation(train);
                if is_learned && passes == epoch {
                    return order;
                }
                passes += 1;
            }
            let is_evaluated =
                iteration == 1 || iteration % self.steps_per_eval == 0 || iteration == self.iterations;
            match self.purpose {
                MlxPurpose::Valid(most) if is_over || (valid > 0 && is_evaluated) => {
                    let order = random.permutation(count);
                    if is_over || evaluations == epoch {
                        return order.into_iter().take(most.unwrap_or(count)).collect();
                    }
                    evaluations += 1;
                }
                MlxPurpose::Test(most) if is_over => {
                    return random.permutation(count).into_iter().take(most.unwrap_or(count)).collect();
                }
                _ if valid > 0 && is_evaluated && !is_over => drop(random.permutation(valid)),
                _ => {}
            }
        }
        unreachable!("there is always another iteration")
    }
}
