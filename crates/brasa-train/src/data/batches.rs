//! The order in which documents are learned.

use std::sync::{Arc, OnceLock};

use brasa_graph::step::{GivenValues, Outs, Segment, SequenceId, Step};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::document::Document;
use super::pack::pack;
use crate::Random;

/// A place in the order of steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Times that all documents were learned before.
    pub epoch: u64,
    /// Steps of this epoch before.
    pub step: usize,
}

/// Steps of packed documents, epoch after epoch without end. Each epoch has an order of its own, by seed.
#[derive(Clone, Debug)]
pub struct Batches {
    documents: Arc<[Document]>,
    rows: Vec<usize>,
    /// So many documents that follow each other are always in one step.
    together: usize,
    max_rows: usize,
    max_documents: usize,
    /// `None` keeps the order of the file.
    seed: Option<u64>,
    place: Place,
    /// The documents of each step of the epoch.
    steps: Vec<Vec<u32>>,
    /// Of each document, its learned tokens' cross-entropy without the adapter, once it was asked for.
    baselines: OnceLock<Arc<[f64]>>,
}

impl Batches {
    /// Steps of at most `max_rows` rows and `max_documents` documents. Without a seed the order is the same in every epoch.
    pub fn new(
        documents: impl Into<Arc<[Document]>>,
        max_rows: usize,
        max_documents: usize,
        seed: Option<u64>,
    ) -> Self {
        Self::of(documents.into(), 1, max_rows, max_documents, seed)
    }

    /// The same of pairs: a chosen document and, behind it, the rejected one. Both are in one step.
    pub fn of_pairs(
        documents: impl Into<Arc<[Document]>>,
        max_rows: usize,
        max_documents: usize,
        seed: Option<u64>,
    ) -> Self {
        Self::of(documents.into(), 2, max_rows, max_documents, seed)
    }

    fn of(
        documents: Arc<[Document]>,
        together: usize,
        max_rows: usize,
        max_documents: usize,
        seed: Option<u64>,
    ) -> Self {
        let rows = documents.iter().map(Document::rows).collect();
        let (place, steps, baselines) = (Place::default(), Vec::new(), OnceLock::new());
        let mut batches =
            Self { documents, rows, together, max_rows, max_documents, seed, place, steps, baselines };
        batches.steps = batches.packed(seed);
        batches
    }

    /// True if documents are pairs.
    pub fn has_pairs(&self) -> bool {
        self.together == 2
    }

    pub(crate) fn baselines(&self) -> Option<&[f64]> {
        self.baselines.get().map(|baselines| &**baselines)
    }

    /// Keeps the documents' cross-entropies without the adapter; the first ones stay.
    pub(crate) fn keep_baselines(&self, baselines: Vec<f64>) {
        self.baselines.get_or_init(|| baselines.into());
    }

    /// The steps of an epoch in the order of the file, whatever the seed.
    pub(crate) fn in_order(&self) -> Vec<Vec<u32>> {
        self.packed(None)
    }

    /// Where the next step stands.
    pub fn place(&self) -> Place {
        self.place
    }

    /// Goes to a place.
    pub fn go_to(&mut self, place: Place) {
        let same = place.epoch == self.place.epoch;
        self.place = place;
        if !same {
            self.steps = self.packed(self.seed);
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

    /// The documents of the next step; goes on by one.
    pub fn next_documents(&mut self) -> Vec<u32> {
        if self.place.step >= self.steps.len() {
            self.go_to(Place { epoch: self.place.epoch + 1, step: 0 });
        }
        self.place.step += 1;
        self.steps.get(self.place.step - 1).cloned().unwrap_or_default()
    }

    /// The sum of the weights of all learned tokens of documents.
    pub fn weight(&self, documents: &[u32]) -> f64 {
        let of = |&document: &u32| {
            self.documents[document as usize].targets().map(|(_, weight)| f64::from(weight)).sum::<f64>()
        };
        documents.iter().map(of).sum()
    }

    /// Number of learned tokens of documents.
    pub fn learned(&self, documents: &[u32]) -> usize {
        documents.iter().map(|&document| self.documents[document as usize].learned()).sum()
    }

    /// Rows of documents.
    pub fn rows(&self, documents: &[u32]) -> usize {
        documents.iter().map(|&document| self.rows[document as usize]).sum()
    }

    /// The step of documents: a segment each, whose output rows are those before learned tokens. Each brings the learned tokens,
    /// and their weights times the `factor` of the document, whose place among `documents` it is given.
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
        Step { segments: documents.iter().enumerate().map(segment).collect() }
    }

    /// Names the documents and their order: two of equal fingerprints have equal steps.
    pub fn fingerprint(&self) -> String {
        let mut hash = Sha256::new();
        hash.update(format!("{:?} {} {}", self.seed, self.max_rows, self.max_documents));
        if self.together > 1 {
            hash.update("pairs");
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

    fn packed(&self, seed: Option<u64>) -> Vec<Vec<u32>> {
        let rows: Vec<usize> = self.rows.chunks_exact(self.together).map(|rows| rows.iter().sum()).collect();
        let mut order: Vec<u32> = (0..rows.len() as u32).collect();
        let mut random = seed.map(|seed| Random::new(seed, self.place.epoch));
        if let Some(random) = &mut random {
            random.shuffle(&mut order);
        }
        let mut steps = pack(&rows, &order, self.max_rows, self.max_documents / self.together);
        if let Some(random) = &mut random {
            random.shuffle(&mut steps);
        }
        let together = self.together as u32;
        for step in &mut steps {
            *step = step.iter().flat_map(|&first| first * together..(first + 1) * together).collect();
        }
        steps
    }
}
