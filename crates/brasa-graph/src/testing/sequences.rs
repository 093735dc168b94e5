//! Sequences with pages of their own, for tests of devices without an engine.

use std::collections::BTreeMap;

use crate::GroupId;
use crate::device::{DeviceError, KvPool};
use crate::step::{BlockTable, Outs, PAGE_POSITIONS, PageId, Segment, SequenceId};
use crate::{CacheGroup, CacheKind, StatePages};

/// Lengths and block tables of sequences, growing as they are extended. No page is ever shared. Only pages that have left the
/// window of a window group are released.
#[derive(Debug)]
pub struct Sequences {
    groups: Vec<CacheGroup>,
    pages_used: Vec<usize>,
    known: BTreeMap<SequenceId, Sequence>,
    has_states: bool,
    state_pages_used: usize,
}

#[derive(Debug, Default)]
struct Sequence {
    rows: usize,
    memory_rows: usize,
    pages: Vec<BlockTable>,
    /// The page with the states after the last row.
    state: Option<PageId>,
}

impl Sequences {
    /// No sequences yet, over a pool that nothing else uses.
    pub fn new(pool: &dyn KvPool) -> Self {
        let groups = pool.spec().groups.clone();
        let has_states = !pool.spec().states.is_empty();
        let pages_used = vec![0; groups.len()];
        Self { groups, pages_used, known: BTreeMap::new(), has_states, state_pages_used: 0 }
    }

    /// A segment that appends `tokens` to sequence `id`, its pages reserved in `pool`.
    ///
    /// # Errors
    ///
    /// Errors of [`KvPool::reserve`].
    pub fn extend(
        &mut self,
        pool: &mut dyn KvPool,
        id: u64,
        tokens: &[u32],
        outs: Outs,
    ) -> Result<Segment, DeviceError> {
        let sequence = self.known.entry(SequenceId(id)).or_default();
        sequence.pages.resize(self.groups.len(), BlockTable::new());
        let first_index = sequence.rows;
        sequence.rows += tokens.len();
        for (number, (group, table)) in self.groups.iter().zip(&mut sequence.pages).enumerate() {
            let positions = match group.kind {
                CacheKind::Text => sequence.rows,
                CacheKind::Memory => sequence.memory_rows,
            };
            while table.len() * PAGE_POSITIONS < positions {
                table.push(Some(PageId::from_index(self.pages_used[number])));
                self.pages_used[number] += 1;
            }
            let behind = group.spec.window.map_or(0, |w| (first_index + 1).saturating_sub(w));
            table[..behind / PAGE_POSITIONS].fill(None);
            pool.reserve(GroupId(number as u32), self.pages_used[number])?;
        }
        let pages = sequence.pages.clone();
        let memory_rows = sequence.memory_rows;
        let mut states = StatePages::default();
        if self.has_states && !tokens.is_empty() {
            let page = self.state_page(pool)?;
            states.from =
                self.known.get_mut(&SequenceId(id)).and_then(|sequence| sequence.state.replace(page));
            states.to.push((tokens.len() as u32 - 1, page));
        }
        let text = Segment::text(SequenceId(id), first_index, tokens.to_vec(), outs, pages);
        Ok(Segment { memory_rows, states, ..text })
    }

    /// Reserves a state page of `pool` that no sequence uses.
    ///
    /// # Errors
    ///
    /// Errors of [`KvPool::reserve_state_pages`].
    pub fn state_page(&mut self, pool: &mut dyn KvPool) -> Result<PageId, DeviceError> {
        pool.reserve_state_pages(self.state_pages_used + 1)?;
        self.state_pages_used += 1;
        Ok(PageId::from_index(self.state_pages_used - 1))
    }

    /// Gives sequence `id` memories of `rows` rows, whose pages are reserved with the next rows of the sequence.
    pub fn remember(&mut self, id: u64, rows: usize) {
        self.known.entry(SequenceId(id)).or_default().memory_rows = rows;
    }

    /// The block tables of sequence `id`, as its next segment has them; none for a sequence that has not begun.
    pub fn pages(&self, id: u64) -> Vec<BlockTable> {
        self.known.get(&SequenceId(id)).map_or_else(Vec::new, |sequence| sequence.pages.clone())
    }

    /// Forgets all but the first `rows` rows of sequence `id`. If the pool has recurrent states, a device then refuses
    /// the sequence's next step, unless `rows` is 0.
    pub fn truncate(&mut self, id: u64, rows: usize) {
        if let Some(sequence) = self.known.get_mut(&SequenceId(id))
            && rows < sequence.rows
        {
            (sequence.rows, sequence.state) = (rows, None);
        }
    }
}
