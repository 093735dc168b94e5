//! The pages that requests will need, as numbers for the scheduler.

use brasa_graph::CacheGroup;
use brasa_graph::step::PAGE_POSITIONS;

use crate::CacheScope;
use crate::prefix::Prefixes;
use crate::schedule::Room;
use crate::sequence::Sequence;

/// The pages that exist, and which of them active requests hold.
pub(crate) struct Outlook<'a> {
    pub(crate) groups: &'a [CacheGroup],
    /// Pages of each group that exist.
    pub(crate) totals: Vec<usize>,
    pub(crate) page_bytes: &'a [u64],
    /// Bytes that the budget leaves for pages that do not exist yet.
    pub(crate) growth_bytes: u64,
    pub(crate) prefixes: &'a Prefixes,
    /// By group and page: true if an active request holds the page.
    pub(crate) active: Vec<Vec<bool>>,
    /// Number of state pages that a text holds while it is computed; `None` for a model without recurrent states. In
    /// all lists, state pages are one more group, behind the cache groups.
    pub(crate) states_per_text: Option<usize>,
}

impl Outlook<'_> {
    /// Counts the pages of `sequence` as held by an active request.
    pub(crate) fn add_active(&mut self, sequence: &Sequence) {
        for (table, active) in sequence.tables.iter().zip(&mut self.active) {
            for page in table.iter().flatten() {
                active[page.index()] = true;
            }
        }
        if let Some(active) = self.active.get_mut(self.groups.len()) {
            for page in sequence.states.pages() {
                active[page.index()] = true;
            }
        }
    }

    /// Pages that active requests could still get if all other holders gave theirs up.
    pub(crate) fn room(&self) -> Room {
        let held = |pages: &Vec<bool>| pages.iter().filter(|&&active| active).count();
        Room {
            pages: self.totals.iter().zip(&self.active).map(|(total, pages)| total - held(pages)).collect(),
            page_bytes: self.page_bytes.to_vec(),
            growth_bytes: self.growth_bytes,
        }
    }

    /// Pages that active `sequence` lacks for a text of `positions` positions, computed in chunks of up to `chunk` rows.
    pub(crate) fn need(&self, sequence: &Sequence, positions: usize, chunk: usize) -> Vec<usize> {
        let held = sequence.tables.iter().map(|table| table.iter().flatten().count());
        self.groups
            .iter()
            .zip(held)
            .map(|(group, held)| most_pages(group, positions, chunk).saturating_sub(held))
            .chain(self.states_per_text.map(|pages| pages.saturating_sub(sequence.states.pages().count())))
            .collect()
    }

    /// Like [`need`](Self::need), for a text that begins with what the prefixes hold of `tokens`: the prefixes' pages are needed
    /// too unless an active request holds them. Also returns the number of tokens that the prefixes hold.
    pub(crate) fn need_behind_prefix(
        &self,
        scope: CacheScope,
        tokens: &[u32],
        positions: usize,
        chunk: usize,
    ) -> (usize, Vec<usize>) {
        let found = self.prefixes.find(scope, tokens, self.groups);
        let shared = |group: usize| {
            let pages = self.prefixes.pages_of(&found, self.groups, group);
            pages.filter(|page| self.active[group][page.index()]).count()
        };
        let need = self
            .groups
            .iter()
            .enumerate()
            .map(|(number, group)| most_pages(group, positions, chunk).saturating_sub(shared(number)));
        (found.tokens, need.chain(self.states_per_text).collect())
    }

    /// Number of tokens that a text can take from the cache once an active request has computed its prompt of `length` tokens, of
    /// which `common` are the text's own.
    pub(crate) fn after_prompt(&self, length: usize, common: usize) -> usize {
        self.prefixes.after_prompt(length, common, self.groups) * PAGE_POSITIONS
    }
}

/// Most pages that a text of `positions` positions holds at any time while it is computed in chunks of up to `chunk` rows.
pub(crate) fn most_pages(group: &CacheGroup, positions: usize, chunk: usize) -> usize {
    let all = positions.div_ceil(PAGE_POSITIONS);
    // A window and the rows behind it may begin at the last position of a page.
    let window = |window: usize| window.saturating_add(chunk).saturating_sub(1).div_ceil(PAGE_POSITIONS) + 1;
    group.spec.window.map_or(all, |size| all.min(window(size)))
}
