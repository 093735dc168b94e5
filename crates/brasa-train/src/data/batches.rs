//! The order in which documents are learned.

use std::sync::{Arc, OnceLock};

use brasa_graph::step::{GivenValues, Outs, Segment, SequenceId, Step};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::as_mlx::MlxBatches;
use super::document::Document;
use super::pack::pack;
use crate::{Random, Result, TrainError};

/// A position in the sequence of steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Number of epochs before the position.
    pub epoch: u64,
    /// Number of steps before the position in its epoch.
    pub step: usize,
}

/// Steps of documents, epoch after epoch without end. A seed determines the order of each epoch.
#[derive(Clone, Debug)]
pub struct Batches {
    documents: Arc<[Document]>,
    rows: Vec<usize>,
    order: Order,
    place: Place,
    /// The documents of each step of the epoch.
    steps: Vec<Vec<u32>>,
    /// For each document, the cross-entropy of its learned tokens without the adapter, once it was computed.
    baselines: OnceLock<Arc<[f64]>>,
}

/// How documents are grouped into steps, and the order of the steps.
#[derive(Clone, Debug)]
enum Order {
    /// Packs as many documents into a step as fit.
    Packed {
        /// Number of consecutive documents that always share a step.
        together: usize,
        max_rows: usize,
        max_documents: usize,
        /// Seed of the order; `None` keeps the order of the file.
        seed: Option<u64>,
    },
    /// The batches of MLX-LM's trainer, before they are put into an order.
    AsMlx(MlxBatches, Arc<[Vec<u32>]>),
}

impl Batches {
    /// Steps of at most `max_rows` rows and `max_documents` documents. Without a seed the order is the same in every epoch.
    pub fn new(
        documents: impl Into<Arc<[Document]>>,
        max_rows: usize,
        max_documents: usize,
        seed: Option<u64>,
    ) -> Self {
        Self::of(documents.into(), Order::Packed { together: 1, max_rows, max_documents, seed })
    }

    /// Steps of pairs of documents, each a chosen document followed by the rejected one, of at most `max_rows` rows and
    /// `max_documents` documents. A pair is never divided.
    pub fn of_pairs(
        documents: impl Into<Arc<[Document]>>,
        max_rows: usize,
        max_documents: usize,
        seed: Option<u64>,
    ) -> Self {
        Self::of(documents.into(), Order::Packed { together: 2, max_rows, max_documents, seed })
    }

    /// The steps of MLX-LM's trainer. `fields` are the numbers of fields of the documents' rows, by which that trainer sorts.
    ///
    /// # Errors
    ///
    /// [`TrainError::Setting`] if there are fewer documents than a batch has, and for a batch without a learned token.
    pub fn as_mlx(
        documents: impl Into<Arc<[Document]>>,
        fields: &[usize],
        options: MlxBatches,
    ) -> Result<Self> {
        let documents: Arc<[Document]> = documents.into();
        if options.batch_size == 0 || documents.len() < options.batch_size {
            let what =
                format!("batches of {} examples, the file has {}", options.batch_size, documents.len());
            return Err(TrainError::setting(what, "take smaller batches, as MLX-LM asks for too"));
        }
        let batches = options.batches(fields);
        let is_silent = |batch: &&Vec<u32>| batch.iter().all(|&at| documents[at as usize].learned() == 0);
        if let Some(batch) = batches.iter().find(is_silent) {
            let what =
                format!("example {} and those of its batch have no token to learn", u64::from(batch[0]) + 1);
            return Err(TrainError::setting(what, "cut examples at more tokens, or leave them out"));
        }
        Ok(Self::of(documents, Order::AsMlx(options, batches.into())))
    }

    fn of(documents: Arc<[Document]>, order: Order) -> Self {
        let rows = documents.iter().map(Document::rows).collect();
        let (place, baselines) = (Place::default(), OnceLock::new());
        let mut batches = Self { documents, rows, order, place, steps: Vec::new(), baselines };
        batches.steps = batches.steps_of_epoch();
        batches
    }

    /// The most rows of a step of any epoch.
    pub fn most_rows(&self) -> usize {
        match &self.order {
            Order::Packed { together, max_rows, max_documents, .. } => {
                let mut rows: Vec<usize> =
                    self.rows.chunks_exact(*together).map(|rows| rows.iter().sum()).collect();
                rows.sort_unstable_by(|a, b| b.cmp(a));
                rows.iter().take(max_documents / together).sum::<usize>().min(*max_rows)
            }
            Order::AsMlx(_, batches) => batches.iter().map(|batch| self.rows(batch)).max().unwrap_or(0),
        }
    }

    /// Removes all but the first `count` steps of the present epoch.
    pub fn keep_first(&mut self, count: usize) {
        self.steps.truncate(count.max(1));
    }

    /// True if each evaluation has an order of its own. Evaluation `n` then uses epoch `n`.
    pub fn evaluations_differ(&self) -> bool {
        matches!(self.order, Order::AsMlx(..))
    }

    /// True if documents are pairs.
    pub fn has_pairs(&self) -> bool {
        matches!(self.order, Order::Packed { together: 2, .. })
    }

    pub(crate) fn baselines(&self) -> Option<&[f64]> {
        self.baselines.get().map(|baselines| &**baselines)
    }

    /// Stores the documents' cross-entropies without the adapter, unless they are stored already.
    pub(crate) fn keep_baselines(&self, baselines: Vec<f64>) {
        self.baselines.get_or_init(|| baselines.into());
    }

    /// The steps of an epoch in the order of the file, for any seed.
    pub(crate) fn in_order(&self) -> Vec<Vec<u32>> {
        match self.order {
            Order::Packed { together, max_rows, max_documents, .. } => {
                self.packed(together, max_rows, max_documents, None)
            }
            Order::AsMlx(_, ref batches) => batches.to_vec(),
        }
    }

    /// Position of the next step.
    pub fn place(&self) -> Place {
        self.place
    }

    /// Sets the position of the next step.
    pub fn go_to(&mut self, place: Place) {
        let same = place.epoch == self.place.epoch;
        self.place = place;
        if !same {
            self.steps = self.steps_of_epoch();
        }
    }

    /// Steps of the present epoch.
    pub fn steps_per_epoch(&self) -> usize {
        self.steps.len()
    }

    /// The documents of each step of the present epoch.
    pub fn epoch(&self) -> &[Vec<u32>] {
        &self.steps
    }

    /// All documents.
    pub fn documents(&self) -> &[Document] {
        &self.documents
    }

    /// The documents of the next step; moves the position to the step after it.
    pub fn next_documents(&mut self) -> Vec<u32> {
        if self.place.step >= self.steps.len() {
            self.go_to(Place { epoch: self.place.epoch + 1, step: 0 });
        }
        self.place.step += 1;
        self.steps.get(self.place.step - 1).cloned().unwrap_or_default()
    }

    /// The sum of the weights of all learned tokens of `documents`.
    pub fn weight(&self, documents: &[u32]) -> f64 {
        let of = |&document: &u32| {
            self.documents[document as usize].targets().map(|(_, weight)| f64::from(weight)).sum::<f64>()
        };
        documents.iter().map(of).sum()
    }

    /// Number of learned tokens of `documents`.
    pub fn learned(&self, documents: &[u32]) -> usize {
        documents.iter().map(|&document| self.documents[document as usize].learned()).sum()
    }

    /// Number of rows of `documents`.
    pub fn rows(&self, documents: &[u32]) -> usize {
        documents.iter().map(|&document| self.rows[document as usize]).sum()
    }

    /// Makes a step with a segment for each document. Output rows are those before learned tokens. Each segment brings its
    /// learned tokens, and their weights times `factor` of the document's index in `documents`. Documents without a learned token
    /// have no segment.
    pub fn step(&self, documents: &[u32], factor: impl Fn(usize) -> f64) -> Step {
        let segment = |(number, &document): (usize, &u32)| {
            let (document, rows) = (&self.documents[document as usize], self.rows[document as usize]);
            let factor = factor(number);
            let before: Vec<u32> = document.targets().map(|(at, _)| at as u32 - 1).collect();
            let targets: Vec<u32> = document.targets().map(|(at, _)| document.tokens[at]).collect();
            let weights: Vec<f32> =
                document.targets().map(|(_, weight)| (f64::from(weight) * factor) as f32).collect();
            let outs = Outs::Rows(before.into());
            let tokens = document.tokens[..rows].to_vec();
            let mut segment = Segment::text(SequenceId(number as u64), 0, tokens, outs, Vec::new());
            segment.given = vec![GivenValues::U32(targets.into()), GivenValues::F32(weights.into())];
            segment
        };
        let has_rows = |(_, document): &(usize, &u32)| self.rows[**document as usize] > 0;
        Step { segments: documents.iter().enumerate().filter(has_rows).map(segment).collect() }
    }

    /// A fingerprint of the documents and their order. Batches with equal fingerprints have equal steps.
    pub fn fingerprint(&self) -> String {
        let mut hash = Sha256::new();
        match &self.order {
            Order::Packed { together, max_rows, max_documents, seed } => {
                hash.update(format!("{seed:?} {max_rows} {max_documents}"));
                if *together > 1 {
                    hash.update("pairs");
                }
            }
            Order::AsMlx(options, batches) => hash.update(format!("{options:?} {batches:?}")),
        }
        for document in &*self.documents {
            hash.update((document.tokens.len() as u64).to_le_bytes());
            document.tokens.iter().for_each(|token| hash.update(token.to_le_bytes()));
            for span in &document.spans {
                hash.update(
                    [span.tokens.start, span.tokens.end, span.weight.to_bits()]
                        .map(u32::to_le_bytes)
                        .concat(),
                );
            }
        }
        let hash = hash.finalize();
        let first = hash.first_chunk::<8>().copied().unwrap_or_default();
        format!("{:016x}", u64::from_be_bytes(first))
    }

    fn steps_of_epoch(&self) -> Vec<Vec<u32>> {
        match self.order {
            Order::Packed { together, max_rows, max_documents, seed } => {
                self.packed(together, max_rows, max_documents, seed)
            }
            Order::AsMlx(ref options, ref batches) => {
                let order = options.order(self.place.epoch, batches.len());
                order.into_iter().map(|batch| batches[batch as usize].clone()).collect()
            }
        }
    }

    fn packed(
        &self,
        together: usize,
        max_rows: usize,
        max_documents: usize,
        seed: Option<u64>,
    ) -> Vec<Vec<u32>> {
        let rows: Vec<usize> = self.rows.chunks_exact(together).map(|rows| rows.iter().sum()).collect();
        let mut order: Vec<u32> = (0..rows.len() as u32).collect();
        let mut random = seed.map(|seed| Random::new(seed, self.place.epoch));
        if let Some(random) = &mut random {
            random.shuffle(&mut order);
        }
        let mut steps = pack(&rows, &order, max_rows, max_documents / together);
        if let Some(random) = &mut random {
            random.shuffle(&mut steps);
        }
        let together = together as u32;
        for step in &mut steps {
            *step = step.iter().flat_map(|&first| first * together..(first + 1) * together).collect();
        }
        steps
    }
}
